"""The sweep file: what contradicts itself is refused before anything starts."""

from __future__ import annotations

import dataclasses

import pytest

from tests.search.sweeps import sweep_config, sweep_tree, write_sweep
from uedp_ray.config import from_dict
from uedp_ray.errors import InputError
from uedp_ray.search import samplers
from uedp_ray.search.sections import SearchConfig
from uedp_ray.search.sweep_config import dump_sweep_config, load_sweep_config

NOISE = {"privacy.noise_multiplier": {"uniform": [0.5, 3.0]}}
TARGET = {"privacy.target_epsilon": {"log_uniform": [1.0, 8.0]}}


@pytest.mark.parametrize(
    ("sections", "field", "remedy"),
    [
        ({"search": {"sercher": "tpe"}}, "search.sercher", r"unknown key: did you mean searcher\?"),
        ({"budget": {"epsilon": 3}}, "budget.epsilon", r"unknown key: did you mean target_epsilon\?"),
        ({"search": {"searcher": "magic"}}, "search.searcher", "random, grid, tpe"),
        ({"search": {"trials": 0}}, "search.trials", "1 or more"),
        ({"search": {"trials": 100_000_000}}, "search.trials", "must be 10,000 or fewer"),
        ({"search": {"seeds_per_trial": 1_000_000_000}}, "search.seeds_per_trial", "must be 1,000 or fewer"),
        ({"search": {"pool_size": 100_000_000}}, "search.pool_size", "must be 10,000 or fewer"),
        ({"search": {"searcher": "grid", "trials": 3}}, "search.trials", "leave it out"),
        (
            {"search": {"selection": "repeat_and_select"}},
            "search.selection",
            "looks at earlier results: use composition",
        ),
        ({"search": {"searcher": "gp", "early_stopping": "asha"}}, "search.early_stopping", "whole trials"),
        ({"search": {"early_stopping": "asha", "seeds_per_trial": 2}}, "search.early_stopping", "one seed"),
        ({"search": {"selection": "public"}}, "search.public", "names the public text"),
        (
            {"search": {"selection": "composition", "public": {"corpus.declared_num_users": 9}}},
            "search.public",
            "for that rule only",
        ),
        ({"search": {"searcher": "nsga2"}}, "search.searcher", "noise_multiplier into the space"),
        ({"search": {"searcher": "gp"}, "space": NOISE, "budget": {"noise": "free"}}, "search.searcher", "calibrated"),
        ({"space": NOISE}, "space.privacy.noise_multiplier", "solved from the budget"),
        ({"space": TARGET, "budget": {"noise": "free"}}, "space.privacy.target_epsilon", "noise_multiplier"),
        ({"space": TARGET, "budget": {"target_epsilon": 4}}, "space.privacy.target_epsilon", "stay within"),
        (
            {"space": {"corpus.categories": {"choice": [["person"], ["org"]]}}},
            "space.corpus.categories",
            "no category is in every choice",
        ),
        ({"budget": {"unit": "token"}}, "budget.unit", "user-entity"),
        ({"budget": {"delta": 2.0}}, "budget.delta", "between 0 and 1"),
        ({"resources": {"workers_per_trial": 0}}, "resources.workers_per_trial", "1 or more"),
        ({"resources": {"workers_per_trial": 2, "gpus_per_worker": 0.5}}, "resources.gpus_per_worker", "whole number"),
        (
            {"resources": {"workers_per_trial": 2}, "search": {"early_stopping": "asha"}},
            "search.early_stopping",
            "group",
        ),
        ({"trackers": ["notebook"]}, "trackers", "mlflow, wandb"),
    ],
)
def test_a_bad_sweep_file_is_refused_with_its_field_and_a_remedy(corpora, tmp_path, sections, field, remedy):
    tree = sweep_tree(corpora, **{name: part for name, part in sections.items() if name != "trackers"})
    tree |= {name: part for name, part in sections.items() if name == "trackers"}
    with pytest.raises(InputError, match=remedy) as caught:
        load_sweep_config(write_sweep(tree, tmp_path))
    assert caught.value.field == field


def test_a_key_of_the_base_that_is_no_setting_is_named_with_the_file(corpora, tmp_path):
    """A sweep keeps several: its own, its base, and two of every trial."""
    path = write_sweep(sweep_tree(corpora, base={"corpus": {"transform": {"word": 3}}}), tmp_path)
    with pytest.raises(InputError, match=rf"base\.corpus\.transform\.word = 3: unknown key.* \(in {path}\)$"):
        load_sweep_config(path)


