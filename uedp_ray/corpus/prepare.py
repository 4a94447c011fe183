"""``prepare``: turns text into a user corpus on disk, with its sensitive entities found and its incidence graph indexed.

    statistics = prepare(SourceConfig(path="eng.train", format="conll"), "corpora/conll")
    statistics["users"], statistics["sensitive_sentences"]["all"]

It is an external group-by: rows are read once, spilled to buckets by a hash of the user, and each bucket becomes a shard:
entities are found in whole rows, which are then cut into sentences. In memory are one bucket (a user is never split) and a
few numbers for every user, distinct entity and word.

    corpus.json                statistics and manifest
    shards/part-00000.parquet  sentences, a user's together: user, slot, text, label, tags, entities
    index/*.npy                arrays described in store.py
    entities.parquet           category and form, in the order of entity ids
    cache/                     findings of costly detectors, by detector and text

All of it is private, the statistics too, and readable by the owner only.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import DTypeLike, NDArray

from uedp_ray.access import require_token
from uedp_ray.config import SourceConfig
from uedp_ray.corpus._inherited import categories_of, detectors_of
from uedp_ray.corpus._shards import PARTIAL, ShardResult, ShardTask, leave_result, prepare_shard, take_result
from uedp_ray.corpus._spill import Spill
from uedp_ray.corpus.categories import expand
from uedp_ray.corpus.detectors import build_detectors, file_of
from uedp_ray.corpus.overlap import Distinct, smallest, union
from uedp_ray.corpus.readers import numbered, read_rows, source_bytes
from uedp_ray.corpus.store import FORMAT_VERSION, MADE, open_corpus
from uedp_ray.errors import InputError
from uedp_ray.interrupts import ray_started
from uedp_ray.reporting import SILENT, Reporter
from uedp_ray.storage.files import checksum, find_other, make_folder, replacing
from uedp_ray.storage.locks import INSIDE, folder_locked
from uedp_ray.storage.open import folder_only

_BYTES_PER_SHARD = 1 << 24
_SHARDS = (8, 4096)  # at least 8, so that workers have something to share whatever their number
_PROGRESS_EVERY = 10_000
_LENGTHS = (32, 64, 128)
_ENTITIES = pa.schema({"category": pa.string(), "form": pa.string()})

_log = logging.getLogger(__name__)


def prepare(
    source: SourceConfig,
    out: str | Path,
    *,
    num_shards: int | None = None,
    workers: int = 1,
    protected: bool = True,
    reporter: Reporter = SILENT,
) -> dict[str, Any]:
    """Writes the prepared corpus ``out`` and returns its statistics.

    Args:
      num_shards: more shards, less memory; by default one per 16 MiB of text, at least 8. It decides the numbering of
        users, so two preparations agree only if it is the same. ``workers`` decides nothing but speed.
      workers: processes that detect entities; above 1 they are Ray tasks, on the cluster the process is connected to
        (its nodes must share the file system) or on a local one started for the purpose.
      protected: False for text that is not protected, in which no entity need be found.

    Guarantees: ``out`` is complete or unchanged. A prepared corpus already there is replaced, its cache of findings kept
    (also when this run fails), so other categories do not run spaCy again.
    Raises: InputError if the source or a detector is unusable, holds no sentence, an entity list matches nothing, a
    category is neither known nor marked in the source, or ``out`` holds something else or is being prepared elsewhere;
    RuntimeError if workers die.
    """
    if workers < 1:
        raise InputError("workers", workers, "must be 1 or more")
    if num_shards is not None and num_shards < 1:
        raise InputError("num_shards", num_shards, "must be 1 or more")
    out = folder_only(out).resolve()
    before = open_corpus(source.path) if source.format == "prepared" else None
    if before is not None and before.path.resolve() == out:
        raise InputError("out", str(out), "is the corpus that is read, whose entities would be lost: name a new folder")
    specs = tuple(_absolute(spec) for spec in source.detector)
    detectors = build_detectors(specs)
    categories = {category for detector in detectors for category in detector.categories}
    rows, users = read_rows(source), numbered(source)
    with _replacing(out) as work:
        spill = Spill(work / "buckets", num_shards or _default_num_shards(source))
        skipped = 0
        for number, row in enumerate(rows, start=1):
            if row.text.strip():
                spill.add(row)
                if "annotated" in specs:
                    categories.update(mention.category for mention in row.mentions)
            else:
                skipped += 1
            if number % _PROGRESS_EVERY == 0:
                reporter.prepared("read", number, None)
        buckets = spill.close()
        if not buckets:
            raise InputError("path", source.path, "holds no sentence")
        keep = expand(source.categories, categories) if source.categories else None
        (work / "shards").mkdir()
        tasks = [
            ShardTask(
                bucket=bucket,
                shard=work / "shards" / f"part-{number:05d}.parquet",
                cache=out / "cache",
                detectors=specs,
                keep=keep,
                max_words=source.max_words,
            )
            for number, bucket in enumerate(buckets)
        ]
        with closing(_Index(work)) as index:  # cleaning up after a failure needs to open files
            for done, result in enumerate(_run(tasks, workers), start=1):
                index.add(result)
                reporter.prepared("detect", done, len(tasks))
            for spec, found in zip(specs, index.found, strict=True):
                if file_of(spec) is not None and not found:
                    remedy = "the entity list matches nothing: check its spelling and language"
                    raise InputError("detector", spec, remedy)
            finished = index.finish(keep or frozenset())
        statistics: dict[str, Any] = finished["statistics"]
        statistics["rows_without_words"] = skipped
        (work / "buckets").rmdir()
        manifest = finished | {
            "format_version": FORMAT_VERSION,
            "source_format": source.format if before is None else before.source_format,
            "names_users": users is None,
            "numbered": users,
            "detectors": detectors_of(specs, before),
            "fingerprints": [detector.fingerprint for detector in detectors],
            "categories": categories_of(keep, detectors, specs, before),
        }
        (work / "corpus.json").write_text(json.dumps(manifest, indent=2, sort_keys=True))
    if protected and not statistics["entities"]:
        where = source.where
        _log.warning(
            "no sensitive entity was found in %s: check its detector and categories (private: read off the text)", where
        )
    return statistics


class _Index:
    """Joins shard after shard: entities get global ids in the order of their first shard, the rest goes to disk."""

    def __init__(self, work: Path):
        self._folder, self._table = work / "index", work / "entities.parquet"
        folder = self._folder
        folder.mkdir()
        with ExitStack() as files:
            self._entities = files.enter_context(pq.ParquetWriter(self._table, _ENTITIES, write_page_checksum=True))
            names = ("entity_ids", "entity_counts", "sentence_words")
            self._files = {name: files.enter_context((folder / name).open("w+b")) for name in names}
            self._open = files.pop_all()
        self._hash = np.zeros(0, np.uint64)  # of every entity so far, ascending
        self._id = np.zeros(0, np.int32)  # in the order of _hash
        self._holders = np.zeros(0, np.int32)
        self._user_hash: list[NDArray[np.uint64]] = []
        self._user_names: list[NDArray[np.uint64]] = []
        self._text_sketch = np.zeros(0, np.uint64)
        self._user_counts: list[NDArray[np.int64]] = []
        self._shard_users: list[int] = [0]
        self._words = Distinct()
        self._mentions: Counter[str] = Counter()
        self._sensitive: Counter[str] = Counter()
        self._tokens = self._divided = self._divided_words = 0
        self._shards: list[str] = []
        self._has_labels = self._has_tags = False
        self.found: list[int] = []
        """Mentions by detector, before categories are applied."""

    def add(self, result: ShardResult) -> None:
        ids = self._numbered(result)
        self._files["entity_ids"].write(ids[result.entity_ids].tobytes())
        self._files["entity_counts"].write(result.entities_per_sentence.tobytes())
        self._files["sentence_words"].write(result.sentence_words.tobytes())
        self._user_hash.append(result.user_hash)
        self._user_names.append(result.user_names)
        self._text_sketch = smallest(self._text_sketch, result.text_sketch)
        self._user_counts.append(result.sentences_per_user)
        self._shard_users.append(self._shard_users[-1] + len(result.user_hash))
        self._words.add(result.word_hash)
        self._mentions += result.mentions
        self._sensitive += result.sensitive
        self._tokens += int(result.sentence_words.sum())
        self._divided += result.divided
        self._divided_words += result.divided_words
        self._shards.append(result.digest)
        self._has_labels |= result.has_labels
        self._has_tags |= result.has_tags
        self.found = [a + b for a, b in zip(self.found or [0] * len(result.found), result.found, strict=True)]

    def _numbered(self, result: ShardResult) -> NDArray[np.int32]:
        """Global ids of the shard's entities; new ones are written down, and the holders of all are counted."""
        place = np.searchsorted(self._hash, result.entity_hash)
        known = place < len(self._hash)
        known[known] = self._hash[place[known]] == result.entity_hash[known]
        new = np.flatnonzero(~known)
        ids = np.empty(len(known), np.int32)
        ids[known] = self._id[place[known]]
        ids[new] = len(self._id) + np.arange(len(new))
        categories, forms = ([result.entities[i][part] for i in new] for part in (0, 1))
        self._entities.write_table(pa.table([categories, forms], schema=_ENTITIES))
        new = new[np.argsort(result.entity_hash[new])]
        self._hash = np.insert(self._hash, place[new], result.entity_hash[new])
        self._id = np.insert(self._id, place[new], ids[new])
        self._holders = np.pad(self._holders, (0, len(new)))
        self._holders[ids] += result.entity_holders
        return ids

    def close(self) -> None:
        self._open.close()

    def finish(self, asked: frozenset[str]) -> dict[str, Any]:
        """Writes the arrays; returns digest, checksums and statistics (with zeros for ``asked`` categories without any)."""
        self._entities.close()
        user_counts = np.concatenate(self._user_counts)
        self._save("user_hash", np.concatenate(self._user_hash))
        self._save("user_names", union(*self._user_names))
        self._save("text_sketch", self._text_sketch)
        self._save("user_offsets", _offsets(user_counts))
        self._save("shard_users", np.array(self._shard_users, np.int64))
        self._save("entity_offsets", _offsets(self._take("entity_counts", np.int64)))
        self._save("entity_ids", self._take("entity_ids", np.int32))
        words = self._take("sentence_words", np.int32)
        self._save("sentence_words", words)
        self._save("entity_holders", self._holders)
        self._save("entity_hash", self._hash[np.argsort(self._id)])
        sensitive = dict.fromkeys(sorted(asked | set(self._sensitive) - {"all"}), 0) | {"all": 0} | self._sensitive
        statistics = {
            "users": len(user_counts),
            "sentences": int(user_counts.sum()),
            "tokens": self._tokens,
            "vocabulary": len(self._words),
            "entities": len(self._id),
            "sensitive_sentences": dict(sensitive),
            "max_holders": int(self._holders.max(initial=0)),
            "mentions": dict(sorted(self._mentions.items())),
            "share_of_words_beyond": {  # the first 32, 64, 128 of their sentence
                str(length): round(float(np.maximum(words - length, 0).sum() / self._tokens), 4) for length in _LENGTHS
            },
            "divided_for_max_words": {
                "sentences": self._divided,
                "share_of_words": round(self._divided_words / self._tokens, 4),
            },
        }
        return {
            "digest": hashlib.sha256("".join(self._shards).encode()).hexdigest(),
            "shards": self._shards,
            "checksums": {path.stem: checksum(path) for path in (*sorted(self._folder.iterdir()), self._table)},
            "has_labels": self._has_labels,
            "has_tags": self._has_tags,
            "statistics": statistics,
        }

    def _take(self, name: str, dtype: DTypeLike) -> NDArray[Any]:
        with self._files[name] as file:
            file.flush()
            path = self._folder / name
            array = np.memmap(path, dtype, mode="r") if path.stat().st_size else np.zeros(0, dtype)
        path.unlink()  # the map, if any, stays valid until it is released
        return array

    def _save(self, name: str, array: NDArray[Any]) -> None:
        np.save(self._folder / f"{name}.npy", array, allow_pickle=False)


