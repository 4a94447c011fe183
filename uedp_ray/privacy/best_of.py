"""epsilon of the best of a random number of runs, from the profiles of one run: tighter than from its Renyi divergences.

    >>> from uedp_ray.privacy import accounting, best_of
    >>> from uedp_ray.privacy.mechanisms.poisson import RoundMechanism
    >>> one = RoundMechanism(
    ...     noise_multiplier=2.0, user_sampling_prob=0.05, entity_sampling_prob=0.5, max_holders=1, entity_clip=0.2
    ... )
    >>> round(accounting.epsilon(one, rounds=20, delta=1e-5, kind="entity"), 3)    # of one run
    0.634
    >>> eight = {"mean": 8.0, "law": "geometric"}
    >>> round(best_of.epsilon([[(one, 20)]], **eight, delta=1e-5, unit="user-entity", kind="entity"), 3)    # of the best
    0.911

A run is drawn from a pool, each with the same probability, and carried out; J such runs are made, J of a law that does not
depend on the data, and the best is released. Theorem and proof: docs/accounting.md, "Repeat and select". Everything is
rounded upwards. Inputs are public. Units: beta = 1.
"""
# Shape legend: C = cells of t, G = grid of losses.

from __future__ import annotations

import functools
import itertools
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from dp_accounting.pld import pld_pmf
from scipy import optimize

from uedp_ray.errors import InputError
from uedp_ray.privacy import laws
from uedp_ray.privacy.composition import MAX_ROUNDS, Losses, common_gap, composed_losses, spanned
from uedp_ray.privacy.dominating import check_arguments
from uedp_ray.privacy.mechanisms.poisson import RoundMechanism, counted
from uedp_ray.units import KINDS

Parts = Sequence[tuple[RoundMechanism, int]]
_CELLS = 1500
_SLACK = 1e-12
"""Relative error of floating-point arithmetic in the lines below, and more."""
_NEGLIGIBLE = 1e-13
"""Weights below it, in the largest: what runs of such ranks add to any profile is at most that."""
_LEAST_SHARE = 1e-7
"""The end of the first cell: probabilities below it are bounded together."""


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


