"""A command that is killed: its folder, what it released, and what must hold of what it leaves."""

from __future__ import annotations

import copy
import hashlib
import json
import os
import stat
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pyarrow.parquet as pq
import yaml
from safetensors.numpy import load

from tests.training.runs import TREE
from uedp_ray import cli
from uedp_ray.interrupts import handlers_kept
from uedp_ray.privacy.ledger import read_ledger
from uedp_ray.training.driver import RunDriver
from uedp_ray.training.reduce import LocalReducer
from uedp_ray.training.rundir import sampling_key

SYNTHETIC = {"format": "synthetic", "num_users": 12}
_TEMPORARY = (".new", ".old", ".tmp", ".partial")


def run_tree(**sections: Any) -> dict[str, Any]:
    tree = copy.deepcopy(TREE)
    tree["corpus"] |= {"source": SYNTHETIC, "evaluation": {**SYNTHETIC, "part": "held_out", "num_users": 3}}
    tree["privacy"] |= {"test_noise_seed": 7}
    tree["training"] |= {"num_rounds": 4, "evaluate_every": 2, "checkpoint_every": 2}
    tree["vocabulary"]["public_text"][0]["num_users"] = 6
    for name, section in sections.items():
        tree[name] = {**tree.get(name, {}), **section}
    return tree


PRIVATE = {"privacy": {"test_noise_seed": None}}


PRETRAIN = {"text": [{"format": "synthetic", "num_users": 4, "part": "public"}], "num_steps": 2, "batch_size": 4}


class Command:
    """A command in a folder of its own: ``files`` to read, ``out`` to write, and a record of what was released."""

    once = False
    """Whether an error meets it that is over at once: a trial may fail of that, and the search go on."""
    comparable = True
    """Whether an interrupted and resumed command ends with the files of one that was not."""

    def __init__(self, base: Path):
        self.base, self.work, self.out = base, base / "work", base / "work" / "out"
        self.file, self.released = base / "config.yaml", base / "released"

    def set_up(self) -> None:
        self.work.mkdir(parents=True)
        self.file.write_text(yaml.safe_dump(self.tree()))

    def tree(self) -> dict[str, Any]:
        return run_tree()

    @property
    def has_settings(self) -> bool:
        """Whether it reads a configuration, of which there is another."""
        return "training" in self.tree().get("base", self.tree())

    def other_tree(self) -> dict[str, Any]:
        """Another configuration of the same kind."""
        tree = self.tree()
        base = tree.get("base", tree)
        base["training"]["num_rounds"] += 1
        return tree

    def arguments(self) -> list[str]:
        raise NotImplementedError

    def begun(self) -> bool:
        """Whether the user has to say --resume."""
        return (self.out / "private").exists()

    def runs(self) -> list[Path]:
        return [self.out]

    def gives_way(self) -> bool:
        """Whether another configuration must be let in, not only may be."""
        return False

    def call_other(self) -> int:
        """Starts another configuration in the same folder; returns the exit code."""
        self.file.write_text(yaml.safe_dump(self.other_tree()))
        try:
            return self._call(self.arguments())
        finally:
            self.file.write_text(yaml.safe_dump(self.tree()))

    def call(self) -> int:
        """Runs, or goes on with, the command as a user would; returns its exit code."""
        arguments = self.arguments()
        if "--resume" in _options(arguments[0]) and self.begun():
            arguments.append("--resume")
        return self._call(arguments)

    def _call(self, arguments: list[str]) -> int:
        argv = mock.patch.object(sys, "argv", ["uedp-ray", *arguments, "--json"])
        with argv, self.recorded(), self.played(), handlers_kept():
            try:
                cli.main()
            except SystemExit as end:
                return int(end.code or 0)
        return 0

    def played(self) -> Any:
        return nullcontext()

    @contextmanager
    def recorded(self) -> Iterator[None]:
        """Writes down every release, just before it is let out: run, sampling key, round and attempt."""
        admit, send, resume, round_ = RunDriver.admit, LocalReducer.from_driver, RunDriver.resume, []

        def resuming(driver: RunDriver) -> None:
            round_.clear()  # of a trial that an error ended before it let anything out
            resume(driver)

        def admitting(driver: RunDriver, round_index: int) -> int | None:
            attempt = admit(driver, round_index)
            if attempt is not None:
                key = hashlib.sha256(sampling_key(driver.run, driver.plan.config)).hexdigest()
                round_[:] = [[driver.run.root.name, key, round_index, attempt]]
            return attempt

        def sending(reducer: LocalReducer, vector: Any) -> Any:
            if vector.is_floating_point() and round_:  # parameters: what a round lets out of the driver
                handle = os.open(self.released, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
                os.write(handle, (json.dumps(round_.pop()) + "\n").encode())
                os.close(handle)
            return send(reducer, vector)

        with (
            mock.patch.multiple(RunDriver, admit=admitting, resume=resuming),
            mock.patch.object(LocalReducer, "from_driver", sending),
        ):
            yield

    def releases(self) -> list[tuple[Any, ...]]:
        lines = self.released.read_text().splitlines() if self.released.exists() else []
        return [tuple(json.loads(line)) for line in lines]

    def charged(self, run: Path) -> list[dict[str, Any]]:
        ledger = run / "ledger.jsonl"
        return [event for event in read_ledger(ledger) if "round" in event] if ledger.exists() else []

    def check_after_kill(self) -> None:
        """Nothing was released that is not charged, and no sample twice."""
        released = self.releases()
        for name, count in Counter(record[0] for record in released).items():
            (run,) = [run for run in self.runs() if run.name == name]
            events = self.charged(run)
            assert len(events) >= count, f"{name}: {count} releases, {len(events)} charged"
        if "test_noise_seed: 7" not in self.file.read_text():
            assert len(set(released)) == len(released), "a sample was released twice"

    def check_end(self) -> None:
        """As after a kill; every file parses, none is left over, what is private is its owner's."""
        self.check_after_kill()
        for path in self.work.rglob("*"):
            assert not path.name.endswith(_TEMPORARY), f"left over: {path.relative_to(self.work)}"
            if {"private", "corpora"} & set(path.relative_to(self.work).parts):
                kept = 0o700 if path.is_dir() else 0o600
                assert stat.S_IMODE(path.stat().st_mode) == kept, f"open to others: {path.relative_to(self.work)}"
            if path.suffix == ".lock":  # of a process that was killed: free, and without content
                assert path.stat().st_size == 0
            elif path.is_file():
                parse(path)

    def digest(self) -> dict[str, str]:
        """What a command that was interrupted shares with one that was not, by name."""
        return {
            str(path.relative_to(self.out)): hashlib.sha256(path.read_bytes()).hexdigest()
            for path in sorted(self.out.rglob("*"))
            if path.name in ("model.safetensors", "tokenizer.json", "corpus.json", "rounds.parquet", "offsets.npy")
        }


def _options(command: str) -> set[str]:
    return {"--resume"} if command in ("train", "compare", "sweep") else set()


def parse(path: Path) -> None:
    """Raises whatever is raised if a file is not what its name says."""
    content = path.read_bytes()
    match path.suffix:
        case ".json":
            json.loads(content)
        case ".jsonl" | ".journal":
            assert content.endswith(b"\n")
            for line in content.splitlines():
                json.loads(line)
        case ".yaml":
            yaml.safe_load(content)
        case ".parquet":
            pq.read_table(path)
        case ".npy":
            np.load(path, allow_pickle=False)
        case ".safetensors":
            load(content)
