"""Reduction of a round's partial sums: in one process, or over a torch.distributed group whose rank 0 is the driver.

>>> import torch
>>> from uedp_ray.training.reduce import LocalReducer, part_of
>>> reducer, total = LocalReducer(), torch.tensor([3, -1])
>>> reducer.is_driver, reducer.from_driver(reducer.sum_to_driver(total)) is total    # nothing is sent
(True, True)
>>> [part_of(1000, rank, 3) for rank in range(3)]    # of a vector of which each worker has a part
[slice(0, 320, None), slice(320, 640, None), slice(640, 1000, None)]
"""

from __future__ import annotations

import hashlib
from typing import Protocol

import torch

_REDUCE_SCATTER = getattr(torch.distributed, "reduce_scatter_single", torch.distributed.reduce_scatter_tensor)
_ALL_GATHER = getattr(torch.distributed, "all_gather_single", torch.distributed.all_gather_into_tensor)
"""By the names of torch 2.13; 2.11 has the others."""
_TOGETHER = 64
"""Numbers that stay in one part: kernels of CPUs compute what is left over beyond whole vectors by other code, and a part's
bits must be those of the whole."""


def part_of(size: int, rank: int, num_workers: int) -> slice:
    """The part of a vector that worker ``rank`` has: as much as any other, and the last worker also what remains."""
    each = size // (num_workers * _TOGETHER) * _TOGETHER
    return slice(rank * each, size if rank == num_workers - 1 else (rank + 1) * each)


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


def drivers_number(reducer: Reducer, value: int, device: torch.device) -> int:
    """The driver's whole number on every worker; all of them must ask."""
    return int(reducer.from_driver(torch.tensor([value], device=device)).item())


def is_drivers(reducer: Reducer, known: object, device: torch.device) -> bool:
    """Whether this worker knows what the driver does, by a digest of 63 bits of its ``repr``; all of them must ask."""
    digest = hashlib.blake2b(repr(known).encode(), digest_size=8).digest()
    mine = int.from_bytes(digest, "little") >> 1
    return drivers_number(reducer, mine, device) == mine


class PartsReducer(Reducer, Protocol):
    """Sums each part of a vector on the worker that has it (``part_of``)."""

    @property
    def rank(self) -> int: ...
    @property
    def num_workers(self) -> int: ...

    def sum_of_part(self, vector: torch.Tensor) -> torch.Tensor:
        """This worker's part of the sum over workers of ``vector``, which is overwritten; exact for integers."""
        ...

    def to_all(self, vector: torch.Tensor) -> torch.Tensor:
        """The vector with everybody's own part of it, in place, on every worker."""
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
        self.one_by_one = torch.distributed.get_backend() == "gloo"
        """Whether parts are sent one after the other: gloo's own collectives of parts take twice as long as that, NCCL's
        one call for each part would take a thousand times its latency on a thousand GPUs."""

    def sum_to_driver(self, vector: torch.Tensor) -> torch.Tensor:
        torch.distributed.reduce(vector, dst=0)
        return vector

    def from_driver(self, vector: torch.Tensor) -> torch.Tensor:
        torch.distributed.broadcast(vector, src=0)
        return vector

    def sum_of_part(self, vector: torch.Tensor) -> torch.Tensor:
        even, each, rest = self._divided(vector)
        for rank, part in rest:
            torch.distributed.reduce(part, dst=rank)
        own = vector[part_of(len(vector), self.rank, self.num_workers)].clone()  # the vector itself is let go of
        if each:
            _REDUCE_SCATTER(own[:each], even)
        return own

    def to_all(self, vector: torch.Tensor) -> torch.Tensor:
        even, each, rest = self._divided(vector)
        if each:
            _ALL_GATHER(even, even[self.rank * each : (self.rank + 1) * each].clone())
        for rank, part in rest:
            torch.distributed.broadcast(part, src=rank)
        return vector

    def _divided(self, vector: torch.Tensor) -> tuple[torch.Tensor, int, list[tuple[int, torch.Tensor]]]:
        """What one collective moves, how much of it is each worker's, and what is moved for one worker after the other."""
        parts = [part_of(len(vector), rank, self.num_workers) for rank in range(self.num_workers)]
        if self.one_by_one:
            return vector[:0], 0, [(rank, vector[part]) for rank, part in enumerate(parts) if part.start < part.stop]
        each = len(vector) if self.num_workers == 1 else parts[0].stop
        end = each * self.num_workers
        rest = [(self.num_workers - 1, vector[end:])] if end < len(vector) else []
        return vector[:end], each, rest
