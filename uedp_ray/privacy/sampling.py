"""Poisson draws that do not depend on the number of workers.

Every draw is an output of SHAKE-256 keyed by (secret key, round, attempt, kind, owner); the id drawn for is the position
in that output stream. So any worker can recompute any draw, and 1 and N workers select the same users, entities and
sentences. Amplification by sampling holds only while the key stays secret: it comes from operating-system entropy and
is kept in the run's private folder.

    >>> from uedp_ray.privacy.sampling import PoissonSampler
    >>> sampler = PoissonSampler(bytes(32))    # of a run: os.urandom(32)
    >>> cohort = sampler.draw(0.05, 1000, round_index=0, attempt=0, kind="user")    # (U,) bool
    >>> again = sampler.draw(0.05, 1000, round_index=0, attempt=1, kind="user")
    >>> int(cohort.sum()), int(again.sum()), int((cohort & again).sum())    # drawn, drawn on replay, and in both
    (45, 58, 1)

Draws for millions of users or entities are of several streams, one for each *block* of positions, so that they take little
memory, and workers may draw some of the blocks each (``Team``). Runs of earlier versions have one stream however long.

A replayed round passes a higher ``attempt`` and so draws a fresh sample: two noised releases on one secret sample are
not two independently subsampled releases, and could not be charged as such.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

Kind = Literal["user", "entity", "extended", "sentence", "local", "noise", "share"]
_KIND_CODE = {"user": 0, "entity": 1, "extended": 2, "sentence": 3, "local": 4, "noise": 5, "share": 6}


BLOCK = 1 << 20
"""Positions of a block, in new runs."""


class Team(Protocol):
    """Workers that draw some of the blocks each: all of them ask for the same draws, in the same order."""

    def mine(self, num_blocks: int) -> Iterable[int]:
        """The numbers of the blocks that this worker draws; each is drawn by one."""
        ...

    def joined(self, drawn: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """This worker's draws, false elsewhere -> those of all workers."""
        ...


