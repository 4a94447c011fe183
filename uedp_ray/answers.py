"""What ``uedp-ray epsilon`` and ``uedp-ray calibrate`` answer: an epsilon, never without what it means.

    parameter_epsilon(mechanism, rounds=50, delta=1e-5)["epsilon"]

No data is touched. Every answer carries unit, neighbouring relation, delta, accountant, sentence rule and sampling.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from uedp_ray.errors import InputError
from uedp_ray.fields import Unexpected, list_of, string
from uedp_ray.privacy import accounting
from uedp_ray.privacy.cautions import cautions, weakness
from uedp_ray.privacy.dominating import check_arguments, kinds
from uedp_ray.privacy.events import Charges, charges, epsilon_of_charges, epsilon_of_events, to_planned_end
from uedp_ray.privacy.ledger import read_ledger
from uedp_ray.privacy.mechanisms.poisson import RoundMechanism
from uedp_ray.privacy.odometer import SETTLED_BY_RESULTS
from uedp_ray.privacy.published import published_epsilon, published_unit
from uedp_ray.privacy.selection import (
    PILOTS,
    PRICING_POINTS,
    SECRET,
    UNCHECKED,
    accountant_of,
    candidates_of,
    epsilon_of_choosing,
    odometer_of,
    priced_by,
)
from uedp_ray.privacy.statement import OF_RECORDS, covers, narrowed, part_of, show_epsilon, state
from uedp_ray.reporting import SILENT, Reporter
from uedp_ray.storage.files import check_regular
from uedp_ray.units import RECORD

_UNPLANNED = (
    "no guarantee: the ledger does not say how many rounds were planned, and a run that was broken off because of its "
    "results costs more than the rounds it had"
)


_OF_RECORDS = (
    "corpus.regroup made records the users of this run, so that it hides one record, and no person: --unit record"
)
_OF_PERSONS = "record is the unit of runs with corpus.regroup, and this run has users: name their unit"
_NAMES = list_of(string(r"[^\W_].{0,99}", "a name"), nothing=True)
_MOST_RUNS = 100_000
_MOST_BYTES = 1 << 26
_SAME = 1e-6


def parameter_epsilon(
    mechanism: RoundMechanism,
    *,
    rounds: int,
    delta: float,
    unit: str = "user-entity",
    accountant: str = "pld",
    kind: str = "both",
    method: str = "uedp",
    sensitive_fraction: float = 1.0,
    max_order: int = 32,
) -> dict[str, Any]:
    """epsilon of ``rounds`` rounds of ``mechanism``; only ``published`` uses ``method`` and the rest."""
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
        settings: dict[str, Any] = {"rounds": rounds, "delta": delta, "unit": unit, "kind": kind}
        value = accounting.epsilon(mechanism, accountant=accountant, **settings)
    if accountant == "published":  # the paper's own terms
        mechanism = dataclasses.replace(mechanism, selection_rule="any")
        answer = _answer(mechanism, value, delta, published_unit(method), accountant)
    else:
        why = accounting.why_infinite([(mechanism, rounds)], unit=unit, kind=kind) if math.isinf(value) else ""
        claims = {"nothing": why, "kind": kind, "note": _parameters(mechanism, rounds)}
        answer = _answer(mechanism, value, delta, unit, accountant, **claims)
        if mechanism.max_users is not None:
            answer["cautions"] += cautions(mechanism, delta=delta, num_users=mechanism.max_users)
        if mechanism.max_holders == 0 and unit != "user" and kind != "extended":
            answer["cautions"].append("max_holders = 0 says that nobody holds an entity, so the figure protects none")
        answer["cautions"] += _unmoved(mechanism, unit, kind)
    return answer | {"rounds": rounds, "kind": kind}


def _unmoved(mechanism: RoundMechanism, unit: str, kind: str) -> list[str]:
    """A caution for each part of the unit that moves nothing by assumption."""
    if unit == "user" or not mechanism.max_holders:
        return []
    clips = {
        "entity": mechanism.entity_clip,
        "extended": mechanism.extended_clip if mechanism.extended_sampling_prob else 1,
    }
    what = {"entity": "an entity", "extended": "a sentence without entities"}
    return [
        f"a clip of 0 says that {what[each]} moves nothing, so the figure protects none"
        for each in kinds(kind)
        if clips[each] == 0.0
    ]


def _parameters(mechanism: RoundMechanism, rounds: int) -> str:
    """Names the parameters that the figure is for: nothing has checked that a text or a run has them."""
    given = mechanism.to_dict() | {"rounds": rounds}
    return f" Of these parameters, if they hold: {', '.join(f'{name} {value}' for name, value in given.items())}."


def ledger_epsilon(
    path: Path, *, delta: float, unit: str = "user-entity", accountant: str = "pld", kind: str = "both"
) -> dict[str, Any]:
    """epsilon of a run, to its planned end wherever it stopped; the ledger alone is enough.

    No guarantee for one run of a sweep or comparison: the choice among them is not in its ledger.
    """
    if accountant == "published":
        raise InputError("--accountant", accountant, "a ledger is bounded by pld or renyi")
    check_arguments("user" if unit == RECORD else unit, kind, delta)
    events = read_ledger(path)
    answer = _of_ledger(events, delta, unit, accountant, kind, chosen=part_of(events) is not None)
    return answer | {"kind": kind, "events": len(events)}


def _of_ledger(
    events: Sequence[Mapping[str, Any]],
    delta: float,
    unit: str,
    accountant: str = "pld",
    kind: str = "both",
    *,
    least: float = 0.0,
    by: str = "",
    chosen: bool,
    settled: bool = False,
    note: str = "",
) -> dict[str, Any]:
    """epsilon of a run to its planned end, or ``least`` if that is more, in the terms of its ledger.

    ``by``: how ``least`` was computed. ``chosen``, ``settled``, ``note``: as in ``statement.state``.
    """
    charged = charges(events)
    whole = to_planned_end(charged)
    value = max(least, epsilon_of_charges(whole, delta=delta, unit=unit, kind=kind, accountant=accountant))
    if not charged.bounded:
        nothing = _UNPLANNED
    elif charged.of_records != (unit == RECORD):
        nothing = f"no guarantee: {_OF_RECORDS if charged.of_records else _OF_PERSONS}"
    elif math.isinf(value):
        nothing = accounting.why_infinite(whole.rounds, unit=unit, kind=kind)
    else:
        nothing = ""
    mechanism = whole.rounds[-1][0] if whole.rounds else None
    declared = events[0]["header"].get("bounds") == "declared"
    claims: dict[str, Any] = {"private": charged.private, "declared": declared, "nothing": nothing, "kind": kind}
    claims |= {"chosen": chosen, "settled": settled, "note": note}
    if not nothing and whole.num_rounds > charged.num_rounds:
        claims["note"] += (
            f" Charged to its planned end: {whole.num_rounds} rounds, {charged.num_rounds} of them recorded."
        )
    if unit == RECORD and not nothing:
        claims["note"] += f" {OF_RECORDS}"
    if chosen:
        claims["note"] += f" Not the price of a chosen model: {covers(events[0]['header'])}."
    return _answer(mechanism, value, delta, unit, by or accountant, **claims) | {
        "rounds": charged.num_rounds,
        "planned_rounds": None if charged.plan is None else charged.plan.rounds,
    }


def export_epsilon(folder: Path, *, reporter: Reporter = SILENT) -> dict[str, Any]:
    """The total of what ``uedp-ray export`` wrote: training and choosing, by the rule in its ``selection.json``.

    ``selection.json`` holds what was fixed before anything was released, ``ledger.jsonl`` the run, ``ledgers/`` every run
    that the rule charges. Where they give less than the figure that the file states, they may have been changed: the larger
    counts, and the answer says so.

    Raises: InputError for another folder, and for a ledger that is not as it was exported: one that lost its end charges
    less.
    """
    try:
        check_regular(folder / "selection.json", "export it again", most=_MOST_BYTES)
        terms = json.loads((folder / "selection.json").read_text())
        _NAMES(terms.get("categories"), "categories")  # they are printed
        rule, delta, unit = terms["rule"], float(terms["delta"]), str(terms["unit"])
        events = _exported(folder, "ledger.jsonl", terms)
        alone = epsilon_of_events(events, delta=delta, unit=unit)
        if rule in SECRET:
            reporter.say(PRICING_POINTS)
        found, stated = max(alone, _choosing(terms, folder, delta, unit)), float(terms["epsilon"])
        total = max(found, stated)  # also where the latter is no number
        covered = narrowed(unit, None if rule in ("none", "public") else terms["categories"])
    except (
        OSError,
        ValueError,
        KeyError,
        TypeError,
        AttributeError,
        RecursionError,
        OverflowError,
        Unexpected,
    ) as error:
        if isinstance(error, InputError):
            raise
        if any((Path(folder) / name).exists() for name in ("sweep.yaml", "rounds.parquet")):
            remedy = f"is a sweep or a run itself: uedp-ray export {folder} --out DIR writes what --export reads"
            raise InputError("--export", str(folder), remedy) from error
        raise InputError(
            "--export", str(folder), "is not a folder that uedp-ray export wrote, or was changed"
        ) from None
    chosen = rule in ("none", "public") and part_of(events) is not None  # no export of ours is
    run = f"of the exported run alone, whose sentence rule and rounds are given here: epsilon = {show_epsilon(alone)}"
    note = "" if rule == "none" else f" Of training and choosing together, by rule {rule}; {run}."
    odometer = odometer_of(terms) if rule == "composition" else None
    settled = odometer is not None and odometer.settled_by_results(total)
    by = "" if rule in ("none", "public") else accountant_of(rule, odometer=odometer, by=priced_by(terms))
    note += f" {SETTLED_BY_RESULTS}" if settled else ""
    note += f" {UNCHECKED[rule]}" if rule in UNCHECKED else ""
    if found < stated * (1 - _SAME):
        note += (
            f" What selection.json says of the runs gives {show_epsilon(found)}, less than it states: was it changed?"
        )
    answer = _of_ledger(events, delta, unit, least=total, by=by, chosen=chosen, settled=settled, note=note)
    if covered != unit:
        which = covered.removeprefix(f"{unit}; ")
        answer |= {"unit": covered, "text": f"{answer['text']} {which[:1].upper()}{which[1:]}."}
    return answer | {"rule": rule, "epsilon_of_run": alone, "settled_by_results": settled}


def _exported(folder: Path, name: str, terms: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A ledger's events. Raises: InputError if it does not end as it did when it was exported."""
    if "ledgers" not in terms:
        raise InputError("selection.json", str(folder), "does not say how its ledgers end: export it again")
    events = read_ledger(folder / name)
    if events[-1]["digest"] != terms["ledgers"].get(name):
        raise InputError(name, str(folder / name), "is not as it was exported: get the whole folder again")
    return events


