"""epsilon of what happened, from the events of a ledger and nothing else.

    >>> from uedp_ray.privacy.events import epsilon_of_events
    >>> from uedp_ray.privacy.mechanisms.poisson import RoundMechanism
    >>> one = RoundMechanism(
    ...     noise_multiplier=2.0, user_sampling_prob=0.05, entity_sampling_prob=0.5, max_holders=1, entity_clip=0.2
    ... )
    >>> begun = {"kind": "open", "header": {"private": True, "plan": {"rounds": 50, "mechanism": one.to_dict()}}}
    >>> noised = {"kind": "round", "private": True, "mechanism": one.to_dict()}
    >>> ledger = [begun, *[noised] * 10]    # as ``read_ledger`` reads it: 10 of 50 planned rounds
    >>> round(epsilon_of_events(ledger, delta=1e-5, unit="user-entity", kind="entity"), 3)    # of all 50
    0.943

A round counts every time it was noised, and a run counts to its planned end: when it stopped may have depended on what it
had released. Events that are not understood are refused, never skipped. Inputs are public.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import Any, NamedTuple

from uedp_ray.errors import InputError
from uedp_ray.privacy import dominating
from uedp_ray.privacy.accounting import compose
from uedp_ray.privacy.composition import of_profiles
from uedp_ray.privacy.dominating import MIN_DELTA
from uedp_ray.privacy.mechanisms import OTHER_EVENTS, UnsupportedEvent, release_of
from uedp_ray.privacy.mechanisms.base import (
    MOST_OF_ONE_RUN,
    Cost,
    Mechanism,
    check_of_one_run,
    count_of,
    mapping_of,
)
from uedp_ray.privacy.mechanisms.local_round import LocalRound
from uedp_ray.privacy.mechanisms.poisson import RoundMechanism, counted
from uedp_ray.privacy.profiles import Profile, replaced
from uedp_ray.units import DEALT, RECORD


class PlannedRounds(NamedTuple):
    """What a ledger recorded, before the first release, as its run's planned releases."""

    rounds: int
    mechanism: RoundMechanism
    releases: tuple[Mechanism, ...] = ()
    """Releases that are not rounds."""


class Charges(NamedTuple):
    """What events charge."""

    rounds: tuple[tuple[RoundMechanism, int], ...]
    """(mechanism, count) in order; a round counts as often as it was noised."""
    releases: tuple[Mechanism, ...] = ()
    """Releases that are not rounds, in order."""
    private: bool = True
    """False if anything was released without protection."""
    plan: PlannedRounds | None = None
    bounded: bool = True
    """False for a ledger without a plan: nothing fixed beforehand bounds what its run would have charged."""
    of_records: bool = False
    """Whether users are no persons (``corpus.regroup``): what is charged then hides a record, and no user or entity."""
    dealt: bool = False
    """Whether a record may share its user with others (``corpus.regroup: iid``)."""

    @property
    def num_rounds(self) -> int:
        """Rounds of either kind: noised once, or by each user (``LocalRound``)."""
        return sum(count for _, count in self.rounds) + sum(isinstance(each, LocalRound) for each in self.releases)

    def to_dict(self) -> dict[str, Any]:
        """Plain values of private releases: what was planned, for storage."""
        rounds = [{"mechanism": mechanism.to_dict(), "rounds": count} for mechanism, count in self.rounds]
        return {"rounds": rounds, "releases": [each.to_event() for each in self.releases]}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Charges:
        """Reads what ``to_dict`` wrote, in older versions too. Raises: InputError, KeyError, TypeError for anything else."""
        check_of_one_run(values["rounds"], "rounds")
        parts = tuple(
            (RoundMechanism.from_dict(part["mechanism"]), count_of(part, "rounds")) for part in values["rounds"]
        )
        if "releases" in values:
            return cls(parts, tuple(map(release_of, values["releases"])))
        return cls(parts, tuple(release_of({**fields, "kind": "vocabulary"}) for fields in values["vocabularies"]))

    def with_round(self, event: Mapping[str, Any]) -> Charges:
        """These charges after the event of one more round, of any kind, without reading the ledger again."""
        one = charges([event])
        rounds = (*self.rounds, *one.rounds)
        if one.rounds and self.rounds and one.rounds[0][0] == self.rounds[-1][0]:
            mechanism, count = self.rounds[-1]
            rounds = (*self.rounds[:-1], (mechanism, count + 1))
        private = self.private and one.private
        return self._replace(rounds=rounds, releases=(*self.releases, *one.releases), private=private)


