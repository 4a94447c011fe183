"""De-identification: every protected mention is replaced by its category, as ``[person]``.

What the detectors miss stays. It is no substitute for the noise, which covers that too; it is to be compared with it.
"""

from __future__ import annotations

from uedp_ray.corpus.records import Sentence
from uedp_ray.corpus.transforms.base import Generators, Transform, with_mentions_replaced


class Mask(Transform):
    """Of mentions that overlap, the first one's category is shown."""

    draws = False

    def text_of(self, sentence: Sentence, generators: Generators) -> str:
        return with_mentions_replaced(sentence, lambda mention: f"[{mention.category}]")


TRANSFORM = Mask
