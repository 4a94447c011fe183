"""What a sweep found: one row per trial, the best, the Pareto front. Read from the study and the run directories.

    rows = Rows(sweep, SweepDir(root)).read(study.trials)
    write_table(rows, sweep, root / "trials.parquet")
    best(rows, sweep.metric), [row for row in rows if row["pareto"]]

Scores are of released models on evaluation text; everything here is as public as the trials are.
"""

from __future__ import annotations

import functools
import itertools
import math
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from optuna.trial import FrozenTrial, TrialState
from scipy import stats

from uedp_ray.errors import InputError
from uedp_ray.fields import Check, list_of, number, record, string
from uedp_ray.privacy.events import charges, epsilon_of_events
from uedp_ray.privacy.ledger import read_ledger
from uedp_ray.privacy.selection import TRAINS_ANEW
from uedp_ray.search.columns import COLUMNS, columns_of
from uedp_ray.search.layout import SweepDir, trial_id
from uedp_ray.search.proxies import by_seed, of_each, score_of
from uedp_ray.search.space import Dimension, share_of
from uedp_ray.search.study import REASON, outcome, refused, seconds, started
from uedp_ray.search.sweep_config import SweepConfig, laid_over
from uedp_ray.storage.files import read_json, write_atomically
from uedp_ray.storage.tables import read_bounded, refusing_damage
from uedp_ray.tasks.metric import Metric
from uedp_ray.units import UNITS

Row = dict[str, Any]

SIGNIFICANCE = 0.05
_RESTORE = "restore the sweep's copy, or search in another folder"
_ROW: dict[str, Check] = {
    "trial": string(),
    "number": number(0, whole=True),
    "state": string(),
    **dict.fromkeys(("rounds", "charged"), number(0, whole=True, nothing=True)),
    "run_dirs": list_of(string(r"trials/[\w-]{1,64}", "a run of the sweep")),
}
_PLAY = 1.005
_STATES = {TrialState.COMPLETE: "done", TrialState.FAIL: "failed", TrialState.RUNNING: "running"}


class Rows:
    """The rows of a sweep; those of ended trials are read once, and ranked when another has ended."""

    def __init__(self, sweep: SweepConfig, folder: SweepDir):
        self._sweep, self._folder = sweep, folder
        self._ended: dict[int, Row] = {}
        self._planned: dict[int, int] = {}
        """The rounds of trials that run: theirs are read whenever any trial reports."""

    def read(self, trials: Sequence[FrozenTrial]) -> list[Row]:
        """Returns one row per trial that was asked for, in order of number, ranked: to be read only, as later calls return
        the same, of a thousand trials not copied at every report."""
        rows, known = [], len(self._ended)
        for trial in trials:
            if trial.state == TrialState.WAITING:
                continue
            row = self._ended.get(trial.number)
            if row is None:
                row = _row(self._sweep, self._folder, trial, trials[0], self._planned)
                if outcome(trial).is_finished():
                    self._ended[trial.number] = row
            rows.append(row)
        if len(self._ended) > known:
            ranked(rows, self._sweep.metric)
        return rows


