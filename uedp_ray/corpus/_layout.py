r"""Line ends of running text: those that only wrap it are joined, those that end something stay.

    join_lines("met Angela\nMerkel in\n\n> New\n> York")      # "met Angela Merkel in\n\n> New   York"

Lines belong together until one of these: a blank line; another depth of quoting (``>``); a line that opens with a bullet,
a number (but no ordinal of the sentence above: ``am`` / ``16. Juni``) or another mark of an item; a heading or a ruler; in
a block that opens with ``Ann:``, ``[10:32]`` or ``<ann>``, every line that opens the same way. A block of four lines or
more stays line by line (chat, verse, a table) if most of its lines end although the next word would have fitted: those
were not wrapped.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from uedp_ray.corpus._abbreviations import goes_on_with_ordinal

_LINE = re.compile(r"([ \t]*(?:>[ \t]?)*)([^\r\n]*)(\r\n|[\r\n]|\Z)")
_ITEM = re.compile(r"[ \t]*(?:[-*+•◦▪‣·–—|]|\d{1,3}[.)](?=[ \t]+\D)|\(?[A-Za-z]\)|#{1,6})[ \t]")
_TURN = re.compile(r"[ \t]*(?:\[[^\]]{1,40}\]|<[^<>\s]{1,40}>|\d?\d:\d\d\b|\w[\w.'-]*(?: [\w.'-]+){0,3}:[ \t])")
_ALONE = re.compile(r"[ \t]*(?:#{1,6}[ \t].*|=+[ \t].*[ \t]=+[ \t]*|(?:[-=*_~][ \t]*){3,})")  # a heading, a ruler
_FEW = 3  # lines whose lengths say nothing

_Line = tuple[str, str, str]
"""Quote markers, the rest, the line end."""


def join_lines(text: str) -> str:
    """``text`` with blanks for the line ends within a paragraph, and for the quote markers after them.

    Guarantees: as long as ``text``, character for character, so that offsets hold. The line ends left are ``\\n``.
    """
    if "\n" not in text and "\r" not in text:
        return text
    return "".join(part for block in _blocks(text) for part in _joined(block))


def _blocks(text: str) -> Iterator[list[_Line]]:
    block: list[_Line] = []
    turns = False
    for match in _LINE.finditer(text):
        line = (match[1], match[2], match[3])
        if block and not _goes_on(block[-1], line, turns):
            yield block
            block = []
        if not block:
            turns = _TURN.match(line[1]) is not None  # once per block: its first line may be the whole row
        block.append(line)
    yield block


def _goes_on(last: _Line, line: _Line, turns: bool) -> bool:
    """Whether the line belongs to the block that ends with ``last``; ``turns``: whether that opened with a turn."""
    (quoted, body, _), (before, above, _) = line, last
    return not (
        not body.strip()
        or not above.strip()
        or (quoted != before and quoted.count(">") != before.count(">"))
        or (_ITEM.match(body) and not goes_on_with_ordinal(above, body))
        or _ALONE.fullmatch(body)
        or _ALONE.fullmatch(above)
        or (turns and _TURN.match(body))
    )


def _joined(block: list[_Line]) -> Iterator[str]:
    wrapped = len(block) <= _FEW or _is_wrapped(block)
    for number, (quoted, body, end) in enumerate(block):
        yield " " * len(quoted) if wrapped and number else quoted
        yield body
        yield (" " if wrapped and number < len(block) - 1 else "\n") * len(end)


def _is_wrapped(block: list[_Line]) -> bool:
    lines = [body.split() for _, body, _ in block]
    lengths = [len(body.rstrip()) for _, body, _ in block[:-1]]
    widths = sorted(length for length, words in zip(lengths, lines, strict=False) if len(words) > 1)
    if not widths:  # one word per line
        return False
    width = widths[9 * len(widths) // 10]  # a word longer than the width sticks out, and so may a line typed by hand
    full = sum(length + 1 + len(words[0]) > width for length, words in zip(lengths, lines[1:], strict=True))
    return 2 * full >= len(lengths)
