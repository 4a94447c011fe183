"""Gaussian noise, added once to the sum of clipped updates: by the driver, or to a part of it by each worker.

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
import queue
import secrets
import struct
import threading
from collections.abc import Iterator
from contextlib import suppress

import numpy as np
import torch

_BLOCK = 1 << 20
_AHEAD = 1 << 7
"""Blocks that wait to be added."""
MOST_AHEAD = _AHEAD * _BLOCK
"""Numbers that ``draw_ahead`` holds at most, of 8 bytes."""
_MOMENT = 0.1
"""Seconds after which a thread looks whether its noise is still wanted."""


class GaussianNoise:
    """A source of N(0, std^2) vectors. ``private`` is False when a test seed fixes them.

    ``start``: a test's vectors are those of another source with its seed from there on, so that parts make up a whole.

    >>> from uedp_ray.privacy.noise import GaussianNoise
    >>> whole, part = (GaussianNoise(test_seed=0, start=start) for start in (0, 2))
    >>> part.sample(3, std=2.0, round_index=0).equal(whole.sample(5, std=2.0, round_index=0)[2:])
    True
    """

    def __init__(self, test_seed: int | None = None, *, start: int = 0):
        self._test_seed, self._start = test_seed, start
        self._ahead: _Ahead | None = None

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
        ahead, self._ahead = self._ahead, None  # whatever was drawn is of one release
        if ahead is not None and ahead.of == (size, std, round_index):
            return ahead.taken()
        if ahead is not None:
            ahead.drop()
        return self._drawn(size, std, round_index)

    def draw_ahead(self, size: int, *, std: float, round_index: int) -> None:
        """Begins to draw, in a thread, what ``blocks`` of the same arguments gives next: noise does not depend on the sum,
        and of many parameters it takes seconds, for which all GPUs would wait. Holds at most 1 GiB."""
        if self._ahead is not None:
            self._ahead.drop()
        self._ahead = _Ahead((size, std, round_index), self._drawn(size, std, round_index))

    def _drawn(self, size: int, std: float, round_index: int) -> Iterator[torch.Tensor]:
        if not std >= 0.0:
            raise ValueError(f"noise std {std} must be 0 or more")
        if self._test_seed is None:
            key = secrets.randbits(128)
        else:
            name = struct.pack("<qQQ", self._test_seed, round_index, 0)
            key = int.from_bytes(hashlib.blake2b(name, digest_size=16).digest(), "little")
            return _from(self._start, keyed_blocks(key, self._start + size, std=std))
        return keyed_blocks(key, size, std=std)


_Waiting = queue.Queue[torch.Tensor | BaseException | None]


class _Ahead:
    """Blocks that a thread draws, as far as there is room, while this object is there. ``of``: what they were asked for."""

    def __init__(self, of: tuple[int, float, int], blocks: Iterator[torch.Tensor]):
        self.of = of
        self._blocks: _Waiting = queue.Queue(_AHEAD)
        self._dropped = threading.Event()
        drawn = blocks, self._blocks, self._dropped  # not this object, which would then never go
        threading.Thread(target=_draw, args=drawn, name="noise", daemon=True).start()

    def __del__(self) -> None:
        self.drop()

    def taken(self) -> Iterator[torch.Tensor]:
        try:
            while (item := self._blocks.get()) is not None:
                if isinstance(item, BaseException):
                    raise item
                yield item
        finally:
            self.drop()

    def drop(self) -> None:
        """Ends the thread; what it drew is used for nothing."""
        self._dropped.set()


def _draw(blocks: Iterator[torch.Tensor], waiting: _Waiting, dropped: threading.Event) -> None:
    def put(item: torch.Tensor | BaseException | None) -> None:
        while not dropped.is_set():
            with suppress(queue.Full):
                waiting.put(item, timeout=_MOMENT)
                return

    try:
        for block in blocks:
            put(block)
            if dropped.is_set():
                return
        put(None)
    except BaseException as error:  # is raised where the noise is taken
        put(error)


def _from(start: int, blocks: Iterator[torch.Tensor]) -> Iterator[torch.Tensor]:
    """What blocks hold from one place on: how many numbers a draw takes depends on them, so none can be skipped."""
    for block in blocks:
        yield block[start:]
        start = max(0, start - len(block))


def keyed_blocks(key: int, size: int, *, std: float) -> Iterator[torch.Tensor]:
    """Yields (size,) float64 noise in parts of at most 2^20. ``key``: 128 bits, secret, and of nothing else."""
    generator = np.random.Generator(np.random.Philox(key=key))
    for start in range(0, max(size, 1), _BLOCK):
        yield torch.from_numpy(generator.standard_normal(min(_BLOCK, size - start)) * std)
