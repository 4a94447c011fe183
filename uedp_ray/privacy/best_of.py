"""epsilon of the best of a random number of runs, from the profiles of one run: tighter than from its Renyi divergences.

    >>> from uedp_ray.privacy import accounting, best_of
    >>> from uedp_ray.privacy.mechanisms.poisson import RoundMechanism
    >>> one = RoundMechanism(
    ...     noise_multiplier=2.0, user_sampling_prob=0.05, entity_sampling_prob=0.5, max_holders=1, entity_clip=0.2
    ... )
    >>> round(accounting.epsilon(one, rounds=20, delta=1e-5, kind="entity"), 3)    # of one run
    0.634
    >>> eight = {"mean": 8.0, "law": "geometric", "halting": 1 / 8}
    >>> round(best_of.epsilon([[(one, 20)]], **eight, delta=1e-5, unit="user-entity", kind="entity"), 3)    # of the best
    0.911

A run is drawn from a pool, each with the same probability, and carried out; J such runs are made, J of a law that does not
depend on the data, and the best is released. Theorem and proof: docs/accounting.md, "Repeat and select". Everything is
rounded upwards. Inputs are public. Units: beta = 1.
"""
# Shape legend: C = cells of t, G = grid of losses.

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import optimize

from uedp_ray.errors import InputError
from uedp_ray.privacy.composition import MAX_ROUNDS, Losses, common_gap, composed_losses, spanned
from uedp_ray.privacy.dominating import check_arguments
from uedp_ray.privacy.mechanisms.poisson import RoundMechanism, counted
from uedp_ray.units import KINDS

Parts = Sequence[tuple[RoundMechanism, int]]
_CELLS = 1500
_SLACK = 1e-12
"""Relative error of floating-point arithmetic in the lines below, and more."""
_LEAST_SHARE = 1e-7
"""The end of the first cell: probabilities below it are bounded together."""


def derivative(law: str, mean: float, halting: float) -> Callable[[np.ndarray], np.ndarray]:
    """t -> phi'(1 - t), with phi the probability generating function of the number of runs; decreasing, ``mean`` at 0."""
    if law == "poisson":
        return lambda t: mean * np.exp(-mean * t)
    power = {"logarithmic": 1.0, "geometric": 2.0}[law]
    return lambda t: mean * (halting / (halting + (1.0 - halting) * t)) ** power


@dataclass(frozen=True)
class _Lines:
    """max(0, max_i (slope_i - fall_i y)), convex and decreasing in y >= 0."""

    slope_C: np.ndarray
    fall_C: np.ndarray
    crossing_C: np.ndarray
    """Where line i begins to be below line i + 1; ascending."""

    def __call__(self, y_G: np.ndarray) -> np.ndarray:
        place = np.searchsorted(self.crossing_C, y_G)
        return np.maximum(self.slope_C[place] - self.fall_C[place] * y_G, 0.0)


def _upper(slope: np.ndarray, fall: np.ndarray) -> _Lines:
    """The lines that are the largest somewhere at y >= 0: those of largest slope first, then ever flatter ones."""
    order = np.lexsort((fall, -slope))
    kept: list[tuple[float, float]] = []
    for value, drop in zip(slope[order].tolist(), fall[order].tolist(), strict=True):
        if kept and drop >= kept[-1][1]:
            continue  # below the one before everywhere
        while len(kept) > 1 and _crossing(kept[-2], kept[-1]) >= _crossing(kept[-1], (value, drop)):
            kept.pop()
        kept.append((value, drop))
    slopes, falls = (np.array(column) for column in zip(*kept, strict=True))
    crossings = np.array([_crossing(one, other) for one, other in itertools.pairwise(kept)])
    return _Lines(slopes, falls, crossings)


def _crossing(one: tuple[float, float], other: tuple[float, float]) -> float:
    return (one[0] - other[0]) / (one[1] - other[1])


