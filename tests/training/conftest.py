"""Nodes that keep copies of what is at a URL."""

from __future__ import annotations

import pytest


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
