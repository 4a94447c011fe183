"""The ledger: an append-only file of privacy events, on disk before anything they pay for is released.

    >>> from pathlib import Path
    >>> from tempfile import TemporaryDirectory
    >>> from uedp_ray.privacy.ledger import Ledger, read_ledger
    >>> from uedp_ray.privacy.mechanisms.poisson import RoundMechanism
    >>> one = RoundMechanism(noise_multiplier=2.0, user_sampling_prob=0.05)
    >>> folder = TemporaryDirectory()
    >>> path = Path(folder.name, "ledger.jsonl")
    >>> ledger = Ledger.create(path, {"config_digest": "0613ade6", "private": True})
    >>> ledger.append("round", round=0, attempt=ledger.attempts(0), mechanism=one.to_dict(), private=True)["seq"]
    1
    >>> ledger.attempts(0)    # only now may the noised update of round 0 be used; again, it would be attempt 1
    1
    >>> size = path.write_bytes(path.read_bytes() + b'{"attempt":1')    # a crash while a line was written
    >>> [event["kind"] for event in read_ledger(path)]
    ['open', 'round']
    >>> folder.cleanup()

One JSON object per line: seq, kind, fields, prev (the digest of the line before) and digest (SHA-256 of the rest). A line
without its newline is a write that never finished, so what it would have paid for was never released. Contents are public.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

from uedp_ray.errors import InputError
from uedp_ray.privacy.mechanisms import ROUNDS
from uedp_ray.storage.files import check_own, write_atomically

FORMAT_VERSION = 1
_START = "0" * 64
_MAX_LINE = 1 << 16
"""The most bytes of a line; ours have fewer than a thousand."""
_RESERVED = frozenset({"seq", "kind", "prev", "digest"})


class Ledger:
    """A ledger open for appending by one process. Make one with ``create`` or ``open``."""

    def __init__(self, path: Path, events: list[dict[str, Any]], size: int):
        self._path, self._events, self._size = path, events, size
        self._attempts = Counter(event.get("round") for event in events if _is_charged(event))

    @classmethod
    def create(cls, path: str | Path, header: dict[str, Any]) -> Ledger:
        """Starts a ledger with an ``open`` event that holds ``header``: whole or absent, whatever happens.

        Only one process at a time may use it: callers hold a lock. Raises: InputError if the file exists.
        """
        path = Path(path)
        if path.exists():
            raise InputError("ledger", str(path), "exists already: resume the run, or choose another folder")
        event, line = _chained(-1, _START, "open", {"header": {"format_version": FORMAT_VERSION, **header}})
        write_atomically(path, line)
        return cls(path, [event], len(line))

    @classmethod
    def open(cls, path: str | Path, *, config_digest: str | None = None, charged: int = 0) -> Ledger:
        """Verifies the whole chain and cuts off a torn last line.

        Args:
          charged: how many lines it is known to have had. If one of them has only lost its line end, that is restored.

        Raises: InputError naming the first line that fails, when the header's config digest differs, or when fewer lines
          are left than were charged, and for a link. The file then stays as it was.
        """
        path = Path(path)
        check_own(path)
        events, size = _read(path)
        found = events[0]["header"].get("config_digest")
        if config_digest is not None and found != config_digest:
            raise InputError(
                "ledger",
                f"config {str(found)[:12]} in the ledger, {config_digest[:12]} given",
                "resume with the run's own config.yaml, or start a new run in another folder",
            )
        with path.open("rb") as file:
            file.seek(size)
            torn = file.read(_MAX_LINE)
        last = _event(torn + b"\n", len(events), events[-1]["digest"]) if len(events) < charged else None
        check_uncut(path, len(events) + (last is not None), charged)
        if last is not None:
            events, size = [*events, last], size + len(torn) + 1
            with path.open("ab") as file:
                file.write(b"\n")
                file.flush()
                os.fsync(file.fileno())
        elif torn:
            with path.open("r+b") as file:
                file.truncate(size)
                os.fsync(file.fileno())
        return cls(path, events, size)

    def append(self, kind: str, **fields: Any) -> dict[str, Any]:
        """Writes one event; it is on disk when this returns. Returns the event with its seq, prev and digest.

        Raises: OSError if it could not be written (the file is restored; release nothing); InputError for a reserved
        field name or a file that somebody else wrote to.
        """
        for name in fields:
            if name in _RESERVED:
                raise InputError("field", name, "is reserved by the ledger: choose another name")
        event, line = _chained(*self.position, kind, fields)
        descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND)
        try:
            if os.fstat(descriptor).st_size != self._size:
                raise InputError("ledger", str(self._path), "another process wrote to it: stop one of the two runs")
            try:
                written = 0
                while written < len(line):
                    written += os.write(descriptor, line[written:])
                os.fsync(descriptor)
            except OSError as error:
                with contextlib.suppress(
                    OSError
                ):  # a torn line is cut on opening; a complete one is charged: both are safe
                    os.ftruncate(descriptor, self._size)
                    os.fsync(descriptor)
                reason = f"{error.strerror}: event not recorded, so the round was not released"
                raise OSError(error.errno, reason, str(self._path)) from error
        finally:
            os.close(descriptor)
        self._size += len(line)
        self._events.append(event)
        if _is_charged(event):
            self._attempts[event.get("round")] += 1
        return event

    @property
    def events(self) -> list[dict[str, Any]]:
        """Every event, ``open`` first. A new list."""
        return list(self._events)

    @property
    def header(self) -> dict[str, Any]:
        """What ``create`` was given, and the format version."""
        return self._events[0]["header"]

    @property
    def position(self) -> tuple[int, str]:
        """(seq, digest) of the last event; a checkpoint stores it."""
        return self._events[-1]["seq"], self._events[-1]["digest"]

    def attempts(self, round: int) -> int:  # noqa: A002 - the event's own field name
        """How many times this round has been charged; also the number of its next attempt."""
        return self._attempts[round]

    def require_position(self, seq: int, digest: str) -> None:
        """Raises: InputError if a checkpoint's position is not in this ledger (it was cut short, or is another run's)."""
        if not 0 <= seq < len(self._events) or self._events[seq]["digest"] != digest:
            raise InputError(
                "checkpoint.ledger_position",
                (seq, digest[:12]),
                f"is not in {self._path}: restore the complete ledger",
            )


def _is_charged(event: dict[str, Any]) -> bool:
    """Whether it is of a round. One whose number is no number, as only somebody else's ledger has, is of none."""
    return event["kind"] in ROUNDS and isinstance(event.get("round"), int | float)


