"""What the choice costs: its terms are fixed before the first trial, its epsilon is computed from the trials' ledgers.

    fix_terms(sweep, folder)                    # writes selection.json, and points fixed beforehand to private/
    cost_of_selection(sweep, folder, rows)      # for all trials asked for: {"rule": …, "epsilon": …, …}

The rules are those of ``privacy.selection``; adaptive searches are charged by ``privacy.odometer``. Proofs:
docs/accounting.md. Inputs are public, except for the pool's draws.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from uedp_ray.calibration import planned_releases
from uedp_ray.errors import InputError
from uedp_ray.fields import number, record, string
from uedp_ray.privacy.events import Charges, UnsupportedEvent, epsilon_of_charges
from uedp_ray.privacy.ledger import read_ledger
from uedp_ray.privacy.odometer import SETTLED_BY_RESULTS, Odometer
from uedp_ray.privacy.selection import (
    PILOTS,
    PRICING_POINTS,
    SECRET,
    accountant_of,
    candidates_of,
    odometer_of,
    priced_by,
    unpriced,
)
from uedp_ray.privacy.statement import show_delta, show_epsilon
from uedp_ray.reporting import SILENT, Reporter
from uedp_ray.search.allowance import Allowance, charging, filter_for
from uedp_ray.search.feasibility import alone, check_reachable, run_config
from uedp_ray.search.layout import SweepDir
from uedp_ray.search.pilots import cost_of_pilots, final_allowance, fix_pilots
from uedp_ray.search.pool import (
    RESTORE,
    check_trials,
    cost_by,
    cost_of_all,
    drawn_pool,
    fix_points,
    fix_pool,
    fixed_points,
    parts_of,
    planned_of,
    read_pool,
    whole_run,
)
from uedp_ray.search.results import Row
from uedp_ray.search.space import Point
from uedp_ray.search.sweep_config import SweepConfig
from uedp_ray.storage.files import read_json, write_json

RELEASABLE = {
    "public": "the models, scores and settings of the search, which trained on public text only; and the winner, at its own "
    "epsilon, as `export` writes it",
    "pilots": "models, scores and settings of all pilots and of the run that followed them, as `report --publish` and "
    "`export` write them",
    "selected_pilots": "the run after the pilots alone, as `export` writes it: pilots, their scores and their number, and "
    "so this table and its report, are private",
    "repeat_and_select": "the winner alone, as `export` writes it (model, configuration, ledger, score): other trials, "
    "their scores and their number, and so this table and its report, are private",
    "composition": "models, scores and settings of all trials, as `report --publish` and `export` write them (the sweep's "
    "own folder holds paths, times and the noiseless reference)",
}
_NOTHING_TRAINED = "nothing: no trial was trained to its end"
COVERS = {
    "public": "the choice alone, which read no protected text; what the winner costs is its own epsilon",
    "pilots": "all pilots and the run by the settings of the best of them",
    "selected_pilots": "the run after the pilots, and the choice of its settings by a random, secret number of them",
    "repeat_and_select": "the winner and the choice of it among a random, secret number of trials",
    "composition": "all runs of the sweep together, and so any choice among them",
}
_ORDER = "by place"
"""How an adaptive search decides: by the places of trials (``study.Study``), not by the clock, as in early versions."""
_BY_CLOCK = (
    "Not covered: where trials ran side by side, which of them ended first, which may depend on the text, decided what was "
    "tried next: sweeps of this version decide in the order of trials."
)
_DRAWN = {"mean": number(0.0), "epsilon": number(0.0), "law": string()}
_TERMS = {"rule": string(), "delta": number(0.0), "unit": string()}


def fix_terms(sweep: SweepConfig, folder: SweepDir, reporter: Reporter = SILENT) -> None:
    """Records how the choice is paid for, unless an earlier start did. Nothing in it may follow from results.

    Raises: InputError if the rule does not cover what the trials do.
    """
    if folder.terms.exists():
        return
    # takes a while: points are drawn, and each one's noise is solved for, at several budgets
    reporter.say(
        "fixing what each run may spend, and how the choice is paid for (seconds for each point fixed beforehand)"
    )
    search, budget = sweep.search, sweep.budget
    terms: dict[str, Any] = {
        "rule": search.rule,
        "covers": budget.covers,
        "adaptive": search.adaptive,
        "delta": budget.delta,
        "unit": budget.unit,
    }
    if search.rule == "repeat_and_select":
        terms |= fix_pool(sweep, folder, reporter)
    elif search.rule in PILOTS:
        terms |= fix_pilots(sweep, folder, reporter)
    elif search.searcher == "grid" or not search.adaptive:
        terms |= fix_points(sweep, folder, reporter)
    if search.adaptive:
        terms["order"] = _ORDER
        if search.rule == "composition":
            odometer = _odometer(sweep)
            terms["odometer"] = odometer.to_dict()
            if odometer.target is not None:
                check_reachable(sweep, Allowance(odometer.target, odometer))
    write_json(folder.terms, terms)


def _read_terms(sweep: SweepConfig, folder: SweepDir) -> dict[str, Any]:
    """Returns the terms. Raises: InputError if they are damaged, or not this sweep's."""
    search, fields = sweep.search, _TERMS
    if search.rule in SECRET:
        fields = fields | _DRAWN
    _check_begun(sweep, folder)
    if sweep.shares_budget:
        fields = fields | ({"odometer": record({})} if search.adaptive else {"run_epsilon": number(0.0)})
    terms = {"covers": "each_trial"} | read_json(folder.terms, fields, RESTORE)  # as earlier versions had it
    found, asked = tuple(terms[name] for name in (*_TERMS, "covers")), sweep.budget
    if found != (search.rule, asked.delta, asked.unit, asked.covers):
        raise InputError(folder.terms.name, str(folder.terms), f"is not this sweep's: {RESTORE}")
    return terms


