"""Atomic changes of files and folders, whatever is killed or full: each is complete or unchanged. And checked reads of them.

    >>> from pathlib import Path
    >>> from tempfile import TemporaryDirectory
    >>> from uedp_ray.storage.files import replacing, settle
    >>> folder = TemporaryDirectory()
    >>> run = Path(folder.name)
    >>> with replacing(run / "model") as new:    # beside run/model; becomes it, synced, if all goes well
    ...     new.mkdir()
    ...     size = (new / "weights").write_text("1")
    >>> with replacing(run / "model") as new:
    ...     new.mkdir()
    ...     raise ValueError("what fails midway")
    Traceback (most recent call last):
        ...
    ValueError: what fails midway
    >>> settle(run)    # removes, or puts back, what a kill left of such changes
    >>> [path.name for path in run.iterdir()], (run / "model" / "weights").read_text()
    (['model'], '1')
    >>> folder.cleanup()

Only one process may change a path at a time; see ``locks``.
"""

from __future__ import annotations

import errno
import functools
import json
import os
import re
import resource
import shutil
import stat
import tempfile
import tokenize
import zlib
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from uedp_ray.errors import InputError
from uedp_ray.fields import Check, Missing, Unexpected, record
from uedp_ray.jsontext import to_json

if TYPE_CHECKING:
    import numpy as np

_NEW, _OLD = ".uedp_ray.new", ".uedp_ray.old"  # not names a user would choose: such files are removed
_NATIVE = re.compile(r"os error (\d+)|code: (\d+)")
"""How Rust libraries such as safetensors and tokenizers report the number of a system error."""
_SHORT = re.compile(r"\d+ requested and \d+ written")
"""How NumPy reports that a disk is full."""
_OF_NFS = re.compile(r"\.nfs[0-9a-f]{16,}")
"""The name that NFS gives to a file that is removed while a process has it open."""
_MOST_JSON = 1 << 26
_COUNTED, _MOST_COUNTED, _MOST_LISTED = re.compile(r"(labels?|label2id|layers?|layer_types)$"), 1 << 15, 1 << 24
_SPENT = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EIO)


@contextmanager
def replacing(path: Path, *, private: bool = False, made: str | None = None) -> Iterator[Path]:
    """Yields a path at which the block creates a file or a folder, which then atomically replaces ``path``, synced to disk.

    An existing folder is set aside first; ``settle`` restores it if the process dies in between.

    Args:
      private: readable by the owner only, whatever the umask.
      made: what may be in the folder that is replaced, as for ``find_other``; by default what the new one has too.

    Raises: OSError naming the file and what is safe; InputError for a folder that holds anything else. The old content
      stays, and the partial one is deleted.
    """
    new, old = _beside(path, _NEW), _beside(path, _OLD)
    _settle(path)
    try:
        yield new
        _sync(new, private)
        if path.is_dir():
            _check_replaceable(path, new, made)
            os.replace(path, old)
        os.replace(new, path)
        sync_folder(path.parent)
        _remove(old)
    except BaseException as error:
        with suppress(OSError):
            _settle(path)
        failure = os_error(error)
        if failure is None:
            raise
        reason = failure.strerror or str(failure)
        again = f"{_remedy(failure)} and run again (train, compare and sweep with --resume)"
        message = f"{reason}; {path.name} keeps its last complete state: {again}"
        raise OSError(failure.errno, message, str(path)) from error


def holds_others(folder: Path, names: Collection[str]) -> bool:
    """Whether a folder has anything besides ``names`` and what ``replacing`` left of them."""
    return any(_becomes(path.name) not in names for path in folder.iterdir())


def find_other(folder: Path, made: str) -> str | None:
    """The first path beneath a folder, relative to it, that ``made`` does not match; None if there is none. What
    ``replacing`` left counts under its final name.

    ``made``: a regular expression for the paths that are made there; those of folders end in "/". See ``beneath``.
    """
    pattern = re.compile(made, re.DOTALL)
    for parent, folders, files in os.walk(folder):
        within = Path(parent).relative_to(folder)
        for name in sorted([*folders, *files]):
            path = (within / _becomes(name)).as_posix()
            linked = os.path.islink(Path(parent, name))  # only the link itself would be removed
            kinds = (path, f"{path}/") if linked else (f"{path}/",) if name in folders else (path,)
            if not any(pattern.fullmatch(kind) for kind in kinds) and not _OF_NFS.fullmatch(name):
                return (within / name).as_posix()
        folders[:] = [name for name in folders if _becomes(name) == name]
    return None


def beneath(name: str, made: str) -> str:
    """A regular expression for ``find_other`` that matches the folder ``name`` and what is made in it."""
    return f"{name}/(?:{made})?"


def _becomes(name: str) -> str:
    """The final name of a temporary entry of ``replacing``; any other name as it is."""
    temporary = name.startswith(".") and name.endswith((_NEW, _OLD))
    return name[1:].removesuffix(_NEW).removesuffix(_OLD) if temporary else name


