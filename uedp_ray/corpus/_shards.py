"""Turns one bucket into one shard of the prepared corpus: groups users, finds entities in their rows, cuts rows into
sentences, and counts everything."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from uedp_ray.corpus._spill import MENTIONS, mention_rows, read_bucket, stable_hash
from uedp_ray.corpus._splitting import cut
from uedp_ray.corpus._windows import WINDOWS_VERSION, Window, windows
from uedp_ray.corpus.detectors import build_detectors, check_declared, unite
from uedp_ray.corpus.detectors.base import Detector, Findings
from uedp_ray.corpus.overlap import Sketch, user_names
from uedp_ray.corpus.records import Mention, Sentence, entity_form
from uedp_ray.errors import InputError
from uedp_ray.storage.tables import refusing_damage

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
"""The ending of names of cache files that are being written."""
_OTHERS = "others"
"""The name, among a result's arrays, of everything else that it holds."""
_KEPT = pa.schema({"mentions": MENTIONS})
_ROW_GROUP = 2048  # sentences: what reading one user costs at least, and what is in memory at once when reading
_ROWS = 256  # read, searched and cut at once


@dataclass(frozen=True, kw_only=True)
class ShardTask:
    """What a worker needs; plain values, so that it travels between processes."""

    bucket: Path
    shard: Path
    cache: Path
    detectors: tuple[str, ...]
    keep: frozenset[str] | None
    max_words: int


@dataclass(kw_only=True)
class ShardResult:
    """What the shard adds to the index and the statistics; entities are numbered within the shard."""

    user_hash: NDArray[np.uint64]
    user_names: NDArray[np.uint64]
    text_sketch: NDArray[np.uint64]
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
    divided: int
    divided_words: int
    word_hash: NDArray[np.uint64]
    mentions: Counter[str]
    sensitive: Counter[str]


def leave_result(task: ShardTask) -> Path:
    """Runs the task, and writes the result to a file beside the shard that only its owner can read. It names users and
    entities, and anyone who can read Ray's object store can read what Ray passes on."""
    path, result = task.shard.with_suffix(".result"), vars(prepare_shard(task))
    arrays = {name: value for name, value in result.items() if isinstance(value, np.ndarray)}
    others = json.dumps({name: value for name, value in result.items() if name not in arrays})
    with open(path, "wb", opener=partial(os.open, mode=0o600)) as file:
        np.savez(file, allow_pickle=False, **arrays, **{_OTHERS: np.frombuffer(others.encode(), np.uint8)})
    return path


def take_result(path: Path) -> ShardResult:
    """Reads and deletes what ``leave_result`` wrote in this very call of ``prepare``."""
    with np.load(path, allow_pickle=False) as file:
        arrays = dict(file)
    others = json.loads(arrays.pop(_OTHERS).tobytes())
    others |= {name: Counter(others[name]) for name in ("mentions", "sensitive")}
    others["entities"] = [(category, form) for category, form in others["entities"]]
    path.unlink()
    return ShardResult(**arrays, **others)


def prepare_shard(task: ShardTask) -> ShardResult:
    """Writes the shard and deletes the bucket. Users come in the order of their first sentence in the bucket, a
    user's sentences in the order they were read."""
    table = read_bucket(task.bucket)
    rows_of: dict[str, list[int]] = {}
    for row, user in enumerate(table["user"].to_pylist()):
        rows_of.setdefault(user, []).append(row)
    table = table.take(pa.array([row for rows in rows_of.values() for row in rows], pa.int64()))
    detectors = zip(task.detectors, build_detectors(task.detectors), strict=True)
    finders = [_Finder(spec, detector, task.cache, table) for spec, detector in detectors]

    with ShardBuilder(task.shard) as builder:
        for user in rows_of:
            builder.user(user)
        for begin in range(0, table.num_rows, _ROWS):
            batch = _rows_of(table.slice(begin, _ROWS))
            for row, *findings in zip(batch, *(finder.find(batch) for finder in finders), strict=True):
                # Everything that was found decides where to cut: sentences are the same whatever is protected.
                for pieces in cut(row, unite(findings, None), task.max_words):
                    for sentence in pieces:
                        mentions = sentence.mentions if task.keep is None else unite([sentence.mentions], task.keep)
                        kept = [(m, form) for m in mentions if (form := entity_form(sentence.text, m))]
                        builder.add(sentence, [m for m, _ in kept], [(m.category, form) for m, form in kept])
                    if len(pieces) > 1:
                        builder.divided(len(pieces))
    for finder in finders:
        finder.close()
    task.bucket.unlink()
    return builder.result([finder.found for finder in finders])


