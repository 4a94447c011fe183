"""Who reads the progress may go, at any moment: what is done goes on, and its answer is written."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import yaml

from tests.training.runs import run_tree
from uedp_ray import console, screens
from uedp_ray.console import emit, err
from uedp_ray.screens import screen, sweep_screen

COUNTS = {"asked": 3, "done": 1, "running": 1, "stopped": 0, "failed": 1, "refused": 0}
STATUS = COUNTS | {"wanted": 9, "under_way": 1.0, "trained": 0.5, "whole": 9.0, "then_winner": False, "best": None}
KINDS = ["pipe", "terminal", "full disk"]


@contextmanager
def unread(kind):
    """Standard error whose reader has gone, or that can hold no more. Not a fixture: pytest's capture would undo it."""
    reader = None
    if kind == "full disk":
        writer = os.open("/dev/full", os.O_WRONLY)
    else:
        reader, writer = os.openpty() if kind == "terminal" else os.pipe()
    with open(writer, "w", buffering=1, encoding="utf-8") as stream, pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stderr", stream)
        patch.setattr(err, "_force_terminal", kind == "terminal")
        patch.setattr(err, "quiet", False)
        if reader is not None:
            os.close(reader)
        yield


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_whose_progress_nobody_reads_ends_and_answers(kind, command, corpora, tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text(yaml.safe_dump(run_tree(corpora)))
    with unread(kind):
        code, out, _ = command("train", path, "--workers", 0, "--out", tmp_path / "run", "--json")
    assert code == 0
    assert json.loads(out)["rounds"] == run_tree(corpora)["training"]["num_rounds"]


@pytest.mark.parametrize("kind", KINDS)
def test_screens_that_nobody_sees_stop_nothing(kind):
    with unread(kind), sweep_screen() as reporter:
        reporter.trials(STATUS)
        reporter.step(1, 2, 0.5)
        reporter.trials(STATUS | {"asked": 4})


@pytest.mark.parametrize(
    ("flags", "code", "answered"), [(["--q-u", "1"], 0, True), (["--q-u", "2"], 2, False)], ids=["answer", "error"]
)
def test_exit_codes_are_those_of_a_read_run(flags, code, answered):
    reader, writer = os.pipe()
    os.close(reader)
    told = "from uedp_ray.console import Lines; Lines().say('progress'); from uedp_ray.cli import main; main()"
    command = [sys.executable, "-c", told, "epsilon", "--rounds", "0", "--noise-multiplier", "1", *flags, "--json"]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=writer)
    os.close(writer)
    assert done.returncode == code
    assert bool(done.stdout) == answered


@pytest.mark.parametrize("buffered", [True, False])
@pytest.mark.parametrize("to", ["&-", "/dev/full"])
def test_an_answer_that_cannot_be_written_ends_with_1(to, buffered):
    command = f"exec {sys.executable} -m uedp_ray epsilon --rounds 0 --q-u 1 --noise-multiplier 1 1>{to}"
    settings = {**os.environ, "PYTHONUNBUFFERED": "" if buffered else "1"}
    done = subprocess.run(["bash", "-c", command], stderr=subprocess.PIPE, text=True, env=settings)
    assert done.returncode == 1
    assert done.stderr.startswith("failed: ")
    assert done.stderr.count("\n") == 1


def test_a_closed_stream_leaves_its_number_to_no_file(tmp_path):
    program = "from uedp_ray.console import keep_descriptors; keep_descriptors(); print(open('file', 'w').fileno() > 2)"
    closed = f'exec 0<&- 2>&-; exec {sys.executable} -c "{program}"'
    assert subprocess.run(["bash", "-c", closed], stdout=subprocess.PIPE, cwd=tmp_path).stdout == b"True\n"


ROW = {"name": "é", "private": True, "perplexity": 1.0, "bits_per_byte": 1.0, "unk_share": 0.1, "delta": 1e-5}
ROW |= {"variant": "é", "method": "uedp", "settings": {}, "interval": None}
OURS = {"unit": "user-entity", "epsilon": 1.0, "sound": True, "trust": "central"}
WORD = {"unit": "word", "epsilon": 6.0, "sound": True, "trust": "local"}
OWN = OURS | {"sound": False, "assumed": ["task.kind: own"]}
NOTHING = {"unit": "none", "epsilon": None, "sound": False, "trust": "central"}
ROW |= {"guarantee": OURS, "guarantees": [OURS], "transform": "none", "retention": 1.0, "noise_multiplier": None}
AROUND = {"totals": [], "grid": [], "seeds": 1, "out": "/tmp/é"}
COMPARED = AROUND | {"rows": [ROW | {"epsilon": {"user-entity": 1.0, "user": None, "entity": 1.0}}]}


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_an_answer_is_written_whatever_the_encoding(encoding):
    program = f"""
from uedp_ray import cli, console
cli.app = lambda **_: (console.print_comparison({COMPARED!r}), console.Lines().say("ε \U0001f600"))
cli.main()
"""
    environment = os.environ | {"PYTHONIOENCODING": f"{encoding}:strict", "PYTHONUTF8": "0"}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, env=environment)
    assert (done.returncode, done.stderr.count(b"\n")) == (0, 1), done.stderr
    assert "user-entity" in done.stdout.decode("utf-8" if encoding == "ascii" else encoding), done.stdout


