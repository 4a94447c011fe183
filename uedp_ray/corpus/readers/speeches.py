"""Plays: ``NAME:`` and what is said below."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from uedp_ray.corpus._lines import LONGEST, Lines
from uedp_ray.corpus.readers.base import of_files
from uedp_ray.corpus.records import Sentence
from uedp_ray.errors import InputError


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
                raise InputError("path", lines.where, f"a speech of more than {LONGEST:,} characters: split it")
        else:
            yield speaker, " ".join(spoken)
            speaker, spoken, length = None, [], 0
    if speaker is not None:
        yield speaker, " ".join(spoken)


READER = of_files(read_speeches, whole_users=True)
