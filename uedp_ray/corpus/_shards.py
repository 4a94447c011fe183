"""One bucket becomes one shard of the prepared corpus: users brought together, entities found, everything counted."""

from __future__ import annotations

import hashlib
import os
import secrets
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from uedp_ray.corpus._spill import MENTIONS, mention_rows, read_bucket, stable_hash
from uedp_ray.corpus.detectors import Detector, Findings, build_detectors, unite
from uedp_ray.corpus.records import Mention, Sentence, entity_form

SHARD_SCHEMA = pa.schema(
    {
        "user": pa.string(),
        "slot": pa.int32(),
        "text": pa.large_string(),
        "label": pa.string(),
        "tags": pa.list_(pa.string()),
        "entities": MENTIONS,
    }
)

PARTIAL = ".partial"
"""Ends the names of files of the cache that are being written."""
_KEPT = pa.schema({"mentions": MENTIONS})
_ROW_GROUP = 2048  # sentences: what reading one user costs at least, and what is in memory at once when reading


@dataclass(frozen=True, kw_only=True)
class ShardTask:
    """What a worker needs; plain values, so that it travels between processes."""

    bucket: Path
    shard: Path
    cache: Path
    detectors: tuple[str, ...]
    keep: frozenset[str] | None


@dataclass(kw_only=True)
class ShardResult:
    """What the shard adds to the index and the statistics; entities are numbered within the shard."""

    user_hash: NDArray[np.uint64]
    sentences_per_user: NDArray[np.int64]
    sentence_words: NDArray[np.int32]
    entities_per_sentence: NDArray[np.int64]
    entity_ids: NDArray[np.int32]
    entities: list[tuple[str, str]]
    entity_hash: NDArray[np.uint64]
    entity_holders: NDArray[np.int64]
    found: list[int]
    digest: str
    has_labels: bool
    has_tags: bool
    word_hash: NDArray[np.uint64]
    mentions: Counter[str]
    sensitive: Counter[str]


def prepare_shard(task: ShardTask) -> ShardResult:
    """Writes the shard and deletes the bucket. Users stand in the order of their first sentence in the bucket, a
    user's sentences in the order they were read."""
    table = read_bucket(task.bucket)
    rows_of: dict[str, list[int]] = {}
    for row, user in enumerate(table["user"].to_pylist()):
        rows_of.setdefault(user, []).append(row)
    table = table.take(pa.array([row for rows in rows_of.values() for row in rows], pa.int64()))
    sentences_per_user = np.array([len(rows) for rows in rows_of.values()], np.int64)
    slots = np.concatenate([np.arange(count, dtype=np.int32) for count in sentences_per_user])
    finders = [_Finder(detector, task.cache, table["text"]) for detector in build_detectors(task.detectors)]

    vocabulary: set[str] = set()
    mentioned: Counter[str] = Counter()
    sensitive: Counter[str] = Counter()
    entity_index: dict[tuple[str, str], int] = {}
    words: list[int] = []
    entities_per_sentence: list[int] = []
    entity_ids: list[int] = []
    with pq.ParquetWriter(task.shard, SHARD_SCHEMA, compression="zstd") as writer:
        for begin in range(0, table.num_rows, _ROW_GROUP):
            part = table.slice(begin, _ROW_GROUP)
            batch = sentences_of(part, "mentions")
            entities = []
            for sentence, *findings in zip(batch, *(finder.find(batch) for finder in finders), strict=True):
                kept = [(m, entity_form(sentence.text, m)) for m in unite(findings, task.keep)]
                keys = [(mention.category, form) for mention, form in kept if form]
                entities.append(mention_rows(mention for mention, form in kept if form))
                held = sorted({entity_index.setdefault(key, len(entity_index)) for key in keys})
                entities_per_sentence.append(len(held))
                entity_ids += held
                spoken = sentence.text.lower().split()
                words.append(len(spoken))
                vocabulary.update(spoken)
                mentioned.update(category for category, _ in keys)
                sensitive.update({category for category, _ in keys} | ({"all"} if keys else set()))
            columns = [part["user"], slots[begin : begin + _ROW_GROUP], part["text"], part["label"], part["tags"]]
            writer.write_table(pa.table([*columns, pa.array(entities, MENTIONS)], schema=SHARD_SCHEMA))
    for finder in finders:
        finder.close()
    task.bucket.unlink()

    owner = np.repeat(np.arange(len(rows_of)), sentences_per_user).repeat(entities_per_sentence)
    num_entities = max(len(entity_index), 1)
    pairs = np.unique(owner * num_entities + np.array(entity_ids, np.int64))  # (user, entity)
    return ShardResult(
        user_hash=_hashes(rows_of),
        sentences_per_user=sentences_per_user,
        sentence_words=np.array(words, np.int32),
        entities_per_sentence=np.array(entities_per_sentence, np.int64),
        entity_ids=np.array(entity_ids, np.int32),
        entities=list(entity_index),
        entity_hash=_hashes(map("\0".join, entity_index)),
        entity_holders=np.bincount(pairs % num_entities, minlength=len(entity_index)),
        found=[finder.found for finder in finders],
        digest=_digest_file(task.shard),
        has_labels=table["label"].null_count < table.num_rows,
        has_tags=table["tags"].null_count < table.num_rows,
        word_hash=_hashes(vocabulary),
        mentions=mentioned,
        sensitive=sensitive,
    )


