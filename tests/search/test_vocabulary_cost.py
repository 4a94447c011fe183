"""Vocabularies from private text are in the price of choosing, or refused."""

from __future__ import annotations

import dataclasses
import re

import pytest

from tests.search.sweeps import rows, sweep_config, sweep_tree, write_ledgers
from uedp_ray.errors import InputError
from uedp_ray.privacy.events import epsilon_of_charges
from uedp_ray.privacy.ledger import Ledger
from uedp_ray.search.pool import whole_run
from uedp_ray.search.selection_cost import allowance_of, announced, cost_of_selection, fix_terms, planned_points

NOISY = {"noise_multiplier": 20.0, "threshold_delta": 1e-6}


KINDS = {"vocabulary.kind": {"choice": ["public-words", "noisy-threshold"]}}


RATES = {"training.server_learning_rate": {"log_uniform": [0.001, 0.1]}}


PUBLIC = {"corpus.source": {"format": "synthetic", "num_users": 20, "part": "public"}}


def with_vocabulary(corpora, tmp_path, kind, space, **search):
    tree = sweep_tree(corpora)["base"]
    tree["vocabulary"] = {**tree["vocabulary"], **NOISY, "kind": kind}
    return sweep_config(corpora, tmp_path, base=tree, space=space, search=search)


def announced_epsilon(sweep, folder):
    return float(re.search(r"will cost (?:about )?epsilon = (\S+) ", announced(sweep, folder))[1])


@pytest.mark.parametrize("searcher", ["grid", "random"])
def test_a_vocabulary_that_some_points_take_from_private_text_is_in_the_announced_price(
    corpora, tmp_path, folder, searcher
):
    search = {"searcher": searcher, "trials": None if searcher == "grid" else 2, "selection": "composition"}
    sweep = with_vocabulary(corpora, tmp_path, "public-words", KINDS, **search)
    fix_terms(sweep, folder)
    points = planned_points(sweep, folder)
    assert len(points) == 2
    write_ledgers(sweep, folder, points)
    found = cost_of_selection(sweep, folder, rows(2))["epsilon"]
    assert found <= announced_epsilon(sweep, folder) < found + 0.001
    dearer = folder.runs(next(i for i, point in enumerate(points) if "noisy-threshold" in point.values()))[0]
    assert any(event["kind"] == "vocabulary" for event in Ledger.open(dearer / "ledger.jsonl").events)


def test_an_adaptive_search_announces_vocabularies_from_private_text(corpora, tmp_path, folder):
    sweep = with_vocabulary(corpora, tmp_path, "noisy-threshold", RATES, trials=3)
    fix_terms(sweep, folder)
    write_ledgers(sweep, folder, [{"training.server_learning_rate": 0.01}] * 3)
    found = cost_of_selection(sweep, folder, rows(3))["epsilon"]
    assert found <= announced_epsilon(sweep, folder) < found + 0.001
    more = dataclasses.replace(sweep, search=dataclasses.replace(sweep.search, trials=4))
    assert more.digest() != sweep.digest(), "no more of delta was put aside"


def test_the_announced_epsilon_of_a_run_is_that_of_all_it_releases(corpora, tmp_path, folder):
    sweep = with_vocabulary(corpora, tmp_path, "noisy-threshold", RATES, trials=2)
    sweep = dataclasses.replace(sweep, budget=dataclasses.replace(sweep.budget, covers="answer"))
    fix_terms(sweep, folder)
    run = allowance_of(sweep, folder).applied(sweep.base)
    whole = epsilon_of_charges(whole_run(run), delta=sweep.budget.delta, unit=sweep.budget.unit)
    said = announced(sweep, folder)
    assert float(re.search(r"the base alone is (\S+?)\)?$", said)[1]) == pytest.approx(whole, rel=2e-3), said
    rounds = whole_run(run)._replace(releases=())
    assert epsilon_of_charges(rounds, delta=sweep.budget.delta, unit=sweep.budget.unit) < 0.99 * whole


def test_an_adaptive_search_that_is_given_more_trials_announces_their_price(corpora, tmp_path, folder):
    sweep = sweep_config(corpora, tmp_path, space=RATES, search={"trials": 2})
    fix_terms(sweep, folder)
    more = dataclasses.replace(sweep, search=dataclasses.replace(sweep.search, trials=4))
    write_ledgers(more, folder, [{"training.server_learning_rate": 0.01}] * 4)
    found = cost_of_selection(more, folder, rows(4))["epsilon"]
    assert found <= announced_epsilon(more, folder) < found + 0.001


@pytest.mark.parametrize(
    ("kind", "space", "search", "field", "remedy"),
    [
        ("public-words", KINDS, {"searcher": "random"}, "space.vocabulary.kind", "or composition"),
        ("noisy-threshold", RATES, {"searcher": "random"}, "base.vocabulary.kind", "or composition"),
        (
            "noisy-threshold",
            RATES | {"vocabulary.kind": {"choice": ["public-words"], "when": {"training.server_learning_rate": 0.01}}},
            {"searcher": "random"},
            "base.vocabulary.kind",
            "or composition",
        ),
        ("public-words", KINDS, {}, "space.vocabulary.kind", "set it in base"),
        (
            "noisy-threshold",
            {"vocabulary.threshold_delta": {"choice": [1e-6, 2e-6]}},
            {},
            "space.vocabulary.threshold_delta",
            "set it in base",
        ),
        (
            "noisy-threshold",
            {"model.warm_start": {"choice": ["", "warm"]}},
            {},
            "space.model.warm_start",
            "set it in base",
        ),
    ],
)
def test_a_vocabulary_from_private_text_is_refused_where_its_price_cannot_be_fixed_beforehand(
    corpora, tmp_path, kind, space, search, field, remedy
):
    with pytest.raises(InputError, match=remedy) as caught:
        with_vocabulary(corpora, tmp_path, kind, space, **search)
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("kind", "space", "search"),
    [
        ("public-words", KINDS, {"selection": "public", "public": PUBLIC}),
        ("noisy-threshold", {"vocabulary.kind": {"choice": ["public-words"]}}, {"searcher": "random"}),
        ("public-words", {"vocabulary.threshold_delta": {"choice": [1e-6, 2e-6]}}, {}),
    ],
)
def test_a_vocabulary_of_public_text_or_under_rule_public_may_be_searched(corpora, tmp_path, kind, space, search):
    with_vocabulary(corpora, tmp_path, kind, space, **search)
