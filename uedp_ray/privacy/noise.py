"""Gaussian noise, added once by the driver to the sum of clipped updates.

The seed of every draw is 128 fresh bits of operating-system entropy (torch's CPU generator keeps only 32 bits of its
seed, few enough to search, so NumPy's Philox draws the noise). A fixed seed exists for comparing runs; anything made with
it must be labelled not private.

    >>> from uedp_ray.privacy.noise import GaussianNoise
    >>> noise = GaussianNoise()    # private
    >>> noise.require_private()
    >>> values = noise.sample(100_000, std=2.0, round_index=0)
    >>> round(values.std().item(), 1), bool((values == noise.sample(100_000, std=2.0, round_index=0)).any())
    (2.0, False)
    >>> test = GaussianNoise(test_seed=0)
    >>> test.sample(3, std=2.0, round_index=0).tolist() == test.sample(3, std=2.0, round_index=0).tolist()
    True
    >>> test.require_private()
    Traceback (most recent call last):
        ...
    ValueError: a test seed fixes this noise, and what claims to be private needs secret noise

Callers that add it round both to a grid (``grid``): a sum of floating-point numbers leaks information about its parts.
"""

from __future__ import annotations

import hashlib
import secrets
import struct
from collections.abc import Iterator

import numpy as np
import torch

_BLOCK = 1 << 20


class GaussianNoise:
    """A source of N(0, std^2) vectors. ``private`` is False when a test seed fixes them."""

    def __init__(self, test_seed: int | None = None):
        self._test_seed = test_seed

    @property
    def private(self) -> bool:
        return self._test_seed is None

    def require_private(self) -> None:
        """Guards whatever claims to be private. Raises: ValueError if a test seed fixes the noise."""
        if not self.private:
            raise ValueError("a test seed fixes this noise, and what claims to be private needs secret noise")

    def sample(self, size: int, *, std: float, round_index: int) -> torch.Tensor:
        """Returns (size,) float64 noise on the CPU."""
        return torch.cat(list(self.blocks(size, std=std, round_index=round_index)))

    def blocks(self, size: int, *, std: float, round_index: int) -> Iterator[torch.Tensor]:
        """Yields the same in parts of at most 2^20, so that a long vector needs no second one for its noise."""
        if not std >= 0.0:
            raise ValueError(f"noise std {std} must be 0 or more")
        if self._test_seed is None:
            key = secrets.randbits(128)
        else:
            name = struct.pack("<qQQ", self._test_seed, round_index, 0)
            key = int.from_bytes(hashlib.blake2b(name, digest_size=16).digest(), "little")
        yield from keyed_blocks(key, size, std=std)


def keyed_blocks(key: int, size: int, *, std: float) -> Iterator[torch.Tensor]:
    """Yields (size,) float64 noise in parts of at most 2^20. ``key``: 128 bits, secret, and of nothing else."""
    generator = np.random.Generator(np.random.Philox(key=key))
    for start in range(0, max(size, 1), _BLOCK):
        yield torch.from_numpy(generator.standard_normal(min(_BLOCK, size - start)) * std)
