"""The price of choosing: what it costs to report the best of several private trials.

    search = {"searcher": "random", "early_stopping": False}
    epsilon_of_choosing("repeat_and_select", **search, candidates=[[(mechanism, 500)]], mean=32, delta=1e-5)

``public`` charges nothing for the choice: trials are trained and scored on public data, and the winner's training is
charged by its own ledger. Under the other rules the answer includes the winner's training. ``repeat_and_select`` pays for
the winner, its score and its configuration, and for nothing else: other trials, their scores, the number of trials and
which of them won stay secret. ``pilots`` pays for cheap runs and for one more by the settings of the best of them
(``sequence``); ``selected_pilots`` does so where the pilots are a secret, random number, and pays for the run after them
alone. ``composition`` pays for everything that any trial released. Scores are public functions of a trial's released model:
scoring on protected data is a further event. Inputs are public.
References: Papernot and Steinke, arXiv 2110.03620 (theorems 2 and 6), for Renyi divergences; ``best_of`` for profiles; for
adaptive searches see ``odometer``.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, get_args

import numpy as np
from dp_accounting.rdp.rdp_privacy_accountant import compute_delta

from uedp_ray.errors import InputError
from uedp_ray.privacy import best_of, dominating, renyi, sequence
from uedp_ray.privacy.events import (
    Charges,
    UnsupportedEvent,
    charges,
    epsilon_of_charges,
    to_planned_end,
    together,
    union,
)
from uedp_ray.privacy.laws import check_law, halting
from uedp_ray.privacy.mechanisms.base import check_counts, check_of_one_run
from uedp_ray.privacy.mechanisms.poisson import RoundMechanism, counted
from uedp_ray.privacy.odometer import Odometer
from uedp_ray.privacy.renyi import Parts

Rule = Literal["public", "pilots", "selected_pilots", "repeat_and_select", "composition"]
RULES: tuple[str, ...] = get_args(Rule)
SECRET = frozenset({"repeat_and_select", "selected_pilots"})
"""Rules that pay for the winner alone: the other trials and their number stay private."""
PILOTS = frozenset({"pilots", "selected_pilots"})
"""Rules whose trials are cheap runs of their own epsilon, and whose winner has the rest of the budget."""
TRAINS_ANEW = PILOTS | {"public"}
"""Rules whose winner is a run of its own, by the settings of the best trial."""
Searcher = Literal["random", "grid", "tpe", "nsga2", "gp"]
SEARCHERS: tuple[str, ...] = get_args(Searcher)
PROFILES, RENYI = "profiles", "renyi"
"""How ``repeat_and_select`` is priced."""

Event = Mapping[str, Any]

PRICING_POINTS = "pricing the choice (up to a second for each point that was fixed beforehand)"
"""The message printed before ``repeat_and_select`` is priced."""


def is_adaptive(searcher: str, *, early_stopping: bool) -> bool:
    """Whether results decide what is trained next, or for how long."""
    if searcher not in SEARCHERS:
        raise InputError("searcher", searcher, f"choose one of {', '.join(SEARCHERS)}")
    return early_stopping or searcher not in ("random", "grid")


def default_rule(searcher: str, *, early_stopping: bool) -> str:
    """``repeat_and_select`` where candidates are independent of results and of each other, else ``composition``."""
    adaptive = is_adaptive(searcher, early_stopping=early_stopping)
    return "repeat_and_select" if searcher == "random" and not adaptive else "composition"


def check_rule(rule: str, *, searcher: str, early_stopping: bool) -> None:
    """Raises: InputError where the searcher does not meet what the rule's theorem asks for."""
    possible = default_rule(searcher, early_stopping=early_stopping)
    if rule not in RULES:
        raise InputError("selection", rule, f"choose one of {', '.join(RULES)}")
    if rule in PILOTS and is_adaptive(searcher, early_stopping=early_stopping):
        why = "early stopping compares trials" if early_stopping else f"{searcher} looks at earlier results"
        raise InputError("selection", rule, f"{why}, and pilots are fixed beforehand: use searcher random or grid")
    if rule in SECRET and possible != "repeat_and_select":
        if early_stopping:
            why = "early stopping compares trials"
        elif searcher == "grid":
            why = "a grid tries each point once, and the theorem needs independent draws; searcher random may draw from one"
        else:
            why = f"{searcher} looks at earlier results"
        raise InputError("selection", rule, f"{why}: use composition")


def unpriced(rule: str) -> TypeError:
    """The error for a rule that no theorem here covers: none is priced, or described, as another one."""
    return TypeError(f"rule {rule} has no price")


