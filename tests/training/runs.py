"""Whole runs small enough to repeat: their config, and processes that die at a chosen moment."""

from __future__ import annotations

import copy
import json
import multiprocessing
import os
import signal
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from uedp_ray.config import RunConfig, from_dict, to_dict
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


def kill_now() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def crash_now() -> None:
    raise Crash


def die(
    where: str,
    nth: int,
    after: bool,
    *,
    kill: Callable[[], None] = kill_now,
    set_attribute: Callable[[Any, str, Any], None] = setattr,
) -> None:
    """Makes this process end at the ``nth`` call of ``module:attribute.attribute`` (before it, or after)."""
    module, _, path = where.partition(":")
    owner: Any = import_module(module)
    *parents, name = path.split(".")
    for parent in parents:
        owner = getattr(owner, parent)
    original, calls = getattr(owner, name), [0]

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        calls[0] += 1
        if calls[0] == nth and not after:
            kill()
        answer = original(*args, **kwargs)
        if calls[0] == nth:
            kill()
        return answer

    set_attribute(owner, name, wrapped)


def _doomed(tree: dict[str, Any], out: Path, resume: bool, where: str, nth: int, after: bool) -> None:
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    torch.set_num_threads(1)
    die(where, nth, after)
    train(from_dict(RunConfig, tree), out, workers=0, resume=resume)


def train_until_killed(
    config: RunConfig, out: Path, where: str, *, nth: int = 1, after: bool = False, resume: bool = False
) -> None:
    """Trains in a process that is really killed (SIGKILL) at a call; fails if the call is never made."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__, "uedp_ray.training.host", "uedp_ray.training.worker"])
    process = context.Process(target=_doomed, args=(to_dict(config), out, resume, where, nth, after))
    process.start()
    process.join(120)
    assert process.exitcode == -signal.SIGKILL, f"{where} was not called {nth} times (exit {process.exitcode})"
