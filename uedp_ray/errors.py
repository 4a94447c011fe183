"""The one error a user can cause: it names the field, the value and the remedy."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

_LONGEST = 300


class InputError(ValueError):
    """Bad input. ``str(error)`` is one line: ``field = value: remedy``.

    Args:
      field: the configuration key, flag or file that is wrong.
      value: the offending value; never private text.
      remedy: what to do about it.
    """

    def __init__(self, field: str, value: object, remedy: str):
        self.field, self.value, self.remedy = field, value, remedy
        super().__init__(f"{field} = {_shown(value)}: {remedy}")

    def __reduce__(
        self,
    ) -> tuple[type, tuple[str, object, str]]:  # Ray sends errors between processes by pickling them.
        return type(self), (self.field, self.value, self.remedy)


def _shown(value: object) -> str:
    """Its representation, cut where a damaged file made it long."""
    try:
        shown = repr(value)
    except (ValueError, RecursionError):  # an integer of thousands of digits, a list in a list in a list …
        return f"a very long {type(value).__name__}"
    return shown if len(shown) <= _LONGEST else f"{shown[:_LONGEST]}…"


@contextmanager
def within(section: str) -> Iterator[None]:
    """Errors of the block name their field from the root: ``path`` becomes ``corpus.source.path``."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{section}.{error.field}", error.value, error.remedy) from error.__cause__
