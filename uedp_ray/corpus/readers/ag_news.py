"""AG News: class, title, description, comma-separated."""

from __future__ import annotations

import csv
import html
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from uedp_ray.config import SourceConfig
from uedp_ray.corpus._lines import LONGEST, Lines
from uedp_ray.corpus.readers.base import Reader, chosen, files_of
from uedp_ray.corpus.records import Sentence
from uedp_ray.errors import InputError

_ENTITY = re.compile(r"(?:&| |(?<!\w))(#\d{1,7}|quot|amp|lt|gt|nbsp|apos);")
_ROWS_PER_USER = (15.0, 2.0)  # mean and standard deviation, as the paper divides AG News


def read_ag_news(source: SourceConfig) -> Iterator[Sentence]:
    """AG News (class, title, description). Its articles have no owner, so users are drawn, as in the paper.

    User i owns the next n_i of the rows that ``source`` takes, n_i ~ N(15, 2^2) rounded and at least 1, drawn from
    ``source.seed`` alone: rows stream, and the same file and seed give the same users. The last user holds what is
    left. The order of the rows is the file's (the published training set is shuffled already).
    """
    generator = np.random.default_rng(source.seed)
    user = left = 0
    rows = (row for path in files_of(source, "") for row in _ag_news_rows(path))
    for label, text in chosen(rows, source):
        if not left:
            user += 1
            left = max(1, round(generator.normal(*_ROWS_PER_USER)))
        left -= 1
        yield Sentence(f"user-{user}", text, label)


def _ag_news_rows(path: Path) -> Iterator[tuple[str, str]]:
    lines = Lines(path)
    csv.field_size_limit(max(csv.field_size_limit(), LONGEST))  # the limit of the whole process: only ever raised
    try:
        for number, row in enumerate(csv.reader(lines, strict=True)):
            if len(row) != 3 or not row[0].isdigit():
                if len(row) == 3 and number == 0:
                    continue  # some copies open with a line of column names
                raise InputError("path", lines.where, "a row needs class (a number), title and description")
            yield row[0], unescape(f"{row[1]} {row[2]}")
    except csv.Error:
        raise InputError("path", lines.where, "not comma-separated values with quotes") from None


def unescape(text: str) -> str:
    """Undoes AG News's damaged HTML escapes (`` #39;``, ``&lt;``, `` quot;``) and its backslashes for line ends."""
    restored = _ENTITY.sub(lambda match: html.unescape(f"&{match[1]};"), text.replace("\\", " "))
    return " ".join(restored.split())


READER = Reader(read_ag_news, lambda source: "some 15 rows in a row, drawn at random", whole_users=True)
