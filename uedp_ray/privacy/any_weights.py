"""The profile of a round in which an entity's holders count with whatever weights, which sum to K at most.

    >>> import numpy as np
    >>> from uedp_ray.privacy.dominating import one_round
    >>> from uedp_ray.privacy.mechanisms.poisson import RoundMechanism
    >>> settings = {"noise_multiplier": 2.0, "user_sampling_prob": 0.25, "max_holders": 1, "entity_clip": 0.4}
    >>> weighed = RoundMechanism(**settings, holder_bound="reweight", max_users=1000)
    >>> eps = np.array([-0.01, 0.0, 0.01])
    >>> [round(delta, 7) for delta in one_round(weighed).curve(eps)[0].tolist()]
    [0.0729898, 0.068815, 0.0648901]
    >>> [round(delta, 7) for delta in one_round(RoundMechanism(**settings)).curve(eps)[0].tolist()]    # K that count in full
    [0.0729546, 0.0688111, 0.06489]

Let g(x) be the profile at some epsilon if drawn holders of total weight x move the sum, and N ~ Binomial(K, q_u). Whatever
the weights, the round's profile is at most E h(N), for every convex h that is at least g on [0, K]. Where g is convex that
is E g(N), the profile of K holders that count in full; it is convex but for epsilons near 0 (``_first_epsilons``). There h
is the lesser, epsilon by epsilon, of the lowest line above g, and of g up to some point and a line from there on.
Theorem, lemmas and proofs: docs/accounting.md, "Weights". Everything is rounded upwards. Inputs are public. Units: beta = 1.
"""
# Shape legend: L = labels, J = mixture components, X = nodes (weights of drawn holders), G = grid of epsilons.

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from scipy import special

from uedp_ray.privacy.profiles import Family, Profile, kept

_NODES = 100
"""Cells over all of [0, K], and as many over the part of it where the weight that is drawn usually lies."""
_TANGENTS = 16
"""Points from which a line is tried."""
_STEPS = 24
"""Halvings of the range in which the slope of the lowest line is looked for: any slope gives a bound."""


class Counts(NamedTuple):
    """The number of drawn holders, binomial, as labels: values rounded up, their probabilities, and what was cut above."""

    count_L: np.ndarray
    mass_L: np.ndarray
    cut: float

    def mean_beyond(self, start: int, trials: int, prob: float) -> float:
        """At least E (N - start)+. ``start``: one of the values."""
        beyond = float(self.mass_L @ np.maximum(self.count_L - start, 0))
        if self.cut:
            last = int(self.count_L[-1])
            ratio = (
                (trials - last) / (last + 1) * (prob / (1.0 - prob))
            )  # of one probability to the one before: it falls
            beyond += self.cut * (last - start + 1.0 / (1.0 - ratio)) if ratio < 1.0 else math.inf
        return beyond


