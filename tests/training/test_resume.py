"""Killed and resumed: the same model where noise is fixed; every release charged, and never beyond the target."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from unittest import mock

import pyarrow.parquet as pq
import pytest
import torch
import yaml

from tests.training import runs
from tests.training.runs import TEST_NOISE, Crash, crash, crash_amid_its_words, events, parameters, run_config, run_tree
from uedp_ray.answers import ledger_epsilon
from uedp_ray.errors import InputError
from uedp_ray.plan import Plan
from uedp_ray.privacy.events import epsilon_of_events
from uedp_ray.privacy.ledger import Ledger
from uedp_ray.storage.open import open_storage
from uedp_ray.training import driver
from uedp_ray.training.driver import RunDriver
from uedp_ray.training.host import train
from uedp_ray.training.setup import prepare_run


def assert_same_run(out, uninterrupted):
    uninterrupted, _ = uninterrupted
    assert torch.equal(parameters(out), parameters(uninterrupted))
    mine, theirs = (json.loads((run / "result.json").read_text()) for run in (out, uninterrupted))
    assert mine == theirs
    rows, expected = (pq.read_table(run / "rounds.parquet").to_pylist() for run in (out, uninterrupted))
    assert rows == expected
    assert {path.name for path in out.iterdir()} == {path.name for path in uninterrupted.iterdir()}
    assert {event["round"] for event in events(out)} == set(range(5)), "every round is charged"


def test_two_crashes_are_no_worse_than_one(fixed, uninterrupted, tmp_path):
    crash(fixed, tmp_path / "run", charges=4)
    crash(fixed, tmp_path / "run", charges=2, resume=True)
    train(fixed, tmp_path / "run", workers=0, resume=True)
    assert_same_run(tmp_path / "run", uninterrupted)
    assert [event["round"] for event in events(tmp_path / "run")] == [0, 1, 2, 3, 2, 3, 2, 3, 4]


@pytest.mark.slow
def test_a_command_killed_in_mid_run_resumes(fixed, corpora, uninterrupted, tmp_path):
    run_file, out = tmp_path / "run.yaml", tmp_path / "run"
    run_file.write_text(yaml.safe_dump(run_tree(corpora, privacy={**runs.TREE["privacy"], **TEST_NOISE})))
    command = [sys.executable, "-m", "uedp_ray", "train", str(run_file), "--out", str(out), "--workers", "0", "--json"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    while not (out / "ledger.jsonl").exists() or len(events(out)) < 3:
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.001)
    process.kill()
    assert process.wait() == -signal.SIGKILL
    assert not (out / "result.json").exists()
    again = subprocess.run(command, capture_output=True, text=True)
    assert again.returncode == 2, "a run is not overwritten"
    assert "--resume" in again.stderr
    resumed = subprocess.run([*command, "--resume"], capture_output=True, text=True)
    assert resumed.returncode == 0, resumed.stderr
    assert json.loads(resumed.stdout)["rounds"] == 5
    assert_same_run(out, uninterrupted)


@pytest.mark.parametrize(("when", "kept"), [("while users are summed", 4), ("amid the release", 2)])
def test_an_interrupt_loses_no_round_but_the_one_it_comes_in(corpora, tmp_path, monkeypatch, when, kept):
    """A round that was released, and of which nothing is left, took a part of the budget."""
    config, out = run_config(corpora, training={"num_rounds": 8, "checkpoint_every": 3}), tmp_path / "run"
    target, name = (Plan, "select") if kept == 4 else (RunDriver, "charge")
    original, calls = getattr(target, name), []

    def interrupted(*arguments, **settings):
        calls.append(1)
        if len(calls) == 5:
            raise KeyboardInterrupt
        return original(*arguments, **settings)

    with monkeypatch.context() as patch:
        patch.setattr(target, name, interrupted)
        with pytest.raises(KeyboardInterrupt):
            train(config, out, workers=0)
    assert len(events(out)) == 4
    state = json.loads((out / "checkpoint" / "state.json").read_text())
    assert state["next_round"] == (4 if kept == 4 else 3)
    rounds = train(config, out, workers=0, resume=True)["rounds"]
    assert rounds == (8 if kept == 4 else 7)


SIGNALS = {
    "amid a release": (RunDriver, "charge", 6),
    "amid a checkpoint": (driver, "save_checkpoint", 2),
    "and again while its rounds are saved": (driver, "save_checkpoint", 3),
}
"""Where a signal comes, and at which call."""


@pytest.mark.parametrize("when", SIGNALS)
def test_a_signal_loses_no_round_wherever_it_comes(corpora, tmp_path, monkeypatch, when):
    config, out = run_config(corpora, training={"num_rounds": 8, "checkpoint_every": 3}), tmp_path / "run"
    where, name, nth = SIGNALS[when]
    original, select, calls = getattr(where, name), Plan.select, []

    def signalled(*arguments, **settings):
        calls.append(1)
        if len(calls) == nth:
            os.kill(os.getpid(), signal.SIGINT)
        return original(*arguments, **settings)

    def told(*arguments, round_index, **settings):
        if round_index == 7 and when.startswith("and again"):
            os.kill(os.getpid(), signal.SIGINT)
        return select(*arguments, round_index=round_index, **settings)

    with monkeypatch.context() as patch:
        patch.setattr(where, name, signalled)
        patch.setattr(Plan, "select", told)
        with pytest.raises(KeyboardInterrupt):
            train(config, out, workers=0)
    state = json.loads((out / "checkpoint" / "state.json").read_text())
    assert state["next_round"] == len(events(out)) == (7 if when.startswith("and again") else 6)
    assert train(config, out, workers=0, resume=True)["rounds"] == 8


class Drawn:
    """Who was drawn in each (round, attempt) of a run."""

    def __init__(self, patch):
        self.users: dict[tuple[int, int], list[int]] = {}
        select = Plan.select

        def recorded(plan, *args, round_index, attempt, **kwargs):
            chosen = list(select(plan, *args, round_index=round_index, attempt=attempt, **kwargs))
            self.users[round_index, attempt] = [each.user for each in chosen]
            return iter(chosen)

        patch.setattr(Plan, "select", recorded)


def test_a_private_crash_is_charged_and_its_replay_is_another_draw_charged_again(corpora, tmp_path, monkeypatch):
    drawn, config, out = Drawn(monkeypatch), run_config(corpora), tmp_path / "run"
    crash(config, out, charges=4)  # round 3; the checkpoint is of round 2
    assert [(e["round"], e["attempt"]) for e in events(out)] == [(0, 0), (1, 0), (2, 0), (3, 0)]
    result = train(config, out, workers=0, resume=True)
    charged = [(e["round"], e["attempt"]) for e in events(out)]
    assert charged == [(0, 0), (1, 0), (2, 0), (3, 0), (2, 1)], "as many as were planned, whichever they are"
    assert (result["rounds"], result["planned_rounds"]) == (3, 5)
    assert drawn.users.keys() == set(charged), "nothing is drawn that is not charged"
    assert drawn.users[2, 0] != drawn.users[2, 1]
    every = [json.loads(line) for line in (out / "ledger.jsonl").read_text().splitlines()]
    assert result["epsilon"]["user-entity"] == pytest.approx(epsilon_of_events(every, delta=1e-4), rel=1e-12)
    assert result["epsilon"]["user-entity"] == pytest.approx(epsilon_of_events(every[:1], delta=1e-4), rel=1e-12)
    assert "charged again: 1." in (out / "privacy.md").read_text()


TARGET = {**runs.TREE["privacy"], "target_epsilon": 6.0, "noise_multiplier": None}


def test_a_run_costs_the_same_wherever_it_breaks_off_and_says_so_everywhere(corpora, tmp_path):
    config, out = run_config(corpora, privacy=TARGET), tmp_path / "run"
    broken_off = []
    for nth, resume in ((4, False), (1, True)):  # the second crash takes the last round that the plan pays for
        crash(config, out, charges=nth, resume=resume)
        broken_off.append(ledger_epsilon(out / "ledger.jsonl", delta=1e-4))
    result = train(config, out, workers=0, resume=True)
    ended = ledger_epsilon(out / "ledger.jsonl", delta=1e-4)
    assert [answer["rounds"] for answer in (*broken_off, ended)] == [4, 5, 5]
    assert {answer["planned_rounds"] for answer in (*broken_off, ended)} == {5}
    assert 5.9 < ended["epsilon"] <= 6.0
    assert {(answer["epsilon"], answer["guarantee"]) for answer in broken_off} == {(ended["epsilon"], True)}
    assert "5 rounds, 4 of them recorded" in broken_off[0]["text"]
    assert result["epsilon"]["user-entity"] == ended["epsilon"]
    assert "that of the 5 rounds planned before the first" in (out / "privacy.md").read_text()
    rows = pq.read_table(out / "rounds.parquet").to_pylist()
    for unit, epsilon in result["epsilon"].items():
        assert {row[f"epsilon_{unit}"] for row in rows} == {epsilon}


def test_a_run_that_diverged_is_not_tried_again_until_it_does_not(corpora, tmp_path):
    training = {**runs.TREE["training"], "server_learning_rate": 1e30, "checkpoint_every": 50}
    config, out, charged = run_config(corpora, training=training), tmp_path / "run", []
    for resume in (False, True, True):
        with pytest.raises(InputError, match="start a new run"):
            train(config, out, workers=0, resume=resume)
        charged.append(len(events(out)))
    assert charged == [charged[0]] * 3


@pytest.fixture
def killed_amid_its_words(corpora, tmp_path):
    """(config, run directory) of a start that charged a vocabulary of the private text, and never released it."""
    words = {"kind": "noisy-threshold", "noise_multiplier": 1.0, "threshold_delta": 1e-6, "max_words_per_user": 5}
    users = {"unit": "user", "target_epsilon": 8.0}
    sections = {"privacy": TARGET | users, "bounds": {"mode": "none"}, "vocabulary": words}
    config, out = run_config(corpora, **sections), tmp_path / "run"
    crash_amid_its_words(config, out)
    assert len(events(out, "vocabulary")) == 1
    assert not (out / "vocabulary").exists()
    return config, out


def test_a_vocabulary_that_was_charged_is_released_and_not_charged_again(killed_amid_its_words):
    config, out = killed_amid_its_words
    words = (out / "private" / "vocabulary" / "tokenizer.json").read_bytes()
    assert train(config, out, workers=0, resume=True)["rounds"] == 5
    assert (out / "vocabulary" / "tokenizer.json").read_bytes() == words
    assert (len(events(out, "vocabulary")), events(out, "plan")) == (1, [])


def test_a_vocabulary_that_was_kept_and_not_charged_is_drawn_anew(killed_amid_its_words):
    config, out = killed_amid_its_words
    (out / "ledger.jsonl").write_bytes((out / "ledger.jsonl").read_bytes().splitlines(keepends=True)[0])
    (out / "private" / "charged").unlink(missing_ok=True)  # a kill before it was charged
    (out / "private" / "vocabulary" / "no-words").touch()
    train(config, out, workers=0, resume=True)
    assert not (out / "private" / "vocabulary" / "no-words").exists()
    assert len(events(out, "vocabulary")) == 1


@pytest.mark.parametrize("released", [False, True])
def test_a_vocabulary_drawn_in_the_place_of_a_lost_one_is_not_released_on_its_charge(killed_amid_its_words, released):
    """One was charged, and lost; another was drawn and, as the disk was full, not charged: two releases on one event."""
    config, out = killed_amid_its_words
    if released:
        train(config, out, workers=0, resume=True)
        for name in ("vocabulary", "model", "checkpoint"):
            shutil.rmtree(out / name)
        for name in ("result.json", "private/setup.json", "rounds.parquet"):
            (out / name).unlink()
    shutil.rmtree(out / "private" / "vocabulary")
    full = OSError(errno.ENOSPC, "No space left on device")
    with mock.patch.object(Ledger, "append", side_effect=full), pytest.raises(OSError, match="No space"):
        train(config, out, workers=0, resume=True)
    assert (out / "private" / "vocabulary").exists()
    assert len(events(out, "vocabulary")) == 1
    with suppress(InputError):  # where nothing is left of the budget
        train(config, out, workers=0, resume=True)
    assert len(events(out, "vocabulary")) == 2


def test_a_vocabulary_charged_twice_is_paid_for_in_rounds(killed_amid_its_words):
    config, out = killed_amid_its_words
    shutil.rmtree(out / "private" / "vocabulary")
    result = train(config, out, workers=0, resume=True)
    assert len(events(out, "vocabulary")) == 2
    [plan] = events(out, "plan")
    assert plan["rounds"] == result["rounds"] == len(events(out)) < 5
    paid = ledger_epsilon(out / "ledger.jsonl", delta=1e-4, unit="user")
    assert 5.0 < result["epsilon"]["user"] == paid["epsilon"] <= 8.0


@pytest.mark.parametrize("nth", [2, 4])
def test_replays_never_take_a_run_beyond_its_target(corpora, tmp_path, nth):
    config, out = run_config(corpora, privacy=TARGET, training={"evaluate_every": 50}), tmp_path / "run"
    crash(config, out, charges=nth)
    result = train(config, out, workers=0, resume=True)
    assert len(events(out)) == 5, "the target pays for five releases, whichever they are"
    assert result["rounds"] == 3
    assert 5.9 < result["epsilon"]["user-entity"] <= 6.0
    rows = pq.read_table(out / "rounds.parquet").to_pylist()
    assert rows[-1]["round"] == 3
    assert rows[-1]["perplexity"] == result["perplexity"] != result["initial_perplexity"]


def test_a_target_already_spent_releases_nothing_more(corpora, tmp_path):
    privacy = {**runs.TREE["privacy"], "target_epsilon": 6.0, "noise_multiplier": None}
    training = {"evaluate_every": 50, "checkpoint_every": 3}
    config, out = run_config(corpora, privacy=privacy, training=training), tmp_path / "run"
    crash(config, out, charges=5)  # rounds 3 and 4 are charged and lost
    result = train(config, out, workers=0, resume=True)
    assert len(events(out)) == 5
    assert (result["rounds"], result["tokens_per_second"]) == (3, None)
    assert result["epsilon"]["user-entity"] <= 6.0
    row = pq.read_table(out / "rounds.parquet").to_pylist()[-1]
    assert row["round"] == 3, "the perplexity that is reported is that of the model that is exported"
    assert row["perplexity"] == result["perplexity"] != result["initial_perplexity"]


def test_rounds_lost_on_public_text_are_trained_again(corpora, tmp_path):
    """Nobody is protected there, and a trial of fewer rounds would be ranked below its settings' worth."""
    config, out = run_config(corpora, privacy=TARGET), tmp_path / "run"
    crash(config, out, charges=4, public_source=True)
    result = train(config, out, workers=0, resume=True, public_source=True)
    assert (result["rounds"], result["planned_rounds"]) == (5, 5)
    assert [(e["round"], e["attempt"]) for e in events(out)][4:] == [(2, 1), (3, 1), (4, 0)]
    assert result["epsilon"]["user-entity"] > 6.0, "the ledger says what was done"


