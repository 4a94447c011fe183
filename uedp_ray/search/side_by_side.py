"""Runs that are trained side by side as trials of Ray Tune, fixed beforehand; each in a run directory of its own.

A run whose process died is started again, and resumes from its own checkpoint and ledger; so does every run after Ctrl-C or
a kill. No searcher decides anything, so nothing is kept of Tune's own state.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ray.tune.callback import Callback

from uedp_ray.config import RunConfig, to_dict
from uedp_ray.config.io import named_variables
from uedp_ray.errors import InputError
from uedp_ray.reporting import Reporter
from uedp_ray.search.disk import too_full
from uedp_ray.search.gpus import gpus_of_worker, idle
from uedp_ray.search.preflight import RayCluster, check_cluster
from uedp_ray.search.sections import ResourceConfig
from uedp_ray.search.trial import DEVICE, DISK, DONE, FAILED, failure_of
from uedp_ray.search.tuning import run_trials
from uedp_ray.storage.files import make_folder
from uedp_ray.tasks.metrics import metric_of
from uedp_ray.training.host import train
from uedp_ray.training.paths import TEXT
from uedp_ray.training.rundir import RunDir

_TOLD = 5
"""Lines about the rounds of one run, at most."""


def train_side_by_side(runs: Mapping[str, RunConfig], out: Path, *, workers: int, reporter: Reporter) -> None:
    """Trains those of ``runs``, by folder under ``out``, that have no result; an open Ray session decides how many at once.

    ``workers``: of each run; 1 trains inside the trial's process, more form a Ray Train group.
    Raises: InputError, OSError or RuntimeError for the first of those that failed, when all others ended;
      KeyboardInterrupt on Ctrl-C. Then the same call continues.
    """
    from ray import tune

    left = [folder for folder in runs if not RunDir(out / folder).result.exists()]
    if not left:
        return
    devices, resources = {runs[folder].training.device for folder in left}, ResourceConfig(workers_per_trial=workers)
    nodes = RayCluster().nodes()
    gpus = gpus_of_worker(resources, devices.pop() if len(devices) == 1 else "auto", nodes, wanted=len(left))
    room = check_cluster(
        workers_per_trial=workers, cpus_per_worker=resources.cpus_per_worker, gpus_per_worker=gpus, storage=out
    )
    at_once = min(room.trials_at_once, len(left))
    first = runs[left[0]]
    for warning in (*room.warnings, idle(nodes, at_once * workers, gpus), too_full(first, len(left), out)):
        if warning:
            reporter.say(warning)
    reporter.say(f"training: {len(left)} runs, {at_once} at once{f', {gpus:g} GPU each' if gpus else ''}")

    def trainable(trial: dict[str, Any]) -> None:
        folder = trial["folder"]

        class Told(Reporter):
            def say(self, line: str) -> None:
                if line.startswith("caution: "):
                    tune.report({"said": line})

            def evaluated(self, row: dict[str, Any]) -> None:
                tune.report({key: value for key, value in row.items() if value is not None})

        outcome, reason = DONE, ""
        try:
            train(
                runs[folder],
                out / folder,
                workers=0 if workers == 1 else workers,
                cpus_per_worker=resources.cpus_per_worker,
                gpus_per_worker=gpus,
                resume=RunDir(out / folder).config.exists(),
                text=out / "corpora" / TEXT,
                part_of="comparison",
                reporter=Told(),
            )
        except Exception as error:
            outcome, reason = failure_of(error)
            if outcome == DEVICE:  # this process is no longer usable: another one tries again
                raise
        tune.report({"outcome": outcome, "reason": reason})

    ended = _Ended(runs, len(left), reporter)
    make_folder(out / "tensorboard", private=True)  # which has the scores of all runs
    run_trials(
        trainable,
        resources,
        gpus,
        variables=named_variables([to_dict(runs[folder]) for folder in left]),
        logs=out / "tensorboard",
        callbacks=[ended],
        points={"folder": tune.grid_search(left)},
        max_concurrent_trials=at_once,
        trial_name_creator=_name,
        trial_dirname_creator=_name,
    )
    for folder in left:
        if folder not in ended.outcomes and not ended.failed:
            raise KeyboardInterrupt
    for folder, (outcome, reason) in ended.failed.items():
        then = "what others released is kept: fix that and run again with --resume"
        if outcome == FAILED:
            raise InputError(folder, outcome, f"{reason}; {then}")
        raise (OSError if outcome == DISK else RuntimeError)(f"{folder}: {reason}; {then}")


class _Ended(Callback):
    """Tells of rounds and ends, and keeps how runs ended."""

    def __init__(self, runs: Mapping[str, RunConfig], wanted: int, reporter: Reporter):
        self._runs, self._wanted, self._reporter = runs, wanted, reporter
        self._fifth: dict[str, int] = {}
        self.outcomes: dict[str, tuple[str, str]] = {}

    @property
    def failed(self) -> dict[str, tuple[str, str]]:
        return {folder: ended for folder, ended in self.outcomes.items() if ended[0] != DONE}

    def on_trial_result(self, iteration: int, trials: list[Any], trial: Any, result: dict[str, Any], **_: Any) -> None:
        folder = trial.config["folder"]
        if "outcome" in result:
            self._end(folder, result["outcome"], result["reason"])
        elif "said" in result:
            self._reporter.say(result["said"])
        elif "round" in result:
            metric, rounds = metric_of(self._runs[folder]), self._runs[folder].training.num_rounds
            fifth = result["round"] * _TOLD // max(1, rounds)
            if self._fifth.setdefault(folder, 0) < fifth < _TOLD:
                self._fifth[folder] = fifth
                score = f", {metric.say(result[metric.name])}" if metric.name in result else ""
                self._reporter.say(f"{folder}: round {result['round']}/{rounds}{score}")

    def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **_: Any) -> None:
        self._end(trial.config["folder"], "crashed", "its process died, and died again after a restart")

    def _end(self, folder: str, outcome: str, reason: str) -> None:
        self.outcomes[folder] = outcome, reason
        self._reporter.say(f"{len(self.outcomes)} of {self._wanted} runs: {folder} {outcome}")

    def __getstate__(self) -> dict[str, Any]:  # Tune pickles its callbacks, which are of use here alone
        return {}


def _name(trial: Any) -> str:
    return str(trial.config["folder"])
