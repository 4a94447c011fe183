"""Whether two texts share users or running text, judged by digests: neither text is read again.

    share = shared_text(private.text_sketch, evaluation.text_sketch)     # 0.02; None: too little text to tell
    users = shared_users(private.user_names, evaluation.user_names)      # 0; None: one of the two names no users

What is compared is a user's text with everything but letters and digits removed, composed (NFKC) and case-folded: as
windows of ``WINDOW`` characters that continue across sentence ends, and as sentences of at least ``WORDS`` words. So neither
case, punctuation, white space nor tokenisation makes a copy look like another text, nor does the place where sentences are
cut, nor the order of whole sentences; a short sentence that everybody writes ("Yes .") does not count. A sketch holds the
``SKETCH_SIZE`` smallest 64-bit hashes of distinct windows and sentences: all of them for a text of up to about 50,000
words, else a uniform sample of them, the same ones for every text.

Measured: texts of different users of one source share up to 1.3 % (CoNLL-2003, Penn Treebank), 2.7 % (AG News: agencies
repeat themselves), 6.2 % (contracts) of their windows, and up to 3.1 % (CoNLL-2003) of their sentences; a copy shares all.
``MOST_SHARED`` lies between.

Sketches are private: anyone who has one can test whether a passage was in the text.

Reference: bottom-k sketches, Cohen and Kaplan, "Summarizing data using bottom-k sketches" (2007); overlap of n-grams
against copied test text: Brown et al., "Language models are few-shot learners" (2020), appendix C.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from uedp_ray.corpus._spill import stable_hash
from uedp_ray.corpus.bounds import mix64
from uedp_ray.corpus.records import composed

WINDOW = 32
"""Characters: five to seven English words."""
WORDS = 5
SKETCH_SIZE = 1 << 18
MOST_SHARED = 0.1
"""The share of common windows, or sentences, at which one text starts to count as a copy of a part of the other."""
_FEWEST = 32
"""Windows, or sentences, below which a share says too little to be relied on."""
_KIND = np.uint64(1)
"""The lowest bit of a hash: 0 for a window, 1 for a sentence."""

Hashes = NDArray[np.uint64]

_NOT_COMPARED = re.compile(r"[\W_]+")
_CHUNK = 1 << 15
_BASE = np.uint64(0x9E3779B97F4A7C15)
_INVERSE = np.uint64(pow(0x9E3779B97F4A7C15, -1, 1 << 64))


class Sketch:
    """Takes in text, sentence by sentence. Memory: some MiB, and ``WINDOW`` characters for every user."""

    def __init__(self) -> None:
        self._smallest = np.zeros(0, np.uint64)
        self._tails: dict[str, str] = {}
        self._pieces: list[str] = []
        self._sentences: list[int] = []
        self._buffered = 0

    def add(self, user: str, text: str) -> None:
        """Adds the next sentence of a user."""
        letters = _letters(text)
        if len(text.split(maxsplit=WORDS)) >= WORDS:
            self._sentences.append(stable_hash(letters))
        for start in range(0, len(letters), _CHUNK):
            piece = self._tails.get(user, "") + letters[start : start + _CHUNK]
            self._tails[user] = piece[1 - WINDOW :]
            if len(piece) >= WINDOW:
                self._pieces.append(piece)
                self._buffered += len(piece)
            if self._buffered >= _CHUNK:
                self._flush()

    def _flush(self) -> None:
        windows, sentences = _window_hashes(self._pieces) & ~_KIND, np.array(self._sentences, np.uint64) | _KIND
        self._pieces, self._sentences, self._buffered = [], [], 0
        hashes = np.concatenate([windows, sentences])
        if len(self._smallest) == SKETCH_SIZE:
            hashes = hashes[hashes < self._smallest[-1]]
        self._smallest = smallest(self._smallest, hashes)

    @property
    def hashes(self) -> Hashes:
        """(at most ``SKETCH_SIZE``,) ascending and distinct."""
        self._flush()
        return self._smallest


def union(*parts: Hashes) -> Hashes:
    """All hashes of the parts, ascending and distinct."""
    hashes = np.sort(np.concatenate(parts))
    return hashes[np.diff(hashes, prepend=~hashes[:1]) != 0]  # np.unique takes thirty times as long


class Distinct:
    """A growing set of hashes. They are sorted when their number may have doubled, so each takes part in few sorts, however
    many parts they come in."""

    def __init__(self) -> None:
        self._known: Hashes = np.zeros(0, np.uint64)
        self._new: list[Hashes] = []
        self._num_new = 0

    def add(self, hashes: Hashes) -> None:
        self._new.append(hashes)
        self._num_new += len(hashes)
        if self._num_new > len(self._known):
            self._join()

    def __len__(self) -> int:
        self._join()
        return len(self._known)

    def _join(self) -> None:
        self._known = union(self._known, *self._new)
        self._new, self._num_new = [], 0


def smallest(*sketches: Hashes) -> Hashes:
    """The sketch of texts taken together."""
    return union(*sketches)[:SKETCH_SIZE]


def shared_text(one: Hashes, other: Hashes) -> float | None:
    """Common windows as a share of the smaller text's, so that a copied part counts however long the rest is; or common
    sentences, if their share is greater.

    None: there is too little running text to tell, and what there is differs. An estimate where a text is longer than its
    sketch.
    """
    known = min((int(sketch[-1]) for sketch in (one, other) if len(sketch) == SKETCH_SIZE), default=2**64 - 1)
    one, other = (sketch[: np.searchsorted(sketch, np.uint64(known), "right")] for sketch in (one, other))
    shares = [_share(one[one & _KIND == kind], other[other & _KIND == kind]) for kind in (np.uint64(0), np.uint64(1))]
    return max((share for share in shares if share is not None), default=None)


def _share(one: Hashes, other: Hashes) -> float | None:
    fewest = min(len(one), len(other))
    share = len(np.intersect1d(one, other, assume_unique=True)) / max(fewest, 1)
    return None if fewest < _FEWEST and share < MOST_SHARED else share


def user_names(users: Iterable[str]) -> Hashes:
    """Hashes of user ids, ascending and distinct; case, composition and white space do not distinguish two ids."""
    names = (" ".join(composed("NFKC", user).casefold().split()) for user in users)
    return union(np.fromiter(map(stable_hash, names), np.uint64))


def shared_users(one: Hashes, other: Hashes) -> int | None:
    """How many users two texts have in common; None if one of them names no users."""
    return len(np.intersect1d(one, other, assume_unique=True)) if len(one) and len(other) else None


def _letters(text: str) -> str:
    return _NOT_COMPARED.sub("", composed("NFKC", text).casefold())


def _window_hashes(pieces: list[str]) -> Hashes:
    """Polynomial hashes modulo 2^64 of every window within a piece, mixed so that their order is as if random."""
    codes = np.frombuffer("\0".join(pieces).encode("utf-32-le"), np.uint32)
    if len(codes) < WINDOW:
        return np.zeros(0, np.uint64)
    powers, inverses = (np.full(len(codes), base, np.uint64) for base in (_BASE, _INVERSE))
    powers[0] = inverses[0] = 1
    np.multiply.accumulate(powers, out=powers)
    np.multiply.accumulate(inverses, out=inverses)
    sums = np.concatenate([[np.uint64(0)], np.cumsum(mix64(codes.astype(np.uint64)) * powers, dtype=np.uint64)])
    hashes = mix64((sums[WINDOW:] - sums[:-WINDOW]) * inverses[: len(codes) - WINDOW + 1])
    ends = np.concatenate([[0], np.cumsum(codes == 0)])
    return hashes[ends[WINDOW:] == ends[:-WINDOW]]
