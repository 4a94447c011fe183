"""A sweep as its page may show it to others: paths by number, no messages and times of trials, no noiseless reference.

    publishable(load_sweep("runs/words")).trials["vocabulary.path"]     # as it was, except for folders: path 1, path 2

Figures and tables made from it hold nothing that it does not hold.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from uedp_ray.analysis.frames import Sweep
from uedp_ray.config import RunConfig, to_dict
from uedp_ray.config.files import names_file
from uedp_ray.redact import NOT_PUBLISHED
from uedp_ray.redact import published as published_config
from uedp_ray.search.columns import TIMES
from uedp_ray.search.space import Dimension, Space

Names = Mapping[str, Mapping[Any, str]]
"""What is shown instead of a choice, by dotted key and choice."""


def publishable(sweep: Sweep) -> Sweep:
    """Returns the sweep without paths, trials' reasons and times, or what no epsilon pays for. Its files have them.

    A searched path is ``path 1``, ``path 2``, … in the order of its choices. The name of a hub's model or tokenizer is kept
    if a finished run shows that it is one: no file of that name was there.
    """
    names = {key: _names(sweep, sweep.space[key]) for key in sweep.space if names_file(RunConfig, key)}
    trials = sweep.trials.assign(
        **dict.fromkeys(TIMES, np.nan),  # whatever the rule: how long a round takes may depend on who was drawn
        reason=pd.Series(pd.NA, index=sweep.trials.index, dtype="string"),  # an error message may reveal text
        **{key: _shown(sweep.trials[key], shown) for key, shown in names.items()},
    )
    best = sweep.best
    if best is not None:
        best = {**best, "params": _all_named(names, best["params"])}
    return dataclasses.replace(
        sweep,
        trials=trials,
        best=best,
        no_search={**sweep.no_search, "params": _all_named(names, sweep.no_search["params"])},
        references=sweep.references[sweep.references["name"] != "noiseless"],
        winner_trained=None,
        published_space=Space({key: _dimension(each, names) for key, each in sweep.space.items()}),
    )


def _names(sweep: Sweep, dimension: Dimension) -> dict[Any, str]:
    hub, shown = _hub_names(sweep, dimension.key), dict[Any, str]()
    for value in dimension.values:
        if value:  # else no path is named
            known = len(set(shown.values()) - hub)
            shown[value] = value if value in hub else f"path {known + 1}"
    return shown


def _hub_names(sweep: Sweep, key: str) -> set[str]:
    """Values of the setting that finished runs were trained with and that are published: see ``redact.published``."""
    section, _, name = key.partition(".")
    done = sweep.trials[sweep.trials["state"] == "done"]
    found = {to_dict(published_config(sweep.config(trial)))[section][name] for trial in done["trial"]}
    return found - {"", NOT_PUBLISHED}


def _shown(column: pd.Series, shown: Mapping[Any, str]) -> pd.Series:
    return column.map(lambda value: shown.get(value, NOT_PUBLISHED) if isinstance(value, str) and value else value)


def _all_named(names: Names, params: Mapping[str, Any]) -> dict[str, Any]:
    return {key: _named(names, key, value) for key, value in params.items()}


def _named(names: Names, key: str, value: Any) -> Any:
    return names[key].get(value, NOT_PUBLISHED) if key in names and value else value


def _dimension(dimension: Dimension, names: Names) -> Dimension:
    return dataclasses.replace(
        dimension,
        values=tuple(_named(names, dimension.key, value) for value in dimension.values),
        spec={},
        when={key: tuple(_named(names, key, value) for value in values) for key, values in dimension.when.items()},
    )
