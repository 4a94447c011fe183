"""Plain text without owners."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from uedp_ray.corpus._lines import Lines
from uedp_ray.corpus.readers.base import of_files
from uedp_ray.corpus.records import Sentence

PUBLIC_USER = "public"


def read_text(path: Path) -> Iterator[Sentence]:
    """Public text: each line is a paragraph, blank lines are skipped, all belong to one user."""
    lines = Lines(path, longest=1 << 20, split=True)  # some public text is one line
    return (Sentence(PUBLIC_USER, line, running=True) for line in lines if line.strip())


READER = of_files(read_text, numbered="the whole text", whole_users=True)
