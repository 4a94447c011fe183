"""epsilon of composed rounds, by numerical composition of their privacy profiles on a grid of losses.

Used by ``accounting``, which chooses between this and ``renyi``. Every number is an upper bound: profiles are connected
by lines from above, what is cut counts as lost, and what rounding in the convolution may take is taken off delta. Units:
beta = 1. All inputs are public.

    >>> from uedp_ray.privacy.composition import pld
    >>> from uedp_ray.privacy.mechanisms.poisson import RoundMechanism
    >>> one = RoundMechanism(
    ...     noise_multiplier=2.0, user_sampling_prob=0.05, entity_sampling_prob=0.5, max_holders=1, entity_clip=0.2
    ... )
    >>> for gap in (0.1, 0.01, 0.001):    # a finer grid comes closer, from above
    ...     print(gap, round(pld(one, gap=gap).self_compose(50).get_epsilon_for_delta(1e-5), 3))
    0.1 1.364
    0.01 0.949
    0.001 0.943

References: Doroshenko et al., "Connect the Dots", arXiv 2207.04380 (discretisation); dp_accounting (convolution).
"""
# Shape legend: G = grid of losses.

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from dp_accounting.pld import pld_pmf, privacy_loss_distribution
from scipy import fft

from uedp_ray.privacy import dominating, profiles
from uedp_ray.privacy.mechanisms.poisson import RoundMechanism
from uedp_ray.privacy.profiles import Profile

ROUNDING = 2.0**-52
"""Taken off delta for each round, times the square root of the number of losses: five times the largest error that rounding
in the convolution was seen to make, in searches for it with 2 to 1024 rounds on grids of up to four million losses."""
TINY = 2.0**-40
"""A delta for each round, below which rounding may take much of it."""
_SETTLED = 2e-3  # halving the grid gap must change epsilon by less than this share
_NEGLIGIBLE = 1e-6  # or by less than this: where epsilon falls to 0, no share is ever small
_MAX_WORK = 4e6  # grid points times labels
MAX_ROUNDS = 200_000  # composed in a second or two, and longer with more
_LEAST_REACH = 2.0**-24  # the least loss that is looked for
_MOST_LOSSES = 1 << 18  # on a grid that runs share: losses of one that tells far less than others are rounded up to it
_MAX_LOSS = 1e5  # of one round; beyond it epsilon is given as infinite


def pld(
    mechanism: RoundMechanism,
    *,
    unit: str = "user-entity",
    kind: str = "entity",
    gap: float,
) -> privacy_loss_distribution.PrivacyLossDistribution:
    """One round as dp_accounting's object, on a grid of the given ``gap``."""
    profile = dominating.one_round(mechanism, unit, kind, tail=1e-16)
    reach = _reach(profile, 1e-14)
    add, remove = (_pmf(_on_grid(profile, gap, side, reach, None), gap, side, 1e-14, reach) for side in (0, 1))
    return privacy_loss_distribution.PrivacyLossDistribution(remove, add)


def epsilon(
    counts: tuple[tuple[RoundMechanism, int], ...],
    gaussians: tuple[tuple[float, float], ...],
    delta: float,
    unit: str,
    kind: str,
) -> float:
    """epsilon of rounds, whatever weights holders have in each, and of plain Gaussian releases (sensitivity, noise std)."""
    total = sum(count for _, count in counts) + len(gaussians)
    # Mass of cut labels: well below what of_profiles allows a round to lose. A power of 2 lets counts share profiles.
    tail = 2.0 ** math.floor(math.log2(1e-6 * delta / total))
    parts = [(profiles.gaussian(sensitivity, std), 1) for sensitivity, std in gaussians if sensitivity]
    return of_profiles(parts + [(_one_round(m, unit, kind, tail), c) for m, c in counts], delta)


@functools.lru_cache(maxsize=64)
def _one_round(mechanism: RoundMechanism, unit: str, kind: str, tail: float) -> Profile:
    return dominating.one_round(mechanism, unit, kind, tail=tail)


