"""What can be found of a transform without text: whether it opens, what it claims, and whether it keeps texts apart.

    >>> from uedp_ray.config import TransformConfig
    >>> from uedp_ray.corpus.transform_checks import check_transform
    >>> check_transform(TransformConfig(kind="mask"))    # nothing to say

What is tried on made-up words guards against oversight, and does not see all.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
from scipy.spatial.distance import cdist

from uedp_ray.components import afresh
from uedp_ray.config import TransformConfig
from uedp_ray.config.choices import PROVED_TRANSFORMS, PROVED_WORD_MECHANISMS
from uedp_ray.corpus.categories import KNOWN
from uedp_ray.corpus.records import Mention, Sentence
from uedp_ray.corpus.transforms.base import Generators, Transform, claim_of, transform_of
from uedp_ray.corpus.transforms.replace_words import ReplaceWords
from uedp_ray.corpus.word_mechanisms import ByLaw, WordMechanism, Words, mechanism_of
from uedp_ray.errors import InputError

_NAMES = (("Ada", "Bob"), ("Cyd", "Dee"))
_TRIED = 12
"""Words that are drawn at random to be held against each other, and as many that they may become."""
_ROUNDING = 1e-6
_ALONE = "it must keep nothing of one text for another, and draw from what it is given alone"


def check_transform(config: TransformConfig) -> None:
    """Raises: InputError for files that cannot be read, and for a transform of others, or a law of words, that is not what
    it states as far as made-up words show; TypeError for what no transform can claim."""
    transform = transform_of(config)
    if transform is None:
        return
    transform.check()
    claim_of(transform)  # else it would be asked for only when the run has ended
    if config.kind not in PROVED_TRANSFORMS:
        _check_apart(config, type(transform))
    if isinstance(transform, ReplaceWords):
        _check_mechanism(config, transform.mechanism)


def _check_apart(config: TransformConfig, found: type[Transform]) -> None:
    """Transforms made-up sentences forwards, and by a new copy of the transform's module backwards."""
    places = range(2 * len(KNOWN))
    kinds = [afresh("corpus.transforms", config.kind, "TRANSFORM", otherwise=found) for _ in range(2)]
    forwards, backwards = (
        {place: kind(config).text_of(_made_up(place), Generators(b"made up", place // 4, place)) for place in order}
        for kind, order in zip(kinds, (places, reversed(places)), strict=True)
    )
    if forwards != backwards:
        remedy = f"{found.__name__} makes something else of a sentence where others were first: {_ALONE}"
        raise InputError("corpus.transform.kind", config.kind, remedy)


def _made_up(place: int) -> Sentence:
    """Of each category two, in which nobody is named twice."""
    one, other = _NAMES[place % 2]
    category = sorted(KNOWN)[place // 2]
    mentions = Mention(category, 0, 3), Mention(category, 8, 11)
    return Sentence(f"user {place // 4}", f"{one} met {other} there .", mentions=mentions)


def _check_mechanism(config: TransformConfig, mechanism: WordMechanism) -> None:
    size = len(mechanism.vectors.words)
    words = np.random.default_rng(0).choice(size, min(size, _TRIED), replace=False)
    if config.mechanism not in PROVED_WORD_MECHANISMS:
        _check_kept_apart(config, mechanism, words)
    if isinstance(mechanism, ByLaw) and mechanism.unit and math.isfinite(mechanism.epsilon):
        _check_law(config, mechanism, words)


def _check_kept_apart(config: TransformConfig, mechanism: WordMechanism, words: Words) -> None:
    name = type(mechanism).__name__

    def drawn(order: Iterable[int]) -> dict[int, int]:
        fresh = mechanism_of(config, mechanism.vectors)
        before = dict(vars(fresh))
        found = {word: int(fresh.sample(np.array([word]), np.random.default_rng(word))[0]) for word in order}
        if any(value is not before.get(key) for key, value in vars(fresh).items()):
            remedy = f"{name} changes as words are drawn: what it needs it makes in __init__, and keeps as it is"
            raise InputError("corpus.transform.mechanism", config.mechanism, remedy)
        return found

    if drawn(words.tolist()) != drawn(words[::-1].tolist()):
        remedy = f"{name} makes something else of a word where others were first: {_ALONE}"
        raise InputError("corpus.transform.mechanism", config.mechanism, remedy)


def _check_law(config: TransformConfig, mechanism: ByLaw, words: Words) -> None:
    """Holds the law of some words, and of words that these may become, against what is stated.

    Probabilities that float64 cannot tell from 0 are taken as its smallest number, which makes no pair look further apart.
    """
    generator = np.random.default_rng(0)
    words = np.unique(np.concatenate([words, *(mechanism.law(int(word))[0][:2] for word in words)]))
    found_WV = mechanism.channel(words, generator)
    found_WV = found_WV / found_WV.sum(axis=1, keepdims=True)
    logs_WV = np.log(np.maximum(found_WV, np.finfo(float).tiny))
    among, outputs = mechanism.hidden_among()[words], [frozenset(np.flatnonzero(row).tolist()) for row in found_WV]
    far_WW = cdist(mechanism.vectors.table[words], mechanism.vectors.table[words])
    everything = len(mechanism.vectors.words)
    for one in range(len(words)):
        for other in range(len(words)):
            if min(among[one], among[other]) < everything and outputs[one] != outputs[other]:
                continue  # of two groups: nothing is stated
            stated = mechanism.epsilon * (far_WW[one, other] if mechanism.unit == "word-metric" else 1.0)
            apart = float((logs_WV[one] - logs_WV[other]).max())
            if not apart <= stated + _ROUNDING * (1 + stated):
                pair = " and ".join(repr(mechanism.vectors.words[each]) for each in (words[one], words[other]))
                remedy = (
                    f"{type(mechanism).__name__} states that {pair} are within {stated:.4g} (unit {mechanism.unit}), and "
                    f"by its law they are {apart:.4g} apart: state what is proved of it"
                )
                raise InputError("corpus.transform.mechanism", config.mechanism, remedy)
