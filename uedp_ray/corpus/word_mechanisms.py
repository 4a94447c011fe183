"""Mechanisms that replace one word by another, each of one word at a time and of public vectors.

    >>> import numpy as np
    >>> from uedp_ray.config import TransformConfig
    >>> from uedp_ray.corpus.vectors import Vectors
    >>> from uedp_ray.corpus.word_mechanisms import mechanism_of
    >>> vectors = Vectors(("bad", "poor", "fine", "good"), np.array([[0.0], [1.0], [4.0], [5.0]]))
    >>> config = TransformConfig(kind="replace_words", vectors="toy.txt", num_neighbours=2, epsilon=2.0)
    >>> custext = mechanism_of(config, vectors)
    >>> outputs, probabilities = custext.law(0)
    >>> [vectors.words[each] for each in outputs], probabilities.round(3).tolist()    # e / (e + 1), 1 / (e + 1)
    (['bad', 'poor'], [0.731, 0.269])
    >>> custext.sample(np.array([0, 0, 3]), np.random.default_rng(0)).tolist()
    [0, 0, 2]
    >>> custext.hidden_among().tolist()    # words that may become the same words
    [2, 2, 2, 2]

What each guarantees is proved in docs/accounting.md, "Words"; ``unit`` and ``epsilon`` say it. Shape legend: V words,
d coordinates of a vector, K neighbours, n draws. Words are numbers, their places in the file of vectors.
"""

from __future__ import annotations

import copy
import math
from abc import ABC, abstractmethod
from collections import Counter
from typing import ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.distance import cdist

from uedp_ray.components import drop_inherited, in_table
from uedp_ray.config import TransformConfig
from uedp_ray.corpus.vectors import Vectors

Words = NDArray[np.int64]
Replaced = NDArray[np.bool_]
_CELLS = 1 << 22
"""The most distances in memory at once, 32 MiB."""
_POINTS = 20