def of_profiles(parts: list[tuple[Profile, int]], delta: float) -> float:
    """epsilon of independent parts, each (profile, count), in the larger direction."""
    total = max(1, sum(count for _, count in parts))
    tail = 1e-5 * delta / total
    reach = [_reach(profile, tail) for profile, _ in parts]
    widest = max((max(pair) for pair in reach), default=0.0)
    if widest == 0.0:
        return 0.0
    if widest > _MAX_LOSS:
        return math.inf
    value = 0.0
    for side in (0, 1):  # the larger one first: then the other soon falls below it
        value = max(value, _one_direction(parts, reach, side, delta, ROUNDING * total, tail, value))
    return value


class Losses(NamedTuple):
    """Losses of a pair that dominates a release in one direction."""

    gap: float
    """A power of 2; losses are multiples of it."""
    first: int
    """The least loss, over ``gap``."""
    mass_G: np.ndarray
    """Probabilities of ``first``, ``first`` + 1, … times ``gap``, in the world where losses tend to be large."""
    infinite: float
    """Mass of infinite loss."""
    lost: float
    """What rounding may have taken of any profile."""

    @property
    def loss_G(self) -> np.ndarray:
        return (self.first + np.arange(len(self.mass_G))) * self.gap

    def profile_G(self) -> np.ndarray:
        """The privacy profile at ``loss_G``, rounded upwards."""
        loss_G, mass_G = self.loss_G, self.mass_G
        above_G = np.cumsum(mass_G[::-1])[::-1] - mass_G  # strictly larger losses
        with np.errstate(divide="ignore"):
            log_other_G = np.logaddexp.accumulate((np.log(mass_G) - loss_G)[::-1])[::-1]
            log_other_G = np.append(log_other_G[1:], -np.inf)
        with np.errstate(over="ignore", invalid="ignore"):
            found_G = above_G - np.exp(np.minimum(loss_G + log_other_G, 700.0))
        return np.clip(found_G, 0.0, 1.0) + self.infinite + self.lost + 1e-15

    def on_grid(self, gap: float, first: int, last: int) -> np.ndarray:
        """``mass_G`` on a grid from ``first`` to ``last``, in units of ``gap``: upwards where its own grid is finer."""
        mass_G = np.zeros(last - first + 1)
        np.add.at(mass_G, self.places(gap) - first, self.mass_G)
        return mass_G

    def places(self, gap: float) -> np.ndarray:
        """Where its losses lie on another grid, in units of ``gap``: upwards."""
        return np.ceil(self.loss_G / gap).astype(int)


def common_gap(losses: Sequence[Losses]) -> float:
    """The gap of a grid for all of them: the finest, or one to which they are rounded up where that has too many points."""
    reach = max(max(abs(each.first), abs(each.first + len(each.mass_G))) * each.gap for each in losses)
    return max(min(each.gap for each in losses), 2.0 ** math.ceil(math.log2(2 * reach / _MOST_LOSSES)))


def spanned(losses: Sequence[Losses], gap: float) -> tuple[int, int]:
    """The least and the largest of their losses on such a grid, in units of ``gap``."""
    places = [each.places(gap) for each in losses]
    return min(int(place[0]) for place in places), max(int(place[-1]) for place in places)


def composed_losses(
    mechanism_counts: Sequence[tuple[RoundMechanism, int]], unit: str, kind: str, delta: float
) -> tuple[Losses, Losses] | None:
    """Losses of a run in both directions, on grids fine enough for epsilon at ``delta``; None where there is no bound."""
    if any(dominating.entity_part(m, unit, kind)[0] == dominating.UNBOUNDED for m, _ in mechanism_counts):
        return None
    total = max(1, sum(count for _, count in mechanism_counts))
    cut = 2.0 ** math.floor(math.log2(1e-6 * delta / total))
    parts = [(_one_round(mechanism, unit, kind, cut), count) for mechanism, count in mechanism_counts if count]
    tail = 1e-5 * delta / total
    reach = [_reach(profile, tail) for profile, _ in parts]
    if max(map(max, reach)) > _MAX_LOSS:
        return None
    reach = [(max(add, _LEAST_REACH), max(remove, _LEAST_REACH)) for add, remove in reach]  # so that there is a grid
    found = []
    for side in (0, 1):
        value, best = math.inf, None
        for dense, lost, work in _refined(parts, reach, side, ROUNDING * total, tail):
            if lost > delta / 2:
                break
            mass = np.maximum(dense._probs, 0.0)
            best = Losses(dense._discretization, dense._lower_loss, mass, dense._infinity_mass, lost)
            before, value = value, _epsilon_at(dense, delta - lost)
            if _is_settled(before, value, work):
                break
        if best is None or math.isinf(value):
            return None
        found.append(best)
    return found[0], found[1]


