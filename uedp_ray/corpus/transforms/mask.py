"""De-identification: protected mentions are masked, by their category, by one word for all, or by nothing.

    >>> from uedp_ray.config import TransformConfig
    >>> from uedp_ray.corpus.records import Mention, Sentence
    >>> from uedp_ray.corpus.transforms.base import Generators, transform_of
    >>> mentions = Mention("person", 0, 3), Mention("person", 4, 7), Mention("loc", 13, 17)
    >>> sentence = Sentence("u", "Ann Lee left Oslo.", mentions=mentions)
    >>> for style in ("category", "token", "remove"):
    ...     transform = transform_of(TransformConfig(kind="mask", style=style))
    ...     transform.text_of(sentence, Generators(b"secret key", user=0, sentence=0))
    '[person] left [loc].'
    '[entity] left [entity].'
    ' left .'

What the detectors miss stays. It is no substitute for the noise, which covers that too; it is to be compared with it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from uedp_ray.corpus.records import Mention, Sentence
from uedp_ray.corpus.transforms.base import Generators, Transform, with_mentions_replaced


class Mask(Transform):
    """Of mentions that overlap, the first one's category is shown. Mentions of one category with nothing but blanks between
    them get one mask, so that a name that was found in parts is masked as a whole."""

    draws = False
    version = 1

    def writes(self, categories: Iterable[str]) -> tuple[str, ...]:
        return tuple(dict.fromkeys(filter(None, map(self._mask, sorted(categories)))))

    def text_of(self, sentence: Sentence, generators: Generators) -> str:
        return with_mentions_replaced(_merged(sentence), lambda mention: self._mask(mention.category))

    def _mask(self, category: str) -> str:
        return {"category": f"[{category}]", "token": "[entity]", "remove": ""}[self.config.style]


def _merged(sentence: Sentence) -> Sentence:
    """The sentence with neighbouring mentions of one category as one mention."""
    merged = list[Mention]()
    for mention in sorted(sentence.mentions, key=lambda each: (each.start, -each.end)):
        last = merged[-1] if merged else None
        if last and last.category == mention.category and not sentence.text[last.end : mention.start].strip():
            merged[-1] = replace(last, end=max(last.end, mention.end))
        elif not last or last.end < mention.end:  # one within another is masked with it
            merged.append(mention)
    return replace(sentence, mentions=tuple(merged))


TRANSFORM = Mask
