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
    rate = np.maximum(_RATE // np.maximum(np.bincount(sentence_I, minlength=len(open_N)), 1), 1)
    kept = open_N[sentence_I]
    sentence_I, link_I = sentence_I[kept], link_I[kept]
    left = np.minimum(capacities, np.bincount(link_I, minlength=num_links) * UNIT)  # no more is needed
    number, last = np.arange(len(open_N)), 2 * len(sentence_I) + 1
    while len(sentence_I):
        if 2 * len(sentence_I) < last:  # most steps stop few: what they take is to follow from what still rises
            last = len(sentence_I)
            present, sentence_I = _renumbered(sentence_I, len(number))
            number, rate = number[present], rate[present]
            present, link_I = _renumbered(link_I, len(left))
            left = left[present]
            whole_level = -(-UNIT * _RATE // rate)  # at which a sentence weighs 1
        rates = np.zeros(len(left), np.int64)
        np.add.at(rates, link_I, rate[sentence_I])
        link_level = left * _RATE // np.maximum(rates, 1)
        level = whole_level.copy()
        np.minimum.at(level, sentence_I, link_level[link_I])
        # A link fills first among all that its sentences meet: they stop there, as levels only rise when others stop.
        least = np.full(len(left), np.iinfo(np.int64).max)
        np.minimum.at(least, link_I, level[sentence_I])
        stops = np.zeros(len(number), bool)
        stops[sentence_I[(least == link_level)[link_I]]] = True
        whole = level == whole_level  # no link stops it before it weighs 1
        done_I = (stops | whole)[sentence_I]
        stopped = stops & ~whole
        units_N[number[stopped]] = level[stopped] * rate[stopped] // _RATE
        np.subtract.at(left, link_I[done_I], units_N[number[sentence_I[done_I]]])
        sentence_I, link_I = sentence_I[~done_I], link_I[~done_I]
    return units_N


def _renumbered(numbers: NDArray[np.int64], size: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Those of 0..``size`` - 1 that occur, ascending; and the numbers by their place among these."""
    place = np.zeros(size, np.int64)
    place[numbers] = 1
    present = np.flatnonzero(place)
    place[present] = np.arange(len(present))
    return present, place[numbers]
