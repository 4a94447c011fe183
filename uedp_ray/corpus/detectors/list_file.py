"""A user's own list of phrases: any case, whole words."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Sequence
from pathlib import Path

from uedp_ray.corpus._lines import Lines
from uedp_ray.corpus._phrases import PhraseTrie
from uedp_ray.corpus.categories import LISTED, canonical
from uedp_ray.corpus.detectors.base import Detector, Findings, Reads, modified
from uedp_ray.corpus.records import Sentence
from uedp_ray.errors import InputError

_LONGEST = 1000


class PhraseList:
    """A user's own list. Raises: InputError if the file is missing or holds no phrase."""

    cacheable = False
    reads: Reads = "rows"

    def __init__(self, spec: str):
        phrases = read_phrases(Path(spec.partition(":")[2]), "detector", spec)
        self._trie = PhraseTrie(phrases)
        self.fingerprint = f"list-{hashlib.sha256(repr(phrases).encode()).hexdigest()}"
        self.categories = frozenset(category for _, category in phrases)

    def find(self, sentences: Sequence[Sentence]) -> Findings:
        return [tuple(self._trie.find(sentence.text)) for sentence in sentences]


def read_phrases(path: Path, field: str, value: str) -> list[tuple[str, str]]:
    """(Phrase, category) of each line of a list. Raises: InputError that names ``field``, whose ``value`` names the file."""
    if not path.is_file():
        raise InputError(field, value, "no such file: list one phrase per line, optionally TAB category")
    entries = [line.strip("\r\n").partition("\t") for line in Lines(path, field=field)]
    for number, (_, _, category) in enumerate(entries, start=1):
        if "\t" in category or len(category) > _LONGEST:
            remedy = f"line {number}: a phrase, TAB, and a category of at most {_LONGEST} characters"
            raise InputError(field, value, remedy)
    phrases = [(phrase, canonical(category) or LISTED) for phrase, _, category in entries if phrase.strip()]
    if not phrases:
        raise InputError(field, value, "the list is empty: write one phrase per line")
    return phrases


@functools.lru_cache(maxsize=4)
def _load_list(spec: str, _changed: int) -> PhraseList:
    return PhraseList(spec)


def build(spec: str, argument: str) -> Detector:
    return _load_list(spec, modified(Path(argument)))
