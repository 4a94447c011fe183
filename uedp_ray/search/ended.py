"""Whether a sweep's ``result.json`` covers all its trials: some may have continued after it was written.

    holds_all(rows, {("0000", "done"), ("0001", "stopped")}, root / "trials")

Only such a result states what the sweep costs. Does not load the trainer.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any


def holds_all(rows: Sequence[Mapping[str, Any]], table: Collection[tuple[str, str]], trials: Path) -> bool:
    """Whether the result's ``rows`` hold every trial, and none that may continue.

    Args:
      rows: the rows of ``result.json``, each with trial, state and run_dirs.
      table: (trial, state) of every row of ``trials.parquet``: a copy for reading may lack the ledgers of newer trials.
      trials: the folder of run directories. Where a ledger was started, there may be charges.
    """
    stated = {(row["trial"], row["state"]) for row in rows}
    known = {Path(name).name for row in rows for name in row["run_dirs"]}
    begun = {name for name in run_names(trials) if (trials / name / "ledger.jsonl").exists()}
    return not any(row["state"] == "running" for row in rows) and stated.issuperset(table) and begun <= known


def run_names(trials: Path) -> dict[str, int]:
    """Returns the existing run directories by name, with their trial numbers. Copies beside them are not ours."""
    found = (
        re.fullmatch(r"(\d{4,9})(-[a-z]\w{0,31})?(-\d{1,9})?", path.name)
        for path in trials.glob("[0-9]*")
        if path.is_dir()
    )
    return {match[0]: int(match[1]) for match in found if match}
