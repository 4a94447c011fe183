"""The journal: what was told stays told, what was begun is asked again, and damage is noticed."""

from __future__ import annotations

import dataclasses
import json
import math
import typing
import uuid

import optuna
import pytest
from optuna.trial import TrialState

from tests.search.sweeps import sweep_config
from uedp_ray.errors import InputError
from uedp_ray.privacy.selection import SEARCHERS, Searcher, is_adaptive
from uedp_ray.search import study as studies
from uedp_ray.search.feasibility import alone
from uedp_ray.search.samplers import SAMPLERS, Sampler
from uedp_ray.search.study import NAME, Study, _seeded_sampler, outcome, refused, started

FREE = {"privacy.noise_multiplier": {"uniform": [0.3, 6.0]}, "training.num_rounds": {"integer": [2, 30]}}


@pytest.fixture
def sweep(corpora, tmp_path):
    return sweep_config(corpora, tmp_path, space=FREE, budget={"noise": "free", "target_epsilon": 4})


@pytest.fixture
def journal(tmp_path):
    return tmp_path / "study.journal"


def next_allowed(study):
    while True:
        asked = study.ask(alone(study._sweep))
        if not asked.reason:
            return asked


def test_a_refused_point_is_told_with_its_reason_and_a_violated_constraint(sweep, journal):
    study = Study.open(sweep, journal)
    study.fix_lag(20)
    asked = [study.ask(alone(sweep)) for _ in range(20)]
    kinds = {bool(one.reason) for one in asked}
    assert kinds == {True, False}, "the space holds both kinds of points"
    for one, trial in zip(asked, study.trials, strict=True):
        assert refused(trial) == bool(one.reason)
        assert (trial.constraints["epsilon"] > 0) == bool(one.reason)
        assert trial.state == (TrialState.PRUNED if one.reason else TrialState.RUNNING)
        assert trial.user_attrs.get("reason", "") == one.reason


def test_a_stopped_trial_is_not_complete_and_no_refusal(sweep, journal):
    study = Study.open(sweep, journal)
    asked = next_allowed(study)
    study.report(asked.number, 2, 150.0)
    study.stop(asked.number)
    study.close()
    trial = study.trials[asked.number]
    assert trial.state == TrialState.PRUNED
    assert trial.intermediate_values == {2: 150.0}
    assert not refused(trial)


def test_what_was_begun_is_asked_again_with_its_number_and_point_and_nothing_else_is(sweep, journal):
    study = Study.open(sweep, journal)
    study.fix_lag(3)
    done, begun, failed = (next_allowed(study) for _ in range(3))
    study.finish(done.number, score=90.0, epsilon=3.0)
    study.fail(failed.number, "diverged")
    assert [row.state.name for row in study.trials if not refused(row)] == ["RUNNING"] * 3, (
        "nobody may know of them yet"
    )
    again = Study.open(sweep, journal)
    assert again.ask(alone(sweep)) == begun
    new = again.ask(alone(sweep))
    assert new.number == len(again.trials) - 1
    assert new.point not in [done.point, begun.point, failed.point], "a resumed sampler does not repeat itself"
    again.close()
    assert again.trials[done.number].values == [90.0]
    assert again.trials[failed.number].user_attrs["reason"] == "diverged"
    assert again.ended(count_refused=False) == 2


def test_a_trial_that_ended_is_looked_at_once_and_one_that_was_passed_over_until_it_ends(sweep, journal, monkeypatch):
    study = Study.open(sweep, journal)
    first, *_ = asked = [next_allowed(study)]
    study.leave_open(first.number)  # by what it failed is not known yet: others do not wait for it
    for _ in range(6):
        asked.append(next_allowed(study))
        study.finish(asked[-1].number, score=90.0, epsilon=3.0)
    assert study.trials[first.number].state == TrialState.RUNNING
    study.fail(first.number, "its process died")
    next_allowed(study)
    assert study.trials[first.number].state == TrialState.FAIL, "told once it has ended"
    looked = []
    monkeypatch.setattr(studies, "outcome", lambda trial: looked.append(trial.number) or outcome(trial))
    study.finish(study._order[-1], score=90.0, epsilon=3.0)
    looked.clear()
    asked_again = next_allowed(study).number
    assert set(looked) <= {*study._order[-2:], asked_again}


def test_when_trials_started_and_were_started_once_more_is_kept(sweep, journal):
    study = Study.open(sweep, journal)
    study.fix_lag(3)
    done, begun = (next_allowed(study) for _ in range(2))
    study.finish(done.number, score=90.0, epsilon=3.0)
    again = Study.open(sweep, journal)
    assert again.ask(alone(sweep)) == begun
    first = again.trials[0]
    times = {trial.number: started(trial, first) for trial in again.trials}
    assert times[first.number] == (None if refused(first) else 0.0, None)
    assert times[done.number][1] is None
    since, once_more = times[begun.number]
    assert 0 <= times[done.number][0] <= since < once_more
    assert all(times[trial.number] == (None, None) for trial in again.trials if refused(trial))


