"""What is handed to others: a wheel and a source archive that hold what the package reads and what its docs name."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
BUILD = (
    "from setuptools import build_meta; print(build_meta.build_sdist('built')); print(build_meta.build_wheel('built'))"
)


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    pytest.importorskip("setuptools", minversion="77", reason="the build backend is not installed here")
    source = tmp_path_factory.mktemp("source") / "uedp_ray"
    kept_out = shutil.ignore_patterns(".*", "runs", "build", "*.egg-info", "__pycache__")
    shutil.copytree(ROOT, source, ignore=kept_out)
    done = subprocess.run([sys.executable, "-c", BUILD], cwd=source, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    return source / "built"


def test_the_source_archive_holds_the_tests_the_recipes_and_the_docs(built):
    (archive,) = built.glob("*.tar.gz")
    with tarfile.open(archive) as found:
        names = {name.partition("/")[2] for name in found.getnames()}
    for folder in ("sweeps", "cluster", "docs", "tests", "notebooks", "benchmarks"):
        here = {str(path.relative_to(ROOT)) for path in (ROOT / folder).glob("*.*") if path.is_file()}
        assert here <= names, folder
    assert {"LICENSE", "CITATION.cff", "Makefile", "constraints.txt"} <= names


def test_the_wheel_runs_from_any_folder_and_brings_the_recipes(built, tmp_path):
    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as found:
        found.extractall(tmp_path / "installed")
    installed = tmp_path / "installed"
    for folder in ("sweeps", "cluster"):
        (shared,) = installed.glob(f"*.data/data/share/uedp_ray/{folder}")
        assert sorted(path.name for path in shared.iterdir()) == sorted(path.name for path in (ROOT / folder).iterdir())
    for path in (ROOT / "uedp_ray").rglob("*"):
        if path.is_file() and path.suffix != ".pyc":
            assert (installed / path.relative_to(ROOT)).exists(), path
    done = subprocess.run(
        [sys.executable, "-m", "uedp_ray", "--version"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(installed)},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.strip().endswith("0.1.0")
