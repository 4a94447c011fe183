"""Checks for the values in a JSON file, so that a damaged file gives one clear error, never a traceback.

    >>> from uedp_ray.fields import number, record
    >>> check = record({"rounds": number(0, whole=True), "epsilon": record({"user": number(0.0, nothing=True)})})
    >>> check({"rounds": 3, "epsilon": {"user": None}, "note": ""}, "")
    >>> check({"rounds": 3, "epsilon": {"user": "x"}}, "")
    Traceback (most recent call last):
        ...
    uedp_ray.fields.Unexpected: epsilon.user is not a number from 0
    >>> check({"rounds": 3}, "")
    Traceback (most recent call last):
        ...
    uedp_ray.fields.Missing: the value is not a mapping with the key epsilon

A check takes a value and its place in the file; keys that it does not name are allowed.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Never

Check = Callable[[Any, str], None]
_LARGEST, LARGEST_WHOLE = sys.float_info.max, 1 << 53
_LONGEST = 10_000
UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f\x85\u2028\u2029\ud800-\udfff]")
"""Characters that no setting may have: line breaks, ASCII control characters, lone surrogates. Any other, such as a no-break
space, is read back as written; the terminal is protected where text is printed (``errors.one_line``)."""


class Unexpected(Exception):
    """A value that is not what was expected."""

    def __init__(self, where: str, value: Any, expected: str):
        self.where, self.value, self.expected = where, value, expected
        super().__init__(f"{where or 'the value'} is not {expected}")


class Missing(Unexpected):
    """A mapping without a key that it should have, as in a file of an earlier version."""

    def __init__(self, where: str, value: Any, key: str):
        self.key = f"{where}.{key}" if where else key
        super().__init__(where, value, f"a mapping with the key {key}")


def number(low: float = -_LARGEST, high: float = _LARGEST, *, whole: bool = False, nothing: bool = False) -> Check:
    """A finite number in [low, high]; ``nothing`` also allows null."""

    def check(value: Any, where: str) -> None:
        if nothing and value is None:
            return
        good = isinstance(value, int if whole else (int, float)) and not isinstance(value, bool)
        if not good or not low <= value <= (min(high, LARGEST_WHOLE) if whole else high):
            limit = f" to {high:g}" if high < _LARGEST else ""
            _refuse(
                where, value, f"a {'whole ' if whole else ''}number{f' from {low:g}' if low > -_LARGEST else ''}{limit}"
            )

    return check


def string(pattern: str = r".*", expected: str = "one line of text", *, nothing: bool = False) -> Check:
    """One line of at most 10,000 characters that matches ``pattern`` in full; ``nothing`` also allows null."""

    def check(value: Any, where: str) -> None:
        if nothing and value is None:
            return
        good = isinstance(value, str) and len(value) <= _LONGEST and not UNPRINTABLE.search(value)
        if not good or not re.fullmatch(pattern, value, re.ASCII):
            _refuse(where, value, expected)

    return check


def anything(value: Any, where: str) -> None:
    """Allows any value: the code that uses it checks it."""


def flag(value: Any, where: str) -> None:
    """true or false."""
    if not isinstance(value, bool):
        _refuse(where, value, "true or false")


def one_of(*values: Any) -> Check:
    def check(value: Any, where: str) -> None:
        if value not in values:
            _refuse(where, value, f"one of {', '.join(map(str, values))}")

    return check


def list_of(of: Check, *, nothing: bool = False) -> Check:
    def check(value: Any, where: str) -> None:
        if nothing and value is None:
            return
        if not isinstance(value, list):
            _refuse(where, value, "a list")
        for index, item in enumerate(value):
            of(item, f"{where}[{index}]")

    return check


def record(keys: Mapping[str, Check], *, nothing: bool = False) -> Check:
    """A mapping with at least these keys, but for those whose check is a ``Later``; ``nothing`` also allows null."""

    def check(value: Any, where: str) -> None:
        if nothing and value is None:
            return
        if not isinstance(value, dict):
            _refuse(where, value, "a mapping")
        for key, of in keys.items():
            if key not in value:
                if isinstance(of, Later):
                    continue
                raise Missing(where, list(value), key)
            of(value[key], f"{where}.{key}" if where else key)

    return check


@dataclass(frozen=True)
class Later:
    """The check of a key of a ``record`` that files of earlier versions lack."""

    of: Check

    def __call__(self, value: Any, where: str) -> None:
        self.of(value, where)


def _refuse(where: str, value: Any, expected: str) -> Never:
    raise Unexpected(where, value, expected)
