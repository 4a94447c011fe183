"""Files that are whole or as they were, whatever is killed or full."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from uedp_ray.jsontext import to_json


def write_atomically(path: Path, content: bytes) -> None:
    """Writes, syncs and renames; on failure (a full disk, say) the old file stays and the partial one goes.

    Raises: OSError naming the file and what is safe.
    """
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        with open(temporary, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        reason = error.strerror or str(error)
        raise OSError(
            error.errno,
            f"{reason}; {path.name} keeps its last whole state: free space and run again with --resume",
            str(path),
        ) from error
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Makes renames in ``folder`` durable."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_json(path: Path, value: Any) -> None:
    """Whole or not at all; see ``jsontext``."""
    write_atomically(path, to_json(value).encode())