def test_a_run_without_privacy_that_another_beats_is_no_limit(capsys):
    none = dict.fromkeys(("user-entity", "user", "entity"))
    ours = ROW | {
        "name": "ours",
        "variant": "ours",
        "epsilon": dict.fromkeys(none, 1.0),
        "rounds": 9,
        "perplexity": 5.0,
    }
    free = ROW | {"name": "free", "variant": "free", "epsilon": none, "rounds": 9, "perplexity": 7.0}
    start = ROW | {
        "name": "start",
        "variant": "start",
        "epsilon": dict.fromkeys(none, 0.0),
        "rounds": 0,
        "perplexity": 9.0,
    }
    free |= {"private": False, "guarantee": NOTHING, "guarantees": [NOTHING]}
    console.print_comparison(AROUND | {"rows": [start, ours, free]})
    shown = capsys.readouterr().out
    assert "Without privacy, and yet worse than ours: free. What privacy costs is not seen from rows" in shown
    assert "No guarantee for a user or an entity, and figures as private as the text: free." in shown
    assert "retention" not in shown
    for other in (
        {"perplexity": 4.0},
        {"transform": "mask"},
        {"noise_multiplier": 2.5},
    ):  # cost by themselves
        console.print_comparison(AROUND | {"rows": [start, ours, free | other]})
        assert "Without privacy" not in capsys.readouterr().out


def cells(line):
    return [cell.strip() for cell in line.strip("│").split("│")]


def test_each_row_says_what_is_proven_of_whom_and_what_its_text_retained(capsys):
    both = {"name": "both", "variant": "both", "guarantees": [OURS, OURS | {"unit": "user", "epsilon": 0.5}, WORD]}
    beside = {"name": "beside", "variant": "beside", "guarantees": [OURS, WORD | {"sound": False}]}
    rows = [
        ROW | {"name": "public-only", "variant": "public-only", "method": None, "guarantee": OURS | {"epsilon": 0.0}},
        ROW | both | {"transform": "replace_words", "retention": 0.1234},
        ROW | beside,
        ROW | {"variant": "words", "private": False, "guarantee": WORD, "guarantees": [WORD]},
        ROW | {"variant": "claimed", "guarantee": WORD | {"sound": False}, "guarantees": [WORD | {"sound": False}]},
        ROW | {"variant": "own", "guarantee": OWN, "guarantees": [OWN]},
        ROW | {"variant": "bare", "private": False, "guarantee": NOTHING, "guarantees": [NOTHING], "retention": None},
    ]
    console.print_comparison(AROUND | {"rows": rows})
    shown = capsys.readouterr().out
    found = {cells(line)[0]: cells(line)[4:] for line in shown.splitlines() if line.startswith("│")}
    assert found == {
        "public-only": ["0.000", "every unit", "sound", "", "100.0%"],
        "both": ["1.000", "user-entity", "sound", "0.500 user, 6.000 word (local)", "12.3%"],
        "beside": ["1.000", "user-entity", "sound", "6.000 word (local) (not a guarantee)", "100.0%"],
        "words": ["6.000", "word (local)", "sound", "", "100.0%"],
        "claimed": ["6.000", "word (local)", "not a guarantee", "", "100.0%"],
        "own": ["1.000", "user-entity", "sound if assumed (task.kind: own)", "", "100.0%"],
        "bare": ["∞", "-", "no guarantee", "", "-"],
    }
    assert "\nuser: one user, all of its sentences.\nword: one word, " in shown
    assert "record: " not in shown
    assert "\nassumed: of the code that is named, nothing is proved" in shown
    assert "\nlocal: against whoever trains, too" in shown
    assert re.search(r"\nretention: share of .* \(private: read off the text\)\.\n", shown)


def test_a_caution_of_several_steps_is_said_once(capsys):
    lines = console.Lines()
    for line in ("caution: 12% is <unk>", "training", "caution: 12% is <unk>", "training", "caution: 13% is <unk>"):
        lines.say(line)
    said = [line.rstrip() for line in capsys.readouterr().err.splitlines()]
    assert said == ["caution: 12% is <unk>", "training", "training", "caution: 13% is <unk>"]


def test_a_log_has_every_heading_of_a_comparison_in_full(capsys):
    name = "ordinary training of the same adapters"
    row = ROW | {"name": name, "variant": name, "epsilon": dict.fromkeys(("user-entity", "user", "entity"), 8.0)}
    console.print_comparison(AROUND | {"rows": [row]})
    printed = capsys.readouterr().out
    assert "…" not in printed
    for heading in (name, "perplexity", "bits/byte", "<unk>", "user-entity", "entity"):
        assert heading in printed


