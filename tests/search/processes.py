"""A sweep in a process of its own, which tests kill and go on with."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time

import psutil

from tests.search.sweeps import journal_states, sweep_tree, write_sweep
from tests.training.runs import events
from uedp_ray.privacy.events import epsilon_of_events
from uedp_ray.privacy.ledger import read_ledger


def long_sweep(corpora, folder):
    """Trials that take a few seconds each, two at a time."""
    base = sweep_tree(corpora)["base"]
    base["training"] |= {"num_rounds": 60, "evaluate_every": 20, "checkpoint_every": 10}
    space = {"training.server_learning_rate": {"log_uniform": [0.001, 0.1]}}
    resources, budget = {"max_concurrent": 2}, {"covers": "answer"}
    tree = sweep_tree(corpora, base=base, space=space, search={"trials": 4}, resources=resources, budget=budget)
    return write_sweep(tree, folder)


def charged(out):
    """Rounds charged by trial."""
    trials = out / "trials"
    return {run.name: len(events(run)) for run in sorted(trials.glob("*")) if (run / "ledger.jsonl").exists()}


def wait_until(condition, seconds=180):
    give_up = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < give_up, "it never happened"
        time.sleep(0.2)


def check_whole(out, answer):
    """Four trials, none twice, ledgers whole, the study clean, the price of everything charged."""
    assert [row["trial"] for row in answer["trials"]] == ["0000", "0001", "0002", "0003"]
    assert answer["counts"]["done"] == 4
    assert journal_states(out) == ["COMPLETE"] * 4
    for name in charged(out):
        rounds = [event["round"] for event in events(out / "trials" / name)]
        assert set(rounds) == set(range(len(set(rounds))))
        assert epsilon_of_events(read_ledger(out / "trials" / name / "ledger.jsonl"), delta=1e-4) <= 8
    assert sum(row["charged"] for row in answer["trials"]) == sum(charged(out).values())
    totals = answer["best"]["epsilon_with_choice"], answer["selection"]["epsilon"]
    assert totals == (8.0, 8.0), "the budget, replays included"


def command(path, out, *more):
    environment = {key: value for key, value in os.environ.items() if key != "RAY_ADDRESS"}
    return subprocess.Popen(
        [sys.executable, "-m", "uedp_ray", "sweep", str(path), "--out", str(out), "--json", *more],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )


def trials_of(driver):
    """The processes in which a driver's trials run."""
    return [process for process in driver.children(recursive=True) if "ImplicitFunc" in " ".join(process.cmdline())]


def kill(process):
    """Kills a driver whose trials run. They outlive it by a moment, in which they charge."""
    running = trials_of(psutil.Process(process.pid))
    assert running
    process.kill()
    process.communicate()
    assert not psutil.wait_procs(running, timeout=60)[1]


def ended(process):
    """The answer of a command; if the best had to repeat rounds, it ended early, and the exit code says so."""
    told, error = process.communicate(timeout=300)
    assert process.returncode == int("failed: trial" in error and "ended after" in error), error
    return json.loads(told)
