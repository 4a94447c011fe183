"""Reduction of a round's partial sums: in one process, or over a torch.distributed group whose rank 0 is the driver.

>>> import torch
>>> from uedp_ray.training.reduce import LocalReducer
>>> reducer, total = LocalReducer(), torch.tensor([3, -1])
>>> reducer.is_driver, reducer.from_driver(reducer.sum_to_driver(total)) is total    # nothing is sent
(True, True)
"""

from __future__ import annotations

from typing import Protocol

import torch


class Reducer(Protocol):
    """Sums vectors on the driver, and broadcasts vectors from it."""

    @property
    def is_driver(self) -> bool: ...

    def sum_to_driver(self, vector: torch.Tensor) -> torch.Tensor:
        """The sum over workers on the driver, exact for integers; elsewhere the value is undefined."""
        ...

    def from_driver(self, vector: torch.Tensor) -> torch.Tensor:
        """The driver's vector on every worker (same shape and dtype everywhere)."""
        ...


class LocalReducer:
    """One worker that is also the driver."""

    is_driver = True

    def sum_to_driver(self, vector: torch.Tensor) -> torch.Tensor:
        return vector

    def from_driver(self, vector: torch.Tensor) -> torch.Tensor:
        return vector


class DistributedReducer:
    """The default torch.distributed group (gloo on CPUs, NCCL on GPUs), set up by Ray Train."""

    def __init__(self) -> None:
        self.rank, self.num_workers = torch.distributed.get_rank(), torch.distributed.get_world_size()
        self.is_driver = self.rank == 0

    def sum_to_driver(self, vector: torch.Tensor) -> torch.Tensor:
        torch.distributed.reduce(vector, dst=0)
        return vector

    def from_driver(self, vector: torch.Tensor) -> torch.Tensor:
        torch.distributed.broadcast(vector, src=0)
        return vector
