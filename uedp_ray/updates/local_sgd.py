"""Several steps of plain SGD over a user's own sentences; its whole difference is clipped (FedAvg, the paper's Algorithm 1).

One entity may change all of them: nothing but the user's clip bounds what it moves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from uedp_ray.models.packed import pack_attention
from uedp_ray.plan import UserSelection
from uedp_ray.updates.base import LocalUpdate, seed_of


@dataclass
class Update(LocalUpdate):
    """The update of each user, whose sentences share no pass with others'."""

    uses = ("local_learning_rate", "local_epochs", "local_batch_size")

    def __post_init__(self) -> None:
        super().__post_init__()
        self._packs = self.task.takes_packed and pack_attention(self.model, self.plan.config.model.max_length)

    def update_of(self, parameters: torch.Tensor, selection: UserSelection, round_index: int) -> torch.Tensor:
        """A user's difference after ``local_epochs`` of plain SGD from the round's parameters (FedAvg).

        Sentences of like lengths share a step, in one row where the network allows it: then no position is padding, else
        few are. Steps are taken in random order.
        """
        size = self._training.local_batch_size
        lengths = np.array([self.task.length(self.sentence(int(x))) for x in selection.sentences])
        by_length = lengths.argsort(kind="stable")
        batches = [by_length[first : first + size] for first in range(0, len(by_length), size)]
        order = np.random.default_rng(seed_of(self._training.seed, round_index, selection.user))
        for _ in range(self._training.local_epochs):
            for n in order.permutation(len(batches)):
                sentences = [self.sentence(int(x)) for x in selection.sentences[batches[n]]]
                self._sgd_step(sentences, selection.weights[batches[n]])
        return self.params.get().sub_(parameters)

    def _sgd_step(self, sentences: Sequence[np.ndarray], weights: np.ndarray) -> None:
        with torch.autocast(self.device.type, self._autocast, enabled=self._autocast is not None):
            batch = self.task.collate(sentences)
            batch = (batch.packed() if self._packs else batch).to(self.device)
            losses = self.task.losses(self.model, batch)
        loss = (losses * torch.from_numpy(weights).to(self.device)).sum() / len(weights)
        tensors = self.params.tensors
        gradients = torch.autograd.grad(loss, tensors, allow_unused=True)
        with torch.no_grad():
            for tensor, gradient in zip(tensors, gradients, strict=True):
                if gradient is not None:
                    tensor.sub_(gradient, alpha=self._training.local_learning_rate)
