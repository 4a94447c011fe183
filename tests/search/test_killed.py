"""Drivers and trials that are killed, by the system and by Ctrl-C, on Ray: nothing is lost, nothing is charged twice."""

from __future__ import annotations

import signal

import psutil

from tests.search.processes import charged, check_whole, command, ended, kill, long_sweep, trials_of, wait_until
from tests.search.sweeps import journal_states, table


def test_a_driver_killed_then_interrupted_and_then_a_killed_trial_lose_nothing(corpora, tmp_path):
    """In one sweep, as each start of Ray takes longer than its trials."""
    path, out = long_sweep(corpora, tmp_path), tmp_path / "out"
    process = command(path, out)
    wait_until(
        lambda: len(charged(out)) >= 2 and max(charged(out).values()) > 20 if (out / "trials").exists() else False
    )
    kill(process)
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

    resumed = command(path, out, "--resume")
    wait_until(lambda: sum(charged(out).values()) > sum(between.values()) + 5)
    trial = trials_of(psutil.Process(resumed.pid))[0]  # whichever: both have rounds left
    trial.kill()
    check_whole(out, ended(resumed))
    rows = table(out)
    assert any(row["resumed"] is not None for row in rows)
    assert all(
        row["resumed"] is None or row["started"] < row["resumed"] < row["started"] + row["seconds"] for row in rows
    )
    assert all(charged(out)[name] >= count for name, count in (before | between).items())