def check_uncut(path: Path, num_events: int, charged: int) -> None:
    """Raises: InputError if a ledger has fewer lines than were charged."""
    if num_events < charged:
        remedy = f"has {num_events} lines, of {charged} that were charged: restore the complete ledger"
        raise InputError("ledger.jsonl", str(path), remedy)


def read_ledger(path: str | Path) -> list[dict[str, Any]]:
    """Every event, verified, without changing the file.

    Raises: InputError naming the first line that is not what ``append`` would have written. What its fields say is
    checked by ``events.charges``.
    """
    return _read(Path(path))[0]


def _read(path: Path) -> tuple[list[dict[str, Any]], int]:
    """Events and the size in bytes of the complete lines."""
    events: list[dict[str, Any]] = []
    size, prev = 0, _START
    if path.is_dir():
        raise InputError("ledger", str(path), f"is a folder: name the file {path / 'ledger.jsonl'}")
    if not path.is_file():
        raise InputError("ledger", str(path), "is not a regular file" if os.path.lexists(path) else "no such file")
    with path.open("rb") as file:
        for number, line in enumerate(iter(lambda: file.readline(_MAX_LINE), b""), 1):
            if not line.endswith(b"\n"):
                if len(line) == _MAX_LINE:
                    raise InputError("ledger", f"{path}, line {number}", f"has over {_MAX_LINE} bytes: not a ledger")
                break  # torn
            event = _event(line, len(events), prev)
            if event is None:
                remedy = "does not fit the chain: the file was changed; restore a copy"
                raise InputError("ledger", f"{path}, line {number}", remedy)
            events.append(event)
            size, prev = size + len(line), event["digest"]
    if not events:
        raise InputError(
            "ledger", str(path), "holds no complete line: restore a copy, or start again in another folder"
        )
    header = events[0].get("header")
    if not isinstance(header, dict):
        raise InputError("ledger.header", header, "must be a mapping: this is not a ledger of uedp-ray")
    version = header.get("format_version")
    if type(version) is not int or version != FORMAT_VERSION:
        raise InputError("ledger.format_version", version, f"this version reads {FORMAT_VERSION}")
    return events, size


def _event(line: bytes, seq: int, prev: str) -> dict[str, Any] | None:
    """The event of a line that is, byte for byte, what ``append`` would have written there; else None."""
    try:
        event = json.loads(line)
        good = (
            isinstance(event, dict)
            and type(event["seq"]) is int
            and event["seq"] == seq
            and event["prev"] == prev
            and event["digest"] == _digest({key: value for key, value in event.items() if key != "digest"})
            and isinstance(event["kind"], str)
            and (event["kind"] == "open") == (seq == 0)
            and line == (_canonical(event) + "\n").encode()  # no duplicate key, no other spelling of a number
        )
    except (ValueError, KeyError, RecursionError):
        return None
    return event if good else None


def _chained(seq: int, prev: str, kind: str, fields: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
    """The event that follows (seq, prev), as it will be read, and its line. Raises: InputError if the line is too long."""
    event = {"seq": seq + 1, "kind": kind, **fields, "prev": prev}
    event["digest"] = _digest(event)
    line = (_canonical(event) + "\n").encode()
    if len(line) >= _MAX_LINE:
        raise InputError("event", kind, f"takes {len(line)} bytes, and a line at most {_MAX_LINE}: record less")
    return json.loads(line), line


def _canonical(event: dict[str, Any]) -> str:
    return json.dumps(event, sort_keys=True, separators=(",", ":"), allow_nan=False)


def _digest(event: dict[str, Any]) -> str:
    return hashlib.sha256(_canonical(event).encode()).hexdigest()
