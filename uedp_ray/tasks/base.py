"""What private training needs of a task: a batch of sentences, and one loss for each that depends on that sentence alone.

    >>> from types import SimpleNamespace
    >>> import torch
    >>> from uedp_ray.config import VocabularyConfig
    >>> from uedp_ray.corpus.vocabulary import build_vocabulary
    >>> from uedp_ray.tasks.base import task_of
    >>> vocabulary = build_vocabulary(VocabularyConfig(), public_text=lambda: iter(["the patient left ."]))
    >>> task = task_of("next_word").of(vocabulary, max_length=64)
    >>> batch = task.collate(vocabulary.encode_batch(["the patient left", "left"]))
    >>> len(batch), tuple(batch.input_ids.shape), (batch.targets >= 0).sum(1).tolist()    # and what each predicts
    (2, (2, 4), [4, 2])
    >>> def uniform(input_ids, **_):    # a network that knows nothing
    ...     return SimpleNamespace(logits=torch.zeros(*input_ids.shape, vocabulary.size))
    >>> vocabulary.size, [round(loss, 3) for loss in task.losses(uniform, batch).tolist()]    # (2,)
    (7, [1.946, 1.946])

``task.kind`` names a module of this room with a ``TASK``, and its metric in ``metric.METRICS``.
Shape legend: B sentences, T positions, V vocabulary. The sentences are private.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, Self

import numpy as np
import torch
from torch import Tensor, nn

from uedp_ray.components import in_module
from uedp_ray.corpus.textsize import TextSize
from uedp_ray.corpus.vocabulary import Vocabulary

IGNORED = -100
"""Target of a position where nothing is predicted."""


@dataclass(frozen=True, slots=True)
class Batch:
    """``input_ids`` (B, T) int64; ``targets`` int64, ``IGNORED`` where nothing is predicted: (B, T) for one per token."""

    input_ids: Tensor
    targets: Tensor

    def __len__(self) -> int:
        return self.input_ids.shape[0]

    def to(self, device: torch.device | str) -> Batch:
        return Batch(self.input_ids.to(device), self.targets.to(device))


class Task(Protocol):
    """What a network is trained to do, and how well it did.

    Tasks can be hashed, and equal ones compute the same: what was found out about one is assumed of the other.
    """

    @classmethod
    def of(cls, vocabulary: Vocabulary, max_length: int) -> Self:
        """The task in the tokens of a vocabulary, at most ``max_length`` per sentence."""

    def length(self, sentence: np.ndarray) -> int:
        """Positions that a sentence takes."""

    def collate(self, sentences: Sequence[np.ndarray], shape: tuple[int, int] | None = None) -> Batch:
        """Token ids of each sentence -> a batch on the CPU, filled up to ``shape`` (B, T) with empty sentences."""

    def losses(self, model: nn.Module, batch: Batch) -> Tensor:
        """(B,) losses; entry x depends on sentence x alone."""

    def sums(self, model: nn.Module, batch: Batch) -> tuple[float, int]:
        """What the metric adds up over batches, and the number of predictions; without gradients."""

    def value(self, total: float, count: int) -> float:
        """The metric, from the ``sums`` over a whole text; ``count`` is 1 or more."""

    def scores(self, value: float, size: TextSize) -> dict[str, float]:
        """The metric and the figures beside it (``Metric.names``), on a text of this size."""


def task_of(kind: str) -> type[Task]:
    """Raises: TypeError for a name that nothing stands behind."""
    found: type[Task] = in_module("tasks", kind, "TASK")
    return found


def forward_logits(model: nn.Module, input_ids: Tensor) -> Tensor:
    """Logits of a causal model: (B, T) int64 -> (B, T, V).

    No attention mask: padding is on the right, where causal attention never looks back at it. Positions are given
    for every sentence: GPT-2's own (1, T) default would add up the position gradients of all sentences.
    """
    position_ids = torch.arange(input_ids.shape[1], device=input_ids.device).expand(input_ids.shape)
    return model(input_ids=input_ids, position_ids=position_ids, use_cache=False).logits
