"""What a budget buys: every rule's runs keep it, and ways to draw are compared at equal passes. No text is read."""

from __future__ import annotations

import math
import re

import pytest
from scipy import optimize, stats

from tests.search.sweeps import sweep_config
from uedp_ray import methods
from uedp_ray.config import RunConfig, from_dict
from uedp_ray.errors import InputError
from uedp_ray.plan import Plan
from uedp_ray.privacy import accounting, best_of, sequence
from uedp_ray.privacy.events import epsilon_of_charges, together
from uedp_ray.privacy.odometer import filter_of
from uedp_ray.privacy.selection import PILOTS, PROFILES, SECRET, epsilon_of_choosing
from uedp_ray.search.planner import chosen, plan
from uedp_ray.search.pool import parts_of, whole_run
from uedp_ray.search.sweep_config import SweepConfig

pytestmark = pytest.mark.slow

TREE = {
    "corpus": {
        "source": {"format": "text", "path": "/no/such/text"},
        "evaluation": {"format": "text", "path": "/no/such/text/either"},
        "declared_num_users": 500,
        "declared_num_tokens": 100_000,
    },
    "bounds": {"max_holders": 1},
    "privacy": {"target_epsilon": 6.0, "user_sampling_prob": 0.25, "sentence_clip_norm": 0.4},
    "training": {"num_rounds": 20},
}
RUN = from_dict(RunConfig, TREE)
LEFT = {"delta": 1e-5, "unit": "user-entity"}


@pytest.fixture(scope="module")
def planned():
    return plan(RUN, trials=4, tokens_per_second=1000.0)


@pytest.fixture
def no_rules(monkeypatch):
    """The price of the choice by every rule takes most of a plan's time, and the test does not look at it."""
    monkeypatch.setattr("uedp_ray.search.planner._rules", lambda asked: [])


@pytest.mark.usefixtures("no_rules")
@pytest.mark.parametrize(("rule", "runs"), [("composition", 2 * 3), ("public", 2 * 3 + 1)])
def test_the_time_of_a_whole_search_is_expected(corpora, tmp_path, rule, runs):
    """Of one run it was, with a speed; nobody multiplied it."""
    search = {"trials": 3, "seeds_per_trial": 2, "selection": rule}
    if rule == "public":
        text = {"format": "synthetic", "num_users": 30, "part": "public"}
        search["public"] = {"corpus.source": text, "corpus.evaluation": text | {"seed": 3}}
    sweep = sweep_config(corpora, tmp_path, search=search, budget={"covers": "answer"})
    speed = 50.0
    found = plan(sweep, tokens_per_second=speed)
    run = sweep.base
    one = run.privacy.user_sampling_prob * run.training.num_rounds * run.corpus.declared_num_tokens / speed
    assert (found["runs"], found["expected_seconds"]) == (runs, pytest.approx(runs * one))
    assert plan(sweep)["expected_seconds"] is None


def test_the_runs_that_a_rule_leaves_keep_the_budget_and_use_nearly_all_of_it(planned):
    by = {(row["rule"], row["how"].rpartition(", ")[2]): row for row in planned["rules"]}
    assert len(by) == len(planned["rules"]) == 8
    totals = []
    for (rule, how), row in by.items():
        if row["how"].endswith("by results"):
            run = methods.overlay(
                RUN, {"privacy.target_epsilon": None, "privacy.noise_multiplier": row["noise_multiplier"]}
            )
            totals.append(epsilon_of_charges(together([whole_run(run)] * 4), **LEFT))
            continue
        run = methods.overlay(RUN, {"privacy.target_epsilon": row["run_epsilon"]})
        assert Plan.of(run).mechanism.noise_multiplier == pytest.approx(row["noise_multiplier"], rel=1e-9)
        if rule == "repeat_and_select":
            settings = {"searcher": "random", "early_stopping": False, "mean": 4.0, "law": how, "by": PROFILES}
            totals.append(epsilon_of_choosing(rule, candidates=[parts_of(run, 1)], **settings, **LEFT))
        elif rule == "pilots":
            pilot = parts_of(methods.overlay(RUN, {"privacy.target_epsilon": 6.0 / 16}), 1)
            totals.append(sequence.epsilon([*[[pilot]] * 4, [parts_of(run, 1)]], **LEFT))
        elif rule == "selected_pilots":
            pilot = parts_of(methods.overlay(RUN, {"privacy.target_epsilon": 6.0 / 16}), 1)
            best = best_of.Best([pilot], 4.0, "geometric")
            totals.append(sequence.epsilon([[parts_of(run, 1)]], **LEFT, best=best))
        elif rule == "composition":
            totals.append(accounting.epsilon(Plan.of(run).mechanism, rounds=4 * 20, **LEFT))
        else:
            totals.append(accounting.epsilon(Plan.of(run).mechanism, rounds=20, **LEFT))
    assert max(totals) <= 6.0
    assert min(totals) > 5.0, "the filter's shares cost more than what was fixed beforehand"
    noise = [row["noise_ratio"] for row in planned["rules"]]
    assert noise[:2] == [1.0, 1.0]
    assert 1.0 < max(noise[2], noise[3]) < noise[5] < noise[6]


