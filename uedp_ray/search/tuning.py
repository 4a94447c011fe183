"""Ray Tune: which trial of a search runs where, and which trackers it reports to; ``run_trials`` also serves comparisons."""

from __future__ import annotations

import io
import logging
import os
import threading
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

from ray.tune.callback import Callback
from ray.tune.stopper import Stopper

from uedp_ray.config import to_dict
from uedp_ray.config.io import named_variables
from uedp_ray.interrupts import handlers_kept
from uedp_ray.search.layout import SweepDir, trial_id
from uedp_ray.search.searcher import StudySearcher
from uedp_ray.search.sections import ResourceConfig
from uedp_ray.search.sweep_config import SweepConfig
from uedp_ray.search.trial import DEVICE, run_trial

_RETRIES = 3
"""Restarts of a trial whose process died: it resumes from its checkpoint."""


def tune_trials(config: SweepConfig, folder: SweepDir, searcher: StudySearcher, at_once: int, gpus: float) -> None:
    """Runs trials, whose workers have ``gpus`` GPUs each, until the searcher has no more.

    Raises: ``searcher.failure`` if there is one; KeyboardInterrupt on Ctrl-C.
    """
    from ray import tune

    storage, resources = folder.storage, config.resources
    metric = config.metric.name

    def trainable(trial: dict[str, Any]) -> None:
        def report(row: dict[str, Any]) -> None:
            told = {metric if key == "score" else key: value for key, value in row.items()}
            told["timesteps_total"] = row["round"]  # the step of trackers
            if row.get("outcome") == DEVICE:
                told["where"] = _where()
            tune.report(told)

        if run_trial(trial, root=storage, report=report, gpus=gpus) == DEVICE and resources.workers_per_trial == 1:
            threading.Event().wait()  # a device that is returned goes to the next trial: this one keeps it

    try:
        run_trials(
            trainable,
            resources,
            gpus,
            variables=named_variables(to_dict(config)),
            logs=folder.tensorboard,
            callbacks=[_Restarts(searcher), *_trackers(config, folder)],
            stop=_Stopper(searcher),
            search_alg=searcher,
            num_samples=-1,  # until the searcher has no more
            max_concurrent_trials=at_once,
            trial_name_creator=_name,
            trial_dirname_creator=_name,
        )
    except Exception:
        if searcher.failure is None:
            raise
    if searcher.failure is not None:
        raise searcher.failure
    if searcher.unfinished:
        raise KeyboardInterrupt
    searcher.close()


def run_trials(
    trainable: Callable[[dict[str, Any]], None],
    resources: ResourceConfig,
    gpus: float,
    *,
    variables: Mapping[str, str],
    logs: Path,
    callbacks: Sequence[Any],
    stop: Any = None,
    points: Mapping[str, Any] | None = None,
    **settings: Any,
) -> None:
    """Runs trials until there are no more, or Ctrl-C, after which it returns too.

    A trial whose process died is started again, a few times: it resumes from its own checkpoint.

    Args:
      trainable: trains one trial, and reports.
      resources, gpus: of one trial, and of each of its workers.
      variables: values of ``$NAME`` here, for nodes that do not set them.
      logs: the folder of Tune's own files.
      points, settings: Tune's ``param_space``, and settings of its ``TuneConfig``.
    """
    import ray
    from ray import tune

    def with_variables(trial: dict[str, Any]) -> None:
        for variable, value in variables.items():
            os.environ.setdefault(variable, value)
        trainable(trial)

    # A Ray Train group takes its own resources. Its trial is pinned to the driver's node by that node's resource: a node
    # that dies takes workers with it, which Ray Train replaces, but never the trial, whose group would keep its CPUs.
    beside = {f"node:{ray.util.get_node_ip_address()}": 0.001}
    taken = {"CPU": resources.cpus_per_worker, "GPU": gpus} if resources.workers_per_trial == 1 else beside
    tuner = tune.Tuner(
        tune.with_resources(with_variables, taken),
        param_space=points,
        tune_config=tune.TuneConfig(reuse_actors=True, **settings),
        run_config=tune.RunConfig(
            stop=stop,
            name=f"search-{uuid.uuid4().hex[:8]}",  # Tune would resume a name that it knows
            storage_path=str(logs),
            failure_config=tune.FailureConfig(max_failures=_RETRIES),
            callbacks=list(callbacks),
            verbose=0,
        ),
    )
    for name in ("ray.tune", "tensorboardX"):  # the latter warns of the infinite score of failed trials
        logging.getLogger(name).setLevel(logging.CRITICAL)
    # Tune prints banners even when told not to (the table says how trials ended), and leaves its Ctrl-C handler installed.
    with redirect_stdout(io.StringIO()), handlers_kept():
        tuner.fit()


class _Stopper(Stopper):
    """Ends trials early where the searcher says so, and those that hold a device once no other trial is left."""

    def __init__(self, searcher: StudySearcher):
        self._searcher = searcher

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        return self._searcher.stops(trial_id, result)

    def stop_all(self) -> bool:
        return self._searcher.over


class _Restarts(Callback):
    """Tells the searcher of trials whose process died, and that are started once more."""

    def __init__(self, searcher: StudySearcher):
        self._searcher = searcher

    def on_trial_recover(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        self._searcher.recovered(trial.trial_id)


def _where() -> str:
    """Names the node, and the GPUs that Ray gave this process."""
    import ray

    gpus = ray.get_runtime_context().get_accelerator_ids().get("GPU")
    return f"node {ray.util.get_node_ip_address()}" + (f", GPU {', '.join(gpus)}" if gpus else "")


def _name(trial: Any) -> str:
    return trial_id(trial.config["number"])


def _trackers(config: SweepConfig, folder: SweepDir) -> list[Any]:
    """Returns Ray's callbacks in addition to TensorBoard's, which Tune always has."""
    callbacks: list[Any] = []
    name = config.base.name
    if "mlflow" in config.trackers:
        from ray.air.integrations.mlflow import MLflowLoggerCallback

        callbacks.append(MLflowLoggerCallback(tracking_uri=os.environ.get("MLFLOW_TRACKING_URI"), experiment_name=name))
    if "wandb" in config.trackers:
        from ray.air.integrations.wandb import WandbLoggerCallback

        mode = os.environ.get("WANDB_MODE")  # the callback logs from a process on a node where it may not be set
        callbacks.append(WandbLoggerCallback(project=name, dir=str(folder.root), mode=mode))
    return callbacks