def _offsets(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    offsets = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=offsets[1:])
    return offsets


def _run(tasks: Sequence[ShardTask], workers: int) -> Iterator[ShardResult]:
    """Yields results in the order of the tasks, in whatever order they finish; at most ``workers`` run at once."""
    if workers == 1:
        yield from map(prepare_shard, tasks)
        return
    import ray

    if ray.is_initialized():
        yield from _spread(tasks, workers)
        return
    require_token(None)
    with ray_started(lambda: ray.init(address="local", num_cpus=workers, include_dashboard=False, log_to_driver=False)):
        try:
            yield from _spread(tasks, workers)
        finally:
            ray.shutdown()


def _spread(tasks: Sequence[ShardTask], workers: int) -> Iterator[ShardResult]:
    """``_run`` over the open Ray session."""
    import ray
    from ray.exceptions import RayError, RayTaskError

    remote = ray.remote(num_cpus=1)(leave_result)
    waiting, due = list(enumerate(tasks))[::-1], 0
    running: dict[Any, int] = {}
    finished: dict[int, Any] = {}
    try:
        while due < len(tasks):
            while waiting and len(running) < workers:
                number, task = waiting.pop()
                running[remote.remote(task)] = number
            for reference in ray.wait(list(running), num_returns=1)[0]:
                finished[running.pop(reference)] = reference
            while due in finished:
                yield take_result(ray.get(finished.pop(due)))
                due += 1
    except RayTaskError as error:
        raise error.cause from None  # the user's mistake, not Ray's report of it
    except RayError as error:  # after Ray's own retries
        died = f"a worker died each time ({type(error).__name__}), perhaps for lack of memory"
        raise RuntimeError(f"{died}: prepare with fewer workers, or with --workers 1") from None


