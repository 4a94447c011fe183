"""The prepared corpus: opened without reading any text, its graph memory-mapped, texts read for the requested users.

    corpus = open_corpus("corpora/conll")
    for user, texts in corpus.texts([0, 7]):
        ...

Users are 0..U-1, shard by shard; sentences 0..N-1, so that user u owns ``user_offsets[u]:user_offsets[u + 1]``; entities
0..E-1. Shape legend: U users, N sentences, E entities, I incidences (sentence, entity), S shards. Nothing here is public,
``digest`` and ``statistics`` included. A corpus opened for some categories only is, but for its ``digest``, the one that
``prepare`` would have made with them.
"""

from __future__ import annotations

import errno
import functools
import hashlib
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from uedp_ray.corpus._shards import SHARD_SCHEMA, sentences_of
from uedp_ray.corpus.categories import KNOWN, LISTED, expand
from uedp_ray.corpus.records import Sentence
from uedp_ray.errors import InputError, within
from uedp_ray.fields import Check, flag, list_of, record, string
from uedp_ray.storage.base import WHOLE
from uedp_ray.storage.files import beneath, check_regular, has_checksum, load_array, read_json
from uedp_ray.storage.locks import INSIDE
from uedp_ray.storage.tables import refusing_damage

FORMAT_VERSION = 3
MADE = "|".join(
    (
        r"corpus\.json|entities\.parquet",
        beneath("shards", r"part-\d{5,}\.parquet"),
        beneath("index", r"\w+\.npy"),
        beneath("cache", r"[0-9a-f]+\.parquet(?:\.[0-9a-f]+\.partial)?"),
        *map(re.escape, (INSIDE, WHOLE)),
    )
)
"""A regular expression, as for ``find_other``, of what is in the folder of a prepared corpus."""

T = TypeVar("T")


