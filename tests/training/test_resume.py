"""Killed and resumed: the same model where noise is fixed; every release charged, and never beyond the target."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from unittest import mock

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
import yaml

from tests.told import Told
from tests.training import runs
from tests.training.runs import TEST_NOISE, Crash, crash, crash_amid_its_words, events, parameters, run_config, run_tree
from uedp_ray.answers import ledger_epsilon
from uedp_ray.config import SourceConfig
from uedp_ray.corpus.prepare import prepare
from uedp_ray.errors import InputError
from uedp_ray.plan import Plan
from uedp_ray.privacy.events import epsilon_of_events
from uedp_ray.privacy.ledger import Ledger
from uedp_ray.storage.open import open_storage
from uedp_ray.training.driver import RunDriver
from uedp_ray.training.host import train


@pytest.fixture(scope="module")
def fixed(corpora):
    return run_config(corpora, privacy={**runs.TREE["privacy"], **TEST_NOISE})


@pytest.fixture(scope="module")
def uninterrupted(fixed, tmp_path_factory):
    out = tmp_path_factory.mktemp("uninterrupted") / "run"
    train(fixed, out, workers=0)
    return out


def assert_same_run(out, uninterrupted):
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


def test_an_undisturbed_run_with_a_target_runs_all_rounds(corpora, tmp_path):
    privacy = {**runs.TREE["privacy"], "target_epsilon": 6.0, "noise_multiplier": None}
    result = train(run_config(corpora, privacy=privacy), tmp_path / "run", workers=0)
    assert result["rounds"] == 5
    assert 5.9 < result["epsilon"]["user-entity"] <= 6.0


def test_resuming_a_finished_run_changes_nothing(private_run, corpora):
    before = {p: p.read_bytes() for p in private_run.out.rglob("*") if p.is_file() and p.name != "config.yaml"}
    assert train(run_config(corpora), private_run.out, workers=0, resume=True) == private_run.result
    assert {p: p.read_bytes() for p in before} == before


@pytest.fixture
def crashed(corpora, tmp_path):
    """A private run with a checkpoint of round 2 and charges up to round 3."""
    out = tmp_path / "run"
    crash(run_config(corpora), out, charges=4)
    return out


def test_another_config_is_refused_and_both_are_named(crashed, corpora):
    other = run_config(corpora, privacy={**runs.TREE["privacy"], "noise_multiplier": 0.5})
    with pytest.raises(InputError) as raised:
        train(other, crashed, workers=0, resume=True)
    assert run_config(corpora).digest()[:12] in str(raised.value)
    assert other.digest()[:12] in str(raised.value)
    assert len(events(crashed)) == 4


def test_machine_settings_may_change_on_resume(crashed, corpora):
    config = run_config(corpora, training={**runs.TREE["training"], "checkpoint_every": 3, "evaluate_every": 1})
    assert train(config, crashed, workers=0, resume=True)["rounds"] == 3


def test_without_resume_a_run_is_never_touched(crashed, corpora):
    before = parameters(crashed)
    with pytest.raises(InputError, match="--resume"):
        train(run_config(corpora), crashed, workers=0)
    assert torch.equal(parameters(crashed), before)


def test_a_folder_that_is_no_run_is_refused(corpora, tmp_path):
    (tmp_path / "thesis.tex").write_text("ten years of work")
    for resume in (False, True):
        with pytest.raises(InputError, match="holds no run"):
            train(run_config(corpora), tmp_path, workers=0, resume=resume)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


@pytest.mark.parametrize(
    ("tamper", "message"),
    [
        (lambda ledger: ledger.unlink(), "is missing"),
        (lambda ledger: cut(ledger, 2), "restore the complete ledger"),
        (lambda ledger: ledger.write_text(ledger.read_text().replace('"round":1', '"round":9')), "line 3"),
    ],
    ids=["deleted", "cut", "changed"],
)
def test_a_ledger_behind_the_checkpoint_is_refused(crashed, corpora, tamper, message):
    tamper(crashed / "ledger.jsonl")
    with pytest.raises(InputError, match=message):
        train(run_config(corpora), crashed, workers=0, resume=True)
    assert not (crashed / "result.json").exists()


def cut(ledger: Path, keep: int) -> None:
    ledger.write_text("".join(ledger.read_text().splitlines(keepends=True)[:keep]))


@pytest.mark.parametrize("lost", ["end", "ledger and setup"])
def test_rounds_that_were_paid_are_not_forgotten_before_the_first_checkpoint(corpora, tmp_path, lost):
    """Another config took the place of a run whose ledger had lost its end, and a new key that of its own."""
    out = tmp_path / "run"
    config = run_config(corpora, training={**runs.TREE["training"], "checkpoint_every": 5})
    crash(config, out, charges=3)
    assert not (out / "checkpoint").exists()
    kept = {path: path.read_bytes() for path in (out / "ledger.jsonl", out / "private" / "setup.json")}
    key = (out / "private" / "sampling.key").read_bytes()
    if lost == "end":
        cut(out / "ledger.jsonl", 1)
    else:
        for path in kept:
            path.unlink()
    other = run_config(corpora, training={**runs.TREE["training"], "num_rounds": 4})
    for asked, resume in ((config, True), (other, False), (other, True), (config, False)):
        with pytest.raises(InputError):
            train(asked, out, workers=0, resume=resume)
    assert (out / "private" / "sampling.key").read_bytes() == key
    for path, content in kept.items():
        path.write_bytes(content)
    assert train(config, out, workers=0, resume=True)["rounds"] == 2


def test_a_torn_last_line_was_never_released_and_is_cut(crashed, corpora):
    with (crashed / "ledger.jsonl").open("a") as file:
        file.write('{"kind":"round","round":4,"att')
    assert train(run_config(corpora), crashed, workers=0, resume=True)["rounds"] == 3
    assert [(e["round"], e["attempt"]) for e in events(crashed)][4:] == [(2, 1)]


def test_the_ledger_of_another_config_is_refused(crashed, corpora, uninterrupted):
    shutil.copy(uninterrupted / "ledger.jsonl", crashed / "ledger.jsonl")
    with pytest.raises(InputError, match="config"):
        train(run_config(corpora), crashed, workers=0, resume=True)


def test_the_ledger_of_another_run_of_the_same_config_is_refused(crashed, corpora, private_run):
    shutil.copy(private_run.out / "ledger.jsonl", crashed / "ledger.jsonl")
    with pytest.raises(InputError, match="ledger"):
        train(run_config(corpora), crashed, workers=0, resume=True)


def test_a_lost_checkpoint_starts_over_and_charges_everything_again(crashed, corpora):
    shutil.rmtree(crashed / "checkpoint")
    assert train(run_config(corpora), crashed, workers=0, resume=True)["rounds"] == 1
    assert [(e["round"], e["attempt"]) for e in events(crashed)] == [(t, 0) for t in range(4)] + [(0, 1)]


def test_a_corpus_that_changed_meanwhile_is_refused(tmp_path, corpora):
    folder = tmp_path / "corpora"
    shutil.copytree(corpora, folder)
    crash(run_config(folder), tmp_path / "run", charges=1)
    prepare(SourceConfig(format="synthetic", num_users=30, seed=8), folder / "private", num_shards=2)
    with pytest.raises(InputError, match=r"corpus\.source"):
        train(run_config(folder), tmp_path / "run", workers=0, resume=True)
    assert np.load(tmp_path / "run" / "private" / "sentence_weight.npy").size


def test_what_was_left_beside_a_result_goes_on_the_next_start(private_run, corpora, tmp_path):
    """Where Ray itself was killed, its files and the speeds in ``progress.json`` stay."""
    run = Path(shutil.copytree(private_run.out, tmp_path / "run"))
    (run / "private" / "ray").mkdir()
    (run / "progress.json").write_text("{}")
    train(run_config(corpora), run, workers=0, resume=True)
    assert not (run / "private" / "ray").exists()
    assert not (run / "progress.json").exists()


@pytest.mark.parametrize("file", [False, True])
def test_a_model_that_was_paid_for_is_not_trained_over(private_run, corpora, tmp_path, file):
    """Without a checkpoint training starts over; of a finished run with nothing, which took the place of the model."""
    run = shutil.copytree(private_run.out, tmp_path / "run")
    before = {path.name: path.read_bytes() for path in (run / "model").iterdir()}
    (run / "result.json").unlink()
    kept = shutil.move(run / "checkpoint", tmp_path / "checkpoint")
    if file:
        (run / "checkpoint").touch()
        with pytest.raises(InputError, match=r"checkpoint = .* is no"):
            train(run_config(corpora), run, workers=0, resume=True)
        (run / "checkpoint").unlink()
    with pytest.raises(
        InputError, match=r"checkpoint = .* is missing, and training from scratch would replace the model"
    ):
        train(run_config(corpora), run, workers=0, resume=True)
    assert {path.name: path.read_bytes() for path in (run / "model").iterdir()} == before
    shutil.move(kept, run / "checkpoint")
    train(run_config(corpora), run, workers=0, resume=True)
    assert {path.name: path.read_bytes() for path in (run / "model").iterdir()} == before


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


def test_tokens_are_written_where_the_run_keeps_them_whatever_its_setup_says(corpora, tmp_path):
    """A folder anywhere was made the owner's alone, and tokens of the private text were put into it."""
    config, out, victim = run_config(corpora), tmp_path / "run", tmp_path / "victim"
    crash(config, out, charges=3)
    victim.mkdir(mode=0o755)
    setup = json.loads((out / "private" / "setup.json").read_text())
    (out / "private" / "setup.json").write_text(json.dumps(setup | {"tokens": str(victim)}))
    train(config, out, workers=0, resume=True)
    assert stat.S_IMODE(victim.stat().st_mode) == 0o755
    assert list(victim.iterdir()) == []