def charges(events: Iterable[Mapping[str, Any]] | Charges) -> Charges:
    """Reads one ledger's ``open`` (header), ``plan``, ``round`` (mechanism) and ``unprotected`` events, and those of
    ``mechanisms.RELEASES``; or a list of such events without ``open``, which is charged as it is.

    ``Charges``, which stand in for a missing ledger, are returned as they are. Raises: UnsupportedEvent for any other event;
    InputError for values out of range.
    """
    if isinstance(events, Charges):
        return events
    rounds: list[tuple[RoundMechanism, int]] = []
    releases: list[Mechanism] = []
    private = bounded = True
    of_records = dealt = False
    plan: PlannedRounds | None = None
    last: Any = None
    for event in events:
        name = event.get("kind")
        if name not in OTHER_EVENTS:
            releases.append(release_of(event))
        elif name == "open":
            header = mapping_of(event, "header")
            of_records |= header.get("private") in (RECORD, DEALT)  # an older version reads this as not private
            dealt |= header.get("private") == DEALT
            private &= of_records or header.get("private") is True
            plan = planned_rounds(header)
            bounded = plan is not None
        elif name == "round":
            private &= event.get("private") is True
            found = mapping_of(event, "mechanism")
            if rounds and found == last:  # nearly always so: this makes long ledgers fast to read
                rounds[-1] = (rounds[-1][0], rounds[-1][1] + 1)
            else:
                rounds.append((RoundMechanism.from_dict(found), 1))
                if len(rounds) > MOST_OF_ONE_RUN:
                    raise InputError("round.mechanism", len(rounds), "changes more often than in any run: not a ledger")
            last = found
            if "round" in event:
                count_of(event, "round")
        elif name == "plan":
            if plan is None or rounds:
                raise UnsupportedEvent("kind", name, "a plan may be changed only before the first round")
            plan = plan._replace(rounds=count_of(event, "rounds"))
        else:  # unprotected
            private = False
    return Charges(tuple(rounds), tuple(releases), private, plan, bounded, of_records, dealt)


def planned_rounds(header: Mapping[str, Any]) -> PlannedRounds | None:
    """The plan in a ledger's header; None if there is none: an older version's ledger, or a run without noise.

    Raises: as ``charges``.
    """
    if header.get("plan") is None:
        return None
    plan = {"kind": "plan", **mapping_of(header, "plan")}
    releases = []
    if plan.get("vocabulary") is not None:  # of an older version
        releases.append(release_of({**mapping_of(plan, "vocabulary"), "kind": "vocabulary"}))
    others = plan.get("releases", ())
    if not isinstance(others, list | tuple):
        raise InputError("plan.releases", others, "must be a list")
    releases += map(release_of, others)
    return PlannedRounds(
        count_of(plan, "rounds"), RoundMechanism.from_dict(mapping_of(plan, "mechanism")), tuple(releases)
    )


def union(one: Charges, other: Charges) -> Charges:
    """The larger count of each release, of two about the same users."""
    assert one.of_records == other.of_records
    return Charges(
        tuple((counted(one.rounds) | counted(other.rounds)).items()),
        tuple((Counter(one.releases) | Counter(other.releases)).elements()),
        one.private and other.private,
        of_records=one.of_records,
        dealt=one.dealt or other.dealt,
        bounded=one.bounded and other.bounded,
    )


def together(charged: Iterable[Charges]) -> Charges:
    """Everything that several runs charge."""
    each = list(charged)
    return Charges(
        tuple(chain.from_iterable(one.rounds for one in each)),
        tuple(chain.from_iterable(one.releases for one in each)),
        all(one.private for one in each),
        of_records=any(one.of_records for one in each),
        dealt=any(one.dealt for one in each),
        bounded=all(one.bounded for one in each) and len({one.of_records for one in each}) < 2,
    )