class Corpus:
    """A prepared corpus. Arrays are read-only: views of files, but for the graph of chosen categories.

    Args:
      categories: what is protected, of all that was prepared; names, aliases and groups as in ``categories.expand``. Empty:
        all of it. Entities of other categories leave the graph, and sentences without any left become extended entities;
        ``listed`` phrases stay.

    Attributes:
      statistics: what ``prepare`` returned.
      detectors, categories: how entities were found, and which are protected (None: all that were found).
      names_users: whether users have names that may be found in other sources. numbered: else what a user is.
      source_format: the format of the text that it was made of, if known.
      digest: SHA-256 over the shards: it differs for another corpus, order or set of findings, not for other categories.
      user_offsets: (U + 1,) int64. user_hash: (U,) uint64, stable hash of the user id. shard_users: (S + 1,) int64.
      user_names, text_sketch: what shows shared users and shared text, see ``overlap``; the first empty without names.
      entity_offsets: (N + 1,) int64 into entity_ids: (I,) int32, ascending and distinct within a sentence.
      entity_holders: (E,) int32, users holding the entity. entity_hash: (E,) uint64, stable hash of category and form.
      sentence_words: (N,) int32, whitespace words.
    """

    def __init__(self, path: str | Path, categories: Sequence[str] = ()):
        self.path = Path(path)
        manifest = _manifest(self.path)
        self._checksums: dict[str, str] = manifest["checksums"]
        self.statistics: dict[str, Any] = manifest["statistics"]
        self.detectors: list[str] = manifest["detectors"]
        self.categories: list[str] | None = manifest["categories"]
        self.digest: str = manifest["digest"]
        self.source_format = str(manifest.get("source_format", ""))
        self._listed: list[str] | None = manifest.get("shards")
        self.names_users: bool = manifest["names_users"]
        self.numbered: str | None = None if self.names_users else _plain(manifest.get("numbered"))
        self.has_labels: bool = manifest["has_labels"]
        self.has_tags: bool = manifest["has_tags"]
        self.user_offsets = self._load("user_offsets")
        self.user_hash = self._load("user_hash")
        self.shard_users = self._load("shard_users")
        self.entity_offsets = self._load("entity_offsets")
        self.entity_ids = self._load("entity_ids")
        self.entity_holders = self._load("entity_holders")
        self.entity_hash = self._load("entity_hash")
        self.sentence_words = self._load("sentence_words")
        self.text_sketch = self._load("text_sketch")
        self.user_names = self._load("user_names") if self.names_users else np.zeros(0, np.uint64)
        self._check_graph()
        if _manifest(self.path)["digest"] != self.digest:
            raise InputError("path", str(self.path), "was prepared again while it was read: start again")
        self._kept: NDArray[np.bool_] | None = None
        if categories:
            self._keep(categories)

    def _check_graph(self) -> None:
        """Checks that every offset and number is in range: later code indexes without checking."""
        users, sentences, entities = self.num_users, self.num_sentences, self.num_entities
        runs = (
            ("user_offsets", self.user_offsets, users, sentences),
            ("shard_users", self.shard_users, len(self.shard_users) - 1, users),
            ("entity_offsets", self.entity_offsets, sentences, len(self.entity_ids)),
        )
        for name, offsets, number, end in runs:
            good = offsets.dtype == np.int64 and offsets.shape == (number + 1,) and number > 0
            if not (good and offsets[0] == 0 and offsets[-1] == end and bool((np.diff(offsets) >= 0).all())):
                raise self._damaged(name)
        good = self.entity_ids.dtype == np.int32 and len(self.entity_holders) == entities
        if not (good and self.entity_ids.min(initial=0) >= 0 and self.entity_ids.max(initial=-1) < entities):
            raise self._damaged("entity_ids")
        for name in ("text_sketch", "user_names"):
            found = getattr(self, name)
            if found.dtype != np.uint64 or found.ndim != 1:
                raise self._damaged(name)

    @property
    def num_users(self) -> int:
        return len(self.user_hash)

    @property
    def num_sentences(self) -> int:
        return len(self.sentence_words)

    @property
    def num_entities(self) -> int:
        return len(self.entity_hash)

    def texts(self, users: Sequence[int] | NDArray[Any] | None = None) -> Iterator[tuple[int, list[str]]]:
        """(user, texts of its sentences in slot order), users ascending and each once; None is everyone.

        Memory: one row group (2,048 sentences) and one user. Only the row groups that hold the users are read, after the
        shard is verified to be the one that was prepared. Raises: InputError if it is not.
        """
        return self._read(users, ["text"], lambda table: table["text"].to_pylist())

    def labels(self, users: Sequence[int] | NDArray[Any] | None = None) -> Iterator[tuple[int, list[str | None]]]:
        """Classes, in the form of ``texts``. Raises: InputError if the corpus has none."""
        self._need(self.has_labels, "labels")
        return self._read(users, ["label"], lambda table: table["label"].to_pylist())

    def tags(self, users: Sequence[int] | NDArray[Any] | None = None) -> Iterator[tuple[int, list[list[str] | None]]]:
        """Parts of speech, one per whitespace word, in the form of ``texts``. Raises: InputError if there are none."""
        self._need(self.has_tags, "tags")
        return self._read(users, ["tags"], lambda table: table["tags"].to_pylist())

    def sentences(
        self, users: Sequence[int] | NDArray[Any] | None = None, *, every: bool = False
    ) -> Iterator[tuple[int, list[Sentence]]]:
        """Everything, protected mentions included, in the form of ``texts``. ``every``: unprotected ones, too."""
        columns = ["user", "text", "label", "tags", "entities"]

        def decode(table: pa.Table) -> list[Sentence]:
            found = sentences_of(table, "entities")
            return found if every else [self.protected(sentence) for sentence in found]

        return self._read(users, columns, decode)

    def protected(self, sentence: Sentence) -> Sentence:
        """The sentence with its protected mentions alone."""
        if self.categories is None:
            return sentence
        kept = {*self.categories, LISTED}
        return replace(sentence, mentions=tuple(each for each in sentence.mentions if each.category in kept))

    def pairs(
        self, users: Sequence[int] | NDArray[Any] | None = None
    ) -> Iterator[tuple[int, list[tuple[Sentence, str]]]]:
        """(user, its sentences with all mentions, each with the text that is read), in the form of ``texts``."""
        for user, sentences in self.sentences(users, every=True):
            yield user, [(sentence, sentence.text) for sentence in sentences]

    def entity_table(self) -> pa.Table:
        """Rows in the order of entity ids: category, form, holders."""
        table = self._entities(["category", "form"])
        if table.num_rows != (self.num_entities if self._kept is None else len(self._kept)):
            raise self._damaged("entities.parquet")
        if self._kept is not None:
            table = table.filter(pa.array(self._kept))
        return table.append_column("holders", pa.array(self.entity_holders))

    def _keep(self, categories: Sequence[str]) -> None:
        """Removes entities of all other categories from the graph. Raises: InputError for a category that is not in it."""
        column = self._entities(["category"])["category"]
        if len(column) != self.num_entities:
            raise self._damaged("entities.parquet")
        prepared = set(column.unique().to_pylist() if self.categories is None else self.categories)
        with within("corpus"):
            wanted = expand(categories, prepared)
        for name in categories:
            asked = expand([name], prepared)
            if self.categories is not None and asked - prepared:
                remedy = f"the corpus was prepared for {', '.join(self.categories)}: choose among these"
                raise InputError("corpus.categories", name, f"{remedy}, or prepare it again")
            if not asked & prepared:
                there = ", ".join(sorted(KNOWN - asked - {LISTED}))
                remedy = f"nothing of it was found when the corpus was prepared: choose another of {there}"
                raise InputError("corpus.categories", name, f"{remedy}, or prepare it with a detector that finds it")
        kept = pc.is_in(column, value_set=pa.array(sorted(wanted | {LISTED}))).to_numpy()
        held_I = kept[self.entity_ids]
        before_I = np.concatenate([[0], np.cumsum(held_I)])
        self.entity_offsets = _fixed(before_I[self.entity_offsets])
        new_ids = np.cumsum(kept, dtype=np.int32) - np.int32(1)
        self.entity_ids = _fixed(new_ids[self.entity_ids[held_I]])
        self.entity_holders = _fixed(self.entity_holders[kept])
        self.entity_hash = _fixed(self.entity_hash[kept])
        self._kept, self.categories = kept, sorted(wanted)
        self.statistics = self._statistics_of(wanted | {LISTED})

    def _statistics_of(self, kept: frozenset[str]) -> dict[str, Any]:
        def part(counts: dict[str, int]) -> dict[str, int]:
            return {category: count for category, count in counts.items() if category in kept}

        sensitive = dict.fromkeys(self.categories or (), 0) | part(self.statistics["sensitive_sentences"])
        return self.statistics | {
            "entities": self.num_entities,
            "max_holders": int(self.entity_holders.max(initial=0)),
            "mentions": part(self.statistics["mentions"]),
            "sensitive_sentences": dict(sorted(sensitive.items()))
            | {"all": int(np.count_nonzero(np.diff(self.entity_offsets)))},
        }

    def _entities(self, columns: list[str]) -> pa.Table:
        name = "entities.parquet"
        with self._reading(name):
            known = self._checksums.get("entities")  # None: of an older version
            if known is not None and not has_checksum(self.path / name, known):
                raise self._damaged(name)
            return pq.read_table(self.path / name, columns=columns, page_checksum_verification=True)

    @functools.cached_property
    def _shard_digests(self) -> list[str]:
        """SHA-256 of each shard. Raises: InputError if they are not those of ``digest``."""
        names = map(_shard_name, range(len(self.shard_users) - 1))
        digests = self._listed
        if digests is None:  # of an older version
            digests = []
            for name in names:
                with self._reading(name), (self.path / name).open("rb") as file:
                    digests.append(hashlib.file_digest(file, "sha256").hexdigest())
        if hashlib.sha256("".join(digests).encode()).hexdigest() != self.digest:
            raise self._damaged("shards")
        return digests

    def _load(self, name: str) -> NDArray[Any]:
        path = self.path / "index" / f"{name}.npy"
        try:
            check_regular(path, _AGAIN)
            if not has_checksum(path, self._checksums.get(name)):
                raise self._damaged(name)
            return load_array(path, mapped=True)
        except OSError as error:
            if error.errno in _SCARCE:
                raise
            raise self._damaged(name) from None
        except ValueError:
            raise self._damaged(name) from None

    def _damaged(self, name: str) -> InputError:
        return InputError("path", str(self.path), f"its {name} is missing or damaged: {_AGAIN}")

    @contextmanager
    def _reading(self, name: str) -> Iterator[None]:
        """Turns what Arrow reports of a damaged file into an InputError for the user."""
        try:
            check_regular(self.path / name, _AGAIN)
            with refusing_damage(self._damaged(name)):
                yield
        except OSError as error:
            if error.errno in _SCARCE:
                raise
            raise self._damaged(name) from None

    def _need(self, there: bool, what: str) -> None:
        if not there:
            raise InputError("path", str(self.path), f"the corpus has no {what}: prepare a source that carries them")

    def _read(
        self, users: Sequence[int] | NDArray[Any] | None, columns: list[str], decode: Callable[[pa.Table], list[T]]
    ) -> Iterator[tuple[int, list[T]]]:
        wanted = np.arange(self.num_users) if users is None else np.unique(np.asarray(users, np.int64))
        if len(wanted) and not 0 <= wanted[0] <= wanted[-1] < self.num_users:
            raise IndexError(f"users are numbered 0 to {self.num_users - 1}")
        cuts = np.searchsorted(wanted, self.shard_users)
        for shard in np.flatnonzero(np.diff(cuts)).tolist():
            first_row = self.user_offsets[self.shard_users[shard]]
            name, expected = _shard_name(shard), self._shard_digests[shard]
            with self._reading(name), (self.path / name).open("rb") as content, pq.ParquetFile(content) as file:
                content.seek(0)
                if hashlib.file_digest(content, "sha256").hexdigest() != expected:  # of the very file that is read
                    raise self._damaged(name)
                whole = file.metadata.num_rows == self.user_offsets[self.shard_users[shard + 1]] - first_row
                if not (whole and file.schema_arrow.equals(SHARD_SCHEMA)):
                    raise self._damaged(name)
                sizes = [file.metadata.row_group(group).num_rows for group in range(file.num_row_groups)]
                bounds = np.concatenate([[0], np.cumsum(sizes)])
                current, rows = -1, list[T]()
                for user in wanted[cuts[shard] : cuts[shard + 1]].tolist():
                    begin, end = (self.user_offsets[user : user + 2] - first_row).tolist()
                    values: list[T] = []
                    group = int(np.searchsorted(bounds, begin, "right")) - 1
                    while bounds[group] < end:
                        if group != current:
                            table = file.read_row_group(group, columns)
                            if any(table[column].null_count for column in columns if column in ("user", "text")):
                                raise self._damaged(name)
                            current, rows = group, decode(table)
                        values += rows[max(begin - bounds[group], 0) : end - bounds[group]]
                        group += 1
                        if group == len(sizes):
                            break
                    yield user, values


