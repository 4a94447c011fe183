"""What a process takes together with those that it has started."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator

import psutil


def family(pid: int | None = None) -> list[psutil.Process]:
    """A process, by default this one, and all below it."""
    first = psutil.Process(pid)
    return [first, *first.children(recursive=True)]


def cpu_seconds(process: psutil.Process) -> float:
    """User and system; 0 of one that has ended."""
    with contextlib.suppress(psutil.NoSuchProcess):
        used = process.cpu_times()
        return float(used.user + used.system)
    return 0.0


@contextlib.contextmanager
def _often(look: Callable[[], None], every: float) -> Iterator[None]:
    """Looks every so many seconds, in a thread. What ends after the last look at it is missed."""
    done = threading.Event()

    def run() -> None:
        while not done.wait(every):
            with contextlib.suppress(psutil.NoSuchProcess):
                look()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


@contextlib.contextmanager
def cpu_of_family(pid: int | None = None, every: float = 0.5) -> Iterator[dict[psutil.Process, tuple[str, float]]]:
    """By process, its name and CPU seconds when it was seen last, also of those that have ended since. A worker of Ray that
    waits keeps the name of what it did."""
    seen: dict[psutil.Process, tuple[str, float]] = {}

    def look() -> None:
        for each in family(pid):
            with contextlib.suppress(psutil.NoSuchProcess):
                name = each.name()
                seen[each] = seen[each][0] if each in seen and name == "ray::IDLE" else name, cpu_seconds(each)

    with _often(look, every):
        yield seen


@contextlib.contextmanager
def memory_of_family(pid: int, every: float = 0.2) -> Iterator[list[float]]:
    """A list that has the most MiB at once; of a page that several share, each process has its part."""
    most = [0.0]

    def look() -> None:
        total = 0.0
        for each in family(pid):
            with contextlib.suppress(psutil.NoSuchProcess):
                total += each.memory_full_info().pss / 2**20
        most[0] = max(most[0], total)

    with _often(look, every):
        yield most
