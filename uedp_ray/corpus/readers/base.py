"""The interface of readers: how rows of a format are read, and whether its users can be recognised in other text."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from uedp_ray.config import SourceConfig
from uedp_ray.corpus.records import Sentence
from uedp_ray.errors import InputError, unreadable

_Row = TypeVar("_Row")
_SPECIAL = "neither a file nor a folder (a pipe, a device, a broken link?): write the text to a file"


@dataclass(frozen=True)
class Reader:
    """A format."""

    rows: Callable[[SourceConfig], Iterator[Sentence]]
    numbered: Callable[[SourceConfig], str | None] = lambda source: None
    """What a user is where the format numbers users, such as "a document"; None where they have names, so that a user in two
    sources is recognised: names that are not compared would let protected users into the evaluation text."""
    whole_users: bool = False
    """Whether blanking one user, or one row, leaves the sentences of all other users what and where they are: whose a row is
    follows from what it says of itself, or from its place, never from what other rows hold. The text of a reader that does
    not say so is refused as private text."""
    suffix: str = ""
    """The suffix of the files that are read in a folder."""
    generated_bytes: Callable[[SourceConfig], int] | None = None
    """About how much text is generated, for a format that reads no file; ``choices.GENERATED`` names it too."""


def of_files(
    read: Callable[[Path], Iterator[Sentence]],
    *,
    numbered: str | None = None,
    whole_users: bool = False,
    suffix: str = "",
) -> Reader:
    """A reader of a file, or of the files of a folder one after the other."""

    def rows(source: SourceConfig) -> Iterator[Sentence]:
        return (sentence for path in files_of(source, suffix) for sentence in read(path))

    return Reader(rows, lambda source: numbered, whole_users, suffix)


def chosen(rows: Iterator[_Row], source: SourceConfig) -> Iterator[_Row]:
    """The rows that ``source`` takes by their place in its text, for formats whose users follow from that place too."""
    end = None if source.num_rows is None else source.skip_rows + source.num_rows
    return itertools.islice(rows, source.skip_rows, end)


def files_of(source: SourceConfig, suffix: str) -> list[Path]:
    """The file, or the visible files of the folder, by name. Raises: InputError if there is none."""
    if not source.path:  # a Path of it is the current folder
        raise InputError("path", source.path, "name the file or folder that holds the text")
    path = Path(source.path)
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