def epsilon(candidates: Sequence[Parts], *, mean: float, law: str, delta: float, unit: str, kind: str) -> float:
    """epsilon at ``delta`` of the best of a random number of runs; infinity where it cannot be computed.

    Args:
      candidates: (mechanism, rounds) of every run of the pool. ``mean``, ``law``: of the number of runs.

    Raises: InputError for values out of range; ``kind`` names one.

    Edge cases:

        >>> from uedp_ray.privacy.best_of import epsilon
        >>> from uedp_ray.privacy.mechanisms.poisson import RoundMechanism
        >>> one = RoundMechanism(noise_multiplier=2.0, user_sampling_prob=0.05, max_holders=1, entity_clip=0.2)
        >>> def of(*pool, mean=8.0, delta=1e-5, unit="user-entity"):
        ...     return round(epsilon(pool, law="geometric", mean=mean, delta=delta, unit=unit, kind="entity"), 3)
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
    if not any(counted(each) for each in candidates):
        return 0.0
    pair = _of_a_draw(_pool(candidates), unit, kind, delta / mean)
    if pair is None:
        return math.inf
    return max(_one_direction(one, other, mean, law, delta) for one, other in (pair, pair[::-1]))


@dataclass(frozen=True)
class Best:
    """The best of a random number of runs, each drawn from a pool; see ``epsilon``."""

    candidates: Sequence[Parts]
    mean: float
    law: str

    def losses(self, unit: str, kind: str, delta: float) -> tuple[Losses, Losses] | None:
        """Losses in both directions, to compose with those of other releases; None where there is no bound.

        Their profile is at least that of the best run, at every epsilon. Their grid suits epsilons at about ``delta``.
        """
        if not any(counted(each) for each in self.candidates):
            return _NOTHING
        pair = _of_a_draw(_pool(self.candidates), unit, kind, delta / self.mean)
        return None if pair is None else self.of_pair(*pair)

    def of_pair(self, *pair: Losses) -> tuple[Losses, Losses] | None:
        """The same from the losses of one run that is drawn, in both directions."""
        gap = max(_coarse_gap(each) for each in pair)
        while True:
            one, other = (_coarser(each, gap) for each in pair)
            cells = [_Cells.of(reverse, self) for reverse in (other, one)]
            reach = max(abs(loss) for each in (one, other) for loss in (each.loss_G[0], each.loss_G[-1]))
            reach += max(each.log_ratio for each in cells)
            if not reach <= _MOST_REACH:
                return None
            last = math.ceil(reach / gap) + 1
            if last <= _MOST_MULTIPLES:
                break
            gap = 2.0 ** math.ceil(math.log2(2.0 * reach / _MOST_MULTIPLES))  # losses are rounded up to it
        bound_G, reverse_G = (each.profile_G(losses, last) for each, losses in zip(cells, (one, other), strict=True))
        return _pair_of(bound_G, reverse_G, gap, last), _pair_of(reverse_G, bound_G, gap, last)


def _pair_of(bound_G: np.ndarray, reverse_G: np.ndarray, gap: float, last: int) -> Losses:
    """Losses of a pair whose profile is at least that of the best run, from bounds of it at multiples of ``gap`` from
    -``last`` to ``last``, in its own direction and in the other: a profile is convex in exp(eps), and at eps it is 1 -
    exp(eps) + exp(eps) times that of the other direction at -eps.
    """
    ratio_G = np.exp(np.arange(-last, last + 1) * gap)
    dual_G = 1.0 - ratio_G + ratio_G * reverse_G[::-1] + 1e-13 * (1.0 + ratio_G)
    least_G = _hull(np.append(0.0, ratio_G), np.append(1.0, np.clip(np.minimum(bound_G, dual_G), 0.0, 1.0)))[1:]
    least_G = np.maximum.accumulate(np.clip(least_G * (1.0 + _SLACK) + 1e-15, 0.0, 1.0)[::-1])[::-1]
    dense = pld_pmf.create_pmf_pessimistic_connect_dots_fixed_gap(gap, -last, last, least_G).to_dense_pmf()
    return Losses(gap, dense._lower_loss, np.maximum(dense._probs, 0.0), min(dense._infinity_mass, 1.0), 0.0)


def _hull(x_G: np.ndarray, y_G: np.ndarray) -> np.ndarray:
    """The largest convex function that is at most y at each x, at the same x; ``x_G`` ascends."""
    kept: list[tuple[float, float]] = []
    for x, y in zip(x_G.tolist(), y_G.tolist(), strict=True):
        while len(kept) > 1 and (y - kept[-1][1]) / (x - kept[-1][0]) <= _slope(kept[-2], kept[-1]):
            kept.pop()
        kept.append((x, y))
    corner_x, corner_y = (np.array(column) for column in zip(*kept, strict=True))
    return np.asarray(np.interp(x_G, corner_x, corner_y))


def _slope(one: tuple[float, float], other: tuple[float, float]) -> float:
    return (other[1] - one[1]) / (other[0] - one[0])


_MOST_REACH = 600.0
"""A loss beyond which exp of it, and of its opposite, come near the ends of floating-point numbers."""
_MOST_MULTIPLES = 1 << 16
"""Multiples of the gap, on either side of 0, at which the best run's profile is computed at most. Tiny losses, of users that
are hardly ever drawn, need far more: the number of runs may weigh them by far more than they are."""
_MOST_POINTS = 1 << 13
"""Losses of one run, which are multiplied with as many: those of a finer grid are rounded up."""


def _coarse_gap(losses: Losses) -> float:
    width = len(losses.mass_G) * losses.gap
    return max(losses.gap, 2.0 ** math.ceil(math.log2(width / _MOST_POINTS)))


def _coarser(losses: Losses, gap: float) -> Losses:
    first, last = spanned([losses], gap)
    return losses._replace(gap=gap, first=first, mass_G=losses.on_grid(gap, first, last))


@dataclass(frozen=True)
class _Cells:
    """What the number of runs does to losses in one direction, by cells of t."""

    lines: _Lines
    log_ratio: float
    """At least log sup_t w(t) / b(t) where w is not negligible."""
    best: Best

    @classmethod
    def of(cls, reverse: Losses, best: Best) -> _Cells:
        slope_C, fall_C = _cells(reverse, best.mean, best.law)
        counted_C = slope_C > _NEGLIGIBLE * best.mean
        with np.errstate(divide="ignore", over="ignore"):  # to infinity, and so is epsilon
            ratio = float(np.max(slope_C[counted_C] / fall_C[counted_C]))
        return cls(_upper(slope_C, fall_C), math.log(ratio) + _SLACK, best)

    def profile_G(self, losses: Losses, last: int) -> np.ndarray:
        """A bound of the best run's profile at multiples of the gap from -``last`` to ``last``: parts (b) and (c)."""
        mean, eps_G = self.best.mean, np.arange(-last, last + 1) * losses.gap
        cut = mean * (losses.infinite + losses.lost) * (1.0 + _SLACK) + mean * 1e-15
        size = len(losses.mass_G)
        apart_D = np.arange(-last - losses.first - size + 1, last - losses.first + 1) * losses.gap
        with np.errstate(over="ignore"):
            above_D = self.lines(np.exp(np.minimum(apart_D, 700.0)))
        whole_G = np.convolve(above_D, losses.mass_G, "valid") * (1.0 + 1e-9) + cut
        none = math.exp(-mean) if self.best.law == "poisson" else 0.0  # no run, in both worlds alike
        return np.minimum(whole_G, self._sorted_G(losses, last) + cut) + none * np.maximum(-np.expm1(eps_G), 0.0)

    def _sorted_G(self, losses: Losses, last: int) -> np.ndarray:
        """Part (c): the largest losses have the most weight, and every loss is as much larger as any order can make it."""
        above_G = np.cumsum(losses.mass_G[::-1])[::-1] + losses.infinite
        upper_G = np.append(np.clip(above_G, 0.0, 1.0), min(losses.infinite, 1.0))
        share_G = laws.none_above(upper_G, mean=self.best.mean, law=self.best.law)
        weighted = losses._replace(mass_G=np.maximum(np.diff(share_G), 0.0), infinite=0.0, lost=0.0)
        moved = math.ceil(self.log_ratio / losses.gap)
        wanted = np.arange(-last - moved, last - moved + 1) - losses.first
        below, found_G = float(weighted.mass_G.sum()), np.append(weighted.profile_G(), 0.0)
        at_G = found_G[np.clip(wanted, 0, len(losses.mass_G))]
        return np.where(wanted < 0, below, at_G) + (1e-11 + _NEGLIGIBLE) * self.best.mean


