"""Finds what a setting names: an object in a module of a room, or an entry of a table; and what a class states of itself.

    in_module("corpus.readers", "pseudo-users", "READER").suffix      # ''

A name that the choices of a setting list, and that nothing stands behind, is this package's mistake and not its user's: a
TypeError that says what is missing.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib import import_module
from importlib.util import module_from_spec
from typing import Any, TypeVar

T = TypeVar("T")


def in_module(room: str, name: str, attribute: str) -> Any:
    """The ``attribute`` of the module of a room that is called ``name``, dashes aside.

    Raises: TypeError if there is no such module, or nothing of that name in it.
    """
    module = f"uedp_ray.{room}.{name.replace('-', '_')}"
    try:
        return getattr(import_module(module), attribute)
    except ModuleNotFoundError as error:
        if error.name != module:  # a module that it imports
            raise
        raise TypeError(f"{name} is listed as a choice, and there is no module {module}") from None
    except AttributeError:
        raise TypeError(f"{name} is listed as a choice, and {module} has no {attribute}") from None


def afresh(room: str, name: str, attribute: str, *, otherwise: Any) -> Any:
    """As ``in_module``, of a new copy of the module, in which nothing is kept yet; ``otherwise`` if none can be made."""
    module = sys.modules.get(f"uedp_ray.{room}.{name.replace('-', '_')}")
    if module is None or module.__spec__ is None or module.__spec__.loader is None:
        return otherwise
    copy = module_from_spec(module.__spec__)
    module.__spec__.loader.exec_module(copy)
    return getattr(copy, attribute)


def in_table(table: Mapping[str, T], name: str, called: str) -> T:
    """The entry of a table. Raises: TypeError if there is none. ``called``: the table's name and module."""
    if name not in table:
        raise TypeError(f"{name} is listed as a choice, and has no entry in {called}")
    return table[name]


def drop_inherited(cls: type, base: type, *names: str) -> None:
    """Gives ``cls`` the attributes of ``base``, the unsafe ones, wherever it has none of its own.

    What another class states is proved of that class only: one that changes a part of it states it again.

        >>> from uedp_ray.components import drop_inherited
        >>> class Base:
        ...     bounds = False
        ...
        ...     def __init_subclass__(cls):
        ...         drop_inherited(cls, Base, "bounds")
        >>> class Stated(Base):
        ...     bounds = True
        >>> class Changed(Stated):
        ...     "Says nothing."
        >>> Stated.bounds, Changed.bounds
        (True, False)
    """
    for name in names:
        if name not in vars(cls):
            setattr(cls, name, vars(base)[name])
