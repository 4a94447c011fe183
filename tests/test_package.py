"""What is handed to others: a wheel and a source archive that hold what the package reads and what its docs name."""

from __future__ import annotations

import ast
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[1]
BUILD = (
    "from setuptools import build_meta; print(build_meta.build_sdist('built')); print(build_meta.build_wheel('built'))"
)


@pytest.mark.parametrize("name", sorted(path.stem for path in (ROOT / "benchmarks").glob("*.py")))
def test_benchmarks_start(name, monkeypatch):
    """They are cited for figures: what they import must still be there, and everything they name."""
    path = ROOT / "benchmarks" / f"{name}.py"
    monkeypatch.syspath_prepend(path.parent)  # as for a script
    spec = importlib.util.spec_from_file_location(f"benchmarks_{name}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert callable(module.main)
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            owner = vars(module).get(node.value.id)
            assert not isinstance(owner, ModuleType) or hasattr(owner, node.attr), f"{node.value.id}.{node.attr}"


@pytest.mark.slow
def test_methods_whose_rounds_are_timed_compute_the_same():
    """Ours and those that need no library of others; theirs, too, where it is installed."""
    command = [sys.executable, ROOT / "benchmarks" / "rounds.py", "--check"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert {"by hand", "ours, local_sgd", "vmap(grad)", "ours, gradient"} <= {
        line[:22].strip() for line in done.stdout.splitlines()
    }


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
    for folder in ("sweeps", "sweeps/paper", "cluster"):
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


def test_make_removes_no_run(tmp_path):
    """``make clean`` removed ``runs/``, where every command writes by default, and the quickstart ``OUT``."""
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path)
    for name in (".venv/bin/python", "build/docs/index.html", "runs/mine/ledger.jsonl"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text("")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    environment |= {"VENV": str(tmp_path / "runs"), "OUT": str(tmp_path / "runs")}
    plan = subprocess.run(["make", "-n", "quickstart"], cwd=tmp_path, capture_output=True, text=True, env=environment)
    assert " sweep " in plan.stdout
    assert not re.search(r"\brm\b", plan.stdout)
    subprocess.run(["make", "clean"], cwd=tmp_path, check=True, capture_output=True, env=environment)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["Makefile", "constraints.txt", "pyproject.toml", "runs"]
    assert (tmp_path / "runs/mine/ledger.jsonl").exists()
