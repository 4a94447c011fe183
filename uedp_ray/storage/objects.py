"""Objects at a URL: durable writes, reads and listings on any file system that pyarrow or fsspec supports.

    objects = Objects("s3://bucket/runs/mine")
    objects.write("private/key", b"...")        # when it returns, every later read and listing on any node sees it
    objects.list("private")                     # {"private/key": 3}

Today's object stores promise this (S3, Google Cloud Storage, Azure), and so does a single disk; NFS does not, since its
clients cache. A write that fails may leave a truncated object or a whole one: names and contents must make either safe.
"""

from __future__ import annotations

import io
import os
import posixpath
import re
import secrets
import shutil
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, TypeVar
from urllib.parse import urlsplit, urlunsplit

import pyarrow as pa
from pyarrow import fs

from uedp_ray.errors import InputError
from uedp_ray.storage.base import StorageError
from uedp_ray.storage.files import make_folder, sync_folder

T = TypeVar("T")

_WAITS = (1.0, 2.0, 4.0)
"""Seconds to wait before each retry."""
_CHUNK = 1 << 23
THREADS = 8
_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/+(.*)", re.DOTALL)
_CUT = re.compile(r"(s3a?|gc?s|az|abfss?|adl|hdfs|https?|s?ftp|file|memory):.*", re.DOTALL | re.IGNORECASE)
"""Text that was meant as a URL, even if it is no longer a complete one."""
_NO_BUCKET = ("file", "memory")
_TEMPORARY = ".tmp"


def as_url(path: str | Path, field: str = "--out") -> str | None:
    """Returns ``path`` as a URL, even if a ``Path`` has swallowed one of its slashes; None if it is a path.

    Raises: InputError for an incomplete URL, such as ``s3://$BUCKET`` or ``s3://$BUCKET/run`` where the variable is not set,
    and for one that contains ``.``, ``..`` or ``#``.
    """
    match = _URL.fullmatch(str(path))
    scheme, rest = match.groups() if match else ("", "")
    named = rest if scheme in _NO_BUCKET else rest.strip("/").partition("/")[2]
    if (match or _CUT.fullmatch(str(path))) and not named:
        shown = f"{scheme}://…" if "@" in str(path) else str(path)
        raise InputError(field, shown, "is not a complete URL: write SCHEME://BUCKET/FOLDER (is a variable empty?)")
    if match is None:
        return None
    if "#" in rest:  # a URL's fragment would be dropped silently
        raise InputError(field, f"{scheme}://…", "has a # in it: use another name")
    if not {".", ".."}.isdisjoint(rest.partition("?")[0].split("/")):  # some stores take it literally
        raise InputError(field, f"{scheme}://…", "has a . or .. step in it: write the path that it leads to")
    return f"{scheme}://{'/' if scheme == 'file' else ''}{rest}".rstrip("/")


