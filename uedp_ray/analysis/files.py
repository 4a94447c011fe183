"""Reads files of a sweep that somebody else may have written: from within its folder, in bounded memory, with checks.

    result = read_result(Path("runs/quickstart"), config)
    text = read_text(root, "trials/0002/privacy.md")

Every function raises InputError, in one line, for a path that leads out of the folder (``..``, absolute, a symbolic link),
for a file that is too large, and for values that no sweep writes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from numbers import Number
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa

from uedp_ray.errors import InputError
from uedp_ray.fields import Check, Missing, Unexpected, anything, flag, list_of, number, one_of, record, string
from uedp_ray.privacy.selection import RULES
from uedp_ray.search.space import Dimension
from uedp_ray.search.sweep_config import SweepConfig
from uedp_ray.storage.tables import MAX_BYTES, read_bounded

UNITS = ("user-entity", "user", "entity")
NULLABLE = {pa.int64(): pd.Int64Dtype(), pa.bool_(): pd.BooleanDtype(), pa.string(): pd.StringDtype()}
"""The pandas type of a column of Parquet in which values may be missing."""
_RUN = re.compile(r"(trials/[\w-]{1,64}|winner)", re.ASCII)
_NAMED = string(r"[\w-]{1,64}", "the name of a trial")


def inside(root: Path, name: str) -> Path:
    """Returns ``root/name``, which must be in the folder after every symbolic link is followed."""
    path = root / name
    if Path(name).is_absolute() or not path.resolve().is_relative_to(root.resolve()):
        raise InputError(str(root), name, "leads out of the sweep's folder: it is not read")
    return path


def run_dir(root: Path, name: object) -> Path:
    """Returns a run directory of the sweep, by its name in a table or a result."""
    if not isinstance(name, str) or not _RUN.fullmatch(name):
        raise InputError(
            f"{root}: run directory", _short(name), "is not a run of a sweep: expected trials/<id> or winner"
        )
    return inside(root, name)


def read_text(root: Path, name: str) -> str:
    """Reads a text file of at most ``MAX_BYTES``."""
    path = inside(root, name)
    if path.exists() and not path.is_file():
        raise InputError(name, str(root), "is not a file")
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
        if len(content) > MAX_BYTES:
            raise InputError(name, str(root), f"is larger than {MAX_BYTES} bytes: no sweep writes that")
        return content.decode("utf-8")
    except OSError as error:
        raise InputError(name, str(root), f"cannot be read ({error.strerror})") from None
    except UnicodeDecodeError:
        raise InputError(name, str(root), "is not text") from None


def read_table(root: Path, name: str) -> pa.Table:
    """Reads a Parquet file as ``tables`` does."""
    path = inside(root, name)
    try:
        table = read_bounded(path, "recreate it with uedp-ray sweep … --resume")
    except OSError as error:
        raise InputError(name, str(root), f"cannot be read ({error.strerror})") from None
    if table is None:
        raise InputError(name, str(root), f"unpacks to more than {MAX_BYTES} bytes: no sweep writes that")
    return table


def read_result(root: Path, config: SweepConfig) -> dict[str, Any]:
    """Reads ``result.json``; of its trials, which the table has, only what shows whether it covers all of them."""
    try:
        tree = json.loads(read_text(root, "result.json"))
    except (ValueError, RecursionError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(
            "result.json", str(root), f"is not JSON that a sweep writes ({type(error).__name__})"
        ) from None
    _complete(tree, config)
    try:
        _check_result(tree, config)
    except Unexpected as error:
        remedy = f"expected {error.expected}"
        if isinstance(error, Missing):
            remedy += ": if an earlier version made the sweep, report and export it with that version"
        raise InputError(f"result.json: {error.where}", _short(error.value), remedy) from None
    best = tree["best"]
    if best is not None:
        alone, total = best["epsilon"][config.budget.unit], best["epsilon_with_choice"]
        if total is not None and (alone is None or total < alone):
            raise InputError("result.json: best.epsilon_with_choice", total, f"is below the {alone} of its run alone")
    return tree


def _complete(tree: Any, config: SweepConfig) -> None:
    """Adds what earlier versions have in the table only, or say in words."""
    if not isinstance(tree, dict):
        return
    if isinstance(best := tree.get("best"), dict):
        for key in config.metric.references:
            best.setdefault(key, None)
    tree.setdefault("winner_trained", None)
    if isinstance(price := tree.get("selection"), dict):
        price.setdefault("settled_by_results", "odometer" in str(price.get("accountant")))


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}…"


def _check_result(tree: Any, config: SweepConfig) -> None:
    budget, metric = config.budget, config.metric
    score = number(metric.least)
    terms = {"delta": one_of(budget.delta), "unit": one_of(budget.unit)}
    spent = number(0.0, nothing=True)
    best = {
        "trial": _NAMED,
        metric.name: score,
        **{each.name: number(each.least, nothing=True) for each in metric.beside},
        metric.spread: spent,
        **metric.reference_checks(),
        "seeds": number(1, whole=True),
        "noise_multiplier": spent,
        "epsilon": record(dict.fromkeys(UNITS, spent)),
        "epsilon_with_choice": spent,
        "params": _settings(config),
        "run_dir": anything,  # checked as a path by ``run_dir``
        "tied": list_of(_NAMED, nothing=True),
        **terms,
    }
    selection = {
        "rule": one_of(*RULES),
        "epsilon": spent,
        **dict.fromkeys(("accountant", "releasable", "text"), string()),
        "settled_by_results": flag,
        **terms,
    }
    reference = {"name": one_of("public-only", "noiseless"), metric.name: score, "epsilon": spent}
    trial = {"trial": _NAMED, "state": string(), "run_dirs": list_of(string())}
    states = ("asked", "done", "stopped", "failed", "refused", "running")
    record(
        {
            "best": record(best, nothing=True),
            "counts": record(dict.fromkeys(states, number(0, whole=True))),
            "selection": record(selection),
            "references": list_of(record(reference)),
            "winner_trained": record({"started": number(), "seconds": number(nothing=True)}, nothing=True),
            "trials": list_of(record(trial)),
        }
    )(tree, "")


def _settings(config: SweepConfig) -> Check:
    def check(value: Any, where: str) -> None:
        if not isinstance(value, dict) or not value.keys() <= config.parsed_space.keys():
            raise Unexpected(where, value, "settings that were searched")
        for key, setting in value.items():
            if not holds(config.parsed_space[key], setting):
                raise Unexpected(f"{where}.{key}", setting, "a value that was searched")

    return check


def holds(dimension: Dimension, value: Any) -> bool:
    """Whether a searched setting can have this value; in a table, choices of mixed types are text."""
    if dimension.is_choice:
        return any(value == each or value == str(each) for each in dimension.values)
    low, high = dimension.values
    room = 1e-9 * max(abs(low), abs(high))
    return isinstance(value, Number) and low - room <= value <= high + room


def check_columns(name: str, root: Path, table: pa.Table, columns: Iterable[str]) -> None:
    """Raises: InputError unless a table has each of these columns once."""
    for column in columns:
        if table.column_names.count(column) != 1:
            raise InputError(
                name, str(root), f"lacks the column {column}, or has it twice: read it with its own version"
            )


def typed(name: str, root: Path, table: pa.Table, dtypes: Mapping[str, str]) -> pd.DataFrame:
    """Returns somebody else's table as a frame. Raises: InputError for what these types cannot hold."""
    for column in (each for each, dtype in dtypes.items() if dtype in ("float64", "Int64", "int64")):
        kind = table.schema.field(column).type
        if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_null(kind)):
            raise InputError(f"{name}: {column}", str(kind)[:60], "has a column of another type: expected numbers")
    try:
        return table.to_pandas(types_mapper=NULLABLE.get).astype(dtypes)
    except (TypeError, ValueError, OverflowError) as error:
        reason = str(error).splitlines()[0][:80]
        raise InputError(name, str(root), f"has a column of another type ({reason})") from None


def check_least(name: str, frame: pd.DataFrame, least: Mapping[str, float]) -> None:
    """Raises: InputError for a number that no run writes; missing values pass."""
    for column, low in least.items():
        wrong = (frame[column] < low).fillna(False).astype(bool)
        if wrong.any():
            value = frame[column][wrong].iloc[0]
            raise InputError(f"{name}: {column}", str(value)[:60], f"expected a number from {low:g}")
