"""The space: what may be searched, and which points it holds."""

from __future__ import annotations

import dataclasses
import math

import optuna
import pytest

from uedp_ray import methods
from uedp_ray.config import BoundsConfig, CorpusConfig, PrivacyConfig, RunConfig
from uedp_ray.errors import InputError
from uedp_ray.search.space import Space, settings_of

BASE = RunConfig(corpus=CorpusConfig(declared_num_users=300))
CONDITIONAL = {
    "method": {"choice": ["uedp", "user_dp"]},
    "model.trainable": {"choice": ["full", "lora"]},
    "model.lora_rank": {"choice": [2, 4], "when": {"model.trainable": "lora"}},
    "bounds.max_holders": {"integer": [1, 5], "step": 2, "when": {"method": ["uedp"]}},
}


@pytest.mark.parametrize(
    ("tree", "field", "remedy"),
    [
        ({}, "space", "at least one"),
        ({"privacy.q_u": {"uniform": [0, 1]}}, "space.privacy.q_u", "unknown setting.*user_sampling_prob"),
        ({"privacy": {"uniform": [0, 1]}}, "space.privacy", "unknown setting"),
        ({"nothing.at_all": {"choice": [1]}}, "space.nothing.at_all", "unknown setting; known: .*privacy"),
        ({"training.num_rounds": {"integer": [5, 5]}}, "space.training.num_rounds", "empty range"),
        ({"training.num_rounds": {"integer": [9, 5]}}, "space.training.num_rounds", "empty range"),
        ({"training.num_rounds": {"integer": [1.5, 5]}}, "space.training.num_rounds", "whole numbers"),
        ({"training.num_rounds": {"integer": [0, 5]}}, "space.training.num_rounds", "1 or more"),
        ({"training.num_rounds": {"integer": [1, 5], "step": 0}}, "space.training.num_rounds.step", "above 0"),
        ({"training.num_rounds": {"uniform": [1, 5]}}, "space.training.num_rounds", "expected a whole number"),
        ({"privacy.l2_clip_norm": {"log_uniform": [0, 1]}}, "space.privacy.l2_clip_norm", "above 0"),
        ({"privacy.l2_clip_norm": {"uniform": ["a", 1]}}, "space.privacy.l2_clip_norm", "two numbers"),
        ({"privacy.l2_clip_norm": {"normal": [0, 1]}}, "space.privacy.l2_clip_norm", "write one of uniform"),
        ({"privacy.l2_clip_norm": {"uniform": [0.1, 1], "step": 1}}, "space.privacy.l2_clip_norm.step", "unknown key"),
        ({"privacy.user_sampling_prob": {"uniform": [0.1, 1.5]}}, "space.privacy.user_sampling_prob", r"in \[0, 1\]"),
        ({"privacy.selection_rule": {"choice": []}}, "space.privacy.selection_rule", "non-empty"),
        ({"privacy.selection_rule": {"choice": ["all", "all"]}}, "space.privacy.selection_rule", "twice"),
        ({"privacy.selection_rule": {"choice": ["all", "some"]}}, "space.privacy.selection_rule", "all, any"),
        ({"method": {"choice": ["uedp", "magic"]}}, "space.method", "choose one of"),
        ({"privacy.delta": {"log_uniform": [1e-6, 1e-5]}}, "space.privacy.delta", "the budget sets it"),
        ({"corpus.source": {"choice": ["a"]}}, "space.corpus.source", "same text"),
        ({"bounds.mode": {"choice": ["none", "declared"]}}, "space.bounds.mode", "promised of the text"),
        ({"pretrain.text": {"choice": ["a"]}}, "space.pretrain.text", "once, before the first trial"),
        ({"vocabulary.public_text": {"choice": ["a"]}}, "space.vocabulary.public_text", "once, before the first trial"),
        ({"training.seed": {"integer": [0, 9]}}, "space.training.seed", "seeds_per_trial"),
        ({"model.lora_rank": {"choice": [2], "when": {"model.trainable": "lora"}}}, "space.model.lora_rank.when", "before"),
        (
            {"expected_cohort_size": {"uniform": [9, 90]}, "privacy.user_sampling_prob": {"uniform": [0.1, 1]}},
            "space.expected_cohort_size",
            "one of the two",
        ),
        (
            {"training.passes": {"uniform": [4, 40]}, "training.num_rounds": {"integer": [10, 40]}},
            "space.training.passes",
            "one of the two",
        ),
    ],
)  # fmt: skip
def test_a_bad_space_is_refused_with_its_field_and_a_remedy(tree, field, remedy):
    with pytest.raises(InputError, match=remedy) as caught:
        Space.parse(tree, BASE)
    assert caught.value.field == field


