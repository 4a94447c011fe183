"""The whole answer stays within the budget, by every rule; what a run may spend is solved, kept, and asked for again."""

from __future__ import annotations

import dataclasses
import json
import math

import pytest

from tests.search.sweeps import finalize_here, search_here, sweep_config, sweep_tree
from uedp_ray.analysis.frames import load_sweep
from uedp_ray.answers import export_epsilon
from uedp_ray.errors import InputError
from uedp_ray.privacy.ledger import read_ledger
from uedp_ray.privacy.statement import show_epsilon
from uedp_ray.search.allowance import Allowance, largest
from uedp_ray.search.export import export
from uedp_ray.search.feasibility import judge
from uedp_ray.search.layout import SweepDir
from uedp_ray.search.selection_cost import allowance_of, announced, cost_of_selection, fix_terms, planned_points
from uedp_ray.search.sweep import _other

ANSWER = {"covers": "answer", "target_epsilon": 6.0}
FEW = {"privacy.user_sampling_prob": {"choice": [0.2, 0.5]}, "training.num_rounds": {"choice": [2, 3]}}
GRID = {"searcher": "grid", "trials": None}
RANDOM = {"searcher": "random", "trials": 3, "selection": "composition"}
SELECT = {"searcher": "random", "trials": 3, "pool_size": 5, "law": "geometric"}
TPE = {"searcher": "tpe", "trials": 3}
SEEDS = {"searcher": "tpe", "trials": 2, "seeds_per_trial": 2}
RULES = {"grid": GRID, "random": RANDOM, "repeat_and_select": SELECT, "adaptive": TPE, "seeds": SEEDS}


@pytest.mark.parametrize(
    ("cost", "best"),
    [
        (lambda x: 3 * x, 8 / 3),
        (lambda x: x, 8.0),
        (lambda x: 2 * x + 3, 2.5),
        (lambda x: x * x / 2, 4.0),
        (lambda x: 100 * x, 0.08),
        (lambda x: math.inf if x > 1 else x, 1.0),
        (lambda x: 20.0 if x > 2.2 else 7.0, 2.2),
    ],
)
def test_the_largest_epsilon_of_each_run_is_nearly_found_and_never_exceeded(cost, best):
    calls = []
    found = largest(lambda x: calls.append(x) or cost(x), 8.0)
    assert cost(found) <= 8.0
    assert 0.98 * best <= found <= best
    assert len(calls) <= 16
    assert largest(cost, 8.0, found) == pytest.approx(found, rel=0.02)


def test_a_budget_that_choosing_alone_exceeds_is_refused():
    with pytest.raises(InputError, match="train fewer trials"):
        largest(lambda x: 9.0 + x, 8.0)


@pytest.mark.parametrize("rule", RULES)
def test_a_sweep_costs_its_budget_at_most_and_nearly_all_of_it(corpora, tmp_path, rule):
    sweep = sweep_config(corpora, tmp_path, space=FEW, search=RULES[rule], budget=ANSWER)
    out = tmp_path / "out"
    points = None if rule in ("grid", "random", "repeat_and_select") else [
        {"privacy.user_sampling_prob": share, "training.num_rounds": 3} for share in (0.2, 0.5, 0.2)
    ][: sweep.num_trials]  # fmt: skip
    answer = search_here(sweep, out, points)
    total, alone = answer["selection"]["epsilon"], answer["best"]["epsilon"]["user-entity"]
    assert 0.9 * 6.0 < total <= 6.0
    assert answer["best"]["epsilon_with_choice"] == total
    assert alone < 0.9 * total
    assert not answer["selection"]["settled_by_results"]
    assert json.loads((out / "selection.json").read_text())["covers"] == "answer"
    told = announced(sweep, SweepDir(out))
    assert f"will cost epsilon = {show_epsilon(total)} " in told

    export(out, tmp_path / "handed-on")
    again = export_epsilon(tmp_path / "handed-on")
    assert again["guarantee"] is True
    assert again["epsilon"] == pytest.approx(total, rel=1e-9)
    assert "not of the search whatever" not in again["text"]


