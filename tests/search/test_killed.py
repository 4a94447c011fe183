"""Drivers and trials that are killed, by the system and by Ctrl-C, on Ray: nothing is lost, nothing is charged twice."""

from __future__ import annotations

import signal
import threading

import psutil

from tests.search.processes import charged, check_whole, command, ended, long_sweep, wait_until
from tests.search.sweeps import journal_states
from uedp_ray.search.sweep import sweep


def trials_of(driver):
    """The processes in which a driver's trials run."""
    return [process for process in driver.children(recursive=True) if "ImplicitFunc" in " ".join(process.cmdline())]


def test_a_driver_that_is_killed_and_then_interrupted_loses_nothing(corpora, tmp_path):
    path, out = long_sweep(corpora, tmp_path), tmp_path / "out"
    process = command(path, out)
    wait_until(
        lambda: len(charged(out)) >= 2 and max(charged(out).values()) > 20 if (out / "trials").exists() else False
    )
    running = trials_of(psutil.Process(process.pid))
    assert running
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert not psutil.wait_procs(running, timeout=60)[1]  # trials outlive their driver by a moment, and charge
    before = charged(out)
    assert "RUNNING" in journal_states(out)

    resumed = command(path, out, "--resume")
    wait_until(lambda: sum(charged(out).values()) > sum(before.values()))
    resumed.send_signal(signal.SIGINT)
    told, error = resumed.communicate(timeout=120)
    assert resumed.returncode == 130, error
    assert told == ""
    assert f"To continue: uedp-ray sweep {path} --out {out} --json --resume" in error
    assert "RUNNING" in journal_states(out)
    between = charged(out)

    check_whole(out, ended(command(path, out, "--resume")))
    assert all(charged(out)[name] >= count for name, count in (before | between).items())


def test_a_killed_trial_is_started_anew_from_its_checkpoint(corpora, tmp_path):
    path, out = long_sweep(corpora, tmp_path), tmp_path / "out"
    from uedp_ray.search.sweep_config import load_sweep_config

    killed = []

    def kill():
        wait_until(lambda: charged(out).get("0000", 0) > 25 if (out / "trials").exists() else False)
        killed.append(trials_of(psutil.Process())[0])
        killed[0].kill()

    thread = threading.Thread(target=kill)
    thread.start()
    answer = sweep(load_sweep_config(path), out)
    thread.join()
    assert killed
    check_whole(out, answer)
