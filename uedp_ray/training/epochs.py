"""Ordinary training: epochs over shuffled batches of sentences, which protects nobody. Of public text beforehand, and of the
private text as the reference that says what privacy costs (``training.loop: epochs``).

    >>> import numpy as np
    >>> from uedp_ray.training.epochs import shuffled
    >>> lengths = np.array([3, 9, 4, 8, 3, 9])
    >>> [sorted(lengths[batch].tolist()) for batch in shuffled(lengths, 2, np.random.default_rng(0))]
    [[3, 3], [4, 8], [9, 9]]
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Protocol

import numpy as np
import torch

from uedp_ray.config import TrainingConfig
from uedp_ray.corpus.tokens import TokenStore
from uedp_ray.interrupts import deferred
from uedp_ray.models.parameters import FlatParameters
from uedp_ray.tasks.base import Batch, Task
from uedp_ray.training.rounds import Driver, RoundState, server_rate

STEADY_NORM = 1.0
"""Longer gradients of a batch are shortened to this, as is usual where a network is fine-tuned."""

_SORTED_TOGETHER = 50
"""Batches' worth of sentences that are sorted by length together, which saves padding and leaves the order random."""


def shuffled(lengths: np.ndarray, size: int, generator: np.random.Generator) -> list[np.ndarray]:
    """An epoch: the numbers of all sentences, in batches of some ``size`` sentences of similar length, in random order."""
    order = generator.permutation(len(lengths))
    chunks = [
        c[np.argsort(lengths[c], kind="stable")]
        for c in np.array_split(order, max(1, len(order) // (_SORTED_TOGETHER * size)))
    ]
    batches = [batch for c in chunks for batch in np.array_split(c, max(1, len(c) // size))]
    return [batches[i] for i in generator.permutation(len(batches))]


def mean_loss(model: torch.nn.Module, task: Task, batch: Batch, *, bf16: bool) -> torch.Tensor:
    """The mean loss of a batch's predictions, each of which counts alike."""
    with torch.autocast(batch.input_ids.device.type, torch.bfloat16, enabled=bf16):
        losses = task.losses(model, batch)
    predictions = (batch.targets >= 0).reshape(len(batch), -1).sum(1)
    return (losses * predictions).sum() / predictions.sum().clamp_min(1)


@contextmanager
def seeded(device: torch.device, seed: int) -> Iterator[None]:
    """Runs torch's default generators, of dropout, from ``seed`` and restores them."""
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield


class EpochDriver(Driver, Protocol):
    """A driver of epochs, each of which counts as a round."""

    def amid_round(self) -> None: ...
    def after_round(self, state: RoundState) -> None: ...


class Source(Protocol):
    """What epochs are of."""

    @property
    def lengths(self) -> np.ndarray:
        """(N,) of its sentences, by which batches are made up (``shuffled``)."""

    def of(self, numbers: np.ndarray, epoch: int) -> AbstractContextManager[Batch]:
        """Surrounds the pass of a batch of them."""


class Sentences:
    """Those of a tokenised text, less those without tokens."""

    def __init__(self, task: Task, tokens: TokenStore):
        self._task, self._tokens, self._used = task, tokens, np.flatnonzero(tokens.lengths)
        self.lengths = tokens.lengths[self._used]

    def of(self, numbers: np.ndarray, epoch: int) -> AbstractContextManager[Batch]:
        return nullcontext(self._task.collate([self._tokens.sentence(int(each)) for each in self._used[numbers]]))


def run_epochs(
    state: RoundState,
    config: TrainingConfig,
    *,
    model: torch.nn.Module,
    params: FlatParameters,
    task: Task,
    source: Source,
    driver: EpochDriver,
) -> None:
    """Trains epochs ``state.next_round`` to ``config.num_rounds`` by the server's optimizer.

    An epoch follows from its number and the state before it: a resumed run ends with the same bits.
    """
    device = state.parameters.device
    for epoch in range(state.next_round, config.num_rounds):
        attempt = driver.admit(epoch)
        if attempt is None:
            break
        driver.amid_round()
        generator = np.random.default_rng([config.seed, epoch])
        batches = shuffled(source.lengths, config.local_batch_size, generator)
        with seeded(device, int(generator.integers(1 << 31))):
            for step, batch in enumerate(batches):
                params.set(state.parameters)
                with source.of(batch, epoch) as read:
                    loss = mean_loss(model, task, read.to(device), bf16=config.precision == "bf16")
                state.parameters.grad = params.gradient(loss)
                for group in state.optimizer.param_groups:
                    group["lr"] = server_rate(config, epoch + step / len(batches))
                torch.nn.utils.clip_grad_norm_([state.parameters], STEADY_NORM)
                state.optimizer.step()
        state.parameters.grad = None
        with deferred():  # amid it, an interrupt would lose all epochs since the last checkpoint
            driver.charge(epoch, attempt)
        state.next_round = epoch + 1
        driver.after_round(state)
