"""Real processes that are told to end: while they import, compute, end, and while Ray works for them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import yaml

from tests.search.sweeps import sweep_tree
from tests.training.runs import run_tree

PARAMETERS = ("--q-u", "1", "--noise-multiplier", "1", "--rounds", "0")
KILL = "os.kill(os.getpid(), signal.{number})"
IMPORTED = """
class Interrupting:
    def find_spec(self, name, path, target=None):
        if name == "{name}":
            try:  # as some libraries guard an import
                exec("{kill}")
            except BaseException as error:
                raise ModuleNotFoundError(name) from error
sys.meta_path.insert(0, Interrupting())
"""
COMPUTED = """
module = sys.modules["uedp_ray.answers"] = types.ModuleType("uedp_ray.answers")
module.export_epsilon = module.ledger_epsilon = None
module.parameter_epsilon = lambda *_, **__: exec("{kill}")
"""
DROPPED = """
class Dropping:
    def __del__(self):  # as some compiled code, it drops what is raised in it
        {kill}
        time.sleep(9)
module = sys.modules["uedp_ray.answers"] = types.ModuleType("uedp_ray.answers")
module.export_epsilon = module.ledger_epsilon = None
module.parameter_epsilon = lambda *_, **__: (Dropping() and None, time.sleep(9))
"""
EXITING = """
atexit.register(lambda: {kill})
"""


@pytest.mark.parametrize(
    ("moment", "name", "number", "code"),
    [
        (IMPORTED, "typer", "SIGINT", 130),
        (IMPORTED, "scipy", "SIGTERM", 130),
        (COMPUTED, "", "SIGINT", 130),
        (DROPPED, "", "SIGTERM", 130),
        (EXITING, "", "SIGTERM", 0),
    ],
    ids=["imports of the start", "imports of a command", "compiled text", "where it is dropped", "exit"],
)
def test_a_signal_at_any_moment_ends_a_command_with_its_own_code(tmp_path, moment, name, number, code):
    """With 0 where the answer was written already."""
    started = "import atexit, os, signal, sys, time, types\n" + moment
    (tmp_path / "sitecustomize.py").write_text(started.format(name=name, kill=KILL.format(number=number)))
    path = os.pathsep.join([str(tmp_path), str(Path(__file__).parents[1])])
    command = [sys.executable, "-m", "uedp_ray", "epsilon", *PARAMETERS]
    done = subprocess.run(command, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True, timeout=60)
    assert done.returncode == code, done.stderr
    told = f"interrupted: nothing was released. To run it again: uedp-ray epsilon {' '.join(PARAMETERS)}\n"
    assert (done.stdout == "", done.stderr) == ((True, told) if code else (False, ""))


def test_an_interrupt_that_became_an_error_is_one_still(command, monkeypatch):
    def kill(*_, **__):
        try:
            os.kill(os.getpid(), signal.SIGINT)
        except KeyboardInterrupt:
            raise RuntimeError("initialization failed") from None

    monkeypatch.setattr("uedp_ray.answers.parameter_epsilon", kill)
    code, _, err = command("epsilon", *PARAMETERS)
    assert (code, err.split()[0]) == (130, "interrupted:")
    monkeypatch.undo()
    assert command("epsilon", *PARAMETERS)[0] == 0


STUCK = """
import ctypes, os, signal, sys, threading
import ray
from uedp_ray import interrupts
from uedp_ray.__main__ import main

interrupts._GONE = 1

def init(**_):
    threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGTERM)).start()
    lock, libc = ctypes.create_string_buffer(64), ctypes.CDLL(None)
    for _ in range(2):  # the second time for good, and no signal ends it
        libc.pthread_mutex_lock(lock)

ray.init = init
main()
"""


@pytest.mark.slow
def test_a_command_ends_where_ray_starts_and_cannot_be_reached(tmp_path):
    """As when its processes were ended by the same signal: no exception reaches what waits for them."""
    settings = ["--format", "synthetic", "--num-users", "9", "--workers", "2", "--out", str(tmp_path / "out")]
    command = [sys.executable, "-c", STUCK, "prepare", "", *settings]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 130, done.stderr
    assert done.stderr.splitlines()[-1].startswith(
        "interrupted: nothing was released. To run it again: uedp-ray prepare"
    )


CUT_OFF = """
import time
import psutil, ray
from uedp_ray import interrupts

interrupts._LOST = 2
interrupts.hold()
interrupts.like_ctrl_c(lambda: 130)
with interrupts.kept_apart():
    with interrupts.ray_started(lambda: ray.init(address="local", num_cpus=1, include_dashboard=False)):
        (raylet,) = (each for each in psutil.Process().children() if each.name() == "raylet")
        raylet.kill()
        time.sleep(60)  # as who waits for a trial
"""


@pytest.mark.slow
def test_where_this_machines_part_of_ray_ends_nothing_waits_for_it():
    done = subprocess.run([sys.executable, "-c", CUT_OFF], capture_output=True, text=True, timeout=60)
    told = "RuntimeError: Ray ended on this machine (its raylet): see its logs, and continue with --resume"
    assert told in done.stderr.splitlines(), done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "number", "kill"),
    [
        ("train", signal.SIGHUP, os.kill),
        ("sweep", signal.SIGTERM, os.killpg),
    ],
    ids=["train", "sweep, with Ray"],
)
def test_a_command_told_to_end_under_ray_says_how_to_go_on(corpora, tmp_path, kind, number, kill):
    """By itself, or with all processes of Ray, as a closed terminal, ``timeout``, Slurm and systemd do it."""
    endless = {"num_rounds": 20_000, "device": "cpu", "evaluate_every": 100, "checkpoint_every": 100}
    base = run_tree(corpora, training=endless)
    base["privacy"] |= {"noise_multiplier": 500.0}  # so many rounds are not worth an accountant's time
    tree, flags = base, ["--workers", "1"]
    if kind == "sweep":
        flags, budget = [], {"noise": "free", "target_epsilon": 50}
        space, alone = {"training.server_learning_rate": {"choice": [0.1, 0.2]}}, {"max_concurrent": 1}
        tree = sweep_tree(corpora, budget=budget, space=space, resources=alone)
        tree["base"] |= {"training": endless, "privacy": {"noise_multiplier": 500.0}}
    path, out = tmp_path / f"{kind}.yaml", tmp_path / "out"
    path.write_text(yaml.safe_dump(tree))
    log = tmp_path / "log"
    with log.open("w") as told:
        process = subprocess.Popen(
            [sys.executable, "-m", "uedp_ray", kind, str(path), *flags, "--out", str(out)],
            stderr=told,
            start_new_session=True,
        )
        deadline = time.monotonic() + 300
        rounds = {"train": "ledger.jsonl", "sweep": "trials/*/ledger.jsonl"}[kind]
        while not any('"kind":"round"' in ledger.read_text() for ledger in out.glob(rounds)):
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.5)
        children = psutil.Process(process.pid).children(recursive=True)
        assert children
        kill(process.pid, number)
        assert process.wait(50) == 130, log.read_text()
    assert log.read_text().splitlines()[-1].endswith(f"--out {out} --resume")
    assert "Traceback" not in log.read_text()
    _, alive = psutil.wait_procs(children, timeout=60)
    assert not alive