class ShardBuilder:
    """Writes a shard, sentence by sentence, each user's together, and counts what is in it."""

    def __init__(self, path: Path):
        self._path, self._writer = path, _ShardWriter(path)
        self._sentences_of_user: dict[str, int] = {}
        self._sketch = Sketch()
        self._vocabulary: set[str] = set()
        self._mentioned: Counter[str] = Counter()
        self._sensitive: Counter[str] = Counter()
        self._entity_index: dict[tuple[str, str], int] = {}
        self._words: list[int] = []
        self._entities_per_sentence: list[int] = []
        self._entity_ids: list[int] = []
        self._divided = self._divided_words = 0
        self._has_labels = self._has_tags = False

    def __enter__(self) -> ShardBuilder:
        return self

    def __exit__(self, *_: object) -> None:
        self._writer.close()

    def user(self, name: str) -> None:
        """Adds the next user, with or without sentences to come."""
        self._sentences_of_user[name] = 0

    def add(self, sentence: Sentence, mentions: list[Mention], held: Sequence[tuple[str, str]]) -> None:
        """Adds the next sentence of its user. ``held``: (category, form) of its entities, once for each mention."""
        self._writer.add(sentence, self._sentences_of_user[sentence.user], mentions)
        self._sentences_of_user[sentence.user] += 1
        ids = sorted({self._entity_index.setdefault(each, len(self._entity_index)) for each in held})
        self._entities_per_sentence.append(len(ids))
        self._entity_ids += ids
        self._sketch.add(sentence.user, sentence.text)
        spoken = sentence.text.lower().split()
        self._words.append(len(spoken))
        self._vocabulary.update(spoken)
        self._mentioned.update(category for category, _ in held)
        self._sensitive.update({category for category, _ in held} | ({"all"} if held else set()))
        self._has_labels |= sentence.label is not None
        self._has_tags |= sentence.tags is not None

    def divided(self, pieces: int) -> None:
        """Records that the last ``pieces`` sentences were a single one that was too long."""
        self._divided += 1
        self._divided_words += sum(self._words[-pieces:])

    def result(self, found: list[int]) -> ShardResult:
        """What was counted. ``found``: mentions by detector."""
        users = self._sentences_of_user
        sentences_per_user = np.array(list(users.values()), np.int64)
        owner = np.repeat(np.arange(len(users)), sentences_per_user).repeat(self._entities_per_sentence)
        num_entities = max(len(self._entity_index), 1)
        pairs = np.unique(owner * num_entities + np.array(self._entity_ids, np.int64))  # (user, entity)
        return ShardResult(
            user_hash=_hashes(users),
            user_names=user_names(users),
            text_sketch=self._sketch.hashes,
            sentences_per_user=sentences_per_user,
            sentence_words=np.array(self._words, np.int32),
            entities_per_sentence=np.array(self._entities_per_sentence, np.int64),
            entity_ids=np.array(self._entity_ids, np.int32),
            entities=list(self._entity_index),
            entity_hash=_hashes(map("\0".join, self._entity_index)),
            entity_holders=np.bincount(pairs % num_entities, minlength=len(self._entity_index)),
            found=found,
            digest=_digest_file(self._path),
            has_labels=self._has_labels,
            has_tags=self._has_tags,
            divided=self._divided,
            divided_words=self._divided_words,
            word_hash=_hashes(self._vocabulary),
            mentions=self._mentioned,
            sensitive=self._sensitive,
        )


def find(spec: str, detector: Detector, rows: list[Sentence]) -> Findings:
    """What the detector finds in each row, in the windows that it reads, by place in the row.

    Raises: InputError naming the detector by its ``spec`` if its findings are not as ``Detector`` requires: they would be
    lost, or assigned to other words, and stay unprotected.
    """
    if detector.reads == "marks":
        return _sound(spec, rows, [row.mentions for row in rows])
    seen = [list(windows(row) if detector.reads == "sentences" else (Window(row.text),)) for row in rows]
    flat = [Sentence(row.user, window.text) for row, held in zip(rows, seen, strict=True) for window in held]
    findings = iter(_sound(spec, flat, detector.find(flat)))
    return [  # a mention where two windows overlap is found in both
        tuple(dict.fromkeys(window.in_row(m) for window in held for m in next(findings))) for held in seen
    ]


def _sound(spec: str, texts: list[Sentence], answers: Iterable[Iterable[Mention]]) -> Findings:
    findings = [tuple(mentions) for mentions in answers]
    if len(findings) != len(texts):
        raise InputError(
            "detector", spec, "does not return one tuple of mentions for every sentence: it must, in order"
        )
    for sentence, mentions in zip(texts, findings, strict=True):
        if not all(0 <= m.start < m.end <= len(sentence.text) for m in mentions):
            remedy = "marks what is not part of its sentence: start and end count characters from 0, the end exclusive"
            raise InputError("detector", spec, remedy)
    return findings


