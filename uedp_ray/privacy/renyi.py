"""Renyi divergences of one round, and epsilon from them: looser than ``composition``, but what rules of the choice build on.

    >>> from uedp_ray.privacy.accounting import epsilon
    >>> from uedp_ray.privacy.mechanisms.poisson import RoundMechanism
    >>> from uedp_ray.privacy.renyi import rdp, to_epsilon
    >>> one = RoundMechanism(
    ...     noise_multiplier=2.0, user_sampling_prob=0.05, entity_sampling_prob=0.5, max_holders=1, entity_clip=0.2
    ... )
    >>> rates, lost = rdp([(one, 500)], lost=1e-7)    # at ORDERS; ``lost`` is to be taken off delta
    >>> round(to_epsilon(rates, 1e-5 - lost), 3)
    3.294
    >>> round(epsilon(one, rounds=500, delta=1e-5, kind="entity"), 3)    # by composition
    3.013

A round is dominated by the labelled pairs of ``dominating.one_round``. Its moments are means of convex functions of the
ratio, so the proof of docs/accounting.md covers them in both directions, and the larger one is taken. Renyi divergences
cannot leave out labels, however rare, and rare labels (many holders drawn) may dominate them. So they are taken
*given* that no cut label occurs in any round. That event has the same probability in both worlds, and does not depend on
the data; its complement, of probability at most ``lost``, counts against delta. Inputs are public. Units: beta = 1.
References: Mironov, arXiv 1702.07476; Canonne, Kamath, Steinke, arXiv 2004.00010, Prop. 12 (conversion, dp_accounting).
"""
# Shape legend: L = labels, J = mixture components, G = nodes, A = orders.

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import numpy as np
from dp_accounting.rdp import compute_epsilon
from scipy import special

from uedp_ray.errors import InputError
from uedp_ray.privacy import dominating
from uedp_ray.privacy.mechanisms.base import check_counts
from uedp_ray.privacy.mechanisms.poisson import RoundMechanism
from uedp_ray.privacy.profiles import Profile

Parts = Sequence[tuple[RoundMechanism, int]]

ORDERS = tuple(
    [1 + x / 20 for x in range(1, 20)]
    + [2 + x / 8 for x in range(16)]
    + [4 + x / 4 for x in range(24)]
    + [*range(10, 24), *range(24, 64, 4), 64, 80, 96, 128, 192, 256, 512, 1024]
)
SHARE = 1e-2
"""The share of delta that cut labels may cost. Any other choice was seen to gain less than 1 % of epsilon."""
_ALIASING = 30.0  # -log of the relative error of a trapezoid sum
_REACH = 9.0  # how far nodes go beyond the last possible peak: what is left out is below exp(-40)
_PADDING = 1e-12  # added to a log moment for all of these errors
_MAX_NODES = 1 << 14


def of_releases(parts: Parts, gaussians: Sequence[tuple[float, float]], *, delta: float, unit: str, kind: str) -> float:
    """epsilon of all ``parts`` (mechanism, rounds) and of plain Gaussian releases (sensitivity, noise std) composed, of one
    ``kind``; infinity where nothing is protected. Its cost does not grow with rounds.
    """
    rates_A, lost = rdp(parts, lost=SHARE * delta, unit=unit, kind=kind)
    for sensitivity, noise_std in gaussians:
        rates_A = rates_A + np.array(ORDERS) * ((sensitivity / noise_std) * (sensitivity / noise_std)) / 2
    return to_epsilon(rates_A, delta - lost)


def to_epsilon(rates_A: np.ndarray, delta: float) -> float:
    """epsilon at ``delta`` of Renyi divergences at ``ORDERS``; infinity if nothing is left of delta."""
    if delta <= 0.0 or not np.isfinite(rates_A).any():
        return math.inf
    return float(compute_epsilon(ORDERS, np.where(np.isfinite(rates_A), rates_A, np.inf), delta)[0])


def rdp(
    parts: Parts,
    *,
    lost: float,
    unit: str = "user-entity",
    kind: str = "entity",
    orders: tuple[float, ...] = ORDERS,
    over: int | None = None,
) -> tuple[np.ndarray, float]:
    """Renyi divergences at ``orders``, larger direction, and the mass they leave out: about ``lost``, to be taken off delta.

    Infinity where nothing is protected. Under ``reweight`` they hold whatever weights holders have.
    ``over``: the number of rounds among which ``lost`` is divided, if a run stopped early that of the whole run; None: all
    of ``parts``.
    """
    check_counts(parts)
    if not 0.0 < lost < 1.0:
        raise InputError("lost", lost, "must lie strictly between 0 and 1")
    total = max(sum(count for _, count in parts) if over is None else over, 1)
    tail = 2.0 ** math.floor(math.log2(lost / total) - 1)  # a power of 2 lets counts share rounds
    rates_A, cut = np.zeros(len(orders)), 0.0
    for mechanism, count in parts:
        if count:
            one_A, cut_one = _one_round(mechanism, unit, kind, tail, orders)
            rates_A, cut = rates_A + count * one_A, cut + count * cut_one
    return rates_A, cut


