"""The best of a random number of runs, against exact small mechanisms, check values and the other accountants."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tests.privacy.mechanisms import BASE, REWEIGHT, change
from uedp_ray.errors import InputError
from uedp_ray.privacy import accounting, best_of, laws, selection, sequence
from uedp_ray.privacy.composition import Losses
from uedp_ray.privacy.mechanisms.poisson import RoundMechanism

LAWS = laws.LAWS
CALL = {"delta": 1e-5, "unit": "user-entity", "kind": "entity"}


def price(candidates, *, mean, law, **call):
    return best_of.epsilon(candidates, mean=mean, law=law, **{**CALL, **call})


# mu of a Gaussian pair, law, mean; the theorem's bound, and what the worst order of scores attains.
GAUSSIAN = [
    (1.0, "logarithmic", 8.0, 5.9380, 5.9233),
    (1.0, "geometric", 8.0, 6.2283, 6.2083),
    (1.0, "logarithmic", 32.0, 6.7785, 6.7607),
    (1.666, "logarithmic", 8.0, 10.5388, 10.5200),
    (1.666, "geometric", 8.0, 11.0170, 10.9916),
    (1.666, "logarithmic", 32.0, 11.8966, 11.8732),
]


@pytest.mark.parametrize(("mu", "law", "mean", "bound", "attained"), GAUSSIAN)
def test_check_values_of_the_theorem(mu, law, mean, bound, attained):
    one = RoundMechanism(noise_multiplier=1.0 / mu, user_sampling_prob=1.0, max_holders=0)
    found = price([[(one, 1)]], mean=mean, law=law, unit="user")
    assert attained < found
    assert bound - 1e-4 <= found <= 1.004 * bound


def probability_of(law, mean):
    """s -> E s^J."""
    gamma = laws.halting(mean, law)
    if law == "poisson":
        return lambda s: np.exp(mean * (s - 1.0))
    if law == "geometric" or mean == 1.0:
        return lambda s: gamma * s / (1.0 - (1.0 - gamma) * s)
    return lambda s: np.log1p(-(1.0 - gamma) * s) / math.log(gamma)


def exact_delta(P, Q, eps, law, mean):
    """Of the best run, where outcomes are in ascending order of score: its law follows from that of J."""
    phi = probability_of(law, mean)
    best = []
    for one in (P, Q):
        below = np.append(0.0, np.cumsum(one))
        best.append(np.append(phi(0.0), np.diff(phi(np.minimum(below, 1.0)))))
    return float(np.maximum(best[0] - math.exp(eps) * best[1], 0.0).sum())


def losses_of(P, Q, gap=1e-3):
    """Losses of a finite pair, rounded up to a grid."""
    with np.errstate(divide="ignore", invalid="ignore"):
        loss = np.ceil(np.log(P / Q) / gap)
    finite = (P > 0) & (Q > 0)
    first, last = (int(loss[finite].min()), int(loss[finite].max())) if finite.any() else (0, 0)
    mass = np.zeros(last - first + 1)
    np.add.at(mass, (loss[finite] - first).astype(int), P[finite])
    return Losses(gap, first, mass, float(P[(P > 0) & (Q == 0)].sum()), 0.0)


def pairs(seed, count):
    generator = np.random.default_rng(seed)
    for _ in range(count):
        size = int(generator.integers(2, 7))
        P, Q = (generator.dirichlet(np.full(size, generator.choice([0.1, 0.5, 1.0]))) for _ in range(2))
        if generator.random() < 0.3:
            for one in (P, Q):
                one[generator.integers(size)] = 0.0
                one /= one.sum()
        yield P, Q, float(generator.choice([1.0, 1.5, 4.0, 30.0])), float(generator.choice([1e-3, 0.01, 0.05, 0.2]))


@pytest.mark.slow
@pytest.mark.parametrize("law", LAWS)
def test_no_small_mechanism_is_above_the_bound(law):
    ratios, tried = [], 0
    for P, Q, mean, delta in pairs(LAWS.index(law), 400):
        eps = best_of._one_direction(losses_of(P, Q), losses_of(Q, P), mean, law, delta)
        if eps < 20.0:  # beyond it the exact value is lost in the differences of the generating function
            tried += 1
            exact = exact_delta(P, Q, eps, law, mean)
            assert exact <= delta * (1 + 1e-9)
            ratios.append(exact / delta)
    assert tried > 200
    assert max(ratios) > 0.9, "a bound that is far from every mechanism would prove little"


def profile(losses, eps):
    """Of a pair of losses, at any epsilon."""
    return losses.infinite + float(np.maximum(0.0, -np.expm1(eps - losses.loss_G)) @ losses.mass_G)


@pytest.mark.slow
@pytest.mark.parametrize("law", LAWS)
def test_no_small_mechanism_is_above_the_profile_that_is_composed_with_others(law):
    """At every epsilon, negative ones too, in both directions."""
    ratios = []
    for P, Q, mean, _ in pairs(10 + LAWS.index(law), 120):
        best = best_of.Best([], mean, law)
        for (one, other), losses in zip(((P, Q), (Q, P)), best.of_pair(losses_of(P, Q), losses_of(Q, P)), strict=True):
            for eps in np.linspace(-6.0, 8.0, 29):
                exact, bound = exact_delta(one, other, eps, law, mean), profile(losses, eps)
                assert exact <= bound + 1e-11 * (1.0 + math.exp(eps))
                ratios.append(exact / bound if 1e-6 < exact < 0.2 else 0.0)
    assert max(ratios) > 0.9, "some order of scores attains it"


@pytest.mark.parametrize(
    ("noise", "law", "mean"),
    [(0.032, "logarithmic", 8.0), (0.2, "poisson", 673.0), (0.22, "poisson", 699.0), (1.0, "poisson", 10_000.0)],
)
def test_what_is_beyond_floating_point_is_infinite_and_never_free(noise, law, mean):
    """exp of its largest losses overflows: a NaN on the way came out as 0."""
    one = [(RoundMechanism(noise_multiplier=noise, user_sampling_prob=1.0, max_holders=0), 1)]
    chosen = sequence.epsilon([], delta=1e-5, unit="user", best=best_of.Best([one], mean, law))
    assert chosen >= 0.99 * accounting.epsilon(one[0][0], rounds=1, delta=1e-5, unit="user")


def test_a_poisson_number_of_a_mean_of_thousands_has_a_price():
    one = [(RoundMechanism(noise_multiplier=60.0, user_sampling_prob=1.0, max_holders=0), 1)]
    found = [
        sequence.epsilon([], delta=1e-5, unit="user", best=best_of.Best([one], mean, "poisson"))
        for mean in (30.0, 700.0, 800.0, 10_000.0)
    ]
    assert 0.0 < found[0] < found[1] <= found[2] <= found[3] < math.inf


def test_alone_it_has_the_epsilon_of_the_best_run():
    for law, mean in (("logarithmic", 8.0), ("geometric", 32.0), ("poisson", 4.0)):
        best = best_of.Best([[(BASE, 50)], [(BASE, 20)]], mean, law)
        pair = best.losses("user-entity", "entity", 1e-5)
        composed = max(sequence.composed_epsilon([([losses], 1)], 1e-5) for losses in pair)
        assert composed == pytest.approx(price(best.candidates, mean=mean, law=law), rel=5e-3)


def test_the_profile_of_the_other_direction_is_the_one_that_counts():
    """With the same profile in both places the bound is false: the trap of the theorem."""
    P, Q, mean = np.array([0.991, 0.0, 0.009]), np.array([0.2837, 0.0283, 0.688]), 29.68
    exact = exact_delta(P, Q, 2.5, "logarithmic", mean)
    assert exact == pytest.approx(0.0255, abs=1e-3)
    forward, reverse = losses_of(P, Q), losses_of(Q, P)
    assert best_of._one_direction(forward, reverse, mean, "logarithmic", exact) >= 2.5
    assert best_of._one_direction(forward, forward, mean, "logarithmic", exact) < 2.5


@pytest.mark.parametrize("law", ["logarithmic", "geometric"])
def test_one_run_for_certain_costs_what_it_costs(law):
    one = accounting.epsilon(BASE, rounds=50, **CALL)
    assert one <= price([[(BASE, 50)]], mean=1.0, law=law) <= 1.01 * one


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("kind", ["entity", "extended"])
def test_it_is_below_the_price_by_moments_and_above_one_run(law, kind):
    candidate = [(change(extended_clip=0.2), 50)]
    settings = {"mean": 16.0, "law": law, "delta": 1e-5, "kind": kind}
    choosing = {"searcher": "random", "early_stopping": False, "candidates": [candidate], **settings}
    profiles = selection.epsilon_of_choosing("repeat_and_select", **choosing)
    moments = selection.epsilon_of_choosing("repeat_and_select", **choosing, by="renyi")
    assert accounting.compose(candidate, delta=1e-5, kind=kind) < profiles < moments
    more = selection.epsilon_of_choosing("repeat_and_select", **(choosing | {"mean": 32.0}))
    assert more > profiles


def test_a_pool_costs_the_mean_of_its_profiles():
    quiet, loud = [(BASE, 20)], [(change(noise_multiplier=1.2), 40)]
    low, high = (price([each], mean=8.0, law="logarithmic") for each in (quiet, loud))
    both = price([quiet, loud], mean=8.0, law="logarithmic")
    assert low < both < high
    assert price([quiet, quiet, loud, loud], mean=8.0, law="logarithmic") == pytest.approx(both)
    assert price([loud, loud], mean=8.0, law="logarithmic") == pytest.approx(high)
    assert price([[], loud], mean=8.0, law="logarithmic") < high, "a run without rounds tells nothing"


@pytest.mark.parametrize("holders", [5, 8, 30, 300])
def test_reweighting_is_covered_at_every_number_of_holders(holders):
    clip = REWEIGHT.entity_clip * REWEIGHT.max_holders / holders
    there = change(REWEIGHT, holder_bound="truncate", max_holders=holders, entity_clip=clip)
    whole = price([[(REWEIGHT, 30)]], mean=8.0, law="geometric")
    assert price([[(there, 30)]], mean=8.0, law="geometric") <= whole * (1 + 2e-3)


def test_what_cannot_be_bounded_is_infinite():
    assert math.isinf(price([[(change(max_holders=None), 1)]], mean=2.0, law="geometric"))
    assert math.isinf(price([[(BASE, 300_000)]], mean=2.0, law="geometric"))
    assert price([[]], mean=2.0, law="geometric") == 0.0


@pytest.mark.parametrize(
    ("fields", "unit", "kind"),
    [
        ({"user_sampling_prob": 0.0}, "user-entity", "entity"),
        ({"extended_sampling_prob": 0.0}, "entity", "extended"),
        ({"noise_multiplier": 1e6}, "user-entity", "entity"),
    ],
)
@pytest.mark.parametrize("law", LAWS)
def test_a_candidate_that_tells_hardly_anything_has_a_price_alone_and_in_a_pool(fields, unit, kind, law):
    """Its losses have no reach, or one a million times smaller than others': no grid, or one too large to hold."""
    quiet = [(change(extended_clip=0.2, **fields), 20)]
    loud = [(change(extended_clip=0.2, noise_multiplier=0.5), 20)]
    call = {"mean": 8.0, "law": law, "unit": unit, "kind": kind}
    assert price([quiet], **call) < 0.1, "not 0: probabilities are bounded cell by cell"
    alone, both = price([loud], **call), price([quiet, loud], **call)
    assert 0.5 * alone < both < alone