def _check_begun(sweep: SweepConfig, folder: SweepDir) -> None:
    """Raises: InputError for a search that an earlier version charged as adaptive, and that cannot have been."""
    fixed = read_json(folder.terms, {}, RESTORE)
    if ("odometer" in fixed or fixed.get("adaptive")) and not sweep.search.adaptive:
        remedy = "was begun by a version that charged it otherwise: resume and export it with that version"
        raise InputError(folder.terms.name, str(folder.terms), remedy)


def allowance_of(sweep: SweepConfig, folder: SweepDir) -> Allowance:
    """Returns what each run may spend, as it was fixed. Raises: InputError if the terms are damaged, or do not say it."""
    terms = _read_terms(sweep, folder)
    if not sweep.shares_budget:
        return alone(sweep)
    odometer = _fixed_odometer(terms)
    if odometer is not None and odometer.target == sweep.budget.target_epsilon:
        return Allowance(odometer.target, odometer)
    if odometer is None and 0.0 < terms["run_epsilon"] <= sweep.budget.target_epsilon:
        return Allowance(terms["run_epsilon"])
    raise InputError(folder.terms.name, str(folder.terms), f"does not say what each run may spend: {RESTORE}")


def planned_points(sweep: SweepConfig, folder: SweepDir) -> list[Point] | None:
    """Returns the points in the order of trials if they are fixed beforehand, else None.

    Raises: InputError if they were fixed, and are missing or damaged.
    """
    if not folder.pool.exists():
        if folder.terms.exists() and not sweep.search.adaptive:
            _check_begun(sweep, folder)
            raise InputError(folder.pool.name, str(folder.pool), f"is missing: {RESTORE}")
        return None
    pool = read_pool(folder)
    points: list[Point] = pool["points"]
    if "draws" in pool:
        return [points[index] for index in pool["draws"]]
    if sweep.search.rule != "public":
        return points
    if sweep.num_trials > pool.get("asked", len(points)):  # public text charges nothing: more may be asked for
        points = points + [point for point in fixed_points(sweep) if point not in points]
    return points[: sweep.num_trials]


