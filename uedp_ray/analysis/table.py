"""The table of all trials, as text with the values it sorts by.

Example:

    trial_table(load_sweep("runs/quickstart")).columns[0].title    # "trial"
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pandas as pd

from uedp_ray.analysis.axes import base_label, base_of, labels, point_of
from uedp_ray.analysis.frames import Sweep, best_first
from uedp_ray.analysis.style import number, shown_value
from uedp_ray.analysis.summary import shown, terms, with_spread
from uedp_ray.privacy.statement import OF_ONE_RUN
from uedp_ray.search.columns import shortened
from uedp_ray.tasks.metric import Metric

NOTHING = "–"


@dataclass(frozen=True)
class Column:
    """A heading; ``explained`` is its long form."""

    title: str
    explained: str
    numeric: bool


@dataclass(frozen=True)
class Cell:
    """``order`` is what the column sorts by; empty sorts last. ``folder``: of a trial, relative to the sweep's."""

    text: str
    order: str
    folder: str = ""


_PASSES = Column("passes", "over the text, in one run: rounds times q_u", True)


@dataclass(frozen=True)
class TrialTable:
    """Rows are (state, cells); cells are in the order of ``columns``."""

    columns: list[Column]
    no_search: list[Cell]
    """What there would be without a search: no trial, but a row to compare with."""
    rows: list[tuple[str, list[Cell]]]


def trial_table(sweep: Sweep) -> TrialTable:
    """Returns every trial, the best first; then those that did not end, with their reasons, as they were asked for."""
    names, metric = labels(sweep.space), sweep.metric
    proxies = sweep.sweep_config.score_columns
    over = f", the mean over {len(proxies)} texts" if len(proxies) > 1 else ""
    told = "" if sweep.trials["reason"].isna().all() else "why a trial was refused, failed or stopped; "
    columns = {
        "trial": Column("trial", "its folder under trials/", False),
        "state": Column("state", "done, stopped, failed, refused or running", False),
        metric.name: Column(metric.title, f"{metric.explained}{over}, ± one standard deviation over seeds", True),
        **{key: Column(f"on {proxy}", f"{metric.explained} on this text", True) for proxy, key in proxies.items()},
        **{score.name: Column(score.title, score.explained, True) for score in metric.beside},
        "epsilon": Column("ε of the run alone", f"{OF_ONE_RUN}: {terms(sweep)}; rounded up", True),
        "noise_multiplier": Column("z", "noise multiplier", True),
        "rounds": Column("rounds", "of one run", True),
        **({} if "training.passes" in sweep.space else {"passes": _PASSES}),  # it would be there twice
        "charged": Column("charged", "rounds charged over all seeds, repeated ones included", True),
        **{key: Column(names[key], key, not dimension.is_choice) for key, dimension in sweep.space.items()},
        "notes": Column("notes", f"{told}whether it is the best, or the base", False),
    }
    if "method" not in sweep.space and sweep.trials["method"].nunique() > 1:
        columns["method"] = Column("method", "method", False)
    done = sweep.trials["state"] == "done"
    ordered = pd.concat([best_first(sweep.trials[done]), sweep.trials[~done]])
    base = (base_of(sweep) or {}).get("trial")
    rows = [(row["state"], [_cell(sweep, row, key, base) for key in columns]) for _, row in ordered.iterrows()]
    return TrialTable(list(columns.values()), [_without(sweep, key) for key in columns], rows)


def _without(sweep: Sweep, key: str) -> Cell:
    """A cell of the row of no search: of its scores and settings, what is known."""
    row, own = pd.Series({**sweep.no_search, **sweep.no_search["params"]}), sweep.no_search["trial"]
    told = {
        "trial": "no search",
        "state": NOTHING,
        "notes": "the base's own settings, once with the whole budget" + (f": trial {own}" if own is not None else ""),
    }
    if key in told:
        return Cell(told[key], "")
    value = row.get(key)
    if value is None:
        return Cell("none" if key in sweep.no_search["params"] else NOTHING, "")
    return Cell(_text(sweep.metric, row, key, value), "")


def _cell(sweep: Sweep, row: pd.Series, key: str, base: str | None) -> Cell:
    if key == "notes":
        text = _notes(sweep, row, base)
        return Cell(text, text)
    value = row[key]
    if key == "trial":
        return Cell(str(value), str(value), sweep.folder_of(row))
    if pd.isna(value):
        return Cell("none", "none") if key in point_of(sweep.space, row) else Cell(NOTHING, "")
    return Cell(_text(sweep.metric, row, key, value), str(value))


def _text(metric: Metric, row: pd.Series, key: str, value: Any) -> str:
    if key == metric.name:
        return with_spread(metric, value, row[metric.spread])
    if key.endswith(f".{metric.name}"):
        return metric.show(value)
    if (beside := {score.name: score for score in metric.beside}.get(key)) is not None:
        return beside.show(value)
    if key == "epsilon":
        return shown(value)
    return number(value) if key in ("noise_multiplier", "passes") else shown_value(value)


def _notes(sweep: Sweep, row: pd.Series, base: str | None) -> str:
    found = [base_label(sweep)] if row["trial"] == base else []
    if sweep.best is not None and row["trial"] == sweep.best["trial"]:
        found.append("chosen" if sweep.finished else "best so far")
    elif not pd.isna(row["tied_with_best"]) and row["tied_with_best"]:
        found.append("cannot be told apart from the best")
    if not pd.isna(row["pareto"]) and row["pareto"]:
        found.append("on the Pareto front")
    if short := shortened(row):
        found.append(f"{short}: those that a crash lost were charged, and not trained again")
    if not pd.isna(row["reason"]):
        found.append(row["reason"])
    return "; ".join(found)