def _shard_name(number: int) -> str:
    return f"shards/part-{number:05d}.parquet"


def _fixed(array: NDArray[Any]) -> NDArray[Any]:
    array.flags.writeable = False
    return array


_AGAIN = "run prepare again"
_SCARCE = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EIO)
"""Errors of the machine: preparing again would not help."""
_MANIFEST: dict[str, Check] = {
    "statistics": record({}),
    "detectors": list_of(string()),
    "categories": list_of(string(), nothing=True),
    "digest": string(),
    "checksums": record({}),
    **dict.fromkeys(("names_users", "has_labels", "has_tags"), flag),
}
_NUMBERED = "a part of the text that its format marks"
"""What a user is where an earlier version, which did not record it, numbered them."""


def _plain(numbered: Any) -> str:
    """What a user is, if it is plain words: it is published, and a manifest may be a stranger's."""
    return numbered if isinstance(numbered, str) and re.fullmatch(r"[\w ,.()-]{1,200}", numbered) else _NUMBERED


def _manifest(path: Path) -> dict[str, Any]:
    if not (path / "corpus.json").is_file():
        remedy = "not a prepared corpus: write one with uedp-ray prepare SOURCE --out DIR"
        raise InputError("path", str(path), remedy)
    manifest = read_json(path / "corpus.json", {}, "run uedp-ray prepare again")
    if manifest.get("format_version") != FORMAT_VERSION:
        raise InputError("path", str(path), "prepared by another version: run uedp-ray prepare again")
    return read_json(path / "corpus.json", _MANIFEST, "run uedp-ray prepare again")


def of_earlier_version(path: str | Path) -> bool:
    """Whether an earlier version prepared the corpus in ``path``, so that this one cannot open it."""
    try:
        version = read_json(Path(path) / "corpus.json", {}, "").get("format_version")
    except InputError:  # missing or damaged
        return False
    return isinstance(version, int) and version < FORMAT_VERSION


def open_corpus(path: str | Path, categories: Sequence[str] = ()) -> Corpus:
    """Opens what ``prepare`` wrote, with these categories protected (empty: all that were found).

    Raises: InputError if ``path`` is not a prepared corpus, or a category is unknown or not in it.
    """
    return Corpus(path, categories)
