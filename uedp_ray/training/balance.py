"""Which worker takes which of a round's users: whoever takes longest first, each to the worker that has least to do.

    >>> import numpy as np
    >>> from uedp_ray.training.balance import spread
    >>> spread(np.array([3, 9, 4, 2, 4]), num_workers=2).tolist()    # the workers get 3 + 4 + 4 and 9 + 2 tokens
    [1, 0, 1, 0, 1]

Every worker maps all tokens and knows every draw, so each finds out by itself what it takes, and the slowest has little
more than the mean (Graham 1969: at most 4/3 of the best there is). The bound on a user holds if no user is taken twice. So
before a round's updates are computed, workers add up one number for each user they take, and the driver ends the run if the
sum is not that of all who were drawn: one of them opened other files, or is of another version. (``worker`` looks before at
whether settings, noise, text and key are the driver's.) Whoever reads the network learns from these numbers who was drawn.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from uedp_ray.corpus.bounds import mix64
from uedp_ray.privacy.sampling import PoissonSampler
from uedp_ray.training.machine import kernels
from uedp_ray.training.reduce import Reducer, is_drivers


@dataclass(frozen=True, kw_only=True)
class Balance:
    """One worker's view of who takes whom."""

    loads: NDArray[np.int64] | None
    """(U,) as ``loads_of``; None: each user stays with one worker, whoever else is drawn (see ``are_alike``)."""
    rank: int
    num_workers: int
    sampler: PoissonSampler
    reducer: Reducer
    device: torch.device

    def share(self, drawn: NDArray[np.int64], *, round_index: int, attempt: int) -> NDArray[np.int64]:
        """The users among ``drawn``, all of the round's, that this worker takes; every worker must ask.

        Raises: RuntimeError, on the driver, if some user is taken by no worker or by several.
        """
        if self.num_workers == 1:
            return drawn
        taker = drawn % self.num_workers if self.loads is None else spread(self.loads[drawn], self.num_workers)
        mine = drawn[taker == self.rank]
        secret = self.sampler.secret(8, round_index=round_index, attempt=attempt, kind="share")
        taken, all_drawn = (_sum_of_marks(users, np.frombuffer(secret, "<u8")) for users in (mine, drawn))
        added = self.reducer.sum_to_driver(torch.tensor([taken], device=self.device))
        if self.reducer.is_driver and int(added) != all_drawn:
            raise RuntimeError(
                "the workers do not agree who takes which user, and no bound holds for one who is taken twice: give all of "
                "them the same files, and the same versions of uedp_ray and NumPy"
            )
        return mine


@dataclass(frozen=True, kw_only=True)
class DrawingTeam:
    """Workers that share out what takes longest of a round's draws (``sampling.Team``). What they send is who was drawn, to
    those who all know it."""

    rank: int
    num_workers: int
    reducer: Reducer
    device: torch.device

    def mine(self, num_blocks: int) -> range:
        return range(self.rank, num_blocks, self.num_workers)

    def joined(self, drawn: NDArray[np.bool_]) -> NDArray[np.bool_]:
        bits = torch.from_numpy(np.packbits(drawn)).to(self.device)  # each is set by one worker: adding joins them
        bits = self.reducer.from_driver(self.reducer.sum_to_driver(bits))
        return np.unpackbits(bits.cpu().numpy(), count=len(drawn)).view(np.bool_)


_STRETCH = 1 << 22


def spread(loads: NDArray[np.int64], num_workers: int) -> NDArray[np.int64]:
    """(n,) the worker of each load: the largest load first, each to the worker that has least, and of these to the first.

    Guarantees: a function of these integers alone, so the same on every machine.
    """
    least = [(0, worker) for worker in range(num_workers)]  # a heap already
    worker_of = np.empty(len(loads), np.int64)
    order = np.argsort(-loads, kind="stable")
    for place, load in zip(order.tolist(), loads[order].tolist(), strict=True):
        has, worker = least[0]
        worker_of[place] = worker
        heapq.heapreplace(least, (has + load, worker))
    return worker_of


def loads_of(
    user_offsets: NDArray[np.int64], token_offsets: NDArray[np.int64], sentence_weight: NDArray[np.float32]
) -> NDArray[np.int64]:
    """(U,) positions that each user's sentences take, as far as the bounds let them count: about what a user costs.

    Not what was drawn of them, which would take gathering all users on each worker.
    """
    loads = np.zeros(len(user_offsets) - 1, np.int64)
    first = 0
    while first < len(loads):  # by stretches of sentences: several vectors as long as the text have no room
        begin = int(user_offsets[first])
        last = max(first + 1, int(np.searchsorted(user_offsets, begin + _STRETCH, "right")) - 1)
        end = int(user_offsets[last])
        positions = np.diff(token_offsets[begin : end + 1])
        positions += 1  # the end
        positions *= sentence_weight[begin:end] > 0
        ends = np.concatenate([[0], np.cumsum(positions, out=positions)])
        loads[first:last] = np.diff(ends[user_offsets[first : last + 1] - begin])
        first = last
    return loads


def are_alike(reducer: Reducer, device: torch.device, num_workers: int, tried_out: object) -> bool:
    """Whether all workers have the kernels of the driver, as far as they say; every worker must ask.

    Where they have not, what is computed of a user depends, in its last bits, on who computes it. So who does must not
    follow from what others hold. ``tried_out``: what else a worker found out of its machine (``LocalUpdate.tried_out``);
    one that tried out nothing is like no other.
    """
    found = is_drivers(reducer, (kernels(device), tried_out), device) and tried_out is not None
    same = torch.tensor([int(found)], device=device)
    return int(reducer.from_driver(reducer.sum_to_driver(same)).item()) == num_workers


def _sum_of_marks(users: NDArray[np.int64], secret: NDArray[np.uint64]) -> int:
    """The sum, modulo 2**64, of a number for each user and secret; as a signed number, as torch adds."""
    return int(mix64(users.astype(np.uint64) ^ secret).sum(dtype=np.uint64).astype(np.int64))
