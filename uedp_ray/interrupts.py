"""SIGTERM and SIGHUP end a command as Ctrl-C does: a cluster's time limit or a closed terminal loses nothing.

Example:

    hold()                                          # first of all: records interrupts
    like_ctrl_c(ended)                              # in a command's main thread, where KeyboardInterrupt is handled
    with kept_apart(): command()                    # turns a library's error back into the interrupt that caused it
    with handlers_kept(): trainer.fit()             # Ray would install its own handlers
    with deferred(): command()                      # an interrupt waits for the end of what it must not cut off
    with ray_started(ray.init) as address: work()   # nor does Ray delay the exit if it was killed as well
"""

from __future__ import annotations

import math
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import CodeType, FrameType
from typing import Any

_ENDING = (signal.SIGTERM, signal.SIGHUP)
_PATIENCE = 3.0
"""Seconds from the first interrupt after which the next no longer waits for an import to end."""
_AT_ONCE = 0.5
"""Seconds after an interrupt in which others are the same: of a key that was held, or of a terminal and a wrapper."""
_otherwise: Callable[[Any], Any] = sys.unraisablehook
"""What is done with other exceptions that Python drops."""
_MOMENT = 0.05
"""Seconds after which an interrupt that was dropped is tried again."""
_raised = -math.inf
"""When the last interrupt was raised."""
_noted: list[float] = []
"""Times of interrupts that have not ended the command yet."""
_GONE = 5
"""Seconds without Ray after which it will not come back. In an orderly shutdown its last processes need less."""
_LOST = 30
"""The same if nobody interrupted it: much of the work in progress may still finish."""
_ended: Callable[[], int] | None = None
"""Reports that the command was interrupted; returns its exit code."""
_heard: tuple[socket.socket, socket.socket] | None = None
"""The numbers of received signals can be read from the first, even while the main thread runs no Python code."""
_command: CodeType | None = None
"""The caller of ``like_ctrl_c``. Imports that it is itself part of are no reason to wait."""


def hold() -> None:
    """Records SIGINT, SIGTERM and SIGHUP until ``like_ctrl_c``; one that is ignored, as under nohup, stays ignored.

    Before this call, while Python itself starts, a signal acts as in any Python program.
    """
    _take(lambda number, frame: _noted.append(time.monotonic()))


def like_ctrl_c(ended: Callable[[], int]) -> None:
    """Makes SIGTERM and SIGHUP do what SIGINT does at the time; one that is ignored, as under nohup, stays ignored.

    ``ended``, for ``ray_started``, reports that the command was interrupted and returns its exit code.
    Raises: KeyboardInterrupt if one came since ``hold``.
    """
    global _command, _ended, _heard, _otherwise
    _command, _ended, _heard = sys._getframe(1).f_code, ended, socket.socketpair()
    for side in _heard:
        side.setblocking(False)
    if sys.unraisablehook is not _again:
        _otherwise, sys.unraisablehook = sys.unraisablehook, _again
    signal.set_wakeup_fd(_heard[1].fileno(), warn_on_full_buffer=False)
    _take(_interrupt)
    if _noted:
        raise KeyboardInterrupt


def ignore() -> None:
    """Ignores SIGINT, SIGTERM and SIGHUP from here on, so that the process runs to its own end."""
    for number in (signal.SIGINT, *_ENDING):
        signal.signal(number, signal.SIG_IGN)
    if sys.getprofile() is _once_imported:
        sys.setprofile(None)
    _noted.clear()


