"""The interface of transforms: functions of one user's sentences that say from which of them each result is made.

A piece holds every entity of the sentences it is made from, whether or not its text still shows their names. So who holds
what follows from the original text, and the guarantee is about entities as they were found there
(docs/accounting.md, "Transforms").
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from uedp_ray.config import TransformConfig
from uedp_ray.corpus.records import Sentence


@dataclass(frozen=True, slots=True)
class Piece:
    """A sentence of the transformed corpus, of the user whose sentences were given.

    Attributes:
      text: what is trained on.
      sources: places of the sentences that the text depends on. None, the default: all of the user's.
    """

    text: str
    sources: Sequence[int] | None = None
    label: str | None = None
    tags: tuple[str, ...] | None = None


class Transform(ABC):
    """A transform with its settings, which are public."""

    def __init__(self, config: TransformConfig):
        self.config = config

    @abstractmethod
    def apply(self, sentences: Sequence[Sentence], generator: np.random.Generator) -> Iterable[Piece]:
        """Makes the pieces of one user.

        Args:
          sentences: all of the user's, with the mentions found in them.
          generator: for this user alone, seeded by secret entropy.

        Guarantees expected: which pieces there are, and the text of each, depend on the user's sentences and the
        generator only; the text of a piece on the sentences in its ``sources`` only.
        """
