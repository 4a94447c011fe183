"""Weighted progressive filling: weights of sentences that use up what entities and users allow, in whole units.

    >>> import numpy as np
    >>> from uedp_ray.corpus.filling import UNIT, filled
    >>> holds = np.array([[0, 0], [0, 1], [1, 0], [2, 1]])    # (sentence, entity); entity 1 may count twice
    >>> units = filled(*holds.T, capacities=np.array([1, 2]) * UNIT, open_N=np.ones(3, bool))
    >>> [round(weight, 3) for weight in (units / UNIT).tolist()]    # sentence 0 rises more slowly: it takes from two
    [0.333, 0.667, 1.0]

All weights rise from 0 together, each at a rate of one over the number of its links. Where a link is full its sentences
stop, and a sentence stops at 1. What is left of other links goes to the rest. In the literature of networks: weighted
max-min fairness (Bertsekas and Gallager, Data Networks, 1992, section 6.5).

Guarantees: integers throughout, so no sum of weights exceeds a capacity by rounding; weights are exact in float32; the
result depends on who holds what, and on no order of sentences, links or incidences.

Shape legend: N sentences, L links, I incidences (sentence, link). All arrays are private.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

UNIT = 1 << 24
"""A weight of 1."""
_RATE = 1 << 10
"""The rate of a sentence with one link; levels are in units of weight per rate."""


def filled(
    sentence_I: NDArray[np.int64],
    link_I: NDArray[np.int64],
    *,
    capacities: NDArray[np.int64],
    open_N: NDArray[np.bool_],
) -> NDArray[np.int64]:
    """(N,) weights in 1 / ``UNIT``; 1 without links, and 0 where ``open_N`` is false.

    Args:
      capacities: (L,) what the weights of a link's sentences may sum to, in the same units.
    """
    num_links = len(capacities)
    units_N = np.where(open_N, UNIT, 0)
    rate_N = np.maximum(_RATE // np.maximum(np.bincount(sentence_I, minlength=len(open_N)), 1), 1)
    kept = open_N[sentence_I]
    sentence_I, link_I = sentence_I[kept], link_I[kept]
    left_L = np.minimum(capacities, np.bincount(link_I, minlength=num_links) * UNIT)  # no more is needed
    whole_N = -(-UNIT * _RATE // rate_N)  # the level at which a sentence weighs 1
    while len(sentence_I):
        rates_L = np.zeros(num_links, np.int64)
        np.add.at(rates_L, link_I, rate_N[sentence_I])
        level_L = left_L * _RATE // np.maximum(rates_L, 1)
        level_N = whole_N.copy()
        np.minimum.at(level_N, sentence_I, level_L[link_I])
        # A link fills first among all that its sentences meet: they stop there, as levels only rise when others stop.
        least_L = np.full(num_links, np.iinfo(np.int64).max)
        np.minimum.at(least_L, link_I, level_N[sentence_I])
        stops_N = np.zeros(len(open_N), bool)
        stops_N[sentence_I[(least_L == level_L)[link_I]]] = True
        whole = level_N == whole_N  # no link stops it before it weighs 1
        done_I = (stops_N | whole)[sentence_I]
        stopped = stops_N & ~whole
        units_N[stopped] = level_N[stopped] * rate_N[stopped] // _RATE
        np.subtract.at(left_L, link_I[done_I], units_N[sentence_I[done_I]])
        sentence_I, link_I = sentence_I[~done_I], link_I[~done_I]
    return units_N
