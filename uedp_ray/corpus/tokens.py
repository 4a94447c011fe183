"""A tokenised corpus on disk: one flat array of token ids and one of offsets, memory-mapped by every worker.

    store = encode_corpus(open_corpus("data/prepared"), vocabulary, "run/tokens", max_length=64)
    store.sentence(0)       # (T,) int32, T <= 63: the model adds the end token

Sentence ``i`` is the corpus's sentence ``i``; one that is empty after normalisation keeps its place with length 0. The
arrays are as private as the text.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import json
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import numpy as np

from uedp_ray.corpus.vocabulary import Vocabulary
from uedp_ray.errors import InputError

if TYPE_CHECKING:
    from uedp_ray.corpus.store import Corpus

_BATCH = 4096  # Sentences handed to the tokenizer at once, which uses all cores.


class TokenStore:
    """Token ids of a corpus, opened read-only. Pickles as its path, so that a Ray task maps the same files."""

    def __init__(self, path: str | Path):
        self.path = Path(path)
        # Plain views of the maps: slicing a np.memmap is several times slower.
        self.tokens = np.asarray(np.load(self.path / "tokens.npy", mmap_mode="r"))
        self.offsets = np.asarray(np.load(self.path / "offsets.npy", mmap_mode="r"))

    def __reduce__(self) -> tuple[type[TokenStore], tuple[Path]]:
        return TokenStore, (self.path,)

    @property
    def num_sentences(self) -> int:
        return len(self.offsets) - 1

    @functools.cached_property
    def share_cut(self) -> float:
        """Tokens that ``max_length`` cut off, as a share of all: read off the text, and as private."""
        cut = int(np.load(self.path / "cut.npy"))
        return cut / max(cut + len(self.tokens), 1)

    @functools.cached_property
    def lengths(self) -> np.ndarray:
        """Tokens of every sentence, (N,) int64."""
        return np.diff(self.offsets)

    def sentence(self, index: int) -> np.ndarray:
        """Token ids of a sentence, (T,) int32, read-only."""
        return self.tokens[self.offsets[index] : self.offsets[index + 1]]


def encode_texts(texts: Iterable[str], vocabulary: Vocabulary, max_length: int) -> list[np.ndarray]:
    """Token ids of each text, (T,) int32, cut to ``max_length - 1``: one place is left for the end token."""
    return list(encoded(texts, vocabulary, max_length))


def encode_corpus(corpus: Corpus, vocabulary: Vocabulary, directory: str | Path, *, max_length: int) -> TokenStore:
    """Tokenises a corpus under ``directory``, or reopens what an earlier call wrote for the same three arguments.

    The folder appears complete or not at all; of processes that race, one wins and all read its files. Memory is one
    batch of sentences.
    Raises: InputError if ``max_length`` leaves no room for a token.
    """
    if max_length < 2:
        raise InputError("model.max_length", max_length, "must be 2 or more: one token and the end token")
    key = hashlib.sha256(json.dumps([2, corpus.digest, vocabulary.digest, max_length]).encode()).hexdigest()[:16]
    path = Path(directory) / key
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=f".{key}-", dir=path.parent))  # readable by the owner only
        try:
            texts = (text for _, texts in corpus.texts() for text in texts)
            cut = [0]
            _write(temporary, encoded(texts, vocabulary, max_length, cut), corpus.num_sentences)
            np.save(temporary / "cut.npy", np.int64(cut[0]))
            _publish(temporary, path)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    return TokenStore(path)


def encoded(
    texts: Iterable[str], vocabulary: Vocabulary, max_length: int, cut: list[int] | None = None
) -> Iterator[np.ndarray]:
    """``encode_texts``, one text after the other; ``cut[0]`` counts the tokens left out."""
    remaining = iter(texts)
    while batch := list(itertools.islice(remaining, _BATCH)):
        for ids in vocabulary.encode_batch(batch):
            if cut is not None:
                cut[0] += max(len(ids) - (max_length - 1), 0)
            yield ids[: max_length - 1]


def _write(folder: Path, sentences: Iterable[np.ndarray], num_sentences: int) -> None:
    offsets = np.lib.format.open_memmap(folder / "offsets.npy", mode="w+", dtype=np.int64, shape=(num_sentences + 1,))
    count, total = 0, 0
    with (folder / "tokens.npy").open("wb") as file:
        body = _write_header(file, 0)
        for ids in sentences:
            file.write(ids.tobytes())
            count, total = count + 1, total + len(ids)
            offsets[count] = total
        file.seek(0)
        assert _write_header(file, total) == body, "numpy pads headers so that the length may grow in place"
    assert count == num_sentences, "the corpus yields as many sentences as it counts"
    offsets.flush()


def _write_header(file: BinaryIO, length: int) -> int:
    header = {"descr": np.lib.format.dtype_to_descr(np.dtype(np.int32)), "fortran_order": False, "shape": (length,)}
    np.lib.format.write_array_header_1_0(file, header)
    return file.tell()


def _publish(temporary: Path, path: Path) -> None:
    try:
        os.rename(temporary, path)
    except OSError:
        if not path.exists():  # Otherwise another process was first; its files hold the same.
            raise
