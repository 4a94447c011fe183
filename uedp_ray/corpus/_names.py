"""Names of invented entities: an injective map from a number to a name for each category, without a table.

The number's residue modulo ``REGIONS`` says which part of the synthetic corpus it belongs to, so that two parts never share
a name by chance; callers keep to that.
"""

from __future__ import annotations

import functools
import math

from uedp_ray.corpus import _lexicon as lexicon

REGIONS = 5
Name = tuple[str, ...]  # Tokens.


@functools.cache
def _space(bases: tuple[int, ...]) -> tuple[int, int]:
    """The number of combinations and a stride coprime to it, near the golden section: neighbours land far apart."""
    space = math.prod(bases)
    stride = int(space * 0.618) | 1
    while math.gcd(stride, space) > 1:
        stride += 2
    return space, stride


def _digits(number: int, *bases: int) -> list[int]:
    """Scattered mixed-radix digits of ``number``, then how often it went through all combinations."""
    space, stride = _space(bases)
    turns, number = divmod(number, space)
    number = number * stride % space
    out = []
    for base in bases:
        number, digit = divmod(number, base)
        out.append(digit)
    return [*out, turns]


def _stem(start: int, middle: int, turns: int) -> str:
    """Two syllables, and more for every time the combinations have run out."""
    stem = lexicon.STARTS[start] + lexicon.MIDDLES[middle]
    while turns:
        turns, syllable = divmod(turns - 1, len(lexicon.FIRST_ENDS))
        stem += lexicon.FIRST_ENDS[syllable]
    return stem


_SYLLABLES = (len(lexicon.STARTS), len(lexicon.MIDDLES))


@functools.lru_cache(maxsize=4096)
def person(number: int) -> Name:
    """First name and surname."""
    starts, ends, last = lexicon.FIRST_STARTS, lexicon.FIRST_ENDS, lexicon.SURNAME_ENDS
    a, b, c, d, e, turns = _digits(number, len(starts), len(ends), *_SYLLABLES, len(last))
    return (starts[a] + ends[b], _stem(c, d, turns) + last[e])


@functools.lru_cache(maxsize=4096)
def place(number: int) -> Name:
    """A town, sometimes of two words."""
    ends, prefixes = lexicon.PLACE_ENDS, lexicon.PLACE_PREFIXES
    prefix, a, b, end, turns = _digits(number, len(prefixes), *_SYLLABLES, len(ends))
    name = _stem(a, b, turns) + ends[end]
    return (prefixes[prefix], name) if prefixes[prefix] else (name,)


@functools.lru_cache(maxsize=4096)
def company(number: int, topic: int) -> Name:
    """A company whose last word shows its topic."""
    kinds = lexicon.TOPICS[topic].companies
    a, b, kind, turns = _digits(number, *_SYLLABLES, len(kinds))
    return (_stem(a, b, turns), kinds[kind])


@functools.lru_cache(maxsize=4096)
def illness(number: int) -> Name:
    """Perhaps an adjective, then one word (``faruitis``) or two (``Faru fever``)."""
    ends, kinds, adjectives = lexicon.ILLNESS_ENDS, lexicon.ILLNESS_KINDS, lexicon.ILLNESS_ADJECTIVES
    adjective, a, b, end, turns = _digits(number, len(adjectives), *_SYLLABLES, len(ends) + len(kinds))
    stem = _stem(a, b, turns)
    name = (stem.lower() + ends[end],) if end < len(ends) else (stem, kinds[end - len(ends)])
    return (adjectives[adjective], *name) if adjectives[adjective] else name


def phone(number: int) -> Name:
    """Eight digits in pairs after the unassigned country code 999."""
    return ("+999", *(f"{pair:02d}" for pair in _digits(number, 100, 100, 100, 100)[:4]))


def address(number: int) -> Name:
    """The e-mail address of the person of that number."""
    hosts = lexicon.MAIL_HOSTS
    return (f"{'.'.join(person(number)).lower()}@{hosts[number // REGIONS % len(hosts)]}.example",)
