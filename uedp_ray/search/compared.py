"""The table of a comparison: means and intervals over seeds, what each row guarantees, and what all of them cost together.

    >>> from uedp_ray.search.compared import interval
    >>> from uedp_ray.tasks.metrics import ERROR_RATE
    >>> kind, low, high = interval([0.30, 0.32, 0.34], ERROR_RATE)    # Student's t, 95 %
    >>> kind, round(low, 4), round(high, 4)
    ('t', 0.2703, 0.3697)
    >>> interval([0.30, 0.32], ERROR_RATE), interval([0.30], ERROR_RATE)    # two say nothing of others like them
    (('range', 0.3, 0.32), None)

Every run is charged, those of further seeds too. A row states what one of its runs guarantees; the total by unit, in which
whoever sees all rows sees all runs, composes their ledgers (docs/accounting.md, "The price of choosing", rule composition:
the runs are fixed before the first starts).
"""

from __future__ import annotations

import csv
import io
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from scipy import stats

from uedp_ray.config import RunConfig
from uedp_ray.corpus.categories import common
from uedp_ray.privacy.events import epsilon_of_events
from uedp_ray.privacy.guarantee import Guarantee, nothing
from uedp_ray.privacy.ledger import read_ledger
from uedp_ray.privacy.statement import NO_GUARANTEE
from uedp_ray.search.comparison import Row
from uedp_ray.search.told import shortened, told
from uedp_ray.storage.files import write_atomically
from uedp_ray.tasks.metric import Metric
from uedp_ray.tasks.metrics import metric_of
from uedp_ray.training.rundir import RunDir
from uedp_ray.units import UNITS

CONFIDENCE = 0.95
_FEWEST = 3
"""Scores for an interval by Student's t: of two it is a hundred times as wide as they are apart."""
_STATED = ("delta", "noise_multiplier", "rounds", "planned_rounds", "private")


def interval(scores: Sequence[float], metric: Metric) -> tuple[str, float, float] | None:
    """Returns a key of ``told.INTERVALS`` and the ends of the interval around ``metric.mean``; None for one score.

    Where ratios count, it is one of logarithms. It covers seeds, which include sampling and noise, not other texts.
    """
    if len(scores) < _FEWEST:
        return ("range", min(scores), max(scores)) if len(scores) > 1 else None
    values = [math.log(score) for score in scores] if metric.ratio else list(scores)
    half = stats.t.ppf((1 + CONFIDENCE) / 2, len(values) - 1) * statistics.stdev(values) / math.sqrt(len(values))
    low, high = (statistics.fmean(values) + sign * float(half) for sign in (-1, 1))
    return ("t", math.exp(low), math.exp(high)) if metric.ratio else ("t", low, high)


