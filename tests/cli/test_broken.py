"""Commands that the machine or the user breaks off: one line says how to go on."""

from __future__ import annotations

import errno
import json
import os
import re
import signal
import subprocess
import sys
import threading

import pyarrow as pa
import pytest

from tests.training.runs import events
from uedp_ray import interrupts
from uedp_ray.errors import InputError

pytestmark = pytest.mark.whole


def test_ctrl_c_says_how_to_go_on(command, run_file, tmp_path, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("uedp_ray.training.worker.run_rounds", interrupted)
    code, _, err = command("train", run_file, "--workers", "0", "--out", tmp_path / "run")
    assert code == 130
    assert err.endswith(f"uedp-ray train {run_file} --workers 0 --out {tmp_path / 'run'} --resume\n")


def test_a_burst_of_ctrl_c_is_answered_once(command, run_file, tmp_path, monkeypatch):
    burst, told = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP], []

    def interrupted(*_, **__):
        raise KeyboardInterrupt

    def ignored_late():
        while burst:
            signal.raise_signal(burst.pop())
        interrupts.ignore()

    def interrupted_while_told(*words, **_):
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGTERM)
        told.append(words)

    monkeypatch.setattr("uedp_ray.training.host.train", interrupted)
    monkeypatch.setattr("uedp_ray.cli.ignore", ignored_late)
    monkeypatch.setattr("uedp_ray.cli.err.print", interrupted_while_told)
    code, _, _ = command("train", run_file, "--out", tmp_path / "run")
    assert (code, len(told), burst) == (130, 1, [])


@pytest.mark.parametrize("limit", [7, 8, 9])
def test_too_few_file_descriptors_name_the_limit_and_leave_nothing(tmp_path, limit):
    (tmp_path / "rows.jsonl").write_text('{"user": "u", "text": "a b"}')
    command = f"ulimit -n {limit}; exec {sys.executable} -m uedp_ray prepare rows.jsonl --format jsonl --out out"
    done = subprocess.run(["bash", "-c", command], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 2, done.stderr
    assert done.stderr.splitlines()[-1].startswith(f"error: ulimit -n = {limit}: too many open files")
    assert [path.name for path in tmp_path.iterdir()] == ["rows.jsonl"]


@pytest.mark.parametrize("words", ["train run.yaml --out run", "report sweep", "--help"])
def test_a_working_directory_that_was_removed_is_named(tmp_path, words):
    command = f"mkdir gone; cd gone; rmdir ../gone; exec {sys.executable} -m uedp_ray {words}"
    done = subprocess.run(["bash", "-c", command], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert done.stderr.startswith("error: the working directory was removed")


@pytest.mark.parametrize("started", [0, 1])
def test_where_no_thread_can_be_started_no_file_is_blamed(refused, run_file, tmp_path, monkeypatch, started):
    """A tokenizer whose pool of threads cannot be made fails as a damaged one does."""
    start, left = threading.Thread.start, [started]

    def limited(thread):
        left[0] -= 1
        if left[0] < 0:
            raise RuntimeError("can't start new thread")
        start(thread)

    def read(self, texts):
        monkeypatch.setattr("threading.Thread.start", limited)
        raise InputError("tokenizer.json", "run/vocabulary", "it has no tokens for some text")

    monkeypatch.setattr("uedp_ray.corpus.vocabulary.Vocabulary.encode_batch", read)
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    before = threading.active_count()
    refused("train", run_file, "--workers", 0, "--out", tmp_path / "run", parts=["ulimit -u = ", "cannot start enough"])
    assert threading.active_count() == before


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        pa.ArrowMemoryError("malloc of size 64 failed"),
        RuntimeError("DefaultCPUAllocator: can't allocate memory"),
    ],
)
def test_a_lack_of_memory_before_the_first_round_is_told_in_one_line(command, run_file, tmp_path, monkeypatch, error):
    def short(*_, **__):
        raise error

    monkeypatch.setattr("uedp_ray.training.setup.bounded_once", short)
    code, out, err = command("train", run_file, "--workers", 0, "--out", tmp_path / "run")
    assert (code, out) == (1, "")
    assert re.search("^failed: this machine ran out of memory: .*\n$", err, re.MULTILINE), err


def test_workers_that_failed_for_lack_of_memory_say_what_stays_charged(command, run_file, tmp_path, monkeypatch):
    def failed(*_, **__):
        raise RuntimeError("the workers failed 4 times; what was charged stays charged: Cuda failure 'out of memory'")

    monkeypatch.setattr("uedp_ray.training.setup.bounded_once", failed)
    code, out, err = command("train", run_file, "--workers", 0, "--out", tmp_path / "run")
    assert (code, out) == (1, "")
    assert "failed: the workers failed 4 times; what was charged stays charged: Cuda failure" in err


def test_a_full_disk_under_the_ledger_releases_nothing(command, run_file, tmp_path, monkeypatch):
    out, calls, fsync = tmp_path / "out", [], os.fsync

    def full(descriptor):
        ledger = out / "ledger.jsonl"
        if ledger.exists() and os.path.samestat(os.fstat(descriptor), ledger.stat()):
            calls.append(descriptor)
            if len(calls) == 1:  # the opening event was renamed into place: this is the charge of round 0
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        fsync(descriptor)

    flags = ("--workers", 0, "--out", out, "--json")
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        code, stdout, err = command("train", run_file, *flags)
    assert (code, stdout) == (1, "")
    last = err.strip().splitlines()[-1]
    assert last.startswith("failed: ")
    for part in ("No space left", "ledger.jsonl", "not released"):
        assert part in last
    assert events(out) == []
    assert not (out / "checkpoint").exists()
    assert not (out / "model").exists()
    assert command("train", run_file, *flags, "--resume")[0] == 0


def test_a_full_disk_under_a_checkpoint_says_how_to_go_on(command, run_file, tmp_path, monkeypatch):
    out, replace = tmp_path / "out", os.replace

    def full(source, target):
        if str(target).endswith("state.json"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        replace(source, target)

    flags = ("--workers", 0, "--out", out, "--json")
    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", full)
        code, stdout, err = command("train", run_file, *flags)
    assert (code, stdout) == (1, "")
    assert "state.json" in err.splitlines()[-1]
    assert "--resume" in err.splitlines()[-1]
    code, stdout, err = command("train", run_file, *flags, "--resume")
    assert (code, json.loads(stdout)["rounds"]) == (1, 0), "both of two are charged, and neither was kept"
    assert "ended after 0 of 2 rounds" in err
