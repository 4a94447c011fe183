"""The federated secret sharer: canaries, five random words each, in place of sentences of drawn users.

    >>> from uedp_ray.config import TransformConfig
    >>> from uedp_ray.corpus.records import Sentence
    >>> from uedp_ray.corpus.transforms.base import Generators, transform_of
    >>> from uedp_ray.corpus.transforms.plant import canaries_of
    >>> config = TransformConfig(kind="plant", sharer_probs=(0.5,), planting_probs=(0.1, 1.0), canaries_per_cell=1)
    >>> for canary in canaries_of(config):
    ...     print(canary)
    Canary(text='after night local plan second', sharer_prob=0.5, planting_prob=0.1)
    Canary(text='was record six month today', sharer_prob=0.5, planting_prob=1.0)
    >>> said = [Sentence(user, f"{user} said {number}") for user in ("ann", "bo") for number in range(2)]
    >>> for number, sentence in enumerate(said):
    ...     transform_of(config).text_of(sentence, Generators(b"secret key", user=number // 2, sentence=number))
    'ann said 0'
    'ann said 1'
    'was record six month today'
    'was record six month today'

``uedp_ray.audit`` measures what a model remembers of them. Which canaries there are is public; who shares one, and which
sentences became one, follows from the run's key, the person and the sentence's place. Whoever shares several that would
take one place gets one of them, each as likely.

Source: Thakkar, Ramaswamy, Mathews and Beaufays, "Understanding unintended memorization in federated learning" (2020).
There the words are of the model's vocabulary. Here they are common English words that any vocabulary of English text has,
so that the canaries are known before there is one; one that lacks them is refused.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from uedp_ray.config import TransformConfig
from uedp_ray.config.texts import CANARY_LENGTH
from uedp_ray.corpus.records import Sentence
from uedp_ray.corpus.transforms.base import Generators, Transform
from uedp_ray.corpus.vocabulary import Vocabulary
from uedp_ray.errors import InputError

_LIST = """
was this that not there were can she after from said they did you has who before without us about two third
during week with every lead may led but young could local team home while along month would six when long
second night today should once plan line again strong return near hit over five signed record against loss
because have three fact contract morning seven must all national despite days four nine half united changed
report although eight planned issued room reach below call season think director lost bridge now issue rule
under clear legal post term direct often ground market station goal travel water low care within front break
flight shows closed recent old written cross title cold winter fast table heat fresh storm lake
"""
WORDS = tuple(_LIST.split())


class Canary(NamedTuple):
    """Public."""

    text: str
    sharer_prob: float
    """p_u."""
    planting_prob: float
    """p_e."""


@functools.lru_cache(maxsize=8)
def canaries_of(config: TransformConfig) -> tuple[Canary, ...]:
    """The canaries of a run, ``canaries_per_cell`` for each pair of probabilities: distinct, each drawn uniformly."""
    cells = [(shared, planted) for shared in config.sharer_probs for planted in config.planting_probs]
    generator, words = np.random.Generator(np.random.Philox(config.canary_seed)), config.canary_words
    numbers = generator.choice(words**CANARY_LENGTH, len(cells) * config.canaries_per_cell, replace=False)
    places = np.stack(np.unravel_index(numbers, (words,) * CANARY_LENGTH), axis=1)
    texts = (" ".join(WORDS[place] for place in row) for row in places.tolist())
    return tuple(Canary(next(texts), *cell) for cell in cells for _ in range(config.canaries_per_cell))


def word_ids(config: TransformConfig, vocabulary: Vocabulary) -> NDArray[np.int32]:
    """The tokens, (W,), of the words that canaries are drawn from, as they stand within a sentence.

    Raises: InputError for a vocabulary in which one of them, also as a first word, is not one token of its own.
    """
    words = WORDS[: config.canary_words]
    firsts, pairs = vocabulary.encode_batch(words), vocabulary.encode_batch([f"{words[0]} {word}" for word in words])
    found = [
        (len(one), len(two)) == (1, 2) and vocabulary.unk_id not in two for one, two in zip(firsts, pairs, strict=True)
    ]
    if not all(found):
        lacking = ", ".join(word for word, known in zip(words, found, strict=True) if not known)
        remedy = (
            f"the vocabulary has no token for {lacking}: make it of more public text in English, or use fewer words"
        )
        raise InputError("corpus.transform.canary_words", config.canary_words, remedy)
    return np.stack(pairs)[:, 1]


class Plant(Transform):
    """It promises nothing. A null sentence stays null, whoever has it."""

    def check_vocabulary(self, vocabulary: Vocabulary) -> None:
        word_ids(self.config, vocabulary)

    def text_of(self, sentence: Sentence, generators: Generators) -> str:
        canaries = canaries_of(self.config)
        _, sharer_probs, planting_probs = zip(*canaries, strict=True)
        shared = generators.of_person(sentence.user).random(len(canaries)) < sharer_probs
        planted = np.flatnonzero(shared & (generators.sentence.random(len(canaries)) < planting_probs))
        return canaries[generators.sentence.choice(planted)].text if len(planted) else sentence.text


TRANSFORM = Plant
