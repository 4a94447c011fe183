"""A trial and then the driver of a search on Ray are killed: nothing is lost, nothing is charged twice."""

from __future__ import annotations

import psutil

from tests.search.processes import charged, check_whole, command, ended, kill, long_sweep, trials_of, wait_until
from tests.search.sweeps import journal_states, table


def test_a_killed_trial_and_then_a_killed_driver_lose_nothing(corpora, tmp_path):
    """In one sweep, as each start of Ray takes longer than its trials. How a signal ends one is in ``test_interrupts``."""
    path, out = long_sweep(corpora, tmp_path), tmp_path / "out"
    process = command(path, out)
    wait_until(lambda: (out / "trials").exists() and sum(charged(out).values()) > 5)
    trial = trials_of(psutil.Process(process.pid))[0]  # whichever: both have rounds left
    trial.kill()
    before = charged(out)
    wait_until(lambda: len(charged(out)) >= 2 and sum(charged(out).values()) > sum(before.values()) + 20)
    kill(process)
    between = charged(out)
    assert "RUNNING" in journal_states(out)

    check_whole(out, ended(command(path, out, "--resume")))
    rows = table(out)
    assert any(row["resumed"] is not None for row in rows)
    assert all(
        row["resumed"] is None or row["started"] < row["resumed"] < row["started"] + row["seconds"] for row in rows
    )
    assert all(charged(out)[name] >= count for name, count in (before | between).items())
