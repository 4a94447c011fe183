"""Readers: text of every supported format as a stream of rows or sentences, in file order, never held as a whole.

    for sentence in read(SourceConfig(path="eng.train", format="conll")):
        ...

A user's rows need not be neighbours in the file. A folder is read file by file, in the order of the names. A row
without a word is yielded as it is, for the caller to count and skip. What is read is private;
an error names file and line, never their content.

| format | user | row |
|---|---|---|
| conll | a ``-DOCSTART-`` document; without any, each sentence is a user of its own | as in the file |
| ag-news | drawn: N(15, 2^2) consecutive rows | a row; label = class |
| sst-2 | each row is a user of its own | a row; labelled |
| jsonl, parquet | column ``user`` | a row: running text, unless it has a label or tags |
| speeches | the speaker of ``NAME:`` | a speech: running text |
| text | one, ``public`` (public text has no owners) | a line: running text |
| pseudo-users | some sentences in a row of ``read_as`` text | a sentence |
| prepared | as prepared | as prepared |
| synthetic | as generated | as generated |
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import get_args

from uedp_ray.components import in_module
from uedp_ray.config import SourceConfig
from uedp_ray.config.choices import SourceFormat
from uedp_ray.corpus._splitting import cut
from uedp_ray.corpus.readers.base import Reader, files_of
from uedp_ray.corpus.records import Sentence


def reader_of(source: SourceConfig) -> Reader:
    """The reader in the module of this room that the format names."""
    found: Reader = in_module("corpus.readers", source.format, "READER")
    return found


def whole_users(format: str) -> bool:  # noqa: A002
    """``Reader.whole_users`` of a format; False for a name, as in another's corpus, that is none."""
    return format in get_args(SourceFormat) and bool(in_module("corpus.readers", format, "READER").whole_users)


def read(source: SourceConfig) -> Iterator[Sentence]:
    """Streams the sentences of ``source``. Its ``detector`` and ``categories`` play no part here.

    Raises: InputError if the file is missing or a line of it malformed.
    """
    return _sentences(read_rows(source), source.max_words)


def _sentences(rows: Iterator[Sentence], max_words: int) -> Iterator[Sentence]:
    for row in rows:
        if not row.text.strip():
            yield row
        for pieces in cut(row, row.mentions, max_words):
            yield from pieces


def read_rows(source: SourceConfig) -> Iterator[Sentence]:
    """Streams the rows of ``source`` with their line ends joined, before they are cut into sentences."""
    return reader_of(source).rows(source)


def numbered(source: SourceConfig) -> str | None:
    """What a user is where the format numbers users; None where they have names: see ``Reader``."""
    return reader_of(source).numbered(source)


def source_files(source: SourceConfig) -> list[Path]:
    """The file, or the visible files of the folder, by name; none of generated text. Raises: InputError if there is none."""
    reader = reader_of(source)
    return [] if reader.generated_bytes else files_of(source, reader.suffix)


def source_bytes(source: SourceConfig) -> int:
    """The size of the text, about. Raises: as ``source_files``."""
    generated = reader_of(source).generated_bytes
    return generated(source) if generated else sum(path.stat().st_size for path in source_files(source))