@pytest.mark.parametrize("name", ["vocabulary", "private/config.yaml"])
def test_what_is_missing_is_named_with_a_remedy_or_made_again(corpora, tmp_path, name):
    config, out = run_config(corpora), tmp_path / "run"
    crash(config, out, charges=3)
    kept = shutil.move(out / name, tmp_path / "kept")
    if name == "vocabulary":
        with pytest.raises(InputError, match=r"vocabulary = .* is missing: restore the run's copy"):
            train(config, out, workers=0, resume=True)
        shutil.move(kept, out / name)
    assert train(config, out, workers=0, resume=True)["private"]


def test_a_finished_run_without_its_weights_says_how_to_have_them_again(private_run, corpora, tmp_path):
    """They are the largest file of a run, and the first to be deleted; no round is played or charged again."""
    run = shutil.copytree(private_run.out, tmp_path / "run")
    (run / "model" / "model.safetensors").unlink()
    said = []
    train(run_config(corpora), run, workers=0, resume=True, reporter=Told(say=said.append))
    (line,) = said
    assert "delete result.json, and run again with --resume" in line
    ledger = (run / "ledger.jsonl").read_bytes()
    (run / "result.json").unlink()
    said.clear()
    train(run_config(corpora), run, workers=0, resume=True, reporter=Told(say=said.append))
    assert torch.equal(parameters(run), parameters(private_run.out))
    assert (run / "ledger.jsonl").read_bytes() == ledger
    train(run_config(corpora), run, workers=0, resume=True, reporter=Told(say=said.append))
    assert not any("result.json" in line for line in said)


