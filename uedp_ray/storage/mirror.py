"""A run or a sweep at a URL, and this node's copy of it. Starts on several nodes are kept apart by fencing tokens.

    mirror = Mirror("s3://bucket/runs/mine", Path("/scratch"))
    mirror.acquire()                                    # this start owns the run; the one before it can release no more
    mirror.root.mkdir(parents=True)
    Ledger.create(mirror.root / "ledger.jsonl", {})
    mirror.append(mirror.root / "ledger.jsonl")         # returns when the new lines are safe, and this start still owns it

Every start draws an epoch, a number above all before it with some random digits. Its name is the fencing token: every start
writes below its own, and nothing that another start wrote is ever written again.

    private/owners/000002-9f…                           epochs that were claimed; the greatest owns the run
    private/owners/000002-9f….ledger.jsonl              records that the next line's was started, if a listing omits it
    private/000002-9f…/ledger.jsonl/START-END           bytes START to END of an append-only file; the first holds all before
    private/000002-9f…/…                                key, prepared text, checkpoint: each as the newest epoch has it
    config.yaml, model/, result.json …                  what may be read by others, laid out as in a folder

Why no charged release is lost. A start (1) claims its epoch, (2) lists the epochs and gives up unless its own is the
greatest, (3) reads the ledger of the newest epoch that has one. For every event it (4) writes the new bytes, (5) lists the
epochs again, and (6) only then releases the round. Suppose an owner O released an event, and N, of a greater epoch, got past
(2). O's (5) did not see N's claim, so it began before N's (1) was over; O's (4) was over before that, and N's (3) began
after: N has the event, and N's first write holds it for those who come later. An owner that finds itself fenced off in (5)
releases nothing: its last event is charged for nothing, or not at all. This needs no lock and no conditional write, only
that a read or a listing sees every write that was over before it began. Some file systems omit a folder from a listing
when a request fails: an epoch's first (4) also records, beside the claims, that it has a ledger, and a listing without
such a ledger, or without the claim of the start that lists, is an error.

What remains: for the time of one round two starts may both compute, not release. A start that is halted between its last
look at the epochs and the copying of results may overwrite newer copies of ``result.json``, ``privacy.md`` and the like
with older ones; starts and sweeps do not read these copies themselves. ``private/`` is as private as on a disk.
"""

from __future__ import annotations

import hashlib
import re
import secrets
import shutil
import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from urllib.parse import urlsplit

from uedp_ray.errors import InputError
from uedp_ray.storage.base import WHOLE, Storage, StorageError
from uedp_ray.storage.files import make_private, replacing, write_atomically
from uedp_ray.storage.locks import locked
from uedp_ray.storage.objects import THREADS, Objects, below, download

OWNERS = "private/owners"
_EPOCH = re.compile(r"\d{6}-[0-9a-f]{8}")
_OF_EPOCH = re.compile(rf"private/(?:owners/)?({_EPOCH.pattern})")
_PART = re.compile(r"(\d{12})-(\d{12})")
_ANYTHING = ".*"
"""Any path, for ``replacing``: a node's copy may lose everything, since it is rebuilt at every start."""
_LOCK_WAIT = 60.0
_FETCH_WAIT = 3600.0
"""Seconds to wait for another process of this node that is fetching the corpora."""


