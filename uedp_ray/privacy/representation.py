"""Noise that each user adds to the vector of a sentence, before anybody else sees it: DPNR and GauDP.

    >>> import numpy as np
    >>> from uedp_ray.config import RepresentationConfig
    >>> from uedp_ray.privacy.representation import NoisedVectors
    >>> settings = RepresentationConfig(kind="gaussian", target_epsilon=2.0, clip_norm=1.0)
    >>> noised = NoisedVectors(settings, dimension=4, delta=1e-5, epochs=3)
    >>> [each.told for each in noised.guarantees()]    # each vector is drawn once, and kept for all epochs
    ['ε = 2.000 of one record']
    >>> vector = noised.release(np.array([3.0, 0.0, 0.0, 4.0]), np.random.default_rng(0))
    >>> vector.shape, round(noised.scale, 3)    # of the noise, for a vector that is clipped to 1
    ((4,), 3.988)

``laplace`` is DPNR: a vector scaled to [0, 1], with Laplace noise on each coordinate. ``gaussian`` is GauDP: a vector
clipped to C in L2 norm, with Gaussian noise. Noise is as much as ``target_epsilon`` needs by the accounts of
``privacy.local``; of the two ``…_published`` kinds, as much as was published for that figure, which is then no guarantee.
Vectors are private; the settings, their dimension and the number of epochs are public.
"""

from __future__ import annotations

from typing import TypedDict

import numpy as np
from numpy.typing import NDArray

from uedp_ray.config import RepresentationConfig
from uedp_ray.privacy import local
from uedp_ray.privacy.guarantee import Guarantee

_STEP = 2.0**-20
"""What is released is a multiple of it, in units of the noise."""


class _Published(TypedDict):
    """What the figure of GauDP was printed for: T steps, each of a share p of the records."""

    sampling_prob: float
    steps: int
    delta: float


class NoisedVectors:
    """The mechanism of a representation section, for vectors of some dimension.

    ``words_are_tokens``: whether words are dropped, and not parts of words: else nothing is promised of a word.
    """

    def __init__(
        self,
        config: RepresentationConfig,
        *,
        dimension: int,
        delta: float,
        epochs: int,
        batch_size: int = 1,
        words_are_tokens: bool = False,
    ):
        self._config, self.dimension, self._delta = config, dimension, delta
        self.word_dropout, self.promises_words = config.word_dropout, words_are_tokens and config.kind == "laplace"
        self.uses = 1 if config.drawn == "once" else epochs
        share = min(1.0, batch_size / (config.num_records or batch_size))
        self._published = _Published(sampling_prob=share, steps=max(1, round(epochs / share)), delta=delta)
        self.scale = self._solved()
        """Of a coordinate's noise: b of Laplace noise, sigma of Gaussian noise."""

    def _solved(self) -> float:
        config, target = self._config, self._config.target_epsilon
        assert target is not None  # the section requires it
        if config.kind == "laplace":
            return self.dimension * self.uses / target
        if config.kind == "laplace_published":
            return 1.0 / target
        if config.kind == "gaussian_published":
            return config.clip_norm * local.gaudp_noise_as_published(target_epsilon=target, **self._published)
        return local.gaudp_noise(clip_norm=config.clip_norm, target_epsilon=target, steps=self.uses, delta=self._delta)

    def guarantees(self) -> list[Guarantee]:
        """What they promise of one sentence, and of one word in it."""
        config = self._config
        if config.kind == "gaussian":
            return [local.gaudp(clip_norm=config.clip_norm, noise_std=self.scale, steps=self.uses, delta=self._delta)]
        if config.kind == "gaussian_published":
            return [local.gaudp_as_published(clip_norm=config.clip_norm, noise_std=self.scale, **self._published)]
        if config.kind == "laplace_published":
            return [local.dpnr_as_published(coordinate_epsilon=1.0 / self.scale, word_dropout=config.word_dropout)]
        each = 1.0 / self.scale
        uses, dropped = self.uses, config.word_dropout
        found = local.dpnr(dimension=self.dimension, coordinate_epsilon=each, uses=uses, word_dropout=dropped)
        return [*found] if self.promises_words else [found[0]]

    def release(self, vector: NDArray[np.float64], generator: np.random.Generator) -> NDArray[np.float64]:
        """(k,) float64: scaled or clipped, and noised. One that is not finite counts as zero."""
        if vector.shape != (self.dimension,):
            raise RuntimeError(f"a vector of {vector.shape} numbers is charged as one of {self.dimension}")
        if not np.isfinite(vector).all():
            vector = np.zeros_like(vector)
        if self._config.kind.startswith("laplace"):
            low, high = vector.min(), vector.max()
            scaled = (vector - low) / (high - low) if high > low else np.zeros_like(vector)
            noised = scaled + generator.laplace(0.0, self.scale, len(vector))
        else:
            norm = float(np.linalg.norm(vector))
            shrunk = vector * min(1.0, self._config.clip_norm / norm) if norm > 0.0 else vector
            noised = shrunk + generator.normal(0.0, self.scale, len(vector))
        step = self.scale * _STEP  # the last bits of a sum would tell of the vector (Mironov 2012)
        return np.asarray(np.rint(noised / step) * step)
