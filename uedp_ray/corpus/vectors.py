"""Word vectors that others published, as text: a word and its coordinates on each line (GloVe, word2vec).

    >>> from pathlib import Path
    >>> from tempfile import TemporaryDirectory
    >>> from uedp_ray.corpus.vectors import read_vectors
    >>> folder = TemporaryDirectory()
    >>> file = Path(folder.name, "vectors.txt")
    >>> size = file.write_text("oslo 0.5 1\\nrome 0.25 1\\n1984 0 0\\n, 1 0\\n")
    >>> vectors = read_vectors(file)
    >>> vectors.words, vectors.table.tolist()    # numbers and marks are no words
    (('oslo', 'rome'), [[0.5, 1.0], [0.25, 1.0]])
    >>> vectors.find("Oslo"), vectors.find("Bergen")
    (0, None)
    >>> folder.cleanup()

The file, and so everything here, is public: its words must not be those of the private text. None comes with this package.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
from numpy.typing import NDArray

from uedp_ray.errors import InputError, one_line, unreadable

_APART = r"\s!-/:-@\[-`{-~\u00a1\u00a7\u00ab\u00b6\u00b7\u00bb\u00bf\u2000-\u206f\u3000-\u303f"
WORD = re.compile(rf"[^{_APART}]+(?:['\u2019-][^{_APART}]+)*")
"""What counts as a word: all but blanks and punctuation. Whatever is not known to be one of these is part of a word."""


@dataclass(frozen=True)
class Vectors:
    """Shape legend: V words, d coordinates."""

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
    if not np.isfinite(values).all():
        raise InputError(field, str(path), f"a coordinate is not a finite number: {remedy}")
    values.flags.writeable = False
    words = table["f0"].to_pylist()
    return Vectors(tuple(words[place] for place in kept), values)


def _of_blanks(row: pyarrow.csv.InvalidRow) -> str:
    """Skips a word that has blanks in it, of which some published files hold a few; a line that is too short is an error."""
    return "skip" if row.actual_columns > row.expected_columns else "error"
