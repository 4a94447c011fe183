"""epsilon of what happened: from the events of a ledger, and nothing else.

    epsilon_of_events(read_ledger("run/ledger.jsonl"), delta=1e-5, unit="user-entity")

A round counts every time it was noised, and a run counts to its planned end: when it broke off may have depended on what
it had released. Events that are not understood are refused, never skipped. Inputs are public.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import Any, NamedTuple

from uedp_ray.errors import InputError
from uedp_ray.privacy import dominating
from uedp_ray.privacy.accounting import compose
from uedp_ray.privacy.dominating import MIN_DELTA
from uedp_ray.privacy.mechanism import MAX_COUNT, RoundMechanism, is_finite

_MOST_CHANGES = 64
"""Of the mechanism within one ledger; a run has one, and each costs an accountant's work."""


class UnsupportedEvent(InputError):
    """An event no accountant here can bound."""


class VocabularyRelease(NamedTuple):
    """A noisy-threshold vocabulary."""

    noise_multiplier: float
    max_holders: int | None
    threshold_delta: float
    """Probability that a word appears which only the protected user and entity hold; to be taken off delta."""

    def sensitivity(self, unit: str, kind: str) -> float:
        """L2 norm by which the word counts move: 1 for the user, 1 for each holder of the entity."""
        if unit == "user":
            return 1.0
        if not self.max_holders:  # counted, and its threshold set, for users alone
            return math.inf
        holders = 1.0 if kind == "extended" else float(self.max_holders)
        return holders if unit == "entity" else 1.0 + holders


class PlannedRounds(NamedTuple):
    """What a ledger said, before the first release, that its run would release."""

    rounds: int
    mechanism: RoundMechanism
    vocabulary: VocabularyRelease | None


class Charges(NamedTuple):
    """What events charge."""

    rounds: tuple[tuple[RoundMechanism, int], ...]
    """(mechanism, count) in order; a round as often as it was noised."""
    vocabularies: tuple[VocabularyRelease, ...] = ()
    private: bool = True
    """False if anything was released without protection."""
    plan: PlannedRounds | None = None
    bounded: bool = True
    """False for a ledger without a plan: nothing fixed beforehand bounds what it would have come to."""

    @property
    def num_rounds(self) -> int:
        return sum(count for _, count in self.rounds)

    def to_dict(self) -> dict[str, Any]:
        """Plain values of private releases: what was planned, to write down."""
        rounds = [{"mechanism": mechanism.to_dict(), "rounds": count} for mechanism, count in self.rounds]
        return {"rounds": rounds, "vocabularies": [vocabulary._asdict() for vocabulary in self.vocabularies]}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Charges:
        """Reads what ``to_dict`` wrote. Raises: InputError, KeyError, TypeError for anything else."""
        if len(values["rounds"]) > _MOST_CHANGES:
            raise InputError("rounds", len(values["rounds"]), f"has more mechanisms than any run ({_MOST_CHANGES})")
        parts = tuple(
            (RoundMechanism.from_dict(part["mechanism"]), _count(part, "rounds")) for part in values["rounds"]
        )
        return cls(parts, tuple(map(_vocabulary, values["vocabularies"])))

    def with_round(self, event: Mapping[str, Any]) -> Charges:
        """The same after one more ``round`` or ``unprotected`` event: no ledger is read again for it."""
        one = charges([event])
        rounds = (*self.rounds, *one.rounds)
        if one.rounds and self.rounds and one.rounds[0][0] == self.rounds[-1][0]:
            mechanism, count = self.rounds[-1]
            rounds = (*self.rounds[:-1], (mechanism, count + 1))
        return self._replace(rounds=rounds, private=self.private and one.private)


def charges(events: Iterable[Mapping[str, Any]] | Charges) -> Charges:
    """Reads one ledger's ``open`` (header), ``plan``, ``round`` (mechanism), ``vocabulary`` (noisy threshold) and
    ``unprotected`` events; or a list of such events without ``open``, which stands for itself.

    ``Charges`` stand for a ledger that is not there. Raises: UnsupportedEvent for any other event; InputError for values
    out of range.
    """
    if isinstance(events, Charges):
        return events
    rounds: list[tuple[RoundMechanism, int]] = []
    vocabularies: list[VocabularyRelease] = []
    private = bounded = True
    plan: PlannedRounds | None = None
    last: Any = None
    for event in events:
        name = event.get("kind")
        if name == "open":
            header = _mapping(event, "header")
            private &= header.get("private") is True
            plan = _plan(header)
            bounded = plan is not None
        elif name == "round":
            private &= event.get("private") is True
            found = _mapping(event, "mechanism")
            if rounds and found == last:  # as nearly always: a ledger of many rounds is read in no time
                rounds[-1] = (rounds[-1][0], rounds[-1][1] + 1)
            else:
                rounds.append((RoundMechanism.from_dict(found), 1))
                if len(rounds) > _MOST_CHANGES:
                    raise InputError("round.mechanism", len(rounds), "changes more often than in any run: not a ledger")
            last = found
            if "round" in event:
                _count(event, "round")
        elif name == "vocabulary":
            vocabularies.append(_vocabulary(event))
        elif name == "plan":
            if plan is None or rounds:
                raise UnsupportedEvent("kind", name, "a plan is changed before the first round, or not at all")
            plan = plan._replace(rounds=_count(event, "rounds"))
        elif name == "unprotected":
            private = False
        else:
            raise UnsupportedEvent("kind", name, "no accountant for this event: use the version that wrote the ledger")
    return Charges(tuple(rounds), tuple(vocabularies), private, plan, bounded)