def test_an_adaptive_searchs_runs_have_the_noise_of_its_filter(planned):
    share = filter_of(lambda z: whole_run(_with(z)), runs=4, target=6.0, **LEFT)
    assert planned["rules"][-1]["noise_multiplier"] == pytest.approx(share.planned[0][0].noise_multiplier, rel=2e-4)


def _with(z: float) -> RunConfig:
    return methods.overlay(RUN, {"privacy.target_epsilon": None, "privacy.noise_multiplier": z})


def test_full_rounds_have_one_noise_of_the_average_that_of_one_gaussian_release(planned):
    """Without sampling T rounds are one release of T times the signal: (1 + K beta_e) sigma / U, whatever T."""

    def excess(sigma: float) -> float:
        gap = 1 / (2 * sigma), 6.0 * sigma
        return float(stats.norm.cdf(gap[0] - gap[1]) - math.exp(6.0) * stats.norm.cdf(-gap[0] - gap[1]) - 1e-5)

    sigma = optimize.brentq(excess, 0.1, 10.0)
    full = [row for row in planned["mechanisms"] if row["user_sampling_prob"] == 1.0]
    assert [row["rounds"] for row in full] == [5, 20]
    for row in full:
        assert row["noise_of_average"] == pytest.approx((1 + 1 * 0.4) * sigma / 500, rel=3e-3)


def test_ways_to_draw_read_as_much_text_and_take_as_long(planned):
    assert {(row["times"], row["passes"]) for row in planned["mechanisms"]} == {(1, 5.0), (4, 20.0)}
    assert {row["expected_seconds"] for row in planned["mechanisms"]} == {500.0, 2000.0}
    own = [row for row in planned["mechanisms"] if row["asked"]]
    assert [(row["user_sampling_prob"], row["rounds"]) for row in own] == [(0.25, 20)]
    assert own[0]["noise_of_average"] == own[0]["noise_multiplier"] / (0.25 * 500 * math.sqrt(20))


@pytest.mark.usefixtures("no_rules")
def test_many_rounds_are_chosen_while_their_noise_is_near_the_least():
    one_round = methods.overlay(RUN, {"privacy.user_sampling_prob": 1.0, "training.num_rounds": 5})
    found = plan(one_round, trials=2)
    least = min(row["noise_of_average"] for row in found["mechanisms"] if row["times"] == 1)
    assert found["choice"]["rounds"] >= 20
    assert found["choice"]["noise_of_average"] <= 1.75 * least
    assert any("is likely to train a better model" in line for line in found["warnings"])
    again = plan(chosen(one_round, found), trials=2)
    assert next(row for row in again["mechanisms"] if row["asked"]) == found["choice"] | {"asked": True}
    assert not again["warnings"]


def test_passes_in_the_file_change_nothing(planned):
    given = plan(methods.overlay(RUN, {"training.passes": 5.0}), trials=4, tokens_per_second=1000.0)
    assert given == planned
    written = chosen(methods.overlay(RUN, {"training.passes": 5.0}), given)
    assert written.training.num_rounds == given["choice"]["rounds"]


@pytest.mark.usefixtures("no_rules")
def test_cohorts_of_a_few_users_are_not_chosen():
    found = plan(methods.overlay(RUN, {"corpus.declared_num_users": 150}), trials=1)
    assert found["choice"]["expected_cohort"] >= 20
    fewest = plan(methods.overlay(RUN, {"corpus.declared_num_users": 10}), trials=1)
    assert fewest["choice"]["expected_cohort"] == 10, "the largest, where all are small"


@pytest.mark.usefixtures("no_rules")
def test_what_binds_is_said():
    found = plan(methods.overlay(RUN, {"privacy.entity_sampling_prob": 0.7}), trials=1)
    assert found["binds"]["epsilon"]["extended"] > found["binds"]["epsilon"]["entity"]
    assert "lower both, or none" in found["warnings"][0]
    bounds = {row["protects"]: row["noise_multiplier"] for row in found["bounds"]}
    assert bounds["users alone"] < bounds["user-entity, max_holders 1"] < bounds["user-entity, max_holders 5"]


def test_a_sweep_is_planned_by_its_own_terms_and_told_what_its_rule_costs():
    tree = {
        "base": TREE | {"privacy": {**TREE["privacy"], "delta": 1e-5}},
        "space": {"training.num_rounds": {"integer": [5, 20]}},
    }
    sweep = from_dict(SweepConfig, tree | {"budget": {"target_epsilon": 6.0}, "search": {"trials": 16}})
    found = plan(sweep)
    assert [row["rule"] for row in found["rules"] if row["asked"]] == ["composition"]
    assert found["trials"] == 16
    assert any("rule composition leaves each run" in line for line in found["warnings"])
    assert chosen(sweep, found).space == sweep.space


