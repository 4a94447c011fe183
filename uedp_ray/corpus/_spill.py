"""The external group-by: rows are appended to bucket files by a hash of their user, so that each user ends up in
one bucket and no more than one bucket need ever be in memory."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa

from uedp_ray.corpus.records import Sentence

MENTIONS = pa.list_(pa.struct({"category": pa.string(), "start": pa.int32(), "end": pa.int32()}))
SCHEMA = pa.schema(
    {
        "user": pa.string(),
        "text": pa.large_string(),
        "label": pa.string(),
        "tags": pa.list_(pa.string()),
        "mentions": MENTIONS,
        "running": pa.bool_(),
    }
)

_BUFFERED_SENTENCES = 8192
_BUFFERED_CHARACTERS = 1 << 22


def stable_hash(text: str) -> int:
    """64 bits of BLAKE2b, little endian: the same on every machine and in every process."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def mention_rows(mentions: Iterable[Any]) -> list[dict[str, Any]]:
    """Mentions as Arrow takes them."""
    return [{"category": m.category, "start": m.start, "end": m.end} for m in mentions]


def _size(sentence: Sentence) -> int:
    """A sentence's characters, and some for every tag and mention."""
    whole = len(sentence.user) + len(sentence.text) + len(sentence.label or "")
    parts = itertools.chain(sentence.tags or (), (mention.category for mention in sentence.mentions))
    return whole + sum(16 + len(part) for part in parts)


class Spill:
    """Bucket files in ``folder``. Memory: the buffer, for any number of buckets or sentences."""

    def __init__(self, folder: Path, num_buckets: int):
        self._folder, self._num_buckets = folder, num_buckets
        self._buffer: dict[int, list[Sentence]] = {}
        self._sentences = self._characters = 0
        folder.mkdir(mode=0o700)

    def add(self, sentence: Sentence) -> None:
        self._buffer.setdefault(stable_hash(sentence.user) % self._num_buckets, []).append(sentence)
        self._sentences += 1
        self._characters += _size(sentence)
        if self._sentences >= _BUFFERED_SENTENCES or self._characters >= _BUFFERED_CHARACTERS:
            self.flush()

    def flush(self) -> None:
        """Appends one Arrow stream to each bucket concerned: no file stays open, so there may be thousands."""
        for bucket, sentences in self._buffer.items():
            columns: dict[str, list[Any]] = {
                "user": [s.user for s in sentences],
                "text": [s.text for s in sentences],
                "label": [s.label for s in sentences],
                "tags": [s.tags for s in sentences],
                "mentions": [mention_rows(s.mentions) for s in sentences],
                "running": [s.running for s in sentences],
            }
            batch = pa.RecordBatch.from_pydict(columns, schema=SCHEMA)
            with (self._folder / f"{bucket:05d}.arrows").open("ab") as file, pa.ipc.new_stream(file, SCHEMA) as stream:
                stream.write_batch(batch)
        self._buffer = {}
        self._sentences = self._characters = 0

    def close(self) -> list[Path]:
        """Flushes and returns the buckets that hold anything, in order."""
        self.flush()
        return sorted(self._folder.iterdir())


def read_bucket(path: Path) -> pa.Table:
    """The bucket's sentences in the order they were added."""
    batches: list[pa.RecordBatch] = []
    size = path.stat().st_size
    with pa.OSFile(str(path)) as file:
        while file.tell() < size:
            batches += pa.ipc.open_stream(file)
    return pa.Table.from_batches(batches, schema=SCHEMA)
