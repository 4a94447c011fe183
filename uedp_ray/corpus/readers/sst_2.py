"""SST-2 as GLUE has it: a line of column names, then a sentence and its label on each line, parted by a tab.

Source: Socher et al. 2013; Wang et al. 2019.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from uedp_ray.config import SourceConfig
from uedp_ray.corpus._lines import Lines
from uedp_ray.corpus.readers.base import Reader, chosen, files_of
from uedp_ray.corpus.records import Sentence
from uedp_ray.errors import InputError

_COLUMNS = ["sentence", "label"]


def read_sst_2(source: SourceConfig) -> Iterator[Sentence]:
    """A row is a user of its own: nothing says which phrases are of one review, or who wrote it.

    Raises: InputError naming file and line, for other columns (GLUE's test set has no labels).
    """
    return chosen((row for path in files_of(source, ".tsv") for row in _rows(path)), source)


def _rows(path: Path) -> Iterator[Sentence]:
    lines = Lines(path)
    for number, line in enumerate(lines):
        columns = [column.strip() for column in line.split("\t")]  # GLUE quotes nothing
        if number == 0:
            if columns != _COLUMNS:
                raise InputError(
                    "path", lines.where, "the first line needs the names sentence and label, parted by a tab"
                )
            continue
        if len(columns) != len(_COLUMNS) or not columns[1]:
            raise InputError("path", lines.where, "a row needs a sentence and its label, parted by a tab")
        text, label = columns
        yield Sentence(f"{path.name}#{number}", text, label)


READER = Reader(read_sst_2, lambda source: "a row", whole_users=True, suffix=".tsv")
