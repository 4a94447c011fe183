"""Opens the storage of a run or a sweep: a folder that every node sees, or a URL that every node copies (``mirror``).

Example:

    storage = open_storage("runs/mine")                     # nothing is copied: its methods do nothing
    storage = open_storage("s3://bucket/runs/mine")         # any URL that pyarrow or fsspec can open
    found = load_sweep(local_copy("s3://bucket/runs/quickstart"))
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from uedp_ray.errors import InputError
from uedp_ray.storage.base import Storage, StorageError
from uedp_ray.storage.mirror import OWNERS, Mirror, folder_of, unusable
from uedp_ray.storage.objects import Objects, as_url, download

_NAMED = "name a folder for this node's copies of what is at a URL"


def open_storage(out: str | Path | Storage, field: str = "--out") -> Storage:
    """Opens the storage at a path or URL. Nodes keep their copies under ``$UEDP_RAY_WORK`` (default ``~/.cache/uedp_ray``).

    Raises: InputError for a URL that cannot be opened or reached, or a path whose contents belong to a URL.
    """
    if isinstance(out, Storage):
        return out
    url = as_url(out, field)
    if url is None:
        root = Path(out).resolve()
        if (root / OWNERS).is_dir():  # its ledger is in parts, and the file has only what was copied last
            remedy = "belongs to runs that name it as a URL, or is a copy of such a folder: name the URL"
            raise InputError(field, str(root), remedy)
        return Storage(root, field=field)
    work = _work()
    try:
        work.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        remedy = f"cannot be created ({error.strerror}): {_NAMED}"
        raise InputError("UEDP_RAY_WORK", str(work), remedy) from None
    mirror = Mirror(url, work)
    try:
        mirror.exists()
    except StorageError as error:
        raise unusable(url, error, field) from error
    return mirror


def local_copy(path: str | Path, *, leave_out: tuple[str, ...] = ()) -> Path:
    """Returns ``path`` itself; for a URL, a fresh copy of what is not private there, without the folders ``leave_out``."""
    url = as_url(path)
    if url is None:
        return Path(path)
    objects, folder = Objects(url), _work() / "copies" / folder_of(url)
    shutil.rmtree(folder, ignore_errors=True)
    keys = [key for key in objects.list() if not {"private", *leave_out}.intersection(key.split("/")[:-1])]
    if not keys:
        raise InputError(
            "path", url, "holds nothing that is not private: check the name, or wait for the first results"
        )
    download(objects, {key: folder / key for key in keys})
    return folder


def folder_only(path: str | Path, field: str = "--out") -> Path:
    """Returns ``path``. Raises: InputError if it is a URL."""
    if as_url(path, field) is not None:
        raise InputError(field, str(path), "only train and sweep can write to a URL: name a folder, or copy it first")
    return Path(path)


def _work() -> Path:
    try:
        return Path(os.environ.get("UEDP_RAY_WORK") or "~/.cache/uedp_ray").expanduser().resolve()
    except RuntimeError:  # the user id has no home folder, as may be the case in a pod
        raise InputError("UEDP_RAY_WORK", None, f"this user has no home folder: {_NAMED}") from None
