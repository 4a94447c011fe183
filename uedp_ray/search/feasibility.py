"""Turns a point of the space into a run, if the budget allows it: before any worker starts, without touching data.

    verdict = judge(sweep, point, allowance)      # verdict.config, or why there is none
    check_reachable(sweep, alone(sweep))          # InputError if the budget refuses every point

Inputs are public.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

import optuna

from uedp_ray import methods
from uedp_ray.config import RunConfig, to_dict
from uedp_ray.errors import InputError
from uedp_ray.plan import cautions_of
from uedp_ray.privacy.selection import PILOTS, TRAINS_ANEW
from uedp_ray.privacy.statement import show_epsilon
from uedp_ray.search.allowance import Allowance
from uedp_ray.search.space import Point
from uedp_ray.search.sweep_config import SweepConfig, laid_over

_TRIED_POINTS = 20
_KNOBS = {
    "privacy.noise_multiplier": 2.0,
    "training.num_rounds": 0.5,  # what passes set, if they are given
    "training.passes": 0.5,
    "privacy.user_sampling_prob": 0.5,
    "privacy.entity_sampling_prob": 0.5,
    "privacy.sentence_clip_norm": 0.5,
    "bounds.max_holders": 0.5,
    "bounds.max_sentences_per_entity": 0.5,
}
"""Settings that change epsilon, each with a factor that lowers it."""


class Verdict(NamedTuple):
    """A run, or the reason why there is none; ``excess`` of the allowance is above 0 if the budget refuses it."""

    config: RunConfig | None
    reason: str
    excess: float


def run_config(sweep: SweepConfig, point: Point, allowance: Allowance) -> RunConfig:
    """Returns the run of a point, with the noise that meets its allowance.

    Raises: InputError if its settings contradict each other, or its method the budget, or if no noise is enough.
    """
    config = laid_over(sweep.base, sweep, point)
    if (method := point.get("method")) is not None:
        _check_shared(sweep.base, config, str(method), point)
    asked, budget = config.privacy, sweep.budget
    for name, value, there in (
        ("privacy.unit", asked.unit, budget.unit),
        ("privacy.delta", asked.delta, budget.delta),
        ("privacy.test_noise_seed", asked.test_noise_seed, sweep.base.privacy.test_noise_seed),
        ("privacy.target_epsilon", max(asked.target_epsilon or 0.0, budget.target_epsilon), budget.target_epsilon),
    ):
        if value != there:
            raise InputError(name, value, f"the budget says {there}: leave it out of method {method}")
    return allowance.applied(config)


_SHARED = ("corpus", "task", "vocabulary", "pretrain", "model.warm_start", "bounds.mode")
"""Settings that trials share unless the space, which is checked before the first trial, varies them."""


def _check_shared(base: RunConfig, config: RunConfig, method: str, settings: Mapping[str, Any]) -> None:
    """Raises: InputError if a method sets what the checks and the price of the sweep take from its base and space.

    Entities may go unprotected, as in a method of the unit ``user``: that costs more, and is refused where it must be.
    """
    asked = dict(_leaves(base))
    for key, value in _leaves(config):
        shared = key in _SHARED or key.partition(".")[0] in _SHARED
        unbound = key == "bounds.mode" and value == "none"
        if shared and not unbound and key not in settings and value != asked[key]:
            raise InputError(key, value, f"is the same for all trials: leave it out of method {method}")


def _leaves(config: RunConfig) -> Iterator[tuple[str, Any]]:
    for section, values in to_dict(config).items():
        for leaf, value in values.items() if isinstance(values, dict) else ():
            yield f"{section}.{leaf}", value


def alone(sweep: SweepConfig) -> Allowance:
    """The allowance of runs that may each cost the whole budget by themselves: the most that any run of the sweep has."""
    return Allowance(sweep.budget.target_epsilon)


def judge(sweep: SweepConfig, point: Point, allowance: Allowance) -> Verdict:
    """Decides whether a point may be trained. Costs a call of the accountant, or some."""
    budget = sweep.budget
    try:
        config = run_config(sweep, point, allowance)
        excess, reason = allowance.excess(config, delta=budget.delta, unit=budget.unit)
    except InputError as error:
        return Verdict(None, str(error), math.inf)
    if excess > 0.0:
        return Verdict(None, reason, excess)
    return Verdict(config, "", excess if budget.noise == "free" else 0.0)


def random_points(sweep: SweepConfig) -> Iterator[Point]:
    """Yields endless points drawn from the space with the searcher's public seed."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=sweep.search.seed))
    while True:
        yield sweep.parsed_space.suggest(study.ask())


