"""Runs chosen one after another from declared sets: against exact adaptive play, and against values worked out by hand."""

from __future__ import annotations

import dataclasses
import itertools
import math

import numpy as np
import pytest

from uedp_ray.errors import InputError
from uedp_ray.privacy import accounting, sequence
from uedp_ray.privacy.composition import Losses
from uedp_ray.privacy.mechanisms.poisson import RoundMechanism

GAP = 0.25


def pair(generator) -> Losses:
    """A random pair on a few outcomes, whose losses are multiples of a gap: masses where losses are large."""
    places = np.sort(generator.choice(np.arange(-6, 9), size=generator.integers(1, 5), replace=False))
    other = generator.dirichlet(np.ones(len(places))) * generator.uniform(0.5, 1.0)
    mass = other * np.exp(places * GAP)
    mass *= min(1.0, generator.uniform(0.7, 1.0) / mass.sum())  # with less mass on the other side too: still a pair
    mass_G = np.zeros(places[-1] - places[0] + 1)
    mass_G[places - places[0]] = mass
    return Losses(GAP, int(places[0]), mass_G, 1.0 - mass.sum(), 0.0)


def outcomes(losses: Losses) -> list[tuple[float, float]]:
    known = zip(losses.mass_G.tolist(), losses.loss_G.tolist(), strict=True)
    return [*((mass, loss) for mass, loss in known if mass), (losses.infinite, math.inf)]


def worst(sets: list[list[Losses]], eps: float) -> float:
    """The largest profile that a strategy reaches which knows all earlier outcomes; exact."""
    if not sets:
        return max(0.0, 1.0 - math.exp(eps)) if eps > -math.inf else 1.0
    return max(sum(mass * worst(sets[1:], eps - loss) for mass, loss in outcomes(one)) for one in sets[0])


def profile(sets: list[list[Losses]], eps: float) -> float:
    """The profile that ``sequence`` composes."""
    whole = None
    for each in sets:
        one = sequence.largest(each, GAP)
        whole = one if whole is None else whole.compose(one)
    assert whole is not None
    loss_G = (whole._lower_loss + np.arange(len(whole._probs))) * GAP
    return whole._infinity_mass + float(np.maximum(0.0, -np.expm1(eps - loss_G)) @ whole._probs)


def test_no_strategy_beats_the_composition_of_the_largest_profiles_and_some_beat_every_fixed_sequence():
    generator = np.random.default_rng(0)
    ratios, beyond_fixed = [], 0
    for _ in range(60):
        sets = [[pair(generator) for _ in range(generator.integers(2, 4))] for _ in range(3)]
        for eps in (0.0, 0.5, 1.3, 2.5):
            bound, reached = profile(sets, eps), worst(sets, eps)
            assert bound >= reached - 1e-12
            ratios.append(bound / reached if reached > 1e-9 else 1.0)
            fixed = max(worst([[one] for one in each], eps) for each in itertools.product(*sets))
            beyond_fixed += reached > 1.01 * fixed
    assert np.median(ratios) < 1.1, "no more than the theorem has to give away"
    assert beyond_fixed > 10, "so composing what was run would not do"


def test_the_largest_profile_is_above_each_of_them_between_the_points_of_the_grid_too():
    generator = np.random.default_rng(1)
    for _ in range(100):
        runs = [pair(generator) for _ in range(3)]
        for eps in generator.uniform(-3.0, 4.0, size=8):
            assert profile([runs], eps) >= max(worst([[one]], eps) for one in runs) - 1e-12


def test_epsilon_is_where_the_profile_falls_to_delta():
    generator = np.random.default_rng(2)
    for _ in range(40):
        sets = [[pair(generator) for _ in range(2)] for _ in range(2)]
        least = profile(sets, 30.0)  # the mass of infinite loss
        delta = least + generator.uniform(0.01, 0.2)
        found = sequence.composed_epsilon([(each, 1) for each in sets], delta)
        if found > 0.0:
            assert profile(sets, found) == pytest.approx(delta, abs=1e-3)
            assert worst(sets, found) <= delta


BASE = RoundMechanism(noise_multiplier=1.0, user_sampling_prob=0.4, max_holders=1, entity_clip=0.4)
ASKED = {"delta": 1e-5, "kind": "entity"}


def at(target: float, mechanism: RoundMechanism = BASE) -> list[tuple[RoundMechanism, int]]:
    noise = accounting.calibrate(mechanism, target_epsilon=target, rounds=15, **ASKED)
    return [(dataclasses.replace(mechanism, noise_multiplier=noise), 15)]


@pytest.mark.parametrize(
    ("pilots", "each", "left"), [(4, 0.5, 7.886), (8, 0.5, 7.774), (8, 0.25, 7.938), (8, 1.0, 7.183)]
)
def test_what_pilots_leave_of_eight(pilots, each, left):
    """Worked out apart from this code, to within a thousandth or two."""
    steps = [[at(each)]] * pilots + [[at(left)]]
    assert sequence.epsilon(steps, unit="user-entity", **ASKED) == pytest.approx(8.0, abs=0.01)


def test_one_run_a_step_is_plain_composition():
    small, large = at(0.5), at(1.0)
    found = sequence.epsilon([[small], [small], [large]], unit="user-entity", **ASKED)
    assert found == pytest.approx(accounting.compose([*small, *small, *large], **ASKED), rel=5e-3)
    assert sequence.epsilon([[small]], unit="user", **ASKED) == pytest.approx(
        accounting.compose(small, unit="user", **ASKED), rel=5e-3
    )


def test_a_choice_costs_no_less_than_the_dearest_of_its_runs_and_hardly_more():
    pilots = [[at(0.5)]] * 4
    finals = [at(7.5), at(7.5, dataclasses.replace(BASE, user_sampling_prob=0.2, entity_clip=0.6))]
    alone = [sequence.epsilon([*pilots, [final]], unit="user-entity", **ASKED) for final in finals]
    chosen = sequence.epsilon([*pilots, finals], unit="user-entity", **ASKED)
    assert max(alone) * (1 - 1e-3) <= chosen <= 1.03 * max(alone)


def test_both_kinds_of_entity_are_priced_and_the_larger_counts():
    more = dataclasses.replace(BASE, noise_multiplier=3.0, entity_sampling_prob=0.5, extended_clip=0.4)
    steps = [[[(more, 10)]], [[(more, 5)]]]
    each = [sequence.epsilon(steps, delta=1e-5, unit="user-entity", kind=kind) for kind in ("entity", "extended")]
    assert each[0] != each[1]
    assert sequence.epsilon(steps, delta=1e-5, unit="user-entity") == max(each)


def test_values_out_of_range_are_refused():
    with pytest.raises(InputError, match="delta"):
        sequence.epsilon([[at(1.0)]], delta=0.0, unit="user-entity")
    with pytest.raises(InputError, match="rounds"):
        sequence.epsilon([[[(BASE, -1)]]], delta=1e-5, unit="user-entity")
