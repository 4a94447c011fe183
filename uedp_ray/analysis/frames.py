"""A sweep directory as typed pandas frames, with the configs and verified ledgers of its runs.

    sweep = load_sweep("runs/quickstart")
    sweep.trials[sweep.trials.state == "done"].sort_values("perplexity")
    sweep.config(sweep.best["trial"]).privacy.user_sampling_prob
    rank([sweep, load_sweep("runs/other")])        # refused unless unit and delta agree

``trials`` has one row per trial. dtypes: ``trial state reason method unit`` string; ``number`` int64;
``seeds rounds charged`` Int64; ``feasible tied_with_best pareto`` boolean; ``perplexity perplexity_std bits_per_byte
unk_share initial_perplexity initial_bits_per_byte bzip2_bits_per_byte epsilon epsilon_user-entity epsilon_user
epsilon_entity delta noise_multiplier started resumed seconds passes`` float64; ``run_dirs`` lists of text. ``started`` is
when a trial was started, ``resumed`` when it was last started once more, both in seconds since the search began, and
``seconds`` the time from its first start to its end. ``passes`` is the work of one run, in passes over the text: its rounds
times q_u. A searched setting has a column with its dotted name: float64 for ranges, Int64 for integers, as written for
choices.
A missing value is null (NaN); an infinite ``epsilon`` means no guarantee, a null one is not known.
``no_search`` is the row of no trial: the base's own settings with the whole budget (``search.no_search``).

What is in the frames is as public as the sweep: under rule ``repeat_and_select`` only the winner is. Times are never
public: they may depend on the private text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from uedp_ray.analysis.axes import point_of
from uedp_ray.analysis.files import (
    NULLABLE,
    UNITS,
    check_columns,
    check_least,
    holds,
    inside,
    read_result,
    read_table,
    run_dir,
    typed,
)
from uedp_ray.config import RunConfig, load_config, to_dict
from uedp_ray.errors import InputError
from uedp_ray.privacy.ledger import read_ledger
from uedp_ray.search.columns import COLUMNS, TIMES, columns_of
from uedp_ray.search.ended import holds_all
from uedp_ray.search.no_search import no_search
from uedp_ray.search.proxies import agreement
from uedp_ray.search.space import Space, share_of
from uedp_ray.search.sweep_config import SweepConfig, load_kept
from uedp_ray.tasks.metric import Metric
from uedp_ray.tasks.metrics import metric_in

_DTYPES = {kind: dtype.name for kind, dtype in NULLABLE.items()}
_DTYPES |= {pa.float64(): "float64", pa.list_(pa.string()): "object"}
_LEAST = {
    **dict.fromkeys(("epsilon", *(f"epsilon_{unit}" for unit in UNITS), "noise_multiplier"), 0.0),
    **dict.fromkeys(("number", "seeds", "rounds", "charged"), 0),
}
_STATES = ("done", "stopped", "failed", "refused", "running")
_RANGES = {"uniform": "float64", "log_uniform": "float64", "integer": "Int64"}


@dataclass(frozen=True, eq=False)
class Sweep:
    """The content of a sweep directory. Made by ``load_sweep``."""

    path: Path
    name: str
    sweep_config: SweepConfig
    """``sweep.yaml``."""
    trials: pd.DataFrame
    counts: Mapping[str, int]
    """Points tried (``asked``), and how many are in each state."""
    best: Mapping[str, Any] | None
    """As in ``result.json``; for a sweep that is not finished, the best so far; None if no trial is done."""
    best_run: Path | None
    """The run directory of the chosen model."""
    selection: Mapping[str, Any]
    """The price of choosing: rule, epsilon, delta, unit, accountant, settled_by_results, releasable, text."""
    references: pd.DataFrame
    """name (string), the metric (float64), epsilon (float64: 0 for public-only, NaN for no guarantee)."""
    no_search: Mapping[str, Any]
    """The base's own settings with the whole budget, as in ``result.json``; computed from the other files."""
    finished: bool
    """Whether ``result.json`` exists and covers all trials."""
    winner_trained: Mapping[str, Any] | None = None
    """When the winner's own training ``started``, and its ``seconds``, as a trial's; None without one, or not known."""
    published_space: Space | None = None
    """The space without paths, for a sweep as others may see it (``publish.publishable``)."""

    @property
    def relation(self) -> str:
        """The neighbouring relation as statements print it."""
        return f"zero-out ({'declared' if self.sweep_config.base.bounds.mode == 'declared' else 'fixed graph'})"

    @property
    def space(self) -> Space:
        """The searched settings by dotted key."""
        return self.sweep_config.parsed_space if self.published_space is None else self.published_space

    @property
    def metric(self) -> Metric:
        """What trials are compared by: the name of its column, and which way is better."""
        return self.sweep_config.metric

    @property
    def unit(self) -> str:
        """Whose epsilon the budget bounds."""
        return self.sweep_config.budget.unit

    @property
    def delta(self) -> float:
        return self.sweep_config.budget.delta

    @property
    def target_epsilon(self) -> float:
        return self.sweep_config.budget.target_epsilon

    def folder_of(self, row: pd.Series) -> str:
        """The folder of a trial's first run for a link, relative to the sweep's; empty if it never ran, and for others."""
        names = row["run_dirs"]
        linked = self.published_space is None and names is not None and len(names)
        return f"{names[0]}/" if linked else ""

    @property
    def agreement(self) -> list[dict[str, Any]]:
        """Whether the proxies of rule ``public`` rank trials alike: rank_correlation of each pair of ``proxies``."""
        return agreement(self.sweep_config, self.trials.to_dict("records"))

    @property
    def pareto(self) -> pd.DataFrame:
        """Trials that no other beats in both epsilon and score, by epsilon."""
        return self.trials[self.trials["pareto"].fillna(False)].sort_values("epsilon")

    def front(self, *axes: str) -> pd.DataFrame:
        """Finished trials that no other beats in the score and in every one of ``axes`` together, best first.

        Args:
          axes: columns of which less is better, such as ``passes``; ``"epsilon", "passes"`` makes a front of three axes.
        """
        trials = best_first(finished_trials(self.trials))
        costs = trials[[*axes]].assign(cost=trials[self.metric.name].map(self.metric.cost)).to_numpy(float)
        beaten = [bool(((costs <= one).all(1) & (costs < one).any(1)).any()) for one in costs]
        return trials[~np.array(beaten, dtype=bool)]

    def run_dirs(self, trial: str) -> list[Path]:
        """Returns a trial's run directories, one per seed and proxy. Raises: InputError if it is unknown, or never ran."""
        rows = self.trials[self.trials["trial"] == trial]
        if rows.empty:
            raise InputError("trial", trial, f"is not in {self.path.name}: see the column trial")
        names = rows["run_dirs"].iloc[0]
        if names is None or not len(names):
            raise InputError("trial", trial, f"was {rows['state'].iloc[0]}: it has no run directory")
        return [run_dir(self.path, name) for name in names]

    def config(self, trial: str, seed: int = 0) -> RunConfig:
        """Returns the run's resolved configuration; runs of one trial differ in ``training.seed``."""
        return load_config(self._file(self.run_dirs(trial)[seed], "config.yaml"))

    def ledger(self, trial: str, seed: int = 0) -> list[dict[str, Any]]:
        """Returns every event of the run, its digest chain verified. Raises: InputError naming the first line that fails."""
        return read_ledger(self._file(self.run_dirs(trial)[seed], "ledger.jsonl"))

    def ledger_files(self) -> list[Path | None]:
        """Returns the ledger of every run of every trial, at its fixed position; None for a run that never started."""
        runs = len(self.sweep_config.suffixes)
        found: list[Path | None] = []
        for names in self.trials["run_dirs"]:
            found += [self._file(run_dir(self.path, name), "ledger.jsonl") for name in names]
            found += [None] * (runs - len(names))
        return found

    def rounds(self, trial: str) -> pd.DataFrame:
        """Reads ``rounds.parquet`` of all runs, with columns ``seed`` and ``proxy``; empty before the first checkpoint."""
        known = {f"{trial}{run.suffix}": run for run in self.sweep_config.runs_of_trial}
        files = [(folder.name, self._file(folder, "rounds.parquet")) for folder in self.run_dirs(trial)]
        frames = [
            _read_rounds(self.path, file, self.metric).assign(seed=known[name].seed, proxy=known[name].proxy)
            for name, file in files
            if name in known and file.exists()
        ]
        empty = pd.DataFrame(columns=["round", self.metric.name, "seed", "proxy"], dtype="float64")
        return pd.concat(frames, ignore_index=True) if frames else empty

    def _file(self, folder: Path, name: str) -> Path:
        return inside(self.path, str(folder.relative_to(self.path) / name))


