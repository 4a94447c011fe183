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
    num_moments: int = 0
    """Vectors as long as the parameters that it keeps, and a checkpoint holds."""
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
        num_moments=1,
        uses=("server_momentum",),
    ),
    "adam": ServerOptimizer(_adam, num_moments=2, uses=("adam_betas", "adam_epsilon")),
}


def server_optimizer(parameters: torch.Tensor, config: TrainingConfig) -> torch.optim.Optimizer:
    """The one that ``training.server_optimizer`` names, over (P,) parameters."""
    return OPTIMIZERS[config.server_optimizer].make(parameters, config)
