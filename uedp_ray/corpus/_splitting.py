"""Rule-based sentence splitting: at line ends, and after ``.``, ``!`` or ``?`` before a capital (or ``<unk>``)."""

from __future__ import annotations

import re
from collections.abc import Iterator

from uedp_ray.corpus.records import Mention

_CUT = re.compile(r"[\r\n]+|[.!?][\"')\]”’]*[^\S\r\n]+(?=[\"'(\[“‘]*(\w|<unk>))")
_TITLE = re.compile(r"\b(?:[^\W\d_]|mr|mrs|ms|dr|prof|st|sen|gen|rep|gov|col|capt)$", re.IGNORECASE)


def split_sentences(text: str, mentions: tuple[Mention, ...] = ()) -> Iterator[tuple[str, tuple[Mention, ...]]]:
    """Yields each sentence, stripped, with the mentions it holds, their spans re-based.

    Guarantees: no cut falls inside a mention, so none is lost. Text without any word yields nothing.
    """
    mentions = tuple(sorted(mentions, key=lambda mention: mention.start))
    begin, first, reach, seen = 0, 0, 0, 0
    for end in (*_cuts(text), len(text)):
        while seen < len(mentions) and mentions[seen].start < end:
            reach = max(reach, mentions[seen].end)
            seen += 1
        if reach > end:  # a mention goes on past the cut
            continue
        piece = text[begin:end]
        sentence = piece.strip()
        if sentence:
            shift = begin + len(piece) - len(piece.lstrip())
            held = (
                (m.category, max(m.start - shift, 0), min(m.end - shift, len(sentence))) for m in mentions[first:seen]
            )
            yield sentence, tuple(Mention(*span) for span in held)
        begin, first = end, seen


def _cuts(text: str) -> Iterator[int]:
    begin = 0
    for match in _CUT.finditer(text):
        follower = match[1]
        if follower is not None and not (follower.isupper() or follower == "<unk>"):
            continue
        if text[match.start()] == "." and _TITLE.search(text, max(0, match.start() - 8), match.start()):
            continue  # an initial or a title: "J. Smith", "Mr. Smith"
        if follower is not None and not any(map(str.isalpha, text[begin : match.start()])):
            continue  # the number of a clause: "1. Definitions"
        begin = match.end()
        yield begin
