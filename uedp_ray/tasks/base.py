"""What private training needs of a task: a batch of sentences, and one loss for each that depends on that sentence alone.

Shape legend: B sentences, T positions, V vocabulary. The sentences are private.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor, nn

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
    """What the gradients of private training need of a task.

    ``NextWord`` is the only one: what makes the tasks, pre-training and perplexity name it. Another one needs those too.
    It can be hashed, and what equals it computes the same: what was found out about one is taken to hold for the other.
    """

    def length(self, sentence: np.ndarray) -> int:
        """Positions that a sentence takes."""

    def collate(self, sentences: Sequence[np.ndarray], shape: tuple[int, int] | None = None) -> Batch:
        """Token ids of each sentence -> a batch on the CPU, filled up to ``shape`` (B, T) with empty sentences."""

    def losses(self, model: nn.Module, batch: Batch) -> Tensor:
        """(B,) losses; entry x depends on sentence x alone."""


def forward_logits(model: nn.Module, input_ids: Tensor) -> Tensor:
    """Logits of a causal model: (B, T) int64 -> (B, T, V).

    No attention mask: padding stands on the right, where causal attention never looks back at it. Positions are given
    for every sentence: GPT-2's own (1, T) default would add up the position gradients of all sentences.
    """
    position_ids = torch.arange(input_ids.shape[1], device=input_ids.device).expand(input_ids.shape)
    return model(input_ids=input_ids, position_ids=position_ids, use_cache=False).logits
