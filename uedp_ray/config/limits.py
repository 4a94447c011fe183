"""Checks of setting values: each raises one ``InputError`` that names the setting, its value and the remedy.

    >>> from uedp_ray.config import limits
    >>> from uedp_ray.errors import InputError
    >>> def refused(check, *arguments, **options):
    ...     try:
    ...         check("field", *arguments, **options)
    ...     except InputError as error:
    ...         print(error)
    >>> refused(limits.probability, 1.0)
    >>> refused(limits.probability, 1.01)
    field = 1.01: a probability lies in [0, 1]
    >>> refused(limits.below_one, 1.0)
    field = 1.0: must be 0 or more and below 1
    >>> refused(limits.positive, float("inf"))
    field = inf: must be a finite number above 0
    >>> refused(limits.positive, None, optional=True)
    >>> refused(limits.at_least, 0, 1)
    field = 0: must be 1 or more

A value that is allowed gives nothing.
"""

from __future__ import annotations

import functools
import math
import types
import typing
from collections.abc import Mapping
from typing import Any

from uedp_ray.errors import InputError


def check_choices(section: Any, name: str = "") -> None:
    """Raises: InputError unless every field of a dataclass that is annotated with a ``Literal`` has one of its values.

    ``name``: the section's name, if it has one; error messages put it before the field's.
    """
    cls: type = type(section)
    for field, annotation in _choices(cls):
        choice(f"{name}.{field}" if name else field, getattr(section, field), annotation)


@functools.cache
def type_hints(section: type) -> Mapping[str, Any]:
    """The types of a dataclass's fields, found once: a search builds the same sections thousands of times."""
    return typing.get_type_hints(section)


@functools.cache
def _choices(section: type) -> list[tuple[str, Any]]:
    return [(field, hint) for field, hint in type_hints(section).items() if _options(hint)]


def _options(annotation: Any) -> tuple[Any, ...]:
    """Returns the values of a ``Literal``, and None if it is optional; empty if anything but choices is allowed."""
    if typing.get_origin(annotation) is typing.Literal:
        return typing.get_args(annotation)
    if typing.get_origin(annotation) not in (types.UnionType, typing.Union):
        return ()
    parts = [(None,) if part is type(None) else _options(part) for part in typing.get_args(annotation)]
    return tuple(value for part in parts for value in part) if all(parts) else ()


def choice(name: str, value: object, annotation: Any) -> None:
    """Raises: InputError unless ``value`` is one of a ``Literal``."""
    options = _options(annotation)
    if value not in options:
        raise InputError(name, value, f"choose one of {', '.join(str(each) for each in options if each is not None)}")


def probability(name: str, value: float) -> None:
    if not 0.0 <= value <= 1.0:
        raise InputError(name, value, "a probability lies in [0, 1]")


def below_one(name: str, value: float) -> None:
    if not 0.0 <= value < 1.0:
        raise InputError(name, value, "must be 0 or more and below 1")


def seed(name: str, value: int | None) -> None:
    if value is not None and not 0 <= value < 2**63:
        raise InputError(name, value, "must be 0 or more and below 2**63")


def positive(name: str, value: float | None, *, optional: bool = False) -> None:
    """Raises: InputError unless ``value`` is finite and above 0."""
    if optional and value is None:
        return
    if value is None or not math.isfinite(value) or value <= 0:
        raise InputError(name, value, "must be a finite number above 0")


def at_least(name: str, value: int | None, low: int, *, most: int | None = None, optional: bool = False) -> None:
    """Raises: InputError if ``value`` is below ``low``, or above ``most``."""
    if optional and value is None:
        return
    if value is None or value < low:
        raise InputError(name, value, f"must be {low} or more")
    if most is not None and value > most:
        raise InputError(name, value, f"must be {most:,} or fewer")