def test_pre_training_tells_the_time_that_is_left(capfd, monkeypatch):
    clock = iter(range(0, 1000, 2))
    monkeypatch.setattr(screens.time, "monotonic", lambda: float(next(clock)))
    with screen() as reporter:
        for step in range(1, 11):
            reporter.step(step, 10, 1.0)
    lines = [line for line in capfd.readouterr().err.splitlines() if "pre-training step" in line]
    assert len(lines) == 5
    assert re.fullmatch(r"pre-training step 4/10  loss 1\.000  \d+ s left", lines[1])


def told_of(trials, monkeypatch, capfd, *, wanted=8, at=None, winner=False):
    """The lines for a log of a search whose state is (done, running, under way), by default every hundred seconds."""
    clock = iter(at or [100.0 * place for place in range(len(trials))])
    monkeypatch.setattr(screens.time, "monotonic", lambda: next(clock))
    counts = dict.fromkeys(("stopped", "failed", "refused"), 0)
    with sweep_screen() as reporter:
        for done, running, under_way in trials:
            now = {"asked": done + running, "done": done, "running": running, "under_way": running}
            passes = {"trained": done + under_way, "whole": wanted, "then_winner": winner}
            reporter.trials(counts | now | passes | {"wanted": wanted, "best": None})
    return capfd.readouterr().err.splitlines()


def test_a_search_tells_the_time_that_is_left(capfd, monkeypatch):
    """A start that resumes a search learns from its own trials, not from those that had ended before, nor from the time
    before anything was trained: the quickstart's first line said 13 minutes, of which 10 were that."""
    states = [(4, 0, 0.0), (4, 2, 0.0), (5, 2, 0.0), (8, 0, 0.0)]
    assert told_of(states, monkeypatch, capfd, at=[0.0, 60.0, 300.0, 900.0]) == [
        "trials: 4 done of 8",
        "trials: 5 done, 2 running of 8; about 12 min left",
        "trials: 8 done of 8",
    ]


def test_nor_from_what_had_been_trained_of_a_trial_that_it_resumes(capfd, monkeypatch):
    assert told_of([(4, 1, 0.5), (5, 2, 0.5), (8, 0, 0.0)], monkeypatch, capfd) == [
        "trials: 4 done, 1 running of 8",
        "trials: 5 done, 2 running of 8; about 4 min left",
        "trials: 8 done of 8",
    ]


def test_the_time_that_is_left_is_told_before_the_first_trial_ends(capfd, monkeypatch):
    states = [(0, 1, 0.0), (0, 2, 0.05), (0, 2, 0.5), (0, 2, 1.0), (1, 1, 0.75)]
    assert told_of(states, monkeypatch, capfd, wanted=4) == [
        "trials: 1 running of 4",
        "trials: 2 running of 4",  # a minute later, though nothing ended
        "trials: 2 running of 4; about 23 min left",
        "trials: 2 running of 4; about 15 min left",
        "trials: 1 done, 1 running of 4; about 9 min left",
    ]
    states = [(0, 1, 0.0), (0, 2, 0.5)]
    assert told_of(states, monkeypatch, capfd, wanted=4, winner=True)[1].endswith("about 12 min left, then the winner")


def test_an_answer_that_nobody_reads_ends_with_1():
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "uedp_ray", "epsilon", "--rounds", "0", "--q-u", "1", "--noise-multiplier", "1"]
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True)
    os.close(writer)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr


def test_an_answer_controls_no_terminal_and_keeps_to_its_lines(capsys):
    emit({"unit": "user\n\nepsilon: 0.1\x1b[8m\x9b2J", "epsilon": 2.0, "rows": ["\u202e", "é"]}, as_json=False)
    assert capsys.readouterr().out == 'unit: user  epsilon: 0.1 [8m 2J\nepsilon: 2.0\nrows: [" ", "é"]\n'


@pytest.mark.parametrize(("evaluated", "of"), [(0, " before training"), (4, " after round 4"), (6, "")])
def test_the_live_line_says_of_which_round_its_scores_are(capsys, evaluated, of):
    row = {"round": 6, "num_rounds": 10, "evaluated": evaluated, "rounds_per_second": 1.0, "seconds_left": 4.0}
    with screen() as reporter:
        reporter.round(row | {"epsilon": 8.0, "perplexity": 109.0, "bits_per_byte": 2.282, "unk_share": 0.1})
    said = capsys.readouterr().err
    assert f"perplexity 109.0 (2.282 bits/byte){of}  4 s left" in said
    assert "  ε 8.000 of this run  " in said, (
        "of pilots and a run after them, 'in all' was read as the price of everything"
    )


def test_a_log_says_after_a_minute_how_far_a_slow_run_is(monkeypatch, capsys):
    """Of a hundred rounds of a minute each nothing was said for twenty minutes."""
    clock = iter(range(20, 240, 20))
    monkeypatch.setattr(screens, "time", SimpleNamespace(monotonic=lambda: float(next(clock))))
    with screen() as shown:
        for done in range(1, 12):
            shown.answered(done, 100)
    assert capsys.readouterr().err.split("\n") == ["answered 5/100 texts", "answered 9/100 texts", ""]
