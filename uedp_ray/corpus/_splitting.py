"""Cuts rows into sentences: running text is cut at line ends that ``_layout`` left, and after ``.``, ``!`` or ``?`` before a
capital (or ``<unk>``), unless the full stop is that of an ordinal, an initial or an abbreviation; what is longer than
``max_words`` becomes consecutive pieces. No cut falls inside a mention."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Sequence

from uedp_ray.corpus._abbreviations import goes_on
from uedp_ray.corpus.records import Mention, Sentence

_CUT = re.compile(r"[\r\n]+|[.!?][\"')\]”’“‘»«]*[^\S\r\n]+(?=[\"'(\[“‘„‚«»¿¡]*(\w|<unk>))|[。！？][”’」』）]*")
_NUMBER = re.compile(r"[\W\d_]*(?:[^\W\d_]+\s[\W\d_]*\d)?")  # and at most a word before it: not a sentence of its own
_WORD = re.compile(r"\S+")

Span = tuple[int, int]


def cut(row: Sentence, mentions: Sequence[Mention], max_words: int) -> Iterator[list[Sentence]]:
    """Yields the row's sentences, each as its pieces, usually one. A piece has the row's label, its slice of the tags
    and the mentions it holds.

    Guarantees: no cut falls inside a mention, so none is lost; a piece has at most ``max_words`` whitespace words,
    unless a mention has more. Running text without any word yields nothing.
    """
    mentions = sorted(mentions, key=lambda mention: mention.start) if len(mentions) > 1 else mentions
    if not row.running:
        yield _bounded(row, (0, len(row.text)), mentions, max_words)
        return
    begin, first, reach, seen = 0, 0, 0, 0
    for end in (*_cuts(row.text), len(row.text)):
        while seen < len(mentions) and mentions[seen].start < end:
            reach = max(reach, mentions[seen].end)
            seen += 1
        if reach <= end:  # else a mention continues past the cut
            if stripped := _stripped(row.text, begin, end):
                yield _bounded(row, stripped, mentions[first:seen], max_words)
            begin, first = end, seen


def sentence_spans(text: str) -> Iterator[Span]:
    """Yields the spans of the sentences of a text without mentions, stripped."""
    begin = 0
    for end in (*_cuts(text), len(text)):
        if span := _stripped(text, begin, end):
            yield span
        begin = end


def _stripped(text: str, begin: int, end: int) -> Span | None:
    piece = text[begin:end]
    left = len(piece) - len(piece.lstrip())
    return (begin + left, begin + len(piece.rstrip())) if left < len(piece) else None


def _cuts(text: str) -> Iterator[int]:
    begin = 0
    for match in _CUT.finditer(text):
        follower = match[1]
        if follower is not None and not (follower.isupper() or follower == "<unk>"):
            continue
        if text[match.start()] == "." and goes_on(text, match.start(), match.start(1)):
            continue
        if follower is not None and _NUMBER.fullmatch(text, begin, match.start()):
            continue  # "1. Definitions", "Section 4. Definitions", "Am 16.06. Frau Vogel"
        begin = match.end()
        yield begin


def _bounded(row: Sentence, span: Span, mentions: Sequence[Mention], max_words: int) -> list[Sentence]:
    begin, end = span
    if end - begin < 2 * max_words or len(row.text[begin:end].split()) <= max_words:
        return [_piece(row, span, mentions, row.tags)]
    words = [match.span() for match in _WORD.finditer(row.text, begin, end)]
    pieces, first = list[Sentence](), 0
    for low, high in _pieces(words, mentions, () if row.running else _cuts(row.text), max_words):
        piece = words[low][0], words[high - 1][1]
        last = first
        while last < len(mentions) and (high == len(words) or mentions[last].start < words[high][0]):
            last += 1
        pieces.append(_piece(row, piece, mentions[first:last], row.tags and row.tags[low:high]))
        first = last
    return pieces


def _pieces(words: list[Span], mentions: Sequence[Mention], cuts: Iterable[int], max_words: int) -> Iterator[Span]:
    """Ranges of words: to the end of a sentence if that wastes less than half, else as even as possible."""
    open_at = [True] * len(words)  # may a piece begin with this word?
    reach, seen = 0, 0
    for number, (start, _) in enumerate(words):
        while seen < len(mentions) and mentions[seen].start < start:
            reach = max(reach, mentions[seen].end)
            seen += 1
        open_at[number] = reach <= start
    ends, number = set[int](), 0
    for end in cuts:
        while number < len(words) and words[number][0] < end:
            number += 1
        ends.add(number)
    low, count = 0, len(words)
    while (rest := count - low) > max_words:
        even = low + -(-rest // -(-rest // max_words))
        at_sentence = (high for high in range(low + max_words, (low + even) // 2, -1) if high in ends and open_at[high])
        shorter = (high for high in range(even, low, -1) if open_at[high])
        longer = (high for high in range(even + 1, count) if open_at[high])
        high = next(itertools.chain(at_sentence, shorter, longer), count)
        yield low, high
        low = high
    if low < count:
        yield low, count


def _piece(row: Sentence, span: Span, mentions: Sequence[Mention], tags: tuple[str, ...] | None) -> Sentence:
    begin, end = span
    held = tuple(mentions)
    if end - begin < len(row.text):
        held = tuple(Mention(m.category, max(m.start - begin, 0), min(m.end, end) - begin) for m in held)
    return Sentence(row.user, row.text[begin:end], row.label, tags, held)
