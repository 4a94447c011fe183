"""A filter: an odometer with a budget, which bounds a search whatever its results."""

from __future__ import annotations

import dataclasses
import json
import math

import numpy as np
import pytest

from tests.privacy.mechanisms import BASE, change
from uedp_ray.errors import InputError
from uedp_ray.privacy.events import Charges, PlannedRounds, epsilon_of_charges, together
from uedp_ray.privacy.mechanisms import release_of
from uedp_ray.privacy.mechanisms.poisson import RoundMechanism
from uedp_ray.privacy.odometer import Odometer, filter_of

DELTA = 1e-5


def charged(mechanism: RoundMechanism, rounds: int, z: float) -> Charges:
    return Charges(((change(mechanism, noise_multiplier=z), rounds),))


@pytest.fixture(scope="module")
def eight() -> Odometer:
    return filter_of(lambda z: charged(BASE, 20, z), runs=8, target=8.0, delta=DELTA)


def other_runs(generator: np.random.Generator) -> tuple[RoundMechanism, int]:
    rates = {name: float(generator.uniform(0.1, 1.0)) for name in ("user_sampling_prob", "entity_sampling_prob")}
    return change(BASE, entity_clip=float(generator.uniform(0.1, 0.8)), **rates), int(generator.integers(1, 60))


def test_any_runs_within_their_shares_stay_within_the_target(eight):
    """However much they differ; and by the sharper accountant of runs that were fixed beforehand too."""
    generator = np.random.default_rng(5)
    runs = []
    for _ in range(8):
        mechanism, rounds = other_runs(generator)
        z = eight.least_noise(lambda z, m=mechanism, n=rounds: charged(m, n, z))
        run, noisier, louder = (charged(mechanism, rounds, z * factor) for factor in (1.0, 1.3, 0.999))
        assert eight.admits(run)
        assert eight.admits(noisier)
        assert not eight.admits(louder), "the least"
        runs.append(run)
    assert eight._spent(runs) <= 8.0
    assert eight.epsilon(runs) == 8.0
    assert not eight.settled_by_results(eight.epsilon(runs))
    assert eight.settled_by_results(8.001), "what a filter does not bound, results did"
    assert 6.5 < epsilon_of_charges(together(runs), delta=DELTA, unit="user-entity") < 8.0


def test_the_figure_is_the_target_whatever_ran_and_no_bound_beyond_what_it_admits(eight):
    share = charged(BASE, 20, eight.planned[0][0].noise_multiplier)
    short = Charges(((share.rounds[0][0], 1),))
    for ledgers in ([], [share], [short] * 3, [[], share, [], *[share] * 7, []]):  # refused points left no ledger
        assert eight.epsilon(ledgers) == 8.0
    assert math.isinf(eight.epsilon([share] * 9)), "a ninth run"
    twice = Charges(((share.rounds[0][0], 40),))
    assert math.isinf(eight.epsilon([twice])), "results may have chosen it, and the others would have come after it"
    planned = short._replace(plan=PlannedRounds(40, share.rounds[0][0]))
    assert math.isinf(eight.epsilon([planned])), "a run is charged to its planned end"


def test_the_order_is_the_one_that_asks_for_the_least_noise(eight):
    least = eight.planned[0][0].noise_multiplier
    for order in (3.0, 5.5, 12.0):
        other = dataclasses.replace(eight, order=order)
        assert other.least_noise(lambda z: charged(BASE, 20, z)) > least * (1 - 2e-4)


def test_nor_does_another_order_ask_for_less_where_drawn_holders_are_rare():
    """Labels of many holders weigh more, the less of them may be cut: orders are compared under the same cuts."""
    rare = change(BASE, max_holders=10, user_sampling_prob=0.11, entity_sampling_prob=1.0, entity_clip=0.3)
    found = filter_of(lambda z: charged(rare, 5, z), runs=8, target=0.63, delta=DELTA)
    least = found.planned[0][0].noise_multiplier
    for order in (17.0, 20.0, 32.0, 44.0):
        other = dataclasses.replace(found, order=order)
        assert other.least_noise(lambda z: charged(rare, 5, z)) > least * (1 - 1e-3)


def test_noise_for_a_share_is_little_more_than_for_runs_that_were_fixed(eight):
    z = eight.planned[0][0].noise_multiplier
    fixed = epsilon_of_charges(charged(BASE, 8 * 20, z), delta=DELTA, unit="user-entity")
    assert 7.0 < fixed < 8.0


def test_what_vocabularies_take_is_part_of_a_share():
    words = {"kind": "vocabulary", "noise_multiplier": 20.0, "max_holders": 1, "threshold_delta": 1e-7}

    def planned(z: float) -> Charges:
        return charged(BASE, 20, z)._replace(releases=(release_of(words),))

    with_words = filter_of(planned, runs=4, target=4.0, delta=DELTA, threshold_delta=1e-6)
    assert with_words.planned[0][0].noise_multiplier > filter_of(
        lambda z: charged(BASE, 20, z), runs=4, target=4.0, delta=DELTA
    ).least_noise(lambda z: charged(BASE, 20, z))
    assert with_words.epsilon([planned(with_words.planned[0][0].noise_multiplier)] * 4) == 4.0


def test_as_many_runs_as_may_be_named_are_priced_at_once(eight):
    """Terms may come from others: a kilobyte of them took gigabytes."""
    words = release_of({"kind": "vocabulary", "noise_multiplier": 20.0, "max_holders": 1, "threshold_delta": 1e-8})
    run = charged(BASE, 20, 9.0)._replace(releases=(words,))
    both = dataclasses.replace(eight, threshold_delta=1e-6)
    assert both._spent([run], copies=8) == pytest.approx(both._spent([run] * 8), rel=1e-12)
    assert math.isinf(both._spent([run], copies=9))
    assert dataclasses.replace(eight, runs=10**9).excess(run) > 0.0


def test_a_typical_run_has_no_more_mechanisms_than_any(eight):
    with pytest.raises(InputError, match="more mechanisms than any run"):
        dataclasses.replace(eight, planned=tuple((change(BASE, noise_multiplier=9.0 + i), 1) for i in range(65)))


def test_it_can_be_written_down(eight):
    assert Odometer.from_dict(json.loads(json.dumps(eight.to_dict()))) == eight


@pytest.mark.parametrize(
    "fields",
    [{"target": None}, {"order": None}, {"target": 0.0}, {"target": math.inf}, {"order": 1.0}, {"order": math.nan}],
)
def test_bad_input(eight, fields):
    with pytest.raises(InputError, match=next(iter(fields))):
        dataclasses.replace(eight, **fields)


def test_a_run_that_no_noise_protects_is_refused(eight):
    with pytest.raises(InputError, match="no noise lets 8 such runs"):
        eight.least_noise(lambda z: charged(dataclasses.replace(BASE, max_holders=None), 20, z))


@pytest.mark.parametrize("delta", [0.0, -1.0, 1.0])
def test_a_delta_out_of_range_is_refused(delta):
    with pytest.raises(InputError, match="delta"):
        filter_of(lambda z: Charges(((change(BASE, noise_multiplier=z), 20),)), runs=4, target=2.0, delta=delta)
