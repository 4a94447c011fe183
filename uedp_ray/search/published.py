"""What others published, beside ours: points of their figures, and what epsilon their arithmetic would print for our runs.

    figure,corpus,series,x,y,unit,source
    2a,conll2003,uedp (person),0.185,35.09,user-entity,"Fig. 2a, read off the plot"

Points are a CSV file with the columns of ``COLUMNS``: what the source printed. Whether its unit, neighbours and accountant
are ours is for the reader to judge, so they are never on one axis with our points.

    variants:
      persons: {method: uedp, as_published: {sensitive_fraction: 0.313818, max_order: 64}}

A variant that says so (``AsPublished``) has beside its own epsilon the one of ``privacy.published``, which is no guarantee.
"""

from __future__ import annotations

import csv
import dataclasses
import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from uedp_ray.config import RunConfig
from uedp_ray.config.limits import at_least, check_choices, probability
from uedp_ray.errors import InputError, unreadable
from uedp_ray.fields import UNPRINTABLE
from uedp_ray.privacy.published import MAX_ORDER, Method, noise_factor, published_epsilon, published_unit
from uedp_ray.privacy.statement import NO_GUARANTEE

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
    def load(cls, tree: Any, folder: Path) -> Published:
        """Reads ``{csv: FILE, figure: NAME, against: epsilon}``; the last may be left out. ``folder``: where the comparison
        file is, beside which the file lies. Raises: InputError."""
        known = isinstance(tree, dict) and {"csv", "figure"} <= set(tree) <= _KEYS
        if not known or not all(isinstance(value, str) for key, value in tree.items() if key != "figure"):
            raise InputError(
                "published", tree, "expected csv: a file, figure: its name there, and against if not epsilon"
            )
        path, figure = folder / os.path.expandvars(tree["csv"]), str(tree["figure"])
        points = [_point(path, number, row) for number, row in _rows(path) if row["figure"] == figure]
        if not points:
            raise InputError("published.figure", figure, f"{path} has no such figure")
        return cls(figure, tree.get("against", EPSILON), tuple(points))

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


@dataclass(frozen=True, kw_only=True)
class AsPublished:
    """How the published arithmetic is to price a variant: ``published_epsilon`` at its own q_u, q_e, rounds and delta.

    All of it is PUBLIC: the author's own words of the file, and nothing is read off the text for it.
    """

    method: Method = "uedp"
    sensitive_fraction: float = 1.0
    """``uedp`` only: sentences with a protected entity over all."""
    max_order: int = 32
    """The paper's text used 32 in some places, and 64 in others (docs/fidelity.md)."""

    def __post_init__(self) -> None:
        check_choices(self)
        probability("sensitive_fraction", self.sensitive_fraction)
        at_least("max_order", self.max_order, 1, most=MAX_ORDER)

    def check(self, config: RunConfig) -> None:
        """Raises: InputError for a run that has no z, so that the arithmetic has nothing to start from."""
        if config.privacy.noise == "none":
            raise InputError(
                "as_published", self.method, "its runs add no noise, which the published arithmetic prices"
            )
        if config.privacy.noise == "calibrated" and config.corpus.declared_num_users is None:
            remedy = "declare corpus.declared_num_users: the paper's z is the noise over its expected cohort"
            raise InputError("as_published", self.method, remedy)

    def price(self, config: RunConfig, noise_multiplier: float) -> dict[str, Any]:
        """The published epsilon of a run, and its unit: what was printed for such a run, and no guarantee.

        z is ``privacy.noise_multiplier`` under published noise; else the one for which Eq. 6 adds the run's own noise.

        Args:
          noise_multiplier: the run's, in the sum of updates over beta (``result.json``).
        """
        privacy, users = config.privacy, config.corpus.declared_num_users
        z = privacy.noise_multiplier
        if privacy.noise != "published":
            assert users is not None  # ``check`` refuses it
            z = noise_multiplier / noise_factor(users, privacy.user_sampling_prob, cohort=privacy.published_cohort)
        assert z is not None  # the config refuses anything else
        epsilon = published_epsilon(
            method=self.method,
            noise_multiplier=z,
            user_sampling_prob=privacy.user_sampling_prob,
            entity_sampling_prob=privacy.entity_sampling_prob,
            sensitive_fraction=self.sensitive_fraction,
            rounds=config.training.num_rounds,
            delta=privacy.delta,
            max_order=self.max_order,
        )
        known = epsilon if math.isfinite(epsilon) else None
        return {"epsilon": known, "unit": published_unit(self.method), "claim": NO_GUARANTEE}


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