def cost_of_selection(
    sweep: SweepConfig, folder: SweepDir, rows: Sequence[Row], reporter: Reporter = SILENT
) -> dict[str, Any]:
    """Returns what reporting the best trial costs, attempts and unfinished ones included; ``rows``: all that were asked for.

    Raises: InputError if a ledger is missing.
    """
    terms = _read_terms(sweep, folder)
    rule, note = terms["rule"], ""
    ledgers = [] if rule == "public" else charged_runs(sweep, folder, rows)
    odometer = _fixed_odometer(terms)
    epsilon = terms.get("epsilon", math.inf)
    pool = drawn_pool(folder, rows) if rule in SECRET else {}
    if rule == "repeat_and_select":
        reporter.say(PRICING_POINTS)
        try:
            check_trials(sweep, pool, rows, ledgers, terms)
            drawn = {"mean": terms["mean"], "law": terms["law"], "by": priced_by(terms)}
            found = cost_by(rule, sweep, candidates=candidates_of(pool["candidates"]), **drawn)
            epsilon = max(epsilon, found)  # where the terms were changed, the larger counts
        except (InputError, UnsupportedEvent) as error:
            rule, note = "composition", f" Not by repeat_and_select: {error}."
    elif rule in PILOTS:
        try:
            if rule in SECRET:
                check_trials(sweep, pool, rows, ledgers, terms)
            epsilon = cost_of_pilots(sweep, folder, terms, ledgers)
        except (InputError, UnsupportedEvent) as error:
            epsilon, note = math.inf, f" Not covered by what was planned: {error}."
    planned = planned_charges_of(sweep, folder) if rule == "composition" else []
    if rule in ("public", "composition"):
        epsilon = cost_by(rule, sweep, ledgers=ledgers, planned=planned, odometer=odometer)
    releasable = RELEASABLE[rule] if any(row["state"] == "done" for row in rows) else _NOTHING_TRAINED
    if math.isinf(epsilon):
        releasable = "nothing: no epsilon bounds what the search released"
    settled = rule == "composition" and odometer is not None and odometer.settled_by_results(epsilon)
    read = f" {SETTLED_BY_RESULTS}" if settled else ""
    return {
        "rule": rule,
        "covers": COVERS[rule],
        "epsilon": epsilon,
        "delta": sweep.budget.delta,
        "unit": sweep.budget.unit,
        "categories": sweep.common_categories,
        "accountant": accountant_of(rule, odometer=odometer, by=priced_by(terms)),
        "settled_by_results": settled,
        "releasable": releasable,
        "text": _text(rule, epsilon, sweep, _runs(planned, ledgers, odometer)) + read + note + _doubt(sweep, terms),
    }


def announced(sweep: SweepConfig, folder: SweepDir) -> str:
    """Says what the search's answer will cost, before any of it is spent. Without a filter an adaptive search may try dearer
    points than the base, and may be given more trials: its price is an estimate."""
    terms, about = _read_terms(sweep, folder), ""
    rule, odometer = terms["rule"], _fixed_odometer(terms)
    if sweep.base.privacy.test_noise_seed is not None:
        return "base.privacy.test_noise_seed is set: NOT PRIVATE, and nothing of this sweep may be handed on"
    if rule == "public":
        return "the search is charged nothing, as it reads public text; its winner costs the epsilon of its own run"
    delta, each = sweep.budget.delta, f"each run alone is at most {show_epsilon(allowance_of(sweep, folder).epsilon)}"
    if rule == "repeat_and_select":
        epsilon = terms["epsilon"]
    elif rule in PILOTS:
        epsilon, left = terms["epsilon"], show_epsilon(final_allowance(sweep, folder).epsilon)
        each = f"each pilot alone is {show_epsilon(terms['run_epsilon'])}, and the run after them at most {left}"
    elif odometer is None:
        epsilon = cost_of_all(sweep, planned_charges_of(sweep, folder))
    elif odometer.target is not None:
        base = Charges(odometer.planned, planned_releases(sweep.base))
        epsilon, own = odometer.target, epsilon_of_charges(base, delta=delta, unit=sweep.budget.unit)
        each = f"each of {odometer.runs} runs takes an equal share: the base alone is {show_epsilon(own)}"
    else:
        typical = Charges(odometer.planned, planned_releases(sweep.base))
        about, runs = "about ", max(odometer.runs, sweep.num_trials * sweep.search.seeds_per_trial)
        epsilon = cost_by(rule, sweep, ledgers=[typical] * runs, odometer=odometer)
    return (
        f"training and choosing together will cost {about}epsilon = {show_epsilon(epsilon, 'infinite')} at delta = "
        f"{show_delta(delta)} ({sweep.unit}; rule {rule}), where {each}"
    )


def _fixed_odometer(terms: dict[str, Any]) -> Odometer | None:
    try:
        return odometer_of(terms)
    except (InputError, KeyError, TypeError, OverflowError) as error:
        raise InputError("selection.json: odometer", str(error), f"is damaged: {RESTORE}") from None


def _runs(planned: Sequence[Charges], ledgers: Sequence[Any], odometer: Odometer | None) -> int:
    """Counts the charged runs: all that may start, if points or shares are fixed beforehand; else all that did."""
    if odometer is not None and odometer.target is not None:
        return odometer.runs
    return sum(bool(whole.rounds) for whole in planned) or sum(map(bool, ledgers))  # ``Charges`` are true


def _text(rule: str, epsilon: float, sweep: SweepConfig, runs: int) -> str:
    shown = f"epsilon = {show_epsilon(epsilon, 'infinite')} at delta = {show_delta(sweep.budget.delta)} ({sweep.unit})"
    if rule == "public":
        return (
            f"Choosing is not charged: trials were trained on text that the owner declares public, and scored on "
            f"{_scored(sweep)}. The winner's own epsilon is the price."
        )
    if rule == "repeat_and_select":
        return f"The winner costs {shown}, the choice among a random, secret number of trials included."
    if rule == "selected_pilots":
        return f"The outcome costs {shown}: the run after the pilots, and the choice among a random, secret number of them."
    if rule == "pilots":
        return f"All pilots and the run by the settings of the best of them together cost {shown}."
    if rule != "composition":
        raise unpriced(rule)
    if runs == 1:
        return f"The only run costs {shown}: nothing was chosen."
    return f"All {runs} runs together cost {shown}, and so does any one of them that results chose."