def _choosing(terms: Mapping[str, Any], folder: Path, delta: float, unit: str) -> float:
    """What the rule charges; 0 if that is the run alone."""
    rule = terms["rule"]
    if rule in ("none", "public"):
        return 0.0
    settings: dict[str, Any] = {name: terms[name] for name in ("searcher", "early_stopping")}
    if rule in SECRET:
        settings["candidates"] = candidates_of(terms["candidates"])
        settings |= {name: terms[name] for name in ("mean", "law")} | {"by": priced_by(terms)}
        if rule in PILOTS:
            settings |= {"finals": candidates_of(terms["finals"]), "final": _exported(folder, "ledger.jsonl", terms)}
    else:
        ledgers = folder / "ledgers"
        found = {file.name: file for file in ledgers.iterdir()} if ledgers.is_dir() else {}
        if not len(found) <= terms["runs"] <= _MOST_RUNS:
            raise InputError("selection.json runs", terms["runs"], f"must be {len(found)} to {_MOST_RUNS}")
        settings["ledgers"] = [_run(folder, position, terms) for position in range(terms["runs"])]
        if rule == "pilots":
            *settings["ledgers"], settings["final"] = settings["ledgers"]
            settings |= {"candidates": candidates_of(terms["pilots"]), "finals": candidates_of(terms["finals"])}
        settings["odometer"] = odometer_of(terms)
        settings["planned"] = [Charges.from_dict(whole) for whole in terms.get("planned", ())]
    return epsilon_of_choosing(rule, **settings, delta=delta, unit=unit)


