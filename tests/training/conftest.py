"""A run that stopped."""

from __future__ import annotations

import pytest

from tests.training.runs import crash, run_config


@pytest.fixture
def crashed(corpora, tmp_path):
    """A private run with a checkpoint of round 2 and charges up to round 3."""
    out = tmp_path / "run"
    crash(run_config(corpora), out, charges=4)
    return out
