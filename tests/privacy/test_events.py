"""What a ledger says is what is charged."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from uedp_ray.errors import InputError
from uedp_ray.privacy import accounting, composition
from uedp_ray.privacy.accounting import compose, epsilon
from uedp_ray.privacy.events import (
    Charges,
    UnsupportedEvent,
    charges,
    epsilon_of_charges,
    epsilon_of_events,
    to_planned_end,
)
from uedp_ray.privacy.ledger import Ledger, read_ledger
from uedp_ray.privacy.mechanisms.poisson import RoundMechanism

MECHANISM = RoundMechanism(
    noise_multiplier=2.0,
    user_sampling_prob=0.05,
    entity_sampling_prob=0.5,
    max_holders=3,
    entity_clip=0.2,
    extended_clip=0.1,
)
OPEN = {
    "kind": "open",
    "header": {"private": True, "plan": {"rounds": 0, "mechanism": MECHANISM.to_dict(), "vocabulary": None}},
}
VOCABULARY = {"kind": "vocabulary", "noise_multiplier": 20.0, "max_holders": 3, "threshold_delta": 1e-6}


def rounds(count: int, mechanism: RoundMechanism = MECHANISM, **fields: object) -> list[dict[str, object]]:
    event = {"kind": "round", "attempt": 0, "mechanism": mechanism.to_dict(), "private": True}
    return [{**event, "round": index, **fields} for index in range(count)]


def opened(planned: int, **plan: object) -> dict[str, object]:
    found = {"rounds": planned, "mechanism": MECHANISM.to_dict(), "vocabulary": None, **plan}
    return {"kind": "open", "header": {"private": True, "plan": found}}


def test_a_ledger_file_is_enough(tmp_path):
    ledger = Ledger.create(tmp_path / "ledger.jsonl", opened(5)["header"])
    for event in rounds(5):
        ledger.append(**event)
    events = read_ledger(tmp_path / "ledger.jsonl")
    for unit in ("user-entity", "user", "entity"):
        for kind in ("both", "entity", "extended"):
            expected = epsilon(MECHANISM, rounds=5, delta=1e-5, unit=unit, kind=kind)
            assert epsilon_of_events(events, delta=1e-5, unit=unit, kind=kind) == expected


def test_a_replayed_round_is_charged_again():
    replayed = [*rounds(5), {**rounds(5)[-1], "attempt": 1}]
    assert epsilon_of_events(replayed, delta=1e-5) == epsilon(MECHANISM, rounds=6, delta=1e-5)


def test_different_mechanisms_are_grouped():
    other = RoundMechanism(noise_multiplier=3.0, user_sampling_prob=0.05)
    events = [*rounds(3), *rounds(4, other), *rounds(2)]
    assert epsilon_of_events(events, delta=1e-5) == compose([(MECHANISM, 5), (other, 4)], delta=1e-5)


def test_charges_of_more_mechanisms_than_any_run_has_are_refused():
    """Each costs an accountant's work: a few kilobytes of them took minutes and gigabytes."""
    other = [RoundMechanism(noise_multiplier=1.0 + index, user_sampling_prob=0.05) for index in range(65)]
    written = Charges(tuple((mechanism, 1) for mechanism in other)).to_dict()
    with pytest.raises(InputError, match="more mechanisms than any run"):
        Charges.from_dict(written)
    fewer = {**written, "rounds": written["rounds"][:64]}
    assert Charges.from_dict(fewer).num_rounds == 64


def test_nothing_costs_nothing():
    assert epsilon_of_events([], delta=1e-5) == epsilon_of_events([OPEN], delta=1e-5) == 0.0


@pytest.mark.parametrize(
    ("unit", "kind", "moved"),
    [
        ("user", "both", 1),
        ("entity", "entity", 3),
        ("entity", "extended", 1),
        ("user-entity", "entity", 4),
        ("user-entity", "extended", 2),
        ("user-entity", "both", 4),
    ],
)
def test_vocabulary(unit, kind, moved):
    value = epsilon_of_events([OPEN, VOCABULARY], delta=1e-5, unit=unit, kind=kind)
    expected = compose([], delta=1e-5 - 1e-6, unit=unit, gaussians=[(float(moved), 20.0)])
    assert value == pytest.approx(expected, rel=1e-12)
    assert epsilon_of_events([OPEN, VOCABULARY, *rounds(5)], delta=1e-5, unit=unit, kind=kind) > value