def test_the_times_of_the_winners_training_are_kept_and_those_of_one_that_was_killed_begin_with_its_first_start(
    sweep, journal
):
    study = Study.open(sweep, journal)
    next_allowed(study)
    assert study.winner_trained is None
    with pytest.raises(KeyboardInterrupt), study.training_winner():
        raise KeyboardInterrupt
    killed = Study.open(sweep, journal).winner_trained
    assert killed["started"] > 0
    assert killed["seconds"] is None
    again = Study.open(sweep, journal)
    with again.training_winner():
        pass
    whole = Study.open(sweep, journal).winner_trained
    assert whole["started"] == killed["started"]
    assert whole["seconds"] > 0


def test_points_fixed_beforehand_come_in_order_and_once(sweep, journal):
    points = [{"privacy.noise_multiplier": 5.0, "training.num_rounds": rounds} for rounds in (3, 3, 7)]
    study = Study.open(sweep, journal)
    study.plan(points)
    study.fix_lag(2)
    assert study.ask(alone(sweep)).point == points[0]
    again = Study.open(sweep, journal)
    again.plan(points)
    assert [again.ask(alone(sweep)).point for _ in range(3)] == points
    assert len(again.trials) == 3


def test_two_objectives_are_told_both(corpora, tmp_path, journal):
    space = {"privacy.target_epsilon": {"uniform": [1.0, 8.0]}}
    sweep = sweep_config(corpora, tmp_path, space=space, search={"searcher": "nsga2"})
    study = Study.open(sweep, journal)
    asked = study.ask(alone(sweep))
    study.report(asked.number, 2, 100.0)
    study.finish(asked.number, score=90.0, epsilon=3.0)
    study.close()
    assert study.trials[0].values == [90.0, 3.0]


RATE = "training.server_learning_rate"


@pytest.mark.parametrize("searcher", ["tpe", "gp", "nsga2"])
def test_a_search_learns_from_trials_that_their_settings_failed(corpora, tmp_path, journal, searcher):
    """Points beyond a rate diverge: told nothing, the searcher would go on asking for them as often as for others."""
    space = {RATE: {"log_uniform": [1e-3, 1.0]}, "privacy.target_epsilon": {"uniform": [1, 4]}}
    budget = {"target_epsilon": 4, "covers": "each_trial"}
    search = {"searcher": searcher, "trials": 24, "seed": 3}
    sweep = sweep_config(corpora, tmp_path, space=space, budget=budget, search=search)
    rates = []
    for _ in range(24):
        study = Study.open(sweep, journal)  # every time anew: what was told is in the journal
        asked = next_allowed(study)
        rates.append(asked.point[RATE])
        if rates[-1] > 0.1:
            study.fail(asked.number, "diverged", by_settings=True)
        else:
            study.finish(
                asked.number, score=200.0 + 100 * rates[-1], epsilon=float(asked.point["privacy.target_epsilon"])
            )
        study.close()
    study = Study.open(sweep, journal)
    diverged = [rate > 0.1 for rate in rates]
    assert any(diverged[:12])
    assert sum(diverged[12:]) < sum(diverged[:12])
    for trial in study.trials:
        assert outcome(trial) == (TrialState.FAIL if diverged[trial.number] else TrialState.COMPLETE)
        assert all(map(math.isinf, trial.values)) == diverged[trial.number]


def test_a_short_search_leaves_its_start_early():
    made = [SAMPLERS[name].make(trials, 0) for name in ("tpe", "gp") for trials in (1, 8, 32)]
    assert [sampler._n_startup_trials for sampler in made] == [1, 2, 10] * 2


def test_a_link_in_the_place_of_a_journal_is_never_written_to(sweep, journal, tmp_path):
    """A stranger's sweep cut the file that its journal led to after the last line end, and wrote to it."""
    (tmp_path / "notes").write_text("one line, without its end")
    journal.parent.mkdir(exist_ok=True, parents=True)
    journal.symlink_to(tmp_path / "notes")
    with pytest.raises(InputError, match="is a link"):
        Study.open(sweep, journal)
    assert (tmp_path / "notes").read_text() == "one line, without its end"


def test_a_torn_last_line_is_cut_off_and_a_dead_lock_is_removed(sweep, journal):
    study = Study.open(sweep, journal)
    study.finish(next_allowed(study).number, score=90.0, epsilon=3.0)
    study.close()
    whole = journal.read_bytes()
    journal.write_bytes(whole + b'{"op_code": 4, "worker')
    journal.with_name(f"{journal.name}.lock").symlink_to("nowhere")
    again = Study.open(sweep, journal)
    next_allowed(again)
    assert journal.read_bytes().startswith(whole)
    assert all(json.loads(line) for line in journal.read_bytes().splitlines())


def test_a_corrupt_journal_is_refused_and_left_as_it_is(sweep, journal):
    study = Study.open(sweep, journal)
    study.finish(next_allowed(study).number, score=90.0, epsilon=3.0)
    study.close()
    lines = journal.read_text().splitlines(keepends=True)
    journal.write_text("".join([*lines[:3], "{not json}\n", *lines[3:]]))
    damaged = journal.read_text()
    with pytest.raises(InputError, match=r"study.journal.*damaged.*restore a copy"):
        Study.open(sweep, journal)
    assert journal.read_text() == damaged