def union(one: Charges, other: Charges) -> Charges:
    """The larger count of each release."""
    return Charges(
        tuple((_counted(one) | _counted(other)).items()),
        tuple((Counter(one.vocabularies) | Counter(other.vocabularies)).elements()),
        one.private and other.private,
        bounded=one.bounded and other.bounded,
    )


def together(charged: Iterable[Charges]) -> Charges:
    """Everything that several runs charge."""
    each = list(charged)
    return Charges(
        tuple(chain.from_iterable(one.rounds for one in each)),
        tuple(chain.from_iterable(one.vocabularies for one in each)),
        all(one.private for one in each),
        bounded=all(one.bounded for one in each),
    )


def to_planned_end(charged: Charges) -> Charges:
    """What is to be paid for a run, wherever it is or broke off: its plan, and what was charged beyond it."""
    if charged.plan is None:
        return charged
    rounds, mechanism, vocabulary = charged.plan
    planned = ((mechanism, rounds),) if rounds else ()
    return union(charged, Charges(planned, () if vocabulary is None else (vocabulary,)))


def epsilon_of_events(
    events: Iterable[Mapping[str, Any]],
    *,
    delta: float,
    unit: str = "user-entity",
    kind: str = "both",
    accountant: str = "pld",
) -> float:
    """epsilon at ``delta`` of all ``events``, every ledger among them to its planned end; infinity if any was not private
    or does not say what was planned. Source: accounting.md, "A run is charged to its planned end".

    Raises: as ``charges``, and InputError for values out of range.
    """
    whole = together(to_planned_end(charges(ledger)) for ledger in _ledgers(events))
    return epsilon_of_charges(whole, delta=delta, unit=unit, kind=kind, accountant=accountant)


def epsilon_of_charges(
    charged: Charges, *, delta: float, unit: str, kind: str = "both", accountant: str = "pld"
) -> float:
    """epsilon at ``delta`` of releases whose number and parameters do not depend on what was released."""
    delta -= sum(vocabulary.threshold_delta for vocabulary in charged.vocabularies)
    if not (charged.private and charged.bounded) or delta < MIN_DELTA:
        return math.inf
    parts = list(_counted(charged).items())
    found = 0.0
    for each in dominating.kinds(kind) if charged.vocabularies else (kind,):
        gaussians = [(v.sensitivity(unit, each), v.noise_multiplier) for v in charged.vocabularies]
        if any(math.isinf(sensitivity) for sensitivity, _ in gaussians):
            return math.inf
        settings: dict[str, Any] = {"delta": delta, "unit": unit, "kind": each, "accountant": accountant}
        found = max(found, compose(parts, gaussians=gaussians, **settings))
    return found


def _counted(charged: Charges) -> Counter[RoundMechanism]:
    counts = Counter[RoundMechanism]()
    for mechanism, count in charged.rounds:
        counts[mechanism] += count
    return counts


def _ledgers(events: Iterable[Mapping[str, Any]]) -> Iterator[list[Mapping[str, Any]]]:
    """Splits what several ledgers hold, one after the other."""
    found: list[Mapping[str, Any]] = []
    for event in events:
        if event.get("kind") == "open" and found:
            yield found
            found = []
        found.append(event)
    yield found


def _plan(header: Mapping[str, Any]) -> PlannedRounds | None:
    """None where the header has none: an older version's ledger, or a run without noise."""
    if header.get("plan") is None:
        return None
    plan = {"kind": "plan", **_mapping(header, "plan")}
    vocabulary = None if plan.get("vocabulary") is None else _vocabulary(_mapping(plan, "vocabulary"))
    return PlannedRounds(_count(plan, "rounds"), RoundMechanism.from_dict(_mapping(plan, "mechanism")), vocabulary)


def _vocabulary(fields: Mapping[str, Any]) -> VocabularyRelease:
    noise, holders = _number(fields, "noise_multiplier"), _field(fields, "max_holders")
    if noise <= 0.0:
        raise InputError("vocabulary.noise_multiplier", noise, "must be above 0")
    share = _number(fields, "threshold_delta")
    if not 0.0 <= share < 1.0:
        raise InputError("vocabulary.threshold_delta", share, "must lie in [0, 1)")
    return VocabularyRelease(noise, None if holders is None else _count(fields, "max_holders"), share)


def _field(event: Mapping[str, Any], name: str) -> Any:
    if name not in event:
        raise InputError(_named(event, name), None, "is missing from the event")
    return event[name]


def _mapping(event: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = _field(event, name)
    if not isinstance(found, Mapping):
        raise InputError(_named(event, name), found, "must be a mapping")
    return found


def _count(event: Mapping[str, Any], name: str) -> int:
    found = _field(event, name)
    if type(found) is not int or not 0 <= found <= MAX_COUNT:
        raise InputError(_named(event, name), found, f"must be an integer, 0 to {MAX_COUNT:g}")
    return found


def _number(event: Mapping[str, Any], name: str) -> float:
    found = _field(event, name)
    if not is_finite(found):
        raise InputError(_named(event, name), found, "must be a finite number")
    return float(found)


def _named(event: Mapping[str, Any], name: str) -> str:
    return f"{event['kind']}.{name}" if isinstance(event.get("kind"), str) else f"ledger.{name}"