def _refined(
    parts: list[tuple[Profile, int]], reach: list[tuple[float, float]], side: int, rounding: float, tail: float
) -> Iterator[tuple[pld_pmf.DensePLDPmf, float, float]]:
    """Yields the composed losses on ever finer grids, what rounding may take of them, and the work of the next grid."""
    gap = _first_gap(reach)
    delta_PG: list[np.ndarray | None] = [None] * len(parts)
    while True:
        pmf = None
        for part, ((profile, count), pair) in enumerate(zip(parts, reach, strict=True)):
            deltas = delta_PG[part] = _on_grid(profile, gap, side, pair, delta_PG[part])
            one = _self_composed(_pmf(deltas, gap, side, tail, pair).to_dense_pmf(), count, tail)
            pmf = one if pmf is None else pld_pmf.compose_pmfs(pmf, one, tail)
        assert pmf is not None
        dense = pmf.to_dense_pmf()
        work = sum(2 * max(pair) / gap * profile.size for pair, (profile, _) in zip(reach, parts, strict=True))
        yield dense, rounding * math.sqrt(len(dense._probs)), work
        gap /= 2


_ORDERS = 20
"""Chernoff bounds are tried at as many orders in each direction, in steps of one over the number of losses."""


def _self_composed(dense: pld_pmf.DensePLDPmf, count: int, tail: float) -> pld_pmf.DensePLDPmf:
    """``dense.self_compose(count, tail)``, which takes most of its time for the bounds of the range that it keeps: all but
    ``tail`` of the mass, by Chernoff."""
    mass_G = np.asarray(dense._probs)
    low, high, step_G = 0, (len(mass_G) - 1) * count, np.exp(np.arange(len(mass_G)) / len(mass_G))
    for toward, factor_G in ((1, step_G), (-1, 1.0 / step_G)):
        power_G = mass_G
        for order in range(1, _ORDERS + 1):
            power_G = power_G * factor_G
            if (moment := float(power_G.sum())) <= 0.0:
                continue
            bound = toward * len(mass_G) * (count * math.log(moment) + math.log(2.0 / tail)) / order
            low, high = (low, min(high, math.ceil(bound))) if toward > 0 else (max(low, math.floor(bound)), high)
    size = fft.next_fast_len(max(high - low + 1, len(mass_G)))
    whole_G = np.real(fft.ifft(fft.fft(mass_G, size) ** count))  # it wraps around modulo ``size``
    infinite = tail - math.expm1(count * math.log1p(-dense._infinity_mass))
    kept_G = np.roll(whole_G, -low)[: high - low + 1]
    return pld_pmf.DensePLDPmf(dense._discretization, dense._lower_loss * count + low, kept_G, infinite, True)


def _is_settled(before: float, value: float, work: float) -> bool:
    """Whether a finer grid would change epsilon little, or cost too much."""
    return math.isinf(value) or before - value <= max(_SETTLED * value, _NEGLIGIBLE) or work > _MAX_WORK


def _first_gap(reach: list[tuple[float, float]]) -> float:
    # Powers of 2: grids are nested, so epsilon falls with the gap. At most 64: exp(gap) must be finite.
    return min(64.0, 2.0 ** math.floor(math.log2(max(map(max, reach)) / 48)))


def _one_direction(
    parts: list[tuple[Profile, int]],
    reach: list[tuple[float, float]],
    side: int,
    delta: float,
    rounding: float,
    tail: float,
    enough: float,
) -> float:
    """Halves the gap of the grid until that changes epsilon little, or until epsilon is at most ``enough``: a coarse grid
    overstates, never understates.

    ``rounding``: taken off delta, times the square root of the number of losses. A grid that would lose more than half of
    delta this way is not used.
    """
    value = math.inf
    for dense, lost, work in _refined(parts, reach, side, rounding, tail):
        before, value = value, min(value, _epsilon_at(dense, delta - lost)) if lost <= delta / 2 else value
        if value <= enough or _is_settled(before, value, work):
            return value
    raise AssertionError  # never ends by itself