def test_a_ledger_that_lost_its_last_lines_is_refused(crashed, corpora, private_run, tmp_path):
    """Also those behind the checkpoint: what they charge was released, and its round would be released again."""
    lines = (crashed / "ledger.jsonl").read_text().splitlines(keepends=True)
    (crashed / "ledger.jsonl").write_text("".join(lines[:-1]))
    with pytest.raises(InputError, match=r"ledger.jsonl.*restore the complete ledger"):
        train(run_config(corpora), crashed, workers=0, resume=True)
    (crashed / "ledger.jsonl").write_text("".join(lines))
    assert train(run_config(corpora), crashed, workers=0, resume=True)["rounds"] == 3


@pytest.mark.parametrize("file", ["tokenizer.json", "tokenizer_config.json"])
def test_a_vocabulary_that_changed_between_starts_is_refused(crashed, corpora, file):
    """The rounds to come would train on other tokens, and the scores be of a vocabulary that is gone."""
    path = crashed / "vocabulary" / file
    whole = path.read_text()
    path.write_text(whole.replace("e", "a", 1) if file == "tokenizer.json" else whole + "\n")
    with pytest.raises(InputError, match=r"vocabulary.*has changed since the run began: put it back"):
        train(run_config(corpora), crashed, workers=0, resume=True)
    path.write_text(whole)
    train(run_config(corpora), crashed, workers=0, resume=True)


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