def test_the_journal_opens_with_optuna_alone(sweep, journal):
    study = Study.open(sweep, journal)
    study.finish(next_allowed(study).number, score=90.0, epsilon=3.0)
    study.close()
    storage = optuna.storages.JournalStorage(optuna.storages.journal.JournalFileBackend(str(journal)))
    assert optuna.load_study(study_name=NAME, storage=storage).best_value == 90.0


@pytest.mark.parametrize(
    ("place", "value"),
    [
        ('"lag":3', '"lag":0'),
        ('"lag":3', '"lag":"x"'),
        ('"values":[90.0]', '"values":[90.0,1.0]'),
        ('"values":[90.0]', '"values":null'),
        ('"values":[90.0]', '"values":"x"'),
        ('"state":"COMPLETE"', '"state":"RUNNING"'),
        ('"step":2', '"step":"x"'),
        ('"intermediate_value":150.0', '"intermediate_value":"x"'),
        ('"param_name":"training.num_rounds"', '"param_name":3'),
        ('"user_attr":{"again":', '"user_attr":{"again":"now","was":'),
        ('"user_attr":{"winner":{"started":', '"user_attr":{"winner":{"started":"now","was":'),
        ('"param_name":"training.num_rounds"', '"param_name":"training.rounds"'),
    ],
)
def test_what_optuna_lets_through_is_found_before_it_is_used(sweep, journal, place, value):
    study = Study.open(sweep, journal)
    study.fix_lag(2)
    asked = next_allowed(study)
    study.report(asked.number, 2, 150.0)
    study.resumed(asked.number)
    study.finish(asked.number, score=90.0, epsilon=3.0)
    with study.training_winner():
        pass
    written = journal.read_text()
    assert place in written
    journal.write_text(written.replace(place, value))
    with pytest.raises(InputError, match=r"study.journal.*damaged.*restore a copy"):
        Study.open(sweep, journal)


def test_each_searcher_is_the_one_that_it_is_called():
    """A search by chance would pass for any of them."""
    found = {name: type(SAMPLERS[name].make(32, 0)).__name__ for name in SEARCHERS}
    assert found == {
        **dict.fromkeys(("random", "grid"), "RandomSampler"),
        "tpe": "TPESampler",
        "nsga2": "NSGAIISampler",
        "gp": "GPSampler",
    }


def test_a_searcher_that_is_only_named_is_none_and_counts_as_adaptive(monkeypatch, corpora, tmp_path):
    """An unknown name became random search without a word."""
    assert set(SAMPLERS) == set(typing.get_args(Searcher)) == set(SEARCHERS)
    sweep = sweep_config(corpora, tmp_path)
    bare = dataclasses.replace(sweep.search)
    object.__setattr__(bare, "searcher", "bare")
    sweep = dataclasses.replace(sweep)
    object.__setattr__(sweep, "search", bare)
    with pytest.raises(TypeError, match="bare is listed as a choice"):
        _seeded_sampler(sweep, 0)
    with pytest.raises(InputError, match="choose one of"):
        is_adaptive("bare", early_stopping=False)
    monkeypatch.setattr("uedp_ray.privacy.selection.SEARCHERS", (*SEARCHERS, "bare"))
    assert is_adaptive("bare", early_stopping=False)
    added = Sampler(lambda trials, seed: optuna.samplers.RandomSampler(seed))
    monkeypatch.setitem(SAMPLERS, "bare", added)
    assert isinstance(_seeded_sampler(sweep, 0), optuna.samplers.RandomSampler)
    assert not any((added.may_stop_early, added.may_be_refused, added.minimizes_epsilon))


def test_what_follows_a_line_that_a_full_disk_left_torn_is_not_glued_to_it(sweep, journal):
    """Tune swallows the error of the append, and another trial reports once there is room again."""
    study = Study.open(sweep, journal)
    asked = next_allowed(study)
    with journal.open("ab") as file:
        file.write(b'{"op_code":8,"worker_id":"7b8e')
    study.finish(asked.number, score=99.0, epsilon=8.0)
    study.close()
    with journal.open("ab") as file:
        file.write(b'{"op_')
    assert [trial.state for trial in Study.open(sweep, journal).trials if not refused(trial)] == [TrialState.COMPLETE]


def test_files_of_the_users_beside_the_journal_stay(sweep, journal):
    Study.open(sweep, journal).close()
    theirs, lock = journal.with_name("study.journal.lock.notes"), journal.with_name("study.journal.lock")
    theirs.write_text("mine")
    lock.symlink_to(journal)
    journal.with_name(f"study.journal.lock{uuid.uuid4()}.rename").symlink_to(journal)
    Study.open(sweep, journal).close()
    assert sorted(path.name for path in journal.parent.glob("study*")) == ["study.journal", "study.journal.lock.notes"]
    lock.mkdir()
    with pytest.raises(InputError, match="is a folder where Optuna keeps its lock: move it out"):
        Study.open(sweep, journal)
