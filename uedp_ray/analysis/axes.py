"""The searched settings as figures and tables need them: short names, and the point of a trial.

    labels(["training.num_rounds", "model.lora_rank"])    # {"training.num_rounds": "num_rounds", …}
    point_of(sweep.space, sweep.trials.iloc[0])           # {"training.num_rounds": 20, …}

Inputs are as public as the sweep.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from uedp_ray.privacy.statement import show_delta, show_epsilon
from uedp_ray.search.space import Point, Space

if TYPE_CHECKING:  # which reads points by this module
    from uedp_ray.analysis.frames import Sweep


def labels(keys: Iterable[str]) -> dict[str, str]:
    """Returns short names: the last part of each key, or the whole key where two would be the same."""
    keys = list(keys)
    short = [key.rsplit(".", 1)[-1] for key in keys]
    return {key: name if short.count(name) == 1 else key for key, name in zip(keys, short, strict=True)}


def point_of(space: Space, row: pd.Series) -> Point:
    """Returns the settings that a trial has, as plain values; choices as in the sweep file, even from a column of text."""
    point: Point = {}
    for key, dimension in space.items():
        value = row[key]
        if pd.isna(value):
            if None in dimension.values and dimension.active(point):
                point[key] = None
        elif dimension.is_choice:
            point[key] = next(choice for choice in dimension.values if value in (choice, str(choice)))
        else:
            point[key] = value.item() if isinstance(value, np.generic) else value
    return point


def base_of(sweep: Sweep) -> Mapping[str, Any] | None:
    """The row of the trial with the base's own settings, which no search would have changed; None without one."""
    return sweep.sweep_config.at_base(sweep.trials.to_dict("records"))


def base_label(sweep: Sweep) -> str:
    """What the trial with the base's own settings stands for: no search only if it had the whole budget."""
    return "the base's own settings" + ": no search" * (sweep.no_search["trial"] is not None)


def epsilon_label(sweep: Sweep, of: str = "of one run") -> str:
    return f"ε {of} ({sweep.unit}, zero-out, δ = {show_delta(sweep.delta)})"


def total_label(sweep: Sweep) -> str:
    """A second line for the axis of a main figure: what the chosen model costs, its choice included; empty if not known."""
    if not sweep.finished or sweep.best is None or sweep.best["epsilon_with_choice"] is None:
        return ""
    total = show_epsilon(sweep.best["epsilon_with_choice"], "∞")
    read = ", settled by results" * sweep.selection["settled_by_results"]
    return f"\nthe model to hand on, its choice included: ε = {total} in total{read}"
