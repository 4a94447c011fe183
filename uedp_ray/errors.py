"""The one error a user can cause: it names the field, the value and the remedy."""

from __future__ import annotations

import errno
import os
import reprlib
import resource
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_OPEN_FILES, _THREADS = "ulimit -n", "ulimit -u"


class InputError(ValueError):
    """Bad input. ``str(error)`` is one line of bounded length: ``field = value: remedy``.

    Args:
      field: the configuration key, flag or file that is wrong.
      value: the offending value; never private text. If it is long, only its beginning and end are shown.
      remedy: what to do about it.
    """

    def __init__(self, field: str, value: object, remedy: str):
        self.field, self.value, self.remedy = field, value, remedy
        super().__init__(f"{one_line(field, 300)} = {shown(value)}: {one_line(remedy, 3000)}")

    def __reduce__(
        self,
    ) -> tuple[type, tuple[str, object, str]]:  # Ray sends errors between processes by pickling them.
        return type(self), (self.field, self.value, self.remedy)


class DeviceError(InputError):
    """A GPU failed; no setting is at fault. Its process is no longer usable; the same work may succeed on another device."""


class TextError(InputError):
    """The private text does not allow it. The message may reveal something of the text: for its owner, never published."""


_NO_MEMORY = ("out of memory", "can't allocate memory", "cannot allocate memory", "alloc_failed")


def is_of_memory(error: Exception) -> bool:
    """Whether there was no memory for something, of this machine or of a GPU, as far as torch and the system say."""
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno == errno.ENOMEM
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":  # torch's own
        return True
    return isinstance(error, RuntimeError) and any(mark in str(error).lower() for mark in _NO_MEMORY)


def unreadable(error: OSError, field: str, value: object) -> InputError:
    """Returns the error for a file that the user named. A limit on open files is reported as such: no file is at fault."""
    if error.errno in (errno.EMFILE, errno.ENFILE):
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        return InputError(_OPEN_FILES, limit, "too many open files: raise the limit (ulimit -n 4096)")
    return InputError(field, value, f"cannot be read: {error.strerror or 'input/output error'}")


@contextmanager
def within(section: str) -> Iterator[None]:
    """Prefixes the field of errors raised in the block: ``path`` becomes ``corpus.source.path``."""
    try:
        yield
    except InputError as error:
        if error.field.startswith("ulimit "):  # a system limit, not a setting
            raise
        raise type(error)(f"{section}.{error.field}", error.value, error.remedy) from error.__cause__


_OF_THREADS = {"ulimit -v": resource.RLIMIT_AS, "ulimit -d": resource.RLIMIT_DATA, _THREADS: resource.RLIMIT_NPROC}
"""Limits that can keep threads from starting: on memory for their stacks (rarely set), and on their number."""


@contextmanager
def no_thread_no_blame() -> Iterator[None]:
    """Blames the limit on threads if the block fails and none can start: without them, libraries call sound files bad."""
    try:
        yield
    except InputError as error:
        if error.field in _OF_THREADS or _threads_left():
            raise
        limits = {name: resource.getrlimit(which)[0] for name, which in _OF_THREADS.items()}
        name = next((name for name, limit in limits.items() if limit != resource.RLIM_INFINITY), _THREADS)
        remedy = "cannot start enough threads: raise the limit (a container limits pids as well), and run again"
        raise InputError(name, None if limits[name] == resource.RLIM_INFINITY else limits[name], remedy) from error


def _threads_left() -> bool:
    """Whether as many threads can be started as a library's pool has."""
    done, threads = threading.Event(), []
    try:
        for _ in range(os.cpu_count() or 1):
            thread = threading.Thread(target=done.wait, daemon=True)
            thread.start()
            threads.append(thread)
    except RuntimeError:
        return False
    finally:
        done.set()
        for thread in threads:
            thread.join()
    return True


def one_line(text: str, limit: int) -> str:
    """Returns ``text`` without line breaks and control characters; beyond ``limit`` characters, its middle is left out."""
    if len(text) > limit:
        text = f"{text[: limit * 2 // 3]} … {text[-limit // 3 :]}"
    return "".join(letter if letter.isprintable() else " " for letter in text)


def shown(value: object) -> str:
    """Returns the ``repr`` of any value on one line, in bounded length, depth and time."""
    return one_line(_Shortened().repr(value), 400)


class _Shortened(reprlib.Repr):
    def __init__(self) -> None:
        super().__init__()
        self.maxlevel, self.maxstring, self.maxother = 3, 300, 300
        self.maxtuple = self.maxlist = self.maxdict = self.maxset = 8

    def repr_int(self, value: int, level: int) -> str:
        if value.bit_length() > 1000:  # Python refuses to write out more than 4,300 digits
            return f"<a number of {value.bit_length()} bits>"
        return repr(value)
