"""Early stopping: whether a trial has fallen behind those that had ended before it was chosen.

    falls_behind("asha", grace=2, own={2: 310.0}, elders=[{2: 250.0, 4: 190.0}, {2: 400.0}])        # True

The rules are those of Li et al., arXiv 1810.05934 (ASHA), and Golovin et al., "Google Vizier", 2017 (median), with one
difference: there, a trial is compared with whatever is known at the moment, so that speed matters. Here the trials that it
is compared with, its elders, are fixed by its place in the search (``Study``), so that no clock affects what is released.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Literal

EarlyStopping = Literal["none", "asha", "median"]

REDUCTION = 4
"""ASHA: one in this many of the trials that reach a rung continues, and the next rung is at this many times the rounds."""
_FEWEST = 3
"""Fewest elders for a median."""


def falls_behind(
    rule: EarlyStopping, grace: int, own: Mapping[int, float], elders: Sequence[Mapping[int, float]]
) -> bool:
    """Whether to stop a trial after its last report.

    Args:
      rule: ``asha``: at its first report at or after round grace * 4^k it is not among the best quarter of all that
        got there. ``median``: the best it reported is worse than the median of its elders' mean costs until then.
      grace: rounds before which nothing is stopped.
      own: cost by round (lower is better) in the trial's reports so far; at least one.
      elders: the same for each trial that it is compared with.
    """
    now = max(own)
    if rule == "none" or now < grace:
        return False
    if rule == "median":
        means = [
            statistics.fmean(_worst_if_nan(value) for step, value in elder.items() if step <= now)
            for elder in elders
            if elder and min(elder) <= now <= max(elder)
        ]
        return len(means) >= _FEWEST and min(map(_worst_if_nan, own.values())) > statistics.median(means)
    rung = grace
    while rung * REDUCTION <= now:
        rung *= REDUCTION
    if any(rung <= step < now for step in own):
        return False
    there = [
        _worst_if_nan(elder[min(s for s in elder if s >= rung)]) for elder in elders if elder and max(elder) >= rung
    ]
    better = sum(value < _worst_if_nan(own[now]) for value in there)
    return better >= math.ceil((len(there) + 1) / REDUCTION)


def _worst_if_nan(cost: float) -> float:
    return math.inf if math.isnan(cost) else cost
