"""Whether an object keeps something from one call to the next, where a privacy bound needs each call to stand alone.

    before = attributes_of(model)
    model.last = "a sentence"
    kept_since(before, model)           # ["last"]

It finds what is kept by mistake. What is kept in a list or dictionary, in a module or on disk it does not find.
"""

from __future__ import annotations

from typing import Any

Attributes = dict[str, tuple[Any, Any]]
_MISSING = (None, None)


def attributes_of(one: object) -> Attributes:
    """Each attribute with its version: torch counts the changes of a tensor."""
    return {name: (value, getattr(value, "_version", None)) for name, value in vars(one).items()}


def kept_since(before: Attributes, one: object) -> list[str]:
    """Names of attributes that are another object than before, or another version of the same one."""
    after = attributes_of(one)
    pairs = ((name, before.get(name, _MISSING), after.get(name, _MISSING)) for name in sorted({*before, *after}))
    return [name for name, (was, version), (now, other) in pairs if was is not now or version != other]
