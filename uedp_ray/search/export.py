"""``export``: the folder of a sweep or a run to hand on, with the total that the model costs first.

    export("runs/quickstart", "handed-on")["epsilon"]          # what choosing and training cost together
    export("runs/quickstart/trials/0002", "another")           # a run inside a sweep costs the sweep's total

The rule that pays for the choice says what may be handed on: under ``composition`` any trial, at the price of all; under
``repeat_and_select`` the winner alone, without its number; under ``public`` the run that was trained on private text.
Doubtful cases are refused: no path through this module prints the smaller number.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from uedp_ray.errors import InputError
from uedp_ray.privacy.events import Charges
from uedp_ray.privacy.selection import PILOTS, SECRET, TRAINS_ANEW, UNCHECKED, priced_by
from uedp_ray.privacy.statement import part_of
from uedp_ray.reporting import SILENT, Reporter
from uedp_ray.search.ended import holds_all
from uedp_ray.search.layout import SweepDir, sweep_above
from uedp_ray.search.pilots import read_pilots
from uedp_ray.search.pool import read_pool
from uedp_ray.search.results import Row, best, read_columns, read_rows
from uedp_ray.search.selection_cost import charged_runs, cost_of_selection, planned_charges_of
from uedp_ray.search.sweep_config import SweepConfig, load_kept
from uedp_ray.storage.files import read_json
from uedp_ray.storage.open import folder_only, open_storage
from uedp_ray.training.export import Finished, export_run, own_total
from uedp_ray.training.privacy_page import Total
from uedp_ray.training.rundir import RunDir


def export(path: str | Path, out: str | Path, *, reporter: Reporter = SILENT) -> dict[str, Any]:
    """Writes ``out`` (``training.export``) for a finished sweep, one of its runs, or a standalone run.

    Args:
      path: a sweep or run directory, or the URL of one; for a sweep, its best run is exported.
      out: a new folder.
      reporter: gets a line before each slow step.

    Returns: out, epsilon (the total), epsilon_of_run, rule (``none`` for a standalone run), delta, unit,
    settled_by_results (``privacy.odometer.SETTLED_BY_RESULTS``: ``epsilon`` is no guarantee then), cautions.
    Raises: InputError if it is not finished, has no guarantee, or is not paid for by the rule.
    """
    out, storage = folder_only(out), open_storage(path, "path")
    with storage.exclusive():
        folder = SweepDir(storage.root, storage)
        storage.get(folder.config, folder.terms)
        if out.resolve() == storage.root.resolve():
            raise InputError("--out", str(out), "is the folder to be exported: name a new one")
        if folder.is_sweep:
            return _of_sweep(folder, None, out, reporter)
        above = None if storage.is_copy else sweep_above(storage.root)  # at a URL, the ledger below tells
        if above is not None:
            return _of_sweep(SweepDir(above), storage.root, out, reporter)
        found = Finished.open(RunDir(storage.root, storage))
        if part_of(found.events) == "comparison":
            remedy = (
                "is one variant of a comparison, whose choice has no price: search the variants with uedp-ray sweep"
            )
            raise InputError("RUN", str(path), remedy)
        if part_of(found.events):
            remedy = "is one run of a sweep, whose total it costs: export the sweep, or the run in the sweep's folder"
            raise InputError("RUN", str(path), remedy)
        return export_run(found, out, own_total(found), {})


def best_run(path: str | Path, *, reporter: Reporter = SILENT) -> dict[str, Any]:
    """The run of a finished sweep that ``export`` would write, and what it costs. ``path``, ``reporter``: as there.

    Returns: run_dir, epsilon (of training and choosing together, as an export states it), delta, unit, rule,
    settled_by_results (``privacy.odometer.SETTLED_BY_RESULTS``: ``epsilon`` is no guarantee then).
    Raises: as ``export``.
    """
    storage = open_storage(path, "path")
    with storage.exclusive():
        folder = SweepDir(storage.root, storage)
        config, rows, run = _chosen(folder, None)
        found = Finished.open(RunDir(run, storage.child(run)))
        total = _total(config, found, cost_of_selection(config, folder, rows, reporter))
    # Under repeat_and_select, which trial it is may not be told: the winner is a copy of it.
    return {
        "run_dir": str(folder.winner if folder.winner.is_dir() else run),
        "epsilon": total.epsilon,
        "delta": config.budget.delta,
        "unit": total.unit,
        "rule": total.rule,
        "settled_by_results": total.settled_by_results,
    }


def export_best(
    config: SweepConfig,
    folder: SweepDir,
    rows: Sequence[Row],
    priced: Mapping[str, Any],
    run: Path,
    out: Path,
    **how: Any,
) -> dict[str, Any]:
    """Exports one run of a sweep at the price of choosing (``cost_of_selection`` of ``rows``)."""
    found = Finished.open(RunDir(run, folder.storage.child(run)))
    total = _total(config, found, priced)
    terms, ledgers = _terms(config, folder, rows, total.rule)
    return export_run(found, out, total, terms, ledgers=ledgers, name=config.base.name, **how)


def _total(config: SweepConfig, found: Finished, priced: Mapping[str, Any]) -> Total:
    rule = priced["rule"]
    epsilon = found.epsilon if rule == "public" else priced["epsilon"]
    if epsilon is None or not epsilon < math.inf:
        raise InputError("selection.epsilon", epsilon, "is no bound: the sweep cannot be priced, and nothing handed on")
    text = " ".join(("The total:", priced["text"], _RECOMPUTE[rule], UNCHECKED.get(rule, ""))).rstrip()
    return Total(max(found.epsilon, epsilon), config.unit, rule, text, priced["settled_by_results"])


_RECOMPUTE = {
    "composition": "Recompute: `uedp-ray epsilon --export .`, from the ledger of every run in `ledgers/` and what was fixed "
    "before the first of them in `selection.json`.",
    "pilots": "Recompute: `uedp-ray epsilon --export .`, from the runs that were planned in `selection.json`; no ledger in "
    "`ledgers/` may hold more.",
    "selected_pilots": "Recompute: `uedp-ray epsilon --export .`, from the pilots that could be drawn, the law of their "
    "number and the runs that might follow them in `selection.json`, all fixed before the first pilot.",
    "repeat_and_select": "Recompute: `uedp-ray epsilon --export .`, from the candidates and the law of the number of trials "
    "in `selection.json`, both fixed before the first trial.",
    "public": "Recompute: `uedp-ray epsilon --export .`, from `ledger.jsonl`.",
}


def _of_sweep(folder: SweepDir, run: Path | None, out: Path, reporter: Reporter) -> dict[str, Any]:
    config, rows, run = _chosen(folder, run)
    return export_best(config, folder, rows, cost_of_selection(config, folder, rows, reporter), run, out)


def _chosen(folder: SweepDir, run: Path | None) -> tuple[SweepConfig, list[Row], Path]:
    """A finished sweep's settings and trials, and the run of it that is paid for: the best one, or ``run`` itself.

    Raises: InputError if the rule does not pay for ``run``.
    """
    config = load_kept(folder.config, folder.terms)
    rows = _ended_rows(config, folder)
    folder.storage.get(folder.pool)
    for row in rows:
        for name in row["run_dirs"]:
            folder.storage.child(folder.root / name).restore(folder.root / name / "ledger.jsonl")
    chosen = best(rows, config.metric)
    if chosen is None:
        raise InputError("SWEEP", folder.address, "chose nothing: no trial was trained to its end")
    found = folder.root / min(chosen["run_dirs"])
    rule = config.search.rule
    if rule in ("composition", "pilots"):
        runs = {folder.root / name for row in rows for name in row["run_dirs"]}
        runs |= {folder.winner} if rule == "pilots" else set()
        run = run or (folder.winner if rule == "pilots" else found)
        if run not in runs:
            raise InputError("RUN", str(run), "is inside a sweep but not one of its trials: it has no price of its own")
    elif run not in (None, folder.winner):
        remedy = f"rule {rule} pays for the winner alone: export the sweep, {folder.root}"
        raise InputError("RUN", str(run), remedy)
    else:
        run = folder.winner if rule in TRAINS_ANEW else found
    return config, rows, run


def _ended_rows(config: SweepConfig, folder: SweepDir) -> list[Row]:
    """Returns the trials of a finished sweep. Raises: InputError if it continues, or did after its result was written."""
    folder.storage.get(folder.result, folder.table)
    again = "run it to its end first (uedp-ray sweep … --resume)"
    if not folder.result.exists():
        raise InputError("SWEEP", folder.address, f"is not finished: {again}")
    anew = "recreate it with uedp-ray sweep … --resume"
    rows = read_rows(folder.result, config.metric, anew)
    table = {(row["trial"], row["state"]) for row in read_columns(folder.table, ["trial", "state"], anew)}
    if not holds_all(rows, table, folder.trials):
        raise InputError("SWEEP", folder.address, f"continued after its result.json was written: {again}")
    return rows


def _terms(
    config: SweepConfig, folder: SweepDir, rows: Sequence[Row], rule: str
) -> tuple[dict[str, Any], dict[int, Path]]:
    """Returns what recomputes the price: ``selection.json`` of an export, and the ledgers by position."""
    if rule == "public":
        return {}, {}
    fixed, search = read_json(folder.terms, {}, "restore the sweep's copy"), config.search
    terms: dict[str, Any] = dict(search.as_priced)
    terms["categories"] = config.common_categories
    if rule in SECRET:
        released = read_pilots(config, folder) if rule in PILOTS else {"candidates": read_pool(folder)["candidates"]}
        return terms | released | {"mean": fixed["mean"], "law": fixed["law"], "by": priced_by(fixed)}, {}
    runs = [run for row in rows for run in folder.runs(row["number"], config.suffixes)]
    if rule == "pilots":
        runs.append(folder.winner)
    ledgers = {position: run / "ledger.jsonl" for position, run in enumerate(runs) if (run / "ledger.jsonl").exists()}
    terms["runs"] = len(runs)
    terms["without_ledger"] = {
        str(position): charged.to_dict() if isinstance(charged, Charges) else None
        for position, charged in enumerate(charged_runs(config, folder, rows))
        if position not in ledgers
    }
    if rule == "pilots":
        terms |= read_pilots(config, folder)
    elif "odometer" in fixed:
        terms["odometer"] = fixed["odometer"]
    else:
        terms["planned"] = [whole.to_dict() for whole in planned_charges_of(config, folder)]
    return terms, ledgers
