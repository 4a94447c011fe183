"""Gaussian noise, added once by the driver to the sum of clipped updates.

The seed of every draw is 128 fresh bits of operating-system entropy (torch's CPU generator keeps only 32 bits of its
seed, few enough to search, so NumPy's Philox draws the noise). A fixed seed exists for comparing runs; whatever is made
with it must be labelled not private.

    noise = GaussianNoise()                       # private
    released = total + noise.sample(total.numel(), std=2.0, round_index=0)
"""

from __future__ import annotations

import hashlib
import math
import secrets
import struct

import numpy as np
import torch


class GaussianNoise:
    """A source of N(0, std^2) vectors. ``private`` is False when a test seed fixes them."""

    def __init__(self, test_seed: int | None = None):
        self._test_seed = test_seed

    @property
    def private(self) -> bool:
        return self._test_seed is None

    def sample(self, size: int, *, std: float, round_index: int, share: int = 0, num_shares: int = 1) -> torch.Tensor:
        """Returns (size,) float64 noise on the CPU.

        With ``num_shares`` = P > 1 the noise is one of P independent shares, each of std / sqrt(P), whose sum has ``std``.
        """
        if not std >= 0.0:
            raise ValueError(f"noise std {std} must be 0 or more")
        if self._test_seed is None:
            key = secrets.randbits(128)
        else:
            name = struct.pack("<qQQ", self._test_seed, round_index, share)
            key = int.from_bytes(hashlib.blake2b(name, digest_size=16).digest(), "little")
        generator = np.random.Generator(np.random.Philox(key=key))
        return torch.from_numpy(generator.standard_normal(size) * (std / math.sqrt(num_shares)))
