"""A run with fixed noise, to compare others with, and nodes that keep copies of what is at a URL."""

from __future__ import annotations

import pytest

from tests.training.runs import TEST_NOISE, TREE, run_config
from uedp_ray.training.host import train


@pytest.fixture(scope="module")
def fixed(corpora):
    return run_config(corpora, privacy={**TREE["privacy"], **TEST_NOISE})


@pytest.fixture(scope="module")
def uninterrupted(fixed, tmp_path_factory):
    out = tmp_path_factory.mktemp("uninterrupted") / "run"
    return out, train(fixed, out, workers=0)


@pytest.fixture
def node(tmp_path, monkeypatch):
    """Makes this process one of another node, with nothing of what others kept: called with a name, or on its own."""

    def become(name="a"):
        monkeypatch.setenv("UEDP_RAY_WORK", str(tmp_path / "nodes" / name))
        return tmp_path / "nodes" / name

    become()
    return become


@pytest.fixture
def url(tmp_path):
    return f"file://{tmp_path}/bucket/run"
