"""What a worker computes in a round: the sum of its drawn users' clipped updates.

Under ``gradient`` every sentence's gradient is taken at the round's parameters, scaled to ``sentence_clip_norm`` and by its
weight, summed over the user and projected to ``l2_clip_norm``. Under ``local_sgd`` a user takes several steps and its
whole difference is projected. Either way a user's update depends on its own selection, the parameters and public seeds
only, never on who else was drawn or on how users are spread over workers and batches.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field

import numpy as np
import torch

from uedp_ray.config import TrainingConfig
from uedp_ray.models.awd_lstm import AWDLSTM, MaskSeeds
from uedp_ray.models.gradients import sentence_gradients
from uedp_ray.models.parameters import FlatParameters
from uedp_ray.models.task import Batch, Task
from uedp_ray.plan import Plan, UserSelection
from uedp_ray.training.evaluate import batches

_HELD = 1 << 26
"""Elements of per-user sums that a worker holds at once (256 MiB of float32)."""


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
        self._awd_lstm = next((m for m in self.model.modules() if isinstance(m, AWDLSTM)), None)
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
        """Yields each user's sum of clipped, weighted sentence gradients, downhill.

        Users are taken a group at a time, so that their sentences can be batched by length, which saves padding.
        """
        for group in _groups(selections, max(1, _HELD // max(1, self.params.num))):
            sums = torch.zeros(len(group), self.params.num, device=self.device)
            owner = np.repeat(np.arange(len(group)), [len(each.sentences) for each in group])
            numbers = np.concatenate([each.sentences for each in group])
            weights = np.concatenate([each.weights for each in group])
            for chosen in self._packed(numbers):
                with self._masks(round_index, numbers[chosen]) if self._dropout else nullcontext():
                    for user, summed in self._user_sums(numbers[chosen], weights[chosen], owner[chosen]):
                        sums[user].sub_(summed)
            yield from zip(group, sums, strict=True)

    def _packed(self, numbers: np.ndarray) -> Iterator[np.ndarray]:
        """Positions of the sentences of each batch, ascending: users in turn.

        A network that draws dropout's masks from one stream gets each sentence alone. In company its masks would depend
        on the words of the others, and an entity's absence would change gradients of sentences that never held it, beyond
        the entity's bound.
        """
        if self._dropout and self._awd_lstm is None:
            yield from np.arange(len(numbers))[:, None]
            return
        for chosen in batches([len(self.sentence(int(x))) for x in numbers], self._training.batch_tokens):
            yield np.sort(chosen)

    def _user_sums(
        self, numbers: np.ndarray, weights: np.ndarray, owner: np.ndarray
    ) -> Iterator[tuple[int, torch.Tensor]]:
        """(owner, (P,) sum over its sentences of one batch), for every owner in turn."""
        gradients = sentence_gradients(
            self.model, self.params, self.task, self._batch(numbers), autocast_dtype=self._autocast
        )
        norms = gradients.norms_sq().sqrt()
        self.num_non_finite += int((~torch.isfinite(norms)).sum())
        factors = self.plan.sentence_factors(norms, torch.from_numpy(weights).to(self.device))
        owners, starts = np.unique(owner, return_index=True)
        segments = list(itertools.pairwise([*starts.tolist(), len(owner)]))
        yield from zip(owners.tolist(), gradients.weighted_sums(factors, segments), strict=True)

    def _batch(self, numbers: np.ndarray) -> Batch:
        return self.task.collate([self.sentence(int(x)) for x in numbers]).to(self.device)

    @contextmanager
    def _masks(self, round_index: int, numbers: np.ndarray) -> Iterator[None]:
        """Dropout's masks: each sentence has a stream of its own, with whomever it passes and wherever it is held."""
        seeds = [_seed(self._training.seed, round_index, int(number)) for number in numbers]
        if self._awd_lstm is None:
            with seeded(self.device, seeds[0]):  # ``_packed`` lets it pass alone
                yield
            return
        self._awd_lstm.mask_seeds = MaskSeeds(_seed(self._training.seed, round_index), seeds)
        yield
        self._awd_lstm.mask_seeds = None

    def _local_sgd(
        self, parameters: torch.Tensor, selections: Iterable[UserSelection], round_index: int
    ) -> Iterator[tuple[UserSelection, torch.Tensor]]:
        """Yields each user's difference after ``local_epochs`` of plain SGD from the round's parameters (FedAvg)."""
        size = self._training.local_batch_size
        for selection in selections:
            self.params.set(parameters)
            seed = _seed(self._training.seed, round_index, selection.user)
            with seeded(self.device, seed) if self._dropout else nullcontext():
                for _ in range(self._training.local_epochs):
                    for start in range(0, len(selection.sentences), size):
                        which = slice(start, start + size)
                        self._sgd_step(selection.sentences[which], selection.weights[which])
            yield selection, self.params.get() - parameters
        self.params.set(parameters)

    def _sgd_step(self, numbers: np.ndarray, weights: np.ndarray) -> None:
        with torch.autocast(self.device.type, self._autocast, enabled=self._autocast is not None):
            losses = self.task.losses(self.model, self._batch(numbers))
        loss = (losses * torch.from_numpy(weights).to(self.device)).sum() / len(weights)
        tensors = self.params.tensors
        gradients = torch.autograd.grad(loss, tensors)
        with torch.no_grad():
            for tensor, gradient in zip(tensors, gradients, strict=True):
                tensor.sub_(gradient, alpha=self._training.local_learning_rate)


def _groups(selections: Iterable[UserSelection], size: int) -> Iterator[list[UserSelection]]:
    remaining = iter(selections)
    while group := list(itertools.islice(remaining, size)):
        yield group


def _seed(*address: int) -> int:
    name = ",".join(map(str, address)).encode()
    return int.from_bytes(hashlib.blake2b(name, digest_size=8).digest(), "little") >> 1


@contextmanager
def seeded(device: torch.device, seed: int) -> Iterator[None]:
    """Runs torch's default generators from ``seed`` and restores them."""
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield
