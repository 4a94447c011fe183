"""What ``uedp-ray epsilon`` and ``uedp-ray calibrate`` answer: an epsilon, never without what it means.

    parameter_epsilon(mechanism, rounds=50, delta=1e-5)["epsilon"]

No data is touched. Every answer carries unit, neighbouring relation, delta, accountant, selection rule and sampling.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from uedp_ray.errors import InputError
from uedp_ray.privacy import accounting
from uedp_ray.privacy.events import epsilon_of_events
from uedp_ray.privacy.ledger import read_ledger
from uedp_ray.privacy.mechanism import RoundMechanism
from uedp_ray.privacy.published import published_epsilon
from uedp_ray.privacy.statement import state


def parameter_epsilon(
    mechanism: RoundMechanism,
    *,
    rounds: int,
    delta: float,
    accountant: str = "user-entity",
    kind: str = "both",
    method: str = "uedp",
    sensitive_fraction: float = 1.0,
    max_order: int = 32,
) -> dict[str, Any]:
    """epsilon of ``rounds`` rounds of ``mechanism``; ``method`` and the rest matter to ``published`` only."""
    if accountant == "published":
        value = published_epsilon(
            method=method,  # type: ignore[arg-type]  # checked there
            noise_multiplier=mechanism.noise_multiplier,
            user_sampling_prob=mechanism.user_sampling_prob,
            entity_sampling_prob=mechanism.entity_sampling_prob,
            sensitive_fraction=sensitive_fraction,
            rounds=rounds,
            delta=delta,
            max_order=max_order,
        )
    else:
        value = accounting.epsilon(mechanism, rounds=rounds, delta=delta, accountant=accountant, kind=kind)
    if accountant == "published":  # the paper's own terms
        mechanism = dataclasses.replace(mechanism, selection_rule="any")
    return _answer(mechanism, value, delta, accountant) | {"rounds": rounds, "kind": kind}


def ledger_epsilon(path: Path, *, delta: float, accountant: str = "user-entity", kind: str = "both") -> dict[str, Any]:
    """epsilon of everything a ledger records; the file alone is enough."""
    if accountant == "published":
        raise InputError("--accountant", accountant, "a ledger is bounded by user-entity, user or entity")
    events = read_ledger(path)
    releases = [event for event in events if event["kind"] == "round"]
    value = epsilon_of_events(events, delta=delta, accountant=accountant, kind=kind)
    header = events[0]["header"]
    mechanism = RoundMechanism.from_dict(releases[-1]["mechanism"]) if releases else None
    claims = {"private": header["private"] is True, "declared": header.get("bounds") == "declared"}
    answer = _answer(mechanism, value, delta, accountant, **claims)
    return answer | {"rounds": len(releases), "kind": kind, "events": len(events)}


def calibrated(
    mechanism: RoundMechanism, *, target_epsilon: float, rounds: int, delta: float, accountant: str, kind: str
) -> dict[str, Any]:
    """The smallest noise multiplier whose epsilon is at most the target, and that epsilon."""
    if accountant == "published":
        raise InputError("--accountant", accountant, "no guarantee to calibrate to: use user-entity, user or entity")
    settings: dict[str, Any] = {"rounds": rounds, "delta": delta, "accountant": accountant, "kind": kind}
    noise_multiplier = accounting.calibrate(mechanism, target_epsilon=target_epsilon, **settings)
    mechanism = dataclasses.replace(mechanism, noise_multiplier=noise_multiplier)
    return {"noise_multiplier": noise_multiplier, **parameter_epsilon(mechanism, **settings)}


def _answer(
    mechanism: RoundMechanism | None,
    value: float,
    delta: float,
    accountant: str,
    *,
    declared: bool = False,
    private: bool = True,
) -> dict[str, Any]:
    return dataclasses.asdict(
        state(mechanism, epsilon=value, delta=delta, accountant=accountant, declared=declared, private=private)
    )
