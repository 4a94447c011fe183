"""The columns of a sweep's table of trials.

Example:

    columns_of(load_sweep_config("sweeps/quickstart.yaml"))["epsilon"]     # float64
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from uedp_ray.search.sweep_config import SweepConfig
from uedp_ray.units import UNITS

TIMES = ("started", "resumed", "seconds")
"""When a trial was first started, and last started once more after its process had died, in seconds since the search began;
and the seconds from its first start to its end. They may depend on the private text: nothing that is published has them."""
_FIRST = {
    "trial": pa.string(),
    "number": pa.int64(),
    "state": pa.string(),
    "reason": pa.string(),
    "feasible": pa.bool_(),
    "method": pa.string(),
}
_LAST = {
    "seeds": pa.int64(),
    "tied_with_best": pa.bool_(),
    "pareto": pa.bool_(),
    "epsilon": pa.float64(),
    **{f"epsilon_{unit}": pa.float64() for unit in UNITS},
    "delta": pa.float64(),
    "unit": pa.string(),
    "noise_multiplier": pa.float64(),
    "rounds": pa.int64(),
    "planned_rounds": pa.int64(),
    "charged": pa.int64(),
    **{name: pa.float64() for name in TIMES},
    "run_dirs": pa.list_(pa.string()),
}
COLUMNS = _FIRST | _LAST
"""The columns of every sweep, whatever its metric."""


def columns_of(sweep: SweepConfig) -> dict[str, pa.DataType]:
    """Returns the columns by name and in order, without the searched settings."""
    measured = (*sweep.metric.columns, *sweep.score_columns.values())
    return _FIRST | dict.fromkeys(measured, pa.float64()) | _LAST


def shortened(row: Mapping[str, Any]) -> str:
    """Says that a trial trained fewer rounds than were planned, which ranks its settings too low; empty if it did not."""
    if row["state"] != "done" or not (row["rounds"] or 0) < (row["planned_rounds"] or 0):
        return ""
    return f"{int(row['rounds'] or 0)} of {int(row['planned_rounds'])} rounds"
