"""A sweep's folder before anything is in it."""

from __future__ import annotations

import pytest

from uedp_ray.search.layout import SweepDir
from uedp_ray.storage.files import make_folder


@pytest.fixture
def folder(tmp_path):
    out = SweepDir(tmp_path / "out")
    make_folder(out.private, private=True)
    return out
