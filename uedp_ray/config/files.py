"""Which settings name files, as the fields themselves say.

    map_files(config, lambda key, value, kind: "gone")      # every path gone, every other setting kept

A field of plain text names a file or folder unless its metadata says otherwise, so a new setting is not published by
oversight: ``{"names": …}`` is one of ``FileKind``, or ``"words"`` for text that names no file.
"""

from __future__ import annotations

import dataclasses
import functools
import typing
from collections.abc import Callable
from typing import Any, Literal, TypeVar

from uedp_ray.config.limits import type_hints

T = TypeVar("T")
FileKind = Literal["path", "hub", "text", "detector"]
"""``path``: a file or folder. ``hub``: or a name on a hub. ``text``: a source's text. ``detector``: ``kind:FILE``."""
_TEXT = (str, str | None, tuple[str, ...])


def map_files(section: T, change: Callable[[str, str, FileKind], str], prefix: str = "") -> T:
    """Returns a section, or a whole run, with ``change(key, value, kind)`` in the place of each value that names a file.

    ``key`` is the setting's dotted name, after ``prefix``. A list is changed value by value.
    """
    cls: type = type(section)
    kinds, changed = _kinds(cls), {}
    for each in dataclasses.fields(section):  # type: ignore[arg-type]
        value, key = getattr(section, each.name), f"{prefix}{each.name}"
        if (kind := kinds.get(each.name)) is not None:
            one = functools.partial(change, key)
            many = isinstance(value, tuple)
            value = tuple(one(item, kind) for item in value) if many else value and one(value, kind)
        elif dataclasses.is_dataclass(value):
            value = map_files(value, change, f"{key}.")
        elif isinstance(value, tuple):
            value = tuple(
                map_files(item, change, f"{key}[{number}].") if dataclasses.is_dataclass(item) else item
                for number, item in enumerate(value)
            )
        changed[each.name] = value
    return dataclasses.replace(section, **changed)  # type: ignore[type-var]


def files_of(section: Any, prefix: str = "") -> dict[str, str]:
    """Returns what ``map_files`` would change, by its dotted name; of a list, the last."""
    found: dict[str, str] = {}

    def note(key: str, value: str, _: FileKind) -> str:
        found[key] = value
        return value

    map_files(section, note, prefix)
    return found


def names_file(section: type, key: str) -> bool:
    """Whether a section's setting, by its dotted name, names a file; False for what is no setting."""
    first, _, rest = key.partition(".")
    if not rest:
        return first in _kinds(section)
    inner = type_hints(section).get(first)
    return dataclasses.is_dataclass(inner) and names_file(typing.cast(type, inner), rest)


@functools.cache
def _kinds(section: type[Any]) -> dict[str, FileKind]:
    """The kind of each field of a section that names files."""
    hints = type_hints(typing.cast(type, section))
    kinds: dict[str, Any] = {
        each.name: each.metadata.get("names", "path")
        for each in dataclasses.fields(section)
        if hints[each.name] in _TEXT
    }
    return {name: kind for name, kind in kinds.items() if kind != "words"}