def _run(folder: Path, position: int, terms: Mapping[str, Any]) -> list[dict[str, Any]] | Charges:
    """The ledger of a run, or what is charged for one that left none. Raises: InputError if it is missing."""
    name, without = f"ledgers/{position:04d}.jsonl", terms["without_ledger"]
    if (folder / name).exists():
        return _exported(folder, name, terms)
    if str(position) not in without:
        raise InputError("--export", str(folder / name), "is missing, and part of the price: get the whole folder")
    whole = without[str(position)]
    return [] if whole is None else Charges.from_dict(whole)


def parameter_noise(
    mechanism: RoundMechanism,
    *,
    target_epsilon: float,
    rounds: int,
    delta: float,
    unit: str,
    accountant: str = "pld",
    kind: str = "both",
) -> dict[str, Any]:
    """The smallest noise multiplier whose epsilon is at most the target, and that epsilon."""
    if accountant == "published":
        raise InputError("--accountant", accountant, "no guarantee to calibrate to: use pld or renyi")
    settings: dict[str, Any] = {"rounds": rounds, "delta": delta, "unit": unit, "kind": kind, "accountant": accountant}
    noise_multiplier = accounting.calibrate(mechanism, target_epsilon=target_epsilon, **settings)
    mechanism = dataclasses.replace(mechanism, noise_multiplier=noise_multiplier)
    return {"noise_multiplier": noise_multiplier, **parameter_epsilon(mechanism, **settings)}


def _answer(
    mechanism: RoundMechanism | None, value: float, delta: float, unit: str, accountant: str, **claims: Any
) -> dict[str, Any]:
    settings: dict[str, Any] = {"unit": unit, "accountant": accountant, "declared": False} | claims
    stated = state(mechanism, epsilon=value, delta=delta, **settings)
    weak = [] if accountant == "published" else weakness(value)
    return dataclasses.asdict(stated) | {"cautions": weak}