_NOTHING_CHANGED = "Only the owner can check that no run is missing, and that nothing in these files was changed."
UNCHECKED = {
    "composition": _NOTHING_CHANGED,
    "pilots": _NOTHING_CHANGED,
    "selected_pilots": "Only the owner can check that nothing in these files was changed, that the number of pilots was "
    "drawn by the law that they state, and that every pilot stayed within its own bound.",
    "repeat_and_select": "Only the owner can check that nothing in these files was changed, that the number of trials was "
    "drawn by the law that they state, and that every trial stayed within its own candidate's bound.",
}
"""What the total of an export, recomputed from its files, takes on trust."""


def priced_by(terms: Mapping[str, Any]) -> str:
    """How the terms of a ``repeat_and_select`` say that it is priced: those of an earlier version say nothing."""
    return str(terms.get("by", RENYI))


def candidates_of(values: Iterable[Iterable[Mapping[str, Any]]]) -> list[list[tuple[RoundMechanism, int]]]:
    """Reads candidates from plain values. Raises: InputError, KeyError, TypeError for anything else."""
    candidates = []
    for parts in values:
        candidates.append([(RoundMechanism.from_dict(part["mechanism"]), part["rounds"]) for part in parts])
        check_counts(candidates[-1])
        check_of_one_run(candidates[-1], "candidates")
    return candidates


def odometer_of(terms: Mapping[str, Any]) -> Odometer | None:
    """The odometer that the terms of an adaptive search fixed. Raises: as ``Odometer.from_dict``."""
    return Odometer.from_dict(terms["odometer"]) if "odometer" in terms else None


def accountant_of(rule: str, *, odometer: Odometer | None, by: str = PROFILES) -> str:
    """The method by which ``epsilon_of_choosing`` computes."""
    if rule == "public":
        return "none: the search is declared to have read no protected text"
    if rule == "repeat_and_select":
        return (
            "repeat and select, by privacy profiles" if by == PROFILES else "repeat and select (Papernot and Steinke)"
        )
    if rule == "pilots":
        return "composition of all pilots and of the largest profile of the runs that may follow them"
    if rule == "selected_pilots":
        return "repeat and select, by privacy profiles, composed with the largest profile of the runs that may follow"
    if rule != "composition":
        raise unpriced(rule)
    if odometer is None:
        return "composition of all planned runs and their ledgers"
    return f"Renyi {'odometer' if odometer.target is None else 'filter'} over all ledgers"


def epsilon_of_choosing(
    rule: str,
    *,
    searcher: str,
    early_stopping: bool,
    delta: float,
    unit: str = "user-entity",
    kind: str = "both",
    ledgers: Sequence[Iterable[Event] | Charges] = (),
    planned: Sequence[Charges] = (),
    odometer: Odometer | None = None,
    candidates: Sequence[Parts] = (),
    finals: Sequence[Parts] = (),
    final: Iterable[Event] = (),
    mean: float = 1.0,
    law: str = "geometric",
    by: str = PROFILES,
) -> float:
    """epsilon at ``delta`` of reporting the best trial. Source: accounting.md, "The price of choosing".

    Args:
      ledgers: ``composition``: the events of every run (of each trial, and of each of its seeds), finished or not, or what
        it is charged if it left none, in an order that was fixed before runs started.
      planned: ``composition`` of a search that is not adaptive: for each ledger what its whole run charges, all fixed
        before the first one started.
      odometer: ``composition`` of an adaptive search: what was fixed before its first run.
      candidates: ``repeat_and_select``, ``selected_pilots``: (mechanism, rounds) of every trial that could have been drawn,
        over all its seeds. ``pilots``: of every pilot, one for each of ``ledgers``.
      finals, final: (mechanism, rounds) of every run that may follow pilots, and the events of the one that did.
      mean, law: those of ``draw_trials``.
      by: ``repeat_and_select``: ``profiles`` of the candidates, or their Renyi divergences (``renyi``), as earlier versions
        priced it. Profiles need each trial within its own candidate, divergences within the largest of all.

    Raises: InputError for values out of range, and where the searcher does not allow the rule.
    """
    check_rule(rule, searcher=searcher, early_stopping=early_stopping)
    dominating.check_arguments(unit, kind, delta)
    if rule == "public":
        return 0.0
    if rule == "composition":
        if not is_adaptive(searcher, early_stopping=early_stopping):
            charged = _whole(planned, ledgers)
            return epsilon_of_charges(charged, delta=delta, unit=unit, kind=kind)
        if odometer is None:
            raise InputError("odometer", None, "an adaptive search needs one that was fixed before its first run")
        if (odometer.delta, odometer.unit, odometer.kind) != (delta, unit, kind):
            stated = f"{odometer.delta:g}, {odometer.unit}, {odometer.kind}"
            raise InputError("odometer", stated, f"differs from the requested {delta:g}, {unit}, {kind}: use its own")
        return odometer.epsilon(ledgers)
    if rule == "pilots":
        return _of_pilots(ledgers, candidates, list(final), finals, {"delta": delta, "unit": unit, "kind": kind})
    check_law(mean, law)
    if not candidates:
        raise InputError("candidates", [], "needs at least one")
    if rule == "selected_pilots":
        _check_final(list(final), finals)
        best = best_of.Best(candidates, mean, law)
        return sequence.epsilon([list(finals)], delta=delta, unit=unit, kind=kind, best=best)
    if rule != "repeat_and_select":
        raise unpriced(rule)
    if by not in (PROFILES, RENYI):
        raise InputError("by", by, f"choose one of {PROFILES}, {RENYI}")
    found = 0.0
    for each in dominating.kinds(kind):
        if by == PROFILES:
            settings: dict[str, Any] = {"mean": mean, "law": law, "delta": delta, "unit": unit, "kind": each}
            found = max(found, best_of.epsilon(candidates, **settings))
            continue
        rates_A, lost = common_bound(candidates, mean=mean, delta=delta, unit=unit, kind=each)
        chosen_A = selected(rates_A, mean=mean, law=law)
        found = max(found, renyi.to_epsilon(chosen_A, delta - mean * lost))
    return found


