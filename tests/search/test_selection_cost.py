"""The terms of the price are fixed before the first trial; each rule agrees with the accountant that it names."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
from types import SimpleNamespace

import pytest

from tests.search.sweeps import rows, search_here, sweep_config, sweep_tree, write_ledgers, write_sweep
from uedp_ray.analysis.frames import load_sweep
from uedp_ray.analysis.summary import summary
from uedp_ray.calibration import planned_charges
from uedp_ray.console import print_sweep
from uedp_ray.errors import InputError
from uedp_ray.plan import Plan
from uedp_ray.privacy import selection
from uedp_ray.privacy.events import epsilon_of_charges, epsilon_of_events, together
from uedp_ray.privacy.ledger import Ledger
from uedp_ray.privacy.mechanisms.poisson import RoundMechanism
from uedp_ray.privacy.statement import show_epsilon
from uedp_ray.search.feasibility import alone, judge
from uedp_ray.search.layout import SweepDir
from uedp_ray.search.pool import check_trials
from uedp_ray.search.selection_cost import allowance_of, announced, cost_of_selection, fix_terms, planned_points
from uedp_ray.search.study import Study
from uedp_ray.search.sweep_config import load_sweep_config

USERS = {"unit": "user", "target_epsilon": 2.0}
METHOD = {"method": {"choice": ["user_dp"]}}


def test_the_bases_own_point_is_tried_first_and_told_beside_the_best(corpora, tmp_path, capsys):
    """A search has to beat no search."""
    tree = sweep_tree(corpora, search={"searcher": "random", "trials": 2, "selection": "composition"})
    tree["base"]["training"] = {**tree["base"]["training"], "num_rounds": 3}
    sweep = load_sweep_config(write_sweep(tree, tmp_path))
    answer = search_here(sweep, tmp_path / "sweep")
    own, other = answer["trials"]
    rounds, rate = sweep.base.training.num_rounds, sweep.base.training.server_learning_rate
    assert (own["training.num_rounds"], own["training.server_learning_rate"]) == (rounds, rate)
    assert answer["base_trial"] == "0000"
    assert sweep.at_base([other]) is None
    print_sweep(answer)
    told = " ".join(capsys.readouterr().out.split())
    assert "No search: the base's own settings trained once with the whole budget" in told
    assert "trial 0000 was this run" in told
    assert "were charged, and not trained again" not in told
    print_sweep(answer | {"trials": [own | {"rounds": 1}, other]})
    assert "were charged, and not trained again, in trials 0000 (1 of 3 rounds)." in capsys.readouterr().out
    assert "trial 0000 was this run" in dict(summary(load_sweep(tmp_path / "sweep")))["No search"]


def test_an_adaptive_search_asks_for_the_bases_own_point_first(corpora, tmp_path):
    tree = sweep_tree(corpora)
    tree["base"]["training"] = {**tree["base"]["training"], "num_rounds": 3}
    sweep = load_sweep_config(write_sweep(tree, tmp_path))
    for _ in range(2):  # as a resume does
        study = Study.open(sweep, tmp_path / "study.journal")
        study.plan(sweep.first_points)
    study.fix_lag(2)
    asked = [study.ask(alone(sweep)) for _ in range(2)]
    assert asked[0].point == sweep.first_points[0] != asked[1].point


def test_a_sweep_with_noise_for_tests_says_so_before_its_first_trial(corpora, tmp_path, folder):
    """It was promised an epsilon, and had none in the end."""
    tree = sweep_tree(corpora)
    tree["base"]["privacy"]["test_noise_seed"] = 3
    sweep = load_sweep_config(write_sweep(tree, tmp_path))
    fix_terms(sweep, folder)
    said = announced(sweep, folder)
    assert "NOT PRIVATE" in said
    assert "epsilon" not in said


def all_events(folder):
    lines = [line for ledger in folder.root.glob("trials/*/ledger.jsonl") for line in ledger.read_text().splitlines()]
    return [event for event in map(json.loads, lines) if event["kind"] == "round"]


@pytest.mark.parametrize("searcher", ["grid", "random"])
def test_points_fixed_beforehand_are_composed_whole_even_if_trials_broke_off(corpora, tmp_path, folder, searcher):
    space = {"privacy.user_sampling_prob": {"choice": [0.2, 0.3, 0.4, 0.5]}}
    search = {"searcher": searcher, "trials": None if searcher == "grid" else 3, "selection": "composition"}
    sweep = sweep_config(corpora, tmp_path, space=space, search=search)
    fix_terms(sweep, folder)
    points = planned_points(sweep, folder)
    assert len(points) == (4 if searcher == "grid" else 3)
    said = announced(sweep, folder)
    write_ledgers(sweep, folder, points, rounds=2)
    found = cost_of_selection(sweep, folder, rows(len(points)))
    configs = [judge(sweep, point, alone(sweep)).config for point in points]
    whole = together(planned_charges(config, Plan.of(config).noise_std) for config in configs)
    assert found["epsilon"] == pytest.approx(epsilon_of_charges(whole, delta=1e-4, unit="user-entity"))
    assert found["epsilon"] > epsilon_of_events(all_events(folder), delta=1e-4)
    assert f"will cost epsilon = {show_epsilon(found['epsilon'])} at delta = 0.0001" in said


def test_points_fixed_beforehand_stay_as_they_are(corpora, tmp_path, folder):
    search = {"searcher": "random", "trials": 3, "selection": "composition"}
    sweep = sweep_config(corpora, tmp_path, search=search)
    fix_terms(sweep, folder)
    before = folder.terms.read_text(), planned_points(sweep, folder)
    fix_terms(sweep_config(corpora, tmp_path, search={**search, "seed": 9}), folder)
    assert (folder.terms.read_text(), planned_points(sweep, folder)) == before


@pytest.mark.parametrize("covers", ["answer", "each_trial"])
def test_one_trial_that_an_earlier_version_charged_as_adaptive_says_who_may_go_on(corpora, tmp_path, folder, covers):
    """It was "damaged", and the advice to search in another folder would have spent a second budget."""
    sweep = sweep_config(corpora, tmp_path, search={"searcher": "tpe", "trials": 1}, budget={"covers": covers})
    earlier = {"rule": "composition", "covers": covers, "adaptive": True, "delta": 1e-4, "unit": "user-entity"}
    folder.terms.write_text(json.dumps(earlier | {"odometer": {}}))
    for read in (allowance_of, planned_points, announced):
        with pytest.raises(InputError, match="resume and export it with that version"):
            read(sweep, folder)


def test_a_search_on_public_text_may_be_given_more_points_or_fewer(corpora, tmp_path, folder):
    public = {"corpus.source": {"format": "synthetic", "num_users": 20, "part": "public"}}
    search = {"searcher": "random", "selection": "public", "public": public}
    few, more, fewer = (sweep_config(corpora, tmp_path, search={**search, "trials": count}) for count in (3, 8, 2))
    fix_terms(few, folder)
    points = planned_points(few, folder)
    fix_terms(more, folder)
    grown = planned_points(more, folder)
    assert (grown[:3], len(grown)) == (points, 8)
    assert planned_points(fewer, folder) == points[:2]
    assert planned_points(few, folder) == points


def test_an_adaptive_search_is_charged_by_the_odometer_that_was_fixed_before_it(corpora, tmp_path, folder):
    sweep = sweep_config(corpora, tmp_path, search={"trials": 4, "seeds_per_trial": 2})
    fix_terms(sweep, folder)
    odometer = json.loads(folder.terms.read_text())["odometer"]
    assert (odometer["runs"], odometer["delta"], odometer["unit"]) == (8, 1e-4, "user-entity")
    assert planned_points(sweep, folder) is None
    assert re.search(
        r"will cost about epsilon = \d+\.\d+ .* each run alone is at most 8\.000$", announced(sweep, folder)
    )
    point = {"privacy.user_sampling_prob": 0.3, "training.num_rounds": 4, "training.server_learning_rate": 0.01}
    write_ledgers(sweep, folder, [point] * 4)
    four = cost_of_selection(sweep, folder, rows(4))
    together = epsilon_of_events(all_events(folder), delta=1e-4)
    assert together < four["epsilon"] < 1.6 * together, "never below what fixed runs would cost"
    assert cost_of_selection(sweep, folder, rows(1))["epsilon"] < four["epsilon"]
    assert "8 runs" in four["text"]
    assert "ended first" not in four["text"]
    terms = json.loads(folder.terms.read_text())
    del terms["order"]
    folder.terms.write_text(json.dumps(terms))
    assert (
        "which of them ended first, which may depend on the text" in cost_of_selection(sweep, folder, rows(4))["text"]
    )


def test_a_grid_with_early_stopping_keeps_its_points_and_is_charged_by_the_odometer(corpora, tmp_path, folder):
    space = {"privacy.user_sampling_prob": {"choice": [0.2, 0.3, 0.4, 0.5]}}
    sweep = sweep_config(
        corpora, tmp_path, space=space, search={"searcher": "grid", "trials": None, "early_stopping": "asha"}
    )
    fix_terms(sweep, folder)
    points = planned_points(sweep, folder)
    assert [point["privacy.user_sampling_prob"] for point in points] == [0.2, 0.3, 0.4, 0.5]
    assert "will cost about epsilon" in announced(sweep, folder)
    write_ledgers(sweep, folder, points, rounds=2)
    found = cost_of_selection(sweep, folder, rows(4))
    assert found["accountant"] == "Renyi odometer over all ledgers"
    assert found["epsilon"] > epsilon_of_events(all_events(folder), delta=1e-4)
    assert found["text"].startswith("All 4 runs together cost")


def test_a_run_whose_ledger_is_gone_is_never_for_free(corpora, tmp_path, folder):
    """Deleting losers to save disk must not lower the price of the winner."""
    sweep = sweep_config(corpora, tmp_path, search={"trials": 4})
    fix_terms(sweep, folder)
    point = {"privacy.user_sampling_prob": 0.3, "training.num_rounds": 4, "training.server_learning_rate": 0.01}
    write_ledgers(sweep, folder, [point] * 4)
    four = cost_of_selection(sweep, folder, rows(4))
    shutil.rmtree(folder.runs(1)[0])
    for state in ("done", "stopped"):
        with pytest.raises(InputError, match=r"0001/ledger.jsonl'?: is missing, but what it pays for still counts"):
            cost_of_selection(sweep, folder, rows(4, sweep, point, state))
    for state in ("failed", "running"):
        assert cost_of_selection(sweep, folder, rows(4, sweep, point, state))["epsilon"] == four["epsilon"]
    assert cost_of_selection(sweep, folder, rows(4, state="refused"))["epsilon"] < four["epsilon"]


@pytest.mark.parametrize("search", [{"trials": 2}, {"searcher": "grid", "trials": None}])
def test_seeds_that_never_started_since_one_before_them_failed_are_charged_and_not_missed(
    corpora, tmp_path, folder, search
):
    """A trial that diverged ends with its first seed: no ledger of the others was ever written."""
    rates = {"training.server_learning_rate": {"choice": [0.01, 0.02]}}
    search = {"seeds_per_trial": 2, "selection": "composition", **search}
    sweep = sweep_config(corpora, tmp_path, space=rates, search=search)
    fix_terms(sweep, folder)
    points = [{"training.server_learning_rate": rate} for rate in (0.01, 0.02)]
    write_ledgers(sweep, folder, points)
    whole = cost_of_selection(sweep, folder, rows(2, sweep, points[1]))
    shutil.rmtree(folder.runs(1, ("-0", "-1"))[1])
    first = folder.runs(1, ("-0", "-1"))[0] / "ledger.jsonl"
    charged = sum('"kind":"round"' in line for line in first.read_text().splitlines())
    found = rows(2, sweep, points[1])
    found[1] |= {"state": "failed", "charged": charged}
    assert cost_of_selection(sweep, folder, found)["epsilon"] == whole["epsilon"]
    first.unlink()
    with pytest.raises(InputError, match="is missing, but what it pays for still counts"):
        cost_of_selection(sweep, folder, found)


@pytest.mark.parametrize("law", ["logarithmic", "geometric", "poisson"])
def test_repeat_and_select_pays_for_a_point_that_is_drawn_from_the_pool(corpora, tmp_path, folder, law):
    space = {**METHOD, "privacy.user_sampling_prob": {"choice": [0.02, 0.05]}}
    search = {"searcher": "random", "trials": 8, "pool_size": 2, "law": law}
    sweep = sweep_config(corpora, tmp_path, space=space, search=search, budget=USERS)
    fix_terms(sweep, folder)
    pool = json.loads(folder.pool.read_text())
    assert {point["privacy.user_sampling_prob"] for point in pool["points"]} == {0.02, 0.05}
    assert all(point in pool["points"] for point in planned_points(sweep, folder))
    write_ledgers(sweep, folder, planned_points(sweep, folder))
    found = cost_of_selection(sweep, folder, rows(len(pool["draws"])))
    each = [best_of_run(sweep, [point], law) for point in pool["points"]]
    assert min(each) * 1.001 < found["epsilon"] < max(each), "which of them is trained is drawn"
    assert found["epsilon"] == pytest.approx(best_of_run(sweep, pool["points"], law), rel=1e-6)
    assert found["rule"] == "repeat_and_select"
    assert f"will cost epsilon = {show_epsilon(found['epsilon'])} " in announced(sweep, folder)
    kept = json.loads(folder.terms.read_text())
    folder.terms.write_text(json.dumps(kept | {"epsilon": 0.1}))
    changed = cost_of_selection(sweep, folder, rows(len(pool["draws"])))
    assert changed["epsilon"] == found["epsilon"], "an epsilon that was edited lowers nothing"
    earlier = kept | {"epsilon": 99.0}
    del earlier["by"]
    folder.terms.write_text(json.dumps(earlier))
    assert cost_of_selection(sweep, folder, rows(len(pool["draws"])))["epsilon"] == 99.0, (
        "it keeps the price it was told"
    )


def test_another_machine_may_solve_for_another_last_digit(corpora, tmp_path, folder):
    sweep = sweep_config(corpora, tmp_path, space=METHOD, search={"searcher": "random", "pool_size": 1}, budget=USERS)
    fix_terms(sweep, folder)
    pool = json.loads(folder.pool.read_text())
    folder.pool.write_text(json.dumps(pool | {"draws": [0]}))
    config = judge(sweep, pool["points"][0], alone(sweep)).config
    less = Plan.of(config).mechanism.noise_multiplier * (1 - 1e-12)
    there = dataclasses.replace(config.privacy, noise_multiplier=less, target_epsilon=None)
    plan = Plan.of(dataclasses.replace(config, privacy=there))
    (run,) = folder.runs(0, sweep.suffixes)
    run.mkdir(parents=True)
    ledger = Ledger.create(run / "ledger.jsonl", plan.header())
    for number in range(config.training.num_rounds):
        ledger.append(**plan.event(round_index=number, attempt=0))
    assert cost_of_selection(sweep, folder, rows(1))["rule"] == "repeat_and_select"


@pytest.mark.parametrize("name", ["draws", "candidates"])
def test_a_pool_that_lacks_some_is_refused(corpora, tmp_path, folder, name):
    search = {"searcher": "random", "trials": 8, "pool_size": 2}
    sweep = sweep_config(corpora, tmp_path, space=METHOD, search=search, budget=USERS)
    fix_terms(sweep, folder)
    pool = json.loads(folder.pool.read_text())
    pool["draws"] = [0, 0]
    write_ledgers(sweep, folder, [pool["points"][0]] * 2)
    folder.pool.write_text(json.dumps(pool | {name: pool[name][:-1]}))
    with pytest.raises(InputError, match=f"lacks {name}: "):
        cost_of_selection(sweep, folder, rows(2))


def best_of_run(sweep, points, law):
    runs = [
        (Plan.of(config).mechanism, config.training.num_rounds)
        for config in (judge(sweep, p, alone(sweep)).config for p in points)
    ]
    return selection.epsilon_of_choosing(
        "repeat_and_select",
        searcher="random",
        early_stopping=False,
        candidates=[[run] for run in runs],
        mean=8.0,
        law=law,
        delta=sweep.budget.delta,
        unit=sweep.budget.unit,
    )


def test_a_trial_that_was_replayed_too_often_is_paid_by_composition(corpora, tmp_path, folder):
    space = {"privacy.user_sampling_prob": {"choice": [0.3, 0.4]}}
    sweep = sweep_config(corpora, tmp_path, space=space, search={"searcher": "random", "trials": 2, "pool_size": 2})
    fix_terms(sweep, folder)
    points = planned_points(sweep, folder)
    write_ledgers(sweep, folder, points)
    ledger = Ledger.open(folder.runs(0)[0] / "ledger.jsonl")
    for event in [event for event in ledger.events if event["kind"] == "round"][:3]:
        ledger.append("round", round=event["round"], attempt=1, mechanism=event["mechanism"], private=True)
    found = cost_of_selection(sweep, folder, rows(len(points)))
    assert found["rule"] == "composition"
    assert "Not by repeat_and_select" in found["text"]
    assert found["epsilon"] > epsilon_of_events(all_events(folder), delta=1e-4) * 0.999


@pytest.mark.parametrize("by", [selection.PROFILES, selection.RENYI])
def test_all_seeds_of_a_trial_together_are_held_against_its_candidate(by):
    one = RoundMechanism(noise_multiplier=2.0, user_sampling_prob=0.05, max_holders=5, entity_clip=0.2)
    event = {"kind": "round", "private": True, "mechanism": one.to_dict()}
    opened = {"kind": "open", "header": {"private": True}}
    pool = {"candidates": [[{"mechanism": one.to_dict(), "rounds": 8}]], "draws": [0, 0]}
    budget = SimpleNamespace(delta=1e-5, unit="user-entity")
    sweep = SimpleNamespace(search=SimpleNamespace(seeds_per_trial=2), budget=budget)

    def check(*rounds):
        ledgers = [[opened, *[event] * count] for count in rounds]
        check_trials(sweep, pool, [{"number": 0}, {"number": 1}], ledgers, {"mean": 2.0, "by": by})

    check(4, 4, 4, 4)
    for spent in ((4, 5, 4, 4), (5, 4, 4, 4), (4, 4, 4, 5)):
        with pytest.raises(InputError, match=r"rounds = |spent more than its candidate may"):
            check(*spent)


def test_the_price_of_a_secret_trial_is_that_of_all_its_seeds(corpora, tmp_path):
    """Of one seed alone, the printed total of three was two thirds of the true one."""
    search = {"searcher": "random", "trials": 2, "selection": "repeat_and_select", "pool_size": 2}
    rounds = {}
    for seeds in (1, 3):
        folder = SweepDir(tmp_path / str(seeds))
        (folder.root / "private").mkdir(parents=True)
        fix_terms(sweep_config(corpora, tmp_path, search={**search, "seeds_per_trial": seeds}), folder)
        pool = json.loads(folder.pool.read_text())
        rounds[seeds] = [sum(part["rounds"] for part in candidate) for candidate in pool["candidates"]]
    assert len(rounds[1]) == 2
    assert rounds[3] == [3 * count for count in rounds[1]]
