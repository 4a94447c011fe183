"""Structured identifiers by regular expressions and check digits: ``_patterns``."""

from __future__ import annotations

from collections.abc import Sequence

from uedp_ray.corpus._patterns import CATEGORIES, PATTERNS_VERSION, find_patterns
from uedp_ray.corpus.detectors.base import Detector, Findings, Reads
from uedp_ray.corpus.records import Sentence


class Patterns:
    """Structured identifiers by regular expressions and check digits."""

    fingerprint, cacheable, categories = f"regex-{PATTERNS_VERSION}", False, CATEGORIES
    reads: Reads = "rows"

    def find(self, sentences: Sequence[Sentence]) -> Findings:
        return [tuple(find_patterns(sentence.text)) for sentence in sentences]


def build(spec: str, argument: str) -> Detector:
    return Patterns()
