"""Kills a command at the n-th thing it does to a file, and again while it resumes, and sees what is left.

    point = Point("train", event=17, torn=True, again=5)
    try_point(point, folder, expected)          # raises AssertionError with what was lost

A point costs a fork of this process, which has imported everything; events are counted by ``interpose.c``.
"""

from __future__ import annotations

import ctypes
import errno
import os
import random
import shutil
import signal
import subprocess
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path

from tests.crashes.command import Command
from tests.crashes.commands import COMMANDS

RECORD, KILL, TORN, FAIL, ONCE = range(5)
ERRORS = {"ENOSPC": errno.ENOSPC, "EROFS": errno.EROFS, "EMFILE": errno.EMFILE}
_TIMEOUT = 120


@dataclass(frozen=True)
class Point:
    """Where a command is cut off."""

    command: str
    event: int
    torn: bool = False
    """In the middle of a write instead of before an event."""
    again: int | None = None
    """The event of the resume at which it is killed as well."""
    error: str | None = None
    """Instead of a kill, the error that meets this and every later event."""
    once: bool = False
    """Whether the error meets that event alone; half of a write is done before."""
    other: bool = False
    """Whether another configuration is started after the kill: it takes the place of the first, or is refused."""

    @property
    def mode(self) -> int:
        if self.error:
            return ONCE if self.once else FAIL
        return TORN if self.torn else KILL


def preload(folder: Path) -> Path:
    """Compiles the interposer."""
    library = folder / "interpose.so"
    source = Path(__file__).with_name("interpose.c")
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", library, source, "-ldl"], check=True)
    return library


def warm_up(name: str, base: Path) -> None:
    """Runs a command in this process, so that those forked from it have imported everything."""
    command = COMMANDS[name](base)
    base.mkdir(parents=True)
    with (base / "output").open("w") as output, redirect_stdout(output), redirect_stderr(output):
        command.set_up()
        command.call()


def arm(folder: Path, event: int, mode: int, error: int = 0, record: int = -1) -> None:
    ctypes.CDLL(None).crash_arm(os.fsencode(folder), ctypes.c_long(event), mode, error, record)


def disarm() -> None:
    ctypes.CDLL(None).crash_disarm()


def record(name: str, base: Path) -> tuple[list[str], dict[str, str]]:
    """Runs a command undisturbed; returns its events (kind and path) and the digests of what it made."""
    command = COMMANDS[name](base)
    _in_child(command.set_up, base)
    log = base / "events"

    def run() -> int:
        handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        return _run(command, lambda: arm(command.work, 0, RECORD, 0, handle))

    status = _in_child(run, base)
    assert status == 0, f"{name} fails undisturbed: {(base / 'output').read_text()[-2000:]}"
    _in_child(command.check_end, base, must=True)
    return log.read_text().splitlines(), command.digest()


def try_point(point: Point, base: Path, expected: dict[str, str]) -> bool:
    """Raises: AssertionError if anything was lost. Returns whether the point was reached at all."""
    command = COMMANDS[point.command](base)
    command.once = point.once
    _in_child(command.set_up, base, must=True)
    error = ERRORS[point.error] if point.error else 0
    status = _in_child(lambda: _run(command, lambda: arm(command.work, point.event, point.mode, error)), base)
    reached = status == -signal.SIGKILL or point.error is not None or point.command == "sweep, its trial"
    if point.error:
        _told_in_one_line(base, status)
    else:
        assert status == -signal.SIGKILL or _ended(base, status), f"exit {status}: {_told(base)}"
    _in_child(command.check_after_kill, base, must=True)
    if point.again is not None:
        again = point.again
        status = _in_child(lambda: _run(command, lambda: arm(command.work, again, KILL)), base)
        assert status == -signal.SIGKILL or _ended(base, status), f"resume, exit {status}: {_told(base)}"
        _in_child(command.check_after_kill, base, must=True)
    node = base / "work" / "node"
    if node.exists() and point.event % 2:  # lost with the machine
        shutil.rmtree(node)
    if point.other and _took_the_place(command, base):
        return reached
    status = _in_child(lambda: _run(command, lambda: None), base)
    assert _ended(base, status), f"does not resume, exit {status}: {_told(base)}"
    _in_child(command.check_end, base, must=True)
    if command.comparable:
        found = command.digest()
        differing = [name for name in expected.keys() | found.keys() if expected.get(name) != found.get(name)]
        assert not differing, f"other than the uninterrupted one's: {differing}"
    return reached


