"""Real processes that are told to end while Ray works for them: they end as on Ctrl-C, and leave no process behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import psutil
import pytest
import yaml

from tests.sweep.sweeps import sweep_tree
from tests.training.runs import run_tree


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "number"), [("train", signal.SIGTERM), ("sweep", signal.SIGHUP)])
def test_a_command_told_to_end_under_ray_says_how_to_go_on(corpora, tmp_path, kind, number):
    endless = {"num_rounds": 20_000, "device": "cpu", "evaluate_every": 100, "checkpoint_every": 100}
    base = run_tree(corpora, training=endless)
    base["privacy"] |= {"noise_multiplier": 500.0}  # so many rounds are not worth an accountant's time
    tree, flags = base, ["--workers", "1"]
    if kind == "sweep":
        flags, budget = [], {"noise": "free", "target_epsilon": 50}
        tree = sweep_tree(corpora, budget=budget, space={"training.server_learning_rate": {"choice": [0.1, 0.2]}})
        tree["base"] |= {"training": endless, "privacy": {"noise_multiplier": 500.0}}
    path, out = tmp_path / f"{kind}.yaml", tmp_path / "out"
    path.write_text(yaml.safe_dump(tree))
    log = tmp_path / "log"
    with log.open("w") as told:
        process = subprocess.Popen(
            [sys.executable, "-m", "uedp_ray", kind, str(path), *flags, "--out", str(out)], stderr=told, text=True
        )
        deadline = time.monotonic() + 300
        rounds = {"train": "ledger.jsonl", "sweep": "trials/*/ledger.jsonl"}[kind]
        while not any('"kind":"round"' in ledger.read_text() for ledger in out.glob(rounds)):
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.5)
        children = psutil.Process(process.pid).children(recursive=True)
        assert children
        os.kill(process.pid, number)
        assert process.wait(120) == 130, log.read_text()
    assert log.read_text().splitlines()[-1].endswith(f"--out {out} --resume")
    assert "Traceback" not in log.read_text()
    _, alive = psutil.wait_procs(children, timeout=60)
    assert not alive
