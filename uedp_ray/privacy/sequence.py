"""epsilon of runs one after another, each chosen from a set that was fixed beforehand by what those before it released.

    >>> from uedp_ray.privacy import sequence
    >>> from uedp_ray.privacy.mechanisms.poisson import RoundMechanism
    >>> pilot, one, other = (
    ...     RoundMechanism(noise_multiplier=noise, user_sampling_prob=0.05, max_holders=1, entity_clip=0.2)
    ...     for noise in (9.0, 2.0, 1.9)
    ... )
    >>> steps = [[[(pilot, 20)]]] * 4 + [[[(one, 20)], [(other, 15)]]]    # four pilots, then one of two
    >>> round(sequence.epsilon(steps, delta=1e-5, unit="user-entity", kind="entity"), 3)
    0.905

Each step counts as the largest of the privacy profiles in its set, which is the profile of some pair, and such pairs
compose as independent runs do. Theorem and proof: docs/accounting.md, "Pilots". Everything is rounded upwards. Inputs are
public. Units: beta = 1.
"""
# Shape legend: G = grid of losses.

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Collection, Sequence

import numpy as np
from dp_accounting.pld import pld_pmf

from uedp_ray.privacy import composition
from uedp_ray.privacy.best_of import Best
from uedp_ray.privacy.composition import MAX_ROUNDS, ROUNDING, Losses, common_gap, composed_losses, spanned
from uedp_ray.privacy.dominating import check_arguments, kinds
from uedp_ray.privacy.mechanisms.base import check_counts
from uedp_ray.privacy.mechanisms.poisson import RoundMechanism, counted

Parts = Sequence[tuple[RoundMechanism, int]]
_TAIL = 1e-5
"""Share of delta that each composition may cut."""


def epsilon(
    steps: Sequence[Sequence[Parts]], *, delta: float, unit: str, kind: str = "both", best: Best | None = None
) -> float:
    """epsilon at ``delta`` of all steps together; infinity where it cannot be computed.

    Args:
      steps: for each, the (mechanism, rounds) of every run that may be carried out there; one run makes a fixed step. Which
        one it is may depend on everything that earlier steps released.
      best: a step before them that releases the best of a random number of runs, and nothing else.

    Raises: InputError for values out of range.

    Edge cases:

        >>> from uedp_ray.privacy.mechanisms.poisson import RoundMechanism
        >>> from uedp_ray.privacy.sequence import epsilon
        >>> one = RoundMechanism(noise_multiplier=2.0, user_sampling_prob=0.05, max_holders=1, entity_clip=0.2)
        >>> def of(*steps, unit="user-entity"):
        ...     return round(epsilon(steps, delta=1e-5, unit=unit, kind="entity"), 3)
        >>> of(), of([]), of([[]])    # no step; one that releases nothing, whichever way it is put
        (0.0, 0.0, 0.0)
        >>> of([[(one, 20)]]), of([[(one, 20)], []])    # a choice between it and nothing is no dearer
        (0.87, 0.87)
        >>> of([[(one, 10)]], [[(one, 10)]])    # two steps of ten rounds are one of twenty
        0.87
        >>> nobody = RoundMechanism(noise_multiplier=2.0, user_sampling_prob=0.05)    # without a bound on holders
        >>> of([[(one, 1)], [(nobody, 1)]]), of([[(one, 1)], [(nobody, 1)]], unit="user")
        (inf, 0.18)
        >>> of([[(one, 200_001)]])    # more rounds than are composed
        inf
    """
    check_arguments(unit, kind, delta)
    sets = Counter(filter(None, (frozenset(filter(None, map(_key, candidates))) for candidates in steps)))
    if max((sum(count for _, count in run) for runs in sets for run in runs), default=0) > MAX_ROUNDS:
        return math.inf
    return max(_of_kind(sets, delta, unit, each, best) for each in kinds(kind)) if sets or best else 0.0


_Run = tuple[tuple[RoundMechanism, int], ...]


def _key(parts: Parts) -> _Run:
    check_counts(parts)
    return tuple(sorted(((m, count) for m, count in counted(parts).items() if count), key=repr))


def _of_kind(sets: Counter[frozenset[_Run]], delta: float, unit: str, kind: str, best: Best | None) -> float:
    steps = sets.total() + (best is not None)
    losses: dict[_Run, tuple[Losses, Losses]] = {}
    for run in frozenset[_Run]().union(*sets):
        found = _losses(run, unit, kind, delta / steps)
        if found is None:
            return math.inf
        losses[run] = found
    chosen = best.losses(unit, kind, delta / steps) if best else None
    if best and chosen is None:
        return math.inf

    def of_side(side: int) -> list[tuple[Collection[Losses], int]]:
        first: list[tuple[Collection[Losses], int]] = [([chosen[side]], 1)] if chosen else []
        return first + [([losses[run][side] for run in runs], count) for runs, count in sets.items()]

    return max(composed_epsilon(of_side(side), delta) for side in (0, 1))


@functools.lru_cache(maxsize=64)
def _losses(run: _Run, unit: str, kind: str, delta: float) -> tuple[Losses, Losses] | None:
    return composed_losses(run, unit, kind, delta)  # of the same pilots for every run that may follow them


def composed_epsilon(steps: Sequence[tuple[Collection[Losses], int]], delta: float) -> float:
    """epsilon in one direction; ``steps``: the losses of the runs that may be carried out there, and how many such steps."""
    every = [each for runs, _ in steps for each in runs]
    gap = common_gap(every)
    total, whole = sum(count for _, count in steps), None
    for runs, count in steps:
        one = largest(list(runs), gap)
        if not one._probs.any():
            return math.inf  # every loss is infinite
        one = one if count == 1 else composition._self_composed(one, count, _TAIL * delta)
        whole = one if whole is None else pld_pmf.compose_pmfs(whole, one, _TAIL * delta).to_dense_pmf()
    assert whole is not None
    lost = ROUNDING * total * math.sqrt(len(whole._probs))
    return composition._epsilon_at(whole, delta - lost) if lost <= delta / 2 else math.inf


def largest(runs: Sequence[Losses], gap: float) -> pld_pmf.DensePLDPmf:
    """Losses of a pair whose profile is the largest of the runs' profiles, everywhere: lines between the grid's points, on
    which each of them is convex."""
    first, last = spanned(runs, gap)
    on_grid = [
        Losses(
            gap, first, each.on_grid(gap, first, last), each.infinite, each.lost
        )  # as fine as the finest, or coarser
        for each in runs
    ]
    if len(on_grid) == 1:
        only = on_grid[0]
        return pld_pmf.DensePLDPmf(gap, first, only.mass_G, min(only.infinite + only.lost, 1.0), True)
    slack = 1.0 + len(on_grid[0].mass_G) * 2.0**-50 / gap  # of the differences that become masses
    deltas_G = np.clip(np.maximum.reduce([each.profile_G() for each in on_grid]) * slack, 0.0, 1.0)
    deltas_G = np.maximum.accumulate(deltas_G[::-1])[::-1]
    pmf = pld_pmf.create_pmf_pessimistic_connect_dots_fixed_gap(gap, first, last, deltas_G)
    return pmf.to_dense_pmf()
