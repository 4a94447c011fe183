"""What readers yield: a sentence of one user, with the sensitive mentions known so far.

    >>> from uedp_ray.corpus.records import Mention, Sentence, entity_form
    >>> sentence = Sentence(user="u1", text="Anne- Marie LEE left .", mentions=(Mention("PER", 0, 15),))
    >>> sentence.mentions[0].category, entity_form(sentence.text, sentence.mentions[0])    # what the entity is known by
    ('person', 'anne-marie lee')

Everything here is private data.
"""

from __future__ import annotations

import itertools
import re
import unicodedata
from dataclasses import dataclass, field
from typing import Literal

from uedp_ray.corpus.categories import canonical

_MARKS = re.compile("[\\W\uff9e\uff9f]{31,}")  # and other text without letters; real marks never come in such runs
_WRAPPED = re.compile("(?<=\\w[-\u2010\u2011]) (?=\\w)")


@dataclass(frozen=True, slots=True)
class Mention:
    """One occurrence of an entity: ``text[start:end]``, in characters. Whatever a source or a model calls its category, it
    is stored under our name for it: under any other it would not be found among those to protect."""

    category: str
    start: int
    end: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "category", canonical(self.category))


@dataclass(frozen=True, slots=True)
class Sentence:
    """One sentence, or ``running`` text that is still to be cut. ``label`` is its class, ``tags`` one part of speech per
    whitespace word, if the source has them."""

    user: str
    text: str
    label: str | None = None
    tags: tuple[str, ...] | None = None
    mentions: tuple[Mention, ...] = ()
    running: bool = field(default=False, repr=False)


def entity_form(text: str, mention: Mention) -> str:
    """The surface form that, with the category, identifies the entity: lower-cased, composed (NFC), whitespace
    collapsed, with none after a hyphen within a word, where a line may have ended."""
    return _WRAPPED.sub("", " ".join(folded(text[mention.start : mention.end]).split()))


def folded(text: str) -> str:
    """The text lower-cased and composed: case and composition do not distinguish entities."""
    return composed("NFC", text.lower())


def composed(form: Literal["NFC", "NFKC"], text: str) -> str:
    """``unicodedata.normalize``, in linear time: left to itself it sorts a run of marks by insertion."""
    if text.isascii():
        return text
    return unicodedata.normalize(form, _MARKS.sub(lambda run: _in_order(form, run[0]), text))


def _in_order(form: Literal["NFC", "NFKC"], text: str) -> str:
    """Decomposed, its marks in canonical order: the same text to ``form`` (Unicode Standard, 3.11)."""
    parts = {letter: unicodedata.normalize("NFD" if form == "NFC" else "NFKD", letter) for letter in set(text)}
    single = "".join(map(parts.__getitem__, text))
    same = {letter: letter for letter in set(single)}  # one object each, or a long text takes a hundred times its size
    runs = itertools.groupby(map(same.__getitem__, single), lambda letter: unicodedata.combining(letter) > 0)
    return "".join("".join(sorted(run, key=unicodedata.combining) if marks else run) for marks, run in runs)
