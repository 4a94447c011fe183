"""Points that are fixed before the first trial: a grid's, those of random search, and the pool of ``repeat_and_select``.

    fixed_points(sweep)         # of a grid, or as many random ones as there are trials

``fix_points`` and ``fix_pool`` decide what each run may spend. ``fix_pool`` draws a pool and, in secret, trials from it;
``check_trials`` holds their ledgers against it. What is drawn is kept in ``private/pool.json``, as secret as their number.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from uedp_ray.calibration import planned_charges
from uedp_ray.config import RunConfig
from uedp_ray.errors import InputError
from uedp_ray.fields import list_of, number, record
from uedp_ray.plan import Plan
from uedp_ray.privacy.events import Charges
from uedp_ray.privacy.laws import draw_trials
from uedp_ray.privacy.mechanisms.poisson import RoundMechanism
from uedp_ray.privacy.renyi import Parts
from uedp_ray.privacy.selection import (
    PROFILES,
    candidates_of,
    check_own,
    check_trial,
    epsilon_of_choosing,
    priced_by,
)
from uedp_ray.privacy.statement import show_epsilon
from uedp_ray.reporting import Reporter
from uedp_ray.search.allowance import Allowance, largest
from uedp_ray.search.feasibility import alone, judge, random_points, run_config
from uedp_ray.search.layout import SweepDir
from uedp_ray.search.results import Row
from uedp_ray.search.space import Point
from uedp_ray.search.sweep_config import SweepConfig
from uedp_ray.storage.files import read_json, write_json

PART = record({"mechanism": record({}), "rounds": number(0, whole=True)})
"""The check of what a run of a candidate was planned to release, as JSON."""
RESTORE = "restore the sweep's copy, or search in another folder"
FEW = 4
"""Points by which a pool's allowance is guessed."""
_POINTS_TRIED = 50
"""Points drawn per point wanted before the space counts as exhausted."""


def fixed_points(sweep: SweepConfig) -> list[Point]:
    """Returns a grid's points, or as many random points that the budget allows as there are trials, the base's own first."""
    if sweep.search.searcher == "grid":
        return sweep.parsed_space.grid()
    first = [point for point in sweep.first_points if judge(sweep, point, alone(sweep)).config]
    drawn = [point for point in draw_points(sweep, sweep.num_trials) if point not in first]
    return [*first, *drawn][: sweep.num_trials]


def fix_points(sweep: SweepConfig, folder: SweepDir, reporter: Reporter) -> dict[str, Any]:
    """Decides on the points of a search by ``composition``; returns the terms that say what each run may spend."""
    points, each = fixed_points(sweep), sweep.budget.target_epsilon
    if sweep.shares_budget and not sweep.search.adaptive:
        each = most(sweep, lambda epsilon: cost_of_all(sweep, planned_of(sweep, points, Allowance(epsilon))), reporter)
    write_json(folder.pool, {"points": points, "asked": sweep.num_trials}, private=True)
    return {"run_epsilon": each}


def most(
    sweep: SweepConfig,
    cost: Callable[[float], float],
    reporter: Reporter,
    guess: float | None = None,
    what: str = "runs of epsilon = {:.3f}",
) -> float:
    """The most that each run may cost by itself, ``cost`` being that of the whole; ``what``: the runs in words.

    Raises: InputError if the whole cannot be kept within the budget; it cannot be lowered where the noise is given.
    """
    target = sweep.budget.target_epsilon

    def told(epsilon: float) -> float:
        total = cost(epsilon)
        reporter.say(f"{what.format(epsilon)} would cost {show_epsilon(total, 'infinitely much')} with the choice")
        return total

    if sweep.budget.noise != "free":
        return largest(told, target, guess)
    if (total := told(target)) > target:
        whole = f"training and choosing would cost {show_epsilon(total, 'infinitely much')}"
        raise InputError("budget.target_epsilon", target, f"{whole}: give more noise, or train fewer trials or rounds")
    return target


def cost_by(rule: str, sweep: SweepConfig, **of: Any) -> float:
    """epsilon of choosing by a rule in this sweep; ``of``: as in ``selection.epsilon_of_choosing``."""
    search, budget = sweep.search, sweep.budget
    return epsilon_of_choosing(rule, **search.as_priced, delta=budget.delta, unit=budget.unit, **of)


def cost_of_all(sweep: SweepConfig, planned: Sequence[Charges]) -> float:
    """epsilon of all runs of a search by ``composition`` whose points were fixed, each to its planned end."""
    return cost_by("composition", sweep, ledgers=[[]] * len(planned), planned=planned)


def planned_of(sweep: SweepConfig, points: Sequence[Point], allowance: Allowance) -> list[Charges]:
    """Returns what every run of these points charges in full; empty for the runs of a refused point."""
    found: list[Charges] = []
    for point in points:
        config = judge(sweep, point, allowance).config
        found += [whole_run(config) if config else Charges(())] * sweep.search.seeds_per_trial
    return found


def whole_run(config: RunConfig) -> Charges:
    """Returns what a run charges up to its planned end."""
    mechanism = Plan.of(config).mechanism
    return planned_charges(config, mechanism.noise_multiplier) if mechanism else Charges(())


