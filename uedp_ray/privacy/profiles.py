"""Privacy profiles of labelled Gaussian mixtures against a Gaussian: hockey-stick curves, to machine precision.

    >>> import numpy as np
    >>> from uedp_ray.privacy.profiles import gaussian
    >>> add, remove = gaussian(1.0, noise_std=2.0).curve(np.array([-0.1, 0.0, 0.1]))    # delta at these epsilons
    >>> [round(delta, 5) for delta in add.tolist()]
    [0.23927, 0.19741, 0.15926]

What is cut is cut upwards. Inputs are public.
References: Balle and Wang, arXiv 1805.06530, theorem 5 (one Gaussian).
"""
# Shape legend: L = labels, J = mixture components, G = grid of epsilons.

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import TypeVar, cast

import numpy as np
from scipy import special

_Arrays = TypeVar("_Arrays", bound=tuple[np.ndarray, ...])


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
        return kept(self, eps_G, lambda: self._curves(eps_G))

    def _curves(self, eps_G: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        parts = max(1, self.shifts_LJ.shape[0] * eps_G.size // 500_000)
        split = zip(np.array_split(self.shifts_LJ, parts), np.array_split(self.probs_LJ, parts), strict=True)
        with np.errstate(over="ignore"):  # as in ``_hockey_sticks``
            done = [_hockey_sticks(s / self.noise_multiplier, p, eps_G) for s, p in split]
        return np.concatenate([d[0] for d in done]), np.concatenate([d[1] for d in done])


class _Tables:
    """The most recently computed curves of families and profiles together: those with many shifts take megabytes each."""

    def __init__(self, most_bytes: int):
        self._room = most_bytes
        self._found: dict[tuple[Hashable, bytes], tuple[np.ndarray, ...]] = {}
        self._lock = threading.Lock()

    def get(self, key: tuple[Hashable, bytes]) -> tuple[np.ndarray, ...] | None:
        with self._lock:
            table = self._found.pop(key, None)
            if table is not None:
                self._found[key] = table  # now the last to be evicted
            return table

    def put(self, key: tuple[Hashable, bytes], table: tuple[np.ndarray, ...]) -> None:
        with self._lock:
            self._room += _num_bytes(self._found.pop(key, ())) - _num_bytes(table)
            self._found[key] = table
            while self._room < 0:
                self._room += _num_bytes(self._found.pop(next(iter(self._found))))


def _num_bytes(arrays: Sequence[np.ndarray]) -> int:
    return sum(each.nbytes for each in arrays)


_TABLES = _Tables(512 << 20)


def kept(of: Hashable, eps_G: np.ndarray, compute: Callable[[], _Arrays]) -> _Arrays:
    """What ``compute`` returns, which is of nothing but ``of`` and the epsilons: once, as long as there is room."""
    key = (of, eps_G.tobytes())
    if (known := _TABLES.get(key)) is not None:
        return cast("_Arrays", known)
    table = compute()
    for array in table:
        array.setflags(write=False)
    _TABLES.put(key, table)
    return table


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
    """The profile of a labelled mixture: the mean of its labels' profiles."""

    family: Family
    weight_L: np.ndarray
    """P(label); sums to 1 less ``cut``."""
    cut: float
    """Mass of labels that were cut; counted as infinite loss."""

    @property
    def size(self) -> int:
        """How many mixtures ``curve`` computes."""
        return len(self.family.shifts_LJ)

    @property
    def moments(self) -> Profile:
        """A profile whose Renyi divergences are at least those of this one."""
        return self

    def curve(self, eps_G: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """delta(eps) with e' and u' added, and removed. ``eps_G`` symmetric about 0. Shapes (G,), (G,)."""
        add_LG, remove_LG = self.family.curves(eps_G)
        return self._mean(add_LG), self._mean(remove_LG)

    def toward(self, eps_G: np.ndarray, side: int) -> np.ndarray:
        """One of the two directions of ``curve``, which may take half as long."""
        return self._mean(self.family.curves(eps_G)[side])

    @property
    def least_from(self) -> float:
        """The distance of an epsilon from 0 from which on ``least`` is ``toward``."""
        return 0.0

    def least(self, eps_G: np.ndarray, side: int) -> np.ndarray:
        """What may be less than ``toward`` near 0, and takes less time."""
        return self.toward(eps_G, side)

    def _mean(self, delta_LG: np.ndarray) -> np.ndarray:
        return np.minimum(self.weight_L @ delta_LG + self.cut, 1.0)


@dataclass(eq=False)
class Replaced(Profile):
    """The profile of a release from a secret, uniform subset of a fixed number of records, of which one is replaced.

    Of its two directions the larger at each epsilon: both worlds have such a record, so either may be the first. Proof:
    docs/accounting.md, "Noised representations".
    """

    def curve(self, eps_G: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        add_G, remove_G = super().curve(eps_G)
        either_G = np.where(eps_G >= 0.0, add_G, remove_G)
        return either_G, either_G

    def toward(self, eps_G: np.ndarray, side: int) -> np.ndarray:
        return self.curve(eps_G)[side]


def replaced(sensitivity: float, noise_std: float, *, share: float) -> Replaced:
    """The same of one Gaussian mechanism on a ``share`` of all records."""
    family = Family(np.array([[0.0, sensitivity]]), np.array([[1.0 - share, share]]), noise_std)
    return Replaced(family, np.ones(1), 0.0)


def gaussian(sensitivity: float, noise_std: float) -> Profile:
    """The profile of one Gaussian mechanism."""
    return Profile(Family(np.array([[sensitivity]]), np.ones((1, 1)), noise_std), np.ones(1), 0.0)