def load_sweep(path: str | Path) -> Sweep:
    """Reads a sweep directory or a copy of one, finished or not. The text that its trials read need not be there.

    A sweep that was given more trials is not finished until it ends again: its ``result.json`` states an old price.
    It may be somebody else's: nothing outside the folder is read, and what no sweep writes is refused.

    Raises: InputError if the folder is not one, or if another version wrote what this one does not know.
    """
    path = Path(path)
    if not ((path / "sweep.yaml").is_file() and (path / "trials.parquet").is_file()):
        remedy = (
            "is not a sweep directory: name a folder with sweep.yaml and trials.parquet, as uedp-ray sweep writes it"
        )
        raise InputError("sweep", str(path), remedy)
    config = load_kept(inside(path, "sweep.yaml"), inside(path, "selection.json"))
    table = _completed(read_table(path, "trials.parquet"), config.metric)
    trials = _checked_trials(path, table, config)
    trials["passes"] = _passes(trials, config)
    result = read_result(path, config) if (path / "result.json").is_file() else None
    states = set(zip(trials["trial"], trials["state"], strict=True))
    finished = result is not None and holds_all(result["trials"], states, inside(path, "trials"))
    if result is None or not finished:
        result = _so_far(table, config)
    references = pd.DataFrame(result["references"], columns=["name", config.metric.name, "epsilon"])
    return Sweep(
        path=path,
        name=path.resolve().name,
        sweep_config=config,
        trials=trials,
        counts=result["counts"],
        best=result["best"],
        best_run=None if result["best"] is None else run_dir(path, result["best"]["run_dir"]),
        selection=result["selection"],
        no_search=no_search(config, table.to_pylist(), result["best"]),
        references=references.astype({"name": "string", config.metric.name: "float64", "epsilon": "float64"}),
        finished=finished,
        winner_trained=result["winner_trained"],
    )


