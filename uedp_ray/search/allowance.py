"""What each run of a sweep may spend, so that the whole answer stays within the budget.

    allowance = Allowance(8.0)                     # of each run alone
    config = allowance.applied(config)             # the run with the noise that meets it
    allowance.excess(config, delta=1e-5, unit="user-entity")

Inputs are public.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from uedp_ray.calibration import planned_charges, planned_releases
from uedp_ray.config import RunConfig
from uedp_ray.errors import InputError, within
from uedp_ray.privacy.events import Charges, cost_of, epsilon_of_charges
from uedp_ray.privacy.odometer import Odometer, filter_of
from uedp_ray.privacy.statement import show_epsilon

_ENOUGH_NOISE = 1e3
"""A noise multiplier beyond any that trains a model: if epsilon is still too large, noise cannot fix it."""
_NEAR = 0.99
"""How much of a budget the dearest allowance that is looked for has to use."""
_MOST_TRIES = 16


@dataclass(frozen=True)
class Allowance:
    """An epsilon of each run alone or, of an adaptive search under one budget, an equal share of a filter."""

    epsilon: float
    """The most that a run alone may cost; of a run that takes a share, by any accountant, the filter's target."""
    share_of: Odometer | None = None

    def applied(self, config: RunConfig) -> RunConfig:
        """Returns the run with the noise that meets the allowance; one with given noise, or without a guarantee, as it is.

        Raises: InputError if no noise does.
        """
        privacy = config.privacy
        if privacy.noise != "calibrated" or privacy.target_epsilon is None:
            return config
        if self.share_of is None:
            target = min(privacy.target_epsilon, self.epsilon)
            return dataclasses.replace(config, privacy=dataclasses.replace(privacy, target_epsilon=target))
        z = self.share_of.least_noise(lambda z: planned_charges(config, z))
        solved = dataclasses.replace(privacy, target_epsilon=None, noise_multiplier=z)
        return dataclasses.replace(config, privacy=solved)

    def excess(self, config: RunConfig, *, delta: float, unit: str) -> tuple[float, str]:
        """Returns by how much the whole run exceeds the allowance, at its own noise multiplier or, if that is to be solved,
        at one beyond any that is; and that in words. Infinity for a run without a guarantee.
        """
        if config.privacy.noise != "calibrated":
            return math.inf, f"epsilon ({unit}) = infinity, the budget is {self.epsilon:g}"
        planned = planned_charges(config, config.privacy.noise_multiplier or _ENOUGH_NOISE)
        if self.share_of is not None:
            over = self.share_of.excess(planned)
            what = f"epsilon ({unit}) of {self.share_of.runs} runs like it together"
        else:
            over = epsilon_of_charges(planned, delta=delta, unit=unit) - self._target(config)
            what = f"epsilon ({unit})"
        target = self._target(config)
        return over, f"{what} = {show_epsilon(over + target)}, the budget is {target:g}"

    def _target(self, config: RunConfig) -> float:
        return min(config.privacy.target_epsilon or math.inf, self.epsilon)


def charging(run: RunConfig, runs: int) -> dict[str, Any]:
    """What an ``Odometer`` of as many runs like this one is told: what their vocabularies take of delta is set aside."""
    privacy, others = run.privacy, cost_of(Charges((), planned_releases(run)), run.privacy.unit, "entity")
    aside = runs * (0.0 if others is None else others.failure_prob)
    return {"runs": runs, "delta": privacy.delta, "unit": privacy.unit, "threshold_delta": aside}


def filter_for(run: RunConfig, runs: int) -> Odometer:
    """Returns the filter of as many runs like this one; its target is the run's. Raises: InputError if no noise will do."""
    target = run.privacy.target_epsilon
    assert target is not None
    with within("budget"):
        return filter_of(lambda z: planned_charges(run, z), target=target, **charging(run, runs))


def largest(cost: Callable[[float], float], budget: float, guess: float | None = None) -> float:
    """Returns an epsilon of each run, near the largest, at which the whole costs ``budget`` at most.

    ``cost``: of the whole, at an epsilon of each run; takes a while. ``guess``: where to begin.
    Raises: InputError if none was found.
    """
    low, high, tried = 0.0, budget, budget if guess is None else guess
    at_low, at_high = 0.0, math.inf
    for _ in range(_MOST_TRIES):
        total = cost(tried)
        if total <= budget:
            low, at_low = tried, total
        else:
            high, at_high = tried, total
        if low >= _NEAR * high or _NEAR * budget <= total <= budget:
            break
        # Costs grow nearly in proportion. An infinite one says nothing, and a step down leaves its place soon.
        share = (budget - at_low) / (at_high - at_low) if at_high < math.inf else 0.5
        tried = low + (high - low) * min(max(0.997 * share, 1 / 16), 15 / 16)
    if low == 0.0:
        remedy = "no epsilon of each run keeps the whole within it: raise it, or train fewer trials"
        raise InputError("budget.target_epsilon", budget, remedy)
    return low
