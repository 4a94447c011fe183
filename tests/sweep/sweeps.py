"""Sweeps small enough to repeat."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import yaml

from tests.training.runs import run_tree
from uedp_ray.sweep.config import SweepConfig, load_sweep_config

SPACE: dict[str, Any] = {
    "privacy.user_sampling_prob": {"uniform": [0.2, 0.6]},
    "training.num_rounds": {"integer": [2, 4]},
    "training.server_learning_rate": {"log_uniform": [0.001, 0.1]},
}
PRETRAIN = {"text": [{"format": "synthetic", "num_users": 8, "part": "public"}], "num_steps": 20, "batch_size": 8}


def sweep_tree(corpora: Path, **sections: Any) -> dict[str, Any]:
    """The YAML tree of a sweep on the prepared corpora; sections overlay it."""
    base = run_tree(corpora)
    base["privacy"] = {"user_sampling_prob": 0.3}
    tree = {
        "base": base,
        "space": copy.deepcopy(SPACE),
        "budget": {"target_epsilon": 8.0, "delta": 1e-4},
        "search": {"searcher": "tpe", "trials": 3},
    }
    for name, section in sections.items():
        tree[name] = section if name == "space" else {**tree.get(name, {}), **section}
    return tree


def write_sweep(tree: dict[str, Any], folder: Path) -> Path:
    path = folder / "sweep.yaml"
    path.write_text(yaml.safe_dump(tree, sort_keys=False))
    return path


def sweep_config(corpora: Path, folder: Path, **sections: Any) -> SweepConfig:
    return load_sweep_config(write_sweep(sweep_tree(corpora, **sections), folder))