@pytest.mark.parametrize(
    ("change", "field"), [({"kind": "both"}, "kind"), ({"unit": "users"}, "unit"), ({"delta": 2.0}, "delta")]
)
def test_what_it_does_not_price_is_refused(change, field):
    """``both`` was priced as the entity alone, and a delta of 2 at 0."""
    settings = {"mean": 8.0, "law": "geometric", "delta": 1e-5, "unit": "user-entity"}
    with pytest.raises(InputError, match=field):
        best_of.epsilon([[(BASE, 20)]], **(settings | {"kind": "entity"} | change))


@pytest.mark.parametrize("prob", [1e-12, 1e-30])
def test_users_that_are_hardly_ever_drawn_take_no_endless_grid(prob):
    rare = RoundMechanism(noise_multiplier=1.3, user_sampling_prob=prob, max_holders=1, entity_clip=0.4)
    best = best_of.Best([[(rare, 15)]], 16.0, "logarithmic")
    pair = best.losses("user-entity", "entity", 1e-5)
    assert pair is not None
    assert all(len(each.mass_G) <= 1 << 18 for each in pair)
    alone = best_of.epsilon([[(rare, 15)]], mean=16.0, law="logarithmic", delta=1e-5, unit="user-entity", kind="entity")
    composed = sequence.epsilon([[[]]], delta=1e-5, unit="user-entity", kind="entity", best=best)
    assert alone * (1 - 1e-3) <= composed <= 0.1
