"""Reweighting by holders: the accountant covers every number of holders that the declared users allow."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from tests.privacy.mechanisms import REWEIGHT, change
from uedp_ray.privacy import accounting, composition, dominating, profiles
from uedp_ray.privacy.accounting import calibrate, compose, epsilon
from uedp_ray.privacy.mechanisms.poisson import RoundMechanism

CALL = {"rounds": 50, "delta": 1e-5}


def at_holders(mechanism: RoundMechanism, holders: int) -> RoundMechanism:
    """What an entity with H holders sees, written without ``reweight``."""
    clip = mechanism.entity_clip * mechanism.max_holders / holders
    return change(mechanism, holder_bound="truncate", max_holders=holders, entity_clip=clip)


SHARP = {"user_sampling_prob": 0.01, "max_holders": 1, "entity_clip": 1.9, "noise_multiplier": 0.1}


@pytest.mark.parametrize(
    ("mechanism", "surplus"),
    [
        (REWEIGHT, 2e-4),
        (change(REWEIGHT, selection_rule="any"), 2e-4),
        (change(REWEIGHT, max_holders=120, user_sampling_prob=0.03), 3e-3),
        # with epsilon in the hundreds
        (change(REWEIGHT, **SHARP), 0.05),
        (
            change(
                REWEIGHT, noise_multiplier=0.2, user_sampling_prob=0.5, max_holders=2, entity_clip=1.0, max_users=60
            ),
            0.1,
        ),
        # where each drawn holder's own draw of the entity is taken to be visible
        pytest.param(change(REWEIGHT, entity_draw="per_user", max_users=40), 0.5, marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("unit", ["user-entity", "entity"])
def test_reweighting_covers_every_number_of_holders(mechanism, surplus, unit):
    call = {"rounds": 20, "delta": 1e-5, "unit": unit, "kind": "entity"}
    value = epsilon(mechanism, **call)
    low, high = mechanism.max_holders, mechanism.max_users
    sizes = sorted({low, low + 1, low + 2, 2 * low, min(5 * low, high), min(20 * low, high), high})
    each = [epsilon(at_holders(mechanism, size), **call) for size in sizes]
    assert value >= max(each) * (1 - 1e-3)  # each carries its own grid's surplus
    assert value <= epsilon(at_holders(mechanism, sizes[int(np.argmax(each))]), **call) * (1 + surplus)


def test_reweighting_usually_costs_nothing():
    call = {"rounds": 200, "delta": 1e-5}
    assert epsilon(REWEIGHT, **call) == pytest.approx(
        epsilon(change(REWEIGHT, holder_bound="truncate"), **call), rel=1e-3
    )
    assert calibrate(REWEIGHT, target_epsilon=4.0, **call) == pytest.approx(
        calibrate(change(REWEIGHT, holder_bound="truncate"), target_epsilon=4.0, **call), rel=2e-3
    )
    everyone = change(REWEIGHT, user_sampling_prob=1.0)
    assert epsilon(everyone, **CALL) == epsilon(change(everyone, holder_bound="truncate"), **CALL)


def test_reweighting_can_cost():
    """Where one holder is already fatal, many holders are drawn more often: H = K is not the worst."""
    sharp = change(
        REWEIGHT, noise_multiplier=0.01, user_sampling_prob=1e-4, max_holders=1, entity_clip=1.9, max_users=8
    )
    call = {"rounds": 1, "delta": 3e-4, "unit": "entity", "kind": "entity"}
    assert epsilon(at_holders(sharp, 1), **call) == 0.0
    value, worst = epsilon(sharp, **call), max(epsilon(at_holders(sharp, h), **call) for h in range(1, 9))
    assert worst > 10
    assert worst * (1 - 1e-6) <= value <= worst * 1.5


def test_reweighting_that_costs_is_seen_beside_extended_entities_and_in_calibration():
    """With K = 1, m = 1 and q_e < q_s an extended entity is worse than an entity of K holders, but not than one of more."""
    fields = {"noise_multiplier": 0.01, "user_sampling_prob": 1e-4, "max_holders": 1, "max_users": 4}
    sharp = change(REWEIGHT, **fields, entity_clip=1.9, extended_clip=1.9)
    call = {"rounds": 1, "delta": 1.2e-4, "unit": "entity"}
    assert epsilon(sharp, **call, kind="extended") == epsilon(at_holders(sharp, 1), **call, kind="entity") == 0.0
    assert epsilon(sharp, **call) == epsilon(sharp, **call, kind="entity") > 10
    everyone = change(sharp, user_sampling_prob=1.0, entity_sampling_prob=1e-4, entity_draw="per_user")
    assert epsilon(everyone, **call, kind="entity") > 10, "each holder's own draw counts like that of users"
    z = calibrate(sharp, target_epsilon=5.0, **call)
    assert epsilon(at_holders(change(sharp, noise_multiplier=z), 4), **call, kind="entity") <= 5.0


def test_tables_of_curves_take_bounded_memory_and_what_is_dropped_changes_nothing(monkeypatch):
    """Each of many mechanisms of a search kept its own, megabytes under ``reweight``."""
    parts = [
        (change(user_sampling_prob=0.02 + 0.01 * n, holder_bound="reweight", max_users=1000), 20) for n in range(3)
    ]

    def settled(most_bytes: int) -> tuple[float, int]:
        tables = profiles._Tables(most_bytes)
        monkeypatch.setattr(profiles, "_TABLES", tables)
        for cached in (composition._one_round, accounting._epsilon):
            cached.cache_clear()
        value = compose(parts, delta=1e-5)
        kept = sum(profiles._num_bytes(table) for table in tables._found.values())
        assert tables._room == most_bytes - kept >= 0
        return value, kept

    (value, kept), (again, few) = settled(1 << 30), settled(1 << 20)
    assert again == value
    assert 0 < few <= 1 << 20 < kept


def test_reweighting_without_a_sentence_clip_bounds_nothing():
    void = change(REWEIGHT, entity_clip=2.0, max_users=50)
    everyone = change(void, holder_bound="truncate", max_holders=50)
    assert epsilon(void, **CALL) == epsilon(everyone, **CALL)
    assert epsilon(void, **CALL, unit="user") == epsilon(everyone, **CALL, unit="user")


def test_many_labels_are_bucketed_upwards():
    count, mass, cut = dominating._counts(1_000_000, 0.1, 1e-15, 256)
    assert len(count) <= 256
    assert mass.sum() + cut == pytest.approx(1.0, abs=1e-12)
    for value in (98_000, 99_000, 100_000, 101_500):
        assert mass[count > value].sum() + cut >= stats.binom.sf(value, 1_000_000, 0.1) * (1 - 1e-9)
    assert count @ mass == pytest.approx(100_000, rel=3e-4)
    count, mass, cut = dominating._counts(30, 0.2, 1e-12, 256)
    assert stats.binom.sf(count[-1], 30, 0.2) <= cut * (1 + 1e-9) <= 3e-12
    assert mass == pytest.approx(stats.binom.pmf(count, 30, 0.2), rel=1e-9)
