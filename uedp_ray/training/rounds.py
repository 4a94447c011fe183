"""The round loop: one function, pure except for its arguments.

    sample -> local update -> clip -> reduce -> noise -> server step -> charge the ledger -> broadcast

    >>> import torch
    >>> from uedp_ray.training.reduce import LocalReducer
    >>> from uedp_ray.training.rounds import RoundState, run_rounds
    >>> class OfTwo:    # a driver whose budget is two rounds
    ...     def admit(self, round_index):
    ...         return 0 if round_index < 2 else None
    ...     def charge(self, round_index, attempt):
    ...         print("charged", round_index)
    ...     def release(self, total, round_index):
    ...         return total / 10    # a private run's adds noise
    >>> parameters = torch.zeros(2)
    >>> state = RoundState(parameters, torch.optim.SGD([parameters], lr=0.5))
    >>> pull = lambda parameters, round_index, attempt: torch.tensor([20, -10])    # clipped updates, summed
    >>> state = run_rounds(state, num_rounds=5, local_sum=pull, reducer=LocalReducer(), driver=OfTwo())
    charged 0
    charged 1
    >>> state.parameters, state.next_round
    (tensor([ 2., -1.]), 2)

The noise and the server's step come before the charge, in the driver's memory, so that a round that runs out of memory has
charged nothing; nothing of the round leaves the driver before the charge is recorded. Where every worker adds noise to a
part of the sum and steps it (``sharding``), that holds for each of them. The loop knows neither Ray nor files. Hosts (the
trial's own process, a Ray Train group) differ only in the reducer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import torch

from uedp_ray.config import TrainingConfig
from uedp_ray.interrupts import deferred
from uedp_ray.training.calls import Calls
from uedp_ray.training.reduce import Reducer


@dataclass
class RoundState:
    """What a checkpoint holds. All of it is post-processing of noised releases."""

    parameters: torch.Tensor
    """(P,) float32 trainable parameters."""
    optimizer: torch.optim.Optimizer
    """The server's optimizer over ``parameters``."""
    next_round: int = 0

    @property
    def stepped(self) -> torch.Tensor:
        """What the optimizer steps: the parameters, or a view of a part of them (``sharding``)."""
        (stepped,) = self.optimizer.param_groups[0]["params"]
        assert isinstance(stepped, torch.Tensor)
        return stepped


class Driver(Protocol):
    """The driver's duties in a round; other workers have none."""

    def admit(self, round_index: int) -> int | None:
        """The attempt number under which the round may run, or None if it would exceed the budget."""
        ...

    def charge(self, round_index: int, attempt: int) -> None:
        """Records the release durably. Must return before anything of the round leaves the driver."""
        ...

    def release(self, total: torch.Tensor, round_index: int) -> torch.Tensor:
        """(P,) sum of clipped updates, overwritten -> (P,) noised average. It stays in the driver until it is charged."""
        ...


class Shard(Protocol):
    """A worker's part of what is released, where every worker has one (``sharding.Shard``)."""

    def draw_ahead(self, round_index: int) -> None: ...

    def sum(self, vector: torch.Tensor) -> torch.Tensor: ...

    def release(self, part: torch.Tensor, round_index: int) -> torch.Tensor: ...

    def charged(self, round_index: int, charge: Callable[[], None] | None) -> None: ...

    def gather(self) -> None: ...


def server_rate(config: TrainingConfig, round_index: float) -> float:
    """The server's learning rate of a round, or within one: a function of public numbers, so resuming needs no state."""
    left = 1.0 - round_index / config.num_rounds if config.server_schedule == "linear" else 1.0
    return config.server_learning_rate * left


def run_rounds(
    state: RoundState,
    *,
    num_rounds: int,
    local_sum: Callable[[torch.Tensor, int, int], torch.Tensor],
    reducer: Reducer,
    driver: Driver | None,
    number: Callable[[int], int] | None = None,
    after_round: Callable[[RoundState], None] = lambda state: None,
    rate: Callable[[int], float] | None = None,
    shard: Shard | None = None,
) -> RoundState:
    """Runs rounds ``state.next_round`` to ``num_rounds``, fewer if the budget is spent; returns the same state.

    Args:
      local_sum: (parameters, round, attempt) -> (P,) int64 sum of this worker's clipped user updates. An empty cohort gives
        zeros: it is an ordinary round, noised and charged.
      reducer: sums to the driver and broadcasts from it.
      driver: given on the driver only.
      number: the driver's number -> the same on every worker, who meanwhile may be asked for something else (``Calls``);
        None: by the reducer.
      after_round: called on the driver once the round's parameters are in ``state``.
      rate: round -> the server's learning rate; None leaves the optimizer's own.
      shard: this worker's, on all of them; the optimizer in ``state`` steps that part. None: the driver does everything.
    """
    assert (driver is not None) == reducer.is_driver
    number = number or Calls(reducer, state.parameters.device).number
    for round_index in range(state.next_round, num_rounds):
        attempt = driver.admit(round_index) if driver else None
        attempt = number(-1 if attempt is None else attempt)
        if attempt < 0:
            break
        lr = None if rate is None else rate(round_index)
        if shard is not None:
            shard.draw_ahead(round_index)
            total = shard.sum(local_sum(state.parameters, round_index, attempt))
            with deferred():
                _step(state, shard.release(total, round_index), lr)
                shard.charged(round_index, partial(driver.charge, round_index, attempt) if driver else None)
            shard.gather()
        else:
            total = reducer.sum_to_driver(local_sum(state.parameters, round_index, attempt))
            if driver:
                with deferred():  # amid a release, an interrupt would lose all rounds since the last checkpoint
                    _step(state, driver.release(total, round_index), lr)
                    driver.charge(round_index, attempt)
            reducer.from_driver(state.parameters)
        del total
        state.next_round = round_index + 1
        if driver:
            after_round(state)
    return state


def _step(state: RoundState, released: torch.Tensor, rate: float | None) -> None:
    """The server's step, by a noised average or a part of it, in the same memory."""
    stepped = state.stepped
    # The update points downhill already; torch optimizers subtract a gradient.
    stepped.grad = released.to(stepped.dtype).neg_()
    if rate is not None:
        for group in state.optimizer.param_groups:
            group["lr"] = rate
    state.optimizer.step()  # the first one allocates the optimizer's own vectors
    stepped.grad = None