def _of_pilots(
    ledgers: Sequence[Iterable[Event] | Charges],
    pilots: Sequence[Parts],
    final: Sequence[Event],
    finals: Sequence[Parts],
    settings: Mapping[str, Any],
) -> float:
    """What was planned, in full: a run that stopped early counts as a whole one, and none may have spent more.

    Raises: InputError if one did.
    """
    if len(pilots) != len(ledgers):
        raise InputError("ledgers", len(ledgers), f"needs one for each of {len(pilots)} pilots")
    for ledger, pilot in zip(ledgers, pilots, strict=True):
        if isinstance(ledger, Charges):
            raise InputError("ledgers", "charges", "a pilot without a ledger is charged as planned: leave it empty")
        if events := list(ledger):
            check_own(events, pilot)
    _check_final(final, finals)
    return sequence.epsilon([*([pilot] for pilot in pilots), list(finals)], **settings)


def _check_final(final: Sequence[Event], finals: Sequence[Parts]) -> None:
    """Raises: InputError if the run after pilots, whose events these are, spent more than each that may follow them."""
    if final and not any(_stays_within(final, one) for one in finals):
        raise InputError("final", len(final), "the run after the pilots spent more than it may")


def _stays_within(events: Sequence[Event], candidate: Parts) -> bool:
    try:
        check_own(events, candidate)
    except UnsupportedEvent:
        raise
    except InputError:
        return False
    return True


def _whole(planned: Sequence[Charges], ledgers: Sequence[Iterable[Event] | Charges]) -> Charges:
    """What is charged when every run is charged to its planned end, and beyond it what its ledger says.

    Runs that never started, or stopped early, are charged in full: whether they continued may have depended on results.
    """
    if len(planned) != len(ledgers):
        raise InputError("ledgers", len(ledgers), f"needs one for each of {len(planned)} planned runs")
    found = (charges(ledger)._replace(bounded=True) for ledger in ledgers)  # by what was planned for the search
    return together(union(to_planned_end(one), whole) for whole, one in zip(planned, found, strict=True))


def common_bound(
    candidates: Sequence[Parts], *, mean: float, delta: float, unit: str, kind: str
) -> tuple[np.ndarray, float]:
    """Renyi divergences at ``renyi.ORDERS`` that hold for every candidate, and the mass a trial leaves out.

    Cut labels are as likely in both worlds, so given that none occurs trials are still independent, and the number of
    them has the same law with a smaller mean. Some occur with probability at most ``mean`` times the mass of one trial.
    """
    if not candidates:
        raise InputError("candidates", [], "needs at least one")
    lost = renyi.SHARE * delta / mean
    each = [renyi.rdp(parts, lost=lost, unit=unit, kind=kind) for parts in candidates]
    return np.maximum.reduce([rates_A for rates_A, _ in each]), max(mass for _, mass in each)


