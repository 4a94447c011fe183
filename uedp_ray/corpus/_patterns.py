"""Structured identifiers, recognised by their form and, where one exists, by their check digits."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from uedp_ray.corpus.records import Mention


def luhn(digits: str) -> bool:
    """The check of payment card numbers (ISO/IEC 7812-1, annex B)."""
    total = sum(int(d) for d in digits[-1::-2]) + sum(sum(divmod(2 * int(d), 10)) for d in digits[-2::-2])
    return total % 10 == 0


def _card(form: str) -> bool:
    digits = re.sub(r"\D", "", form)
    return 13 <= len(digits) <= 19 and luhn(digits)


def _iban(form: str) -> bool:
    """ISO 13616: country and check digits moved to the end, letters as 10..35, remainder 1 modulo 97."""
    compact = form.replace(" ", "").upper()
    return 15 <= len(compact) <= 34 and int("".join(str(int(c, 36)) for c in compact[4:] + compact[:4])) % 97 == 1


def _ip(form: str) -> bool:
    return ":" in form or all(int(part) < 256 for part in form.split("."))


def _phone(form: str) -> bool:
    """ITU-T E.164: up to 15 digits. After a trunk 0, as few as 8 are likelier a time of day (``0800-1200``) or a code."""
    least = 9 if form.lstrip("(").startswith("0") else 7
    return least <= sum(map(str.isdigit, form)) <= 15


_ANY: Callable[[str], bool] = bool
_DIGIT = re.compile(r"\d")
_LINE = re.compile(r"[^\n]+")

# Category, a sign without which the costly pattern need not be tried, the pattern, and the check of what it matched.
# Tried in this order; a stretch of text claimed by one is not offered to the next. A mark between groups may be followed
# by a blank: a line may have ended there.
_PATTERNS: tuple[tuple[str, re.Pattern[str], re.Pattern[str], Callable[[str], bool]], ...] = (
    (
        "email",
        re.compile("@"),
        re.compile(
            r"(?<![\w.+-])(?:\w{1,30}[._][\w.+-]{0,30}- )?[\w.+-]{1,64}@"
            r"(?:[\w-]{1,63}(?:(?<=-) [\w-]{1,63})?\.){1,8}[A-Za-z]{2,24}\b"
        ),
        _ANY,
    ),
    (
        "url",
        re.compile("://|www", re.I),
        re.compile(r"\b(?:https?://|www\.)[^\s<>\"]{2,2000}(?<![.,;:!?)\]'])", re.IGNORECASE),
        _ANY,
    ),
    ("iban", _DIGIT, re.compile(r"\b[A-Z]{2}\d{2}(?: ?[A-Z\d]{4}){2,7}(?: ?[A-Z\d]{1,3})?\b", re.I | re.A), _iban),
    (
        "credit_card",
        _DIGIT,
        re.compile(
            r"(?<![\w.])(?:\d{4}(?:-? ?\d{4}){3}(?:-? ?\d{3})?|\d{4}(?:- ?| )\d{6}(?:- ?| )\d{4,5}|\d{13,19})(?!\w)"
        ),
        _card,
    ),
    ("ssn", _DIGIT, re.compile(r"(?<![\w-])(?!000|666|9\d\d)\d{3}- ?(?!00)\d\d- ?(?!0000)\d{4}(?![\w-])"), _ANY),
    ("ip_address", _DIGIT, re.compile(r"(?<![\w.])\d{1,3}(?:\.\d{1,3}){3}(?![\w]|\.\d)"), _ip),
    (
        "ip_address",
        re.compile(":"),
        re.compile(
            r"(?<![\w:])(?:(?:[\da-f]{1,4}:){7}[\da-f]{1,4}|(?:[\da-f]{1,4}:){1,6}(?::[\da-f]{1,4}){1,6})(?![\w:])",
            re.I,
        ),
        _ip,
    ),
    (
        "phone",
        _DIGIT,
        re.compile(
            r"(?<![\w.-])(?:(?:\+|00(?=[1-9]))\d{1,3}(?:[.-]? ?\(?\d{1,4}\)?){2,6}"
            r"|(?:\(0[1-9]\d{0,4}\) ?|0[1-9]\d{1,4}(?: ?[/-] ?| ))\d{2,8}(?:[ -]\d{1,8}){0,4}"  # after a trunk 0
            r"|0[1-9](?:([ .])\d\d)(?:\1\d\d){3}|0[1-9]\d{8,10}"
            r"|(?:1(?:[.-] ?| ))?(?:\(\d{3}\) ?|\d{3}(?:[.-] ?| ))\d{3}(?:[.-] ?| )\d{4}"
            r"|[2-9]\d\d[2-9]\d{6}|\d{3}- ?\d{4})(?![\w-])"
        ),
        _phone,
    ),
)
CATEGORIES = frozenset(category for category, *_ in _PATTERNS)

PATTERNS_VERSION = "4"
"""Raised with every change above: it is part of the detector's fingerprint."""


def find_patterns(text: str) -> Iterator[Mention]:
    """Every identifier in ``text``; mentions do not overlap, nor go beyond a line end."""
    for line in _LINE.finditer(text):
        for mention in _in_line(line[0]):
            yield Mention(mention.category, line.start() + mention.start, line.start() + mention.end)


def _in_line(text: str) -> Iterator[Mention]:
    claimed = bytearray(len(text))
    for category, sign, pattern, genuine in _PATTERNS:
        if not sign.search(text):
            continue
        for start, end in _spans(pattern, genuine, text):
            if not any(claimed[start:end]):
                claimed[start:end] = b"1" * (end - start)
                yield Mention(category, start, end)


def _spans(pattern: re.Pattern[str], genuine: Callable[[str], bool], text: str) -> Iterator[tuple[int, int]]:
    position = 0
    while match := pattern.search(text, position):
        form = match[0]
        while form and not genuine(form):  # what follows a number may look like its last group: 4111 ... 1111 12/26
            form = form.rpartition(" ")[0]
        position = match.start() + max(len(form), 1)
        if form:
            yield match.start(), position