def epsilon(
    candidates: Sequence[Parts], *, mean: float, law: str, halting: float, delta: float, unit: str, kind: str
) -> float:
    """epsilon at ``delta`` of the best of a random number of runs; infinity where it cannot be computed.

    Args:
      candidates: (mechanism, rounds) of every run of the pool. ``mean``, ``law``: of the number of runs. ``halting``: gamma
        of the law, the probability that a geometric one stops after each run.

    Raises: InputError for values out of range; ``kind`` names one.

    Edge cases:

        >>> from uedp_ray.privacy.best_of import epsilon
        >>> from uedp_ray.privacy.mechanisms.poisson import RoundMechanism
        >>> one = RoundMechanism(noise_multiplier=2.0, user_sampling_prob=0.05, max_holders=1, entity_clip=0.2)
        >>> def of(*pool, mean=8.0, delta=1e-5, unit="user-entity"):
        ...     law = {"law": "geometric", "mean": mean, "halting": 1 / mean}
        ...     return round(epsilon(pool, **law, delta=delta, unit=unit, kind="entity"), 3)
        >>> of([(one, 20)]), of([(one, 20)], mean=1.0)    # a mean of 1: always one run, and no choice
        (1.228, 0.87)
        >>> of([(one, 20)], []), of([], [])    # half the pool releases nothing; all of it
        (1.118, 0.0)
        >>> of([(one, 20)], delta=1e-12)    # so small that rounding takes it
        inf
        >>> nobody = RoundMechanism(noise_multiplier=2.0, user_sampling_prob=0.05)    # without a bound on holders
        >>> of([(nobody, 20)]), of([(nobody, 20)], unit="user")
        (inf, 0.744)
        >>> of([(one, 200_001)])    # more rounds than are composed
        inf
    """
    check_arguments(unit, kind, delta)
    if kind not in KINDS:
        raise InputError("kind", kind, f"is priced one by one: choose one of {', '.join(KINDS)}")
    if max((sum(count for _, count in parts) for parts in candidates), default=0) > MAX_ROUNDS:
        return math.inf
    pool = Counter(tuple(sorted(counted(each).items(), key=repr)) for each in candidates)
    if not any(pool):
        return 0.0
    found = []
    for parts, count in pool.items():
        losses = composed_losses(parts, unit, kind, delta / mean) if parts else _NOTHING
        if losses is None:
            return math.inf
        found.append((losses, count / len(candidates)))
    add, remove = (_mixed([(losses[side], share) for losses, share in found]) for side in (0, 1))
    weight = derivative(law, mean, halting)
    return max(_one_direction(one, other, weight, mean, delta) for one, other in ((add, remove), (remove, add)))


_NOTHING = (Losses(1.0, 0, np.ones(1), 0.0, 0.0),) * 2
"""Losses of a run without rounds."""


def _mixed(losses: Sequence[tuple[Losses, float]]) -> Losses:
    """Losses of a run that is drawn, each with its probability: which one it was is the same in both worlds."""
    every = [each for each, _ in losses]
    gap = common_gap(every)
    first, last = spanned(every, gap)
    mass_G = np.sum([share * each.on_grid(gap, first, last) for each, share in losses], axis=0)
    infinite, lost = (sum(share * getattr(each, name) for each, share in losses) for name in ("infinite", "lost"))
    return Losses(gap, first, mass_G, infinite, lost)


def _one_direction(
    losses: Losses, reverse: Losses, weight: Callable[[np.ndarray], np.ndarray], mean: float, delta: float
) -> float:
    """Theorem, part (b): sum over losses l of P(l) max over cells of (w_i - b_i exp(eps - l))+, b_i = w_i / rho_i."""
    room = (delta - mean * (losses.infinite + losses.lost)) * (1.0 - _SLACK) - mean * 1e-15
    if room <= 0.0:
        return math.inf
    t_C = np.append(0.0, np.geomspace(_LEAST_SHARE / mean, 1.0, _CELLS))
    falls_C = weight(_other_share(t_C[1:], reverse)) * (1.0 - _SLACK)
    lines = _upper(weight(t_C[:-1]) * (1.0 + _SLACK), falls_C)
    kept = losses.mass_G > 0.0
    loss_G, mass_G = losses.loss_G[kept], losses.mass_G[kept]

    def above(eps: float) -> float:
        with np.errstate(over="ignore"):
            return float(mass_G @ lines(np.exp(np.minimum(eps - loss_G, 700.0)))) - room

    low, high = 0.0, max(float(loss_G[-1]), 1.0)
    if above(low) <= 0.0:
        return 0.0
    while above(high) > 0.0:
        high *= 2.0
        if high > 1e6:
            return math.inf
    return float(optimize.brentq(above, low, high, xtol=1e-9)) + 2e-9


def _other_share(t_C: np.ndarray, reverse: Losses) -> np.ndarray:
    """t'(t): the largest probability, in the other world, of an event of probability t in this one; from the profile of the
    OTHER direction: an event's Q-probability exceeds e^x times its P-probability by at most that profile at x."""
    loss_G = reverse.loss_G
    profile_G = reverse.profile_G()
    chosen = np.unique(np.linspace(0, len(loss_G) - 1, 4096).astype(int))
    best_C = np.ones_like(t_C)
    for chunk in np.array_split(chosen, -(-len(chosen) // 256)):
        with np.errstate(over="ignore"):
            terms = np.exp(np.minimum(loss_G[chunk], 700.0))[:, None] * t_C + profile_G[chunk][:, None]
        best_C = np.minimum(best_C, terms.min(0))
    return best_C
