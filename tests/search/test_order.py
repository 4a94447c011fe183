"""An adaptive search decides by the places of trials: whichever trial is faster, it tries and stops the same."""

from __future__ import annotations

import heapq
import math
import random

import pytest

from tests.search.sweeps import sweep_config
from uedp_ray.search.feasibility import alone
from uedp_ray.search.searcher import StudySearcher
from uedp_ray.search.study import Study, outcome

FREE = {
    "privacy.noise_multiplier": {"uniform": [0.5, 6.0]},
    "training.server_learning_rate": {"log_uniform": [1e-4, 1.0]},
}
SOLVED = {
    "privacy.target_epsilon": {"uniform": [1.0, 8.0]},
    "training.server_learning_rate": {"log_uniform": [1e-4, 1.0]},
}
ROUNDS = 8


def perplexity(point, step):
    rate = point["training.server_learning_rate"]
    return 100 + 200 * abs(math.log10(rate) + 2) + 40 / step


def searched(config, journal, *, at_once, clock, killed=0):
    """What is tried, in order, and how each trial ends, on a cluster whose speeds ``clock`` draws; the driver is killed
    after so many events, and started again."""
    study = Study.open(config, journal)
    study.fix_lag(at_once)
    left = config.num_trials - study.ended(count_refused=False)
    searcher = StudySearcher(study, alone(config), left=left, count_refused=False, changed=lambda: None)
    events, running, names = [], {}, iter(range(10_000))

    def begin():
        while len(running) < at_once:
            handed = searcher.suggest(name := str(next(names)))
            if not isinstance(handed, dict):
                return
            running[name] = handed["point"]
            heapq.heappush(events, (now + clock.expovariate(1.0), name, 1))

    now, seen = 0.0, 0
    begin()
    while events:
        seen += 1
        if seen == killed:
            return searched(config, journal, at_once=at_once, clock=clock)
        now, name, step = heapq.heappop(events)
        point = running[name]
        if step == ROUNDS:
            diverged = point["training.server_learning_rate"] > 0.5
            ends = (
                {"outcome": "failed", "reason": "diverged"}
                if diverged
                else {"outcome": "done", "epsilon": 4.0, "noise_multiplier": 2.0}
            )
            searcher.on_trial_complete(name, {**ends, "perplexity": perplexity(point, step)})
            del running[name]
        elif searcher.stops(name, {"round": step, "perplexity": perplexity(point, step)}):
            searcher.on_trial_complete(name, {"round": step, "perplexity": perplexity(point, step)})
            del running[name]
        else:
            heapq.heappush(events, (now + clock.expovariate(1.0), name, step + 1))
        begin()
    assert searcher.failure is None
    assert searcher.unfinished == 0
    study.close()
    return [
        (trial.params, outcome(trial).name, trial.state.name, dict(trial.intermediate_values)) for trial in study.trials
    ]


@pytest.mark.parametrize(
    ("search", "space", "budget"),
    [
        ({"searcher": "tpe"}, FREE, {"noise": "free", "target_epsilon": 4}),
        ({"searcher": "tpe", "early_stopping": "asha", "grace_rounds": 1}, SOLVED, {}),
        ({"searcher": "random", "early_stopping": "median", "grace_rounds": 2}, SOLVED, {}),
        ({"searcher": "nsga2"}, SOLVED, {}),
        ({"searcher": "gp"}, SOLVED, {}),
    ],
)
def test_what_an_adaptive_search_tries_and_stops_does_not_depend_on_who_is_faster(
    corpora, tmp_path, search, space, budget
):
    trials = 12 if search["searcher"] == "gp" else 24
    config = sweep_config(corpora, tmp_path, space=space, budget=budget, search={"trials": trials, **search})
    found = [searched(config, tmp_path / f"{seed}.journal", at_once=3, clock=random.Random(seed)) for seed in range(3)]
    assert found[0] == found[1] == found[2]
    assert all(outcome == state for _, outcome, state, _ in found[0] if outcome != "FAIL")
    assert {state for _, outcome, state, _ in found[0] if outcome == "FAIL"} <= {"COMPLETE"}, "as the worst score"
    states = [state for _, state, _, _ in found[0]]
    assert states.count("COMPLETE") > 3
    if "early_stopping" in search:
        assert 3 < sum(state == "PRUNED" for state in states) < trials - 3


@pytest.mark.parametrize("searcher", ["tpe", "nsga2", "gp"])
def test_a_kill_of_the_driver_changes_nothing_in_what_is_tried(corpora, tmp_path, searcher):
    """How far a search is when its time is over depends on the text, too."""
    config = sweep_config(corpora, tmp_path, space=SOLVED, search={"searcher": searcher, "trials": 12})
    found = [
        searched(config, tmp_path / f"{killed}.journal", at_once=2, clock=random.Random(killed), killed=killed)
        for killed in (0, 29, 60)
    ]
    assert all(one == found[0] for one in found)


def test_nor_in_who_is_stopped(corpora, tmp_path):
    space = {
        "training.server_learning_rate": {"choice": [0.01, 0.1, 0.001, 0.2, 0.0001, 0.02]},
        "privacy.user_sampling_prob": {"choice": [0.3, 0.4]},
    }
    search = {"searcher": "grid", "early_stopping": "asha", "grace_rounds": 1}
    config = sweep_config(corpora, tmp_path, space=space, search={"trials": None, **search})

    def run(name, killed):
        study = Study.open(config, tmp_path / name)
        study.plan(config.parsed_space.grid())
        return searched(config, tmp_path / name, at_once=3, clock=random.Random(name), killed=killed)

    found = [run(str(killed), killed) for killed in (0, 5, 12, 20, 31)]
    assert all(one == found[0] for one in found)
    assert "PRUNED" in {state for _, _, state, _ in found[0]}


def test_a_study_whose_lag_was_never_fixed_tries_one_at_a_time(corpora, tmp_path):
    sweep = sweep_config(corpora, tmp_path)
    study = Study.open(sweep, tmp_path / "journal")
    first = study.ask(alone(sweep))
    assert study.ask(alone(sweep)) is None
    study.finish(first.number, score=5.0, epsilon=1.0)
    assert study.ask(alone(sweep)).number == 1


def test_the_lag_of_the_first_start_holds_on_another_cluster(corpora, tmp_path):
    config = sweep_config(corpora, tmp_path)
    assert Study.open(config, tmp_path / "journal").fix_lag(4) == 7
    assert Study.open(config, tmp_path / "journal").fix_lag(16) == 7


@pytest.mark.parametrize("searcher", ["tpe", "random"])
def test_a_kill_between_two_settings_of_a_point_changes_none_of_them(corpora, tmp_path, searcher):
    """A point is written to the journal a setting at a time."""
    search = {"searcher": searcher, "early_stopping": "median", "trials": 14}
    config = sweep_config(corpora, tmp_path, space=SOLVED, search=search)
    whole = tmp_path / "whole.journal"
    searched(config, whole, at_once=1, clock=random.Random(0))
    points = [trial.params for trial in Study.open(config, whole).trials]
    lines = whole.read_text().splitlines(keepends=True)
    cuts = [place for place, line in enumerate(lines, 1) if "param_name" in line]
    for cut in (*cuts[:6], *cuts[-4:]):
        journal = tmp_path / f"{cut}.journal"
        journal.write_text("".join(lines[:cut]))
        study = Study.open(config, journal)
        asked = study.ask(alone(config))
        assert asked.point == points[asked.number]
