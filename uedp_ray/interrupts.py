"""SIGTERM and SIGHUP end a command as Ctrl-C does: a cluster's time limit or a closed terminal loses nothing.

like_ctrl_c()                                   # in the main thread of a command
with handlers_kept(): ray.init()                # Ray would put its own in their place
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_ENDING = (signal.SIGTERM, signal.SIGHUP)


def like_ctrl_c() -> None:
    """Lets SIGTERM and SIGHUP do what SIGINT does at the time; one that is ignored, as under nohup, stays ignored."""
    for number in _ENDING:
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, _interrupt)


def ignore() -> None:
    """From here on nothing ends the process but its own end: SIGINT, SIGTERM and SIGHUP are ignored."""
    for number in (signal.SIGINT, *_ENDING):
        signal.signal(number, signal.SIG_IGN)


def _interrupt(number: int, frame: FrameType | None) -> None:
    handler = signal.getsignal(signal.SIGINT)  # Ray Train and Tune put theirs there while they run
    if not callable(handler):  # shells start what runs in the background with SIGINT ignored
        raise KeyboardInterrupt
    handler(signal.SIGINT, frame)


@contextmanager
def handlers_kept() -> Iterator[None]:
    """What the block does to the handlers of SIGINT, SIGTERM and SIGHUP is undone at its end.

    Raises: KeyboardInterrupt for the SystemExit by which Ray's own handler answers SIGTERM.
    """
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, *_ENDING)}
    try:
        yield
    except SystemExit:
        raise KeyboardInterrupt from None
    finally:
        if threading.current_thread() is threading.main_thread():
            for number, handler in before.items():
                signal.signal(number, handler)