def _took_the_place(command: Command, base: Path) -> bool:
    """Starts another configuration where the first was killed; whether it ran. If it was refused, the first must go on."""
    charged = {run: command.charged(run) for run in command.runs()}
    must = command.gives_way()
    status = _in_child(command.call_other, base)
    _told_in_one_line(base, status)
    assert status == 2 or _ended(base, status), f"another one, exit {status}: {_told(base)}"
    ran = status != 2
    assert ran or not must, f"what charged nothing is in the way: {_told(base)}"
    assert not (ran and any(charged.values())), "another one took the place of what was charged"
    _in_child(command.check_end if ran else command.check_after_kill, base, must=True)
    if not ran:
        assert charged == {run: command.charged(run) for run in command.runs()}, "a refused start touched a ledger"
    return ran


def points(
    events: dict[str, list[str]],
    number: int,
    seed: int = 0,
    *,
    errors: bool = False,
    once: bool = False,
    other: bool = False,
    at: str = "",
) -> list[Point]:
    """``number`` points spread evenly over the events of each command: some in two, some killed again while they resume.

    ``at``: only events of paths that hold this text.
    """
    draw, found = random.Random(seed), []
    for place, (name, log) in enumerate(events.items()):
        count = number * (place + 1) // len(events) - number * place // len(events)
        where = [event for event, each in enumerate(log, start=1) if at in each]
        count = count if where else 0
        for each in range(count):
            event = where[(each * len(where) + draw.randrange(len(where))) // count % len(where)]
            if errors:
                found.append(Point(name, event, error=draw.choice(sorted(ERRORS)), once=once))
                continue
            torn = log[event - 1].startswith("write") and draw.random() < 0.6
            again = draw.randrange(1, len(log)) if draw.random() < 0.35 else None
            found.append(Point(name, event, torn, again, other=other))
    return found


def kinds(events: list[str]) -> dict[str, int]:
    return dict(Counter(event.split()[0] for event in events))


def _run(command: Command, begin: Callable[[], None]) -> int:
    if hasattr(command, "arm_trial") and type(command).__name__ == "SweepTrial":
        command.arm_trial = begin
    else:
        begin()
    code = command.call()
    disarm()
    return code


def _told(base: Path) -> str:
    return (base / "output").read_text()[-2000:]


def _ended(base: Path, status: int) -> bool:
    """Whether a command came to its end; under a target, a round that was charged and lost is one that a model has less."""
    return status == 0 or (status == 1 and "used up the budget of the rest" in _told(base))


def _told_in_one_line(base: Path, status: int) -> None:
    output = (base / "output").read_text()
    assert status in (0, 1, 2), f"exit {status}: {output[-2000:]}"
    assert "Traceback" not in output, output[-3000:]
    if status:
        told = [line for line in output.splitlines() if line.startswith(("error: ", "failed: "))]
        assert len(told) == 1, output[-2000:]


def _in_child(action: Callable[[], object], base: Path, *, must: bool = False) -> int:
    """The exit code of a forked process that does it, or minus the signal; its output is in ``base/output``."""
    base.mkdir(parents=True, exist_ok=True)
    output = base / "output"
    output.write_bytes(b"")
    child = os.fork()
    if child == 0:
        handle = os.open(output, os.O_WRONLY | os.O_APPEND)
        os.dup2(handle, 1)
        os.dup2(handle, 2)
        code = 70
        try:
            code = int(action() or 0)  # type: ignore[call-overload]
        except BaseException:
            disarm()
            traceback.print_exc()
        finally:
            disarm()
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    give_up = time.monotonic() + _TIMEOUT
    while True:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            break
        if time.monotonic() > give_up:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            raise AssertionError(f"it hangs: {output.read_text()[-2000:]}")
        time.sleep(0.005)
    code = os.waitstatus_to_exitcode(status)
    if must:
        assert code == 0, output.read_text()[-3000:]
    return code