def _row(sweep: SweepConfig, folder: SweepDir, trial: FrozenTrial, first: FrozenTrial, planned: dict[int, int]) -> Row:
    runs = [run for run in folder.runs(trial.number, sweep.suffixes) if (run / "ledger.jsonl").exists()]
    state = _STATES.get(outcome(trial)) or ("refused" if refused(trial) else "stopped")
    since, again = started(trial, first)
    row: Row = dict.fromkeys(columns_of(sweep)) | {
        "trial": trial_id(trial.number),
        "number": trial.number,
        "state": state,
        "reason": trial.user_attrs.get(REASON),
        "feasible": state != "refused",
        "seeds": math.ceil(len(runs) / max(1, len(sweep.score_columns))),  # each on every text that is searched on
        "pareto": False,
        "delta": sweep.budget.delta,
        "unit": sweep.budget.unit,
        "started": since,
        "resumed": again,
        "seconds": seconds(trial),
        "run_dirs": [str(run.relative_to(folder.root)) for run in runs],
    }
    point = sweep.parsed_space.at(dict.fromkeys(sweep.parsed_space) | trial.params)
    row |= dict.fromkeys(sweep.parsed_space) | point
    if state in ("done", "stopped", "failed"):
        row |= _spent(sweep, runs)
    if state == "done":
        row |= _measured(sweep, folder.runs(trial.number, sweep.suffixes))
    elif state == "stopped" and trial.intermediate_values:
        row[sweep.metric.name] = trial.intermediate_values[max(trial.intermediate_values)]
    elif state == "running":  # its ledger grows
        if trial.number not in planned and point.keys() <= trial.params.keys():
            planned[trial.number] = laid_over(sweep.base, sweep, point).training.num_rounds
        rounds = planned.get(trial.number, sweep.base.training.num_rounds)  # a kill may come before it has its settings
        row |= {"rounds": max(trial.intermediate_values, default=0), "planned_rounds": rounds}
    return row | {"passes": row["rounds"] * share_of(point, sweep.base) if row["rounds"] else None}


def _spent(sweep: SweepConfig, runs: Sequence[Path]) -> Row:
    """epsilon of the run that spent most, to its planned end; rounds charged over all runs.

    On public text a lost round is trained again at no cost to anybody: epsilon is then that of a run which repeats none.
    """
    if not runs:
        return {}
    ledgers = [read_ledger(run / "ledger.jsonl") for run in runs]
    charged = sum(event["kind"] == "round" for events in ledgers for event in events)
    if sweep.search.rule == "public":
        ledgers = [_once(events) for events in ledgers]
    rounds = [[event for event in events if event["kind"] == "round"] for events in ledgers]
    delta = sweep.budget.delta
    by_unit = {unit: max(epsilon_of_events(events, delta=delta, unit=unit) for events in ledgers) for unit in UNITS}
    return {
        "epsilon": by_unit[sweep.budget.unit],
        **{f"epsilon_{unit}": epsilon for unit, epsilon in by_unit.items()},
        "rounds": max(len({event.get("round") for event in done}) for done in rounds),
        "planned_rounds": max(plan.rounds if (plan := charges(events).plan) else 0 for events in ledgers),
        "charged": charged,
        "noise_multiplier": next((event["mechanism"]["noise_multiplier"] for done in rounds for event in done), None),
    }


