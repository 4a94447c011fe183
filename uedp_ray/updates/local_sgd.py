"""Several steps of plain SGD over a user's own sentences; its whole difference is clipped (FedAvg, the paper's Algorithm 1).

One entity may change all of them: nothing but the user's clip bounds what it moves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from uedp_ray.plan import UserSelection
from uedp_ray.updates.base import LocalUpdate


@dataclass
class Update(LocalUpdate):
    """The update of each user, whose sentences share no pass with others'."""

    uses = ("local_learning_rate", "local_epochs", "local_batch_size")

    def update_of(self, parameters: torch.Tensor, selection: UserSelection, round_index: int) -> torch.Tensor:
        """A user's difference after ``local_epochs`` of plain SGD from the round's parameters (FedAvg)."""
        size = self._training.local_batch_size
        for _ in range(self._training.local_epochs):
            for start in range(0, len(selection.sentences), size):
                which = slice(start, start + size)
                sentences = [self.sentence(int(x)) for x in selection.sentences[which]]
                self._sgd_step(sentences, selection.weights[which])
        return self.params.get().sub_(parameters).double()

    def _sgd_step(self, sentences: Sequence[np.ndarray], weights: np.ndarray) -> None:
        with torch.autocast(self.device.type, self._autocast, enabled=self._autocast is not None):
            batch = self.task.collate(sentences).to(self.device)
            losses = self.task.losses(self.model, batch)
        loss = (losses * torch.from_numpy(weights).to(self.device)).sum() / len(weights)
        tensors = self.params.tensors
        gradients = torch.autograd.grad(loss, tensors, allow_unused=True)
        with torch.no_grad():
            for tensor, gradient in zip(tensors, gradients, strict=True):
                if gradient is not None:
                    tensor.sub_(gradient, alpha=self._training.local_learning_rate)
