"""Runs at a URL: whatever is killed or lost, nothing that was released is missing from the ledger there."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch
import yaml

from tests.storage.urls import charged, kept_events
from tests.training.runs import (
    TEST_NOISE,
    TREE,
    crash,
    crash_amid_its_words,
    events,
    parameters,
    run_config,
    run_tree,
)
from tests.training.test_run import NOISY_WORDS
from uedp_ray.errors import InputError
from uedp_ray.privacy.ledger import read_ledger
from uedp_ray.storage import objects
from uedp_ray.storage.base import StorageError
from uedp_ray.storage.files import write_json
from uedp_ray.storage.mirror import Mirror
from uedp_ray.storage.objects import Objects
from uedp_ray.storage.open import local_copy, open_storage
from uedp_ray.training.driver import RunDriver
from uedp_ray.training.host import train
from uedp_ray.training.reduce import LocalReducer

pytestmark = pytest.mark.usefixtures("node")


def record_releases(patch):
    """The rounds that are charged for certain from now on, and so leave the driver next."""
    released, charge = [], RunDriver.charge

    def recorded(self, round_index, attempt):
        charge(self, round_index, attempt)
        released.append(round_index)

    patch.setattr(RunDriver, "charge", recorded)
    return released


def test_an_event_is_in_the_storage_before_its_round_leaves_the_driver(corpora, url, monkeypatch):
    send, seen = LocalReducer.from_driver, []

    def checked(self, vector):
        if vector.numel() > 1:  # parameters
            seen.append(len(charged(url)))
        return send(self, vector)

    monkeypatch.setattr(LocalReducer, "from_driver", checked)
    train(run_config(corpora), url, workers=0)
    assert seen == [0, 1, 2, 3, 4, 5], "of the start, then of every round"


def test_a_vocabulary_is_charged_in_the_storage_before_its_words_are_used_and_once(corpora, url, node):
    def charges(mirror):
        assert mirror.restore(mirror.root / "ledger.jsonl")
        return [event["kind"] for event in read_ledger(mirror.root / "ledger.jsonl")]

    config = run_config(corpora, vocabulary=NOISY_WORDS)
    crash_amid_its_words(config, url)
    assert charges(open_storage(url)) == ["open", "vocabulary"]
    words = (open_storage(url).root / "private" / "vocabulary" / "tokenizer.json").read_bytes()
    node("b")
    train(config, url, workers=0, resume=True)
    root = open_storage(url).root
    assert (root / "vocabulary" / "tokenizer.json").read_bytes() == words
    assert charges(open_storage(url)) == ["open", "vocabulary", *["round"] * 5]


def test_a_start_that_was_killed_within_its_first_write_is_taken_over(url, tmp_path):
    owners = tmp_path / "bucket" / "run" / "private" / "owners"
    owners.mkdir(parents=True)
    (owners / ".000001-0a0b0c0d.1234.tmp").write_text("no")
    mirror = Mirror(url, tmp_path / "node")
    mirror.acquire()
    assert mirror.exists()
    for strange in ("notes.txt", "private/notes.txt", "notes/empty"):
        other = tmp_path / "bucket" / strange.replace("/", "-") / strange
        other.parent.mkdir(parents=True)
        other.write_text("mine") if other.suffix else other.mkdir()
        with pytest.raises(InputError, match="is not empty and holds no run: name another place"):
            Mirror(f"file://{tmp_path}/bucket/{strange.replace('/', '-')}", tmp_path / "node").acquire()


def test_an_upload_that_fails_releases_nothing_and_says_what_is_safe(corpora, url, node, monkeypatch):
    write = Objects.write
    monkeypatch.setattr(objects, "_WAITS", ())

    def failing(self, key, content):
        if "ledger.jsonl" in key and b'"round":3' in content:
            self._tried("write", key, lambda: 1 / 0)
        write(self, key, content)

    with monkeypatch.context() as patch:
        patch.setattr(Objects, "write", failing)
        released = record_releases(patch)
        with pytest.raises(StorageError, match=r"cannot write .*nothing of it was released: run again with --resume"):
            train(run_config(corpora), url, workers=0)
    assert released == [0, 1, 2]
    assert charged(url) == [(0, 0), (1, 0), (2, 0)]
    assert len(events(open_storage(url).root)) == 4, "the node's own ledger has more, and does not count"
    train(run_config(corpora), url, workers=0, resume=True)
    assert charged(url) == [(0, 0), (1, 0), (2, 0), (2, 1), (3, 0)], "as many as were planned"


@pytest.mark.parametrize("step", ["write", "list"])
def test_a_start_that_could_not_record_an_event_owns_nothing_from_then_on(url, tmp_path, monkeypatch, step):
    """Whoever catches the error: what was not recorded for certain must not be followed by anything that is."""
    monkeypatch.setattr(objects, "_WAITS", ())
    mirror = Mirror(url, tmp_path / "work")
    mirror.acquire()
    path = mirror.root / "ledger.jsonl"
    path.parent.mkdir(parents=True)
    path.write_text("round\n")
    with monkeypatch.context() as patch:
        patch.setattr(Objects, step, lambda self, key, *content: self._tried(step, key, lambda: 1 / 0))
        with pytest.raises(StorageError, match="it may not be recorded"):
            mirror.append(path)
    assert not mirror.owned
    for act in (mirror.append, mirror.put, mirror.publish):  # the storage is there again
        with pytest.raises(StorageError, match="it may not be recorded"):
            act(path)


def test_what_fails_once_is_tried_again(monkeypatch, tmp_path):
    monkeypatch.setattr(objects, "_WAITS", (0.0, 0.0))
    answers = [OSError("reset"), RuntimeError("busy"), None]

    def unsteady(self, path, source):
        if (error := answers.pop(0)) is not None:
            raise error

    bucket = Objects("memory://unsteady")
    monkeypatch.setattr(Objects, "_stream", unsteady)
    bucket.write("x", b"1")
    assert answers == []
    answers += [OSError("reset")] * 3
    with pytest.raises(StorageError, match="memory://unsteady: cannot write x: reset"):
        bucket.write("x", b"1")


def test_a_stale_copy_of_a_node_is_not_used(corpora, url, node):
    config = run_config(corpora, training={"num_rounds": 9})
    crash(config, url, charges=4)  # node a: rounds 0 to 3 are charged; its checkpoint is of round 2
    stale = (open_storage(url).root / "ledger.jsonl").read_bytes()
    node("b")
    crash(config, url, charges=3, resume=True)  # rounds 2, 3 and 4; its checkpoint is of round 4
    node("a")
    assert (open_storage(url).root / "ledger.jsonl").read_bytes() == stale
    root = open_storage(url).root
    (root / "result.json").write_text('{"epsilon": "a lie"}')
    (root / "trials").mkdir()
    assert train(config, url, workers=0, resume=True)["rounds"] == 6
    assert not (root / "trials").exists()
    assert charged(url) == [(0, 0), (1, 0), (2, 0), (3, 0), (2, 1), (3, 1), (4, 0), (4, 1), (5, 0)]


def test_a_start_without_resume_leaves_the_copy_of_a_live_run_alone(corpora, url):
    """Its driver may be elsewhere, and this node's copy in use by a worker."""
    config = run_config(corpora, training={"num_rounds": 9})
    crash(config, url, charges=4)
    kept = open_storage(url).root / "private" / "marker"
    kept.write_text("")
    for named in (config, run_config(corpora)):
        with pytest.raises(InputError, match="holds a run already: add --resume"):
            train(named, url, workers=0)
    assert kept.exists()
    assert train(config, url, workers=0, resume=True)["rounds"] == 7


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_of_two_starts_the_later_goes_on_and_the_earlier_releases_nothing_more(corpora, url, node, monkeypatch, after):
    """The later one begins, and ends, just before the earlier one charges round 2, or just after."""
    config, original, calls = run_config(corpora), RunDriver.charge, []

    def overtaken(self, round_index, attempt):
        calls.append(round_index)
        first = len(calls) == 3
        if after:
            original(self, round_index, attempt)
        if first:
            node("b")
            train(config, url, workers=0, resume=True)
            node("a")
        if not after:
            original(self, round_index, attempt)

    monkeypatch.setattr(RunDriver, "charge", overtaken)
    released = record_releases(monkeypatch)
    with pytest.raises(InputError, match="another start has taken it over"):
        train(config, url, workers=0)
    late = [(2, 1)] if after else []  # charged before the later start looked, so it has it too
    assert charged(url) == [(0, 0), (1, 0), (2, 0), *late, (3, 0), (4, 0)][:5], "as many as were planned"
    assert len(released) <= len(charged(url)), "nothing was released that is not charged"
    assert events(local_copy(url)) == kept_events(url)