@pytest.mark.parametrize(("searcher", "trials"), [("tpe", 1), ("gp", 1), ("nsga2", 4)])
def test_trials_that_are_all_of_a_searchers_start_up_are_not_charged_as_adaptive(corpora, tmp_path, searcher, trials):
    """TPE's one trial was left epsilon = 7.2 of 8: no result can have decided on it."""
    base = sweep_tree(corpora)["base"]
    base["training"] = {**base["training"], "num_rounds": 3}
    search = {"searcher": searcher, "trials": trials, "early_stopping": "median" if searcher == "tpe" else "none"}
    free = searcher == "nsga2"  # which needs the noise as a setting of its own
    given = {"space": FEW | {"privacy.noise_multiplier": {"uniform": [30.0, 40.0]}}} if free else {"space": FEW}
    given["budget"] = ANSWER | {"noise": "free" if free else "calibrated"}
    priced = [
        sweep_config(corpora, tmp_path, base=base, **given, search=each)
        for each in (search, {"searcher": "random", "trials": trials, "selection": "composition"})
    ]
    outs = [tmp_path / name for name in ("own", "random")]
    answers = [search_here(sweep, out) for sweep, out in zip(priced, outs, strict=True)]
    totals = [answer["selection"]["epsilon"] for answer in answers]
    assert totals[0] == pytest.approx(totals[1], rel=1e-9)
    assert totals[0] <= 6.0
    assert free or totals[0] > 0.98 * 6.0
    assert planned_points(priced[0], SweepDir(outs[0])) == planned_points(priced[1], SweepDir(outs[1]))
    export(outs[0], tmp_path / "handed-on")
    assert export_epsilon(tmp_path / "handed-on")["epsilon"] == pytest.approx(totals[0], rel=1e-9)
    more = dataclasses.replace(priced[0], search=dataclasses.replace(priced[0].search, trials=trials + 1))
    assert more.search.adaptive
    assert more.digest() != priced[0].digest(), "trials that results may decide on were not paid for"


def test_runs_of_an_adaptive_search_are_charged_what_their_share_says_however_they_differ(corpora, tmp_path, folder):
    """Free noise too: a point that takes more than its share is refused, with the reason."""
    space = {**FEW, "privacy.noise_multiplier": {"uniform": [0.5, 40.0]}}
    sweep = sweep_config(corpora, tmp_path, space=space, search=TPE, budget={**ANSWER, "noise": "free"})
    fix_terms(sweep, folder)
    allowance = allowance_of(sweep, folder)
    point = {"privacy.user_sampling_prob": 0.5, "training.num_rounds": 3}
    quiet, loud = (judge(sweep, point | {"privacy.noise_multiplier": z}, allowance) for z in (30.0, 1.0))
    assert quiet.config is not None
    assert loud.config is None
    assert "of 3 runs like it together" in loud.reason
    assert quiet.excess < 0 < loud.excess < math.inf


def test_refused_points_take_no_share(corpora, tmp_path):
    sweep = sweep_config(corpora, tmp_path, space=FEW, search=TPE, budget=ANSWER)
    out = tmp_path / "out"
    point = {"privacy.user_sampling_prob": 0.5, "training.num_rounds": 3}
    search_here(sweep, out, [point] * 3)
    rows = [{**dict.fromkeys(sweep.parsed_space), **point, "number": 0, "state": "done", "rounds": 3}]
    refused = [{**rows[0], "number": 10 + number, "state": "refused"} for number in range(9)]
    rest = [{**rows[0], "number": number} for number in (1, 2)]
    assert cost_of_selection(sweep, SweepDir(out), [rows[0], *refused, *rest])["epsilon"] == 6.0


def test_a_trial_that_left_no_ledger_is_charged_its_share(corpora, tmp_path):
    sweep = sweep_config(corpora, tmp_path, space=FEW, search=TPE, budget=ANSWER)
    out = tmp_path / "out"
    point = {"privacy.user_sampling_prob": 0.5, "training.num_rounds": 3}
    search_here(sweep, out, [point] * 2)
    answer = finalize_here(sweep, out, [point] * 3, failed=[2])
    assert answer["selection"]["epsilon"] == 6.0
    noises = {
        event["mechanism"]["noise_multiplier"]
        for number in (0, 1)
        for event in read_ledger(out / "trials" / f"{number:04d}" / "ledger.jsonl")
        if event["kind"] == "round"
    }
    assert len(noises) == 1


