"""epsilon of what happened: from the events of a ledger, and nothing else.

    epsilon_of_events(read_ledger("run/ledger.jsonl"), delta=1e-5, accountant="user-entity")

A round counts every time it was noised. Events that are not understood are refused, never skipped. Inputs are public.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from uedp_ray.errors import InputError
from uedp_ray.privacy import dominating
from uedp_ray.privacy.accounting import MIN_DELTA, compose
from uedp_ray.privacy.mechanism import RoundMechanism


class UnsupportedEvent(InputError):
    """An event no accountant here can bound."""


class Vocabulary(NamedTuple):
    """A noisy-threshold vocabulary."""

    noise_multiplier: float
    max_holders: int | None
    threshold_delta: float
    """Probability that a word appears which only the protected user and entity hold; to be taken off delta."""

    def sensitivity(self, accountant: str, kind: str) -> float:
        """L2 norm by which the word counts move: 1 for the user, 1 for each holder of the entity."""
        if accountant == "user":
            return 1.0
        if not self.max_holders:  # counted, and its threshold set, for users alone
            return math.inf
        holders = 1.0 if kind == "extended" else float(self.max_holders)
        return holders if accountant == "entity" else 1.0 + holders


class Charges(NamedTuple):
    """What events charge."""

    rounds: list[RoundMechanism]
    """In order; a round as often as it was noised."""
    vocabularies: list[Vocabulary]
    private: bool
    """False if anything was released without protection."""


def charges(events: Iterable[Mapping[str, Any]]) -> Charges:
    """Reads ``open`` (header), ``round`` (mechanism), ``vocabulary`` (noisy threshold) and ``unprotected`` events.

    Raises: UnsupportedEvent for any other; InputError for values out of range.
    """
    rounds: list[RoundMechanism] = []
    vocabularies: list[Vocabulary] = []
    private = True
    for event in events:
        name = event.get("kind")
        if name == "open":
            private &= event.get("header", {}).get("private") is True
        elif name == "round":
            private &= event.get("private") is True
            rounds.append(RoundMechanism.from_dict(_field(event, "mechanism")))
        elif name == "vocabulary":
            noise, holders = float(_field(event, "noise_multiplier")), _field(event, "max_holders")
            vocabularies.append(Vocabulary(noise, holders, _share(event)))
        elif name == "unprotected":
            private = False
        else:
            raise UnsupportedEvent("kind", name, "no accountant for this event: use the version that wrote the ledger")
    return Charges(rounds, vocabularies, private)


def epsilon_of_events(
    events: Iterable[Mapping[str, Any]],
    *,
    delta: float,
    accountant: str = "user-entity",
    kind: str = "both",
) -> float:
    """epsilon at ``delta`` of all ``events``; infinity if any was not private. Source: accounting.md, section 4.

    Raises: as ``charges``, and InputError for values out of range.
    """
    return epsilon_of_charges(charges(events), delta=delta, accountant=accountant, kind=kind)


def epsilon_of_charges(charged: Charges, *, delta: float, accountant: str, kind: str) -> float:
    """epsilon at ``delta`` of releases whose number and parameters do not depend on what was released."""
    rounds, vocabularies, private = charged
    delta -= sum(vocabulary.threshold_delta for vocabulary in vocabularies)
    if not private or delta < MIN_DELTA:
        return math.inf
    parts = list(Counter(rounds).items())
    found = 0.0
    for each in dominating.kinds(kind) if vocabularies else (kind,):
        gaussians = [(v.sensitivity(accountant, each), v.noise_multiplier) for v in vocabularies]
        if any(math.isinf(sensitivity) for sensitivity, _ in gaussians):
            return math.inf
        found = max(found, compose(parts, delta=delta, accountant=accountant, kind=each, gaussians=gaussians))
    return found


def _field(event: Mapping[str, Any], name: str) -> Any:
    if name not in event:
        raise InputError(f"{event['kind']}.{name}", None, "is missing from the event")
    return event[name]


def _share(event: Mapping[str, Any]) -> float:
    share = float(_field(event, "threshold_delta"))
    if not 0.0 <= share < 1.0:
        raise InputError("vocabulary.threshold_delta", share, "must lie in [0, 1)")
    return share
