"""De-identification: every protected mention is replaced by its category, as ``[person]``.

What the detectors miss stays. It is no substitute for the noise, which covers that too; it is to be compared with it.
"""

from __future__ import annotations

import numpy as np

from uedp_ray.corpus.records import Sentence
from uedp_ray.corpus.transforms.base import Transform


class Mask(Transform):
    """Of mentions that overlap, the first one's category is shown."""

    draws = False

    def text_of(self, sentence: Sentence, generator: np.random.Generator) -> str:
        parts, end = list[str](), 0
        for mention in sorted(sentence.mentions, key=lambda each: (each.start, -each.end)):
            if mention.start >= end:
                parts += [sentence.text[end : mention.start], f"[{mention.category}]"]
            end = max(end, mention.end)
        return "".join((*parts, sentence.text[end:]))


TRANSFORM = Mask
