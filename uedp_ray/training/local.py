"""What a worker computes in a round: the sum of its drawn users' clipped updates.

Under ``gradient`` every sentence's gradient is taken at the round's parameters, scaled to ``sentence_clip_norm`` and by its
weight, summed over the user and projected to ``l2_clip_norm``. Under ``local_sgd`` a user takes several steps and its
whole difference is projected. Either way a user's update depends on its own selection, the parameters and public seeds
only, never on who else was drawn or on how users are spread over workers and batches.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field

import numpy as np
import torch

from uedp_ray.config import TrainingConfig
from uedp_ray.models.gradients import sentence_gradients
from uedp_ray.models.parameters import FlatParameters
from uedp_ray.models.task import Batch, Task
from uedp_ray.plan import Plan, UserSelection


@dataclass
class _Piece:
    """Consecutive sentences of one user that go through the model together."""

    selection: UserSelection
    start: int
    stop: int

    @property
    def last(self) -> bool:
        return self.stop == len(self.selection.sentences)


@dataclass
class LocalUpdate:
    """Sums clipped user updates of one worker.

    Shapes: (P,) float32 parameters -> (P,) float64 sum. A sentence or user whose gradient is NaN or infinite counts as zero;
    ``num_non_finite`` counts them (a private figure: it never enters a result).
    """

    plan: Plan
    model: torch.nn.Module
    params: FlatParameters
    task: Task
    sentence: Callable[[int], np.ndarray]
    """Sentence number -> (length,) token ids."""
    device: torch.device
    num_non_finite: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        config = self.plan.config
        self._training: TrainingConfig = config.training
        model = config.model
        drops = ("embedding", "input", "hidden", "weight", "output")
        self._dropout = any(getattr(model, f"dropout_{name}") > 0 for name in drops)
        self._autocast = torch.bfloat16 if self._training.precision == "bf16" else None

    def sum_updates(
        self, parameters: torch.Tensor, selections: Iterable[UserSelection], round_index: int
    ) -> torch.Tensor:
        """(P,) float64 sum over ``selections`` of w_u times the clipped update; zeros for an empty cohort."""
        self.params.set(parameters)
        self.model.train(self._dropout)
        total = torch.zeros(self.params.num, dtype=torch.float64, device=self.device)
        step = self._local_sgd if self._training.local_update == "local_sgd" else self._gradients
        for selection, update in step(parameters, selections, round_index):
            if not torch.isfinite(update).all():
                self.num_non_finite += 1
            total += self.plan.clip_user(update).double() * selection.weight
        return total

    def _gradients(
        self, parameters: torch.Tensor, selections: Iterable[UserSelection], round_index: int
    ) -> Iterator[tuple[UserSelection, torch.Tensor]]:
        """Yields each user's sum of clipped, weighted sentence gradients, downhill."""
        pending: torch.Tensor | None = None  # the sum so far of a user that did not fit one batch
        for pieces in self._packed(selections):
            with self._seeded(round_index, pieces[0]):
                batch, weights = self._batch(pieces)
                gradients = sentence_gradients(self.model, self.params, self.task, batch, autocast_dtype=self._autocast)
            norms = gradients.norms_sq().sqrt()
            self.num_non_finite += int((~torch.isfinite(norms)).sum())
            factors = self.plan.sentence_factors(norms, weights)
            lengths = [piece.stop - piece.start for piece in pieces]
            for piece, summed in zip(pieces, gradients.weighted_sums(factors, lengths), strict=True):
                pending = -summed if pending is None else pending - summed
                if piece.last:
                    yield piece.selection, pending
                    pending = None

    def _packed(self, selections: Iterable[UserSelection]) -> Iterator[list[_Piece]]:
        """Groups pieces into batches of at most ``batch_tokens`` padded tokens; with dropout, one piece a batch."""
        batch: list[_Piece] = []
        width = count = 0
        for piece, longest in self._pieces(selections):
            size = piece.stop - piece.start
            if batch and (self._dropout or self._overflows(max(width, longest), count + size)):
                yield batch
                batch, width, count = [], 0, 0
            batch.append(piece)
            width, count = max(width, longest), count + size
        if batch:
            yield batch

    def _pieces(self, selections: Iterable[UserSelection]) -> Iterator[tuple[_Piece, int]]:
        """Cuts each user's sentences into pieces that fit one batch; yields (piece, its longest sentence)."""
        for selection in selections:
            lengths = [len(self.sentence(int(x))) + 1 for x in selection.sentences]
            start, longest = 0, 0
            for stop, length in enumerate(lengths):
                if stop > start and self._overflows(max(longest, length), stop + 1 - start):
                    yield _Piece(selection, start, stop), longest
                    start, longest = stop, 0
                longest = max(longest, length)
            yield _Piece(selection, start, len(lengths)), longest

    def _overflows(self, width: int, count: int) -> bool:
        return width * count > self._training.batch_tokens

    def _batch(self, pieces: list[_Piece]) -> tuple[Batch, torch.Tensor]:
        numbers = np.concatenate([p.selection.sentences[p.start : p.stop] for p in pieces])
        weights = np.concatenate([p.selection.weights[p.start : p.stop] for p in pieces])
        batch = self.task.collate([self.sentence(int(x)) for x in numbers]).to(self.device)
        return batch, torch.from_numpy(weights).to(self.device)

    def _seeded(self, round_index: int, piece: _Piece) -> AbstractContextManager[None]:
        """Dropout draws from a stream of its own, the same wherever the user is held."""
        if not self._dropout:
            return nullcontext()
        return seeded(self.device, self._training.seed, round_index, piece.selection.user, piece.start)

    def _local_sgd(
        self, parameters: torch.Tensor, selections: Iterable[UserSelection], round_index: int
    ) -> Iterator[tuple[UserSelection, torch.Tensor]]:
        """Yields each user's difference after ``local_epochs`` of plain SGD from the round's parameters (FedAvg)."""
        size = self._training.local_batch_size
        for selection in selections:
            self.params.set(parameters)
            user = _Piece(selection, 0, len(selection.sentences))
            with self._seeded(round_index, user):
                for _ in range(self._training.local_epochs):
                    for start in range(0, user.stop, size):
                        piece = _Piece(selection, start, min(start + size, user.stop))
                        self._sgd_step(*self._batch([piece]))
            yield selection, self.params.get() - parameters
        self.params.set(parameters)

    def _sgd_step(self, batch: Batch, weights: torch.Tensor) -> None:
        with torch.autocast(self.device.type, self._autocast, enabled=self._autocast is not None):
            losses = self.task.losses(self.model, batch)
        loss = (losses * weights).sum() / len(weights)
        tensors = self.params.tensors
        gradients = torch.autograd.grad(loss, tensors)
        with torch.no_grad():
            for tensor, gradient in zip(tensors, gradients, strict=True):
                tensor -= self._training.local_learning_rate * gradient


@contextmanager
def seeded(device: torch.device, *address: int) -> Iterator[None]:
    """Runs torch's default generators from a seed made of ``address`` and restores them."""
    name = ",".join(map(str, address)).encode()
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(int.from_bytes(hashlib.blake2b(name, digest_size=8).digest(), "little") >> 1)
        yield
