"""Readers: text of every supported format as a stream of rows or sentences, in file order, never held as a whole.

    for sentence in read(SourceConfig(path="eng.train", format="conll")):
        ...

A user's rows need not be neighbours in the file. A folder is read file by file, in the order of the names. A row
without a word comes out as a row without a word, for the caller to count and pass over. What is read is private;
an error names file and line, never their content.

| format | user | row |
|---|---|---|
| conll | a ``-DOCSTART-`` document; without any, each sentence is a user of its own | as in the file |
| ag-news | drawn: N(15, 2^2) consecutive rows | a row; label = class |
| jsonl, parquet | column ``user`` | a row: running text, unless it has a label or tags |
| speeches | the speaker of ``NAME:`` | a speech: running text |
| text | one, ``public`` (public text has no owners) | a line: running text |
| prepared | as prepared | as prepared |
| synthetic | as generated | as generated |
"""

from __future__ import annotations

import csv
import html
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from uedp_ray.config import SourceConfig
from uedp_ray.corpus._conll import read_conll
from uedp_ray.corpus._lines import LONGEST, Lines
from uedp_ray.corpus._rows import read_jsonl, read_parquet
from uedp_ray.corpus._splitting import cut
from uedp_ray.corpus.records import Sentence
from uedp_ray.errors import InputError, unreadable

PUBLIC_USER = "public"

_ENTITY = re.compile(r"(?:&| |(?<!\w))(#\d{1,7}|quot|amp|lt|gt|nbsp|apos);")
_SPECIAL = "neither a file nor a folder (a pipe, a device, a broken link?): write the text to a file"
_ROWS_PER_USER = (15.0, 2.0)  # mean and standard deviation, as the seeds divide AG News


def read(source: SourceConfig) -> Iterator[Sentence]:
    """Streams the sentences of ``source``. Its ``detector`` and ``categories`` play no part here.

    Raises: InputError if the file is missing or a line of it malformed.
    """
    for row in read_rows(source):
        if not row.text.strip():
            yield row
        for pieces in cut(row, row.mentions, source.max_words):
            yield from pieces


def read_rows(source: SourceConfig) -> Iterator[Sentence]:
    """Streams the rows of ``source`` with their line ends joined, before they are cut into sentences."""
    if source.format == "synthetic":
        from uedp_ray.corpus.synthetic import generate  # imports its templates: only when asked for

        return generate(source.num_users, seed=source.seed, part=source.part)
    if source.format == "prepared":
        from uedp_ray.corpus.store import open_corpus

        return (sentence for _, sentences in open_corpus(source.path).sentences() for sentence in sentences)
    if source.format == "ag-news":
        return read_ag_news(source_files(source), source.seed)
    reader = _READERS[source.format]
    return (sentence for path in source_files(source) for sentence in reader.sentences(path))


def names_users(source: SourceConfig) -> bool:
    """Whether users of the source have names, so that one who is in two sources can be told; else they are numbered."""
    if source.format == "prepared":
        from uedp_ray.corpus.store import open_corpus

        return open_corpus(source.path).names_users
    return source.format not in ("ag-news", "synthetic") and _READERS[source.format].names_users


def source_files(source: SourceConfig) -> list[Path]:
    """The file, or the visible files of the folder, by name. Raises: InputError if there is none."""
    path = Path(source.path)
    suffix = {"jsonl": ".jsonl", "parquet": ".parquet"}.get(source.format, "")
    try:
        if path.is_file():
            return [path]
        if not path.exists():
            raise InputError("path", source.path, "no such file or folder")
        if not path.is_dir():
            raise InputError("path", source.path, _SPECIAL)
        names = [file for file in path.iterdir() if file.name.endswith(suffix) and file.name[0] != "."]
        files = [file for file in names if file.is_file()]
        for file in names:
            if not file.is_file() and not file.is_dir():
                raise InputError("path", str(file), _SPECIAL)
    except OSError as error:
        raise unreadable(error, "path", source.path) from None
    if not files:
        raise InputError("path", source.path, f"the folder holds no {suffix or 'visible'} file")
    return sorted(files)


def read_ag_news(paths: list[Path], seed: int) -> Iterator[Sentence]:
    """AG News (class, title, description). Its articles have no owner, so users are drawn, as in the seeds.

    User i owns the next n_i rows, n_i ~ N(15, 2^2) rounded and at least 1, drawn from ``seed`` alone: rows stream, and
    the same file and seed give the same users. The last user holds what is left. The order of the rows is the file's
    (the published training set is shuffled already).
    """
    generator = np.random.default_rng(seed)
    user = left = 0
    for path in paths:
        for label, text in _ag_news_rows(path):
            if not left:
                user += 1
                left = max(1, round(generator.normal(*_ROWS_PER_USER)))
            left -= 1
            yield Sentence(f"user-{user}", text, label)


def _ag_news_rows(path: Path) -> Iterator[tuple[str, str]]:
    lines = Lines(path)
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


def read_speeches(path: Path) -> Iterator[Sentence]:
    """``NAME:`` alone on the first line of a block, the speech below, a blank line between blocks.

    A speaker is a user. Verse lines of a speech are joined.
    """
    return (Sentence(user, speech, running=True) for user, speech in speeches(path))


def speeches(path: Path) -> Iterator[tuple[str, str]]:
    """(speaker, speech) in file order. Raises: InputError if a block does not open with ``NAME:``."""
    lines = Lines(path)
    speaker: str | None = None
    spoken: list[str] = []
    length = 0
    for line in lines:
        line = line.strip()
        if speaker is None:
            if not line:
                continue
            speaker = line.removesuffix(":").strip()
            if not line.endswith(":") or not speaker:
                raise InputError("path", lines.where, "a speech opens with a line NAME:")
        elif line:
            spoken.append(line)
            length += len(line)
            if length > LONGEST:
                raise InputError("path", lines.where, f"a speech of more than {LONGEST:,} characters: divide it")
        else:
            yield speaker, " ".join(spoken)
            speaker, spoken, length = None, [], 0
    if speaker is not None:
        yield speaker, " ".join(spoken)


def read_text(path: Path) -> Iterator[Sentence]:
    """Public text: each line is a paragraph, blank ones are passed over, all belong to one user."""
    lines = Lines(path, longest=1 << 20, split=True)  # some public text is one line
    return (Sentence(PUBLIC_USER, line, running=True) for line in lines if line.strip())


@dataclass(frozen=True)
class Reader:
    """How the files of a format are read."""

    sentences: Callable[[Path], Iterator[Sentence]]
    names_users: bool = True
    """False only where users are numbered: names that are not compared would let protected users evaluate."""


_READERS: dict[str, Reader] = {
    "conll": Reader(read_conll, names_users=False),
    "jsonl": Reader(read_jsonl),
    "parquet": Reader(read_parquet),
    "speeches": Reader(read_speeches),
    "text": Reader(read_text, names_users=False),
}