class WordMechanism(ABC):
    """A channel from words to words. What a class does not state itself of its privacy, it does not promise: ``unit``,
    ``epsilon`` and ``hidden_among`` are not inherited.

    Attributes:
      setting: ``corpus.transform.epsilon``, whatever the mechanism makes of it.
      selection: ``corpus.transform.selection``.
    """

    unit: ClassVar[str] = ""
    """``word``: of words that may become the same words (``hidden_among``). ``word-metric``: of any two words, times the
    distance between them. Empty: of nothing."""
    uses: ClassVar[tuple[str, ...] | None] = None
    """As ``Transform.uses``, of the settings that not all mechanisms read."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        drop_inherited(cls, WordMechanism, "unit", "uses", "epsilon", "hidden_among")

    def __init__(self, config: TransformConfig, vectors: Vectors):
        self.vectors, self.setting, self.selection = vectors, config.epsilon, config.selection

    @property
    def epsilon(self) -> float:
        """Of one draw of one word, in the sense of ``unit``; as here: without bound."""
        return math.inf

    def at(self, setting: float, selection: float) -> Self:
        """The same with another setting and, if it is ``vickrey``, another t: what is made of vectors alone is kept."""
        other = copy.copy(self)
        other.setting, other.selection = setting, selection
        return other

    @abstractmethod
    def sample(self, words: Words, generator: np.random.Generator) -> Words:
        """(n,) words -> (n,) words that replace them, each drawn by itself."""

    @abstractmethod
    def channel(self, words: Words, generator: np.random.Generator) -> NDArray[np.float64]:
        """(W,) words -> (W, V) probabilities of what replaces them, as well as they are known; rows add up to 1."""

    def hidden_among(self, replaced: Replaced | None = None) -> Words:
        """(V,) how many words, itself included, each is hidden among, by proof; as here: none but itself.

        ``replaced``: (V,) which words are replaced at all: the others stay as they are, and hide nobody. All by default.
        """
        return np.ones(len(self.vectors.words), np.int64)

    def _everything(self, replaced: Replaced | None) -> Words:
        size = len(self.vectors.words)
        return np.full(size, size if replaced is None else np.count_nonzero(replaced))


class ByLaw(WordMechanism):
    """One whose probabilities are known exactly."""

    @abstractmethod
    def law(self, word: int) -> tuple[Words, NDArray[np.float64]]:
        """The words that one may become, and their probabilities."""

    def channel(self, words: Words, generator: np.random.Generator) -> NDArray[np.float64]:
        """Exact."""
        found_WV = np.zeros((len(words), len(self.vectors.words)))
        for row, word in zip(found_WV, words.tolist(), strict=True):
            outputs, probabilities = self.law(word)
            row[outputs] = probabilities
        return found_WV

    def sample(self, words: Words, generator: np.random.Generator) -> Words:
        drawn = np.empty(len(words), np.int64)
        for word in np.unique(words):
            outputs, probabilities = self.law(int(word))
            asked, bounds = words == word, np.cumsum(probabilities)
            # A uniform number in [0, 1) times the sum may round to the sum itself.
            chosen = np.searchsorted(bounds, generator.random(np.count_nonzero(asked)) * bounds[-1], side="right")
            drawn[asked] = outputs[np.minimum(chosen, len(outputs) - 1)]
        return drawn


class Uniform(ByLaw):
    """Any word, whatever the word was: its epsilon is 0."""

    unit = "word"

    @property
    def epsilon(self) -> float:
        return 0.0

    def law(self, word: int) -> tuple[Words, NDArray[np.float64]]:
        size = len(self.vectors.words)
        return np.arange(size), np.full(size, 1 / size)

    def hidden_among(self, replaced: Replaced | None = None) -> Words:
        return self._everything(replaced)


class CusText(ByLaw):
    """The exponential mechanism over the K words that a word is mapped to, with scores in [0, 1].

    Source: Chen et al. 2023 (CusText), with one set of words that are already mapped (the printed loop never fills it).
    """

    unit = "word"

    def __init__(self, config: TransformConfig, vectors: Vectors):
        super().__init__(config, vectors)
        self._distance = config.distance
        mapped = {"aggressive": self._own, "balanced": self._shared, "conservative": self._apart}[config.mapping]
        self._outputs = mapped(min(config.num_neighbours, len(vectors.words)))

    @property
    def epsilon(self) -> float:
        return self.setting

    def law(self, word: int) -> tuple[Words, NDArray[np.float64]]:
        outputs = self._outputs[word]
        far = self._far(word, outputs)
        spread = far.max() - far.min()
        score = 1 - (far - far.min()) / spread if spread > 0 else np.ones(len(outputs))
        weights = np.exp(self.setting * (score - 1) / 2)  # the best has 1: no epsilon overflows
        return outputs, weights / weights.sum()

    def hidden_among(self, replaced: Replaced | None = None) -> Words:
        groups = [frozenset(outputs.tolist()) for outputs in self._outputs]
        counted = np.ones(len(groups), bool) if replaced is None else replaced
        sizes = Counter(group for group, counts in zip(groups, counted, strict=True) if counts)
        return np.array([sizes[group] for group in groups])

    def _far(self, word: int, others: Words) -> NDArray[np.float64]:
        """Distances of other words; a vector of zeros, which has no direction, is as far as a right angle."""
        table = self.vectors.table
        return np.nan_to_num(cdist(table[word : word + 1], table[others], self._distance)[0], nan=1.0)

    def _near(self, word: int, among: Words, size: int) -> Words:
        """The ``size`` nearest of ``among``, the word itself always one of them: others may have its vector."""
        far = np.where(among == word, -1.0, self._far(word, among))
        return np.sort(among[np.argsort(far, kind="stable")[:size]])

    def _own(self, size: int) -> list[Words]:
        everything = np.arange(len(self.vectors.words))
        return [self._near(word, everything, size) for word in everything.tolist()]

    def _shared(self, size: int) -> list[Words]:
        """Every word takes the neighbours of the first word that has it as a neighbour."""
        everything = np.arange(len(self.vectors.words))
        outputs: dict[int, Words] = {}
        for word in everything.tolist():
            if word not in outputs:
                near = self._near(word, everything, size)
                outputs |= {each: near for each in near.tolist() if each not in outputs}
        return [outputs[word] for word in everything.tolist()]

    def _apart(self, size: int) -> list[Words]:
        """The same, of words that are not mapped yet: no word is an output of two groups."""
        left = np.arange(len(self.vectors.words))
        outputs: dict[int, Words] = {}
        while len(left):
            near = self._near(int(left[0]), left, size)
            outputs |= dict.fromkeys(near.tolist(), near)
            left = np.setdiff1d(left, near, assume_unique=True)
        return [outputs[word] for word in range(len(self.vectors.words))]


class SanText(ByLaw):
    """Any word, with probabilities that fall with its distance. Source: Yue et al. 2021 (SanText)."""

    unit = "word-metric"

    @property
    def epsilon(self) -> float:
        return self.setting

    def law(self, word: int) -> tuple[Words, NDArray[np.float64]]:
        table = self.vectors.table
        weights = np.exp(-self.setting * cdist(table[word : word + 1], table)[0] / 2)
        return np.arange(len(table)), weights / weights.sum()

    def hidden_among(self, replaced: Replaced | None = None) -> Words:
        return self._everything(replaced)


class Noised(WordMechanism):
    """The word nearest to the word's vector with noise. Source: Feyisetan et al. 2020."""

    unit = "word-metric"

    @property
    def epsilon(self) -> float:
        return self.setting

    def sample(self, words: Words, generator: np.random.Generator) -> Words:
        drawn = list[Words]()
        for part in self._parts(words):
            near_nk, shares_nk = self._choices(self._points(part, generator))
            chosen = (generator.random((len(part), 1)) >= np.cumsum(shares_nk, axis=1)[:, :-1]).sum(axis=1)
            drawn.append(np.take_along_axis(near_nk, chosen[:, None], axis=1)[:, 0])
        return np.concatenate(drawn)

    def channel(self, words: Words, generator: np.random.Generator) -> NDArray[np.float64]:
        """From 20 noised vectors of each of the words, each of which counts for all of them by its density.

        Where few fall to a word, what that word tells of the others is over-estimated: then it tells what the vector does.
        """
        found_WV = np.zeros((len(words), len(self.vectors.words)))
        for part in self._parts(np.repeat(words, _POINTS)):
            points_nd = self._points(part, generator)
            near_nk, shares_nk = self._choices(points_nd)
            logs_nW = -self.setting * cdist(self._scaled(points_nd), self._scaled(self.vectors.table[words]))
            weights_nW = np.exp(logs_nW - logs_nW.max(axis=1, keepdims=True))
            weights_nW /= weights_nW.sum(axis=1, keepdims=True)
            for near_n, shares_n in zip(near_nk.T, shares_nk.T, strict=True):
                np.add.at(found_WV.T, near_n, weights_nW * shares_n[:, None])
        return found_WV / found_WV.sum(axis=1, keepdims=True)

    def hidden_among(self, replaced: Replaced | None = None) -> Words:
        return self._everything(replaced)

    def _parts(self, words: Words) -> list[Words]:
        step = max(1, _CELLS // len(self.vectors.words))
        return [words[start : start + step] for start in range(0, len(words), step)]

    def _points(self, words: Words, generator: np.random.Generator) -> NDArray[np.float64]:
        """(n, d) vectors with noise, whose density is proportional to exp(-setting * norm)."""
        dimensions = self.vectors.table.shape[1]
        direction = generator.standard_normal((len(words), dimensions))
        direction /= np.linalg.norm(direction, axis=1, keepdims=True)
        noise = direction * generator.gamma(dimensions, 1 / self.setting, (len(words), 1))
        return self.vectors.table[words] + self._shaped(noise)

    def _shaped(self, noise_nd: NDArray[np.float64]) -> NDArray[np.float64]:
        """Round noise as this mechanism has it, and ``_scaled`` the way back."""
        return noise_nd

    def _scaled(self, points_nd: NDArray[np.float64]) -> NDArray[np.float64]:
        return points_nd

    def _choices(self, points_nd: NDArray[np.float64]) -> tuple[Words, NDArray[np.float64]]:
        """(n, k) words near each noised vector, of ALL words, the one to be replaced included; and their probabilities."""
        near_n = cdist(points_nd, self.vectors.table).argmin(axis=1)
        return near_n[:, None], np.ones((len(points_nd), 1))


class Vickrey(Noised):
    """The nearest word or one of those after it, by chance; the noise may follow the spread of the vectors.

    Source: Xu et al. 2021, Algorithms 1 and 3, but for the search, which is of all words: without the word itself, as
    printed, nothing is guaranteed. Mahalanobis noise: Xu et al. 2020.
    """

    unit = "word-metric"

    def __init__(self, config: TransformConfig, vectors: Vectors):
        super().__init__(config, vectors)
        self._weights = np.array(config.neighbour_weights[: len(vectors.words)])
        self._shape = _spread(vectors.table, config.mahalanobis) if config.mahalanobis else None

    @property
    def epsilon(self) -> float:
        return self.setting

    def hidden_among(self, replaced: Replaced | None = None) -> Words:
        return self._everything(replaced)

    @property
    def by_weight(self) -> bool:
        """Whether it chooses among k words by their weights, and not between two by t."""
        return len(self._weights) > 0

    def _shaped(self, noise_nd: NDArray[np.float64]) -> NDArray[np.float64]:
        return noise_nd if self._shape is None else noise_nd @ self._shape

    def _scaled(self, points_nd: NDArray[np.float64]) -> NDArray[np.float64]:
        return points_nd if self._shape is None else points_nd @ np.linalg.inv(self._shape)

    def _choices(self, points_nd: NDArray[np.float64]) -> tuple[Words, NDArray[np.float64]]:
        near_nk, far_nk = self._nearest(points_nd, len(self._weights) or 2)
        return near_nk, self._weighed(far_nk) if self.by_weight else self._between(far_nk)

    def _nearest(self, points_nd: NDArray[np.float64], count: int) -> tuple[Words, NDArray[np.float64]]:
        """(n, k) the nearest words, ascending, and their distances."""
        far_nV = cdist(points_nd, self.vectors.table)
        near_nk = np.argpartition(far_nV, count - 1, axis=1)[:, :count]
        far_nk = np.take_along_axis(far_nV, near_nk, axis=1)
        order_nk = far_nk.argsort(axis=1)
        return np.take_along_axis(near_nk, order_nk, axis=1), np.take_along_axis(far_nk, order_nk, axis=1)

    def _between(self, far_n2: NDArray[np.float64]) -> NDArray[np.float64]:
        """1 - t for the nearest where both distances are 0, as for any two that are equal."""
        first, second = self.selection * far_n2[:, 0], (1 - self.selection) * far_n2[:, 1]
        whole = first + second
        nearest = np.divide(second, whole, out=np.full_like(whole, 1 - self.selection), where=whole > 0)
        return np.column_stack([nearest, 1 - nearest])

    def _weighed(self, far_nk: NDArray[np.float64]) -> NDArray[np.float64]:
        scores_nk = -self._weights * far_nk
        weights_nk = np.exp(scores_nk - scores_nk.max(axis=1, keepdims=True))
        shares_nk: NDArray[np.float64] = weights_nk / weights_nk.sum(axis=1, keepdims=True)
        return shares_nk


def _spread(table: NDArray[np.float64], share: float) -> NDArray[np.float64]:
    """(d, d) square root of ``share`` of the covariance, scaled to a mean variance of 1, and the rest the identity."""
    covariance = np.atleast_2d(np.cov(table, rowvar=False))
    mean = float(np.trace(covariance)) / len(covariance)
    identity = np.eye(len(covariance))
    values, basis = np.linalg.eigh(share * covariance / mean + (1 - share) * identity if mean > 0 else identity)
    root: NDArray[np.float64] = basis * np.sqrt(values) @ basis.T
    return root


_MECHANISMS: dict[str, type[WordMechanism]] = {
    "custext": CusText,
    "santext": SanText,
    "fbdd": Noised,
    "vickrey": Vickrey,
    "random": Uniform,
}


def mechanism_class(name: str) -> type[WordMechanism]:
    return in_table(_MECHANISMS, name, "_MECHANISMS of uedp_ray.corpus.word_mechanisms")


def mechanism_of(config: TransformConfig, vectors: Vectors) -> WordMechanism:
    """The one that ``corpus.transform.mechanism`` names."""
    return mechanism_class(config.mechanism)(config, vectors)
