"""What the corpus itself marks."""

from __future__ import annotations

from collections.abc import Sequence

from uedp_ray.corpus.detectors.base import AtLeast, Detector, Findings, Reads
from uedp_ray.corpus.records import Sentence


class Annotated:
    """What the corpus itself marks."""

    fingerprint, cacheable = "annotated", False
    reads: Reads = "marks"
    categories: frozenset[str] = AtLeast()

    def find(self, sentences: Sequence[Sentence]) -> Findings:
        return [sentence.mentions for sentence in sentences]


def build(spec: str, argument: str) -> Detector:
    return Annotated()
