"""Privacy profiles of one round: hockey-stick curves of labelled Gaussian mixtures.

A round is dominated by the pair (N(0, z^2), sum_i p_i N(s_i, z^2)) with a visible label n: how many other holders of the
entity were drawn (docs/accounting.md has the proof). Its profile is delta(eps) = sum_n P(n) delta_n(eps).

    >>> import numpy as np
    >>> from uedp_ray.privacy.dominating import one_round
    >>> from uedp_ray.privacy.mechanisms.poisson import RoundMechanism
    >>> one = RoundMechanism(
    ...     noise_multiplier=2.0, user_sampling_prob=0.05, entity_sampling_prob=0.5, max_holders=1, entity_clip=0.2
    ... )
    >>> add, remove = one_round(one).curve(np.array([-0.1, 0.0, 0.1]))    # delta at each of these epsilons
    >>> [round(delta, 5) for delta in add.tolist()]
    [0.09525, 0.01086, 0.00042]

Everything that is cut or rounded is cut or rounded upwards. Inputs are public. Units: beta = 1.
References: Choquette-Choo, Ganesh, Steinke, Thakurta, arXiv 2310.15526, Cor. 4.7.
"""
# Shape legend: R = alternatives (rows), L = labels, J = mixture components, G = grid of epsilons.

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, assert_never

import numpy as np
from scipy import special

from uedp_ray.errors import InputError
from uedp_ray.privacy.mechanisms.poisson import RoundMechanism
from uedp_ray.units import KINDS, UNITS

MIN_DELTA = 1e-12
UNBOUNDED = 1 << 62  # the number of holders where there is no bound
_MAX_LABELS = 256
_MAX_COMPONENTS = 256
_LEAST = 1e-100
_WIDTH = 0.01  # the width of an interval of numbers of holders


def kinds(kind: str) -> tuple[str, ...]:
    """The kinds that ``kind`` stands for."""
    return KINDS if kind == "both" else (kind,)


def check_arguments(unit: str, kind: str, delta: float) -> None:
    if unit not in UNITS:
        raise InputError("unit", unit, f"choose one of {', '.join(UNITS)}")
    if kind not in ("both", *KINDS):
        raise InputError("kind", kind, "choose one of both, entity, extended")
    if not MIN_DELTA <= delta < 1.0:
        raise InputError("delta", delta, f"must lie in [{MIN_DELTA:g}, 1)")