def _once(events: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The events without the charges of rounds that are charged again later."""
    last = {event["round"]: event["seq"] for event in events if event["kind"] == "round"}
    return [event for event in events if event["kind"] != "round" or last[event["round"]] == event["seq"]]


def _measured(sweep: SweepConfig, runs: Sequence[Path]) -> Row:
    metric = sweep.metric
    results = [_result(metric, run / "result.json") for run in runs]
    scores = [result[metric.name] for result in results]
    seeds = by_seed(sweep, scores)
    return {
        **{name: statistics.fmean(result[name] for result in results) for name in metric.names},
        metric.name: score_of(sweep, scores),
        **of_each(sweep, scores),
        metric.spread: statistics.stdev(seeds) if len(seeds) > 1 else None,
        **{name: _reference(sweep, name, results) for name in metric.references},
        "rounds": min(result["rounds"] for result in results),
        "scores": seeds,
    }


def _reference(sweep: SweepConfig, name: str, results: Sequence[Row]) -> float | None:
    """One of ``metric.references``, over the runs as the score beside it is; None if a run does not know it."""
    known = [value for result in results if (value := result.get(name)) is not None]
    if len(known) < len(results):
        return None
    return score_of(sweep, known) if name == sweep.metric.initial else statistics.fmean(known)


def _result(metric: Metric, path: Path) -> dict[str, Any]:
    """Reads the result of a finished run. Raises: InputError if it is missing or damaged: the run is not trained again."""
    checks = metric.checks_of_run(nothing=False) | {"rounds": number(0, whole=True)}
    return read_json(path, checks, _RESTORE)


def read_rows(path: Path, metric: Metric, remedy: str) -> list[Row]:
    """Reads the rows of a sweep's ``result.json``. Raises: InputError with the ``remedy`` if no sweep writes such rows."""
    row_checks = record(_ROW | {metric.name: number(metric.least, nothing=True)})
    rows: list[Row] = read_json(path, {"trials": list_of(row_checks)}, remedy)["trials"]
    for row in rows:
        if row["state"] == "done" and (row[metric.name] is None or not row["run_dirs"]):
            raise InputError(path.name, str(path), f"is damaged (trial {row['trial']}): {remedy}")
    return rows


def ranked(rows: list[Row], metric: Metric) -> list[Row]:
    """Marks the Pareto front and, with several seeds, what cannot be told apart from the best."""
    done = [row for row in rows if row["state"] == "done"]
    _mark_pareto(done, metric)
    first = best(rows, metric)
    if first is not None and len(first["scores"]) > 1:
        for row in done:
            row["tied_with_best"] = row is first or not _differ(tuple(first["scores"]), tuple(row["scores"]), metric)
    return rows


def best(rows: Iterable[Row], metric: Metric) -> Row | None:
    """Returns the trial with the best (mean) score among those trained to their end."""
    done = (row for row in rows if row["state"] == "done")
    return min(done, key=lambda row: metric.cost(row[metric.name]), default=None)


def stated(rows: Sequence[Row], sweep: SweepConfig) -> Row | None:
    """Returns the best trial as in ``result.json``, before its choice is paid for; its run directory is within the sweep's.

    None if no trial was trained to its end.
    """
    metric = sweep.metric
    found = best(rows, metric)
    if found is None:
        return None
    of_trial = (
        "trial",
        *metric.names,
        *metric.references,
        metric.spread,
        "seeds",
        "noise_multiplier",
        "rounds",
        "planned_rounds",
    )
    tied = [row["trial"] for row in rows if row["tied_with_best"] and row is not found]
    return {
        **{key: found[key] for key in of_trial},
        "epsilon": {unit: found[f"epsilon_{unit}"] for unit in UNITS},
        "epsilon_with_choice": None,
        "delta": sweep.budget.delta,
        "unit": sweep.budget.unit,
        "params": sweep.parsed_space.at(found),
        "run_dir": min(found["run_dirs"]),
        "tied": None if found["tied_with_best"] is None else tied,
    }


def _mark_pareto(done: Sequence[Row], metric: Metric) -> None:
    """Marks trials than which none is better in score or epsilon and no worse in the other. Calibration leaves epsilon some
    slack: one that is dearer by no more than that is no worse, and one that is cheaper by no more than that no better.

    Of all with a better score, and of all with one as good, the cheapest alone decides.
    """
    better, as_good = math.nan, math.inf  # there is none; not one of an infinite epsilon
    alike: list[Row] = []

    def spent(row: Row) -> float:
        return math.inf if row["epsilon"] is None else float(row["epsilon"])  # its ledger is missing

    def mark() -> None:
        for row in alike:
            row["pareto"] = not (better <= spent(row) * _PLAY or as_good * _PLAY < spent(row))

    for row in sorted(done, key=lambda row: metric.cost(row[metric.name])):
        if alike and metric.cost(row[metric.name]) > metric.cost(alike[0][metric.name]):
            mark()
            better, alike = as_good, []
        alike.append(row)
        as_good = min(as_good, spent(row))
    mark()


@functools.lru_cache(maxsize=1 << 14)
def _differ(one: tuple[float, ...], other: tuple[float, ...], metric: Metric) -> bool:
    """Welch's t-test: whether means this far apart are rare if the two configurations are alike. Ratios: on their logs."""
    compared = [[math.log(score) if metric.ratio else score for score in scores] for scores in (one, other)]
    return bool(stats.ttest_ind(*compared, equal_var=False).pvalue < SIGNIFICANCE)


def write_table(rows: Sequence[Row], sweep: SweepConfig, path: Path) -> None:
    """Writes ``trials.parquet``: one row per trial, one column per searched setting."""
    columns = columns_of(sweep) | {key: _type(dimension) for key, dimension in sweep.parsed_space.items()}
    cells = [_cells([row.get(name) for row in rows], kind) for name, kind in columns.items()]
    buffer = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_arrays(cells, schema=pa.schema(list(columns.items()))), buffer)
    write_atomically(path, buffer.getvalue().to_pybytes())