@pytest.mark.parametrize("search", [SELECT, GRID], ids=["repeat_and_select", "grid"])
def test_terms_that_do_not_say_what_a_run_may_spend_are_refused(corpora, tmp_path, folder, search):
    sweep = sweep_config(corpora, tmp_path, space=FEW, search=search, budget=ANSWER)
    fix_terms(sweep, folder)
    assert 0.0 < allowance_of(sweep, folder).epsilon < 6.0
    whole = json.loads(folder.terms.read_text())
    for damage in ({"run_epsilon": 9.0}, {"run_epsilon": 0.0}, {"run_epsilon": None}, {"covers": "each_trial"}):
        terms = {name: value for name, value in (whole | damage).items() if value is not None}
        folder.terms.write_text(json.dumps(terms))
        with pytest.raises(InputError, match=r"selection\.json"):
            allowance_of(sweep, folder)


def test_each_trial_may_spend_the_whole_target_where_the_budget_says_so(corpora, tmp_path, folder):
    sweep = sweep_config(corpora, tmp_path, space=FEW, search=GRID, budget={"covers": "each_trial"})
    fix_terms(sweep, folder)
    assert allowance_of(sweep, folder) == Allowance(8.0)
    assert len(planned_points(sweep, folder)) == 4


def test_more_trials_would_exceed_the_budget_of_an_answer(corpora, tmp_path):
    digests = {
        (covers, trials): sweep_config(corpora, tmp_path, search={"trials": trials}, budget={"covers": covers}).digest()
        for covers in ("answer", "each_trial")
        for trials in (3, 4)
    }
    assert digests["each_trial", 3] == digests["each_trial", 4]
    assert digests["answer", 3] != digests["answer", 4]


def test_no_point_may_ask_for_an_epsilon_of_its_own(corpora, tmp_path):
    space = {"privacy.target_epsilon": {"uniform": [1.0, 6.0]}}
    with pytest.raises(InputError, match=r"budget\.covers to each_trial"):
        sweep_config(corpora, tmp_path, space=space, budget=ANSWER)


def test_noise_that_is_given_and_too_little_for_the_budget_is_refused_before_anything_starts(corpora, tmp_path, folder):
    """Lowering what each run may cost would only refuse its points, and to train nothing costs nothing."""
    for search in (GRID, RANDOM, SELECT):
        free = {**ANSWER, "noise": "free", "target_epsilon": 6.0}
        sweep = sweep_config(
            corpora, tmp_path, space={"training.server_learning_rate": {"choice": [0.01, 0.02, 0.03]}}, search=search,
            budget=free, base={"privacy": {"user_sampling_prob": 0.3, "noise_multiplier": 1.0}},
        )  # fmt: skip
        with pytest.raises(InputError, match=r"target_epsilon = 6\.0: training and choosing would cost .* more noise"):
            fix_terms(sweep, folder)
        assert not folder.terms.exists()
    sweep = sweep_config(
        corpora, tmp_path, space={"privacy.noise_multiplier": {"uniform": [0.95, 1.0]}}, search=TPE, budget=free
    )
    with pytest.raises(InputError, match="no point of the space meets it: the smallest epsilon of 3 runs together"):
        fix_terms(sweep, folder)


def test_a_sweep_that_an_earlier_version_began_keeps_its_reading_of_the_budget(corpora, tmp_path):
    sweep = sweep_config(corpora, tmp_path, space=FEW, search=GRID, budget={"covers": "each_trial"})
    out = tmp_path / "out"
    answer = search_here(sweep, out)
    for name in ("sweep.yaml", "selection.json"):
        text = (out / name).read_text()
        kept = [line for line in text.splitlines(keepends=True) if "covers" not in line and "run_epsilon" not in line]
        (out / name).write_text("".join(kept).replace(",\n}", "\n}"))
    assert "covers" not in (out / "sweep.yaml").read_text()
    export(out, tmp_path / "handed-on")
    assert export_epsilon(tmp_path / "handed-on")["epsilon"] == pytest.approx(answer["selection"]["epsilon"])
    assert load_sweep(out).sweep_config.budget.covers == "each_trial"


def test_a_resume_says_what_differs_from_what_was_begun(corpora, tmp_path):
    sweep = sweep_config(corpora, tmp_path, space=FEW, search=TPE, budget=ANSWER)
    folder = SweepDir(tmp_path / "out")
    for changed, remedy in (
        ({"search": {**TPE, "trials": 4}, "budget": ANSWER}, "was begun for 3 trials"),
        ({"search": TPE, "budget": {**ANSWER, "covers": "each_trial"}}, "add --set budget.covers=answer"),
        ({"search": TPE, "budget": {**ANSWER, "delta": 1e-6}}, "is from another sweep file"),
    ):
        assert remedy in _other(sweep, sweep_config(corpora, tmp_path, space=FEW, **changed), folder)
