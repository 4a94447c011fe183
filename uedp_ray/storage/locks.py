"""File locks, for one process at a time: a lock ends with the process that holds it, however the process ends."""

from __future__ import annotations

import errno
import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from uedp_ray.errors import InputError

INSIDE = ".lock"
"""The lock file of a folder whose parent is not writable; not part of the folder's contents."""
_UNSUPPORTED = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)


@contextmanager
def locked(path: Path, *, wait: float, busy: InputError) -> Iterator[None]:
    """Holds the lock file ``path`` during the block; it is deleted afterwards, unless the process was killed.

    Raises: ``busy`` if another process holds it for ``wait`` seconds; InputError where the file system has no locks.
    """
    give_up = time.monotonic() + wait
    while (descriptor := _taken(path)) is None:
        if time.monotonic() >= give_up:
            raise busy
        time.sleep(0.1)
    try:
        yield
    finally:
        with suppress(OSError):  # deleted while still held: a waiting process sees that it is gone, and creates another
            if not os.fstat(descriptor).st_size:  # otherwise it is a user's file of that name
                path.unlink()
        os.close(descriptor)


def lock_beside(path: Path) -> Path:
    """The lock file of a file or folder that may itself be renamed, removed and recreated."""
    return path.with_name(f".{path.name}.lock")


@contextmanager
def folder_locked(folder: Path, *, wait: float, busy: InputError) -> Iterator[None]:
    """Locks a folder, existing or not, by a file beside it, so that everything in it may be renamed, removed and recreated.

    Every node that sees the folder also sees a file beside it. If the folder is a volume of its own, or its parent is not
    writable, the lock file is inside it. Raises: as ``locked``.
    """
    if folder.is_dir() and os.statvfs(folder).f_flag & os.ST_RDONLY:  # read-only: nobody can write there
        yield
        return
    made = [parent for parent in folder.parents if not parent.exists()]
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        inside = folder.is_dir() and (os.path.ismount(folder) or not os.access(folder.parent, os.W_OK))
        path = folder / INSIDE if inside else lock_beside(folder)
        with locked(path, wait=wait, busy=busy):
            yield
    finally:
        for parent in made:  # a refused start leaves no empty folders behind
            with suppress(OSError):
                parent.rmdir()


def _taken(path: Path) -> int | None:
    """The descriptor of the lock, or None if another process holds it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except IsADirectoryError:
        raise InputError("--out", str(path), "is a folder where the lock file belongs: rename or delete it") from None
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise InputError("--out", str(path), "is a link where the lock file belongs: rename or delete it") from None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(descriptor), path.stat()):  # otherwise its holder removed it in between
            return descriptor
    except (BlockingIOError, FileNotFoundError):
        pass
    except OSError as error:
        os.close(descriptor)
        if error.errno in _UNSUPPORTED:
            raise InputError("--out", str(path.parent), "is on a file system without locks: name another") from None
        raise
    os.close(descriptor)
    return None
