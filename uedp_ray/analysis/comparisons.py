"""The folder of a comparison, read for its page: rows, totals, published points.

    found = load_comparison("runs/compared")
    [row["name"] for row in found.rows if row["guarantee"]["unit"] == "user"]

It may be somebody else's: nothing outside the folder is read, and what no comparison writes is refused.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from uedp_ray.analysis.files import read_text
from uedp_ray.config import RunConfig
from uedp_ray.config.files import names_file
from uedp_ray.errors import InputError
from uedp_ray.fields import Check, Later, Unexpected, flag, list_of, number, one_of, record, string
from uedp_ray.privacy.guarantee import GUARANTEE, GUARANTEES, hides_anybody
from uedp_ray.tasks.metric import Metric
from uedp_ray.tasks.metrics import metric_in

_TABLE = "table.json"
_ALSO_SEEN = "whoever sees them sees the other rows, too, which guarantee nothing of it"
_PUBLISHED = {**dict.fromkeys(("corpus", "series", "unit", "source"), string()), "x": number(), "y": number()}


@dataclass(frozen=True)
class Compared:
    """The content of ``table.json``; see ``search.compare.compare`` for a row and ``search.compared.totals`` for a total."""

    path: Path
    name: str
    metric: Metric
    rows: Sequence[Mapping[str, Any]]
    """Those of trained models."""
    public: Sequence[Mapping[str, Any]]
    """Those of models that never saw the private text."""
    totals: Sequence[Mapping[str, Any]]
    grid: Sequence[str]
    seeds: int
    published: Mapping[str, Any] | None

    @property
    def private(self) -> bool:
        """Whether a row hides no user and no entity, so that its figures are private. No other has retention."""
        return not all(map(hides_anybody, self.rows))


def is_comparison(path: Path) -> bool:
    """Whether it is the folder of a finished comparison."""
    return (path / _TABLE).is_file() and (path / "base.yaml").is_file()


def load_comparison(path: str | Path) -> Compared:
    """Raises: InputError for what no comparison writes."""
    path = Path(path)
    try:
        tree = json.loads(read_text(path, _TABLE))
        metric = metric_in(tree["rows"][0])
        _check(tree, metric)
    except Unexpected as error:
        remedy = f"expected {error.expected}: if an earlier version made it, compare again in another folder"
        raise InputError(f"{_TABLE}: {error.where}", repr(error.value)[:60], remedy) from None
    except InputError:
        raise
    except (ValueError, RecursionError, KeyError, IndexError, TypeError) as error:
        raise InputError(_TABLE, str(path), f"is not what a comparison writes ({type(error).__name__})") from None
    return Compared(
        path=path,
        name=path.resolve().name,
        metric=metric,
        rows=[row for row in tree["rows"] if row["method"] is not None],
        public=[row for row in tree["rows"] if row["method"] is None],
        totals=tree["totals"],
        grid=tree["grid"],
        seeds=tree["seeds"],
        published=tree["published"],
    )


def _check(tree: Mapping[str, Any], metric: Metric) -> None:
    score = number(metric.least, nothing=True)
    ends = {
        "kind": one_of("t", "range"),
        **dict.fromkeys(("low", "high"), number(metric.least if metric.ratio else -1e9)),
    }
    row: dict[str, Check] = {
        **dict.fromkeys(("name", "variant"), string()),
        "method": string(nothing=True),
        "settings": record({}),
        **metric.checks(),
        **{name: Later(check) for name, check in metric.reference_checks().items()},
        "scores": list_of(score),
        "interval": record(ends, nothing=True),
        "guarantee": GUARANTEE,
        "as_published": Later(record({"epsilon": number(0.0, nothing=True), "unit": string()}, nothing=True)),
        "noise_multiplier": Later(number(0.0, nothing=True)),
        "guarantees": GUARANTEES,
        "transform": Later(string()),
        "retention": Later(number(0.0, 1.0, nothing=True)),
        "private": flag,
        "rounds": number(0, whole=True),
    }
    total: dict[str, Check] = {
        **dict.fromkeys(("unit", "why"), string()),
        "epsilon": number(0.0, nothing=True),
        "delta": number(0.0, 1.0),
        **dict.fromkeys(("rows", "without"), list_of(string())),
        "categories": list_of(string(), nothing=True),
        "assumed": Later(list_of(string())),
    }
    published = {**dict.fromkeys(("figure", "against"), string()), "points": list_of(record(_PUBLISHED))}
    record(
        {
            "rows": list_of(record(row)),
            "totals": list_of(record(total)),
            "grid": list_of(string()),
            "seeds": number(1, whole=True),
            "published": record(published, nothing=True),
        }
    )(tree, "")


def publishable(compared: Compared) -> Compared:
    """Returns the comparison without rows that hide no user and no entity, and without what was read off the text of the
    others. A total is that of all rows that are left, or none: whoever sees the page sees them all.

    Raises: InputError if no total covers these.
    """
    rows = [{key: row[key] for key in row if key != "retention"} for row in compared.rows if hides_anybody(row)]
    names = {row["name"] for row in rows}
    promised = [each for each in compared.totals if not names.isdisjoint(each["rows"])]
    totals = [
        each if each["epsilon"] is None or names <= {*each["rows"]} else {**each, "epsilon": None, "why": _ALSO_SEEN}
        for each in promised
    ]
    if not names or all(each["epsilon"] is None for each in totals):
        remedy = (
            "no total covers all of its rows that hide a user or an entity"
            + (f" ({'; '.join(sorted(names))})" if names else ", since none does")
            + ": whoever sees them all has no guarantee; compare rows that promise the same unit"
        )
        raise InputError("--publish", str(compared.path), remedy)
    for key in compared.grid:
        if names_file(RunConfig, key):
            raise InputError("--publish", key, "names files: compare them under names of variants, which are yours")
    return dataclasses.replace(compared, rows=rows, totals=totals)
