"""epsilon, calibration and rounds of the user-entity mechanism, by numerical composition of privacy profiles.

    >>> from uedp_ray.privacy.accounting import calibrate, epsilon
    >>> from uedp_ray.privacy.mechanisms.poisson import RoundMechanism
    >>> one = RoundMechanism(
    ...     noise_multiplier=2.0, user_sampling_prob=0.05, entity_sampling_prob=0.5, max_holders=1, entity_clip=0.2
    ... )
    >>> round(epsilon(one, rounds=50, delta=1e-5, kind="entity"), 3)
    0.943
    >>> round(epsilon(one, rounds=50, delta=1e-5, kind="entity", unit="user"), 3)    # of the user alone
    0.783
    >>> round(calibrate(one, target_epsilon=0.5, rounds=50, delta=1e-5, kind="entity"), 2)    # the noise for that epsilon
    3.3

Every number is an upper bound; within 1 % of what a fine grid gives where epsilon is 0.1 to 30 and delta is not near rounds
times 2^-40, up to 6 % above it at epsilons of hundreds, where losses lie in humps that halving the grid may miss. Beyond
200,000 rounds, or with delta below 2^-48 a round, it comes from Renyi divergences: 1 to 13 % above that where epsilon is at
least 0.1, user_sampling_prob 0.001 and delta at most 1e-5, several times above it where they are far less or rounds few.
Unit: as asked (user and entity, user, or entity); relation: ``zero_out``; sampling: Poisson. All inputs are public.
docs/accounting.md holds theorem and proof.
References: Doroshenko et al., "Connect the Dots", arXiv 2207.04380 (discretisation); dp_accounting (convolution).
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence

from scipy import optimize

from uedp_ray.errors import InputError
from uedp_ray.privacy import composition, dominating, renyi
from uedp_ray.privacy.dominating import check_arguments
from uedp_ray.privacy.mechanisms.base import check_counts, check_gaussians
from uedp_ray.privacy.mechanisms.poisson import RoundMechanism, counted
from uedp_ray.units import KINDS, UNITS

ACCOUNTANTS = ("pld", "renyi")
"""Numerical composition of privacy loss distributions, or of Renyi divergences alone: faster, and never tighter by much."""
_MOST_DELTA = 0.9


def epsilon(
    mechanism: RoundMechanism,
    *,
    rounds: int,
    delta: float,
    unit: str = "user-entity",
    kind: str = "both",
    accountant: str = "pld",
) -> float:
    """The smallest epsilon we can prove for ``rounds`` rounds. 0 without rounds; infinity where nothing is protected.

    ``kind`` both: the larger of an entity's and an extended entity's. Raises: InputError for values out of range.

    Edge cases:

        >>> from uedp_ray.privacy.accounting import epsilon
        >>> from uedp_ray.privacy.mechanisms.poisson import RoundMechanism
        >>> def at(rounds=50, delta=1e-5, unit="user-entity", **changed):
        ...     settings = {"noise_multiplier": 2.0, "user_sampling_prob": 0.05, "max_holders": 10, "entity_clip": 0.2}
        ...     one = RoundMechanism(**{**settings, **changed})
        ...     return round(epsilon(one, rounds=rounds, delta=delta, unit=unit, kind="entity"), 3)
        >>> at(), at(unit="user"), at(unit="entity")    # for comparison
        (3.486, 0.783, 2.825)
        >>> at(rounds=0)    # nothing was released
        0.0
        >>> at(user_sampling_prob=0.0), at(user_sampling_prob=1.0)    # nobody is drawn; everybody, every time
        (0.0, 100.67)
        >>> at(entity_sampling_prob=0.0), at(entity_clip=0.0)    # the entity moves nothing: what is left is the user's
        (0.783, 0.783)
        >>> at(max_holders=0), at(max_holders=0, unit="entity")    # there is no entity
        (0.783, 0.0)
        >>> at(max_holders=None), at(max_holders=None, unit="user")    # undeclared: only users are protected
        (inf, 0.783)
        >>> at(noise_multiplier=1e6), at(noise_multiplier=1e-3)    # too little to compute with; none at all is refused
        (0.0, inf)
        >>> at(delta=0.9), round(at(delta=1e-12), 1)    # promises nothing; the least, where a CPU's rounding shows
        (0.0, 7.0)
        >>> at(delta=1e-13)
        Traceback (most recent call last):
            ...
        uedp_ray.errors.InputError: delta = 1e-13: must lie in [1e-12, 1)
    """
    return compose([(mechanism, rounds)], delta=delta, unit=unit, kind=kind, accountant=accountant)


def compose(
    parts: Sequence[tuple[RoundMechanism, int]],
    *,
    delta: float,
    unit: str = "user-entity",
    kind: str = "both",
    gaussians: Sequence[tuple[float, float]] = (),
    accountant: str = "pld",
) -> float:
    """epsilon of different mechanisms, each with a count, and of plain Gaussian releases (sensitivity, noise std).

    ``sensitivity`` must be that for the unit and kind. Raises: InputError for values out of range.

    Edge cases:

        >>> import dataclasses
        >>> from uedp_ray.privacy.accounting import compose
        >>> from uedp_ray.privacy.mechanisms.poisson import RoundMechanism
        >>> one = RoundMechanism(noise_multiplier=2.0, user_sampling_prob=0.05, max_holders=10, entity_clip=0.2)
        >>> unbounded = dataclasses.replace(one, max_holders=None)
        >>> def of(*parts, gaussians=()):
        ...     return round(compose(parts, delta=1e-5, kind="entity", gaussians=gaussians), 3)
        >>> of()    # nothing was released
        0.0
        >>> of((one, 20), (one, 30)) == of((one, 50))
        True
        >>> of((one, 50), (unbounded, 0)), of((one, 50), (unbounded, 1))    # one round without a bound is enough
        (3.486, inf)
        >>> of(gaussians=[(1.0, 4.0)]), of((one, 50), gaussians=[(1.0, 4.0)])    # no rounds; both
        (0.927, 3.644)
        >>> of((one, 50), gaussians=[(0.0, 4.0)]) == of((one, 50))    # what the unit does not move costs nothing
        True
    """
    check_arguments(unit, kind, delta)
    check_counts(parts)
    check_gaussians(gaussians)
    if accountant not in ACCOUNTANTS:
        remedy = "is a unit: pass it as unit" if accountant in UNITS else f"choose one of {', '.join(ACCOUNTANTS)}"
        raise InputError("accountant", accountant, remedy)
    counts = counted(parts)
    key = tuple(sorted(counts.items(), key=repr))
    kinds = _needed_kinds(tuple(counts), unit) if kind == "both" else (kind,)
    return max(_epsilon(key, tuple(gaussians), delta, unit, each, accountant) for each in kinds)


def calibrate(
    mechanism: RoundMechanism,
    *,
    target_epsilon: float,
    rounds: int,
    delta: float,
    unit: str = "user-entity",
    kind: str = "both",
    accountant: str = "pld",
) -> float:
    """The smallest noise multiplier (within a thousandth) whose epsilon is at most ``target_epsilon``, never above it.

    The mechanism's own noise multiplier is ignored. Raises: InputError where no noise multiplier up to 1e6 is enough, and
    for a delta above 0.9, at which next to no noise is left and the search takes minutes.

    Edge cases:

        >>> from uedp_ray.privacy.accounting import calibrate
        >>> from uedp_ray.privacy.mechanisms.poisson import RoundMechanism
        >>> def at(rounds=50, target=1.0, unit="user-entity", **changed):
        ...     settings = {"noise_multiplier": 2.0, "user_sampling_prob": 0.05, "max_holders": 10, "entity_clip": 0.2}
        ...     one = RoundMechanism(**{**settings, **changed})
        ...     asked = {"target_epsilon": target, "rounds": rounds, "delta": 1e-5, "unit": unit, "kind": "entity"}
        ...     return float(f"{calibrate(one, **asked):.3g}")
        >>> at(), at(noise_multiplier=9.0)    # the noise that it has makes no difference
        (5.87, 5.87)
        >>> at(rounds=0), at(user_sampling_prob=0.0)    # nothing to hide: the least that is tried
        (0.001, 0.001)
        >>> at(max_holders=None, unit="user")    # a user needs no bound on holders, an entity does
        1.69
        >>> at(max_holders=None)
        Traceback (most recent call last):
            ...
        uedp_ray.errors.InputError: max_holders = None: entities are protected only within bounds: declare or enforce them
    """
    if delta > _MOST_DELTA:
        raise InputError("delta", delta, f"must be at most {_MOST_DELTA:g} to solve for noise: more promises nothing")
    if not math.isfinite(target_epsilon) or target_epsilon <= 0:
        raise InputError("target_epsilon", target_epsilon, "must be a finite number above 0")
    if unit != "user" and kind != "extended":
        if mechanism.max_holders is None:
            raise InputError("max_holders", None, "entities are protected only within bounds: declare or enforce them")
        if mechanism.holder_bound == "reweight" and mechanism.max_holders and mechanism.entity_clip >= 2.0:
            remedy = "reweight needs m * sentence_clip_norm < 2 * l2_clip_norm: set or lower it, or use truncate"
            raise InputError("entity_clip", mechanism.entity_clip, remedy)

    def at(log_noise: float, full: bool = True) -> float:
        changes: dict[str, object] = {"noise_multiplier": math.exp(log_noise)}
        if not full:  # H = K: a lower bound that is usually the answer
            changes |= {"holder_bound": "truncate"}
        trial = dataclasses.replace(mechanism, **changes)  # type: ignore[arg-type]
        return epsilon(trial, rounds=rounds, delta=delta, unit=unit, kind=kind, accountant=accountant)

    high = _smallest_noise(functools.partial(at, full=False), target_epsilon, math.log(0.5), math.log(2.0))
    if at(high) > target_epsilon:
        high = _smallest_noise(at, target_epsilon, high, high + 0.5)
    return math.exp(high)


def _smallest_noise(at: Callable[[float], float], target: float, low: float, high: float) -> float:
    """Safe side of the root of the decreasing function ``at`` of log z."""
    least, most = math.log(1e-3), math.log(1e6)
    while at(high) > target:
        if high >= most:
            raise InputError("target_epsilon", target, "no noise reaches it: raise it or delta, or run fewer rounds")
        low, high = high, min(high + 2.0, most)
    while at(low) <= target:
        if low <= least:
            return low
        low, high = max(low - 2.0, least), low

    return safe_root(at, target, low, high, within=2e-4)


def safe_root(at: Callable[[float], float], target: float, low: float, high: float, *, within: float) -> float:
    """A log z, ``within`` this of the least, at which the decreasing ``at`` is at most ``target``; at ``low`` it is not."""

    def excess(log_noise: float) -> float:  # log epsilon is nearly linear in log z
        return math.log(min(max(at(log_noise) / target, 1e-3), 1e3))

    root = optimize.brentq(excess, low, high, xtol=within)
    while at(root) > target:
        root += within
    return float(root)


def why_infinite(parts: Sequence[tuple[RoundMechanism, int]], *, unit: str, kind: str) -> str:
    """Says why the epsilon of these rounds is infinite."""
    needed = [(m, each) for m, _ in parts for each in dominating.kinds(kind)]
    if any(dominating.entity_part(m, unit, each)[0] == dominating.UNBOUNDED for m, each in needed):
        return "no guarantee: entities are protected only within bounds, and none are declared or enforced"
    return "no guarantee: part of delta is spent elsewhere, or the noise is so small that epsilon cannot be computed"


def _needed_kinds(mechanisms: Sequence[RoundMechanism], unit: str) -> tuple[str, ...]:
    """Leaves out a kind that the other dominates in every mechanism (fewer holders, smaller shifts, rarer draws)."""

    def below(kind: str, other: str) -> bool:
        if any(dominating.depends_on_weights(m, unit, kind) for m in mechanisms):
            return False  # more than K holders who move less each may be worse than K
        pairs = ((dominating.entity_part(m, unit, kind), dominating.entity_part(m, unit, other)) for m in mechanisms)
        return all(a[0] == 0 or all(x <= y for x, y in zip(a, b, strict=True)) for a, b in pairs)

    if below("extended", "entity"):
        return ("entity",)
    return ("extended",) if below("entity", "extended") else KINDS


@functools.lru_cache(maxsize=4096)
def _epsilon(
    counts: tuple[tuple[RoundMechanism, int], ...],
    gaussians: tuple[tuple[float, float], ...],
    delta: float,
    unit: str,
    kind: str,
    accountant: str,
) -> float:
    """epsilon by moments if requested, or if composition cannot be computed; else by composition, or the smaller of the two
    where rounding takes much of delta."""
    total = sum(count for _, count in counts) + len(gaussians)
    if not total:
        return 0.0
    if any(dominating.entity_part(m, unit, kind)[0] == dominating.UNBOUNDED for m, _ in counts):
        return math.inf

    def by_moments() -> float:
        return renyi.of_releases(counts, gaussians, delta=delta, unit=unit, kind=kind)

    lost = delta < 16 * composition.ROUNDING * total  # more than half of it, on any grid
    if accountant == "renyi" or total > composition.MAX_ROUNDS or lost:
        return by_moments()
    value = composition.epsilon(counts, gaussians, delta, unit, kind)
    return min(value, by_moments()) if delta < composition.TINY * total else value