@pytest.mark.parametrize(("name", "value"), [("target_epsilon", 3), ("noise_multiplier", 1.0), ("delta", 1e-6)])
def test_a_base_that_contradicts_the_budget_is_refused(corpora, tmp_path, name, value):
    tree = sweep_tree(corpora)
    tree["base"]["privacy"][name] = value
    with pytest.raises(InputError, match=f"base.privacy.{name}.*budget sets this"):
        load_sweep_config(write_sweep(tree, tmp_path))


def test_the_budget_is_laid_into_the_base_and_survives_writing(corpora, tmp_path):
    sweep = sweep_config(corpora, tmp_path, budget={"unit": "user", "target_epsilon": 3})
    privacy = sweep.base.privacy
    assert (privacy.target_epsilon, privacy.delta, privacy.unit) == (3.0, 1e-4, "user")
    dump_sweep_config(sweep, tmp_path / "again.yaml")
    assert load_sweep_config(tmp_path / "again.yaml") == sweep


@pytest.mark.parametrize(
    ("search", "rule", "adaptive", "may_grow"),
    [
        ({"searcher": "random"}, "repeat_and_select", False, False),
        ({"searcher": "random", "selection": "composition"}, "composition", False, False),
        ({"searcher": "random", "early_stopping": "median"}, "composition", True, True),
        ({"searcher": "tpe"}, "composition", True, True),
        ({"searcher": "tpe", "trials": 1}, "composition", False, False),
        ({"searcher": "random", "trials": 1, "early_stopping": "asha"}, "composition", False, False),
        ({"searcher": "gp"}, "composition", True, True),
        ({"searcher": "tpe", "public": {"corpus.declared_num_users": 9}}, "public", True, True),
        ({"searcher": "random", "public": {"corpus.declared_num_users": 9}}, "public", False, True),
    ],
)
def test_the_rule_follows_from_the_searcher_and_who_adds_trials_pays(
    corpora, tmp_path, search, rule, adaptive, may_grow
):
    sweep = sweep_config(corpora, tmp_path, search=search)
    assert (sweep.search.rule, sweep.search.adaptive) == (rule, adaptive)
    more = dataclasses.replace(sweep, search=dataclasses.replace(sweep.search, trials=99))
    assert (more.digest() == sweep.digest()) == may_grow, "a number of trials that is not charged for may not change"
    elsewhere = dataclasses.replace(sweep.resources, max_concurrent=1)
    assert dataclasses.replace(sweep, resources=elsewhere).digest() == sweep.digest()


def test_a_grid_counts_its_own_points(corpora, tmp_path):
    space = {"training.num_rounds": {"integer": [2, 4]}, "privacy.selection_rule": {"choice": ["all", "any"]}}
    assert sweep_config(corpora, tmp_path, space=space, search={"searcher": "grid", "trials": None}).num_trials == 6


@pytest.mark.parametrize(
    ("choices", "common"),
    [
        ([["person"], ["person", "org"]], ("person",)),
        ([["PER"], ["pii", "org"], []], ("person",)),
        ([["theirs", "org"], ["Theirs"]], ("theirs",)),
        ([[]], None),
    ],
)
def test_the_price_is_for_entities_that_every_trial_protects(corpora, tmp_path, choices, common):
    space = {"corpus.categories": {"choice": choices}}
    found = sweep_config(corpora, tmp_path, space=space)
    assert found.common_categories == common
    assert found.unit == "user-entity" + (f"; entities: {common[0]}, which every trial protects" if common else "")


def test_a_choice_that_some_trials_do_not_make_counts_the_bases(corpora, tmp_path):
    base = sweep_tree(corpora)["base"]
    base["corpus"]["categories"] = ["location", "person"]
    of_persons = {"choice": [["person", "org"]], "when": {"method": "uedp"}}
    space = {"method": {"choice": ["uedp", "user_dp"]}, "corpus.categories": of_persons}
    assert sweep_config(corpora, tmp_path, base=base, space=space).common_categories == ("person",)


def test_where_users_alone_are_priced_trials_may_protect_any_entities(corpora, tmp_path):
    space = {"corpus.categories": {"choice": [["person"], ["org"]]}}
    assert sweep_config(corpora, tmp_path, space=space, budget={"unit": "user"}).unit == "user"


def test_a_searcher_whose_library_is_missing_is_refused_before_a_trial(monkeypatch):
    """Only the second trial is sampled: the first, which is the base's, was trained and charged."""

    def make(trials, seed):
        raise ImportError("No module named 'cmaes'")

    monkeypatch.setitem(samplers.SAMPLERS, "tpe", samplers.Sampler(make))
    with pytest.raises(InputError, match=r"search\.searcher = 'tpe'.*cmaes.*install that") as error:
        from_dict(SearchConfig, {"searcher": "tpe", "trials": 2})
    assert error.value.field == "search.searcher"
