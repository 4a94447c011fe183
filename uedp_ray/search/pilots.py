"""Rules ``pilots`` and ``selected_pilots``: cheap private trials, and one run by the settings of the best of them with the
rest of the budget.

    likely_rest(8.0, 2.0)        # what pilots that cost 2 together leave of 8, about

``fix_pilots`` solves for it before the first of them, ``cost_of_pilots`` prices what they and the last run were charged.

Pilots are fixed beforehand, or drawn in secret from a pool that is; which settings the last run has depends on them.
docs/accounting.md, "Pilots", has the proofs. Inputs are public.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from uedp_ray.errors import InputError
from uedp_ray.fields import list_of, number
from uedp_ray.privacy.ledger import read_ledger
from uedp_ray.privacy.selection import SECRET, candidates_of
from uedp_ray.privacy.statement import show_epsilon
from uedp_ray.reporting import Reporter
from uedp_ray.search.allowance import Allowance, largest
from uedp_ray.search.feasibility import judge
from uedp_ray.search.layout import SweepDir
from uedp_ray.search.pool import (
    FEW,
    PART,
    RESTORE,
    as_values,
    cost_by,
    draw_points,
    drawn_from,
    fixed_points,
    law_of,
    most,
    parts_of,
    with_slack,
)
from uedp_ray.search.space import Point
from uedp_ray.search.sweep_config import SweepConfig
from uedp_ray.storage.files import read_json, write_json


def fix_pilots(sweep: SweepConfig, folder: SweepDir, reporter: Reporter) -> dict[str, Any]:
    """Decides on the pilots; returns the terms: epsilon of a pilot, of the last run, and of all together.

    Raises: InputError if the pilots leave nothing, no pilot may be trained, or none may follow one that is.
    """
    search, each, target = sweep.search, sweep.pilot_epsilon, sweep.budget.target_epsilon
    of: dict[str, Any]
    if search.rule in SECRET:
        points = draw_points(sweep, search.pool_size)
        pilots = _runs(sweep, points, each, search.seeds_per_trial)
        name, what = "candidates", f"a secret number of pilots, {sweep.num_trials} on average,"
        of, drawn = {"mean": float(sweep.num_trials), "law": search.law}, {"draws": drawn_from(sweep, points)}
        terms = law_of(sweep, points)
    else:
        points = fixed_points(sweep)
        pilots = [pilot for pilot in _runs(sweep, points, each) for _ in range(search.seeds_per_trial)]
        name, what = "pilots", f"{len(pilots)} pilots"
        of, drawn, terms = {"ledgers": [[]] * len(pilots)}, {}, {}

    if not any(pilots):
        why = judge(sweep, points[0], Allowance(each)).reason
        raise InputError("search.pilot_epsilon", each, f"no point of the space meets it; the first says: {why}")

    def together(finals: Sequence[Any]) -> float:
        return cost_by(search.rule, sweep, candidates=pilots, finals=finals, **of)

    if (spent := together([])) >= target:
        alone = f"{what} of epsilon = {each:g} alone cost {show_epsilon(spent, 'infinitely much')}"
        raise InputError("budget.target_epsilon", target, f"{alone}: train fewer, or lower search.pilot_epsilon")
    guess, words = likely_rest(target, spent), "a run of epsilon = {:.3f} after the pilots"
    if len(points) > FEW:
        guess = largest(lambda rest: together(_runs(sweep, points[:FEW], rest)), target, guess)
    rest = most(sweep, lambda rest: together(_runs(sweep, points, rest)), reporter, guess, words)
    finals = _runs(sweep, points, rest)
    for point, pilot, final in zip(points, pilots[:: len(pilots) // len(points)], finals, strict=True):
        if pilot and not final:  # its noise is given: it may be the best, and could not be trained then
            why = judge(sweep, point, Allowance(rest)).reason
            left = (
                f"leaves {show_epsilon(rest)} for the run after the pilots, and a point that may be one has more: {why}"
            )
            raise InputError("search.pilot_epsilon", each, left)
    kept = {"points": points, name: as_values(pilots), "finals": as_values(finals)}
    write_json(folder.pool, kept | drawn, private=True)
    return terms | {"run_epsilon": each, "final_epsilon": rest, "epsilon": together(finals)}


def likely_rest(target: float, spent: float) -> float:
    """About what pilots leave the run after them: losses add up in squares. Where to begin to solve for it."""
    return math.sqrt(max(target**2 - spent**2, target**2 / 16))


def _runs(sweep: SweepConfig, points: Sequence[Point], epsilon: float, seeds: int = 1) -> list[Any]:
    """What so many runs at each point release; nothing where no noise is enough."""
    configs = [judge(sweep, point, Allowance(epsilon)).config for point in points]
    return [with_slack(parts_of(config, seeds)) if config else [] for config in configs]


def final_allowance(sweep: SweepConfig, folder: SweepDir) -> Allowance:
    """What the run after the pilots may spend. Raises: InputError if the terms are damaged."""
    room = number(0.0, sweep.budget.target_epsilon)
    return Allowance(read_json(folder.terms, {"final_epsilon": room}, RESTORE)["final_epsilon"])


def read_pilots(sweep: SweepConfig, folder: SweepDir) -> dict[str, Any]:
    """Returns what every pilot, and every run that may follow them, releases, as plain values.

    Raises: InputError if it is damaged.
    """
    names = ("candidates" if sweep.search.rule in SECRET else "pilots", "finals")
    found = read_json(folder.pool, dict.fromkeys(names, list_of(list_of(PART))), RESTORE)
    return {name: found[name] for name in names}


def cost_of_pilots(sweep: SweepConfig, folder: SweepDir, terms: Mapping[str, Any], ledgers: Sequence[Any]) -> float:
    """epsilon of all pilots, or of the choice by a secret number of them, and of the run after them.

    Raises: InputError if one of them spent more than it may; of a secret number the last run alone is looked at here.
    """
    pilots, finals = (candidates_of(runs) for runs in read_pilots(sweep, folder).values())
    ledger = folder.winner / "ledger.jsonl"
    final = read_ledger(ledger) if ledger.exists() else []
    drawn = {name: terms[name] for name in ("mean", "law")} if sweep.search.rule in SECRET else {"ledgers": ledgers}
    return cost_by(sweep.search.rule, sweep, candidates=pilots, finals=finals, final=final, **drawn)