def row_of(row: Row, base: RunConfig, results: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The row of the table from the results of its runs (``host.train``), by seed. See ``compare``."""
    metric, config = metric_of(base), row.config(base)
    guarantees = [result.get("guarantees") or [nothing(delta=result["delta"]).to_dict()] for result in results]
    dearest, promised = max(
        zip(results, guarantees, strict=True), key=lambda pair: _spent(own(pair[1], config.privacy.unit))
    )
    scores = [result[metric.name] for result in results]
    means = {
        score.name: _mean([result[score.name] for result in results], score.mean if isinstance(score, Metric) else None)
        for score in metric.scores
    }
    ends = None if None in scores else interval(scores, metric)
    return {
        "name": row.name,
        "variant": row.variant,
        "method": row.method,
        "settings": dict(row.point),
        **means,
        "scores": scores,
        "interval": ends and {"kind": ends[0], "low": ends[1], "high": ends[2]},
        **{key: results[0].get(key) for key in metric.yardstick_of(None)},
        "epsilon": dearest["epsilon"],
        "guarantee": own(promised, config.privacy.unit),
        "guarantees": promised,
        "as_published": row.as_published and row.as_published.price(config, dearest["noise_multiplier"]),
        **{key: dearest[key] for key in _STATED},
        "private": all(result["private"] for result in results),
        "transform": config.corpus.transform.kind,
        "retention": _mean([(result.get("retention") or {}).get("all") for result in results], None),
        "rounds": min(result["rounds"] for result in results),
        "run_dir": results[0]["run_dir"],
    }


def _spent(guarantee: Mapping[str, Any]) -> float:
    return math.inf if guarantee["epsilon"] is None else float(guarantee["epsilon"])


def public(row: dict[str, Any], metric: Metric) -> dict[str, Any]:
    """A row of ``evaluate.public_row`` in the same form: its model never saw the private text."""
    about: dict[str, Any] = {"delta": row["delta"], "relation": "none", "trust": "central", "accountant": "none"}
    units = [Guarantee(unit=cast(Any, unit), epsilon=0.0, sound=True, **about).to_dict() for unit in UNITS]
    return {
        "variant": row["name"],
        "method": None,
        "settings": {},
        "scores": [row[metric.name]],
        "interval": None,
        "guarantee": own(units, row["unit"]),
        "guarantees": units,
        "as_published": None,
        "transform": "none",
        "retention": None,
        **{key: value for key, value in row.items() if key != "unit"},
    }


def own(guarantees: Sequence[Mapping[str, Any]], unit: str) -> dict[str, Any]:
    """The guarantee that a run is trained for: that of its unit, or the first if its rounds promise none."""
    return dict(next((each for each in guarantees if each["unit"] == unit), guarantees[0]))


def totals(
    rows: Sequence[Mapping[str, Any]], runs: Mapping[str, Sequence[Path]], base: RunConfig, *, fixed: bool = True
) -> list[dict[str, Any]]:
    """What whoever sees all rows sees, by unit: of the runs that have a proven guarantee of it, all seeds of them.

    Args:
      rows: of private and other runs, as ``row_of``.
      runs: the run directories of each row by its name.
      fixed: whether all runs were fixed before the first was trained: else results may have decided on them, and their
        ledgers do not simply compose.

    Returns: unit, epsilon (None: no total), delta, rows (names that it covers), without (``shortened``: what it does not),
      categories (protected in all of them; None where they do not differ), assumed (as of a guarantee: what it rests on
      beside proofs), why (there is no total).
    """
    found = []
    for unit in dict.fromkeys(row["guarantee"]["unit"] for row in rows if row["guarantee"]["epsilon"] is not None):
        covered = [row["name"] for row in rows if _promises(row, unit)]
        if not covered:  # no row has a guarantee of it: what was claimed or published is none
            continue
        folders = [folder for name in covered for folder in runs[name]]
        total: dict[str, Any] = {
            "unit": unit,
            "epsilon": None,
            "delta": base.privacy.delta,
            "rows": covered,
            "without": shortened([row for row in rows if row["name"] not in covered], rows),
            "categories": None,
            "assumed": _assumed((row for row in rows if row["name"] in covered), unit),
            "why": "",
        }
        if not fixed:
            total["why"] = "rows were changed after others were trained, whose results may have decided on that"
        elif unit in UNITS:
            total |= _composed(unit, folders, base.privacy.delta)
        else:
            total["why"] = "rows may mean other words or records by it, and nothing here adds that up"
        found.append(total)
    return found


def _promises(row: Mapping[str, Any], unit: str) -> bool:
    return any(each["unit"] == unit and _counts(each) and each["epsilon"] is not None for each in row["guarantees"])


def _counts(guarantee: Mapping[str, Any]) -> bool:
    return bool(guarantee["sound"] or guarantee.get("assumed"))


def _assumed(rows: Iterable[Mapping[str, Any]], unit: str) -> list[str]:
    promises = [each for row in rows for each in row["guarantees"] if each["unit"] == unit]
    return [*dict.fromkeys(named for each in promises for named in each.get("assumed", ()))]


def _composed(unit: str, folders: Iterable[Path], delta: float) -> dict[str, Any]:
    runs = [RunDir(folder) for folder in folders]
    choices = {run.load_config().corpus.categories for run in runs}
    shared = common(choices) if len(choices) > 1 and unit != "user" else None
    if shared == ():
        return {"why": "no category is protected in all of these rows, and so no entity"}
    events = [event for run in runs for event in read_ledger(run.ledger)]
    epsilon = epsilon_of_events(events, delta=delta, unit=unit)
    return {"epsilon": epsilon if math.isfinite(epsilon) else None, "categories": None if shared is None else [*shared]}


def _mean(values: Sequence[float | None], mean: Any) -> float | None:
    known = [value for value in values if value is not None]
    return None if len(known) < len(values) else (mean or statistics.fmean)(known)


def write_csv(
    rows: Iterable[Mapping[str, Any]], keys: Iterable[str], metric: Metric, path: Path, *, private: bool
) -> None:
    """Writes the table for spreadsheets: a line for each row, a column for each setting of the grid (``keys``)."""
    text, keys = io.StringIO(), list(keys)
    ends = ["low", "high"]
    writer = csv.writer(text)
    writer.writerow(
        ["name", "variant", "method", *keys, "seeds", *metric.names, *ends, "interval", "epsilon", "unit", "delta", "sound",
         "transform", "retention", "rounds", f"epsilon {NO_GUARANTEE}", "unit as published",
         "assumed"]
    )  # fmt: skip
    for row in rows:
        promised, bounds, theirs = row["guarantee"], row["interval"] or {}, row["as_published"] or {}
        settings = [told(row["settings"][key]) if key in row["settings"] else "" for key in keys]
        writer.writerow(
            [row["name"], row["variant"], row["method"] or "", *settings, len(row["scores"]),
             *(row[name] for name in metric.names), *(bounds.get(end, "") for end in ends), bounds.get("kind", ""),
             "" if promised["epsilon"] is None else promised["epsilon"], promised["unit"], promised["delta"],
             promised["sound"], row["transform"], "" if row.get("retention") is None else row["retention"], row["rounds"],
             theirs.get("epsilon"), theirs.get("unit"), "; ".join(promised.get("assumed", ()))]
        )  # fmt: skip
    write_atomically(path, text.getvalue().encode(), private=private)
