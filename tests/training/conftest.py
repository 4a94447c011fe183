"""One pre-trained model and one finished private run for all tests of training."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.training.runs import run_config
from uedp_ray.training.host import train
from uedp_ray.training.pretrain import pretrain


@dataclass(frozen=True)
class Done:
    """A finished run: where it is, and what it returned."""

    out: Path
    result: dict[str, Any]


@pytest.fixture(scope="session")
def pretrained(corpora: Path, tmp_path_factory: pytest.TempPathFactory) -> Done:
    out = tmp_path_factory.mktemp("pretrained") / "out"
    text = [{"format": "synthetic", "num_users": 60, "part": "public"}]
    config = run_config(corpora, pretrain={"text": text, "num_steps": 40, "batch_size": 16, "learning_rate": 0.02})
    return Done(out, pretrain(config, out))


@pytest.fixture(scope="session")
def private_run(corpora: Path, tmp_path_factory: pytest.TempPathFactory) -> Done:
    """A run with calibrated noise, secret keys and no fault."""
    out = tmp_path_factory.mktemp("private_run") / "run"
    return Done(out, train(run_config(corpora), out, workers=0))
