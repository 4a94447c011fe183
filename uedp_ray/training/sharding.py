"""Sharded aggregation: every worker adds the noise to a part of a round's sum, and steps the server's optimizer on it.

    sample -> local update -> clip -> reduce-scatter -> noise -> server step -> charge the ledger -> all-gather

What is released is the same value in law as where the driver does all of it: each coordinate of the exact sum gets Gaussian
noise of the same deviation, independently of all others, from 128 bits that its worker drew for this round. No worker sends
anything of a round before the driver has recorded its charge, and the driver charges none that a worker did not get to the
end of. So a worker that fails before leaves the round uncharged and unreleased.

    >>> from uedp_ray.config import TrainingConfig
    >>> from uedp_ray.training.sharding import is_sharded
    >>> wanted = TrainingConfig(aggregation="auto")
    >>> is_sharded(wanted, num_params=10**8, num_workers=8), is_sharded(wanted, num_params=10**4, num_workers=8)
    (True, False)
    >>> is_sharded(wanted, num_params=10**8, num_workers=1)    # which has all of it
    False
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from uedp_ray.config import TrainingConfig
from uedp_ray.errors import InputError
from uedp_ray.plan import Plan, Weights
from uedp_ray.privacy.noise import GaussianNoise
from uedp_ray.training.optimizers import OPTIMIZERS, kept_by, server_optimizer
from uedp_ray.training.reduce import PartsReducer, drivers_number, part_of

_MANY = 1 << 20
"""Parameters from which ``auto`` shards: noise and step of fewer take less than two more messages may."""


def is_sharded(config: TrainingConfig, *, num_params: int, num_workers: int) -> bool:
    """Whether a run of so many workers shards. Raises: InputError if it is to, and its optimizer cannot."""
    check_aggregation(config)
    if num_workers == 1 or config.aggregation == "driver":
        return False
    large = num_params >= _MANY and OPTIMIZERS[config.server_optimizer].elementwise
    return config.aggregation == "sharded" or large


def check_aggregation(config: TrainingConfig) -> None:
    """Raises: InputError for an optimizer whose steps are not stated to be those of each parameter by itself."""
    entry = OPTIMIZERS.get(config.server_optimizer)
    if config.aggregation == "sharded" and entry is not None and not entry.elementwise:
        remedy = f"training.server_optimizer ({config.server_optimizer}) is not stated to be elementwise: use driver"
        raise InputError("training.aggregation", config.aggregation, remedy)


@dataclass
class Shard:
    """One worker's part of the released vector."""

    plan: Plan
    weights: Weights | None
    reducer: PartsReducer
    parameters: torch.Tensor
    """(P,) all of them; those of this worker's part are stepped."""

    def __post_init__(self) -> None:
        self._part = part_of(len(self.parameters), self.reducer.rank, self.reducer.num_workers)
        self._noise = GaussianNoise(self.plan.config.privacy.test_noise_seed, start=self._part.start)

    @property
    def own(self) -> torch.Tensor:
        """A view of this worker's part of the parameters."""
        return self.parameters[self._part]

    def draw_ahead(self, round_index: int) -> None:
        """Begins to draw this part's noise, in a thread."""
        if self.plan.noise_std > 0 and self.plan.grid is not None:
            self._noise.draw_ahead(len(self.own), std=self.plan.noise_std, round_index=round_index)

    def sum(self, vector: torch.Tensor) -> torch.Tensor:
        """(P,) this worker's sum, overwritten -> its part of the sum over workers."""
        return self.reducer.sum_of_part(vector)

    def release(self, part: torch.Tensor, round_index: int) -> torch.Tensor:
        """A part of the sum, overwritten -> of the noised average. It stays in this process until the round is charged."""
        denominator = None if self.weights is None else self.weights.denominator
        return self.plan.release(part, self._noise, round_index=round_index, denominator=denominator)

    def charged(self, round_index: int, charge: Callable[[], None] | None) -> None:
        """Returns, on every worker, once the driver has charged the round by ``charge``, which only it has; it does when
        every worker has made its step.

        Raises: RuntimeError, before anything of the round leaves this worker, if the driver tells of another.
        """
        device = self.parameters.device
        stepped = int(self.reducer.sum_to_driver(torch.ones(1, dtype=torch.int64, device=device)).item())
        if charge is not None:
            if stepped != self.reducer.num_workers:
                raise RuntimeError(f"{stepped} of {self.reducer.num_workers} workers stepped: the round is not charged")
            charge()
        if drivers_number(self.reducer, -1 if charge is None else round_index, device) != round_index:
            raise RuntimeError(f"round {round_index} was not charged: nothing of it is released")

    def gather(self) -> None:
        """Everybody's parameters on all workers."""
        self.reducer.to_all(self.parameters)

    def kept(self, optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
        """On the driver, what the optimizers of all parts keep, as that of the whole vector would; every worker must ask."""
        (own,) = optimizer.param_groups[0]["params"]
        found: dict[str, torch.Tensor] = {}
        for name, value in sorted(optimizer.state[own].items()):
            if torch.is_tensor(value) and value.dim():
                whole = torch.zeros_like(self.parameters)
                whole[self._part] = value
                value = self.reducer.to_all(whole).cpu()
            if self.reducer.is_driver:
                found[name] = value
        return found

    def optimizer(self, whole: torch.optim.Optimizer, *, stepped: bool) -> torch.optim.Optimizer:
        """The optimizer of this worker's part, with its part of what the driver's of the ``whole`` vector keeps, if that
        has made a step. Every worker must ask."""
        config = self.plan.config.training
        made = server_optimizer(self.own, config)
        if stepped:
            kept = whole.state[self.parameters]
            entries = {name: self._part_of_kept(kept, name, dim) for name, dim in sorted(kept_by(config).items())}
            made.load_state_dict({**made.state_dict(), "state": {0: entries}})
        return made

    def _part_of_kept(self, kept: Mapping[str, torch.Tensor], name: str, dim: int) -> torch.Tensor:
        device = self.parameters.device
        value = torch.zeros_like(self.parameters) if dim else torch.zeros(1, device=device)
        if self.reducer.is_driver:
            value.copy_(kept[name])
        value = self.reducer.from_driver(value)
        return value[self._part].clone() if dim else value[0].cpu()
