"""What readers yield: a sentence of one user, with the sensitive mentions known so far.

    Sentence(user="u1", text="Ann left Rome .", mentions=(Mention("person", 0, 3),))

Everything here is private data.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass, field

from uedp_ray.corpus.categories import canonical

_WRAPPED = re.compile("(?<=\\w[-\u2010\u2011]) (?=\\w)")


@dataclass(frozen=True, slots=True)
class Mention:
    """One occurrence of an entity: ``text[start:end]``, in characters. Whatever a source or a model calls its category, it
    is kept under our name of it: by any other it would not be found among those to protect."""

    category: str
    start: int
    end: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "category", canonical(self.category))


@dataclass(frozen=True, slots=True)
class Sentence:
    """One sentence, or ``running`` text that is still to be cut. ``label`` is its class, ``tags`` one part of speech a
    whitespace word, when the source has them."""

    user: str
    text: str
    label: str | None = None
    tags: tuple[str, ...] | None = None
    mentions: tuple[Mention, ...] = ()
    running: bool = field(default=False, repr=False)


def entity_form(text: str, mention: Mention) -> str:
    """The surface form that, with the category, identifies the entity: lower-cased, composed (NFC), whitespace
    collapsed, none behind a hyphen within a word: there a line may have ended."""
    return _WRAPPED.sub("", " ".join(folded(text[mention.start : mention.end]).split()))


def folded(text: str) -> str:
    """Lower-cased and composed: what does not tell entities apart."""
    return unicodedata.normalize("NFC", text.lower())