@dataclass(eq=False)
class AnyWeights(Profile):
    """At least the profile of each round whose holders have weights in [0, 1] that sum to K; labels are counts of holders.

    ``family``, ``weight_L`` and ``cut`` are those of K holders that count in full.
    """

    counts: Counts
    rare: Counts
    """As ``counts``, but for far rarer ones, too."""
    tail: float
    """How much label mass may be cut."""
    holders: int
    """K."""
    draw_prob: float
    shift: float
    """How far a drawn holder of weight 1 moves the sum."""
    user_prob: float
    """Probability that the protected user is drawn too, and moves it by 1."""
    for_all: float
    """Probability that the drawn holders use the entity: one draw for all of them."""

    @property
    def size(self) -> int:
        return super().size + len(self._node_X)

    def curve(self, eps_G: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return self.toward(eps_G, 0), self.toward(eps_G, 1)

    def toward(self, eps_G: np.ndarray, side: int) -> np.ndarray:
        return kept((self, side), eps_G, lambda: (self._toward(eps_G, side),))[0]

    @np.errstate(over="ignore", invalid="ignore")  # with hardly any noise: NaN then counts as lost
    def _toward(self, eps_G: np.ndarray, side: int) -> np.ndarray:
        delta_G = super().toward(eps_G, side)
        near_G = np.abs(eps_G) < self._limit
        if near_G.any():
            whole_LG = self.family.curves(eps_G)[side][:, near_G]
            eps_G = eps_G[near_G]
            nodes_XG = self._nodes.curves(eps_G)[side]
            if side == 0:
                delta_G[near_G] = self._bound(eps_G, whole_LG, nodes_XG, np.ones_like(eps_G))
            else:  # delta_QP(eps) = 1 - exp(eps) + exp(eps) delta_PQ(-eps): convex where that is
                delta_G[near_G] = self._bound(-eps_G, whole_LG, nodes_XG, np.exp(np.minimum(eps_G, 700.0)))
        return delta_G

    @property
    def least_from(self) -> float:
        with np.errstate(over="ignore", invalid="ignore"):  # as in ``toward``
            return self._limit

    def least(self, eps_G: np.ndarray, side: int) -> np.ndarray:
        return super().toward(eps_G, side)

    @property
    def moments(self) -> Profile:
        """K holders that count in full: their moments are convex in the shift, if the entity is always used, and if the
        protected user is drawn visibly or moves the sum by at most two standard deviations (docs).

        Given that no more than some weight is drawn. Beyond it moments are continued by a line, that is by more of the last
        two labels.
        """
        above_L = np.cumsum(self.rare.mass_L[::-1])[::-1] + self.rare.cut  # P(that count or more)
        last = int(np.argmax(np.append(above_L <= self.tail, True)))
        count_L, mass_L, cut = self.rare.count_L[: last + 1], self.rare.mass_L[: last + 1].copy(), 0.0
        if last < len(above_L):
            mass_L[last] = above_L[last]
        elif count_L[-1] < self.holders:  # the next count is rarer than all that matters
            count_L, mass_L = np.append(count_L, count_L[-1] + 1), np.append(mass_L, self.rare.cut)
            above_L = np.append(above_L, self.rare.cut)
        if count_L[-1] < self.holders:
            beyond = self.rare.mean_beyond(count_L[-1], self.holders, self.draw_prob)
            cut = above_L[last] + beyond / (count_L[-1] - count_L[-2])
            count_L, mass_L = np.append(count_L, count_L[-1] + 1), np.append(mass_L, beyond) / (1.0 - cut)
        shift_L, noise = count_L * self.shift, self.family.noise_multiplier
        if 0.0 < self.user_prob < 1.0 and noise < 0.5:
            shifts = np.concatenate([shift_L, shift_L + 1.0])[:, None]
            mass_L = np.outer([1.0 - self.user_prob, self.user_prob], mass_L).ravel()
            return Profile(Family(shifts, np.ones_like(shifts), noise), mass_L, cut)
        return Profile(Family(*mixtures(shift_L, 1.0, self.user_prob), noise), mass_L, cut)

    @cached_property
    def _node_X(self) -> np.ndarray:
        mean = self.holders * self.draw_prob
        usual = min(float(self.holders), mean + 4.0 * math.sqrt(mean * (1.0 - self.draw_prob)) + 1.0)
        return np.union1d(*(np.linspace(0.0, most, _NODES + 1) for most in (float(self.holders), usual)))

    @cached_property
    def _nodes(self) -> Family:
        parts = mixtures(self._node_X * self.shift, self.for_all, self.user_prob)
        return Family(*parts, self.family.noise_multiplier)

    @cached_property
    def _first_epsilons(self) -> tuple[np.ndarray, np.ndarray]:
        """(X,) and (X,): up to node x, g is convex at epsilons from the second one on, and up to the first one (docs)."""
        noise, prob = self.family.noise_multiplier, self.user_prob
        start_X, user = self._node_X * self.shift / noise, 1.0 / noise
        peak = user if prob else 0.0
        for _ in range(50 if 0.0 < prob < 1.0 else 0):  # falls to the largest mode of the mixture, and never below it
            peak = user * special.expit(math.log(prob) - math.log1p(-prob) + user * (peak - user / 2))

        def log_ratio(x_X: np.ndarray) -> np.ndarray:
            users = [(d, p) for d, p in ((0.0, 1.0 - prob), (user, prob)) if p]
            moved = [(start_X + d, p * self.for_all) for d, p in users]
            still = [(np.full_like(x_X, d), p * (1.0 - self.for_all)) for d, p in users if self.for_all < 1.0]
            return np.logaddexp.reduce([math.log(max(p, 1e-300)) + s_X * (x_X - s_X / 2) for s_X, p in moved + still])

        lowest_X = np.zeros_like(start_X)
        if self.for_all < 1.0 and prob:  # below 0 as far as the user's part of the mixture holds the threshold back
            ratio, rest_X = (1.0 - self.for_all) / self.for_all, np.maximum(user - start_X, 0.0)
            scale_X = (1.0 - prob) / max(prob * user, 1e-300) * np.exp((user * user - start_X * start_X) / 2)
            with np.errstate(divide="ignore", invalid="ignore"):
                lowest_X = np.where(rest_X > 0.0, -special.lambertw(rest_X * ratio / scale_X).real / rest_X, -1e300)
        low_X, high_X = log_ratio(lowest_X), log_ratio(start_X + peak)
        low_X, high_X = (
            np.nan_to_num(low_X, nan=-np.inf),
            np.nan_to_num(high_X, nan=np.inf),
        )  # not known: nowhere convex
        return np.minimum.accumulate(low_X), np.maximum.accumulate(high_X)

    @property
    def _limit(self) -> float:
        """The largest distance of an epsilon from 0 at which g may not be convex on [0, K]."""
        low_X, high_X = self._first_epsilons
        return float(max(-low_X[-1], high_X[-1]))

    def _bound(self, eps_G: np.ndarray, g_LG: np.ndarray, g_XG: np.ndarray, slack_G: np.ndarray) -> np.ndarray:
        """E h(N) at each epsilon, from g at the counts and at the nodes; ``slack_G``: times how concave g may be."""
        x, mean = self._node_X, self.holders * self.draw_prob
        low_X, high_X = self._first_epsilons
        convex_XG = (low_X[:, None] >= eps_G) | (high_X[:, None] <= eps_G)
        convex_XG[0] = True
        last_G = len(x) - 1 - np.argmax(convex_XG[::-1], axis=0)  # the last node up to which g is convex
        # In a cell g exceeds its chord by little, and nowhere the value at the cell's end.
        step = self.shift / self.family.noise_multiplier
        width = np.diff(x) * step
        excess_X = np.maximum(np.append(width, 0.0), np.append(0.0, width)) ** 2 * (_CURVATURE / 8)
        beyond_XG = np.arange(len(x))[:, None] >= last_G
        by_chord = g_XG + np.where(beyond_XG, excess_X[:, None] * slack_G, 0.0)
        by_end = np.where(beyond_XG, np.concatenate([g_XG[1:], g_XG[-1:]]), g_XG)
        # Either may be the lower: in a tail, far less than what a chord may be exceeded by; where cells are wide.
        line_G = self._lowest_line(x, mean, np.hstack([by_chord, by_end]))
        least_G = np.minimum(line_G[: len(eps_G)], line_G[len(eps_G) :])
        if self.holders > 1:  # else h need only be right at 0 and 1: a line is best
            tangents = (self._least_tangent(x, last_G, g_LG, g_XG, each) for each in (by_chord, by_end))
            least_G = np.minimum.reduce([least_G, *tangents])
        bound_G = np.maximum(least_G, self.weight_L @ g_LG) + self.cut
        return np.clip(np.where(np.isnan(bound_G), 1.0, bound_G), 0.0, 1.0)

    def _lowest_line(self, x: np.ndarray, mean: float, above_XG: np.ndarray) -> np.ndarray:
        """The least E h(N) of lines h that are found; ``above_XG``: between nodes, lines through these are at least g."""
        # The lowest line at the mean: its slope is where the node that holds it up passes the mean.
        low_G, column_G = np.zeros_like(above_XG[0]), np.arange(above_XG.shape[1])
        high_G = (np.diff(above_XG, axis=0) / np.diff(x)[:, None]).max(0).clip(0.0)
        best_G = np.full_like(low_G, np.inf)
        for _ in range(_STEPS):
            slope_G = (low_G + high_G) / 2
            rest_XG = above_XG - x[:, None] * slope_G
            top_G = rest_XG.argmax(0)
            best_G = np.minimum(best_G, rest_XG[top_G, column_G] + mean * slope_G)
            right_G = x[top_G] > mean
            low_G, high_G = np.where(right_G, slope_G, low_G), np.where(right_G, high_G, slope_G)
        return best_G

    def _least_tangent(
        self, x: np.ndarray, last_G: np.ndarray, g_LG: np.ndarray, g_XG: np.ndarray, above_XG: np.ndarray
    ) -> np.ndarray:
        """The least E h(N) where h is g up to some point, and a line from there on."""
        column_G = np.arange(above_XG.shape[1])
        best_G = np.full(above_XG.shape[1], np.inf)
        count_L1, cut = self.counts.count_L[:, None], self.counts.cut
        beyond = self.counts.mean_beyond(self.counts.count_L[-1], self.holders, self.draw_prob)
        for share in np.linspace(0.0, 1.0, _TANGENTS):
            from_G = (share * np.maximum(last_G - 1, 0)).astype(int)
            known_G = last_G > from_G  # convex up to the next node; else the line begins above g, at node 0
            g_G = np.where(known_G, g_XG[from_G, column_G], above_XG[from_G, column_G])
            start_G = x[from_G]
            after_XG = x[:, None] > start_G
            rise_XG = np.divide(above_XG - g_G, x[:, None] - start_G, where=after_XG, out=np.zeros_like(above_XG))
            slope_G = rise_XG.max(0)
            h_LG = np.where(count_L1 < start_G, g_LG, g_G + slope_G * (count_L1 - start_G))
            mean_G = self.weight_L @ h_LG + cut * h_LG[-1] + beyond * slope_G
            usable_G = known_G | (from_G == 0)
            best_G = np.where(usable_G, np.minimum(best_G, mean_G), best_G)
        return best_G


_CURVATURE = 2.0 * math.exp(-0.5) / math.sqrt(2.0 * math.pi)
"""What a shift by s standard deviations adds to a probability has a second derivative in s of at least -2 phi(1)."""


def mixtures(shift_L: np.ndarray, for_all: float, user_prob: float) -> tuple[np.ndarray, np.ndarray]:
    """(L, J) shifts and probabilities: each shift with probability ``for_all``, else 0; and 1 more if the user is drawn."""
    shifts_LJ = np.stack([np.zeros_like(shift_L), shift_L], 1).astype(float)
    return with_user(shifts_LJ, np.broadcast_to([1.0 - for_all, for_all], shifts_LJ.shape), user_prob)


def with_user(shifts_LJ: np.ndarray, probs_LJ: np.ndarray, prob: float) -> tuple[np.ndarray, np.ndarray]:
    """Adds the protected user: a shift of 1 more with probability ``prob``."""
    if prob == 0.0:
        return shifts_LJ, probs_LJ
    return np.concatenate([shifts_LJ, shifts_LJ + 1.0], 1), np.concatenate([(1 - prob) * probs_LJ, prob * probs_LJ], 1)