class PoissonSampler:
    """Independent Bernoulli draws addressed by (round, attempt, kind, owner, position).

    ``block``: positions of a stream of what is drawn for all (owner 0); the next ones have the streams of owners 1, 2 and so
    on. None: one stream. ``team``: who draws these blocks; None: this process all of them. An owner's own draws share no
    address with blocks, as one kind of draws is either for all or of each user.

        >>> from uedp_ray.privacy.sampling import PoissonSampler
        >>> where = {"round_index": 0, "attempt": 0, "kind": "user"}
        >>> whole, blocks = (PoissonSampler(bytes(32), block=block).draw(0.5, 250, **where) for block in (None, 100))
        >>> bool((whole[:100] == blocks[:100]).all()), bool((whole == blocks).all())
        (True, False)
        >>> second = PoissonSampler(bytes(32)).draw(0.5, 100, **where, owner=1)
        >>> bool((blocks[100:200] == second).all())
        True
    """

    def __init__(self, key: bytes, *, block: int | None = None, team: Team | None = None):
        if len(key) < 16:
            raise ValueError(f"sampling key has {len(key)} bytes; 16 or more are needed")
        self._key, self._block, self._team = key, block, team

    def draw(
        self,
        probability: float,
        count: int,
        *,
        round_index: int,
        attempt: int,
        kind: Kind,
        owner: int = 0,
    ) -> NDArray[np.bool_]:
        """Returns (count,) draws, each true with ``probability`` up to 2**-64.

        Args:
          probability: inclusion probability in [0, 1]; 0 and 1 are exact.
          count: how many positions to draw.
          round_index, attempt: which release the draws are for.
          kind: what is drawn.
          owner: the user whose own draws these are (``per_user`` and ``extended``); 0 for draws shared by all.

        Edge cases:

            >>> from uedp_ray.privacy.sampling import PoissonSampler
            >>> sampler = PoissonSampler(bytes(32))
            >>> def drawn(probability, count=1000, kind="user"):
            ...     return sampler.draw(probability, count, round_index=0, attempt=0, kind=kind)
            >>> int(drawn(0.0).sum()), int(drawn(1.0).sum())
            (0, 1000)
            >>> int(drawn(1e-20).sum())    # below 2**-64: never
            0
            >>> drawn(0.5, 0).tolist()
            []
            >>> (drawn(0.5, 10) == drawn(0.5)[:10]).all().item()    # a draw does not depend on how many there are
            True
            >>> (drawn(0.5) == drawn(0.5, kind="entity")).all().item()    # of its kind it does
            False
            >>> drawn(1.5)
            Traceback (most recent call last):
                ...
            ValueError: probability 1.5 is outside [0, 1]
        """
        threshold = _threshold(probability)
        if threshold >= 2**64:
            return np.ones(count, dtype=bool)
        block = count if owner or self._block is None else self._block
        where = {"round_index": round_index, "attempt": attempt}
        if count <= block:
            stream = self.secret(8 * count, **where, kind=kind, owner=owner)
            return np.frombuffer(stream, dtype="<u8") < np.uint64(threshold)
        drawn = np.zeros(count, dtype=bool)
        numbers = range(-(-count // block))
        for number in numbers if self._team is None else self._team.mine(len(numbers)):
            part = drawn[number * block : (number + 1) * block]
            stream = self.secret(8 * len(part), **where, kind=kind, owner=number)
            np.less(np.frombuffer(stream, dtype="<u8"), np.uint64(threshold), out=part)
        return drawn if self._team is None else self._team.joined(drawn)

    def draw_each(
        self,
        probability: float,
        counts: NDArray[np.int64],
        owners: NDArray[np.int64],
        *,
        round_index: int,
        attempt: int,
        kind: Kind,
    ) -> NDArray[np.bool_]:
        """What ``draw`` returns for each of ``owners``, who have so many positions each, one after the other.

        >>> import numpy as np
        >>> from uedp_ray.privacy.sampling import PoissonSampler
        >>> sampler, where = PoissonSampler(bytes(32)), {"round_index": 0, "attempt": 0, "kind": "extended"}
        >>> each = sampler.draw_each(0.5, np.array([3, 0, 2]), np.array([7, 8, 9]), **where)
        >>> each.tolist() == [drawn for n, owner in ((3, 7), (2, 9)) for drawn in sampler.draw(0.5, n, owner=owner, **where)]
        True
        """
        threshold = _threshold(probability)
        if threshold >= 2**64:
            return np.ones(int(counts.sum()), dtype=bool)
        streams = b"".join(
            self.secret(8 * count, round_index=round_index, attempt=attempt, kind=kind, owner=owner)
            for owner, count in zip(owners.tolist(), counts.tolist(), strict=True)
            if count
        )
        return np.frombuffer(streams, dtype="<u8") < np.uint64(threshold)

    def secret(self, size: int, *, round_index: int, attempt: int, kind: Kind, owner: int = 0) -> bytes:
        """``size`` bytes of an address, which tell nothing of those of another: the key of a user's own draws (``local``),
        of noise (``noise``), or of what workers check about who takes whom (``share``).

            >>> from uedp_ray.privacy.sampling import PoissonSampler
            >>> sampler, where = PoissonSampler(bytes(32)), {"round_index": 0, "kind": "local", "owner": 3}
            >>> len(sampler.secret(32, attempt=0, **where)), sampler.secret(8, attempt=0, **where).hex()
            (32, '99daefd7eb265951')
            >>> sampler.secret(32, attempt=0, **where) == sampler.secret(32, attempt=1, **where)    # of a replay
            False
        """
        address = struct.pack("<QQQQ", round_index, attempt, _KIND_CODE[kind], owner)
        return hashlib.shake_256(self._key + address).digest(size)


def _threshold(probability: float) -> int:
    """What 64 random bits must be below; 2**64 draws always."""
    if not 0.0 <= probability <= 1.0:
        raise ValueError(f"probability {probability} is outside [0, 1]")
    return int(probability * 2.0**64)
