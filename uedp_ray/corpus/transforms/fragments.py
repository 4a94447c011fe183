"""``fragments``: each sentence in pieces of ``words`` words, in random order, of which ``share`` is kept.

A canary longer than a piece is in no training example. It lowers what can be memorised, and changes no epsilon.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from uedp_ray.corpus.records import Sentence
from uedp_ray.corpus.transforms.base import Piece, Transform


class Fragments(Transform):
    def apply(self, sentences: Sequence[Sentence], generator: np.random.Generator) -> Iterator[Piece]:
        size = self.config.words
        pieces = [
            Piece(" ".join(words[begin : begin + size]), sources=(place,))
            for place, words in enumerate(sentence.text.split() for sentence in sentences)
            for begin in range(0, len(words), size)
        ]
        for place in generator.permutation(len(pieces)).tolist():
            if generator.random() < self.config.share:
                yield pieces[place]


TRANSFORM = Fragments