def test_an_undisturbed_run_with_a_target_runs_all_rounds(corpora, tmp_path):
    privacy = {**runs.TREE["privacy"], "target_epsilon": 6.0, "noise_multiplier": None}
    result = train(run_config(corpora, privacy=privacy), tmp_path / "run", workers=0)
    assert result["rounds"] == 5
    assert 5.9 < result["epsilon"]["user-entity"] <= 6.0


def test_resuming_a_finished_run_changes_nothing(private_run, corpora):
    before = {p: p.read_bytes() for p in private_run.out.rglob("*") if p.is_file() and p.name != "config.yaml"}
    assert train(run_config(corpora), private_run.out, workers=0, resume=True) == private_run.result
    assert {p: p.read_bytes() for p in before} == before


def test_a_torn_last_line_was_never_released_and_is_cut(crashed, corpora):
    with (crashed / "ledger.jsonl").open("a") as file:
        file.write('{"kind":"round","round":4,"att')
    assert train(run_config(corpora), crashed, workers=0, resume=True)["rounds"] == 3
    assert [(e["round"], e["attempt"]) for e in events(crashed)][4:] == [(2, 1)]


def test_a_lost_checkpoint_starts_over_and_charges_everything_again(crashed, corpora):
    shutil.rmtree(crashed / "checkpoint")
    assert train(run_config(corpora), crashed, workers=0, resume=True)["rounds"] == 1
    assert [(e["round"], e["attempt"]) for e in events(crashed)] == [(t, 0) for t in range(4)] + [(0, 1)]


