"""Whole runs small enough to repeat: their config, and starts that are cut off."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from safetensors.torch import load_file

from uedp_ray.config import RunConfig, from_dict
from uedp_ray.storage.files import replacing
from uedp_ray.training.driver import RunDriver
from uedp_ray.training.host import train

NUM_USERS = 30
TREE: dict[str, Any] = {
    "name": "tiny",
    "corpus": {"declared_num_users": NUM_USERS, "declared_num_tokens": 5000},
    "vocabulary": {"public_text": [{"format": "synthetic", "num_users": 20, "part": "public"}], "max_size": 250},
    "privacy": {"noise_multiplier": 1.0, "user_sampling_prob": 0.3, "delta": 1e-4},
    "bounds": {"max_holders": 3},
    "model": {"num_layers": 1, "hidden_size": 8, "num_heads": 2, "max_length": 12},
    "training": {"num_rounds": 5, "evaluate_every": 2, "checkpoint_every": 2, "device": "cpu"},
}
TEST_NOISE = {"test_noise_seed": 7}


def run_tree(corpora: Path, **sections: Any) -> dict[str, Any]:
    """The YAML tree of a run on the prepared corpora; sections overlay it."""
    tree = copy.deepcopy(TREE)
    tree["corpus"]["source"] = {"path": str(corpora / "private")}
    tree["corpus"]["evaluation"] = {"path": str(corpora / "held_out")}
    for name, section in sections.items():
        tree[name] = {**tree.get(name, {}), **section} if isinstance(section, dict) else section
    return tree


def run_config(corpora: Path, **sections: Any) -> RunConfig:
    return from_dict(RunConfig, run_tree(corpora, **sections))


def parameters(run: Path) -> torch.Tensor:
    """The flat parameters of the last checkpoint."""
    state = json.loads((run / "checkpoint" / "state.json").read_text())
    return load_file(run / "checkpoint" / state["tensors"])["parameters"]


def events(run: Path, kind: str = "round") -> list[dict[str, Any]]:
    lines = (run / "ledger.jsonl").read_text().splitlines()
    return [event for event in map(json.loads, lines) if event["kind"] == kind]


class Crash(BaseException):
    """The end of a process, as far as one process can play it: nothing but ``finally`` runs."""


def crash(config: RunConfig, out: Path | str, *, charges: int, resume: bool = False, **asked: Any) -> None:
    """Trains in this process until it has charged for so many rounds, and ends before it lets the last one out.

    Kills at any moment, of real processes, are ``tests.crashes``'.
    """
    charge, made = RunDriver.charge, [0]

    def charging(driver: RunDriver, *arguments: Any) -> None:
        charge(driver, *arguments)
        made[0] += 1
        if made[0] == charges:
            raise Crash

    with mock.patch.object(RunDriver, "charge", charging), pytest.raises(Crash):
        train(config, out, workers=0, resume=resume, **asked)


def crash_amid_its_words(config: RunConfig, out: Path | str) -> None:
    """Trains until it has charged for a vocabulary of the private text, and ends before that leaves ``private/``."""

    def replaced(path: Path, **settings: Any) -> Any:
        if path.name == "vocabulary" and path.parent.name != "private":
            raise Crash
        return replacing(path, **settings)

    with mock.patch("uedp_ray.training.setup.replacing", replaced), pytest.raises(Crash):
        train(config, out, workers=0)


def content(folder):
    """Every file below, and what was written to it last."""
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