def read_columns(path: Path, columns: Sequence[str], remedy: str) -> list[Row]:
    """Reads these columns of ``trials.parquet``, every row; empty if it is missing, since no price follows from it.

    Raises: InputError with the ``remedy`` if no sweep writes such a table.
    """
    if not path.exists():
        return []
    refusal = InputError(path.name, str(path), f"is damaged: {remedy}")
    with refusing_damage(refusal):
        table = read_bounded(path, remedy)
        if table is None or any(table.schema.field(name).type != COLUMNS[name] for name in columns):
            raise refusal
        rows: list[Row] = table.select(list(columns)).to_pylist()
    return rows


def _type(dimension: Dimension) -> pa.DataType:
    """Returns the column type of a setting: that of its values, or text if choices are mixed."""
    if dimension.kind != "choice":
        return pa.int64() if dimension.kind == "integer" else pa.float64()
    kinds = {type(value) for value in dimension.values if value is not None}
    if kinds == {bool}:
        return pa.bool_()
    if kinds == {int}:
        return pa.int64()
    return pa.float64() if kinds and kinds <= {int, float} else pa.string()


def _cells(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    told = [None if value is None else str(value) for value in values] if kind == pa.string() else values
    return pa.array(told, kind)


def count_states(rows: list[Row]) -> dict[str, int]:
    """Counts trials by state; ``asked`` counts the refused too."""
    states = [row["state"] for row in rows]
    return {"asked": len(rows)} | {
        state: states.count(state) for state in ("done", "stopped", "failed", "refused", "running")
    }


def progress(rows: list[Row], wanted: int, sweep: SweepConfig, *, count_refused: bool) -> dict[str, Any]:
    """Returns what the live line shows of a search for so many trials: their states, and the best so far.

    In passes over the text, of which trials take more or less: ``under_way``, of the trials that run; ``trained``, of them
    and of those that ended, though of a trial that runs only its first run is known; ``whole``, of all that are wanted:
    the others are supposed to be as those, and stopped as early. ``count_refused``: whether a refused one is wanted.
    ``then_winner``: whether a winner is trained after them.
    """
    metric, runs = sweep.metric, len(sweep.suffixes)
    found = best(rows, metric)
    asked = [row for row in rows if row["state"] != "refused"]
    trained = [row["passes"] or 0.0 for row in asked]
    planned = [
        row["planned_rounds"] / row["rounds"] * row["passes"]  # of a thousand that ended no point is read again
        if row["rounds"] and row["planned_rounds"] and row["passes"]
        else (row["planned_rounds"] or 0) * share_of(sweep.parsed_space.at(row), sweep.base)
        for row in asked
    ]
    runs_now = [row["state"] == "running" for row in asked]
    begun, meant = (sum(itertools.compress(each, runs_now)) for each in (trained, planned))
    ended, of_plan = sum(trained) - begun, sum(planned) - meant
    under_way = max(begun, meant * (ended / of_plan if ended and of_plan else 1.0))
    to_come = max(0, wanted - len(rows if count_refused else asked))
    usual = (ended + under_way) / len(asked) if asked else 0.0
    return {
        **count_states(rows),
        "wanted": wanted,
        "under_way": under_way,
        "trained": ended + begun / runs,
        "whole": ended + under_way + usual * to_come,
        "then_winner": sweep.search.rule in TRAINS_ANEW,
        "best": found and {key: found[key] for key in ("trial", *metric.names, *metric.references, "epsilon", "unit")},
    }