def below(url: str, name: str) -> str:
    """The URL of ``name`` under ``url``; a query (``?region=…``) stays at the end."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(path=posixpath.join(parts.path, name))) if name else url


class Objects:
    """The objects below a URL; keys are relative. Pickles as its URL.

    Raises: InputError for a URL that cannot be opened; ``StorageError`` from every method, after several tries.
    """

    def __init__(self, url: str):
        self.url = url
        self._fs, base = _open(url)
        self._base = base.rstrip("/")

    def __reduce__(self) -> tuple[type[Objects], tuple[str]]:
        return Objects, (self.url,)

    def list(self, folder: str = "") -> dict[str, int]:
        """Size in bytes of every object below ``folder``, by key, in order; empty if there is no such folder."""

        def action() -> dict[str, int]:
            found = self._fs.get_file_info(fs.FileSelector(self._path(folder), recursive=True, allow_not_found=True))
            start = len(self._base.lstrip("/")) + 1
            sizes = {info.path.lstrip("/")[start:]: info.size for info in found if info.is_file}
            return {key: sizes[key] for key in sorted(sizes) if not key.endswith(_TEMPORARY)}

        return self._tried("list", folder, action)

    def is_empty(self) -> bool:
        """Whether nothing is there but empty folders of ``private``, which a kill in our first write leaves on a disk."""
        selector = fs.FileSelector(self._base, allow_not_found=True)
        found = self._tried("list", "", lambda: self._fs.get_file_info(selector))
        folders = {info.base_name for info in found if info.type == fs.FileType.Directory}
        return len(folders) == len(found) and folders <= {"private"} and not self.list("private")

    def kind(self, key: str) -> str | None:
        """The kind of what is at ``key``: ``file``, ``folder``, or None if there is nothing."""
        found = self._tried("look up", key, lambda: self._fs.get_file_info(self._path(key)))
        return {fs.FileType.File: "file", fs.FileType.Directory: "folder"}.get(found.type)

    def read(self, key: str, size: int | None = None) -> bytes:
        """Reads an object. ``size``: how many bytes it must have."""

        def action() -> bytes:
            with self._fs.open_input_stream(self._path(key), compression=None) as file:
                content: bytes = file.read()
            if size not in (None, len(content)):
                raise OSError(f"got {len(content)} of {size} bytes")
            return content

        return self._tried("read", key, action)

    def download(self, key: str, path: Path) -> None:
        def action() -> None:
            with self._fs.open_input_stream(self._path(key), compression=None) as source, path.open("wb") as file:
                shutil.copyfileobj(source, file, _CHUNK)

        self._tried("read", key, action)

    def write(self, key: str, content: bytes) -> None:
        self._tried("write", key, lambda: self._write(key, io.BytesIO(content)))

    def upload(self, path: Path, key: str) -> None:
        def action() -> None:
            with path.open("rb") as file:
                self._write(key, file)

        self._tried("write", key, action)

    def delete(self, key: str) -> None:
        def action() -> None:
            with suppress(FileNotFoundError):  # an earlier try may have done it without reporting it
                self._fs.delete_file(self._path(key))

        self._tried("delete", key, action)

    def hide(self, folder: str) -> None:
        """Makes ``folder`` owner-only on a disk; elsewhere the bucket's permissions decide."""
        if isinstance(self._fs, fs.LocalFileSystem):
            Path(self._path(folder)).mkdir(parents=True, exist_ok=True)
            Path(self._path(folder)).chmod(0o700)

    def tidy(self) -> None:
        """On a disk, removes what killed writes left behind. A write in progress fails, and is retried."""
        if isinstance(self._fs, fs.LocalFileSystem):
            for left in Path(self._base).rglob(f".*{_TEMPORARY}"):
                left.unlink(missing_ok=True)

    def _write(self, key: str, source: BinaryIO) -> None:
        path = self._path(key)
        if isinstance(self._fs, fs.LocalFileSystem):  # the only one that neither replaces atomically nor syncs
            _write_local(Path(path), source, private=key.startswith("private/"))
            return
        try:
            self._stream(path, source)
        except FileNotFoundError:  # object stores have no folders; other file systems need them created
            self._fs.create_dir(posixpath.dirname(path), recursive=True)
            source.seek(0)
            self._stream(path, source)

    def _stream(self, path: str, source: BinaryIO) -> None:
        with self._fs.open_output_stream(path, compression=None) as out:
            shutil.copyfileobj(source, out, _CHUNK)

    def _path(self, key: str) -> str:
        return posixpath.join(self._base, key) if key else self._base

    def _tried(self, verb: str, key: str, action: Callable[[], T]) -> T:
        for wait in (*_WAITS, None):
            try:
                return action()
            except Exception as error:  # every file system raises its own kinds of errors
                if wait is None:
                    reason = (str(error) or type(error).__name__).splitlines()[0][:300]
                    raise StorageError(f"{self.url}: cannot {verb} {key or 'it'}: {reason}") from error
                time.sleep(wait)
        raise AssertionError


