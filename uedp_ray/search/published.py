"""Figures that others published, to be drawn beside ours: a CSV file with the columns of ``COLUMNS``.

    figure,corpus,series,x,y,unit,source
    2a,conll2003,uedp (person),0.185,35.09,user-entity,"Fig. 2a, read off the plot"

They are what the source printed. Whether its unit, neighbours and accountant are ours is for the reader to judge, so they
are never on one axis with our points.
"""

from __future__ import annotations

import csv
import dataclasses
import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from uedp_ray.errors import InputError, unreadable
from uedp_ray.fields import UNPRINTABLE

COLUMNS = ("figure", "corpus", "series", "x", "y", "unit", "source")
EPSILON = "epsilon"
"""The axis of figures against epsilon; any other is a key of the grid."""
_KEYS = {"csv", "figure", "against"}
_MOST_BYTES = 1 << 20


@dataclass(frozen=True)
class Point:
    """One published point: its score ``y`` at ``x``, for ``unit`` as its source has it."""

    corpus: str
    series: str
    x: float
    y: float
    unit: str
    source: str


@dataclass(frozen=True)
class Published:
    """The points of one figure."""

    figure: str
    against: str
    """What its horizontal axis shows: ``epsilon``, or a key of the grid."""
    points: tuple[Point, ...]

    @classmethod
    def load(cls, tree: Any) -> Published:
        """Reads ``{csv: FILE, figure: NAME, against: epsilon}``; the last may be left out. Raises: InputError."""
        known = isinstance(tree, dict) and {"csv", "figure"} <= set(tree) <= _KEYS
        if not known or not all(isinstance(value, str) for key, value in tree.items() if key != "figure"):
            raise InputError(
                "published", tree, "expected csv: a file, figure: its name there, and against if not epsilon"
            )
        path, figure = Path(os.path.expandvars(tree["csv"])), str(tree["figure"])
        points = [_point(path, number, row) for number, row in _rows(path) if row["figure"] == figure]
        if not points:
            raise InputError("published.figure", figure, f"{path} has no such figure")
        return cls(figure, tree.get("against", EPSILON), tuple(points))

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


def _rows(path: Path) -> list[tuple[int, dict[str, str]]]:
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise InputError("published.csv", str(path), f"is larger than {_MOST_BYTES} bytes")
        with path.open(encoding="utf-8", newline="") as file:
            reader = csv.DictReader(file)
            if tuple(reader.fieldnames or ()) != COLUMNS:
                raise InputError("published.csv", str(path), f"expected the columns {','.join(COLUMNS)}")
            return [(reader.line_num, row) for row in reader]
    except OSError as error:
        raise unreadable(error, "published.csv", str(path)) from None
    except (UnicodeDecodeError, csv.Error):
        raise InputError("published.csv", str(path), "is not CSV in UTF-8") from None


def _point(path: Path, line: int, row: dict[str, Any]) -> Point:
    texts = [row[name] for name in ("corpus", "series", "unit", "source")]
    try:
        if None in row or any(not text or UNPRINTABLE.search(text) for text in texts):
            raise ValueError
        x, y = float(row["x"]), float(row["y"])
        if not (math.isfinite(x) and math.isfinite(y)):
            raise ValueError
    except (TypeError, ValueError):
        remedy = f"line {line} of {path.name}: expected text, and finite numbers for x and y, in all columns"
        raise InputError("published.csv", str(path), remedy) from None
    corpus, series, unit, source = texts
    return Point(corpus, series, x, y, unit, source)