def _epsilon_at(dense: pld_pmf.DensePLDPmf, delta: float) -> float:
    """Smallest eps >= 0 with P(infinite loss) + sum over losses l > eps of p_l (1 - exp(eps - l)) at most ``delta``.

    The library's own uses exp(-l), which from a loss of 700 on is denormal, and then sometimes returns infinity.
    """
    if dense._infinity_mass > delta:
        return math.inf
    mass_G = np.flip(dense._probs)  # from the largest loss down
    loss_G = (dense._lower_loss + len(mass_G) - 1 - np.arange(len(mass_G))) * dense._discretization
    excess_G = dense._infinity_mass + np.cumsum(mass_G) - delta
    with np.errstate(divide="ignore", invalid="ignore"):  # a mass that rounding made negative is left out: upwards
        log_other_G = np.logaddexp.accumulate(np.log(np.maximum(mass_G, 0.0)) - loss_G)
        eps_G = np.where(excess_G > 0.0, np.log(excess_G) - log_other_G, -np.inf)
    below_G = np.append(loss_G[1:], -np.inf)  # no further loss is above eps
    value = float(eps_G[np.argmax(eps_G >= below_G)])
    return math.inf if math.isnan(value) else max(0.0, value)


def _reach(profile: Profile, tail: float) -> tuple[float, float]:
    """The loss in each direction beyond which delta is at most ``tail``, to within a factor 1.2; 0 if there is none."""
    found = []
    for side in (0, 1):
        reach = 0.0
        # Coarsely first, and small ones only if it is none of the others: the curve of many shifts costs much at each eps.
        for log_eps in (np.arange(-4.0, 18.0), np.arange(-24.0, -3.0)):
            reach, past = _first_below(profile, 2.0**log_eps, side, tail)
            if past:
                break
        if reach:
            reach = _first_below(profile, 2.0 ** np.arange(-0.75, 0.25, 0.25) * reach, side, tail)[0] or reach
        found.append(reach)
    return found[0], found[1]


def _first_below(profile: Profile, eps: np.ndarray, side: int, tail: float) -> tuple[float, bool]:
    """The least of ``eps``, which ascend, from which on delta is at most ``tail``, or the largest; 0 if it is so at 0, too.
    And whether delta is above it at any of them."""
    every, from_0 = np.concatenate([-eps[::-1], [0.0], eps]), np.append(0.0, eps)
    over = np.flatnonzero(~(profile.least(every, side)[eps.size :] <= tail))  # NaN is no bound
    if not over.size or from_0[over[-1]] < profile.least_from:
        over = np.flatnonzero(~(profile.toward(every, side)[eps.size :] <= tail))
    if not over.size:
        return 0.0, False
    return float(eps[min(over[-1], eps.size - 1)]), bool(over[-1])


def _on_grid(
    profile: Profile, gap: float, side: int, reach: tuple[float, float], coarser_G: np.ndarray | None
) -> np.ndarray:
    """delta at the multiples of ``gap`` up to the reach; ``coarser_G``: at those of twice the gap, which are among them."""
    half = math.ceil(max(reach) / gap)
    if coarser_G is None or coarser_G.size == 1:
        return profile.toward(np.arange(-half, half + 1) * gap, side)
    size = coarser_G.size
    delta_G = np.empty(2 * size - 1)
    delta_G[::2] = coarser_G
    delta_G[1::2] = profile.toward(np.arange(2 - size, size, 2) * gap, side)
    return delta_G[size - 1 - half : size + half]


def _pmf(deltas: np.ndarray, gap: float, side: int, tail: float, reach: tuple[float, float]) -> pld_pmf.PLDPmf:
    """Connect-the-dots loss distribution: dominates the profile at every eps, not only on the grid."""
    half = len(deltas) // 2
    deltas = np.maximum.accumulate(deltas[::-1])[::-1]  # smooths rounding errors, upwards
    low = -math.ceil(reach[1 - side] / gap)
    high = half
    if deltas[-1] <= tail:  # nowhere above it: a round that loses hardly anything, composed with others
        over = np.flatnonzero(deltas > tail)
        high = max(int(over[-1]) - half + 1, low) if over.size else low
    return pld_pmf.create_pmf_pessimistic_connect_dots_fixed_gap(gap, low, high, deltas[low + half : high + half + 1])