@pytest.mark.parametrize("place", ["a folder", "a URL"])
def test_a_budget_spent_without_a_checkpoint_ends_however_often_it_is_killed(corpora, tmp_path, node, url, place):
    """The model that is left was trained on nothing: no start after it may take it for one that was paid for."""
    out = url if place == "a URL" else tmp_path / "run"
    config = run_config(corpora, training={"checkpoint_every": 50, "evaluate_every": 1})
    with mock.patch("uedp_ray.training.driver.save_checkpoint", side_effect=runs.Crash), pytest.raises(runs.Crash):
        train(config, out, workers=0)
    with mock.patch.object(RunDriver, "finish", side_effect=runs.Crash), pytest.raises(runs.Crash):
        train(config, out, workers=0, resume=True)
    assert train(config, out, workers=0, resume=True)["rounds"] == 0
    assert train(config, out, workers=0, resume=True)["rounds"] == 0
    folder = open_storage(out).root
    assert pq.read_table(folder / "rounds.parquet")["round"].to_pylist() == [0]


def test_where_no_checkpoint_fits_no_round_is_charged(corpora, tmp_path, monkeypatch):
    """Every start charged rounds until its first checkpoint, which did not fit, and the next one began anew."""
    config, out = run_config(corpora, privacy=TARGET), tmp_path / "run"
    room = 1 << 10

    def allocate(descriptor, offset, size):
        if size > room:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", allocate)
    for resume in (False, True):
        with pytest.raises(
            OSError, match=r"no room for the next checkpoint .* no more rounds are charged.*: free space"
        ):
            train(config, out, workers=0, resume=resume)
        assert events(out) == []
    room = 1 << 30
    monkeypatch.setattr("uedp_ray.training.driver.save_checkpoint", mock.Mock(side_effect=Crash))
    with pytest.raises(Crash):
        train(config, out, workers=0, resume=True)
    assert len(events(out)) == config.training.checkpoint_every


def test_what_a_resume_needs_is_on_disk_before_a_round_is_charged(tmp_path, monkeypatch):
    """Kills cannot show it: what a process wrote survives it, and not a machine that loses its power."""
    synced, fsync = set(), os.fsync

    def noted(descriptor):
        synced.add(os.fstat(descriptor).st_ino)
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", noted)
    source = {"format": "synthetic", "num_users": 12}
    corpus = {"source": source, "evaluation": {**source, "part": "held_out", "num_users": 3}}
    config = run_config(tmp_path, corpus=corpus)
    run = prepare_run(config, tmp_path / "run", resume=False)
    found = {path for path in run.root.rglob("*") if path.is_file() and path.stat().st_size}
    needed = {run.config, run.key, run.setup, run.ledger, run.vocabulary / "tokenizer.json", run.corpus / "corpus.json"}
    assert needed <= found
    assert any(path.suffix == ".parquet" for path in found)
    assert any(run.tokens in path.parents for path in found)
    assert not {path.relative_to(run.root) for path in found if path.stat().st_ino not in synced}
