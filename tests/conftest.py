"""Shared fixtures. Real corpora and models live outside the project and are looked up here, in one place."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

torch.set_num_threads(1)  # tiny tensors: threads cost more than they bring


def _shared(variable: str, folder: str) -> Path:
    return Path(os.environ.get(variable, Path(__file__).parents[2] / "shared" / folder))


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder of real corpora (``UEDP_DATA``, else ``../shared/data``)."""
    path = _shared("UEDP_DATA", "data")
    if not path.is_dir():
        pytest.skip(f"real corpora are not at {path} (set UEDP_DATA)")
    return path


@pytest.fixture(scope="session")
def real_models() -> Path:
    """The folder of small real models (``UEDP_MODELS``, else ``../shared/models``)."""
    path = _shared("UEDP_MODELS", "models")
    if not path.is_dir():
        pytest.skip(f"real models are not at {path} (set UEDP_MODELS)")
    return path
