"""The interface of detectors."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal, Protocol

from uedp_ray.corpus.records import Mention, Sentence

Findings = list[tuple[Mention, ...]]
Reads = Literal["marks", "rows", "sentences"]


class AtLeast(frozenset[str]):
    """Categories that are known beforehand, of a detector that may find others too."""


class Detector(Protocol):
    """``fingerprint`` changes whenever the findings on the same text could. ``cacheable``: findings depend on the
    text alone and cost more than reading them back. ``reads``: whole rows, or a sentence at a time, as a model was
    trained; see ``_windows``. ``categories``: all that it may find, or ``AtLeast`` those; a run that protects certain
    categories would lose what is found under any other name, so a finding of one that is not declared is refused."""

    fingerprint: str
    cacheable: bool
    reads: Reads
    categories: frozenset[str]

    def find(self, sentences: Sequence[Sentence]) -> Findings:
        """One tuple of mentions per sentence, in order; ``start`` and ``end`` of each are places in the sentence's text."""


def modified(path: Path) -> int:
    """When a file was last changed: anything loaded from it before is then reloaded. 0 if there is no file."""
    return path.stat().st_mtime_ns if path.is_file() else 0
