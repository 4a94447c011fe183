"""Sweeps small enough to repeat."""

from __future__ import annotations

import copy
from collections.abc import Collection
from pathlib import Path
from typing import Any, cast

import optuna
import pyarrow.parquet as pq
import yaml
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import TrialState, create_trial

from tests.training.runs import run_tree
from uedp_ray.plan import Plan
from uedp_ray.privacy.ledger import Ledger
from uedp_ray.reporting import SILENT, Reporter
from uedp_ray.search.feasibility import alone, judge
from uedp_ray.search.finalize import finalize
from uedp_ray.search.layout import SweepDir
from uedp_ray.search.proxies import searched_bases
from uedp_ray.search.results import Rows
from uedp_ray.search.selection_cost import fix_terms, planned_points
from uedp_ray.search.shared import prepare_shared
from uedp_ray.search.study import NAME
from uedp_ray.search.sweep_config import SweepConfig, dump_sweep_config, load_sweep_config
from uedp_ray.search.trial import _train
from uedp_ray.storage.files import make_folder

SPACE: dict[str, Any] = {
    "privacy.user_sampling_prob": {"uniform": [0.2, 0.6]},
    "training.num_rounds": {"integer": [2, 4]},
    "training.server_learning_rate": {"log_uniform": [0.001, 0.1]},
}
PRETRAIN = {"text": [{"format": "synthetic", "num_users": 8, "part": "public"}], "num_steps": 20, "batch_size": 8}


def sweep_tree(corpora: Path, **sections: Any) -> dict[str, Any]:
    """The YAML tree of a sweep on the prepared corpora; sections overlay it."""
    base = run_tree(corpora)
    base["privacy"] = {"user_sampling_prob": 0.3}
    tree = {
        "base": base,
        "space": copy.deepcopy(SPACE),
        "budget": {"target_epsilon": 8.0, "delta": 1e-4, "covers": "each_trial"},
        "search": {"searcher": "tpe", "trials": 3},
        "resources": {"max_concurrent": 1},  # a second process of trials takes longer to start than three trials take
    }
    for name, section in sections.items():
        tree[name] = section if name == "space" else {**tree.get(name, {}), **section}
    return tree


def write_sweep(tree: dict[str, Any], folder: Path) -> Path:
    path = folder / "sweep.yaml"
    path.write_text(yaml.safe_dump(tree, sort_keys=False))
    return path


def sweep_config(corpora: Path, folder: Path, **sections: Any) -> SweepConfig:
    return load_sweep_config(write_sweep(sweep_tree(corpora, **sections), folder))


class Here:
    """``Beside`` in this process."""

    def __init__(self, *_: Any):
        pass

    def __enter__(self) -> Here:
        return self

    def __exit__(self, *_: Any) -> None:
        pass

    def open(self) -> list[Any]:
        return []

    def run(self, work: Any, *arguments: Any, reporter: Reporter = SILENT) -> Any:
        return work(*arguments, reporter)


def search_here(config: SweepConfig, out: Path, points: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    """A whole sweep in this process, without Ray: these points, or as the rule fixes them, or spread by number."""
    folder = SweepDir(out)
    make_folder(folder.private, private=True)
    dump_sweep_config(config, folder.config)
    fix_terms(config, folder)
    prepare_shared(config, searched_bases(config), folder, cast("Any", Here()), SILENT)
    points = points or planned_points(config, folder)
    if points is None:
        rates = [0.01 * (1 + number) for number in range(config.num_trials)]
        points = [{"privacy.user_sampling_prob": 0.3, "training.server_learning_rate": rate} for rate in rates]
    for number, point in enumerate(points):
        _train(config, folder, number, point, lambda row: None, 0.0)
    return finalize_here(config, out, points)


def finalize_here(
    config: SweepConfig,
    out: Path,
    points: list[dict[str, Any]],
    failed: Collection[int] = (),
    running: Collection[int] = (),
    stopped: Collection[int] = (),
) -> dict[str, Any]:
    """The end of a sweep that tried these points."""
    folder = SweepDir(out)
    trials: list[Any] = []
    for number, point in enumerate(points):
        ended = {"state": TrialState.FAIL} if number in failed else {"value": 1.0}
        ended = {"state": TrialState.RUNNING} if number in running else ended
        ended = {"state": TrialState.PRUNED} if number in stopped else ended
        trials.append(create_trial(params=point, distributions=_distributions(config, point), **ended))
        trials[-1].number = number
    return finalize(config, folder, Rows(config, folder).read(trials), Here(), SILENT)


def _distributions(config: SweepConfig, point: dict[str, Any]) -> dict[str, Any]:
    kinds = {"integer": IntDistribution, "choice": lambda *choices: CategoricalDistribution(choices)}
    dimensions = {key: config.parsed_space[key] for key in point}
    return {key: kinds.get(each.kind, FloatDistribution)(*each.values) for key, each in dimensions.items()}


def journal(out):
    storage = optuna.storages.JournalStorage(optuna.storages.journal.JournalFileBackend(str(out / "study.journal")))
    return optuna.load_study(study_name=NAME, storage=storage).trials


def journal_states(out):
    return [trial.state.name for trial in journal(out)]


def table(out):
    return pq.read_table(out / "trials.parquet").to_pylist()


def write_ledgers(sweep, folder, points, *, rounds=None):
    """What trials at these points leave when all goes well, or after fewer or more rounds."""
    for trial, point in enumerate(points):
        config = judge(sweep, point, alone(sweep)).config
        for run in folder.runs(trial, sweep.suffixes):
            run.mkdir(parents=True)
            plan = Plan.of(config)
            ledger = Ledger.create(run / "ledger.jsonl", plan.header())
            for release in plan.header()["plan"]["releases"]:
                ledger.append(**release)
            for number in range(config.training.num_rounds)[:rounds]:
                ledger.append(**plan.event(round_index=number, attempt=0))


def rows(count, sweep=None, point=None, state="done"):
    return [dict.fromkeys(sweep.parsed_space if sweep else ()) | (point or {}) | {"number": number, "state": state}
            for number in range(count)]  # fmt: skip
