"""A release beside the rounds is added as CONTRIBUTING.md says; what it does not say of its cost is unbounded."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
from typing import Any

import pytest

from uedp_ray.errors import InputError
from uedp_ray.privacy.accounting import compose
from uedp_ray.privacy.events import Charges, charges, epsilon_of_charges, epsilon_of_events
from uedp_ray.privacy.mechanisms import OTHER_EVENTS, RELEASES, UnsupportedEvent, by_kind, release_of
from uedp_ray.privacy.mechanisms.base import Cost, Mechanism, number_of
from uedp_ray.privacy.mechanisms.noisy_threshold import NoisyThreshold
from uedp_ray.privacy.mechanisms.poisson import RoundMechanism
from uedp_ray.privacy.odometer import Odometer
from uedp_ray.privacy.selection import check_trial
from uedp_ray.units import UNITS


@pytest.fixture
def counted(monkeypatch):
    """counted(cost): the events of a run that released, beside a round, what says that it costs that."""

    def add(**methods: Any) -> list[dict[str, Any]]:
        fields = {"__annotations__": {"noise_multiplier": float}, "event_kind": "user_count"}
        fields["from_event"] = classmethod(lambda cls, event: cls(number_of(event, "noise_multiplier")))
        made = dataclasses.dataclass(frozen=True)(type("UserCount", (Mechanism,), fields | methods))
        monkeypatch.setitem(RELEASES, made.event_kind, made)
        mechanism = ROUND.to_dict()
        return [
            {"kind": "user_count", "noise_multiplier": 2.0},
            {"kind": "round", "round": 0, "mechanism": mechanism, "private": True},
        ]

    return add


ROUND = RoundMechanism(noise_multiplier=2.0, user_sampling_prob=0.1, max_holders=2, entity_clip=0.2)


ODOMETER = Odometer(planned=((ROUND, 10),), runs=2, delta=1e-5)


def user_count(mechanism, unit, kind):
    return Cost(gaussians=((0.0 if unit == "entity" else 1.0, mechanism.noise_multiplier),))


@pytest.mark.parametrize("unit", UNITS)
def test_a_mechanism(counted, unit):
    events = counted(cost=user_count)
    moved = 0.0 if unit == "entity" else 1.0
    expected = compose([(ROUND, 1)], gaussians=[(moved, 2.0)], delta=1e-5, unit=unit)
    assert epsilon_of_events(events, delta=1e-5, unit=unit) == expected
    assert charges(events) == Charges.from_dict(json.loads(json.dumps(charges(events).to_dict())))
    odometer = dataclasses.replace(ODOMETER, unit=unit)
    rounds = odometer.epsilon([events[1:]])
    assert odometer.epsilon([events]) == rounds if unit == "entity" else odometer.epsilon([events]) > rounds > 0


def test_a_bare_mechanism_bounds_nothing(counted):
    events = counted()
    assert epsilon_of_events(events[1:], delta=1e-5) < 10
    assert math.isinf(epsilon_of_events(events, delta=1e-5))
    assert math.isinf(ODOMETER.epsilon([events]))
    assert math.isinf(ODOMETER.epsilon([[{"kind": "user_count", "noise_multiplier": 1e9}]]))


def test_no_odometer_takes_rounds_of_a_mechanism_that_it_has_no_limits_for(counted):
    events = counted(cost=lambda mechanism, unit, kind: Cost(rounds=((ROUND, 1),)))
    assert epsilon_of_events(events, delta=1e-5) == compose([(ROUND, 2)], delta=1e-5)
    assert math.isinf(ODOMETER.epsilon([events]))


def test_rounds_that_no_accountant_composes_have_no_bound(counted):
    events = counted(cost=lambda mechanism, unit, kind: Cost(rounds=((mechanism, 1),)))
    assert math.isinf(epsilon_of_events(events, delta=1e-5))


def test_what_may_fail_is_taken_off_delta(counted):
    events = counted(cost=lambda mechanism, unit, kind: Cost(failure_prob=4e-6))
    assert epsilon_of_events(events, delta=1e-5) == compose([(ROUND, 1)], delta=6e-6)
    assert math.isinf(epsilon_of_events([events[0], *events, events[0]], delta=1e-5))
    assert math.isinf(ODOMETER.epsilon([events])), "nothing of delta was put aside for it"


def test_an_event_of_no_mechanism_is_refused(counted, monkeypatch):
    events = counted(cost=user_count)
    monkeypatch.delitem(RELEASES, "user_count")
    with pytest.raises(UnsupportedEvent):
        charges(events)
    events = counted(cost=user_count)
    with pytest.raises(UnsupportedEvent, match="covers private rounds only"):
        check_trial(events, [[(ROUND, 1)]], mean=2.0, delta=1e-5)


@pytest.mark.parametrize("accountant", ["pld", "renyi"])
@pytest.mark.parametrize(
    "pair", [(1.0, -1.0), (1.0, 0.0), (1.0, math.nan), (-1.0, 1.0), (math.nan, 1.0), (math.inf, 1.0)]
)
def test_a_gaussian_release_that_is_none_is_refused(pair, accountant):
    """A negative or missing standard deviation cost nothing, beside rounds too."""
    with pytest.raises(InputError, match="gaussians"):
        compose([], gaussians=[pair], delta=1e-5, accountant=accountant)
    with pytest.raises(InputError, match="gaussians"):
        Cost(gaussians=(pair,))


@pytest.mark.parametrize("share", [-1e-6, math.nan, math.inf])
def test_a_share_of_delta_that_is_none_is_refused(share):
    with pytest.raises(InputError, match="failure_prob"):
        Cost(failure_prob=share)


def test_a_cost_that_says_nothing_bounds_nothing(counted):
    """It was a cost of 0."""
    assert math.isinf(epsilon_of_events(counted(cost=lambda mechanism, unit, kind: Cost()), delta=1e-5))


def test_a_mechanism_like_a_round_is_not_priced_as_one():
    class Correlated(RoundMechanism):
        """Its noise is not fresh in each round."""

    class Bigrams(NoisyThreshold):
        """Its counts are of pairs of words."""

    assert math.isinf(epsilon_of_charges(Charges((), (Bigrams(10.0, 5, 0.0),)), delta=1e-5, unit="user"))
    found = Correlated(**ROUND.to_dict())
    assert math.isinf(epsilon_of_charges(Charges(((found, 5),)), delta=1e-5, unit="user"))


@pytest.mark.parametrize("clip", [5e-324, 1e-309])
def test_a_subnormal_clip_counts_as_the_least_there_is(clip):
    """It took a minute, and gave an epsilon of 59,328 (of 187,871, where more rounds were run)."""
    least, tiny = (dataclasses.replace(ROUND, entity_clip=each, extended_clip=each) for each in (1e-300, clip))
    of_least, of_tiny = (compose([(each, 10)], delta=1e-5) for each in (least, tiny))
    assert of_tiny == of_least < 10


def made(name: str, **stated: Any) -> type[Mechanism]:
    """A mechanism that says how its event is read, and otherwise what is ``stated``."""
    return type(name, (Mechanism,), {"from_event": classmethod(lambda cls, event: cls()), **stated})


def test_two_mechanisms_of_one_kind_are_refused():
    """The later replaced the earlier: an epsilon of 2.461 was said to be 0.343."""
    with pytest.raises(TypeError, match="the event_kind of UserCount, 'vocabulary', is that of NoisyThreshold too"):
        by_kind(NoisyThreshold, made("UserCount", event_kind="vocabulary"))


@pytest.mark.parametrize("kind", ["open", "plan", "round", "unprotected"])
def test_no_mechanism_has_a_kind_that_is_read_before_mechanisms_are_asked(kind):
    with pytest.raises(TypeError, match=f"the event_kind of UserCount, '{kind}', is read by privacy.events itself"):
        by_kind(made("UserCount", event_kind=kind))


def test_of_those_kinds_no_mechanism_is_asked(monkeypatch):
    asked: list[str] = []
    monkeypatch.setattr("uedp_ray.privacy.events.release_of", lambda event: asked.append(event["kind"]))
    for kind in (*OTHER_EVENTS, *RELEASES):
        with contextlib.suppress(InputError):
            charges([{"kind": kind}])
    assert asked == list(RELEASES)


def test_a_mechanism_that_leaves_out_what_its_event_needs_is_refused():
    """It was an AttributeError at the import of everything, or a traceback once an event of it was read."""
    with pytest.raises(TypeError, match="UserCount states no event_kind, which its ledger event needs"):
        by_kind(made("UserCount"))
    with pytest.raises(TypeError, match="UserCount has no from_event, which reads its ledger event"):
        by_kind(type("UserCount", (Mechanism,), {"event_kind": "user_count"}))
    counts = made("UserCount", event_kind="user_count")
    assert by_kind(NoisyThreshold, counts) == {"vocabulary": NoisyThreshold, "user_count": counts}


def test_a_mechanism_inherits_neither_a_kind_nor_how_its_event_is_read():
    """Its event was read as one of the other's, at the other's price."""

    @dataclasses.dataclass(frozen=True)
    class Bigrams(NoisyThreshold):
        """Its counts are of pairs of words."""

        pairs: int = 4

    with pytest.raises(UnsupportedEvent):
        release_of(Bigrams(10.0, 5, 0.0).to_event())
    with pytest.raises(TypeError, match="Bigrams states no event_kind"):
        by_kind(Bigrams)
    Bigrams.event_kind = "bigrams"
    with pytest.raises(TypeError, match="Bigrams has no from_event"):
        by_kind(Bigrams)
