"""Runs that were finished under fixed noise, and that stopped."""

from __future__ import annotations

import pytest

from tests.training import runs
from tests.training.runs import TEST_NOISE, crash, run_config
from uedp_ray.training.host import train


@pytest.fixture(scope="module")
def fixed(corpora):
    return run_config(corpora, privacy={**runs.TREE["privacy"], **TEST_NOISE})


@pytest.fixture(scope="module")
def uninterrupted(fixed, tmp_path_factory):
    out = tmp_path_factory.mktemp("uninterrupted") / "run"
    train(fixed, out, workers=0)
    return out


@pytest.fixture
def crashed(corpora, tmp_path):
    """A private run with a checkpoint of round 2 and charges up to round 3."""
    out = tmp_path / "run"
    crash(run_config(corpora), out, charges=4)
    return out
