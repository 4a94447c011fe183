"""Phrase lists: a trie over words, so that a text is scanned once for a list of any length."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

from uedp_ray.corpus.records import Mention, folded

_WORD = re.compile(r"[\w\u0300-\u036f]+|[^\w\s]")  # combining accents belong to their word
_END = ""  # no word is empty, so this key marks the categories of a phrase that ends here


class PhraseTrie:
    """Finds phrases in any case, spacing and Unicode composition, at word boundaries; of several that start at one word,
    the longest.

    Time: at most the words of a text times the longest phrase. Memory: one small dict per distinct prefix.
    """

    def __init__(self, phrases: Iterable[tuple[str, str]]):
        self._root: dict[str, Any] = {}
        for phrase, category in phrases:
            node = self._root
            for word in _WORD.findall(phrase):
                node = node.setdefault(folded(word), {})
            if node is not self._root:
                node.setdefault(_END, set()).add(category)

    def find(self, text: str) -> Iterator[Mention]:
        """Mentions from left to right; those of different phrases do not overlap."""
        words = [(folded(match[0]), match.start(), match.end()) for match in _WORD.finditer(text)]
        position = 0
        while position < len(words):
            node, ahead, last = self._root, position, position
            categories: set[str] = set()
            while ahead < len(words) and (following := node.get(words[ahead][0])) is not None:
                node, ahead = following, ahead + 1
                if _END in node:
                    categories, last = node[_END], ahead
            for category in sorted(categories):
                yield Mention(category, words[position][1], words[last - 1][2])
            position = max(last, position + 1)