def _check_replaceable(folder: Path, new: Path, made: str | None) -> None:
    if not new.is_dir():
        raise InputError(folder.name, str(folder), "is a folder where a file belongs: move it elsewhere")
    if made is None:
        paths = ((path, path.relative_to(new).as_posix()) for path in new.rglob("*"))
        made = "|".join(re.escape(f"{name}/" if path.is_dir() else name) for path, name in paths)
    other = find_other(folder, made)
    if other is not None:
        raise InputError(folder.name, str(folder), f"is about to be rebuilt without its {other!r}: move that elsewhere")


def write_atomically(path: Path, content: bytes, *, private: bool = False) -> None:
    """Writes a file atomically; see ``replacing``."""
    with replacing(path, private=private) as new, open(new, "wb") as file:
        file.write(content)


def check_room(folder: Path, size: int) -> None:
    """Raises: OSError (ENOSPC, EDQUOT, EFBIG) if ``folder`` has no room for another file of ``size`` bytes."""
    with tempfile.TemporaryFile(dir=folder) as file:  # has no name, so that no kill leaves it
        os.posix_fallocate(file.fileno(), 0, size)


def write_json(path: Path, value: Any, *, private: bool = False) -> None:
    """Writes a JSON file atomically; see ``jsontext``."""
    write_atomically(path, to_json(value).encode(), private=private)


def read_json(path: Path, fields: Mapping[str, Check], remedy: str, *, earlier: str | None = None) -> dict[str, Any]:
    """Reads the object in a JSON file.

    Args:
      fields: names that it must have, each with a check of its value; other names are accepted.
      remedy: what to do if it is missing or damaged. ``earlier``: if it lacks a name, as one that an earlier version wrote
        does; None: as if it is damaged.

    Raises: InputError if it is missing or damaged.
    """
    try:
        check_regular(path, remedy, most=_MOST_JSON)
        value = json.loads(path.read_bytes())
    except (ValueError, RecursionError):
        value = None
    except OSError as error:
        raise unusable(error, path.name, path, remedy) from None
    if not isinstance(value, dict):
        raise InputError(path.name, str(path), f"is damaged: {remedy}")
    try:
        record(fields)(value, "")
    except Unexpected as error:  # without its value, which may be private
        if earlier is not None and isinstance(error, Missing):
            raise InputError(path.name, str(path), f"lacks {error.key}: {earlier}") from None
        raise InputError(path.name, str(path), f"is damaged ({error}): {remedy}") from None
    return value


def read_hub_json(path: Path, remedy: str) -> dict[str, Any]:
    """Checks settings of a network or a tokenizer before transformers, which allocates each label and layer, reads them.

    Raises: InputError as ``read_json`` does, and for more labels or layers than any network has, or tokens.
    """
    settings = read_json(path, {}, remedy)
    found: list[Any] = [settings]
    while found:
        each = found.pop()
        for key, value in each.items() if isinstance(each, dict) else enumerate(each):
            many = len(value) if isinstance(value, dict | list) else value
            most = _MOST_COUNTED if _COUNTED.search(str(key)) else _MOST_LISTED if isinstance(each, list) else None
            if most is not None and isinstance(many, int) and many > most:
                raise InputError(path.name, str(path), f"is damaged ({key} is more than {most:,}): {remedy}")
            if isinstance(value, dict | list):
                found.append(value)
    return settings


def load_array(path: Path, *, mapped: bool = False) -> np.ndarray:
    """The array in a ``.npy`` file. Raises: OSError; ValueError if it is damaged, in whatever way."""
    import numpy as np

    try:
        found: np.ndarray = np.load(path, mmap_mode="r" if mapped else None, allow_pickle=False)
        return found
    except (
        EOFError,
        SyntaxError,
        TypeError,
        OverflowError,
        tokenize.TokenError,
    ) as error:  # NumPy parses headers as Python
        raise ValueError(f"{path.name} is not an array") from error


def checksum(path: Path) -> str:
    """Size and CRC-32 of a file: they detect a flipped bit, but not a deliberate forgery."""
    with path.open("rb") as file:
        crc = functools.reduce(lambda crc, part: zlib.crc32(part, crc), iter(lambda: file.read(1 << 20), b""), 0)
        return f"{file.tell()} {crc:08x}"


def has_checksum(path: Path, expected: object) -> bool:
    """Whether a file still has the expected checksum. A file of another size is not read."""
    return str(expected).split(" ")[0] == str(path.stat().st_size) and checksum(path) == expected


def check_regular(path: Path, remedy: str, *, most: int | None = None) -> None:
    """Refuses files that might be read for ever (a pipe, a device) or that have more than ``most`` bytes.

    Raises: InputError; OSError if nothing is there.
    """
    found = path.stat()
    if not stat.S_ISREG(found.st_mode):
        raise InputError(path.name, str(path), f"is not a regular file: {remedy}")
    if most is not None and found.st_size > most:
        raise InputError(path.name, str(path), f"is damaged (larger than {most} bytes): {remedy}")


