"""The server's optimizers on the noised average: post-processing, at no privacy cost.

    >>> import torch
    >>> from uedp_ray.config import TrainingConfig
    >>> from uedp_ray.training.optimizers import kept_by, server_optimizer
    >>> config = TrainingConfig(server_optimizer="momentum", server_learning_rate=0.5, server_momentum=0.9)
    >>> parameters = torch.zeros(2)
    >>> optimizer = server_optimizer(parameters, config)
    >>> for _ in range(2):
    ...     parameters.grad = torch.tensor([1.0, -2.0])
    ...     optimizer.step()
    >>> parameters
    tensor([-1.4500,  2.9000])
    >>> kept_by(config)    # in a checkpoint: a vector as long as the parameters
    {'momentum_buffer': 1}

To add one, add an entry here and its name to ``config.choices.ServerOptimizerName``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from uedp_ray.components import in_table
from uedp_ray.config import TrainingConfig
from uedp_ray.errors import InputError


@dataclass(frozen=True)
class ServerOptimizer:
    """How to make an optimizer over (P,) parameters."""

    make: Callable[[torch.Tensor, TrainingConfig], torch.optim.Optimizer]
    uses: tuple[str, ...] | None = None
    """Settings of ``training`` that not all optimizers read, and this one does; a run is told of others that it sets. None:
    not stated, and nothing is told."""
    elementwise: bool = False
    """Whether a parameter's step follows from its own gradients and numbers that all parameters share, and never from other
    parameters: only then may workers step a part each (``sharding``)."""


def _adam(kind: type[torch.optim.Adam]) -> Callable[[torch.Tensor, TrainingConfig], torch.optim.Optimizer]:
    return lambda parameters, config: kind(
        [parameters], lr=config.server_learning_rate, betas=config.adam_betas, eps=config.adam_epsilon
    )


OPTIMIZERS: Mapping[str, ServerOptimizer] = {
    "sgd": ServerOptimizer(
        lambda parameters, config: torch.optim.SGD([parameters], lr=config.server_learning_rate),
        uses=(),
        elementwise=True,
    ),
    "momentum": ServerOptimizer(
        lambda parameters, config: torch.optim.SGD(
            [parameters], lr=config.server_learning_rate, momentum=config.server_momentum
        ),
        uses=("server_momentum",),
        elementwise=True,
    ),
    "adam": ServerOptimizer(_adam(torch.optim.Adam), uses=("adam_betas", "adam_epsilon"), elementwise=True),
    "adamw": ServerOptimizer(_adam(torch.optim.AdamW), uses=("adam_betas", "adam_epsilon"), elementwise=True),
}


def kept_by(config: TrainingConfig) -> dict[str, int]:
    """The optimizer state of its one parameter, as in a checkpoint: names, with 1 for vectors as long as it and 0 for
    single numbers. Found by making a step.

    Raises: InputError if it keeps anything else, which no checkpoint holds: a resumed run would train otherwise; if its step
    evaluates the loss (L-BFGS); and if it is stated to be elementwise, and is not. What changes after the first few steps
    only is not seen.
    """
    _check_elementwise(config)
    parameters = torch.zeros(2)
    parameters.grad = torch.zeros(2)
    optimizer = server_optimizer(parameters, config)
    groups = [{name: value for name, value in group.items() if name != "params"} for group in optimizer.param_groups]
    try:
        optimizer.step()
    except TypeError:
        remedy = "evaluates the loss within its step, and the server has none, only a noised average: use another"
        raise InputError("training.server_optimizer", config.server_optimizer, remedy) from None
    kept = set(optimizer.state[parameters]), _attributes(optimizer)
    for _ in range(_STEPS):
        optimizer.step()
    after = optimizer.param_groups
    state = {name: value for name, value in optimizer.state[parameters].items() if value is not None}
    fits = all(
        torch.is_tensor(value)
        and value.shape in ((), parameters.shape)
        and (name == "step" or value.dtype == parameters.dtype)  # torch reads others back as the parameters' type
        for name, value in state.items()
    )
    if (
        not fits
        or kept != (set(optimizer.state[parameters]), _attributes(optimizer))
        or groups != [{name: group.get(name) for name in before} for before, group in zip(groups, after, strict=True)]
    ):
        remedy = (
            "keeps what no checkpoint holds: its state must be tensors of their type, of one value a parameter or one"
        )
        raise InputError("training.server_optimizer", config.server_optimizer, remedy)
    return {name: value.dim() for name, value in optimizer.state[parameters].items() if torch.is_tensor(value)}


def _check_elementwise(config: TrainingConfig) -> None:
    if not in_table(OPTIMIZERS, config.server_optimizer, _TABLE).elementwise:
        return
    made_up = torch.Generator().manual_seed(0)
    start, *gradients = torch.randn(1 + _STEPS, _MANY, generator=made_up)
    gradients[-1] *= 1e3  # where a limit binds

    def stepped(part: slice) -> torch.Tensor:
        parameters = start[part].clone()
        optimizer = server_optimizer(parameters, config)
        for gradient in gradients:
            parameters.grad = gradient[part].clone()
            optimizer.step()
        return parameters

    try:
        same = torch.equal(
            stepped(slice(None)), torch.cat([stepped(slice(0, _MANY // 3)), stepped(slice(_MANY // 3, None))])
        )
    except TypeError:  # is told of the whole
        return
    if not same:
        remedy = "is stated to be elementwise, and steps a parameter by what others' gradients are: do not state it"
        raise InputError("training.server_optimizer", config.server_optimizer, remedy)


_TABLE = "OPTIMIZERS of uedp_ray.training.optimizers"
_MANY = 1000
"""Numbers of the parameters on which a server optimizer is tried out: more than share a scale, where some do."""
_STEPS = 3
"""Steps after the first in which a server optimizer is watched."""


def _attributes(optimizer: torch.optim.Optimizer) -> dict[str, str]:
    """Its own plain attributes, as text; its state and its groups are looked at by themselves."""
    plain = (bool, int, float, str, tuple, torch.Tensor)
    return {name: repr(value) for name, value in vars(optimizer).items() if isinstance(value, plain)}


def server_optimizer(parameters: torch.Tensor, config: TrainingConfig) -> torch.optim.Optimizer:
    """The optimizer that ``training.server_optimizer`` names, over (P,) parameters."""
    name = config.server_optimizer
    return in_table(OPTIMIZERS, name, _TABLE).make(parameters, config)