_Run = tuple[tuple[RoundMechanism, int], ...]


def _pool(candidates: Sequence[Parts]) -> tuple[_Run, ...]:
    return tuple(tuple(sorted(counted(each).items(), key=repr)) for each in candidates)


@functools.lru_cache(maxsize=16)
def _of_a_draw(pool: tuple[_Run, ...], unit: str, kind: str, delta: float) -> tuple[Losses, Losses] | None:
    """Losses of a run that is drawn from the pool, in both directions; None where there is no bound."""
    if max((sum(count for _, count in parts) for parts in pool), default=0) > MAX_ROUNDS:
        return None
    found = []
    for parts, count in Counter(pool).items():
        losses = composed_losses(parts, unit, kind, delta) if parts else _NOTHING
        if losses is None:
            return None
        found.append((losses, count / len(pool)))
    add, remove = (_mixed([(losses[side], share) for losses, share in found]) for side in (0, 1))
    return add, remove


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


def _one_direction(losses: Losses, reverse: Losses, mean: float, law: str, delta: float) -> float:
    """Theorem, part (b): sum over losses l of P(l) max over cells of (w_i - b_i exp(eps - l))+, b_i = w_i / rho_i."""
    room = (delta - mean * (losses.infinite + losses.lost)) * (1.0 - _SLACK) - mean * 1e-15
    if room <= 0.0:
        return math.inf
    lines = _upper(*_cells(reverse, mean, law))
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


def _cells(reverse: Losses, mean: float, law: str) -> tuple[np.ndarray, np.ndarray]:
    """Cells of t, whose lines w - b y bound what is above: w at the start of each, b = w / rho at its end."""
    t_C = np.append(0.0, np.geomspace(_LEAST_SHARE / mean, 1.0, _CELLS))
    start_C, end_C = (laws.weight(t, mean=mean, law=law) for t in (t_C[:-1], _other_share(t_C[1:], reverse)))
    return start_C * (1.0 + _SLACK), end_C * (1.0 - _SLACK)


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
