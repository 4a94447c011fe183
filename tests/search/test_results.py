"""Ranking: the Pareto front, the best, and what cannot be told apart from it."""

from __future__ import annotations

import math
import random
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.search.sweeps import sweep_config
from tests.training.runs import TREE, crash, run_config
from uedp_ray.errors import InputError
from uedp_ray.search import results
from uedp_ray.search.allowance import Allowance
from uedp_ray.search.columns import shortened
from uedp_ray.search.layout import SweepDir
from uedp_ray.search.results import Rows, _spent, best, progress, ranked, read_columns
from uedp_ray.search.study import Study
from uedp_ray.tasks.metrics import PERPLEXITY, WORD_ACCURACY
from uedp_ray.training.host import train


def row(perplexity, epsilon=8.0, scores=None, state="done"):
    return {
        "state": state,
        "perplexity": perplexity,
        "epsilon": epsilon,
        "scores": scores or [perplexity],
        "pareto": False,
        "tied_with_best": None,
    }


def test_only_trials_that_ended_are_ranked():
    rows = ranked(
        [row(90.0), row(10.0, state="stopped"), row(20.0, state="running"), row(None, state="failed")], PERPLEXITY
    )
    assert best(rows, PERPLEXITY) is rows[0]
    assert [one["pareto"] for one in rows] == [True, False, False, False]
    assert best([row(1.0, state="failed")], PERPLEXITY) is None


def test_a_trial_whose_ledger_is_missing_costs_more_than_any():
    rows = ranked([row(90.0, None), row(90.0, None), row(95.0, 4.0)], PERPLEXITY)
    assert [one["pareto"] for one in rows] == [True, True, True], "the best scores"
    assert [one["pareto"] for one in ranked([row(96.0, None), row(95.0, 4.0)], PERPLEXITY)] == [False, True]


def test_the_pareto_front_trades_perplexity_for_epsilon():
    rows = ranked([row(90.0, 8.0), row(95.0, 4.0), row(96.0, 5.0), row(120.0, 1.0), row(90.0, 7.0)], PERPLEXITY)
    assert [one["pareto"] for one in rows] == [False, True, False, True, True]


@pytest.mark.parametrize("metric", [PERPLEXITY, WORD_ACCURACY])
def test_the_pareto_front_is_that_of_all_pairs(metric):
    def dominates(one, other):
        no_dearer, cheaper = one["epsilon"] <= other["epsilon"] * 1.005, one["epsilon"] * 1.005 < other["epsilon"]
        ours, theirs = metric.cost(one["score"]), metric.cost(other["score"])
        return (ours < theirs and no_dearer) or (ours <= theirs and cheaper)

    chance = random.Random(0)
    for _ in range(300):
        some = [
            {
                "state": "done",
                "epsilon": chance.choice([1.0, 1.003, 1.006, 4.0, math.inf]),
                "score": chance.choice([1, 2, 3]),
            }
            for _ in range(chance.randrange(8))
        ]
        rows = ranked([one | {metric.name: one["score"], "scores": [one["score"]]} for one in some], metric)
        assert [row["pareto"] for row in rows] == [not any(dominates(other, row) for other in rows) for row in rows]


def test_epsilons_of_one_target_count_as_equal():
    """Calibration ends within a thousandth of its target, at another place for every trial."""
    rows = ranked([row(90.0, 7.9999), row(100.0, 7.9985)], PERPLEXITY)
    assert [one["pareto"] for one in rows] == [True, False]


@pytest.mark.parametrize(
    ("scores", "tied"),
    [([90.5, 91.0, 89.9], True), ([99.0, 99.4, 98.7], False), ([80.0, 120.0, 100.0], True)],
)
def test_a_trial_is_told_apart_from_the_best_by_its_seeds(scores, tied):
    rows = ranked([row(90.0, scores=[89.6, 90.0, 90.4]), row(sum(scores) / 3, scores=scores)], PERPLEXITY)
    assert best(rows, PERPLEXITY) is rows[0]
    assert [one["tied_with_best"] for one in rows] == [True, tied]


