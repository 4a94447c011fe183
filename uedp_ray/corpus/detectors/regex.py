"""Structured identifiers by regular expressions and check digits: ``_patterns``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from uedp_ray.corpus._patterns import CATEGORIES, PATTERNS_VERSION, find_patterns
from uedp_ray.corpus.detectors.base import Detector, Findings, Reads
from uedp_ray.corpus.records import Sentence


def nameless(mentions: Mapping[str, int]) -> str | None:
    """What to tell an owner in whose text nothing but patterns was found, by category.

    >>> from uedp_ray.corpus.detectors.regex import nameless
    >>> nameless({"email": 565, "phone": 306, "person": 2}) is None
    True
    >>> nameless({"email": 565, "phone": 306, "person": 0}).partition(":")[0]
    'no name of a person, a company or a place was found, only email, phone'
    """
    found = [category for category, number in mentions.items() if number]
    if not found or not CATEGORIES.issuperset(found):
        return None
    return (
        f"no name of a person, a company or a place was found, only {', '.join(sorted(found))}: such names are not "
        "protected; add a detector that finds them (spacy, list)"
    )


class Patterns:
    """Structured identifiers by regular expressions and check digits."""

    fingerprint, cacheable, categories = f"regex-{PATTERNS_VERSION}", False, CATEGORIES
    reads: Reads = "rows"

    def find(self, sentences: Sequence[Sentence]) -> Findings:
        return [tuple(find_patterns(sentence.text)) for sentence in sentences]


def build(spec: str, argument: str) -> Detector:
    return Patterns()
