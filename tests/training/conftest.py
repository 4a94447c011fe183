"""A run that stopped, and one that was exported."""

from __future__ import annotations

import pytest

from tests.training.runs import crash, run_config
from uedp_ray import export


@pytest.fixture
def crashed(corpora, tmp_path):
    """A private run with a checkpoint of round 2 and charges up to round 3."""
    out = tmp_path / "run"
    crash(run_config(corpora), out, charges=4)
    return out


@pytest.fixture(scope="module")
def exported(private_run, tmp_path_factory):
    out = tmp_path_factory.mktemp("exported") / "out"
    return out, export(private_run.out, out)
