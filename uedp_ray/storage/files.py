"""Files and folders that are whole or as they were, whatever is killed or full; and what is read back from them.

    with replacing(run / "model") as new:           # beside run/model, which it becomes, synced, if all goes well
        save_model(model, new)
        vocabulary.save(new)
    settle(run)                                     # what a kill left of such changes is gone, or put back

Of those who change one path only one may be at it at a time; see ``locks``.
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
import tokenize
import zlib
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from uedp_ray.errors import InputError
from uedp_ray.fields import Check, Unexpected, record
from uedp_ray.jsontext import to_json

if TYPE_CHECKING:
    import numpy as np

_NEW, _OLD = ".uedp_ray.new", ".uedp_ray.old"  # no name of a user's: what bears it is removed
_NATIVE = re.compile(r"os error (\d+)|code: (\d+)")
"""How libraries in Rust, which safetensors and tokenizers are, tell the number of a system's error."""
_SHORT = re.compile(r"\d+ requested and \d+ written")
"""How NumPy says that a disk is full."""
_OF_NFS = re.compile(r"\.nfs[0-9a-f]{16,}")
"""What NFS makes of a file that is removed while a process has it open."""
_MOST_JSON = 1 << 26
_COUNTED, _MOST_COUNTED = re.compile(r"(labels?|label2id|layers?|layer_types)$"), 1 << 15
_SPENT = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EIO)


@contextmanager
def replacing(path: Path, *, private: bool = False, made: str | None = None) -> Iterator[Path]:
    """A path at which the block makes a file or a folder, which then takes the place of ``path``, whole and on disk.

    A folder in place is set aside first, and comes back by ``settle`` if the process dies in between.

    Args:
      private: readable by the owner only, whatever the umask.
      made: what may be in such a folder, as for ``find_other``; by default what the new one has too.

    Raises: OSError naming the file and what is safe; InputError for a folder that holds what nobody makes anew. The old
      content stays, and the partial one goes.
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
        message = f"{reason}; {path.name} keeps its last whole state: {again}"
        raise OSError(failure.errno, message, str(path)) from error


def holds_others(folder: Path, names: Collection[str]) -> bool:
    """Whether a folder has anything but these, and what ``replacing`` them left."""
    return any(_becomes(path.name) not in names for path in folder.iterdir())


def find_other(folder: Path, made: str) -> str | None:
    """The first path beneath a folder, relative to it, that is neither ``made`` there nor what ``replacing`` left of it.

    ``made``: a regular expression of all such paths; those of folders end in "/". See ``beneath``.
    """
    pattern = re.compile(made, re.DOTALL)
    for parent, folders, files in os.walk(folder):
        within = Path(parent).relative_to(folder)
        for name in sorted([*folders, *files]):
            path = (within / _becomes(name)).as_posix()
            linked = os.path.islink(Path(parent, name))  # of which the link is removed, and nothing behind it
            kinds = (path, f"{path}/") if linked else (f"{path}/",) if name in folders else (path,)
            if not any(pattern.fullmatch(kind) for kind in kinds) and not _OF_NFS.fullmatch(name):
                return (within / name).as_posix()
        folders[:] = [name for name in folders if _becomes(name) == name]
    return None


def beneath(name: str, made: str) -> str:
    """What ``find_other`` lets be in a folder: a regular expression of the folder ``name`` and of what is made in it."""
    return f"{name}/(?:{made})?"


def _becomes(name: str) -> str:
    """The name of what ``replacing`` was making under this one, if it was."""
    temporary = name.startswith(".") and name.endswith((_NEW, _OLD))
    return name[1:].removesuffix(_NEW).removesuffix(_OLD) if temporary else name


def _check_replaceable(folder: Path, new: Path, made: str | None) -> None:
    if not new.is_dir():
        raise InputError(folder.name, str(folder), "is a folder in the place of a file: move it elsewhere")
    if made is None:
        paths = ((path, path.relative_to(new).as_posix()) for path in new.rglob("*"))
        made = "|".join(re.escape(f"{name}/" if path.is_dir() else name) for path, name in paths)
    other = find_other(folder, made)
    if other is not None:
        raise InputError(folder.name, str(folder), f"is made anew, without its {other!r}: move that elsewhere")


def write_atomically(path: Path, content: bytes, *, private: bool = False) -> None:
    """See ``replacing``."""
    with replacing(path, private=private) as new, open(new, "wb") as file:
        file.write(content)


def write_json(path: Path, value: Any, *, private: bool = False) -> None:
    """Whole or not at all; see ``jsontext``."""
    write_atomically(path, to_json(value).encode(), private=private)


def read_json(path: Path, fields: Mapping[str, Check], remedy: str) -> dict[str, Any]:
    """The object in a JSON file.

    Args:
      fields: names that it must have, each with a check of its value; others are let through.
      remedy: what to do if it is missing or damaged.

    Raises: InputError if it is not that.
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
    except Unexpected as error:  # without the value: it may be private
        raise InputError(path.name, str(path), f"is damaged ({error}): {remedy}") from None
    return value


