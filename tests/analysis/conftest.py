"""Sweeps that many tests read; none may write into them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.analysis.sweeps import write_sweep


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve trials of one seed, chosen by composition."""
    return write_sweep(tmp_path_factory.mktemp("sweeps") / "small")


@pytest.fixture(scope="session")
def seeded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve trials of two seeds each, without a noiseless reference."""
    return write_sweep(tmp_path_factory.mktemp("sweeps") / "seeded", seeds=2, noiseless=False)


@pytest.fixture(scope="session")
def other_delta(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_sweep(tmp_path_factory.mktemp("sweeps") / "other", trials=3, delta=1e-6)


@pytest.fixture(scope="session")
def private(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Chosen by repeat_and_select: the page about it is private."""
    return write_sweep(tmp_path_factory.mktemp("sweeps") / "private", trials=3, rule="repeat_and_select")
