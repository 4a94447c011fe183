"""Checks of the folder that a command writes to, before it does any work.

Example:

    check_target(Path("runs/mine"))
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from uedp_ray.errors import InputError
from uedp_ray.fields import UNPRINTABLE
from uedp_ray.storage.files import set_aside

_NAME_MAX = 255
"""Most bytes in a file name, on the file systems that we know."""


def check_target(out: Path, *, field: str = "--out") -> Path:
    """Returns ``out`` if it is a folder that can be written to, or can be created. Leaves nothing behind.

    Raises: InputError for a file, the root, a dangling symbolic link, a name that our own files could not hold, and a folder
      that cannot be written to.
    """
    check_length(check_name(out, field=field), field=field)
    try:
        if out.is_symlink() and not out.exists():
            raise InputError(field, str(out), "is a dangling symbolic link: name a folder")
        there = out.absolute()
        while not there.exists():
            there = there.parent
        if not there.is_dir():
            raise InputError(
                field, str(out), "is a file: name a folder" if there == out.absolute() else f"{there} is a file"
            )
        if there.parent == there.resolve() == out.resolve():
            raise InputError(field, str(out), "is the root of the file system: name a new folder")
        if there != out.absolute():
            os.rmdir(tempfile.mkdtemp(prefix=".uedp-ray-", dir=there))  # for root, access() is not enough
        elif not os.access(there, os.W_OK | os.X_OK):
            raise InputError(field, str(out), "cannot be written to: name another folder")
    except (OSError, ValueError, RuntimeError) as error:  # a path that is too long, a loop of links, a NUL
        if isinstance(error, InputError):
            raise
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(field, str(out), f"cannot be written to ({reason}): name another folder") from None
    return out


def check_name(out: Path, *, field: str = "--out") -> Path:
    """Returns ``out``. Raises: InputError if part of it is not UTF-8, or has control characters: our own files name it."""
    if UNPRINTABLE.search(str(out)) or UNPRINTABLE.search(os.path.realpath(out)):
        raise InputError(field, str(out), "is not one line of printable UTF-8: choose another name")
    return out


def check_length(out: Path, *, field: str = "--out") -> Path:
    """Returns ``out``. Raises: InputError for a name too long for what is made beside it, such as its last whole state."""
    path = Path(os.path.realpath(out))
    names = (*path.parts, set_aside(path).name) if path.name else ()
    over = max((len(os.fsencode(name)) for name in names), default=0) - _NAME_MAX
    if over > 0:
        remedy = f"has a name that is {over} bytes too long with what we append to it: choose a shorter one"
        raise InputError(field, str(out), remedy)
    return out
