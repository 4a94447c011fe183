"""One process at a time: file locks that end with the process that holds them, however it ends."""

from __future__ import annotations

import fcntl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from uedp_ray.errors import InputError


@contextmanager
def locked(path: Path, *, wait: float, busy: InputError) -> Iterator[None]:
    """Holds the lock file ``path`` during the block. Raises: ``busy`` if another process holds it for ``wait`` seconds."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        give_up = time.monotonic() + wait
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= give_up:
                    raise busy from None
                time.sleep(0.1)
        yield
