"""Sweeps that run in the test's own process."""

from __future__ import annotations

import pytest

from tests.crashes.commands import Sweep


@pytest.fixture
def here(tmp_path):
    """Trials run in this process: what a sweep says and charges is the same, in a tenth of the time."""
    with Sweep(tmp_path / "here").played():
        yield
