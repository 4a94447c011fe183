"""Each sentence in pieces of ``words`` words, in a random order, each of which is kept with probability ``share``.

    >>> from uedp_ray.config import TransformConfig
    >>> from uedp_ray.corpus.records import Sentence
    >>> from uedp_ray.corpus.transforms.base import Generators, transform_of
    >>> transform = transform_of(TransformConfig(kind="fragments", words=2, share=0.5))
    >>> transform.text_of(Sentence("u", "one two three four five six seven"), Generators(b"secret key", user=0, sentence=0))
    'five six three four'

A longer sequence of words is trained on only where two pieces meet again. It promises nothing. The published method shuffles
the pieces of all of a user's text; here they stay in their sentence, since a transform is a function of one sentence alone:
what one says must change no other (docs/accounting.md, "Transforms").
"""

from __future__ import annotations

from uedp_ray.corpus.records import Sentence
from uedp_ray.corpus.transforms.base import Generators, Transform


class Fragments(Transform):
    def text_of(self, sentence: Sentence, generators: Generators) -> str:
        words, size, generator = sentence.text.split(), self.config.words, generators.sentence
        pieces = [" ".join(words[first : first + size]) for first in range(0, len(words), size)]
        order = generator.permutation(len(pieces))
        return " ".join(pieces[place] for place in order if generator.random() < self.config.share)


TRANSFORM = Fragments