def check_own(path: Path) -> None:
    """Raises: InputError for a link where a file or folder is changed in place: it may lead to any other."""
    if path.is_symlink():
        raise InputError(path.name, str(path), "is a link, and would be written to: put there what it leads to")


def unusable(error: OSError, field: str, path: Path, remedy: str) -> Exception:
    """The error to raise for a file that cannot be read: an InputError, unless the machine is out of a resource."""
    if error.errno in _SPENT:
        return error
    reason = "is missing" if isinstance(error, FileNotFoundError) else f"cannot be read ({error.strerror or error})"
    return InputError(field, str(path), f"{reason}: {remedy}")


def settle(folder: Path, names: Collection[str] | None = None) -> None:
    """Finishes or undoes changes to entries of ``folder`` that a kill interrupted: each is then as before, or as after.

    ``names``: the entries that are made here; None if all are. A folder that the user named may hold anything.
    """
    for entry in list(folder.iterdir()) if folder.is_dir() else ():
        name = entry.name[1:].removesuffix(_NEW).removesuffix(_OLD)
        if entry.name in (f".{name}{_NEW}", f".{name}{_OLD}") and (names is None or name in names):
            _settle(folder / name)


def _settle(path: Path) -> None:
    new, old = _beside(path, _NEW), _beside(path, _OLD)
    if old.exists() and not path.exists():
        os.replace(old, path)
    _remove(new)
    _remove(old)


def make_folder(path: Path, *, private: bool = False) -> None:
    """Creates a folder that survives a power cut; ``private``: it and the parents created for it are owner-only.

    Raises: InputError for a link in the place of a private one: another folder would become owner-only.
    """
    if private:
        check_own(path)
    missing = [each for each in (path, *path.parents) if not each.exists()]
    for each in reversed(missing):
        each.mkdir(mode=0o700 if private else 0o777, exist_ok=True)
        sync_folder(each.parent)
    for each in {path, *missing} if private else ():
        each.chmod(0o700)


@contextmanager
def owner_only() -> Iterator[None]:
    """What this process, and those that it starts, make within the block is owner-only, wherever they make it."""
    before = os.umask(0o077)
    try:
        yield
    finally:
        os.umask(before)


def make_private(folder: Path, root: Path) -> None:
    """Creates a folder in ``root``: both are owner-only, while folders above ``root`` may be shared."""
    root.parent.mkdir(parents=True, exist_ok=True)
    for each in (root, folder):
        make_folder(each, private=True)


def set_aside(path: Path) -> Path:
    """The path to which ``replacing`` sets the old ``path`` aside: the longest name that is created beside it."""
    return _beside(path, _OLD)


def to_be_removed(path: Path) -> Path:
    """The path beside ``path`` that ``settle`` removes."""
    return _beside(path, _NEW)


def sync_folder(folder: Path) -> None:
    """Makes renames in ``folder`` durable."""
    _fsync(folder)


def os_error(error: BaseException) -> OSError | None:
    """The system error that an exception is or reports; None if there is none."""
    if isinstance(error, OSError) and error.errno is None and _SHORT.match(str(error)):
        limited = (
            resource.getrlimit(resource.RLIMIT_FSIZE)[0] != resource.RLIM_INFINITY
        )  # NumPy does not say which of the two it was
        number = errno.EFBIG if limited else errno.ENOSPC
        return OSError(number, os.strerror(number))
    if isinstance(error, OSError):
        return error
    found = _NATIVE.search(str(error)) if isinstance(error, Exception) else None
    if found is None:
        return None
    number = int(found[1] or found[2])
    return OSError(number, os.strerror(number))


def _remedy(error: OSError) -> str:
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return "allow more open files (ulimit -n)"
    if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
        return "make it writable"
    if error.errno in (errno.ENOENT, errno.ENOTDIR):
        return "make sure that nothing else moves or deletes files there"
    if error.errno == errno.EFBIG:
        return "allow larger files (ulimit -f, or another file system)"
    if error.errno == errno.EIO:
        return "check the disk"
    return "free space" if error.errno in (errno.ENOSPC, errno.EDQUOT) else "fix that"


def _sync(path: Path, private: bool) -> None:
    """Syncs everything below ``path``, files first."""
    for root, folders, files in os.walk(path, topdown=False):
        for name in (*files, *folders):
            _finish(Path(root, name), private)
    _finish(path, private)


def _finish(path: Path, private: bool) -> None:
    if private:
        path.chmod(0o700 if path.is_dir() else 0o600)
    _fsync(path)


def _fsync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _beside(path: Path, role: str) -> Path:
    return path.with_name(f".{path.name}{role}")


def _remove(path: Path) -> None:
    if not path.is_dir() or path.is_symlink():
        path.unlink(missing_ok=True)
        return
    try:
        shutil.rmtree(path)
    except OSError as error:
        if error.errno not in (errno.EMFILE, errno.ENFILE):
            raise
        for folder, folders, files in os.walk(path, topdown=False):  # takes one descriptor; rmtree takes several
            for name in files:
                Path(folder, name).unlink()
            for name in folders:
                Path(folder, name).rmdir()
        path.rmdir()