def _doubt(sweep: SweepConfig, terms: dict[str, Any]) -> str:
    charged = sweep.search.adaptive and terms["rule"] == "composition"
    return f" {_BY_CLOCK}" if charged and terms.get("order") != _ORDER else ""


def _scored(sweep: SweepConfig) -> str:
    """Says what rule ``public`` compares trials on, as far as anybody but the owner can tell."""
    own = sweep.base.corpus.evaluation_basis
    if {settings.get("corpus.evaluation_basis", own) for settings in sweep.search.proxies.values()} == {"public"}:
        return "text that the owner declares public too"
    return "text of users whom the owner declares to be outside the protected set"


def charged_runs(sweep: SweepConfig, folder: SweepDir, rows: Sequence[Row]) -> list[list[dict[str, Any]] | Charges]:
    """Returns the ledger of each run, at its fixed position; empty for the runs of a refused point.

    A run without a ledger may have failed before its first line, or its folder may have been removed: it is charged to its
    planned end. One that was trained may have been charged for more, so its ledger is needed.

    Raises: InputError for a trial that was trained and whose ledger is missing, or holds less than the row was charged.
    """
    found: list[list[dict[str, Any]] | Charges] = []
    allowance: Allowance | None = None
    for row in rows:
        rounds: dict[Path, list[Any]] = {}
        for run in folder.runs(row["number"], sweep.suffixes):
            ledger = run / "ledger.jsonl"
            if ledger.exists():
                found.append(events := read_ledger(ledger))
                rounds[ledger] = [event.get("round") for event in events if event["kind"] == "round"]
            elif row["state"] in ("done", "stopped"):
                raise InputError("ledger.jsonl", str(ledger), _PUT_BACK)
            elif row["state"] == "refused" or not sweep.search.adaptive:  # points fixed beforehand: charged as planned
                found.append([])
            else:
                allowance = allowance or allowance_of(sweep, folder)
                found.append(whole_run(run_config(sweep, sweep.parsed_space.at(row), allowance)))
        _refuse_short(row, rounds, ledger)
    return found


_PUT_BACK = "is missing, but what it pays for still counts: put it back (a trial's model and checkpoint may be deleted)"


def _refuse_short(row: Row, rounds: Mapping[Path, Sequence[Any]], last: Path) -> None:
    """Refuses a trial whose ledgers hold fewer rounds (attempts included) than its row was trained or charged for.

    ``last``: the ledger of its last run, which may never have started.
    """
    whole = ": put the whole ledger back"
    for ledger, found in rounds.items():
        if row["state"] == "done" and len(set(found)) < (row.get("rounds") or 0):
            remedy = f"holds fewer rounds than the {row['rounds']} of the result{whole}"
            raise InputError("ledger.jsonl", str(ledger), remedy)
    charged = row.get("charged") or 0
    short = charged - sum(map(len, rounds.values()))
    if short > 0 and not rounds:
        raise InputError("ledger.jsonl", str(last), _PUT_BACK)
    if short > 0:
        remedy = f"holds {short} rounds fewer than the {charged} that the trial was charged{whole}"
        raise InputError("ledger.jsonl", str(list(rounds)[-1]), remedy)


def planned_charges_of(sweep: SweepConfig, folder: SweepDir) -> list[Charges]:
    """Returns what every run that was planned beforehand charges in full; empty for the runs of a refused point."""
    if sweep.search.adaptive:  # results decide how long they run
        return []
    return planned_of(sweep, planned_points(sweep, folder) or [], allowance_of(sweep, folder))


def _odometer(sweep: SweepConfig) -> Odometer:
    """Returns an odometer anchored at the base, with the budget's noise; a filter if the budget covers the answer."""
    config, budget = sweep.base, sweep.budget
    privacy = dataclasses.replace(config.privacy, target_epsilon=budget.target_epsilon, noise_multiplier=None)
    config = dataclasses.replace(config, privacy=privacy)
    runs = sweep.num_trials * sweep.search.seeds_per_trial
    if budget.covers == "answer":
        return filter_for(config, runs)
    return Odometer(planned=tuple(parts_of(config, 1)), **charging(config, runs))