class Mirror(Storage):
    """A run or a sweep at a URL, and this node's copy of it under ``root``. Pickles without its claim.

    Args:
      url: URL of the run or sweep.
      work: the folder for every node's copies: the same path on all nodes, since configurations name paths in it.
      parent: the sweep that a run belongs to.

    Raises: ``StorageError`` from every method, if the storage fails permanently.
    """

    def __init__(self, url: str, work: Path, parent: Mirror | None = None):
        super().__init__(work / folder_of(url))
        self.url, self._objects, self._work, self._parent = url, Objects(url), work, parent
        self._epoch: str | None = None
        self._lost: Exception | None = None
        """Why this start may do nothing more; raised at every attempt, in case a caller caught it."""
        self._sent: dict[Path, int] = {}
        self._replaced: set[str] = set()

    def __reduce__(self) -> tuple[type[Mirror], tuple[str, Path, Mirror | None]]:
        return Mirror, (self._objects.url, self._work, self._parent)

    def exclusive(self) -> AbstractContextManager[None]:
        """Admits one process of this node at a time. Raises: InputError if another holds it for a minute."""
        busy = InputError(
            "--out", self.address(self.root), "another process of this node is using it: stop one of the two"
        )
        return locked(self._lock_file("start"), wait=_LOCK_WAIT, busy=busy)

    def lock(self, path: Path) -> AbstractContextManager[None]:
        """Makes processes of this node run the block one at a time, for each path."""
        busy = InputError(
            "--out", str(path), "another process of this node has held it for an hour: check what it is doing"
        )
        return locked(self._lock_file(str(path)), wait=_FETCH_WAIT, busy=busy)

    def _lock_file(self, purpose: str) -> Path:
        # Not under ``root``, which is cleared: a process that holds a deleted lock file would hold nothing.
        name = hashlib.sha256(f"{self._objects.url}\0{purpose}".encode()).hexdigest()[:24]
        return self._work / ".locks" / name

    def child(self, path: Path) -> Mirror:
        """A run of this sweep, with its own claims; its ``get`` also fetches what the sweep's runs share."""
        return Mirror(below(self._objects.url, self._name(path)), self._work, parent=self)

    def address(self, path: Path) -> str:
        """The URL of a path, without its query."""
        return below(self._objects.url, self._name(path)).partition("?")[0]

    @property
    def owned(self) -> bool:  # type: ignore[override]
        """Whether this process has taken the run over; another start may have done so since."""
        return self._epoch is not None and self._lost is None

    def exists(self) -> bool:
        """Whether any start ever claimed it."""
        return bool(self._claimed())

    def seclude(self) -> None:
        super().seclude()
        self._objects.hide("")

    def clear(self) -> None:
        """Deletes this node's copy: a start trusts nothing that a node kept."""
        if self.root.exists():
            shutil.rmtree(self.root)

    def acquire(self) -> None:
        """Claims the URL: steps (1) and (2).

        Raises: InputError if another start came in between, or something else is stored there.
        """
        claims = self._claimed()
        if not claims and not self._objects.is_empty():
            raise InputError("--out", self.address(self.root), "is not empty and holds no run: name another place")
        number = 1 + max((int(claim[:6]) for claim in claims), default=0)
        self._epoch, self._lost = f"{number:06d}-{secrets.token_hex(4)}", None
        self._sent.clear()
        self._objects.hide("private")
        self._objects.tidy()
        try:
            self._objects.write(f"{OWNERS}/{self._epoch}", socket.gethostname().encode())
        except StorageError as error:
            raise unusable(self._objects.url, error) from error
        self._check()

    def append(self, path: Path) -> None:
        """Stores what was appended to a file since the last call: steps (4) and (5).

        Raises: ``StorageError`` or InputError if it must not be acted upon; from then on the start owns nothing.
        """
        epoch, sent, size = self._owner(), self._sent.get(path, 0), path.stat().st_size
        try:
            with path.open("rb") as file:
                file.seek(sent)
                content = file.read(size - sent)
            if content:
                self._objects.write(f"private/{epoch}/{self._name(path)}/{sent:012d}-{size:012d}", content)
                if not sent:
                    self._objects.write(f"{OWNERS}/{epoch}.{self._name(path)}", b"{}\n")
            self._check()
        except StorageError as error:
            reason = f"{error}; it may not be recorded, so nothing of it was released: run again with --resume"
            self._lost = StorageError(reason)
            raise self._lost from error
        self._sent[path] = size

    def restore(self, path: Path) -> str:
        """Writes everything appended so far to ``path``: step (3). Returns the epoch that has it, or "" if there is none.

        Raises: InputError if a part is missing.
        """
        records = self._objects.list(OWNERS)  # first: the listing after it must show everything on record here
        if self._epoch is not None and f"{OWNERS}/{self._epoch}" not in records:
            raise self._unlisted(f"{OWNERS}/{self._epoch}")
        index = records | self._objects.list("private")
        for epoch in reversed(_epochs(index)):
            prefix = f"private/{epoch}/{self._name(path)}/"
            ends: dict[int, int] = {}
            for key, size in index.items():
                part = _PART.fullmatch(key.removeprefix(prefix)) if key.startswith(prefix) else None
                # A part shorter than its name says was never finished, so nothing followed from it.
                if part and size == int(part[2]) - int(part[1]):
                    ends[int(part[1])] = max(int(part[2]), ends.get(int(part[1]), 0))
            if 0 not in ends:
                if f"{OWNERS}/{epoch}.{self._name(path)}" in records:  # it may have released what no older ledger has
                    raise self._unlisted(prefix)
                continue
            content = b""
            while len(content) in ends:
                first, end = len(content), ends.pop(len(content))
                content += self._objects.read(f"{prefix}{first:012d}-{end:012d}", end - first)
            if ends:
                where = self.address(path.parent) + f"/{prefix}{min(ends):012d}…"
                raise InputError(path.name, where, "what comes before it is missing: restore the storage's objects")
            make_private(path.parent, self.root)
            write_atomically(path, content)
            return epoch
        path.unlink(missing_ok=True)
        return ""

    def put(self, *paths: Path, commit: str = WHOLE) -> None:
        """Stores files and folders as this epoch's, in order. Later epochs get them until they put their own.

        ``commit``: the file of a folder that is written last, and without which the folder does not count.
        """
        epoch = self._owner()
        for path in paths:
            name = self._name(path)
            self._send(f"private/{epoch}/{name}", path, commit)
            if path.is_dir() and name not in self._replaced:  # checkpoints are large, and older ones useless
                self._replaced.add(name)
                index = self._objects.list("private")
                older = tuple(f"private/{other}/{name}/" for other in _epochs(index) if other < epoch)
                for key in index:
                    if key.startswith(older):
                        self._objects.delete(key)

    def publish(self, *paths: Path) -> None:
        """Copies paths to where others look for them, in order, skipping those that do not exist. Needs no claim."""
        if self._epoch is not None:
            self._check()
        for path in paths:
            if path.exists():
                self._send(self._name(path), path, WHOLE)

    def get(self, *paths: Path, commit: str = WHOLE, since: str = "") -> None:
        """Fetches each path as the newest epoch put it, or else as it was published; deletes paths that are not stored.

        Args:
          commit: as in ``put``. A folder is fetched only if its commit file differs from the one here.
          since: the earliest epoch that counts; if given, what was published does not count either.
        """
        own = [path for path in paths if path.is_relative_to(self.root)]
        if self._parent is not None:
            self._parent.get(*(path for path in paths if path not in own))
        if not own:
            return
        with self.lock(self.root):
            make_private(self.root, self.root)
            index = self._objects.list("private")
            for path in own:
                key = self._newest(self._name(path), commit, since, index)
                if key is None:
                    _remove(path)
                elif key.endswith(f"/{commit}"):
                    self._get_folder(key.removesuffix(f"/{commit}"), path, commit)
                else:
                    make_private(path.parent, self.root)
                    write_atomically(path, self._objects.read(key), private=True)

    def adopt(self, path: Path, folder: Path) -> Path:
        """Makes a corpus available to ``get`` on all nodes, copied to ``folder`` if it is elsewhere; returns its path."""
        if not path.is_relative_to(self.root):
            if self._parent is not None and path.is_relative_to(self._parent.root):
                return path
            make_private(folder.parent, self.root)
            with replacing(folder, private=True, made=_ANYTHING) as new:  # whatever modes the user's own has
                shutil.copytree(path, new, ignore=shutil.ignore_patterns("cache"))
            path = folder
        self.put(path)
        return path

    def _claimed(self) -> list[str]:
        names = (key.rpartition("/")[2] for key in self._objects.list(OWNERS))
        return sorted(name for name in names if _EPOCH.fullmatch(name))

    def _owner(self) -> str:
        if self._lost is not None:
            raise self._lost
        assert self._epoch is not None
        return self._epoch

    def _unlisted(self, key: str) -> StorageError:
        remedy = "run again, and if it is still missing, restore the storage's objects"
        return StorageError(f"{self._objects.url}: does not list {key}, which was written: {remedy}")

    def _check(self) -> None:
        claims, own = self._claimed(), self._owner()
        if max(claims, default="") > own:
            remedy = "another start has taken it over, and this one released nothing since: stop one of the two"
            self._lost = InputError("--out", self.address(self.root), remedy)
            raise self._lost
        if own not in claims:
            raise self._unlisted(f"{OWNERS}/{own}")

    def _newest(self, name: str, commit: str, since: str, index: dict[str, int]) -> str | None:
        """The key of a file, or of a folder's commit file."""
        for epoch in reversed(_epochs(index)):
            if epoch < since:
                return None
            for key in (f"private/{epoch}/{name}", f"private/{epoch}/{name}/{commit}"):
                if key in index:
                    return key
        published = None if since else self._objects.kind(name)
        if published == "folder":
            return f"{name}/{commit}" if self._objects.kind(f"{name}/{commit}") else None
        return name if published else None

    def _get_folder(self, prefix: str, path: Path, commit: str) -> None:
        mark = self._objects.read(f"{prefix}/{commit}")
        if (path / commit).exists() and (path / commit).read_bytes() == mark:
            return
        make_private(path.parent, self.root)
        keys = [key for key in self._objects.list(prefix) if key != f"{prefix}/{commit}"]
        with replacing(path, private=True, made=_ANYTHING) as new:
            new.mkdir(mode=0o700)
            download(self._objects, {key: new / key.removeprefix(f"{prefix}/") for key in keys})
            (new / commit).write_bytes(mark)

    def _send(self, key: str, path: Path, commit: str) -> None:
        if path.is_file():
            self._objects.upload(path, key)
            return
        if commit == WHOLE:
            write_atomically(path / WHOLE, secrets.token_hex(16).encode(), private=True)
        files = {f"{key}/{name}": file for name, file in _files(path).items() if name != commit}
        with ThreadPoolExecutor(THREADS) as pool:
            list(pool.map(self._objects.upload, files.values(), files))
        self._objects.upload(path / commit, f"{key}/{commit}")
        for old in self._objects.list(key).keys() - files.keys() - {f"{key}/{commit}"}:
            self._objects.delete(old)

    def _name(self, path: Path) -> str:
        return "/".join(path.relative_to(self.root).parts)


def _files(folder: Path) -> dict[str, Path]:
    """Files by relative name, without a corpus's cache of findings, which is useful only where the text is."""
    found = {path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*")) if path.is_file()}
    return {name: path for name, path in found.items() if not name.startswith("cache/")}


def _epochs(index: dict[str, int]) -> list[str]:
    return sorted({found[1] for found in map(_OF_EPOCH.match, index) if found})


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def unusable(url: str, error: StorageError, field: str = "--out") -> InputError:
    """The error to report for a storage that fails before anything is done."""
    return InputError(field, url, f"cannot be used ({error}): check the name, the permissions and the credentials")


def folder_of(url: str) -> Path:
    """The folder for a URL, laid out like it, so that a run's is inside its sweep's; URLs that differ by query differ."""
    parts = urlsplit(url)
    scheme = parts.scheme + (f"-{hashlib.sha256(parts.query.encode()).hexdigest()[:8]}" if parts.query else "")
    names = [name for name in parts.path.split("/") if name not in ("", ".", "..")]
    return Path(scheme, parts.netloc or "_", *names)
