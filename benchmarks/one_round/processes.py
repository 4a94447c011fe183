"""What a process takes together with those that it has started."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator

import psutil


def cpu_seconds() -> float:
    """Of this process and its family."""
    others = (each.cpu_times() for each in psutil.Process().children(recursive=True))
    return time.process_time() + sum(each.user + each.system for each in others)


def resident(pid: int) -> float:
    """MiB of a process and its family now; of a page that several share, each has its part."""
    total, first = 0.0, psutil.Process(pid)
    for each in [first, *first.children(recursive=True)]:
        with contextlib.suppress(psutil.NoSuchProcess):
            total += each.memory_full_info().pss / 2**20
    return total


@contextlib.contextmanager
def watched(pid: int) -> Iterator[list[float]]:
    """A list that has the most memory of a process and its family, as seen five times a second."""
    done, most = threading.Event(), [0.0]

    def look() -> None:
        while not done.wait(0.2):
            most[0] = max(most[0], resident(pid))

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield most
    finally:
        done.set()
        thread.join()
