"""What a ledger says is what is charged."""

from __future__ import annotations

import math

import pytest

from uedp_ray.errors import InputError
from uedp_ray.privacy.accounting import compose, epsilon
from uedp_ray.privacy.events import UnsupportedEvent, epsilon_of_events
from uedp_ray.privacy.ledger import Ledger, read_ledger
from uedp_ray.privacy.mechanism import RoundMechanism

MECHANISM = RoundMechanism(
    noise_multiplier=2.0,
    user_sampling_prob=0.05,
    entity_sampling_prob=0.5,
    max_holders=3,
    entity_clip=0.2,
    extended_clip=0.1,
)
OPEN = {"kind": "open", "header": {"private": True}}
VOCABULARY = {"kind": "vocabulary", "noise_multiplier": 20.0, "max_holders": 3, "threshold_delta": 1e-6}


def rounds(count: int, mechanism: RoundMechanism = MECHANISM, **fields: object) -> list[dict[str, object]]:
    event = {"kind": "round", "attempt": 0, "mechanism": mechanism.to_dict(), "private": True}
    return [{**event, "round": index, **fields} for index in range(count)]


def test_a_ledger_file_is_enough(tmp_path):
    ledger = Ledger.create(tmp_path / "ledger.jsonl", {"private": True})
    for event in rounds(5):
        ledger.append(**event)
    events = read_ledger(tmp_path / "ledger.jsonl")
    for accountant in ("user-entity", "user", "entity"):
        for kind in ("both", "entity", "extended"):
            expected = epsilon(MECHANISM, rounds=5, delta=1e-5, accountant=accountant, kind=kind)
            assert epsilon_of_events(events, delta=1e-5, accountant=accountant, kind=kind) == expected


def test_a_replayed_round_is_charged_again():
    replayed = [*rounds(5), {**rounds(5)[-1], "attempt": 1}]
    assert epsilon_of_events(replayed, delta=1e-5) == epsilon(MECHANISM, rounds=6, delta=1e-5)


def test_different_mechanisms_are_grouped():
    other = RoundMechanism(noise_multiplier=3.0, user_sampling_prob=0.05)
    events = [*rounds(3), *rounds(4, other), *rounds(2)]
    assert epsilon_of_events(events, delta=1e-5) == compose([(MECHANISM, 5), (other, 4)], delta=1e-5)


def test_nothing_costs_nothing():
    assert epsilon_of_events([], delta=1e-5) == epsilon_of_events([OPEN], delta=1e-5) == 0.0


@pytest.mark.parametrize(
    ("accountant", "kind", "moved"),
    [
        ("user", "both", 1),
        ("entity", "entity", 3),
        ("entity", "extended", 1),
        ("user-entity", "entity", 4),
        ("user-entity", "extended", 2),
        ("user-entity", "both", 4),
    ],
)
def test_vocabulary(accountant, kind, moved):
    value = epsilon_of_events([OPEN, VOCABULARY], delta=1e-5, accountant=accountant, kind=kind)
    expected = compose([], delta=1e-5 - 1e-6, accountant=accountant, gaussians=[(float(moved), 20.0)])
    assert value == pytest.approx(expected, rel=1e-12)
    assert epsilon_of_events([OPEN, VOCABULARY, *rounds(5)], delta=1e-5, accountant=accountant, kind=kind) > value


def test_vocabulary_limits():
    assert epsilon_of_events([{**VOCABULARY, "threshold_delta": 1e-5}], delta=1e-5) == math.inf
    assert epsilon_of_events([{**VOCABULARY, "threshold_delta": 6e-6}] * 2, delta=1e-5) == math.inf
    assert epsilon_of_events([{**VOCABULARY, "max_holders": None}], delta=1e-5) == math.inf
    for users in ({**VOCABULARY, "max_holders": 0}, {**VOCABULARY, "max_holders": None}):  # threshold for users alone
        assert epsilon_of_events([users], delta=1e-5, accountant="user") < math.inf
        for accountant in ("user-entity", "entity"):
            for kind in ("both", "entity", "extended"):
                assert epsilon_of_events([users], delta=1e-5, accountant=accountant, kind=kind) == math.inf
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
    with pytest.raises(InputError, match="accountant"):
        epsilon_of_events([VOCABULARY], delta=1e-5, accountant="record")
