"""The file of a study's journal, as a kill or a full disk may leave it.

    mend(Path("study.journal"))
    Journal("study.journal").append_logs([{"op_code": 0}])

One process at a time writes it: the caller holds a lock on the sweep's folder.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from optuna.storages.journal import JournalFileBackend

from uedp_ray.errors import InputError
from uedp_ray.storage.files import check_own, check_regular

_MOST_BYTES = 1 << 30
"""Most bytes of a journal: a trial takes a few kB."""
_LOCK = re.compile(r"\.lock(?:[0-9a-f-]{36}\.rename)?")
"""How the names of Optuna's lock end."""


class Journal(JournalFileBackend):
    """Never appends to a line that a full disk left torn: a search continues for a while after an error, as Tune does."""

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        _cut_torn(Path(self._file_path))
        super().append_logs(logs)


def mend(path: Path) -> None:
    """Removes a last line that a kill left torn, and a dead process's lock."""
    for lock in path.parent.glob(f"{path.name}.lock*"):
        if not _LOCK.fullmatch(lock.name.removeprefix(path.name)):
            continue  # the user's
        if lock.is_dir() and not lock.is_symlink():
            raise InputError(lock.name, str(lock), "is a folder where Optuna keeps its lock: move it out of the folder")
        lock.unlink()
    check_own(path)
    if path.exists():
        check_regular(path, "restore a copy, or start again in another folder", most=_MOST_BYTES)
        _cut_torn(path)


def _cut_torn(path: Path) -> None:
    with path.open("r+b") as file:
        if not (size := file.seek(0, os.SEEK_END)):
            return
        file.seek(size - 1)
        if file.read(1) == b"\n":
            return
        file.seek(0)
        file.truncate(file.read().rfind(b"\n") + 1)
        os.fsync(file.fileno())
