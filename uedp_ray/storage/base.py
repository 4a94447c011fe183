"""The storage of a run or a sweep, as its owner sees it: paths under one root, and the methods that keep them safe.

``Storage`` is a folder that every node sees: nothing is copied, and the methods do nothing. ``mirror.Mirror`` is a URL, of
which every node keeps a copy; it documents what each method is for. Callers use both in the same way.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from uedp_ray.errors import InputError
from uedp_ray.storage.locks import folder_locked

WHOLE = ".whole"
"""The default name of the file in a folder that is copied last: without it the folder does not count."""
_FOLDER_WAIT, _PART_WAIT = 5.0, 120.0
"""Seconds. A trial is restarted when its node is lost, and the lost node's locks outlive it (NFS: 90)."""


class StorageError(OSError):
    """The storage cannot be reached, or refused the request. What is in it is intact."""


class Storage:
    """A folder that every node sees.

    ``wait``: seconds to wait for another process that is using it; ``field``: what an error says of it by then.
    """

    url: str | None = None
    owned = True

    def __init__(self, root: Path, *, wait: float | None = None, field: str = "--out"):
        self.root, self._wait, self._field = root, wait, field

    @property
    def is_copy(self) -> bool:
        """Whether ``root`` is this node's copy of something stored elsewhere."""
        return self.url is not None

    def exclusive(self) -> AbstractContextManager[None]:
        remedy = "another process is at work in this folder: wait for it, or stop one of the two"
        busy = InputError(self._field, str(self.root), remedy)
        return folder_locked(self.root, wait=_FOLDER_WAIT if self._wait is None else self._wait, busy=busy)

    def lock(self, path: Path) -> AbstractContextManager[None]:
        return nullcontext()

    def child(self, path: Path) -> Storage:
        return Storage(path, wait=_PART_WAIT)

    def address(self, path: Path) -> str:
        return str(path)

    def exists(self) -> bool:
        return (self.root / "private").exists()

    def seclude(self) -> None:
        """Makes all of it owner-only, where permissions are those of a disk."""
        self.root.chmod(0o700)

    def clear(self) -> None: ...

    def acquire(self) -> None: ...

    def append(self, path: Path) -> None: ...

    def restore(self, path: Path) -> str:
        return ""

    def put(self, *paths: Path, commit: str = WHOLE) -> None: ...

    def get(self, *paths: Path, commit: str = WHOLE, since: str = "") -> None: ...

    def publish(self, *paths: Path) -> None: ...

    def adopt(self, path: Path, folder: Path) -> Path:
        return path


IN_PLACE = Storage(Path())
"""The storage for callers whose paths are already on this node."""
