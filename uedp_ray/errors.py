"""The one error a user can cause: it names the field, the value and the remedy."""

from __future__ import annotations

import errno
import resource
from collections.abc import Iterator
from contextlib import contextmanager

_OPEN_FILES = "ulimit -n"


class InputError(ValueError):
    """Bad input. ``str(error)`` is one line: ``field = value: remedy``.

    Args:
      field: the configuration key, flag or file that is wrong.
      value: the offending value; never private text.
      remedy: what to do about it.
    """

    def __init__(self, field: str, value: object, remedy: str):
        self.field, self.value, self.remedy = field, value, remedy
        super().__init__(f"{field} = {value!r}: {remedy}")

    def __reduce__(
        self,
    ) -> tuple[type, tuple[str, object, str]]:  # Ray sends errors between processes by pickling them.
        return type(self), (self.field, self.value, self.remedy)


def unreadable(error: OSError, field: str, value: object) -> InputError:
    """What the system said of a file that the user named. Too few open files are named as such: no file is at fault."""
    if error.errno in (errno.EMFILE, errno.ENFILE):
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        return InputError(_OPEN_FILES, limit, "too few files may be open at once: allow more (ulimit -n 4096)")
    return InputError(field, value, f"cannot be read: {error.strerror or 'input/output error'}")


@contextmanager
def within(section: str) -> Iterator[None]:
    """Errors of the block name their field from the root: ``path`` becomes ``corpus.source.path``."""
    try:
        yield
    except InputError as error:
        if error.field == _OPEN_FILES:  # no setting
            raise
        raise InputError(f"{section}.{error.field}", error.value, error.remedy) from error.__cause__