def check_reachable(sweep: SweepConfig, allowance: Allowance) -> None:
    """Raises: InputError if no point was found that meets the allowance, with the least epsilon and the knob that binds."""
    reasons = []
    for point in itertools.islice(random_points(sweep), _TRIED_POINTS):
        verdict = judge(sweep, point, allowance)
        if verdict.config:
            return
        reasons.append(verdict.reason)
    point, excess = _most_private(sweep, allowance)
    if excess <= 0.0:
        return
    target = sweep.budget.target_epsilon
    if math.isinf(excess):
        raise InputError(
            "budget.target_epsilon", target, f"no point of the space can meet it; the first says: {reasons[0]}"
        )
    what = "epsilon" if allowance.share_of is None else f"epsilon of {allowance.share_of.runs} runs together"
    remedy = (
        f"no point of the space meets it: the smallest {what} ({sweep.budget.unit}) is {show_epsilon(target + excess)}"
    )
    raise InputError("budget.target_epsilon", target, f"{remedy}{_binding(sweep, point, allowance)}")


def rate_by_pilots(sweep: SweepConfig) -> list[str]:
    """A caution for pilots that choose a learning rate; empty for others. Measured: docs/conll2003.md, in small."""
    rate = "training.server_learning_rate"
    if sweep.search.rule not in PILOTS or rate not in sweep.space:
        return []
    return [
        f"pilots at epsilon = {sweep.pilot_epsilon:g} choose a learning rate for more noise than the run after them has, "
        f"where a larger one is often better: raise search.pilot_epsilon, or leave {rate} out of the space"
    ]


def runs_of(sweep: SweepConfig, trials: int) -> int:
    """Runs that so many trials train in all, the winner's among them."""
    return trials * len(sweep.suffixes) + (sweep.search.rule in TRAINS_ANEW)


def budget_cautions(sweep: SweepConfig) -> list[str]:
    """Returns cautions to print before the search: on its pilots, and on the base with the noise that the budget needs."""
    budget: dict[str, Any] = {"privacy.target_epsilon": sweep.budget.target_epsilon, "privacy.noise_multiplier": None}
    budget |= {"privacy.delta": sweep.budget.delta, "privacy.unit": sweep.budget.unit}
    found = rate_by_pilots(sweep)
    with suppress(InputError):  # points may meet a budget that the base does not
        found += cautions_of(methods.overlay(sweep.base, budget))
    return found


def _most_private(sweep: SweepConfig, allowance: Allowance) -> tuple[Point, float]:
    """Finds the point of least epsilon over the budget: coordinate descent over the ends of ranges and all choices."""
    space = sweep.parsed_space
    values = {key: dimension.values[0] for key, dimension in space.items()}
    best = judge(sweep, space.at(values), allowance).excess
    improved = True
    while improved:
        improved = False
        for key, dimension in space.items():
            for value in dimension.values:
                excess = judge(sweep, space.at(values | {key: value}), allowance).excess
                if excess < best:
                    best, values, improved = excess, values | {key: value}, True
    return space.at(values), best


def _binding(sweep: SweepConfig, point: Point, allowance: Allowance) -> str:
    """Names the setting, searched or not, that lowers epsilon most if it may go further."""
    found = list(_moves(sweep, point, allowance))
    if not found:
        return ""
    epsilon, key, old, new = min(found)
    kind = "searched" if key in point else "of the base"
    return f"; {key} = {old:g} ({kind}) binds most: at {new:g} it would be {show_epsilon(epsilon)}"


def _moves(sweep: SweepConfig, point: Point, allowance: Allowance) -> Iterator[tuple[float, str, float, float]]:
    budget = sweep.budget
    config = run_config(sweep, point, allowance)
    tree = to_dict(config)
    for key, factor in _KNOBS.items():
        section, name = key.split(".")
        old = tree[section][name]
        if old is None or (name == "num_rounds" and config.training.passes is not None):
            continue
        new = max(1, round(old * factor)) if isinstance(old, int) else old * factor
        try:
            excess, _ = allowance.excess(methods.overlay(config, {key: new}), delta=budget.delta, unit=budget.unit)
        except InputError:
            continue
        if excess < math.inf:
            yield excess + budget.target_epsilon, key, old, new