def check_own(events: Iterable[Event], candidate: Parts) -> None:
    """Checks that a trial's ledger, replayed rounds included, stayed within the candidate that was drawn for it: as many
    rounds of each mechanism at most, with as much noise at least.

    Raises: InputError if it did not; UnsupportedEvent for events other than private rounds.
    """
    room = counted(candidate)
    for mechanism, count in _rounds(events):
        own = [one for one in room if room[one] >= count and _is_at_most(mechanism, one)]
        if not own:
            raise InputError("rounds", count, "the trial spent more than its candidate may: use composition")
        room[own[0]] -= count


def _is_at_most(one: RoundMechanism, other: RoundMechanism) -> bool:
    """Whether the first is the second with as much noise or more."""
    as_much = dataclasses.replace(other, noise_multiplier=one.noise_multiplier) == one
    return as_much and one.noise_multiplier >= other.noise_multiplier


def check_trial(
    events: Iterable[Event],
    candidates: Sequence[Parts],
    *,
    mean: float,
    delta: float,
    unit: str = "user-entity",
    kind: str = "both",
) -> None:
    """Checks that a trial's ledger, replayed rounds included, stayed within the bound common to all ``candidates``.

    A trial that stopped early is within it: its labels are cut as those of a whole candidate are.

    Raises: InputError if it did not; UnsupportedEvent for events other than private rounds.
    """
    parts = _rounds(events)
    plans = {sum(count for _, count in candidate) for candidate in candidates}
    for each in dominating.kinds(kind):
        rates_A, lost = common_bound(candidates, mean=mean, delta=delta, unit=unit, kind=each)
        for rounds in plans:
            trial_A, trial_lost = renyi.rdp(parts, lost=renyi.SHARE * delta / mean, unit=unit, kind=each, over=rounds)
            if (trial_A <= rates_A * (1 + 1e-9)).all() and trial_lost <= lost * (1 + 1e-9):
                break
        else:
            charged = sum(count for _, count in parts)
            raise InputError("rounds", charged, "the trial spent more than any candidate may: use composition")


def _rounds(events: Iterable[Event]) -> list[tuple[RoundMechanism, int]]:
    counts: dict[RoundMechanism, int] = {}
    for event in events:
        name = event.get("kind")
        private = event.get("header", {}).get("private") if name == "open" else event.get("private")
        if name not in ("open", "round") or private is not True:
            raise UnsupportedEvent("kind", name, "this rule covers private rounds only: use composition")
        if name == "round":
            mechanism = RoundMechanism.from_dict(event["mechanism"])
            counts[mechanism] = counts.get(mechanism, 0) + 1
    return list(counts.items())


def selected(rates_A: np.ndarray, *, mean: float, law: str) -> np.ndarray:
    """Renyi divergences at ``renyi.ORDERS`` of the best of a random number of runs, from those of one run.

    Raises: InputError for an unknown law, and for a mean outside [1, 1e6].

        >>> from uedp_ray.privacy.mechanisms.poisson import RoundMechanism
        >>> from uedp_ray.privacy.renyi import to_epsilon
        >>> from uedp_ray.privacy.selection import common_bound, selected
        >>> one = RoundMechanism(noise_multiplier=2.0, user_sampling_prob=0.05, max_holders=1, entity_clip=0.2)
        >>> rates, lost = common_bound([[(one, 20)]], mean=8.0, delta=1e-5, unit="user-entity", kind="entity")
        >>> round(to_epsilon(rates, 1e-5 - lost), 3)    # of one run
        1.038
        >>> for law in ("geometric", "logarithmic", "poisson"):
        ...     best = selected(rates, mean=8.0, law=law)
        ...     print(law, round(to_epsilon(best, 1e-5 - 8.0 * lost), 3))
        geometric 1.984
        logarithmic 1.732
        poisson 1.783
    """
    check_law(mean, law)
    orders_A = np.array(renyi.ORDERS)
    if law == "poisson":
        ends = [compute_delta(renyi.ORDERS, rates_A, math.log1p(1 / (order - 1)))[0] for order in renyi.ORDERS]
        return rates_A + mean * np.array(ends) + math.log(mean) / (orders_A - 1)
    shape = {"logarithmic": 0.0, "geometric": 1.0}[law]
    spread = (1 + shape) * np.min((1 - 1 / orders_A) * rates_A - math.log(halting(mean, law)) / orders_A)
    found_A = rates_A + math.log(mean) / (orders_A - 1) + spread
    return np.minimum.accumulate(found_A[::-1])[::-1]  # divergences increase in the order