@pytest.mark.parametrize(
    ("search", "shown"),
    [
        ({"searcher": "tpe"}, "about "),
        ({"searcher": "random", "selection": "composition"}, ""),
        ({"searcher": "random", "law": "poisson"}, ""),
    ],
)
def test_a_budget_that_covers_each_trial_is_not_planned_as_one_that_covers_the_answer(search, shown):
    tree = {"base": TREE, "space": {"training.num_rounds": {"integer": [5, 20]}}, "search": {"trials": 4, **search}}
    found = plan(from_dict(SweepConfig, tree | {"budget": {"target_epsilon": 6.0, "covers": "each_trial"}}))
    assert not any(row["asked"] for row in found["rules"])
    (beyond,) = (line for line in found["warnings"] if "each_trial" in line)
    total = float(re.search(rf"will cost {shown}([\d.]+);", beyond)[1])
    together = accounting.epsilon(Plan.of(RUN).mechanism, rounds=80, **LEFT)
    if "law" in search:
        assert 6.0 < total < together
    elif shown:
        assert together < total < 1.2 * together
    else:
        assert total == pytest.approx(together, abs=1e-3)


def test_what_cannot_be_planned_is_refused():
    with pytest.raises(InputError, match="draws nobody"):
        plan(methods.overlay(RUN, {"privacy.user_sampling_prob": 0.0}))
    with pytest.raises(InputError, match="at most 10,000"):
        plan(RUN, trials=10**9)
    with pytest.raises(InputError, match="promises nothing"):
        plan(methods.overlay(RUN, {"privacy.target_epsilon": 1e300}))


def test_a_rule_that_does_not_cover_the_file_says_why():
    words = {
        "vocabulary.kind": "noisy-threshold",
        "vocabulary.noise_multiplier": 20.0,
        "vocabulary.threshold_delta": 1e-7,
    }
    found = plan(methods.overlay(RUN, words), trials=2)
    why = {row["why"] for row in found["rules"] if row["rule"] in PILOTS | SECRET}
    assert why == {"does not cover a vocabulary of private text"}
    assert all(row["run_epsilon"] for row in found["rules"] if row["rule"] not in PILOTS | SECRET)


@pytest.mark.parametrize("settings", [{"privacy.noise": "none", "privacy.target_epsilon": None}])
def test_what_claims_nothing_has_no_plan(settings):
    with pytest.raises(InputError, match=r"privacy\.noise"):
        plan(methods.overlay(RUN, {**settings, "bounds.mode": "none", "privacy.sentence_clip_norm": None}))


@pytest.mark.parametrize("as_sweep", [False, True])
def test_a_file_with_noise_for_tests_has_no_plan(as_sweep):
    """It was shown the table of a private run."""
    run = methods.overlay(RUN, {"privacy.test_noise_seed": 3})
    space = {"training.server_learning_rate": {"uniform": [0.01, 0.1]}}
    with pytest.raises(InputError, match=r"privacy\.test_noise_seed = 3: is for tests"):
        plan(SweepConfig(base=run, space=space) if as_sweep else run)


def test_given_noise_is_planned_at_the_epsilon_that_it_has():
    given = plan(_with(2.0), trials=1)
    assert given["target_epsilon"] == accounting.epsilon(Plan.of(_with(2.0)).mechanism, rounds=20, **LEFT)
    assert given["rules"][0]["noise_multiplier"] == pytest.approx(2.0, rel=2e-3)


@pytest.mark.usefixtures("no_rules")
def test_what_is_written_for_given_noise_has_the_epsilon_that_was_planned():
    """Not the noise that was given: at other draws it costs another epsilon."""
    given = methods.overlay(_with(0.6), {"privacy.user_sampling_prob": 0.04, "training.num_rounds": 25})
    found = plan(given, trials=1)
    written = chosen(given, found)
    assert (written.privacy.target_epsilon, written.privacy.noise_multiplier) == (found["target_epsilon"], None)
    assert Plan.of(written).mechanism.noise_multiplier == found["choice"]["noise_multiplier"]
    assert written.privacy.user_sampling_prob != 0.04


@pytest.mark.usefixtures("no_rules")
def test_what_binds_counts_a_vocabulary_of_private_text():
    words = {"kind": "noisy-threshold", "noise_multiplier": 4.0, "threshold_delta": 5e-6}
    run = methods.overlay(RUN, {f"vocabulary.{name}": value for name, value in words.items()})
    found = plan(run, trials=1)["binds"]["epsilon"]
    assert max(found.values()) == pytest.approx(6.0, rel=5e-3)