def sentences_of(table: pa.Table, mentions: str) -> list[Sentence]:
    """Rows of a bucket or shard as sentences; ``mentions`` names the column that holds them."""
    rows: dict[str, list[Any]] = table.select(["user", "text", "label", "tags", mentions]).to_pydict()
    return [
        Sentence(user, text, label, None if tags is None else tuple(tags), tuple(Mention(**m) for m in held))
        for user, text, label, tags, held in zip(*rows.values(), strict=True)
    ]


class _Finder:
    """A detector on one shard, batch after batch, or its findings kept from an earlier run on the same text."""

    def __init__(self, detector: Detector, cache: Path, texts: pa.ChunkedArray):
        self._detector, self._seen, self.found = detector, 0, 0
        self._path: Path | None = None
        self._kept: Findings = []
        self._known = False
        if detector.cacheable:
            digest = hashlib.sha256(detector.fingerprint.encode())
            for text in texts:
                encoded = text.as_py().encode()
                digest.update(len(encoded).to_bytes(8, "little") + encoded)
            self._path = cache / f"{digest.hexdigest()}.parquet"
            if (rows := _kept(self._path)) is not None and len(rows) == len(texts):
                self._known = True
                self._kept = [tuple(Mention(**mention) for mention in row) for row in rows]

    def find(self, batch: list[Sentence]) -> Findings:
        if self._known:
            findings = self._kept[self._seen : self._seen + len(batch)]
            self._seen += len(batch)
        else:
            findings = self._detector.find(batch)
            if self._path is not None:
                self._kept += findings
        self.found += sum(map(len, findings))
        return findings

    def close(self) -> None:
        if self._path is None or self._known:
            return
        partial = self._path.with_name(f"{self._path.name}.{secrets.token_hex(4)}{PARTIAL}")
        rows = pa.array([mention_rows(mentions) for mentions in self._kept], MENTIONS)
        pq.write_table(pa.table({"mentions": rows}), partial)
        partial.chmod(0o600)
        os.replace(partial, self._path)  # whole or not at all: another worker or run may be reading


def _kept(path: Path) -> list[Any] | None:
    """The findings in a file of the cache; None if there are none, or it is damaged: they are made again."""
    try:
        table = pq.read_table(path, schema=_KEPT) if path.exists() else None
    except (pa.ArrowException, OSError) as error:
        if getattr(error, "errno", None) is not None:
            raise
        return None
    return None if table is None else table["mentions"].to_pylist()


def _hashes(texts: Iterable[str]) -> NDArray[np.uint64]:
    return np.array([stable_hash(text) for text in texts], np.uint64)


def _digest_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
