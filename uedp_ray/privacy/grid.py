"""Sums on a grid: exact in any order, and released on a coarser grid that the data cannot change.

    >>> import torch
    >>> from uedp_ray.privacy.grid import SumGrid
    >>> grid = SumGrid.of(bound=1.0, num_vectors=1000, noise_std=2.0)
    >>> (0.1 + 0.2) + 0.3 == 0.1 + (0.2 + 0.3)    # floating-point sums tell in which order they were made
    False
    >>> sums = [torch.zeros(1, dtype=torch.int64) for _ in range(2)]
    >>> for total, order in zip(sums, [(0.1, 0.2, 0.3), (0.2, 0.3, 0.1)]):
    ...     for value in order:
    ...         grid.add(total, torch.tensor([value], dtype=torch.float64))
    >>> bool(sums[0] == sums[1])    # exact: in any order
    True
    >>> grid.add_noise(sums[0], [torch.tensor([-1.7], dtype=torch.float64)])    # in place, rounded to the grid
    >>> released = grid.value(grid.coarsen(sums[0])).item()
    >>> round(released, 5), released * 2**19    # a multiple of about noise_std 2^-20
    (-1.1, -576717.0)

Vectors become integer multiples of ``step``, truncated toward zero, which lengthens none. Integers add up exactly, so a sum
does not depend on order, batches or workers, and removing one vector changes it by that vector. Noise rounded to the same
grid commutes with adding: round(sum + noise) = sum + round(noise). What is released is therefore a function of the exact sum
plus real-valued noise, rounded; its possible values are the same multiples for every data set, whereas the attack on
low-order bits needs them to differ (Mironov, "On Significance of the Least Significant Bits for Differential Privacy", 2012;
Google, "Secure noise generation", 2020). ``step`` and ``shift`` follow from public numbers.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch

_BITS = 62
"""Sum and noise together stay below 2^62 steps: no int64 overflows."""
_NOISE_LIMIT = 64.0
"""Standard deviations at which noise is cut off; the probability, 1e-892, counts as 0."""
_RELEASED_BITS = 20
"""What is released is a multiple of about noise_std 2^-20."""


_PART = {"cpu": 1 << 17, "cuda": 1 << 26}


def parts(tensor: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Views of a tensor, split along its last axis, such that a copy of one stays in a CPU's cache (512 MiB on a GPU)."""
    size = _PART.get(tensor.device.type, _PART["cpu"]) // max(1, tensor[..., :1].numel())
    return tensor.split(max(1, size), -1)


@dataclass(frozen=True)
class SumGrid:
    """``step``: a power of two. What is released is a multiple of ``step * 2**shift``."""

    step: float
    shift: int

    @classmethod
    def of(cls, *, bound: float, num_vectors: int, noise_std: float) -> SumGrid:
        """The finest grid on which ``num_vectors`` vectors of norm ``bound`` or less, and the noise, fit an int64."""
        if not 1e-100 < bound * num_vectors + noise_std < 1e100:
            raise ValueError(f"bound {bound}, noise_std {noise_std}: sums need numbers within 1e-100 and 1e100")
        exponent = math.frexp(bound * num_vectors + _NOISE_LIMIT * noise_std)[1] - _BITS
        released = math.frexp(noise_std)[1] - 1 - _RELEASED_BITS if noise_std else exponent
        return cls(math.ldexp(1.0, exponent), max(0, released - exponent))

    def add(self, total: torch.Tensor, vector: torch.Tensor, scale: float = 1.0) -> None:
        """Adds ``scale`` times a finite (P,) vector, in float64 and truncated toward zero on the grid, to (P,) int64."""
        for sums, part in zip(parts(total), parts(vector), strict=True):
            sums.add_((part.double() * (scale / self.step)).to(torch.int64))

    def add_noise(self, total: torch.Tensor, blocks: Iterable[torch.Tensor]) -> None:
        """Adds noise to (P,) int64 in place, each value rounded to the grid. ``blocks``: float64, overwritten, P in all."""
        start, limit = 0, float(2**_BITS)
        for block in blocks:
            steps = block.mul_(1.0 / self.step).round_().clamp_(-limit, limit)
            total[start : start + len(block)] += steps.to(total.device).to(torch.int64)
            start += len(block)
        if start != len(total):
            raise ValueError(f"noise for {start} of {len(total)} coordinates")

    def coarsen(self, total: torch.Tensor) -> torch.Tensor:
        """Rounds (P,) int64, in place, to multiples of ``2**shift``, and divides by it."""
        return total.add_(1 << self.shift >> 1).bitwise_right_shift_(self.shift)

    def value(self, steps: torch.Tensor) -> torch.Tensor:
        """(P,) int64 of ``coarsen``, overwritten -> (P,) float64 in the same memory, exact below 2^53."""
        values = steps.view(torch.float64)
        for value, part in zip(parts(values), parts(steps), strict=True):
            value.copy_(part.double().mul_(math.ldexp(self.step, self.shift)))
        return values
