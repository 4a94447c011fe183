"""Ray as the work of this process finds it: a cluster that it connects to, or a session of its own on this machine."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, redirect_stdout, suppress
from pathlib import Path

from uedp_ray.access import require_closed, require_token
from uedp_ray.errors import InputError, one_line
from uedp_ray.interrupts import ray_started
from uedp_ray.training.placement import num_cores


def own_folder() -> Path:
    """Returns this user's own folder for Ray's sessions, in which nobody else can list anything.

    Ray opens its folder to everybody, again whenever a worker starts, and the names and dates of its logs tell of trials
    that may be secret. The path is short, as those of sockets have to be. Raises: InputError if it is somebody else's.
    """
    folder = Path(os.environ.get("RAY_TMPDIR", "/tmp"), f"uedp_ray-{os.getuid()}")
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise InputError("RAY_TMPDIR", str(folder), "belongs to somebody else: set RAY_TMPDIR to a folder of your own")
    folder.chmod(0o700)
    return folder


@contextmanager
def ray_session(num_workers: int, address: str | None = None) -> Iterator[None]:
    """Connects to ``address`` (default ``RAY_ADDRESS``), or starts Ray here. An open session is used, and left open.

    Raises: InputError if the cluster admits anyone who reaches a port without a token, or this process has no token.
    """
    import ray

    if ray.is_initialized():
        yield
        return
    address = address or os.environ.get("RAY_ADDRESS")
    require_token(address)

    def start() -> None:
        try:
            ray.init(
                address=address or "local",
                _temp_dir=None if address else str(own_folder() / "ray"),
                num_cpus=None if address else max(num_workers, num_cores()),
                include_dashboard=None if address else False,
                log_to_driver=False,
                logging_level="error",
            )
        except ray.exceptions.AuthenticationError:
            remedy = (
                "there is no token here, or it is not the cluster's (docs/cluster.md): give this process the same one"
            )
            raise InputError("RAY_AUTH_TOKEN", "***" if "RAY_AUTH_TOKEN" in os.environ else None, remedy) from None
        except (OSError, RuntimeError):
            raise
        except Exception as error:  # Ray raises bare Exceptions
            raise RuntimeError(f"Ray did not start: {one_line(str(error), 500)}") from None

    # Ray reports lost nodes on standard output, which is for answers.
    with redirect_stdout(sys.stderr), ray_started(start) as gcs_address:
        try:
            require_closed(gcs_address)
            yield
        finally:
            ray.shutdown()


def connected(num_workers: int) -> AbstractContextManager[None]:
    """``ray_session`` with the cluster of ``RAY_ADDRESS``, if one is to be trained on: before hours of work, not after."""
    return ray_session(num_workers) if num_workers and os.environ.get("RAY_ADDRESS") else nullcontext()