def test_one_seed_tells_nothing_apart():
    rows = ranked([row(90.0), row(200.0)], PERPLEXITY)
    assert [one["tied_with_best"] for one in rows] == [None, None]


def test_what_does_not_change_is_not_worked_out_at_every_report(corpora, tmp_path, monkeypatch):
    """Of a thousand trials each report compared all with all, and of each that ran the settings were laid over its base."""
    config = sweep_config(corpora, tmp_path, search={"searcher": "random", "trials": 4})
    study, worked = Study.open(config, tmp_path / "study.journal"), []
    for name in ("ranked", "laid_over"):
        found = getattr(results, name)
        monkeypatch.setattr(results, name, lambda *of, n=name, f=found: worked.append(n) or f(*of))
    rows = Rows(config, SweepDir(tmp_path))
    for _ in range(2):
        study.ask(Allowance(8.0))
    for _ in range(5):
        assert [row["state"] for row in rows.read(study.trials)] == ["running"] * 2
    assert worked == ["laid_over"] * 2
    study.fail(0, "diverged")
    for _ in range(5):
        assert [row["state"] for row in rows.read(study.trials)] == ["failed", "running"]
    assert worked == ["laid_over"] * 2 + ["ranked"]


@pytest.mark.parametrize("space", [{}, {"expected_cohort_size": {"uniform": [4, 9]}}])
def test_a_trial_that_was_killed_before_it_had_its_settings_keeps_the_sweep_alive(corpora, tmp_path, space):
    """The journal says that it runs before it says with which settings: the resume read None for them, and refused."""
    config = sweep_config(corpora, tmp_path, **({"space": space} if space else {}))
    study = Study.open(config, tmp_path / "study.journal")
    study._study.ask()  # and no suggestion: the process was killed
    again = Study.open(config, tmp_path / "study.journal")
    rows = Rows(config, SweepDir(tmp_path)).read(again.trials)
    assert [(row["state"], row["planned_rounds"]) for row in rows] == [("running", config.base.training.num_rounds)]
    assert progress(rows, 2, config, count_refused=False)["running"] == 1
    assert again.ask(Allowance(8.0)).number == 0


def test_a_round_that_was_repeated_on_public_text_is_no_price_of_its_settings(corpora, tmp_path):
    privacy = {**TREE["privacy"], "target_epsilon": 6.0, "noise_multiplier": None}
    config, out = run_config(corpora, privacy=privacy), tmp_path / "run"
    crash(config, out, charges=4, public_source=True)
    train(config, out, workers=0, resume=True, public_source=True)

    def spent(rule):
        budget = SimpleNamespace(delta=1e-4, unit="user-entity")
        return _spent(SimpleNamespace(search=SimpleNamespace(rule=rule), budget=budget), [out])

    public, private = spent("public"), spent("composition")
    assert 5.9 < public["epsilon"] <= 6.0 < private["epsilon"]
    assert (public["rounds"], public["planned_rounds"], public["charged"]) == (5, 5, 7)
    assert private["charged"] == 7


def test_a_trial_of_fewer_rounds_than_were_planned_is_named():
    whole = {"state": "done", "rounds": 8, "planned_rounds": 8}
    assert shortened(whole) == ""
    assert shortened(whole | {"rounds": 1}) == "1 of 8 rounds"
    assert shortened(whole | {"rounds": 1, "state": "stopped"}) == "", "its state says so"


def test_a_table_of_other_types_is_none_of_ours(tmp_path):
    pq.write_table(pa.table({"trial": ["0000"], "charged": ["many"]}), tmp_path / "trials.parquet")
    assert read_columns(tmp_path / "trials.parquet", ["trial"], "delete it") == [{"trial": "0000"}]
    with pytest.raises(InputError, match="is damaged: delete it"):
        read_columns(tmp_path / "trials.parquet", ["trial", "charged"], "delete it")
    assert read_columns(tmp_path / "nothing.parquet", ["trial"], "") == []
