"""Rule ``pilots``: cheap private trials, and one run by the settings of the best of them with the rest of the budget.

    likely_rest(8.0, 0.5, 8)        # what eight pilots of epsilon = 0.5 leave of 8, about

``fix_pilots`` solves for it before the first of them, ``cost_of_pilots`` prices what they and the last run were charged.

Pilots are fixed beforehand; which settings the last run has depends on them. docs/accounting.md, "Pilots", has the proof.
Inputs are public.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from uedp_ray.errors import InputError
from uedp_ray.fields import list_of, number
from uedp_ray.privacy.ledger import read_ledger
from uedp_ray.privacy.selection import candidates_of
from uedp_ray.privacy.statement import show_epsilon
from uedp_ray.reporting import Reporter
from uedp_ray.search.allowance import Allowance
from uedp_ray.search.feasibility import judge
from uedp_ray.search.layout import SweepDir
from uedp_ray.search.pool import PART, RESTORE, as_values, cost_by, fixed_points, most, parts_of, with_slack
from uedp_ray.search.space import Point
from uedp_ray.search.sweep_config import SweepConfig
from uedp_ray.storage.files import read_json, write_json

_CANDIDATES = {"pilots": list_of(list_of(PART)), "finals": list_of(list_of(PART))}


def fix_pilots(sweep: SweepConfig, folder: SweepDir, reporter: Reporter) -> dict[str, Any]:
    """Decides on the pilots; returns the terms: epsilon of a pilot, of the last run, and of all together.

    Raises: InputError if the pilots leave nothing.
    """
    points, each, target = fixed_points(sweep), sweep.pilot_epsilon, sweep.budget.target_epsilon
    pilots = [pilot for pilot in _runs(sweep, points, each) for _ in range(sweep.search.seeds_per_trial)]

    def together(finals: Sequence[Any]) -> float:
        return cost_by("pilots", sweep, ledgers=[[]] * len(pilots), candidates=pilots, finals=finals)

    if (spent := together([])) >= target:
        what = f"{len(pilots)} pilots of epsilon = {each:g} alone cost {show_epsilon(spent, 'infinitely much')}"
        raise InputError("budget.target_epsilon", target, f"{what}: train fewer, or lower search.pilot_epsilon")
    guess, words = likely_rest(target, each, len(pilots)), "a run of epsilon = {:.3f} after the pilots"
    rest = most(sweep, lambda rest: together(_runs(sweep, points, rest)), reporter, guess, words)
    finals = _runs(sweep, points, rest)
    kept = {"pilots": as_values(pilots), "finals": as_values(finals)}
    write_json(folder.pool, {"points": points} | kept, private=True)
    return {"run_epsilon": each, "final_epsilon": rest, "epsilon": together(finals)}


def likely_rest(target: float, each: float, pilots: int) -> float:
    """About what so many pilots leave the run after them: losses add up in squares. Where to begin to solve for it."""
    return math.sqrt(max(target**2 - 2 * pilots * each**2, target**2 / 16))


def _runs(sweep: SweepConfig, points: Sequence[Point], epsilon: float) -> list[Any]:
    """What a run at each point releases; nothing where no noise is enough."""
    configs = [judge(sweep, point, Allowance(epsilon)).config for point in points]
    return [with_slack(parts_of(config, 1)) if config else [] for config in configs]


def final_allowance(sweep: SweepConfig, folder: SweepDir) -> Allowance:
    """What the run after the pilots may spend. Raises: InputError if the terms are damaged."""
    room = number(0.0, sweep.budget.target_epsilon)
    return Allowance(read_json(folder.terms, {"final_epsilon": room}, RESTORE)["final_epsilon"])


def read_pilots(folder: SweepDir) -> dict[str, Any]:
    """Returns what every pilot, and every run that may follow them, releases, as plain values.

    Raises: InputError if it is damaged.
    """
    found = read_json(folder.pool, _CANDIDATES, RESTORE)
    return {name: found[name] for name in _CANDIDATES}


def cost_of_pilots(sweep: SweepConfig, folder: SweepDir, ledgers: Sequence[Any]) -> float:
    """epsilon of all pilots and of the run after them. Raises: InputError if one of them spent more than it may."""
    planned = {name: candidates_of(runs) for name, runs in read_pilots(folder).items()}
    ledger = folder.winner / "ledger.jsonl"
    final = read_ledger(ledger) if ledger.exists() else []
    runs: dict[str, Any] = {"candidates": planned["pilots"], "finals": planned["finals"], "final": final}
    return cost_by("pilots", sweep, ledgers=ledgers, **runs)
