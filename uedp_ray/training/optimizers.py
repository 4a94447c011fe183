"""The server's optimizers on the noised average: post-processing, free of privacy cost.

    server_optimizer(parameters, config.training)

A new one is an entry here and its name in ``config.sections.ServerOptimizerName``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from uedp_ray.config import TrainingConfig


@dataclass(frozen=True)
class ServerOptimizer:
    """How an optimizer over (P,) parameters is made."""

    make: Callable[[torch.Tensor, TrainingConfig], torch.optim.Optimizer]
    uses: tuple[str, ...] = ()
    """Settings that it alone reads."""


def _adam(parameters: torch.Tensor, config: TrainingConfig) -> torch.optim.Optimizer:
    rate = config.server_learning_rate
    return torch.optim.Adam([parameters], lr=rate, betas=config.adam_betas, eps=config.adam_epsilon)


OPTIMIZERS: Mapping[str, ServerOptimizer] = {
    "sgd": ServerOptimizer(lambda parameters, config: torch.optim.SGD([parameters], lr=config.server_learning_rate)),
    "momentum": ServerOptimizer(
        lambda parameters, config: torch.optim.SGD(
            [parameters], lr=config.server_learning_rate, momentum=config.server_momentum
        ),
        uses=("server_momentum",),
    ),
    "adam": ServerOptimizer(_adam, uses=("adam_betas", "adam_epsilon")),
}


def kept_by(config: TrainingConfig) -> dict[str, int]:
    """What the optimizer keeps of its one parameter, which a checkpoint holds: names, and 1 for what is as long as it, 0 for
    single numbers. Seen by a step."""
    parameters = torch.zeros(2)
    parameters.grad = torch.zeros(2)
    optimizer = server_optimizer(parameters, config)
    optimizer.step()
    return {name: value.dim() for name, value in optimizer.state[parameters].items() if torch.is_tensor(value)}


def server_optimizer(parameters: torch.Tensor, config: TrainingConfig) -> torch.optim.Optimizer:
    """The one that ``training.server_optimizer`` names, over (P,) parameters."""
    return OPTIMIZERS[config.server_optimizer].make(parameters, config)
