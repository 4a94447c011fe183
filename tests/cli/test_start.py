"""What stands between a command and its first output: modules that it does not need, and the search for garbage."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.analysis.sweeps import write_sweep
from tests.cli.files import written
from tests.training.runs import run_tree

TOLD = """
import atexit, gc, json, sys
def told():
    loaded = sorted({name.split(".")[0] for name in sys.modules})
    return loaded, gc.get_stats()[0]["collections"], gc.get_freeze_count(), len(gc.get_objects())
atexit.register(lambda: print(json.dumps(told()), file=sys.stderr))
from uedp_ray.__main__ import main
main()
"""
ROUNDS = ("--q-u", 0.01, "--noise-multiplier", 1, "--rounds", 10)
NETWORKS = {"torch", "transformers", "ray"}
TABLES = {"optuna", "pyarrow", "pandas", "matplotlib", *NETWORKS}
NUMBERS = {"numpy", "scipy", "dp_accounting", *TABLES}


def ended(*argv):
    """Runs a command. Returns the modules that it loaded, how often Python looked for garbage, and how many objects it will
    not and will look through as the process ends."""
    done = subprocess.run([sys.executable, "-c", TOLD, *map(str, argv)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[:500]
    modules, *counts = json.loads(done.stderr.splitlines()[-1])
    return set(modules), *counts


@pytest.mark.parametrize(
    ("argv", "spared"),
    [
        (("--help",), NUMBERS),
        (("--version",), NUMBERS),
        (("methods",), NUMBERS),
        (("epsilon", *ROUNDS), TABLES),
        (("calibrate", "--target-epsilon", 8, "--q-u", 0.01, "--rounds", 10, "--max-holders", 3), TABLES),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_a_command_loads_only_what_its_answer_needs(argv, spared):
    assert not spared & ended(*argv)[0]


def test_a_plan_loads_no_network(tmp_path):
    file = written(tmp_path, run_tree(tmp_path))  # whose text need not be there
    assert not {"transformers", "ray"} & ended("plan", file, "--trials", 2)[0]


@pytest.mark.whole
def test_a_page_loads_no_network(tmp_path):
    assert not NETWORKS & ended("report", write_sweep(tmp_path / "sweep"))[0]


def test_text_is_prepared_without_networks(tmp_path):
    text = ("prepare", "", "--format", "synthetic", "--num-users", 5)
    assert not NETWORKS & ended(*text, "--out", tmp_path / "prepared")[0]


def test_a_run_in_one_process_loads_no_ray(tmp_path, corpora):
    file = written(tmp_path, run_tree(corpora, training={"num_rounds": 1, "device": "cpu"}))
    assert "ray" not in ended("train", file, "--workers", 0, "--out", tmp_path / "run")[0]


def test_garbage_is_seldom_looked_for():
    """It is not while modules are loaded, which leaves none, nor as the process ends: a sixth of the command's time."""
    _, times, left, looked_through = ended("epsilon", *ROUNDS)
    assert times < 100  # a quarter of a thousand objects each made it 242
    assert left > 100 * looked_through
