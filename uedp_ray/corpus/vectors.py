"""Word vectors as text, a word and its coordinates on each line: those that others published (GloVe, word2vec), or made of
public text.

    >>> from pathlib import Path
    >>> from tempfile import TemporaryDirectory
    >>> from uedp_ray.corpus.vectors import read_vectors, vectors_of, write_vectors
    >>> folder = TemporaryDirectory()
    >>> file = Path(folder.name, "vectors.txt")
    >>> size = file.write_text("oslo 0.5 1\\nrome 0.25 1\\n1984 0 0\\n, 1 0\\n")
    >>> vectors = read_vectors(file)
    >>> vectors.words, vectors.table.tolist()    # numbers and marks are no words
    (('oslo', 'rome'), [[0.5, 1.0], [0.25, 1.0]])
    >>> vectors.find("Oslo"), vectors.find("Bergen")
    (0, None)
    >>> made = vectors_of(["oslo is cold", "rome is warm", "oslo was cold", "rome was warm"] * 9, dimensions=3)
    >>> write_vectors(made, file)
    >>> read_vectors(file).words == made.words, made.table.shape
    (True, (6, 3))
    >>> folder.cleanup()

The file, and so everything here, is public: its words must not be those of the private text. None comes with this package.
Shape legend: V words, d coordinates, N words of the text, P pairs of words of which some stand near each other.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
from numpy.typing import NDArray
from scipy.sparse import coo_array, csr_array
from scipy.sparse.linalg import svds

from uedp_ray.errors import InputError, one_line, unreadable

_LARGEST = 1e9
"""No vector of a word is longer; distances of far longer ones are infinite, and such a word would stay as it is."""
_APART = r"\s!-/:-@\[-`{-~\u00a1\u00a7\u00ab\u00b6\u00b7\u00bb\u00bf\u2000-\u206f\u3000-\u303f"
WORD = re.compile(rf"[^{_APART}]+(?:['\u2019-][^{_APART}]+)*")
"""What counts as a word: all but blanks and punctuation. Whatever is not known to be one of these is part of a word."""


MOST_WORDS = 20_000


@dataclass(frozen=True)
class Vectors:
    """Words as points."""

    words: tuple[str, ...]
    """In the order of the file, which is by frequency in those that are published; each once."""
    table: NDArray[np.float64]
    """(V, d), read-only."""

    @cached_property
    def _places(self) -> dict[str, int]:
        return {word: place for place, word in enumerate(self.words)}

    def find(self, word: str) -> int | None:
        """The number of a word as it is written, or else in lower case; None if the file has neither."""
        return self._places.get(word, self._places.get(word.lower()))


def read_vectors(path: Path, field: str = "vectors") -> Vectors:
    """Reads a file of vectors; word2vec's first line, of two numbers, is skipped, and so are numbers and marks.

    Raises: InputError naming ``field`` if it cannot be read, or holds no two words, or something that is not a number.
    """
    remedy = "write a word and its coordinates on each line, apart by single blanks"
    try:
        with path.open(encoding="utf-8") as file:
            first = file.readline(1 << 20).split()
        table = pyarrow.csv.read_csv(
            path,
            pa.csv.ReadOptions(autogenerate_column_names=True, skip_rows=len(first) == 2 and first[0].isdecimal()),
            pa.csv.ParseOptions(delimiter=" ", quote_char=False, invalid_row_handler=_of_blanks),
            pa.csv.ConvertOptions(column_types={"f0": pa.string()}),
        )
    except UnicodeDecodeError:
        raise InputError(field, str(path), "is not UTF-8 text: save it as UTF-8") from None
    except OSError as error:
        raise unreadable(error, field, str(path)) from None
    except pa.ArrowInvalid as error:
        raise InputError(field, str(path), f"{one_line(str(error), 200)}: {remedy}") from None
    columns = table.columns[1:]
    if columns and pa.types.is_null(columns[-1].type):  # each line ends in a blank
        columns = columns[:-1]
    numbers = [column for column in columns if pa.types.is_integer(column.type) or pa.types.is_floating(column.type)]
    if not columns or len(numbers) < len(columns) or any(column.null_count for column in columns):
        raise InputError(field, str(path), remedy)
    places = {
        word: place
        for place, word in reversed(list(enumerate(table["f0"].to_pylist())))
        if WORD.fullmatch(word) and not word.isdecimal()
    }
    kept = sorted(places.values())
    if len(kept) < 2:
        raise InputError(field, str(path), f"holds no two words: {remedy}")
    values = np.column_stack([column.to_numpy() for column in columns]).astype(np.float64)[kept]
    if not (np.abs(values) < _LARGEST).all():  # nor is NaN
        raise InputError(field, str(path), f"a coordinate is not a number below {_LARGEST:g}: {remedy}")
    values.flags.writeable = False
    words = table["f0"].to_pylist()
    return Vectors(tuple(words[place] for place in kept), values)


def vectors_of(texts: Iterable[str], *, dimensions: int, window: int = 5, most_words: int = MOST_WORDS) -> Vectors:
    """Makes vectors of the most frequent words of public sentences, by which words they stand within ``window`` of.

    Positive pointwise mutual information, its contexts smoothed by a power of 0.75, and its first ``dimensions`` singular
    vectors, times the square roots of their values. The same text gives the same vectors.
    Raises: InputError if the text has no more words than ``dimensions``.
    Source: Levy, Goldberg and Dagan 2015.
    """
    said = [[word.lower() for word in WORD.findall(text) if not word.isdecimal()] for text in texts]
    words = [word for word, _ in Counter(itertools.chain.from_iterable(said)).most_common(most_words)]
    if len(words) <= dimensions:
        raise InputError(
            "dimensions", dimensions, f"the public text has {len(words)} words: ask for fewer, or name more text"
        )
    places = {word: place for place, word in enumerate(words)}
    word_N = np.array([places.get(word, -1) for sentence in said for word in sentence])
    sentence_N = np.repeat(np.arange(len(said)), [len(sentence) for sentence in said])
    counts_VV = csr_array((len(words), len(words)))
    for apart in range(1, window + 1):
        first, second = word_N[:-apart], word_N[apart:]
        near = (sentence_N[:-apart] == sentence_N[apart:]) & (first >= 0) & (second >= 0)
        one_sided = coo_array((np.ones(near.sum()), (first[near], second[near])), shape=counts_VV.shape).tocsr()
        counts_VV = counts_VV + one_sided + one_sided.T
    pairs_P = counts_VV.tocoo()
    total_V = counts_VV.sum(axis=1)
    context_V = total_V**0.75 / (total_V**0.75).sum()
    information_P = np.log(pairs_P.data / (total_V[pairs_P.row] * context_V[pairs_P.col])).clip(min=0)
    information_VV = coo_array((information_P, (pairs_P.row, pairs_P.col)), shape=counts_VV.shape).tocsr()
    left_Vd, sizes_d, _ = svds(information_VV, k=dimensions, v0=np.ones(len(words)))
    return Vectors(tuple(words), left_Vd * np.sqrt(sizes_d))


def write_vectors(vectors: Vectors, path: Path) -> None:
    """Writes the file that ``read_vectors`` reads."""
    with path.open("w", encoding="utf-8") as file:
        for word, point in zip(vectors.words, vectors.table.tolist(), strict=True):
            file.write(" ".join([word, *(f"{coordinate:.5f}" for coordinate in point)]) + "\n")


def _of_blanks(row: pyarrow.csv.InvalidRow) -> str:
    """Skips a word that has blanks in it, of which some published files hold a few; a line that is too short is an error."""
    return "skip" if row.actual_columns > row.expected_columns else "error"