class Turns:
    """Threads that take turns at every look at the storage, in an order drawn from a seed."""

    def __init__(self, seed):
        self.random, self.ready, self.turn = random.Random(seed), set(), threading.Condition()
        self.holder = None

    def step(self):
        me = threading.get_ident()
        with self.turn:
            self.ready.add(me)
            self._next(me)
            self.turn.wait_for(lambda: self.holder == me)

    def _next(self, me):
        if self.holder in (None, me):
            self.holder = self.random.choice(sorted(self.ready))
            self.turn.notify_all()

    def end(self):
        me = threading.get_ident()
        with self.turn:
            self.ready.discard(me)
            if self.holder == me:
                self.holder = self.random.choice(sorted(self.ready)) if self.ready else None
                self.turn.notify_all()


@pytest.mark.parametrize("seed", range(60))
def test_whatever_the_order_of_steps_nothing_released_is_missing(seed, tmp_path, monkeypatch):
    """Three starts append what they may, and release it; every order of their steps is as good as any."""
    url, turns, released, barrier = f"memory://fence-{seed}/run", Turns(seed), [], threading.Barrier(3)
    with monkeypatch.context() as patch:
        for name in ("list", "read", "write"):
            original = getattr(Objects, name)

            def stepped(self, *args, original=original):
                turns.step()
                return original(self, *args)

            patch.setattr(Objects, name, stepped)

        def start(name):
            mirror = Mirror(url, tmp_path / name)
            path = mirror.root / "ledger.jsonl"
            turns.ready.add(threading.get_ident())
            barrier.wait()
            for _ in range(3):  # a start that was overtaken may be tried again
                try:
                    mirror.acquire()
                    mirror.restore(path)
                    for event in range(4):
                        path.parent.mkdir(parents=True, exist_ok=True)
                        line = f"{name}-{event}-{random.random()}\n"
                        with path.open("a") as file:
                            file.write(line)
                        mirror.append(path)
                        released.append(line)
                except InputError:
                    continue
            turns.end()

        threads = [threading.Thread(target=start, args=(name,)) for name in "abc"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    last = Mirror(url, tmp_path / "last")
    last.acquire()
    assert last.restore(last.root / "ledger.jsonl")
    lines = (last.root / "ledger.jsonl").read_text().splitlines(keepends=True)
    assert len(released) >= 4
    assert set(released) <= set(lines)
    assert len(set(lines)) == len(lines)


@pytest.mark.slow
def test_a_command_killed_in_mid_run_goes_on_elsewhere(fixed, corpora, uninterrupted, url, tmp_path, node):
    run_file = tmp_path / "run.yaml"
    run_file.write_text(yaml.safe_dump(run_tree(corpora, privacy={**TREE["privacy"], **TEST_NOISE})))
    command = [sys.executable, "-m", "uedp_ray", "train", str(run_file), "--out", url, "--workers", "0", "--json"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    while len(list((tmp_path / "bucket/run/private").glob("*/ledger.jsonl/*"))) < 4:  # the first opens it
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.001)
    process.kill()
    assert process.wait() == -signal.SIGKILL
    before = charged(url)
    assert len(before) >= 2
    shutil.rmtree(node("a"))
    node("b")
    resumed = subprocess.run([*command, "--resume"], capture_output=True, text=True, env=os.environ)
    assert resumed.returncode == 0, resumed.stderr
    assert json.loads(resumed.stdout)["perplexity"] == uninterrupted[1]["perplexity"]
    assert charged(url)[: len(before)] == before
    assert torch.equal(parameters(open_storage(url).root), parameters(uninterrupted[0]))


@pytest.mark.slow
@pytest.mark.usefixtures("local_ray")
def test_a_ray_train_group_at_a_url(fixed, uninterrupted, url, tmp_path):
    result = train(fixed, url, workers=2)
    assert result["perplexity"] == pytest.approx(uninterrupted[1]["perplexity"], rel=1e-5)
    assert len(charged(url)) == 5
    starts = {path.name.partition(".")[0] for path in (tmp_path / "bucket/run/private/owners").iterdir()}
    assert len(starts) == 2, "the command's, and that of the worker of rank 0"
    wrong = run_config(Path(fixed.corpus.source.path).parent, training={"server_learning_rate": 1e30, "num_rounds": 2})
    with pytest.raises(InputError, match="not finite"):
        train(wrong, f"{url}-2", workers=1)


def test_what_is_private_is_its_owners_on_a_fresh_node_too(url, tmp_path):
    """Folders on the way included, whatever is fetched, adopted or restored first."""
    (tmp_path / "corpus").mkdir()
    (tmp_path / "corpus" / "text").write_text("private")
    started = Mirror(url, tmp_path / "first")
    started.acquire()
    started.root.mkdir(parents=True, exist_ok=True)
    into = started.root / "private" / "corpora" / "private"
    started.adopt(tmp_path / "corpus", into)
    write_json(started.root / "private" / "base.yaml", {}, private=True)
    started.put(started.root / "private" / "base.yaml")
    (started.root / "ledger.jsonl").write_text("{}\n")
    started.append(started.root / "ledger.jsonl")
    for number, fetch in enumerate(("get", "restore", "get a file")):
        fresh = Mirror(url, tmp_path / f"fresh-{number}")
        if fetch == "restore":
            assert fresh.restore(fresh.root / "ledger.jsonl")
        else:
            fresh.get(fresh.root / "private" / ("base.yaml" if "file" in fetch else "corpora/private"))
        for mirror in (started, fresh):
            found = [mirror.root, *(mirror.root / "private").rglob("*"), *mirror.root.glob("private")]
            for path in found:
                if path.suffix != ".jsonl":
                    assert path.stat().st_mode & 0o777 == (0o700 if path.is_dir() else 0o600), path