def test_a_grid_holds_every_point_once_and_no_setting_that_does_not_exist_there():
    points = Space.parse(CONDITIONAL, BASE).grid()
    assert len(points) == (2 - 1) * (1 + 2) * 3 + 1 * (1 + 2)
    assert len({tuple(sorted(point.items())) for point in points}) == len(points)
    assert all(("model.lora_rank" in point) == (point["model.trainable"] == "lora") for point in points)
    assert all(("bounds.max_holders" in point) == (point["method"] == "uedp") for point in points)
    assert {point.get("bounds.max_holders") for point in points} == {1, 3, 5, None}


def test_a_grid_takes_evenly_spread_values_of_a_range_on_its_scale():
    space = Space.parse(
        {
            "privacy.l2_clip_norm": {"log_uniform": [0.01, 1], "points": 3},
            "model.lora_alpha": {"uniform": [1, 2], "points": 2},
        },
        BASE,
    )
    points = space.grid()
    assert [point["privacy.l2_clip_norm"] for point in points[::2]] == pytest.approx([0.01, 0.1, 1])
    assert [point["model.lora_alpha"] for point in points[:2]] == [1, 2]
    with pytest.raises(InputError, match="points: n"):
        Space.parse({"privacy.l2_clip_norm": {"uniform": [0.1, 1]}}, BASE).grid()


def test_suggested_points_are_points_of_the_space_and_a_begun_trial_keeps_its_values():
    space = Space.parse(CONDITIONAL, BASE)
    study, grid = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=1)), space.grid()
    seen = set()
    for _ in range(60):
        trial = study.ask()
        point = space.suggest(trial)
        assert point in grid
        assert space.suggest(trial) == point
        seen.add(grid.index(point))
    assert len(seen) > len(grid) / 2


def test_bounds_are_searched_only_where_they_are_enforced():
    """A trial whose declared bound the text breaks would fail, and which trials fail is not charged for."""
    tree = {"bounds.max_holders": {"integer": [1, 6]}}
    with pytest.raises(InputError, match=r"set base.bounds.mode: enforced"):
        Space.parse(tree, dataclasses.replace(BASE, bounds=BoundsConfig(mode="declared")))
    unprotected = PrivacyConfig(unit="user", sentence_clip_norm=None, noise_multiplier=1.0)
    unbounded = dataclasses.replace(BASE, bounds=BoundsConfig(mode="none"), privacy=unprotected)
    with pytest.raises(InputError, match="has no effect"):
        Space.parse(tree, unbounded)


def test_values_at_a_point_are_those_that_exist_there():
    values = {"method": "user_dp", "model.trainable": "full", "model.lora_rank": 2, "bounds.max_holders": 5}
    assert Space.parse(CONDITIONAL, BASE).at(values) == {"method": "user_dp", "model.trainable": "full"}


def test_a_cohort_is_a_share_of_the_declared_users():
    assert settings_of({"expected_cohort_size": 60.0, "method": "uedp"}, BASE) == (
        "uedp",
        {"privacy.user_sampling_prob": 0.2},
    )
    with pytest.raises(InputError, match="share of the declared users"):
        Space.parse({"expected_cohort_size": {"uniform": [9, 90]}}, RunConfig(privacy=PrivacyConfig(noise="none")))
    for cohort in (None, "many", True, [], 0, -1.0, 10**400, math.nan, math.inf):
        with pytest.raises(InputError, match=r"expected_cohort_size = .*: must be a number above 0"):
            settings_of({"expected_cohort_size": cohort}, BASE)


def test_passes_are_searched_in_place_of_rounds():
    space = Space.parse(
        {"training.passes": {"choice": [4.0, 20.0]}, "privacy.user_sampling_prob": {"choice": [0.5]}}, BASE
    )
    rounds = [methods.overlay(BASE, settings_of(point, BASE)[1]).training.num_rounds for point in space.grid()]
    assert rounds == [8, 40]
    given = methods.overlay(BASE, {"training.passes": 10.0})
    with pytest.raises(InputError, match=r"training\.passes sets it"):
        Space.parse({"training.num_rounds": {"integer": [5, 9]}}, given)