def sentences_of(table: pa.Table, mentions: str) -> list[Sentence]:
    """Rows of a bucket or shard as sentences; ``mentions`` names the column that holds them."""
    rows: dict[str, list[Any]] = table.select(["user", "text", "label", "tags", mentions]).to_pydict()
    return [
        Sentence(user, text, label, None if tags is None else tuple(tags), tuple(Mention(**m) for m in held))
        for user, text, label, tags, held in zip(*rows.values(), strict=True)
    ]


def _rows_of(table: pa.Table) -> list[Sentence]:
    """Rows of a bucket."""
    running = table["running"].to_pylist()
    rows = zip(sentences_of(table, "mentions"), running, strict=True)
    return [replace(row, running=True) if runs else row for row, runs in rows]


class _ShardWriter:
    """Writes sentences to a Parquet file, row group by row group."""

    def __init__(self, path: Path):
        self._file = pq.ParquetWriter(path, SHARD_SCHEMA, compression="zstd", write_page_checksum=True)
        self._columns: tuple[list[Any], ...] = tuple([] for _ in SHARD_SCHEMA)

    def close(self) -> None:
        self._flush()
        self._file.close()

    def add(self, sentence: Sentence, slot: int, mentions: list[Mention]) -> None:
        row = (sentence.user, slot, sentence.text, sentence.label, sentence.tags, mention_rows(mentions))
        for column, value in zip(self._columns, row, strict=True):
            column.append(value)
        if len(self._columns[0]) == _ROW_GROUP:
            self._flush()

    def _flush(self) -> None:
        if self._columns[0]:
            arrays = [pa.array(column, field.type) for column, field in zip(self._columns, SHARD_SCHEMA, strict=True)]
            self._file.write_table(pa.table(arrays, schema=SHARD_SCHEMA))
        for column in self._columns:
            column.clear()


class _Finder:
    """Runs a detector on one shard, batch by batch, or returns its findings kept from an earlier run on the same text."""

    def __init__(self, spec: str, detector: Detector, cache: Path, rows: pa.Table):
        self._spec, self._detector, self._seen, self.found = spec, detector, 0, 0
        self._path: Path | None = None
        self._kept: Findings = []
        self._known = False
        if detector.cacheable:
            digest = hashlib.sha256(f"{detector.fingerprint} {WINDOWS_VERSION}".encode())
            for text, running, label in zip(rows["text"], rows["running"], rows["label"], strict=True):
                encoded = text.as_py().encode()
                head = len(encoded).to_bytes(8, "little") + bytes([running.as_py(), label.is_valid])
                digest.update(head + encoded)
            self._path = cache / f"{digest.hexdigest()}.parquet"
            if (kept := _kept(self._path)) is not None and len(kept) == len(rows):
                self._known = True
                self._kept = kept

    def find(self, batch: list[Sentence]) -> Findings:
        if self._known:
            findings = self._kept[self._seen : self._seen + len(batch)]
            self._seen += len(batch)
        else:
            findings = find(self._spec, self._detector, batch)
            if self._path is not None:
                self._kept += findings
        check_declared(self._spec, self._detector, findings)  # kept ones too: what it declares may have changed since
        self.found += sum(map(len, findings))
        return findings

    def close(self) -> None:
        if self._path is None or self._known:
            return
        partial = self._path.with_name(f"{self._path.name}.{secrets.token_hex(4)}{PARTIAL}")
        rows = pa.array([mention_rows(mentions) for mentions in self._kept], MENTIONS)
        pq.write_table(pa.table({"mentions": rows}), partial, write_page_checksum=True)
        partial.chmod(0o600)
        os.replace(partial, self._path)  # whole or not at all: another worker or run may be reading


def _kept(path: Path) -> Findings | None:
    """The findings in a file of the cache; None if there are none, or it is damaged: then the detector runs again."""
    try:
        with refusing_damage(InputError("path", str(path), "is damaged: delete it")):
            if not path.is_file():
                return None
            rows = pq.read_table(path, schema=_KEPT, page_checksum_verification=True)["mentions"].to_pylist()
            if any(None in mention.values() for row in rows for mention in row):
                return None
            return [tuple(Mention(**mention) for mention in row) for row in rows]
    except InputError:
        return None


def _hashes(texts: Iterable[str]) -> NDArray[np.uint64]:
    return np.array([stable_hash(text) for text in texts], np.uint64)


def _digest_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