def _default_num_shards(source: SourceConfig) -> int:
    if source.format == "prepared":
        return len(list(Path(source.path, "shards").iterdir()))
    return min(max(-(-source_bytes(source) // _BYTES_PER_SHARD), _SHARDS[0]), _SHARDS[1])


def _absolute(spec: str) -> str:
    """Makes the path in a spec absolute: workers may run in another folder."""
    kind, _, name = spec.partition(":")
    return f"{kind}:{Path(name).resolve()}" if name and Path(name).exists() else spec


def _check_target(out: Path) -> None:
    if not out.exists():
        return
    if not out.is_dir():
        raise InputError("out", str(out), "is a file: name a new folder")
    names = {path.name for path in out.iterdir()} - {"cache", INSIDE}
    if names and not {"corpus.json", "shards", "index", "entities.parquet"} <= names:
        raise InputError("out", str(out), "the folder holds something else: name a new folder or a prepared corpus")
    other = find_other(out, MADE)
    if other is not None:
        raise InputError("out", str(out), f"holds {other!r}, which is not part of a corpus: move it out of the folder")


@contextmanager
def _replacing(out: Path) -> Iterator[Path]:
    """Yields a fresh folder, renamed to ``out`` if the block succeeds. ``out/cache`` exists throughout, and stays.

    One process at a time; its lock ends with it, and the next one restores or removes what a killed one left.
    """
    busy = InputError("out", str(out), "another process is at work in this folder: wait for it, or name another")
    with ExitStack() as held:
        held.enter_context(folder_locked(out, wait=0.0, busy=busy))
        _check_target(out)  # before anything beside the folder is touched
        work = held.enter_context(replacing(out, private=True, made=MADE))
        cache = out / "cache"
        try:
            make_folder(out.parent)
            make_folder(cache, private=True)
            for left in cache.glob(f"*{PARTIAL}"):
                left.unlink()
            work.mkdir(mode=0o700)
            yield work
            shutil.copytree(cache, work / "cache", copy_function=_link)
        except BaseException:
            for folder in (cache, out):  # rmdir keeps a folder that holds anything
                with suppress(OSError):
                    folder.rmdir()
            raise


def _link(source: str, target: str) -> None:
    """Links the file under a second name, or copies it where the file system has no links."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)