def test_choices_may_be_lists_or_texts_with_commas():
    for choices in ([["person"], ["person", "org"], []], ["person", "person,org", ""]):
        space = Space.parse({"corpus.categories": {"choice": choices}}, BASE)
        points = space.grid()
        assert [point["corpus.categories"] for point in points] == ["person", "person,org", ""]
        found = [methods.overlay(BASE, settings_of(point, BASE)[1]).corpus.categories for point in points]
        assert found == [("person",), ("person", "org"), ()]
    betas = Space.parse({"training.adam_betas": {"choice": [[0.9, 0.99], [0.8, 0.9]]}}, BASE)
    settings = settings_of(betas.grid()[1], BASE)[1]
    assert methods.overlay(BASE, settings).training.adam_betas == (0.8, 0.9)
    for odd in (
        "#ticket",
        "@home",
        "%person",
        "yes",
        "2024",
        "a: b: c",
        "2020-99-99",
        "[" * 5000,
        "!!python/object:x",
        "&x [*x]",
    ):
        space = Space.parse({"corpus.categories": {"choice": [["person"], ["person", odd]]}}, BASE)
        settings = settings_of(space.grid()[1], BASE)[1]
        assert methods.overlay(BASE, settings).corpus.categories == ("person", odd), "a text, and no YAML"
    with pytest.raises(InputError, match="adam_betas"):
        Space.parse({"training.adam_betas": {"choice": [[0.9, 0.99], ["@q", 0.9]]}}, BASE)
    with pytest.raises(InputError, match="without commas"):
        Space.parse({"corpus.categories": {"choice": [["person,org"], ["org"]]}}, BASE)
    with pytest.raises(InputError, match="or all be lists"):
        Space.parse({"corpus.categories": {"choice": [["person"], "org"]}}, BASE)


RANGES = {
    "expected_cohort_size": {"log_uniform": [10, 200]},
    "training.num_rounds": {"integer": [10, 50], "step": 20},
    "corpus.categories": {"choice": [["person", "org"], []]},
    "training.server_learning_rate": {"uniform": [0.01, 0.1]},
}


@pytest.mark.parametrize(
    ("settings", "there"),
    [
        ({"privacy.user_sampling_prob": 0.5, "training.num_rounds": 30}, True),
        ({"privacy.user_sampling_prob": 0.5, "training.num_rounds": 20}, False),
        ({"privacy.user_sampling_prob": 0.01, "training.num_rounds": 30}, False),
        ({"privacy.user_sampling_prob": 0.5, "training.num_rounds": 30, "corpus.categories": ["org"]}, False),
        ({"privacy.user_sampling_prob": 0.5, "training.num_rounds": 30, "corpus.categories": ["person", "org"]}, True),
    ],
)
def test_the_base_lies_at_a_point_if_every_dimension_has_its_value(settings, there):
    base = methods.overlay(BASE, settings)
    found = Space.parse(RANGES, base).point_of(base)
    if not there:
        assert found is None
        return
    assert found is not None
    assert methods.overlay(BASE, settings_of(found, BASE)[1]) == base


def test_the_base_lies_at_a_choice_that_is_spelled_as_a_whole_number():
    base = dataclasses.replace(BASE, training=dataclasses.replace(BASE.training, passes=10.0))
    space = Space.parse({"training.passes": {"choice": [5, 10]}}, base)
    point = space.point_of(base)
    assert point == {"training.passes": 10}
    assert type(point["training.passes"]) is int, "as the study and the table have it"
    flags = Space.parse({"vocabulary.lowercase": {"choice": [False, True]}}, BASE)["vocabulary.lowercase"]
    assert not flags.contains(0)
    assert not flags.contains(1.0)


def test_the_base_lies_at_no_point_of_a_space_of_methods_and_is_asked_of_no_dimension_that_does_not_exist():
    assert Space.parse(CONDITIONAL, BASE).point_of(BASE) is None
    space = Space.parse({name: spec for name, spec in CONDITIONAL.items() if name.startswith("model")}, BASE)
    assert space.point_of(BASE) == {"model.trainable": "full"}