def parts_of(config: RunConfig, seeds: int) -> list[tuple[RoundMechanism, int]]:
    """Returns what a trial runs: its rounds, once per seed."""
    mechanism = Plan.of(config).mechanism
    assert mechanism is not None  # the budget refuses runs without noise
    return [(mechanism, config.training.num_rounds * seeds)]


def fix_pool(sweep: SweepConfig, folder: SweepDir, reporter: Reporter) -> dict[str, Any]:
    """Draws the pool and, in secret, the trials from it; returns the terms, including the price."""
    search, budget, mean = sweep.search, sweep.budget, float(sweep.num_trials)
    points = draw_points(sweep, search.pool_size)

    @functools.cache
    def at(run_epsilon: float, size: int = search.pool_size) -> tuple[list[Any], float]:
        """What a trial at each of so many points runs, and the price."""
        configs = [run_config(sweep, point, Allowance(run_epsilon)) for point in points[:size]]
        candidates = [with_slack(parts_of(config, search.seeds_per_trial)) for config in configs]
        price = cost_by("repeat_and_select", sweep, candidates=candidates, mean=mean, law=search.law, by=PROFILES)
        return candidates, price

    each = budget.target_epsilon
    if budget.covers == "answer":
        solved = budget.noise == "calibrated"
        guess = largest(lambda epsilon: at(epsilon, FEW)[1], each) if solved else None
        each = most(sweep, lambda epsilon: at(epsilon)[1], reporter, guess)
    candidates, epsilon = at(each)
    kept = {"points": points, "candidates": as_values(candidates), "draws": drawn_from(sweep, points)}
    write_json(folder.pool, kept, private=True)
    return law_of(sweep, points) | {"epsilon": epsilon, "run_epsilon": each}


def drawn_from(sweep: SweepConfig, points: Sequence[Point]) -> list[int]:
    """Draws, in secret, how many trials there are and the point of each."""
    number = draw_trials(mean=float(sweep.num_trials), law=sweep.search.law)
    return [secrets.randbelow(len(points)) for _ in range(number)]


def law_of(sweep: SweepConfig, points: Sequence[Point]) -> dict[str, Any]:
    """The terms that say how trials were drawn."""
    return {"mean": float(sweep.num_trials), "law": sweep.search.law, "by": PROFILES, "pool_size": len(points)}


def as_values(candidates: Sequence[Parts]) -> list[list[dict[str, Any]]]:
    """Candidates as plain values, which ``selection.candidates_of`` reads."""
    return [
        [{"mechanism": mechanism.to_dict(), "rounds": rounds} for mechanism, rounds in parts] for parts in candidates
    ]


def with_slack(parts: list[tuple[RoundMechanism, int]]) -> list[tuple[RoundMechanism, int]]:
    """The same with a trace less noise: another machine may solve for another last digit, and has to stay within it."""
    return [
        (dataclasses.replace(mechanism, noise_multiplier=mechanism.noise_multiplier * (1 - 1e-9)), rounds)
        for mechanism, rounds in parts
    ]


def draw_points(sweep: SweepConfig, size: int) -> list[Point]:
    """Returns distinct points that the budget allows; fewer than ``size`` if the space holds no more, or hardly any."""
    points: list[Point] = []
    for point in itertools.islice(random_points(sweep), _POINTS_TRIED * size):
        if point not in points and judge(sweep, point, alone(sweep)).config:
            points.append(point)
        if len(points) == size:
            break
    return points


def read_pool(folder: SweepDir) -> dict[str, Any]:
    """Returns the pool. Raises: InputError if it is damaged."""
    pool = read_json(folder.pool, {"points": list_of(record({}))}, RESTORE)
    if "asked" in pool:  # earlier versions did not say
        read_json(folder.pool, {"asked": number(1, whole=True)}, RESTORE)
    if "draws" in pool:
        last = len(pool["points"]) - 1
        draws = {"draws": list_of(number(0, last, whole=True)), "candidates": list_of(list_of(PART))}
        pool = read_json(folder.pool, draws, RESTORE)
    return pool


def drawn_pool(folder: SweepDir, rows: Sequence[Row]) -> dict[str, Any]:
    """Returns the pool of trials that were drawn in secret.

    Raises: InputError if it is damaged, or lacks what these trials are of.
    """
    pool = read_pool(folder)
    numbers = [row["number"] for row in rows]
    for name, least in (("draws", max(numbers, default=-1) + 1), ("candidates", len(pool["points"]))):
        if len(pool.get(name, ())) < least:
            raise InputError(folder.pool.name, str(folder.pool), f"lacks {name}: {RESTORE}")
    return pool


def check_trials(
    sweep: SweepConfig, pool: Mapping[str, Any], rows: Sequence[Row], ledgers: Sequence[Any], terms: Mapping[str, Any]
) -> None:
    """Raises: InputError if a trial, all seeds of it together, spent more than it may: than the candidate that was drawn for
    it, or, as earlier versions priced it, than any candidate.
    """
    candidates = candidates_of(pool["candidates"])
    seeds, budget = sweep.search.seeds_per_trial, sweep.budget
    for place, row in enumerate(rows):
        events = [event for ledger in ledgers[place * seeds : (place + 1) * seeds] for event in ledger]
        if priced_by(terms) == PROFILES:
            check_own(events, candidates[pool["draws"][row["number"]]])
        else:
            check_trial(events, candidates, mean=terms["mean"], delta=budget.delta, unit=budget.unit)