def to_planned_end(charged: Charges) -> Charges:
    """What a run is charged, wherever it is now or stopped: its plan, and what was charged beyond it."""
    if charged.plan is None:
        return charged
    rounds, mechanism, releases = charged.plan
    rounds_of = ((mechanism, rounds),) if rounds else ()
    planned = Charges(rounds_of, releases, of_records=charged.of_records, dealt=charged.dealt)
    return union(charged, planned)


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

    Edge cases:

        >>> from uedp_ray.privacy.events import epsilon_of_events
        >>> from uedp_ray.privacy.mechanisms.poisson import RoundMechanism
        >>> one = RoundMechanism(
        ...     noise_multiplier=2.0, user_sampling_prob=0.05, entity_sampling_prob=0.5, max_holders=1, entity_clip=0.2
        ... )
        >>> begun = {"kind": "open", "header": {"private": True, "plan": {"rounds": 50, "mechanism": one.to_dict()}}}
        >>> noised = {"kind": "round", "private": True, "mechanism": one.to_dict()}
        >>> def of(*events):
        ...     return round(epsilon_of_events(events, delta=1e-5, kind="entity"), 3)
        >>> of(), of(begun), of(begun, *[noised] * 60)    # none at all; planned and not begun; 10 more than planned
        (0.0, 0.943, 1.027)
        >>> of(begun, noised, begun)    # two ledgers, one after the other
        1.311
        >>> of(begun, {"kind": "plan", "rounds": 20}, noised)    # a plan that was changed before the first round
        0.634
        >>> of({"kind": "open", "header": {"private": True}}, noised)    # no plan: nothing says when it would have ended
        inf
        >>> of(*[noised] * 50)    # rounds without a header are charged as they are
        0.943
        >>> of(begun, {"kind": "unprotected"}), of(begun, {**noised, "private": False})    # no noise; noise of a test
        (inf, inf)
        >>> of(begun, noised, {"kind": "plan", "rounds": 20})    # or one that no accountant knows
        Traceback (most recent call last):
            ...
        uedp_ray.privacy.mechanisms.UnsupportedEvent: kind = 'plan': a plan may be changed only before the first round
    """
    whole = together(to_planned_end(charges(ledger)) for ledger in _ledgers(events))
    return epsilon_of_charges(whole, delta=delta, unit=unit, kind=kind, accountant=accountant)


def epsilon_of_charges(
    charged: Charges, *, delta: float, unit: str, kind: str = "both", accountant: str = "pld"
) -> float:
    """epsilon at ``delta`` of releases whose number and parameters do not depend on what was released.

    ``unit``: also ``RECORD``; infinity for another where users are records, and for it where they are persons.
    """
    if not (charged.private and charged.bounded) or charged.of_records != (unit == RECORD):
        return math.inf
    if charged.dealt:
        return _epsilon_of_dealt(charged, delta, accountant)
    unit = "user" if unit == RECORD else unit  # accounting.md, "Regrouped users"
    found = 0.0
    for each in dominating.kinds(kind) if charged.releases else (kind,):
        cost = cost_of(charged, unit, each)
        if cost is None or delta - cost.failure_prob < MIN_DELTA:
            return math.inf
        rounds = [(mechanism, count) for mechanism, count in cost.rounds if isinstance(mechanism, RoundMechanism)]
        if len(rounds) < len(cost.rounds):  # of a kind that no accountant here composes
            return math.inf
        settings: dict[str, Any] = {"delta": delta - cost.failure_prob, "unit": unit, "kind": each}
        found = max(found, compose(rounds, gaussians=cost.gaussians, accountant=accountant, **settings))
    return found


def _epsilon_of_dealt(charged: Charges, delta: float, accountant: str) -> float:
    """Of a record that shares its user with others: the smaller of what a sentence of a user costs whose draw is shown, used
    whenever that user is drawn, and, by ``pld``, of what replacing that user would cost, of clip 1 as all, or moved further
    by the sentence."""
    if charged.releases:
        return math.inf
    rounds = [(dataclasses.replace(one, extended_sampling_prob=1.0), count) for one, count in charged.rounds]
    shown = compose(rounds, delta=delta, unit="entity", kind="extended", accountant=accountant)
    if accountant != "pld":
        return shown
    parts: list[tuple[Profile, int]] = [
        (replaced(max(1.0, one.extended_clip), one.noise_multiplier, share=one.user_sampling_prob), count)
        for one, count in counted(charged.rounds).items()
        if one.user_sampling_prob > 0.0
    ]
    return min(shown, of_profiles(parts, delta)) if parts else 0.0


def cost_of(charged: Charges, unit: str, kind: str) -> Cost | None:
    """What all releases cost together; None if one of them has no bound."""
    counts = [*counted(charged.rounds).items(), *Counter(charged.releases).items()]
    costs = [(mechanism.cost(unit, kind), count) for mechanism, count in counts]
    found = [cost.times(count) for cost, count in costs if cost is not None and cost.is_stated]
    if len(found) < len(costs):
        return None
    return Cost(
        tuple(chain.from_iterable(cost.rounds for cost in found)),
        tuple(chain.from_iterable(cost.gaussians for cost in found)),
        math.fsum(cost.failure_prob for cost in found),
    )


def _ledgers(events: Iterable[Mapping[str, Any]]) -> Iterator[list[Mapping[str, Any]]]:
    """Splits the concatenated events of several ledgers into one list for each."""
    found: list[Mapping[str, Any]] = []
    for event in events:
        if event.get("kind") == "open" and found:
            yield found
            found = []
        found.append(event)
    yield found
