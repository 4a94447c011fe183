"""What detectors see of a row: its text with every run of blanks as one, whole or a sentence at a time; and the mapping of
what they find back to places in the row."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator

from uedp_ray.corpus._splitting import sentence_spans
from uedp_ray.corpus.records import Mention, Sentence

WINDOWS_VERSION = "2"
"""Raised when the windows of a text change: findings kept from earlier runs are then no longer those of its windows."""

_BLANKS = re.compile(r"[^\S\n]{2,}|[^\S\n ]")
_WORD = re.compile(r"\S{1,80}")  # so that a window is bounded for any text
_WORDS, _OVERLAP = 128, 16  # words of a window, and those shared by two in a row: what crosses one's end is in the next


class Window:
    """A stretch of a row, from ``start``, with every run of blanks as one."""

    __slots__ = ("_at", "_removed", "_start", "text")

    def __init__(self, text: str, start: int = 0):
        self._start = start
        self._at: list[int] = []
        self._removed: list[int] = []
        self.text = text
        if text.count(" ") + text.count("\n") != len(text.split()) - 1:  # else there is one between any two words
            self.text = self._squeezed(text)

    def _squeezed(self, text: str) -> str:
        pieces, last, removed = [], 0, 0
        for match in _BLANKS.finditer(text):
            pieces.append(text[last : match.start()])
            last = match.end()
            removed += last - match.start() - 1
            self._at.append(last - removed)
            self._removed.append(removed)
        return " ".join([*pieces, text[last:]])

    def in_row(self, mention: Mention) -> Mention:
        """The mention, found in ``text``, by its place in the row."""
        return Mention(mention.category, self._place(mention.start), self._place(mention.end - 1) + 1)

    def _place(self, position: int) -> int:
        before = bisect_right(self._at, position)
        return self._start + position + (self._removed[before - 1] if before else 0)


def windows(row: Sentence) -> Iterator[Window]:
    """The sentences of a row: cut by rule if it is running text or has a label; else the row, which is one already.

    Long ones come as windows of 128 words that overlap by 16.
    """
    whole = ((0, len(row.text)),)
    for begin, end in sentence_spans(row.text) if row.running or row.label is not None else whole:
        words = [match.span() for match in _WORD.finditer(row.text, begin, end)]
        for low in range(0, max(len(words) - _OVERLAP, 1), _WORDS - _OVERLAP):
            within = words[low : low + _WORDS]
            if within:
                yield Window(row.text[within[0][0] : within[-1][1]], within[0][0])
