"""Holders of any weights: the bound against the exact profiles of weights that are tried, and against calculus."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from tests.privacy.mechanisms import REWEIGHT, change
from uedp_ray.privacy import accounting, composition, profiles, renyi
from uedp_ray.privacy.accounting import compose, epsilon
from uedp_ray.privacy.any_weights import AnyWeights, mixtures, with_user
from uedp_ray.privacy.dominating import one_round
from uedp_ray.privacy.mechanisms.poisson import RoundMechanism
from uedp_ray.privacy.profiles import Family, Profile

GRID = np.concatenate([-np.geomspace(1e-3, 12.0, 40)[::-1], [0.0], np.geomspace(1e-3, 12.0, 40)])


def of_weights(mechanism: RoundMechanism, weights: list[float], unit: str) -> Profile:
    """The round of an entity whose holders have these weights, from first principles: one label for each set of them."""
    drawn_LH = np.array(list(itertools.product([0, 1], repeat=len(weights))))
    prob_L = stats.binom.pmf(drawn_LH, 1, mechanism.user_sampling_prob).prod(1)
    moved_L = drawn_LH @ np.array(weights) * mechanism.entity_clip
    user_prob = mechanism.user_sampling_prob if unit == "user-entity" else 0.0
    q_e = 1.0 if mechanism.selection_rule == "any" else mechanism.entity_sampling_prob
    if mechanism.entity_draw == "global" or q_e == 1.0:
        parts = mixtures(moved_L, q_e, user_prob)
    else:  # each drawn holder draws it too, or not: hidden
        chosen_JH = drawn_LH
        shifts_LJ = np.array([chosen_JH @ (drawn * weights) for drawn in drawn_LH]) * mechanism.entity_clip
        probs_J = stats.binom.pmf(chosen_JH, 1, q_e).prod(1)
        parts = with_user(shifts_LJ, np.broadcast_to(probs_J, shifts_LJ.shape), user_prob)
    return Profile(Family(*parts, mechanism.noise_multiplier), prob_L, 0.0)


def drawn_weights(random: np.random.Generator, holders: int) -> list[float]:
    """Weights in [0, 1] that sum to ``holders`` at most: equal, unequal, and those of the counterexample."""
    which = random.integers(4)
    if which == 0:
        count = int(random.integers(holders, 8))
        return [holders / count] * count
    if which == 1:
        return [*[1.0] * (holders - 1), 0.5, 0.5]
    raw = random.uniform(size=7) ** random.uniform(0.2, 5.0)
    weights = np.minimum(raw * holders / raw.sum(), 1.0)
    return list(weights)


def drawn_mechanism(random: np.random.Generator) -> RoundMechanism:
    return RoundMechanism(
        noise_multiplier=float(np.exp(random.uniform(math.log(0.1), math.log(5.0)))),
        user_sampling_prob=float(random.choice([0.01, 0.1, 0.25, 0.5, 0.9])),
        entity_sampling_prob=float(random.choice([1.0, 0.9, 0.5, 0.1])),
        selection_rule=str(random.choice(["all", "all", "any"])),
        entity_draw=str(random.choice(["global", "global", "per_user"])),
        max_holders=int(random.integers(1, 4)),
        entity_clip=float(random.uniform(0.05, 1.9)),
        holder_bound="reweight",
        max_users=1000,
    )


@pytest.mark.parametrize("seed", range(30))
def test_no_weights_beat_the_bound(seed):
    random = np.random.default_rng(seed)
    mechanism = drawn_mechanism(random)
    for unit in ("user-entity", "entity"):
        bounds = one_round(mechanism, unit).curve(GRID)
        for _ in range(4):
            weights = drawn_weights(random, mechanism.max_holders)
            exact = of_weights(mechanism, weights, unit).curve(GRID)
            for bound, found in zip(bounds, exact, strict=True):
                assert (found <= bound + 1e-13).all(), (mechanism, unit, weights)


@pytest.mark.parametrize("seed", range(20))
def test_no_weights_beat_the_moments(seed):
    random = np.random.default_rng(1000 + seed)
    mechanism = drawn_mechanism(random)
    orders = (1.05, 1.5, 2.0, 3.5, 8.0, 16.0)
    for unit in ("user-entity", "entity"):
        bound, _ = renyi.rdp([(mechanism, 1)], lost=1e-13, unit=unit, orders=orders)
        for _ in range(3):
            weights = drawn_weights(random, mechanism.max_holders)
            exact, _ = renyi.of_profile(of_weights(mechanism, weights, unit), orders)
            assert (exact <= bound * (1 + 1e-9) + 1e-11).all(), (mechanism, unit, weights)


def test_unequal_weights_beat_every_equal_ones_and_are_covered():
    """Two holders at 1/2 and one at 1: where two must be drawn to tell, pairs are more likely than among two that count."""
    one = change(
        REWEIGHT,
        noise_multiplier=0.05,
        user_sampling_prob=0.0025,
        entity_sampling_prob=1.0,
        max_holders=2,
        entity_clip=0.4,
    )
    call = {"rounds": 1, "delta": 1e-5, "unit": "entity", "kind": "entity"}

    def at(weights: list[float]) -> float:
        curve, _ = of_weights(one, weights, "entity").curve(
            np.concatenate([-np.arange(1, 900)[::-1], np.arange(900)]) / 10
        )
        return float(np.argmax(curve[899:] <= 1e-5)) / 10

    equal = max(at([2 / holders] * holders) for holders in range(2, 9))
    assert equal == pytest.approx(56.6, abs=0.11)
    assert at([1.0, 0.5, 0.5]) == pytest.approx(61.5, abs=0.11)
    assert epsilon(one, **call) >= at([1.0, 0.5, 0.5]) - 0.1
    assert epsilon(one, **call) <= 68


@pytest.mark.parametrize(
    ("for_all", "unit"), [(1.0, "user-entity"), (0.5, "user-entity"), (1.0, "entity"), (0.5, "entity")]
)
@pytest.mark.parametrize("prob", [0.05, 0.25, 0.8])
@pytest.mark.parametrize("noise", [0.6, 1.3, 4.0])
def test_profiles_are_convex_in_the_shift_where_they_are_taken_to_be(noise, prob, for_all, unit):
    one = change(
        REWEIGHT,
        noise_multiplier=noise,
        user_sampling_prob=prob,
        entity_sampling_prob=for_all,
        max_holders=2,
        entity_clip=0.7,
    )
    profile = one_round(one, unit)
    assert isinstance(profile, AnyWeights)
    low_X, high_X = profile._first_epsilons
    x = profile._node_X
    step = np.diff(x).min() / 4
    eps = np.concatenate([-np.linspace(0, 3, 121)[:0:-1], np.linspace(0, 3, 121)])
    tables = [
        Family(*mixtures((x + move) * profile.shift, for_all, profile.user_prob), noise).curves(eps)[0]
        for move in (-step, 0.0, step)
    ]
    second = tables[0] - 2 * tables[1] + tables[2]
    inside = (x > step) & (x < 2 - step)
    convex = (low_X[:, None] >= eps) | (high_X[:, None] <= eps)
    assert (second[inside][convex[inside]] >= -1e-13).all()
    concave = second[inside] < -1e-10
    assert concave.any(), "somewhere near 0 it is not: a bound by K holders that count in full would not hold"


@pytest.mark.parametrize("holders", [1, 2, 5, 40, 5000])
@pytest.mark.parametrize("q_e", [1.0, 0.5])
def test_any_weights_cost_hardly_more_than_holders_that_count_in_full(holders, q_e):
    one = change(
        REWEIGHT,
        noise_multiplier=1.0 + 0.02 * holders,
        user_sampling_prob=0.25,
        entity_sampling_prob=q_e,
        max_holders=holders,
        max_users=100_000,
        entity_clip=0.2,
    )
    call = {"rounds": 20, "delta": 1e-5, "kind": "entity"}
    whole = epsilon(change(one, holder_bound="truncate"), **call)
    assert whole <= epsilon(one, **call) <= whole * (1 + 2e-3)


@pytest.mark.parametrize(
    ("holders", "clip", "q_u", "noise"), [(5, 0.4, 0.5, 13.7), (3, 0.4, 0.8, 15.2), (4, 0.4, 0.9, 6.01)]
)
def test_tails_cost_nothing_where_no_profile_is_known_to_be_convex(holders, clip, q_u, noise):
    """Entities that are drawn for all (q_e < 1) and move the sum by more than the user does (K beta_e > 1)."""
    one = change(
        REWEIGHT,
        noise_multiplier=noise,
        user_sampling_prob=q_u,
        entity_sampling_prob=0.9,
        max_holders=holders,
        max_users=1000,
        entity_clip=clip,
    )
    call = {"rounds": 20, "delta": 1e-5, "kind": "entity", "unit": "user-entity"}
    whole = epsilon(change(one, holder_bound="truncate"), **call)
    assert whole <= epsilon(one, **call) <= whole * 1.03


@pytest.mark.parametrize("seed", range(12))
def test_no_weights_beat_the_moments_where_rare_labels_are_cut(seed):
    """Given that no more than some weight is drawn, an event that ignores the text, and whose complement is counted."""
    random = np.random.default_rng(2000 + seed)
    one = change(
        drawn_mechanism(random),
        max_holders=3,
        user_sampling_prob=0.1,
        entity_sampling_prob=1.0,
        noise_multiplier=0.7,
    )
    for tail in (0.05, 0.03):
        bound = one_round(one, "entity", tail=tail).moments
        last = len(bound.weight_L) - 2  # the labels are 0, 1, … and one more
        assert last < 3
        assert bound.cut > 0
        for _ in range(4):
            weights = drawn_weights(random, 3)
            exact = of_weights(one, weights, "entity")
            moved_L = exact.family.shifts_LJ[:, -1]
            within = moved_L <= last * one.entity_clip * (1 + 1e-12)
            assert exact.weight_L[~within].sum() <= bound.cut
            kept = Profile(exact.family, np.where(within, exact.weight_L, 0.0), float(exact.weight_L[~within].sum()))
            orders = (1.5, 4.0, 32.0)
            assert (renyi.of_profile(kept, orders)[0] <= renyi.of_profile(bound, orders)[0] + 1e-11).all()


@pytest.mark.parametrize("holder_bound", ["truncate", "reweight"])
@pytest.mark.parametrize("tail", [0.1, 1e-2, 5e-3])
@pytest.mark.parametrize(("holders", "q_u"), [(3, 0.15), (12, 0.3), (300, 0.004)])
def test_labels_that_are_cut_are_counted_as_lost(holders, q_u, tail, holder_bound):
    settings = {"max_holders": holders, "user_sampling_prob": q_u, "noise_multiplier": 0.7, "max_users": 1000}
    one = change(REWEIGHT, **settings, holder_bound=holder_bound)
    epsilons = np.linspace(-6.0, 6.0, 49)
    drawn_L = np.arange(holders + 1)
    parts = mixtures(drawn_L * one.entity_clip, one.entity_sampling_prob, 0.0)
    exact = Profile(Family(*parts, 0.7), stats.binom.pmf(drawn_L, holders, q_u), 0.0)
    bound = one_round(one, "entity", tail=tail)
    assert bound.cut > 0
    for at_most, delta in zip(bound.curve(epsilons), exact.curve(epsilons), strict=True):
        assert (at_most >= delta - 1e-13).all()


@pytest.mark.parametrize("holders", [1, 5])
def test_holders_that_are_hardly_ever_drawn_have_moments(holders):
    rare = change(REWEIGHT, user_sampling_prob=1e-30, max_holders=holders)
    rates, cut = renyi.rdp([(rare, 10)], lost=1e-9)
    assert cut <= 1e-9
    assert 0.0 <= rates[0] < 1e-9


def test_where_the_mode_of_the_mixture_overflows_nothing_is_taken_to_be_convex():
    """It was not a number, so that profiles that are concave were priced as convex ones."""
    one = change(
        REWEIGHT,
        noise_multiplier=0.025,
        user_sampling_prob=0.99996,
        entity_sampling_prob=1.0,
        max_holders=2,
        entity_clip=0.4,
    )
    assert np.isfinite(one_round(one)._first_epsilons).all()
    assert epsilon(one, rounds=1, delta=0.9999, kind="entity") >= 2314.0


def test_a_line_from_where_nothing_is_drawn_covers_the_first_cell():
    """The weight of very many holders, of whom each draws the entity rarely: it hardly varies."""
    one = change(
        REWEIGHT,
        noise_multiplier=0.055,
        user_sampling_prob=0.99,
        entity_sampling_prob=0.00138,
        entity_draw="per_user",
        max_holders=2,
        entity_clip=1.97,
    )
    moved = 2 * 0.99 * 0.00138 * 1.97
    exact = Profile(Family(*with_user(np.array([[moved]]), np.ones((1, 1)), 0.99), 0.055), np.ones(1), 0.0)
    eps = np.array([-150.6, 0.0, 150.6])
    assert exact.curve(eps)[0][-1] == pytest.approx(0.7932, abs=1e-3)
    for bound, found in zip(one_round(one).curve(eps), exact.curve(eps), strict=True):
        assert (bound >= found - 1e-12).all()


def test_a_count_that_is_rarer_than_all_that_matters_is_no_error():
    one = change(REWEIGHT, user_sampling_prob=1e-9, entity_sampling_prob=1.0, entity_clip=0.4)
    assert epsilon(one, rounds=300_000, delta=1e-2) < 3.0


@pytest.mark.parametrize("noise", [1e-20, 1e-150, 1e-160, 1e-300])
def test_a_round_with_hardly_any_noise_among_others_bounds_nothing(noise):
    """Its profile was not a number, which was taken to be no loss where it was looked for."""
    one = change(
        REWEIGHT, user_sampling_prob=0.4, entity_sampling_prob=1.0, max_holders=2, max_users=30, noise_multiplier=1.0
    )
    bare = change(one, noise_multiplier=noise)
    for unit in ("user-entity", "entity", "user"):
        assert compose([(one, 3), (bare, 1)], delta=1e-5, unit=unit) == math.inf
    for curve in one_round(bare).curve(np.array([-1.0, 0.0, 1.0])):
        assert not np.isnan(curve).any()


def test_the_bound_at_an_epsilon_is_computed_once_for_every_number_of_rounds(monkeypatch):
    one = change(REWEIGHT, noise_multiplier=1.2345)
    epsilon(one, rounds=60, delta=1e-5)
    asked = []
    bound = AnyWeights._bound
    monkeypatch.setattr(AnyWeights, "_bound", lambda self, eps, *rest: asked.append(eps) or bound(self, eps, *rest))
    again = epsilon(one, rounds=61, delta=1e-5)
    assert not asked, "one more round has the same profile, and lies on the same grids"
    monkeypatch.setattr(profiles, "_TABLES", profiles._Tables(1))  # which keeps nothing
    for cached in (accounting._epsilon, composition._one_round):
        cached.cache_clear()
    assert epsilon(one, rounds=61, delta=1e-5) == again
    assert asked


@pytest.mark.parametrize("seed", range(10))
def test_what_is_cheaper_is_no_more_and_far_from_0_the_same(seed):
    profile = one_round(drawn_mechanism(np.random.default_rng(seed)))
    far = np.abs(GRID) >= profile.least_from
    for side, curve in enumerate(profile.curve(GRID)):
        least = profile.least(GRID, side)
        assert (least <= curve * (1 + 1e-12)).all()
        assert (least[far] == curve[far]).all()


@pytest.mark.parametrize("seed", range(10))
def test_the_range_of_losses_is_that_of_all_epsilons_looked_at(seed):
    """It is looked for without what takes long: whatever decides it must not be left out."""
    random = np.random.default_rng(seed)
    profile, tail = one_round(drawn_mechanism(random)), float(10.0 ** random.uniform(-14, -3))
    coarse = 2.0 ** np.arange(-24.0, 18.0)
    for side, found in enumerate(composition._reach(profile, tail)):
        eps = coarse
        for _ in range(2):
            delta = profile.curve(np.concatenate([-eps[::-1], [0.0], eps]))[side][eps.size :]
            over = np.flatnonzero(~(delta <= tail))
            reach = float(eps[min(over[-1], eps.size - 1)]) if over.size else 0.0
            eps = 2.0 ** np.arange(-0.75, 0.25, 0.25) * reach
        assert found == reach