@functools.lru_cache(maxsize=1024)
def _one_round(
    mechanism: RoundMechanism, unit: str, kind: str, tail: float, orders: tuple[float, ...]
) -> tuple[np.ndarray, float]:
    if dominating.entity_part(mechanism, unit, kind)[0] == dominating.UNBOUNDED:
        return np.full(len(orders), math.inf), 0.0
    return of_profile(dominating.one_round(mechanism, unit, kind, tail=tail).moments, orders)


@np.errstate(over="ignore", divide="ignore", invalid="ignore")  # with hardly any noise: NaN bounds nothing
def of_profile(profile: Profile, orders: Sequence[float]) -> tuple[np.ndarray, float]:
    """Renyi divergences given that nothing cut occurs, the larger of both directions, and the mass cut."""
    kept_L = profile.family.probs_LJ.sum(1)
    weight_L = profile.weight_L * kept_L
    log_p_LJ = np.log(profile.family.probs_LJ / kept_L[:, None])
    u_LJ = profile.family.shifts_LJ / profile.family.noise_multiplier
    used = weight_L > 0.0
    weight_L = weight_L[used] / min(weight_L.sum(), 1.0)
    rates = []
    for order in orders:
        log_moment_L = np.maximum(*(_log_moments(u_LJ[used], log_p_LJ[used], order, side) for side in (0, 1)))
        top = log_moment_L.max()  # is in the largest sum with a weight far above what underflows
        log_moment = top + math.log(weight_L @ np.exp(log_moment_L - top))
        rates.append(max(log_moment, 0.0) / (order - 1.0) if math.isfinite(log_moment) else math.inf)
    return np.array(rates), profile.cut


def _log_moments(u_LJ: np.ndarray, log_p_LJ: np.ndarray, order: float, side: int) -> np.ndarray:
    """log E L^order (side 0) or log E L^(1 - order) (side 1) of each label, rounded up.

    L = sum_j p_j exp(u_j x - u_j^2 / 2), x standard normal. Trapezoid sums. The integrand is analytic for
    |Im x| < pi / u: all terms of L then lie in one half plane. At height a, |L| is
    between cos(u a / 2) L and L at the real part, which bounds the relative error for a step h by
    exp(a^2 / 2 - 2 pi a / h), times cos(u a / 2)^(1 - order) on side 1.
    """
    u_L = np.where(np.isfinite(log_p_LJ), u_LJ, 0.0).max(1)
    first = np.where(np.isfinite(log_p_LJ), log_p_LJ - u_LJ**2 / 2, -np.inf)
    power = order if side == 0 else 1.0 - order
    # The slope of log L lies between 0 and u, and increases; at x <= 0 it is at most the slope at 0.
    if side == 0:
        low_L, high_L = np.full_like(u_L, -_REACH), order * u_L + _REACH
        spread = 1.0
    else:
        at_zero_L = (special.softmax(first, axis=1) * u_LJ).sum(1)
        low_L, high_L = power * at_zero_L - _REACH, np.full_like(u_L, _REACH)
        spread = 1.0 + (order - 1.0) * u_L**2 / 4
    limit = np.pi if side == 0 else 2.5
    a_L = np.minimum(np.sqrt(2 * _ALIASING / spread), limit / np.maximum(u_L, 1e-9))
    exponent_L = _ALIASING + a_L**2 / 2
    if side == 1:
        exponent_L -= (order - 1.0) * np.log(np.cos(u_L * a_L / 2))
    nodes_L = np.ceil((high_L - low_L) * exponent_L / (2 * np.pi * a_L))

    # By convexity; tight where shifts are so large that quadrature would take long.
    bound_L = special.logsumexp(log_p_LJ + (order**2 - order) / 2 * u_LJ**2, axis=1)
    ranked = np.argsort(nodes_L)
    ranked = ranked[nodes_L[ranked] <= _MAX_NODES]
    for chunk in np.array_split(ranked, max(1, len(ranked) // 32)):
        if not len(chunk):
            continue
        count = int(nodes_L[chunk[-1]])
        step_L1 = ((high_L - low_L)[chunk] / count)[:, None]
        x_LG = low_L[chunk][:, None] + step_L1 * np.arange(count + 1)
        log_ratio_LG = np.full_like(x_LG, -np.inf)
        for j in range(u_LJ.shape[1]):
            np.logaddexp(log_ratio_LG, first[chunk, j, None] + u_LJ[chunk, j, None] * x_LG, out=log_ratio_LG)
        term_LG = power * log_ratio_LG - x_LG**2 / 2
        top_L = term_LG.max(1)
        log_sum_L = top_L + np.log(np.exp(term_LG - top_L[:, None]).sum(1) * step_L1[:, 0] / math.sqrt(2 * np.pi))
        rounding_L = 2e-15 * np.maximum(np.abs(x_LG[:, 0]), np.abs(x_LG[:, -1])) ** 2 * (1 + 2 * abs(power))
        bound_L[chunk] = np.minimum(bound_L[chunk], log_sum_L + rounding_L)
    return bound_L + _PADDING
