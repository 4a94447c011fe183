"""A tokenised corpus on disk: one flat array of token ids and one of offsets, memory-mapped by every worker.

    store = encode_corpus(open_corpus("data/prepared"), vocabulary, "run/tokens", max_length=64)
    store.sentence(0)       # (T,) int32, T <= 64, without the end token

Sentence ``i`` is the corpus's sentence ``i``; one that is empty after normalisation keeps its place with length 0. The
arrays are as private as the text.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import json
import math
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Protocol

import numpy as np
from numpy.typing import DTypeLike

from uedp_ray.config.choices import KEEPING_USERS_APART
from uedp_ray.corpus.records import Sentence
from uedp_ray.corpus.vocabulary import Vocabulary
from uedp_ray.errors import InputError
from uedp_ray.storage.base import WHOLE
from uedp_ray.storage.files import (
    beneath,
    check_regular,
    checksum,
    has_checksum,
    load_array,
    make_folder,
    replacing,
)
from uedp_ray.storage.locks import lock_beside, locked

if TYPE_CHECKING:
    from uedp_ray.corpus.transforms.base import Text

_BATCH = 4096  # Sentences handed to the tokenizer at once, which uses all cores.
_PART = 1 << 22
_MOST_COUNT = 1 << 10
"""The most bytes of a file that holds one number."""
_FILES, _CHECKSUMS = ("tokens.npy", "offsets.npy", "cut.npy"), "checksums.json"
MADE = rf"(?:{'|'.join(map(re.escape, (*_FILES, _CHECKSUMS, WHOLE)))})"
"""A regular expression, as for ``find_other``, of what is in a folder of tokens."""
STORE = "[0-9a-f]{16}"
"""A regular expression of the name of such a folder."""
STORES = beneath(STORE, MADE) + rf"|\.{STORE}\.lock"
"""A regular expression of what ``encode_corpus`` makes."""
_WAIT = 3600.0
"""Seconds to wait for another process that tokenises the same text: trials of a sweep start together."""


class TokenStore:
    """Token ids of a corpus, opened read-only. Pickles as its path, so that a Ray task maps the same files."""

    def __init__(self, path: str | Path):
        self.path = Path(path)
        # Plain views of the maps: slicing a np.memmap is several times slower.
        self.tokens, self.offsets = (np.asarray(self._load(name, mapped=True)) for name in ("tokens", "offsets"))

    def _load(self, name: str, *, mapped: bool = False) -> np.ndarray:
        path = self.path / f"{name}.npy"
        check_regular(path, "delete the folder", most=None if mapped else _MOST_COUNT)
        return load_array(path, mapped=mapped)

    def __reduce__(self) -> tuple[type[TokenStore], tuple[Path]]:
        return TokenStore, (self.path,)

    @property
    def num_sentences(self) -> int:
        return len(self.offsets) - 1

    @functools.cached_property
    def share_cut(self) -> float:
        """Tokens that ``max_length`` cut off, as a share of all: read off the text, and as private."""
        cut = int(self._load("cut"))
        return cut / max(cut + len(self.tokens), 1)

    @functools.cached_property
    def lengths(self) -> np.ndarray:
        """Tokens of every sentence, (N,) int64."""
        return np.diff(self.offsets)

    def sentence(self, index: int) -> np.ndarray:
        """Token ids of a sentence, (T,) int32, read-only."""
        return self.tokens[self.offsets[index] : self.offsets[index + 1]]


def encode_texts(texts: Iterable[str], vocabulary: Vocabulary, max_length: int) -> list[np.ndarray]:
    """Token ids of each text, (T,) int32, at most ``max_length``: one cut there has no end to predict (``NextWord``)."""
    return list(encoded(texts, vocabulary, max_length))


class Annotator(Protocol):
    """A task that needs more of a sentence than its tokens (``tasks.base.Task``)."""

    @property
    def longest_text(self) -> int: ...
    def annotated(self, ids: np.ndarray, text: str, sentence: Sentence, vocabulary: Vocabulary) -> np.ndarray: ...


def annotate(
    pairs: Iterable[tuple[Sentence, str]],
    vocabulary: Vocabulary,
    task: Annotator,
    cut: list[int] | None = None,
    *,
    kind: str = "",
) -> Iterator[np.ndarray]:
    """Yields what a task knows of each sentence, given with its text as it is read; ``cut`` as in ``encoded``.

    ``kind``: ``task.kind``. Unless it is proved to keep users apart, sentences are read once more, in another order.
    Raises: InputError if one is then known for something else: the task remembers what it read.
    """
    kept, read = itertools.tee(pairs)
    encodings = encoded((text for _, text in read), vocabulary, task.longest_text, cut)
    remaining = zip(kept, encodings, strict=True)

    def known(pair: tuple[Sentence, str], ids: np.ndarray) -> np.ndarray:
        return np.array(task.annotated(ids.copy(), pair[1], pair[0], vocabulary), np.int32)  # a copy: it may be kept

    while batch := list(itertools.islice(remaining, _BATCH)):
        found = [known(*each) for each in batch]
        if kind not in KEEPING_USERS_APART:
            again = [known(*each) for each in reversed(batch)]
            if not all(map(np.array_equal, found, reversed(again))):
                remedy = (
                    "annotated gives a sentence something else after others, so one user's text would reach others': "
                    "it must follow from that sentence alone"
                )
                raise InputError("task.kind", kind or type(task).__name__, remedy)
        yield from found


def encode_corpus(
    corpus: Text,
    vocabulary: Vocabulary,
    directory: str | Path,
    *,
    max_length: int,
    task: Annotator | None = None,
    kind: str = "",
) -> TokenStore:
    """Tokenises a corpus, transformed or not, under ``directory``, or reopens what an earlier call wrote for the same
    arguments. ``task``: adds what it knows of a sentence beside its tokens (``annotate``, also of ``kind``).

    The folder appears complete or not at all; of several processes one writes it, and the others wait for it. A damaged
    one is rewritten. Memory is one batch of sentences.
    Raises: InputError if ``max_length`` leaves no room for a token.
    """
    if max_length < 2:
        raise InputError("model.max_length", max_length, "must be 2 or more: one token and the end token")
    parts = [4, corpus.digest, vocabulary.digest, max_length, *([] if task is None else [repr(task)])]
    key = hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]
    path = Path(directory) / key
    shape = (corpus.num_sentences, max_length, vocabulary.size) if task is None else (corpus.num_sentences, None, None)
    store = _whole(path, *shape)
    if store is None:
        make_folder(path.parent, private=True)
        busy = InputError(
            "tokens", str(path), f"another process has been writing it for {_WAIT:.0f} s: check what it does"
        )
        with locked(lock_beside(path), wait=_WAIT, busy=busy):
            store = _whole(path, *shape)
            if store is None:
                with replacing(path, private=True, made=MADE) as new:
                    new.mkdir(mode=0o700)
                    cut = [0]
                    if task is None:
                        texts = (text for _, texts in corpus.texts() for text in texts)
                        known = encoded(texts, vocabulary, max_length, cut)
                    else:
                        pairs = (pair for _, pairs in corpus.pairs() for pair in pairs)
                        known = annotate(pairs, vocabulary, task, cut, kind=kind)
                    _write(new, known, corpus.num_sentences)
                    np.save(new / "cut.npy", np.int64(cut[0]))
                    (new / _CHECKSUMS).write_text(json.dumps({name: checksum(new / name) for name in _FILES}))
                store = _whole(path, *shape)
                if store is None:
                    raise InputError("tokenizer.json", str(path), "gives ids beyond its size: name another tokenizer")
    return store


def _whole(path: Path, num_sentences: int, longest: int | None, size: int | None) -> TokenStore | None:
    """The arrays in ``path``; None if there are none, or they are not those of a corpus of these sizes (None: any)."""
    try:
        store = TokenStore(path)
        _ = store.share_cut
        check_regular(path / _CHECKSUMS, "delete the folder", most=_MOST_COUNT)
        known = json.loads((path / _CHECKSUMS).read_bytes())
        if not all(has_checksum(path / name, known[name]) for name in _FILES):
            return None
    except (FileNotFoundError, ValueError, TypeError, KeyError, OverflowError, RecursionError):  # TypeError: no number
        return None
    offsets, tokens = store.offsets, store.tokens
    shaped = offsets.shape == (num_sentences + 1,) and offsets.dtype == np.int64 and tokens.dtype == np.int32
    if not shaped or tokens.ndim != 1 or offsets[0] != 0 or offsets[-1] != len(tokens):
        return None
    within = bool(((store.lengths >= 0) & (store.lengths <= (longest or math.inf))).all())
    known = all(part.min() >= 0 and part.max() < (size or math.inf) for part in _parts(tokens))
    return store if within and known else None


def _parts(tokens: np.ndarray) -> Iterator[np.ndarray]:
    return (tokens[first : first + _PART] for first in range(0, len(tokens), _PART))


def encoded(
    texts: Iterable[str], vocabulary: Vocabulary, max_length: int, cut: list[int] | None = None
) -> Iterator[np.ndarray]:
    """Yields what ``encode_texts`` returns, one text at a time; ``cut[0]`` counts the tokens left out."""
    remaining = iter(texts)
    while batch := list(itertools.islice(remaining, _BATCH)):
        for ids in vocabulary.encode_batch(batch):
            if cut is not None:
                cut[0] += max(len(ids) - max_length, 0)
            yield ids[:max_length]


def _write(folder: Path, sentences: Iterable[np.ndarray], num_sentences: int) -> None:
    """Writes both files front to back: a full disk kills a process that writes to a memory map."""
    count, total = 0, 0
    with (folder / "tokens.npy").open("wb") as file, (folder / "offsets.npy").open("wb") as ends:
        body = _write_header(file, np.int32, 0)
        _write_header(ends, np.int64, num_sentences + 1)
        ends.write(np.int64(0).tobytes())
        for ids in sentences:
            file.write(ids.tobytes())
            count, total = count + 1, total + len(ids)
            ends.write(np.int64(total).tobytes())
        file.seek(0)
        again = _write_header(file, np.int32, total)
        assert again == body, "numpy pads headers so that the length may grow in place"
    if count != num_sentences:
        raise InputError("corpus", str(folder.parent), f"holds {count} sentences of {num_sentences}: prepare it again")


def _write_header(file: BinaryIO, dtype: DTypeLike, length: int) -> int:
    header = {"descr": np.lib.format.dtype_to_descr(np.dtype(dtype)), "fortran_order": False, "shape": (length,)}
    np.lib.format.write_array_header_1_0(file, header)
    return file.tell()
