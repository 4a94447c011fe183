"""Whether a model remembers a canary, from the probabilities that it gives.

    >>> from uedp_ray.audit.memory import exposure
    >>> exposure(1, 2**20), exposure(2**20, 2**20), round(exposure(300, 2**20), 2)
    (20.0, 0.0, 11.77)

A canary is five tokens; the first two are given, and R is every suffix of three tokens of the list that it was drawn from,
itself among them. So its rank is exact, and exposure is that of its source, of which others sample R. A canary that was
never planted is as likely as any to have any rank: its exposure is k bits or more with probability 2^-k.

Sources: Carlini, Liu, Erlingsson, Kos and Song, "The secret sharer" (2019): rank and exposure. Thakkar et al. (2020): random
sampling (the canary has the highest probability of R) and beam search (it is found from its first word).
Shape legend: N contexts of L tokens, W tokens of the list, V of the model.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

NextLogProbs = Callable[[NDArray[np.int32], NDArray[np.int32] | None], Tensor]
"""As ``Predictor.next_log_probs``: contexts (N, L), tokens (W,) or None -> (N, W) or (N, V)."""

GIVEN = 2
"""Tokens of a canary that its rank takes as known."""
FOUND = 5
"""The continuations, best first, among which a beam search must have the canary."""
_ALIKE = 1e-4
"""Log-probabilities closer than this count as equal: more than float32 and the sizes of batches make of one."""


def exposure(rank: int, candidates: int) -> float:
    """log2 |R| - log2 rank, in bits: from 0 for the last to log2 |R| for the first."""
    return math.log2(candidates) - math.log2(rank)


def rank_of(canary: NDArray[np.int32], words: NDArray[np.int32], next_log_probs: NextLogProbs) -> int:
    """The rank of the canary's suffix among all suffixes of ``words``, 1 to W^3: how many are no less likely after its first
    two tokens, itself included. Whatever is as likely as it counts against its being remembered.

    Shapes: (5,), (W,). It is exact: no suffix is more likely than its own beginning, so what begins less likely than all of
    the canary is left out. At worst W^2 contexts are computed.
    """
    steps = range(GIVEN, len(canary))
    asked = [next_log_probs(canary[None, :place], canary[place : place + 1]) for place in steps]
    least = float(torch.stack(asked).sum()) - _ALIKE
    contexts, likely = canary[None, :GIVEN], torch.zeros(1, 1, dtype=torch.float64)
    for place in steps:
        scores = likely + next_log_probs(contexts, words)
        rows, columns = (each.numpy() for each in (scores >= least).nonzero(as_tuple=True))
        if place == steps[-1]:
            return len(rows)
        contexts = np.concatenate([contexts[rows], words[columns, None]], axis=1)
        likely = scores[rows, columns, None]
    raise AssertionError("a canary is longer than what is given of it")


def found_by_beam(
    canary: NDArray[np.int32], left_out: NDArray[np.int32], width: int, next_log_probs: NextLogProbs
) -> bool:
    """Whether the canary is among the ``FOUND`` best continuations of its first token that a beam search finds.

    Args:
      left_out: tokens that are no words, which no continuation has.
      width: continuations that are kept at each step, ``FOUND`` or more.
    """
    contexts, likely = canary[None, :1], torch.zeros(1, 1, dtype=torch.float64)
    for _ in range(len(canary) - 1):
        scores = likely + next_log_probs(contexts, None)
        scores[:, left_out] = -math.inf
        best = scores.flatten().topk(min(width, scores.numel()))
        rows, tokens = (each.numpy() for each in (best.indices // scores.shape[1], best.indices % scores.shape[1]))
        contexts = np.concatenate([contexts[rows], tokens[:, None].astype(contexts.dtype)], axis=1)
        likely = best.values[:, None]
    return bool((contexts[:FOUND] == canary).all(axis=1).any())