def read_hub_json(path: Path, remedy: str) -> dict[str, Any]:
    """Settings of a network or a tokenizer, before transformers reads them: it makes an entry for each label or layer.

    Raises: InputError as ``read_json`` does, and for more of these than any network has.
    """
    settings = read_json(path, {}, remedy)
    found: list[Any] = [settings]
    while found:
        each = found.pop()
        pairs = each.items() if isinstance(each, dict) else enumerate(each)
        for key, value in pairs:
            many = len(value) if isinstance(value, dict | list) else value
            if _COUNTED.search(str(key)) and isinstance(many, int) and many > _MOST_COUNTED:
                raise InputError(path.name, str(path), f"is damaged ({key} is more than {_MOST_COUNTED:,}): {remedy}")
            if isinstance(value, dict | list):
                found.append(value)
    return settings


def load_array(path: Path, *, mapped: bool = False) -> np.ndarray:
    """The array in a ``.npy`` file. Raises: OSError; ValueError if there is none, whichever way it is damaged."""
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
    ) as error:  # it parses headers as Python
        raise ValueError(f"{path.name} is no array") from error


def checksum(path: Path) -> str:
    """Bytes and CRC-32 of a file: they tell a flipped bit from what was written, not what somebody made to match."""
    with path.open("rb") as file:
        crc = functools.reduce(lambda crc, part: zlib.crc32(part, crc), iter(lambda: file.read(1 << 20), b""), 0)
        return f"{file.tell()} {crc:08x}"


def has_checksum(path: Path, expected: object) -> bool:
    """Whether it is still that. A file of another size is not read."""
    return str(expected).split(" ")[0] == str(path.stat().st_size) and checksum(path) == expected


def check_regular(path: Path, remedy: str, *, most: int | None = None) -> None:
    """Raises: InputError for what might be read for ever, a pipe or a device, or has more than ``most`` bytes; OSError if
    nothing is there.
    """
    found = path.stat()
    if not stat.S_ISREG(found.st_mode):
        raise InputError(path.name, str(path), f"is no ordinary file: {remedy}")
    if most is not None and found.st_size > most:
        raise InputError(path.name, str(path), f"is damaged (larger than {most} bytes): {remedy}")


def unusable(error: OSError, field: str, path: Path, remedy: str) -> Exception:
    """What to raise for a file that cannot be read: the user's mistake, unless the machine is short of something."""
    if error.errno in _SPENT:
        return error
    reason = "is missing" if isinstance(error, FileNotFoundError) else f"cannot be read ({error.strerror or error})"
    return InputError(field, str(path), f"{reason}: {remedy}")


def settle(folder: Path, names: Collection[str] | None = None) -> None:
    """Ends what a kill interrupted among the entries of ``folder``: each is as before, or as after.

    ``names``: of entries that are made here; none for a folder in which everything is. A folder that the user named may hold
    anything.
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
    """Makes a folder that is there after a power cut; ``private``: it and those made for it are their owner's alone."""
    missing = [each for each in (path, *path.parents) if not each.exists()]
    for each in reversed(missing):
        each.mkdir(mode=0o700 if private else 0o777, exist_ok=True)
        sync_folder(each.parent)
    for each in {path, *missing} if private else ():
        each.chmod(0o700)


def make_private(folder: Path, root: Path) -> None:
    """Makes a folder in ``root``: both are their owner's alone, and what is above ``root`` may hold others' folders."""
    root.parent.mkdir(parents=True, exist_ok=True)
    for each in (root, folder):
        make_folder(each, private=True)


def set_aside(path: Path) -> Path:
    """The longest name that is made beside ``path``."""
    return _beside(path, _OLD)


def to_be_removed(path: Path) -> Path:
    """The name beside ``path`` of what ``settle`` removes."""
    return _beside(path, _NEW)


def sync_folder(folder: Path) -> None:
    """Makes renames in ``folder`` durable."""
    _fsync(folder)


def os_error(error: BaseException) -> OSError | None:
    """The system's error that an exception is or tells of, if it is such."""
    if isinstance(error, OSError) and error.errno is None and _SHORT.match(str(error)):
        limited = (
            resource.getrlimit(resource.RLIMIT_FSIZE)[0] != resource.RLIM_INFINITY
        )  # NumPy does not say which it was
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
        return "see that nothing else moves or deletes what is there"
    if error.errno == errno.EFBIG:
        return "allow larger files (ulimit -f, or another file system)"
    if error.errno == errno.EIO:
        return "look after the disk"
    return "free space" if error.errno in (errno.ENOSPC, errno.EDQUOT) else "mend that"


def _sync(path: Path, private: bool) -> None:
    """Everything below, files first."""
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
        for folder, folders, files in os.walk(path, topdown=False):  # with one descriptor; the above takes several
            for name in files:
                Path(folder, name).unlink()
            for name in folders:
                Path(folder, name).rmdir()
        path.rmdir()