def _completed(table: pa.Table, metric: Metric) -> pa.Table:
    """The table with an empty column for what earlier versions did not keep."""
    for key in (*metric.references[1:], *TIMES):
        if key not in table.column_names:
            table = table.append_column(key, pa.nulls(table.num_rows, pa.float64()))
    return table


def _passes(trials: pd.DataFrame, config: SweepConfig) -> pd.Series:
    """The rounds of one run of each trial, times the probability with which a round draws a user."""
    shares = [share_of(point_of(config.parsed_space, row), config.base) for _, row in trials.iterrows()]
    return trials["rounds"].astype("float64") * pd.Series(shares, index=trials.index, dtype="float64")


def join(sweeps: Sequence[Sweep]) -> pd.DataFrame:
    """Concatenates all trials, with the column ``sweep`` first. For reading: see ``rank`` for comparing."""
    names = [sweep.name for sweep in sweeps]
    labels = [str(sweep.path) if names.count(sweep.name) > 1 else sweep.name for sweep in sweeps]
    frames = [sweep.trials.assign(sweep=label) for label, sweep in zip(labels, sweeps, strict=True)]
    joined = pd.concat(frames, ignore_index=True).astype({"sweep": "string"})
    return joined[["sweep", *(name for name in joined.columns if name != "sweep")]]


def rank(sweeps: Sequence[Sweep]) -> pd.DataFrame:
    """Returns finished, feasible trials of all sweeps, best first.

    Raises: InputError as ``check_comparable`` does, and for trials that were scored on other text, as under rule ``public``.
    """
    check_comparable(sweeps)
    first, *others = sweeps
    for other in others:
        if _scored_on(other) != _scored_on(first):
            remedy = (
                f"are of other text than those of {first.name}: compare what each may hand on (figures.joint_pareto)"
            )
            raise InputError(f"trials of {other.name}", f"rule {other.sweep_config.search.rule}", remedy)
    return best_first(finished_trials(join(sweeps)))


def check_comparable(sweeps: Sequence[Sweep]) -> None:
    """Raises: InputError unless one axis fits all: same unit and delta for epsilon, same task, text and words for scores."""
    first, *others = sweeps
    for other in others:
        for what, theirs, ours in zip(_SCALES, _scale(other), _scale(first), strict=True):
            if theirs != ours:
                theirs, ours = _apart(theirs, ours), _apart(ours, theirs)
                remedy = f"{first.name} has {ours}; sweeps that differ in {what} are joined for reading, never ranked"
                raise InputError(f"{what} of {other.name}", theirs, remedy)


def _apart(value: Any, other: Any) -> Any:
    """The value, or of a section what differs from the other."""
    if not (isinstance(value, Mapping) and isinstance(other, Mapping)):
        return value
    return {key: each for key, each in value.items() if other.get(key) != each}


def _scored_on(sweep: Sweep) -> list[dict[str, Any]]:
    """The evaluation text of the trials, where it is not that of the answer."""
    each = sweep.sweep_config.search.proxies.values()
    return [{key: value for key, value in one.items() if key.startswith("corpus.evaluation")} for one in each]


_SCALES = ("task", "unit", "relation", "protected categories", "delta", "evaluation text", "vocabulary", "max_length")