def test_vocabulary_limits():
    assert epsilon_of_events([{**VOCABULARY, "threshold_delta": 1e-5}], delta=1e-5) == math.inf
    assert epsilon_of_events([{**VOCABULARY, "threshold_delta": 6e-6}] * 2, delta=1e-5) == math.inf
    assert epsilon_of_events([{**VOCABULARY, "max_holders": None}], delta=1e-5) == math.inf
    for users in ({**VOCABULARY, "max_holders": 0}, {**VOCABULARY, "max_holders": None}):  # threshold for users alone
        assert epsilon_of_events([users], delta=1e-5, unit="user") < math.inf
        for unit in ("user-entity", "entity"):
            for kind in ("both", "entity", "extended"):
                assert epsilon_of_events([users], delta=1e-5, unit=unit, kind=kind) == math.inf
    with pytest.raises(InputError, match="threshold_delta"):
        epsilon_of_events([{**VOCABULARY, "threshold_delta": -1.0}], delta=1e-5)


@pytest.mark.parametrize(
    "events",
    [
        [{"kind": "open", "header": {"private": False}}, *rounds(1)],
        rounds(1, private=False),
        [{key: value for key, value in rounds(1)[0].items() if key != "private"}],
        [{"kind": "open", "header": {}}],
        [OPEN, *rounds(1), {"kind": "unprotected", "reason": "loss printed"}],
        [OPEN, {"kind": "unprotected", "reason": "loss printed"}],
    ],
)
def test_what_was_not_private_is_infinite(events):
    assert epsilon_of_events(events, delta=1e-5) == math.inf


def test_what_is_not_understood_is_refused():
    with pytest.raises(UnsupportedEvent, match="histogram"):
        epsilon_of_events([*rounds(1), {"kind": "histogram"}], delta=1e-5)
    with pytest.raises(InputError, match="mechanism"):
        epsilon_of_events([{"kind": "round"}], delta=1e-5)
    with pytest.raises(InputError, match="unit"):
        epsilon_of_events([VOCABULARY], delta=1e-5, unit="people")


@given(
    planned=st.integers(0, 6),
    played=st.integers(0, 8),
    replayed=st.integers(0, 3),
    words=st.booleans(),
    again=st.integers(0, 2),
    unit=st.sampled_from(["user-entity", "user", "entity"]),
)
@settings(max_examples=40, deadline=None)
def test_a_run_is_charged_to_its_planned_end(planned, played, replayed, words, again, unit):
    head = opened(planned, vocabulary=VOCABULARY if words else None)
    events = [head, *[VOCABULARY] * again, *rounds(played), *rounds(min(played, replayed), attempt=1)]
    charged = played + min(played, replayed)
    call = {"delta": 1e-5, "unit": unit}
    found = epsilon_of_events(events, **call)
    paid = [*[VOCABULARY] * max(again, int(words)), *rounds(max(planned, charged))]
    assert found == epsilon_of_events(paid, **call)
    # Wherever it is broken off the price is the same, as long as it keeps to its plan; and it never falls.
    prices = [epsilon_of_events(events[:end], **call) for end in range(1, len(events) + 1)]
    assert prices == sorted(prices)
    if charged <= planned and again <= words:
        assert set(prices) == {found}
    assert found >= epsilon_of_events(events[1:], **call)


def test_what_several_ledgers_were_planned_to_release_adds_up():
    broken, beyond = [opened(5), *rounds(1)], [opened(2), *rounds(4)]
    assert epsilon_of_events([*broken, *beyond], delta=1e-5) == epsilon(MECHANISM, rounds=9, delta=1e-5)
    foreign = [opened(5), *rounds(2, RoundMechanism(noise_multiplier=3.0, user_sampling_prob=0.05))]
    assert epsilon_of_events(foreign, delta=1e-5) > epsilon(MECHANISM, rounds=5, delta=1e-5)