@contextmanager
def ray_started(start: Callable[[], Any]) -> Iterator[str]:
    """Starts Ray with ``start`` and yields its address; ends an interrupted command even if Ray is no longer running.

    A signal to a whole process group, Slurm step or systemd unit ends Ray's own processes too. Ray's client then waits a
    minute for them, out of reach of any exception, and aborts. By then nothing is left to shut down in order, and what is on
    disk is whole at any moment. If this process started Ray, Ray's own processes end with it.
    Raises: what ``start`` raises; KeyboardInterrupt; RuntimeError if Ray ended on this machine: anything that waits for it
      would wait forever.
    """
    import ray

    address = node = ""
    over, lost = threading.Event(), threading.Event()

    def watch(heard: socket.socket, ended: Callable[[], int]) -> None:
        interrupted, gone, cut_off = False, 0, 0
        while not over.wait(1.0):
            with suppress(BlockingIOError):
                interrupted |= not {signal.SIGINT, *_ENDING}.isdisjoint(heard.recv(4096))
            gone = gone + 1 if interrupted and not _listens(address) else 0
            cut_off = cut_off + 1 if node and not _listens(node) else 0
            if gone == _GONE:
                os._exit(ended())
            if cut_off == _LOST and not interrupted:
                lost.set()
                os.kill(os.getpid(), signal.SIGTERM)

    if _heard is not None and _ended is not None:
        threading.Thread(target=watch, args=(_heard[0], _ended), name="ray_started", daemon=True).start()
    try:
        with handlers_kept():
            start()
        address, node = ray.get_runtime_context().gcs_address, _own_node()
        yield address
    except KeyboardInterrupt:
        if not lost.is_set():
            raise
        _noted.clear()
        raise RuntimeError("Ray ended on this machine (its raylet): see its logs, and continue with --resume") from None
    finally:
        over.set()


def _own_node() -> str:
    """The address of this machine's raylet."""
    import ray

    own = ray.get_runtime_context().get_node_id()
    return next(
        f"{node['NodeManagerAddress']}:{node['NodeManagerPort']}" for node in ray.nodes() if node["NodeID"] == own
    )


def _listens(address: str) -> bool:
    """Whether there is an address and something listens on it."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=1.0).close()
    except (OSError, ValueError):
        return False
    return True


@contextmanager
def kept_apart() -> Iterator[None]:
    """Raises: KeyboardInterrupt for an error after an interrupt: libraries turn interrupts into errors of their own."""
    try:
        yield
    except Exception:
        if _noted:
            raise KeyboardInterrupt from None
        raise


def _take(handler: Callable[[int, FrameType | None], Any]) -> None:
    for number in (signal.SIGINT, *_ENDING):
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, handler)


def _interrupt(number: int, frame: FrameType | None) -> None:
    global _raised
    _noted.append(time.monotonic())
    handler = signal.getsignal(signal.SIGINT)  # Ray Train and Tune install their own while they run
    if callable(handler) and handler is not _interrupt:
        handler(signal.SIGINT, frame)
        return
    if _noted[-1] - _raised < _AT_ONCE:
        return
    if not _importing(frame) or _noted[-1] - _noted[0] > _PATIENCE:
        _raised = _noted[-1]
        raise KeyboardInterrupt
    sys.setprofile(_once_imported)


def _again(unraisable: Any) -> None:
    """Interrupts again, a moment later, if an interrupt came where Python drops exceptions, as in some compiled code."""
    global _raised
    if not isinstance(unraisable.exc_value, KeyboardInterrupt):
        _otherwise(unraisable)
        return
    _raised = -math.inf
    later = threading.Timer(_MOMENT, os.kill, (os.getpid(), signal.SIGINT))
    later.daemon = True
    later.start()


def _once_imported(frame: FrameType, event: str, _: object) -> None:
    if event == "return" and _imports(frame) and not _importing(frame.f_back):
        sys.setprofile(None)
        _interrupt(signal.SIGINT, frame.f_back)


def _imports(frame: FrameType) -> bool:
    return frame.f_code.co_filename.startswith("<frozen importlib.")


def _importing(frame: FrameType | None) -> bool:
    """Whether the command is inside an import. A half-imported module breaks later imports, and some imports continue
    without a module that failed: the interrupt would be lost, or become an error.
    """
    while frame is not None and frame.f_code is not _command:
        if _imports(frame):
            return True
        frame = frame.f_back
    return False


@contextmanager
def deferred() -> Iterator[None]:
    """Has SIGINT, SIGTERM and SIGHUP take effect at the end of the block, which is short. After an error in it they do not:
    it ends the command as well, and what handles interrupts need not handle what it left half done.
    """
    came: list[int] = []
    with handlers_kept():
        if threading.current_thread() is threading.main_thread():
            _take(lambda number, frame: came.append(number))
        yield
    if came:
        signal.raise_signal(came[0])


@contextmanager
def handlers_kept() -> Iterator[None]:
    """Restores the handlers of SIGINT, SIGTERM and SIGHUP after the block.

    Raises: KeyboardInterrupt in place of the SystemExit that Ray's own handler raises on SIGTERM.
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