def _scale(sweep: Sweep) -> tuple[Any, ...]:
    base = to_dict(sweep.sweep_config.base)
    text, words, length = base["corpus"]["evaluation"], base["vocabulary"], base["model"]["max_length"]
    protected = sweep.sweep_config.common_categories or base["corpus"]["categories"]
    protected = [] if sweep.unit == "user" else list(protected)
    return base["task"], sweep.unit, sweep.relation, protected, sweep.delta, text, words, length


def finished_trials(trials: pd.DataFrame) -> pd.DataFrame:
    """Returns trials that ran to their end within the budget, and have a score."""
    scored = trials[metric_in(trials.columns).name].notna()
    return trials[(trials["state"] == "done") & trials["feasible"].fillna(False) & scored]


def best_first(trials: pd.DataFrame) -> pd.DataFrame:
    """Sorts trials by score, best first, and renumbers them."""
    metric = metric_in(trials.columns)
    return trials.sort_values(metric.name, ascending=metric.goal == "min", ignore_index=True)


def _checked_trials(path: Path, table: pa.Table, config: SweepConfig) -> pd.DataFrame:
    """Returns the table as a frame. Raises: InputError for columns, types, states, runs or settings that no sweep writes."""
    space, metric = config.parsed_space, config.metric
    dtypes = {name: _DTYPES[kind] for name, kind in columns_of(config).items()} | {"number": "int64"}
    check_columns("trials.parquet", path, table, (*dtypes, *space))
    ranges = {key: _RANGES[each.kind] for key, each in space.items() if not each.is_choice}
    kind = table.schema.field("run_dirs").type
    if kind not in (pa.null(), pa.list_(pa.null()), COLUMNS["run_dirs"]):
        raise InputError(
            "trials.parquet: run_dirs", str(kind)[:60], "has a column of another type: expected lists of text"
        )
    frame = typed("trials.parquet", path, table, dtypes | ranges)
    for key, dimension in space.items():
        for value in frame[key].dropna():
            if not holds(dimension, value):
                raise InputError(
                    f"trials.parquet: {key}", str(value)[:60], "was not searched: it is not from this sweep"
                )
    for column, fits, remedy in (
        ("state", frame["state"].isin(_STATES), f"is not a state: expected one of {', '.join(_STATES)}"),
        ("trial", frame["trial"].str.fullmatch(r"[\w-]{1,64}").fillna(False), "is not the name of a trial"),
    ):
        if not fits.all():
            raise InputError(f"trials.parquet: {column}", str(frame[column][~fits].iloc[0])[:60], remedy)
    least = {score.name: score.least for score in metric.scores} | {metric.spread: 0.0}
    least |= {each.initial: each.least for each in metric.metrics}
    least |= dict.fromkeys(config.score_columns.values(), metric.least)
    check_least("trials.parquet", frame, _LEAST | least)
    done = frame[frame["state"] == "done"]
    for column, lacks in (
        (metric.name, done[metric.name].isna()),
        ("run_dirs", done["run_dirs"].map(lambda names: names is None or len(names) == 0).astype(bool)),
    ):
        if lacks.any():
            trial = done["trial"][lacks].iloc[0]
            raise InputError(f"trials.parquet: {column}", None, f"is missing, but trial {trial} is done")
    for names in frame["run_dirs"]:
        for name in () if names is None else names:
            run_dir(path, name)
    return frame


def _read_rounds(root: Path, path: Path, metric: Metric) -> pd.DataFrame:
    name, least = str(path.relative_to(root)), {"round": 0, metric.name: metric.least}
    table = read_table(root, name)
    check_columns(name, root, table, least)
    once = [field.name for field in table.schema if table.column_names.count(field.name) == 1]
    kept = [each for each in once if pa.types.is_floating(table.schema.field(each).type) or each in least]
    frame = typed(name, root, table.select(kept), {"round": "int64", metric.name: "float64"})
    check_least(name, frame, least)
    return frame


def _so_far(table: pa.Table, config: SweepConfig) -> dict[str, Any]:
    """Returns what ``result.json`` will hold, as far as it is known before the sweep ends."""
    from uedp_ray.search.results import count_states, stated  # loads the trainer

    rows = table.to_pylist()
    return {
        "best": stated(rows, config),
        "counts": count_states(rows),
        "selection": {
            "rule": config.search.rule,
            "epsilon": None,
            "delta": config.budget.delta,
            "unit": config.budget.unit,
            "accountant": "none yet",
            "settled_by_results": False,
            "releasable": "nothing yet: the sweep is not finished, and its price is not settled",
            "text": "The price of choosing is computed when the sweep ends.",
        },
        "references": [],
        "winner_trained": None,
    }