def _write_local(path: Path, source: BinaryIO, *, private: bool) -> None:
    make_folder(path.parent, private=private)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}{_TEMPORARY}")  # several may write one path
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600 if private else 0o666)
    with os.fdopen(descriptor, "wb") as file:
        shutil.copyfileobj(source, file, _CHUNK)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
    sync_folder(path.parent)


def download(objects: Objects, files: dict[str, Path]) -> None:
    """Fetches objects, by key, to paths."""
    for folder in {path.parent for path in files.values()}:
        folder.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(objects.download, files, files.values()))


class _Handler(fs.FSSpecHandler):
    """pyarrow's handler, except that it does not mistake an error of the storage for an empty folder or a missing file.

    pyarrow's calls ``isdir``, ``isfile``, ``exists`` and ``find``, which fsspec answers that way when a request fails.
    """

    def get_file_info(self, paths: Sequence[str]) -> list[fs.FileInfo]:
        self.fs.invalidate_cache()  # fsspec caches listings, which would hide other nodes' writes
        return super().get_file_info(paths)

    def get_file_info_selector(self, selector: fs.FileSelector) -> list[fs.FileInfo]:
        self.fs.invalidate_cache()
        found: list[fs.FileInfo] = []
        folders = [selector.base_dir]
        while folders:
            folder = folders.pop()
            try:
                entries = self.fs.ls(folder, detail=True)
            except FileNotFoundError:
                if found or not selector.allow_not_found:  # it was listed a moment ago
                    raise
                return []
            for entry in entries:
                info = _info(entry, folder)
                if info is not None:
                    found.append(info)
                    if selector.recursive and info.type == fs.FileType.Directory:
                        folders.append(info.path)
        return found

    def open_input_stream(self, path: str) -> pa.PythonFile:
        return pa.PythonFile(self.fs.open(path, mode="rb"), mode="r")

    def delete_file(self, path: str) -> None:
        self.fs.rm(path)


def _info(entry: dict[str, Any], folder: str) -> fs.FileInfo | None:
    """An entry that fsspec lists in ``folder``; None for the folder itself. Raises: OSError if it does not belong there."""
    name, kind, inside = entry["name"].strip("/"), entry["type"], folder.strip("/")
    if name == inside and (kind == "directory" or entry["name"].endswith("/")):
        return None
    if name == inside:
        raise NotADirectoryError(f"{folder} is a file")
    if inside and not name.startswith(f"{inside}/"):
        raise OSError(f"{entry['name']} is listed in {folder}")
    if kind == "directory":
        return fs.FileInfo(entry["name"].rstrip("/"), fs.FileType.Directory)
    if entry.get("size") is None:
        raise OSError(f"{entry['name']} is listed without its size")
    return fs.FileInfo(entry["name"], fs.FileType.File if kind == "file" else fs.FileType.Unknown, size=entry["size"])


def _open(url: str) -> tuple[Any, str]:
    parts = urlsplit(url)
    if ":" in parts.netloc.rpartition("@")[0]:
        remedy = "a URL must not hold a password: give credentials through the environment or the machine's role"
        raise InputError("--out", f"{parts.scheme}://…", remedy)
    try:
        native, path = fs.FileSystem.from_uri(url)
        if not isinstance(native, fs.PyFileSystem):
            return native, path
        reason = "leaves it to fsspec"
    except (pa.ArrowException, OSError, ValueError, ImportError) as error:
        reason = str(error).splitlines()[0]
    import fsspec  # type: ignore[import-untyped]

    try:
        plain = url.removeprefix("fsspec+")  # as pyarrow reads it
        found, path = fsspec.core.url_to_fs(plain, use_listings_cache=False, skip_instance_cache=True)
    except (ValueError, ImportError) as error:
        remedy = f"cannot be opened (pyarrow: {reason}; fsspec: {error}): check the URL, or install what it needs"
        raise InputError("--out", url, remedy) from None
    return fs.PyFileSystem(_Handler(found)), path
