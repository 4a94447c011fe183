"""Runs of capitalised words: stand-ins for names in public text that nobody has annotated."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from uedp_ray.corpus.detectors.base import Detector, Findings, Reads
from uedp_ray.corpus.records import Mention, Sentence

_WORD = re.compile(r"[^\W_][\w'’.&-]*\w|[^\W_]")
_SINGLE = frozenset({"I"})
"""Capitals that name nobody."""


class Capitalized:
    """Each run of capitalised words inside a sentence, as ``misc``; its first word, capitalised anyway, opens none."""

    fingerprint, cacheable, categories = "capitalized-1", False, frozenset({"misc"})
    reads: Reads = "sentences"

    def find(self, sentences: Sequence[Sentence]) -> Findings:
        return [tuple(Mention("misc", *span) for span in _runs(sentence.text)) for sentence in sentences]


def _runs(text: str) -> Iterator[tuple[int, int]]:
    begin, last = -1, -1
    for place, word in enumerate(_WORD.finditer(text)):
        named = place > 0 and word[0][0].isupper() and word[0] not in _SINGLE
        if begin >= 0 and not (named and text[last : word.start()].isspace()):
            yield begin, last
            begin = -1
        if named:
            begin, last = (word.start() if begin < 0 else begin), word.end()
    if begin >= 0:
        yield begin, last


def build(spec: str, argument: str) -> Detector:
    return Capitalized()