def test_a_ledger_without_a_plan_claims_nothing():
    for header in ({"private": True}, {"private": True, "plan": None}):
        for events in ([{"kind": "open", "header": header}, *rounds(5)], [{"kind": "open", "header": header}]):
            assert epsilon_of_events(events, delta=1e-5) == math.inf
            assert epsilon_of_events([*events, opened(5)], delta=1e-5) == math.inf


def test_counting_round_by_round_is_reading_the_ledger():
    other = RoundMechanism(noise_multiplier=3.0, user_sampling_prob=0.05)
    events = [opened(5), *rounds(2), *rounds(3, other), *rounds(1), {"kind": "unprotected"}]
    counted = charges(events[:1])
    for number, event in enumerate(events[1:], 2):
        counted = counted.with_round(event)
        assert counted == charges(events[:number])
    assert [count for _, count in counted.rounds] == [2, 3, 1]


def test_a_plan_may_be_changed_before_the_first_round_only():
    shorter = {"kind": "plan", "rounds": 3}
    assert epsilon_of_events([opened(5), shorter, *rounds(1)], delta=1e-5) == epsilon(MECHANISM, rounds=3, delta=1e-5)
    for events in ([opened(5), *rounds(1), shorter], [{"kind": "open", "header": {"private": True}}, shorter]):
        with pytest.raises(UnsupportedEvent, match="before the first round"):
            epsilon_of_events(events, delta=1e-5)


STRANGE = [None, True, -1, 0.5, 10**4000, 1e308 * 10, math.nan, "x", "1", [], {}, [1], {"a": 1}]


@pytest.mark.parametrize("value", STRANGE, ids=lambda value: str(type(value).__name__))
def test_fields_of_other_types_are_named(value):
    fields = {**MECHANISM.to_dict(), "noise_multiplier": value}
    for events in (
        [{"kind": "open", "header": value}],
        [opened(5, rounds=value)],
        [opened(5, mechanism=value)],
        [opened(5, mechanism=fields)],
        [{**rounds(1)[0], "mechanism": value}],
        [{**rounds(1)[0], "mechanism": fields}],
        rounds(1, round=value),
        [{**VOCABULARY, "noise_multiplier": value}],
        [{**VOCABULARY, "threshold_delta": value}],
        [{**VOCABULARY, "max_holders": value}],
        [{"kind": value}],
    ):
        try:
            found = epsilon_of_events(events, delta=1e-5)
        except InputError as error:
            message = str(error)
        else:  # a legal value of this field, or nothing is claimed
            assert value in (None, 0.5) or found == math.inf, (value, events)
            message = ""
        assert len(message) < 500
        assert "\n" not in message


def test_one_more_round_within_the_plan_has_the_epsilon_of_the_planned_end_without_composing_anew(monkeypatch):
    charged, composed = charges([opened(40)]), []
    found = composition.epsilon
    monkeypatch.setattr(composition, "epsilon", lambda *of: composed.append(of) or found(*of))
    accounting._epsilon.cache_clear()
    of_all = []
    for event in rounds(41):
        charged = charged.with_round(event)
        of_all.append(epsilon_of_charges(to_planned_end(charged), delta=1e-5, unit="user"))
    *within, beyond = of_all
    assert (len(set(within)), len(composed)) == (1, 2), "once for the plan, and once beyond it"
    assert beyond > within[0]


def test_how_often_a_round_was_charged_is_not_counted_anew_each_time(tmp_path, monkeypatch):
    class Unread(list):
        def __iter__(self):
            raise AssertionError("all rounds so far are read for each")

    ledger = Ledger.create(tmp_path / "ledger.jsonl", {})
    for event in rounds(5):
        ledger.append(**event)
    ledger = Ledger.open(tmp_path / "ledger.jsonl")
    monkeypatch.setattr(ledger, "_events", Unread(ledger.events))
    for attempt in (1, 2):
        assert [ledger.attempts(index) for index in (2, 5)] == [attempt, 0]
        ledger.append("round", round=2, attempt=attempt, mechanism=MECHANISM.to_dict(), private=True)
    ledger.append("round", round=[2], attempt=0, mechanism=MECHANISM.to_dict(), private=True)
    assert ledger.attempts(2) == 3