@dataclass(eq=False)
class Family:
    """Pairs (N(0, z^2), sum_j p_lj N(s_lj, z^2)), one per label. All shifts are 0 or more."""

    shifts_LJ: np.ndarray
    probs_LJ: np.ndarray
    noise_multiplier: float

    def curves(self, eps_G: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """delta(eps) of each label, mixture over Gaussian and Gaussian over mixture: two arrays (L, G).

        ``eps_G`` is symmetric about 0: the threshold of one direction at eps is that of the other at -eps.
        """
        key = (self, eps_G.tobytes())
        table = _TABLES.get(key)
        if table is None:
            parts = max(1, self.shifts_LJ.shape[0] * eps_G.size // 500_000)
            split = zip(np.array_split(self.shifts_LJ, parts), np.array_split(self.probs_LJ, parts), strict=True)
            with np.errstate(over="ignore"):  # as in ``_hockey_sticks``
                done = [_hockey_sticks(s / self.noise_multiplier, p, eps_G) for s, p in split]
            table = np.concatenate([d[0] for d in done]), np.concatenate([d[1] for d in done])
            _TABLES.put(key, table)
        return table


class _Tables:
    """The most recently computed curves of all families together: those with many shifts take megabytes each."""

    def __init__(self, most_bytes: int):
        self._room = most_bytes
        self._found: dict[tuple[Family, bytes], tuple[np.ndarray, np.ndarray]] = {}
        self._lock = threading.Lock()

    def get(self, key: tuple[Family, bytes]) -> tuple[np.ndarray, np.ndarray] | None:
        with self._lock:
            table = self._found.pop(key, None)
            if table is not None:
                self._found[key] = table  # now the last to be evicted
            return table

    def put(self, key: tuple[Family, bytes], table: tuple[np.ndarray, np.ndarray]) -> None:
        with self._lock:
            self._room += _num_bytes(self._found.pop(key, ())) - _num_bytes(table)
            self._found[key] = table
            while self._room < 0:
                self._room += _num_bytes(self._found.pop(next(iter(self._found))))


def _num_bytes(arrays: Sequence[np.ndarray]) -> int:
    return sum(each.nbytes for each in arrays)


_TABLES = _Tables(512 << 20)


@np.errstate(over="ignore", invalid="ignore")  # with hardly any noise: NaN then counts as lost, at the end
def _hockey_sticks(u_LJ: np.ndarray, p_LJ: np.ndarray, eps_G: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The log ratio f(x) = log(p_0 + sum_j p_j exp(u_j x - u_j^2 / 2)) increases, so thresholds solve f(x) = eps."""
    moving_LJ = np.logical_and(u_LJ > 0, p_LJ > 0)
    with np.errstate(divide="ignore"):
        log_p0_L = np.log(np.where(u_LJ > 0, 0.0, p_LJ).sum(1))
    gap_LG = log_p0_L[:, None] - eps_G
    inside_LG = gap_LG < 0  # elsewhere the ratio is above exp(eps) everywhere
    above_LG = -np.expm1(np.where(inside_LG, gap_LG, -1.0))  # 1 - p_0 exp(-eps)
    y_LG = eps_G + np.log(above_LG)
    logp_LJ = np.log(np.where(moving_LJ, p_LJ, 1.0))
    columns = [j for j in range(u_LJ.shape[1]) if moving_LJ[:, j].any()]
    terms = [
        (np.where(moving_LJ[:, j], u_LJ[:, j], 1.0)[:, None], logp_LJ[:, j, None], moving_LJ[:, j]) for j in columns
    ]

    # log-sum-exp of increasing lines is convex: from the right, Newton falls to the root and never passes it. Each line
    # alone crosses y at or right of the root, so the leftmost crossing is the start.
    x_LG = np.full(y_LG.shape, np.inf)
    for u, logp, moving in terms:
        x_LG = np.minimum(x_LG, np.where(moving[:, None], (y_LG - logp) / u + u / 2, np.inf))
    x_LG[~np.isfinite(x_LG)] = 0.0  # labels without any shift
    for _ in range(100 if len(terms) > 1 else 0):
        total_LG = np.zeros_like(x_LG)
        slope_LG = np.zeros_like(x_LG)
        for u, logp, moving in terms:
            part_LG = np.where(moving[:, None], np.exp(np.minimum(logp + u * (x_LG - u / 2) - y_LG, 50.0)), 0.0)
            total_LG += part_LG
            slope_LG += u * part_LG
        step_LG = np.divide(np.log(np.maximum(total_LG, 1.0)) * total_LG, slope_LG, where=slope_LG > 0, out=0 * x_LG)
        x_LG -= step_LG
        if step_LG.max(initial=0.0) < 1e-9:  # the error in delta is of second order: below 1e-18
            break

    add_LG = -np.exp(np.minimum(y_LG + special.log_ndtr(-x_LG), 0.0))
    remove_LG = above_LG * special.ndtr(x_LG)
    small = np.abs(eps_G).max() < 500.0
    for j, (u, _, _) in zip(columns, terms, strict=True):
        p_L1 = np.where(moving_LJ[:, j], p_LJ[:, j], 0.0)[:, None]
        add_LG += p_L1 * special.ndtr(u - x_LG)
        if small:
            remove_LG -= p_L1 * np.exp(-eps_G) * special.ndtr(x_LG - u)
        else:
            remove_LG -= p_L1 * np.exp(np.minimum(special.log_ndtr(x_LG - u) - eps_G, 700.0))
    floor_G = -np.expm1(np.minimum(eps_G, 0.0))
    moved_LG = inside_LG & moving_LJ.any(axis=1, keepdims=True)
    add_LG = np.where(moved_LG, np.maximum(add_LG, floor_G), floor_G)
    remove_LG = np.where(moved_LG, np.maximum(remove_LG, floor_G[::-1]), floor_G[::-1])
    return np.where(np.isnan(add_LG), 1.0, add_LG), np.where(np.isnan(remove_LG), 1.0, remove_LG)[:, ::-1]


@dataclass(eq=False)
class Profile:
    """The largest profile, at every eps, of R labelled mixtures: it dominates whichever of them is true."""

    family: Family
    weights_RL: np.ndarray
    """P(label); rows sum to 1 less ``cut_R``."""
    cut_R: np.ndarray
    """Mass of labels that were cut; counted as infinite loss."""

    def curve(self, eps_G: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """delta(eps) with e' and u' added, and removed. ``eps_G`` symmetric about 0. Shapes (G,), (G,)."""
        add_LG, remove_LG = self.family.curves(eps_G)
        return self._largest(add_LG), self._largest(remove_LG)

    def _largest(self, delta_LG: np.ndarray) -> np.ndarray:
        return np.minimum((self.weights_RL @ delta_LG + self.cut_R[:, None]).max(0), 1.0)


def gaussian(sensitivity: float, noise_std: float) -> Profile:
    """The profile of one Gaussian mechanism."""
    return Profile(Family(np.array([[sensitivity]]), np.ones((1, 1)), noise_std), np.ones((1, 1)), np.zeros(1))


_LEAST_CLIP = 1e-300
"""What subnormal clips count as: one over them is no number, and the accountant searched for minutes."""


def entity_part(mechanism: RoundMechanism, unit: str, kind: str) -> tuple[int, float, float]:
    """(K, q, clip) of the protected entity; K = 0 where it cannot move anything."""
    if kind == "extended":  # a sentence has one holder; q_s = 0: no such sentence is ever used
        holders, prob, clip = 1, mechanism.extended_sampling_prob, mechanism.extended_clip
    else:
        holders = UNBOUNDED if mechanism.max_holders is None else mechanism.max_holders
        prob, clip = mechanism.entity_sampling_prob, mechanism.entity_clip
        if holders and _reweighting_is_void(mechanism):
            holders = mechanism.max_users or 0
    if unit == "user" or 0.0 in (prob, clip, mechanism.user_sampling_prob):
        holders = 0
    clip = max(float(clip), _LEAST_CLIP) if clip else 0.0  # upwards
    return holders, float(prob), clip  # floats: numpy cannot multiply by an int larger than its own


def _reweights(mechanism: RoundMechanism) -> bool:
    if mechanism.holder_bound == "reweight":
        return True
    if mechanism.holder_bound == "truncate":
        return False
    assert_never(mechanism.holder_bound)


def _reweighting_is_void(mechanism: RoundMechanism) -> bool:
    """Scaling a sentence by K/H scales what it moves only if its own clip norm, not the user's, sets the bound."""
    return _reweights(mechanism) and mechanism.entity_clip >= 2.0


def depends_on_holders(mechanism: RoundMechanism, unit: str, kind: str) -> bool:
    """Whether the number of holders H is free above K, and matters."""
    holders, prob, _ = entity_part(mechanism, unit, kind)
    always = mechanism.user_sampling_prob == 1.0 and not _entity_draw(mechanism, prob).by_each  # then H (K/H) = K moves
    free = kind == "entity" and _reweights(mechanism) and not _reweighting_is_void(mechanism)
    return free and holders not in (0, UNBOUNDED, mechanism.max_users) and not always


class _EntityDraw(NamedTuple):
    by_each: bool
    """Whether each drawn holder draws the entity for itself."""
    for_all: float
    """Otherwise: the probability that the drawn holders use it."""


def _entity_draw(mechanism: RoundMechanism, prob: float) -> _EntityDraw:
    """The rules of ``plan.Plan.select`` as the accountant sees them; both raise for an unknown rule."""
    if mechanism.entity_draw == "global":
        by_each = False
    elif mechanism.entity_draw == "per_user":
        by_each = prob < 1.0
    else:
        assert_never(mechanism.entity_draw)
    if mechanism.selection_rule == "all":
        return _EntityDraw(by_each, prob)
    if mechanism.selection_rule == "any":
        return _EntityDraw(False, 1.0)
    assert_never(mechanism.selection_rule)


@np.errstate(over="ignore")  # shifts that overflow count as lost
def one_round(
    mechanism: RoundMechanism,
    unit: str = "user-entity",
    kind: str = "entity",
    *,
    tail: float = 1e-15,
    held_by: tuple[int, int] | None = None,
) -> Profile:
    """The profile of one round. ``held_by``: under ``reweight``, any number of holders H in this closed interval.

    For it n ~ Binomial(H2, q_u) and each holder moves clip K / H1: both only overstate (docs, "monotone").
    ``tail`` bounds the label mass that is cut.
    """
    trials, prob, shift = entity_part(mechanism, unit, kind)
    if trials == UNBOUNDED:
        raise InputError("max_holders", None, "entities are protected only within bounds: declare or enforce them")
    if held_by is not None and trials and depends_on_holders(mechanism, unit, kind):
        shift *= min(1.0, trials / held_by[0])
        trials = max(trials, held_by[1])
    count_L, weight_L, cut = _counts(trials, mechanism.user_sampling_prob, tail, _MAX_LABELS)
    user_prob = 0.0 if unit == "entity" else mechanism.user_sampling_prob
    draw = _entity_draw(mechanism, prob)
    if draw.by_each:
        # Components that are cut count as infinite loss, like labels.
        values, masses, cuts = zip(*(_counts(int(n), prob, tail, _MAX_COMPONENTS) for n in count_L), strict=True)
        width = max(map(len, values))
        drawn_LJ = np.stack([np.pad(row, (0, width - len(row))) for row in values])
        probs_LJ = np.stack([np.pad(row, (0, width - len(row))) for row in masses])
        cut += float(weight_L @ np.array(cuts))
        shifts_LJ = drawn_LJ * shift
    else:
        shifts_LJ, probs_LJ = _all_or_none(count_L * shift, draw.for_all)
    family = Family(*_with_user(shifts_LJ, probs_LJ, user_prob), mechanism.noise_multiplier)
    return Profile(family, weight_L[None, :], np.array([cut]))


def _all_or_none(shift_L: np.ndarray, prob: float) -> tuple[np.ndarray, np.ndarray]:
    """One draw for all holders: shift s with probability ``prob``, else 0."""
    shifts_LJ = np.stack([np.zeros_like(shift_L), shift_L], 1).astype(float)
    return shifts_LJ, np.broadcast_to([1.0 - prob, prob], shifts_LJ.shape)


def _with_user(shifts_LJ: np.ndarray, probs_LJ: np.ndarray, prob: float) -> tuple[np.ndarray, np.ndarray]:
    """Adds the protected user: a shift of 1 more with probability ``prob``."""
    if prob == 0.0:
        return shifts_LJ, probs_LJ
    return np.concatenate([shifts_LJ, shifts_LJ + 1.0], 1), np.concatenate([(1 - prob) * probs_LJ, prob * probs_LJ], 1)


def _counts(trials: int, prob: float, tail: float, limit: int) -> tuple[np.ndarray, np.ndarray, float]:
    """Binomial(trials, prob) as at most ``limit`` (value, mass) pairs, values rounded up, and the mass cut at the top."""
    if trials == 0 or prob in (0.0, 1.0):
        return np.array([trials if prob else 0]), np.ones(1), 0.0
    mean, log_tail = trials * prob, -math.log(tail)
    reach = log_tail / 3 + math.sqrt(log_tail**2 / 9 + 2 * mean * (1 - prob) * log_tail)  # by Bernstein at most tail
    low, high = max(0, math.floor(mean - reach)), min(trials, math.ceil(mean + reach))
    mode = min(max(int(mean), low), high)
    n = np.arange(low, high)
    ratio = (trials - n) / (n + 1) * (prob / (1 - prob))
    mass = np.ones(high - low + 1)
    mass[mode - low + 1 :] = np.cumprod(ratio[mode - low :])
    mass[: mode - low] = np.cumprod(1 / ratio[: mode - low][::-1])[::-1]
    mass *= 1.0 / mass.sum()
    above = np.cumsum(mass[::-1])[::-1]
    end = max(1, int(np.searchsorted(-above, -tail)))  # masses from here on sum to the tail or less
    cut = (float(above[end]) if end < len(mass) else 0.0) + (tail if high < trials else 0.0)
    begin = min(int(np.searchsorted(np.cumsum(mass), tail)), end - 1)
    mass[begin] += mass[:begin].sum()
    mass = mass[begin:end]
    step = -(-len(mass) // limit)
    ends = np.arange(len(mass) - 1, -1, -step)[::-1]  # a bucket takes its largest value
    return low + begin + ends, np.add.reduceat(mass, np.append(0, ends[:-1] + 1)), cut


class HolderGroups:
    """Profiles of a reweighting round for groups of holder intervals, sharing one table of curves over shifts.

    Where one draw decides for all holders, a label matters only through its shift, so labels of all H are rounded up to
    one fine list of shifts. With draws by each user the number that drew the entity is made visible as well (which can
    only raise the profile). ``exact`` takes each interval by itself and does neither.
    """

    def __init__(self, mechanism: RoundMechanism, unit: str, kind: str, *, tail: float, most: int):
        self._round = (mechanism, unit, kind)
        self._tail = tail
        self._exact: dict[tuple[int, int], Profile] = {}
        self._holders, prob, clip = entity_part(mechanism, unit, kind)
        draw = _entity_draw(mechanism, prob)
        self.relaxed = draw.by_each
        # Rounded upwards, so that no product of them is 0.
        self._clip = max(clip, _LEAST)
        self._draw_prob = max(mechanism.user_sampling_prob * (prob if draw.by_each else 1.0), _LEAST)
        mean = self._draw_prob * self._holders * self._clip
        top = self._largest_shift(most)
        step = 0.004
        small = np.arange(0.0, mean / 2, step * mean / 2)
        large = mean / 2 * np.exp(np.arange(0.0, math.log(max(2 * top / mean, 1.0)) + step, step))
        self._shift_L = np.append(np.concatenate([small, large]), top)
        self._shift_L = np.unique(self._shift_L[self._shift_L <= top])
        user_prob = 0.0 if unit == "entity" else mechanism.user_sampling_prob
        parts = _with_user(*_all_or_none(self._shift_L, 1.0 if draw.by_each else draw.for_all), user_prob)
        self._family = Family(*parts, mechanism.noise_multiplier)

    def _largest_shift(self, most: int) -> float:
        """A shift that no kept label, of any H, exceeds: checked when labels are placed."""
        sizes = np.unique(np.geomspace(self._holders, most, 64).astype(int))
        tops = [_counts(int(h), self._draw_prob, self._tail, _MAX_LABELS)[0][-1] / h for h in sizes]
        return 1.3 * max(tops) * self._holders * self._clip

    def profiles(self, intervals: Sequence[tuple[int, int]], *, exact: bool = False) -> list[Profile]:
        """Profiles whose pointwise maximum holds for every H in any of the ``intervals``."""
        if exact:
            for each in intervals:
                if each not in self._exact:
                    self._exact[each] = one_round(*self._round, tail=self._tail, held_by=each)
            return [self._exact[each] for each in intervals]
        weights_RL, cut_R = np.zeros((len(intervals), len(self._shift_L))), np.zeros(len(intervals))
        for row, (least, most) in enumerate(intervals):
            count, mass, cut_R[row] = _counts(most, self._draw_prob, self._tail, _MAX_LABELS)
            shift = count * (self._clip * min(1.0, self._holders / least))
            place = np.searchsorted(self._shift_L, shift)  # rounds up
            kept = place < len(self._shift_L)
            np.add.at(weights_RL[row], place[kept], mass[kept])
            cut_R[row] += mass[~kept].sum()
        return [Profile(self._family, weights_RL, cut_R)]


def all_holders(mechanism: RoundMechanism, unit: str, kind: str, *, tail: float) -> Profile:
    """The profile of one round that holds for every number of holders at once."""
    if not depends_on_holders(mechanism, unit, kind):
        return one_round(mechanism, unit, kind, tail=tail)
    least, most = mechanism.max_holders or 0, mechanism.max_users or 0
    # Every H lies in an interval, whose pair dominates it: the pointwise maximum holds for every H.
    intervals = [(least, least), *holder_intervals(least, least + 1, most, _WIDTH)]
    return HolderGroups(mechanism, unit, kind, tail=tail, most=most).profiles(intervals)[0]


def holder_intervals(least: int, low: int, high: int, ratio: float) -> list[tuple[int, int]]:
    """Splits [low, high]; close to K, where holders matter most, the intervals are single numbers."""
    found = []
    while low <= high:
        end = min(high, math.floor(low * (1 + ratio * (1 - least / low))))
        found.append((low, max(low, end)))
        low = found[-1][1] + 1
    return found
