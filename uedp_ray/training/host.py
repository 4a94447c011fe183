"""Hosts of the round loop: a Ray Train worker group, or this process.

    result = train(config, Path("runs/mine"), workers=2)          # Ray Train, two workers
    result = train(config, Path("runs/small"), workers=0)         # this process, no Ray: small runs, sweep trials

A Ray Train group whose worker died is restarted; the loop then resumes from the run's own checkpoint and ledger, never from
Ray's state. A failure that a restart cannot fix (input, memory, a broken GPU) ends the run, which would otherwise keep
charging. Workers share a round's users by what each has to compute (``balance``).
"""

from __future__ import annotations

import json
import os
import shutil
import threading
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from uedp_ray.config import RunConfig
from uedp_ray.errors import DeviceError, InputError, no_thread_no_blame
from uedp_ray.fields import Check, Later, anything, flag, number, record, string
from uedp_ray.interrupts import handlers_kept
from uedp_ray.models.saved import check_whole
from uedp_ray.privacy.cautions import weakness
from uedp_ray.reporting import SILENT, Reporter
from uedp_ray.storage.base import Storage
from uedp_ray.storage.files import check_regular, read_json, write_atomically
from uedp_ray.storage.open import open_storage
from uedp_ray.tasks.metrics import metric_of
from uedp_ray.training.checkpoint import kept_rounds
from uedp_ray.training.faults import blamed
from uedp_ray.training.placement import (
    check_workers,
    cpus_for,
    gpus_for,
    in_session,
    pick_device,
    warn_of_cores,
)
from uedp_ray.training.reduce import DistributedReducer, LocalReducer
from uedp_ray.training.rundir import COMMIT, RunDir
from uedp_ray.training.session import connected, ray_session
from uedp_ray.training.setup import prepare_run
from uedp_ray.training.worker import run_worker

_SPEED: dict[str, Check] = {
    "tokens_per_second": number(0.0, nothing=True),
    "retention": Later(record({"all": number(0.0, 1.0, nothing=True)}, nothing=True)),
}
_PROGRESS: dict[str, Check] = {
    **dict.fromkeys(("round", "num_rounds", "evaluated"), number(0, whole=True)),
    **dict.fromkeys(("rounds_per_second", "seconds_left"), number()),
    "epsilon": number(0.0, nothing=True),
}


@no_thread_no_blame()
def train(
    config: RunConfig,
    out: Path | str | Storage,
    *,
    workers: int | None = None,
    cpus_per_worker: int | None = None,
    gpus_per_worker: float | None = None,
    resume: bool = False,
    tokens: Path | None = None,
    text: Path | None = None,
    part_of: str | None = None,
    public_source: bool = False,
    reporter: Reporter = SILENT,
) -> dict[str, Any]:
    """Trains one model and returns ``result.json``, with what only its owner sees: ``run_dir``, ``tokens_per_second`` and
    ``retention`` (``corpus.retention``).

    Args:
      config: the run.
      out: the run directory, or a URL to keep it at (``storage.mirror``); must be new unless ``resume``.
      workers: Ray Train workers; 0 runs in this process; None means ``training.num_workers``.
      cpus_per_worker: CPUs, and so threads, of a Ray Train worker; None divides what the cluster has.
      gpus_per_worker: GPUs of a Ray Train worker; None gives each worker one if there are enough, else none.
      resume: whether to continue the run in ``out``.
      tokens: a folder of tokenised text that several runs share.
      text: the record of the text that the run must be of, if several are compared (``prepare_corpora``).
      part_of: ``sweep`` or ``comparison``, if the run is one of several of which one is chosen by its results, so that its
        own epsilon is not that of a chosen model. It can be continued only as what it started as.
      public_source: whether ``corpus.source`` is itself public text, which other public text may share; rounds that a crash
        lost are then trained again, beyond the budget.
      reporter: gets each stage and each round.

    Raises: InputError for what the user can fix, memory included; DeviceError, a subclass, if a GPU failed; RuntimeError
      if the workers failed permanently.
    """
    check_workers(
        *(("training.num_workers", config.training.num_workers) if workers is None else ("--workers", workers))
    )
    storage = open_storage(out)
    num_workers = config.training.num_workers if workers is None else workers
    ended = RunDir(storage.root).result.exists()
    with storage.exclusive(), connected(0 if ended else num_workers):
        if not ended:
            check_gpus(config, num_workers, gpus_per_worker)
        run = prepare_run(
            config,
            storage,
            resume=resume,
            tokens=tokens,
            text=text,
            part_of=part_of,
            public_source=public_source,
            reporter=reporter,
        )
        metric = metric_of(config)
        if not run.result.exists():
            with run.copies_told(reporter), _watch(run, metric.checks(), reporter):
                if num_workers == 0:
                    device = pick_device(config)
                    with blamed("training.batch_tokens", config.training.batch_tokens):
                        run_worker(run, rank=0, num_workers=1, reducer=LocalReducer(), device=device, reporter=reporter)
                else:
                    reporter.say(f"starting {num_workers} Ray Train worker{'s' if num_workers > 1 else ''}")
                    _train_on_ray(run, config, num_workers, cpus_per_worker, gpus_per_worker, reporter)
        else:  # it may have ended between writing the result and publishing it
            storage.publish(run.result)
            if run.checkpoint.exists() and not storage.is_copy:
                _look_at_model(run, reporter)
        run.progress.unlink(missing_ok=True)  # it shows speeds, and remains where Ray itself was killed
        shutil.rmtree(run.ray, ignore_errors=True)
        run.storage.get(run.speed)
        speed: dict[str, Any] = {"tokens_per_second": None, "retention": None}
        with suppress(InputError):  # of this machine only; nothing depends on it
            speed |= read_json(run.speed, _SPEED, "delete it")
        result = run.load_result(metric)
        return result | speed | {"run_dir": run.address}


def tell_cautions(config: RunConfig, result: Mapping[str, Any], reporter: Reporter) -> None:
    """Tells what readers of the result of ``train`` must know: for commands whose answer does not."""
    metric = metric_of(config)
    found = metric.cautions(result, public=config.starts_public)
    if result["private"] and config.privacy.target_epsilon is None:  # else it was said before training
        found += weakness(max(each["epsilon"] or 0.0 for each in result["guarantees"] if each["unit"] == config.unit))
    for caution in found:
        reporter.say(f"caution: {caution}")
    if metric.harmed(result):
        reporter.say(
            "what may help: a lower training.server_learning_rate, less noise, or clip norms closer to those of gradients"
        )


def check_gpus(config: RunConfig, num_workers: int, gpus: float | None = None) -> None:
    """Raises InputError for GPUs that the cluster does not have, if this process is connected to one. ``gpus``: GPUs of
    a worker; None: as ``gpus_for``."""
    if num_workers and in_session():
        _gpus_of_worker(config, num_workers, gpus, SILENT)


def _gpus_of_worker(config: RunConfig, num_workers: int, gpus: float | None, reporter: Reporter) -> float:
    wanted = config.training.device
    found = gpus_for(wanted, num_workers, reporter) if gpus is None or wanted == "cpu" else gpus
    if wanted == "cuda" and not found:
        raise InputError("training.device", "cuda", "no worker has a GPU: give it one, or use auto or cpu")
    return found


def _train_on_ray(
    run: RunDir, config: RunConfig, num_workers: int, cpus: int | None, gpus: float | None, reporter: Reporter
) -> None:
    from ray.train import ScalingConfig

    with ray_session(num_workers):
        _free(run)
        gpus = _gpus_of_worker(config, num_workers, gpus, reporter)
        if not gpus:
            warn_of_cores(num_workers, reporter)
        cpus = cpus or cpus_for(num_workers, gpus)
        scaling = ScalingConfig(
            num_workers=num_workers,
            use_gpu=gpus > 0,
            resources_per_worker={"CPU": cpus, "GPU": gpus} if gpus else {"CPU": cpus},
        )
        patience = Patience(config.training.max_failures)
        while (failure := _run_group(run, config, scaling)) is not None:
            kept = _kept(run)
            reason = str(failure).strip().splitlines()[-1]
            if not patience.start_again(kept):
                told = f"the workers failed {patience.failures} times after round {kept}"
                raise RuntimeError(f"{told}; what was charged stays charged: {reason}") from failure
            reporter.say(f"the workers failed, and restart from round {kept}: {reason}")
    run.storage.get(run.result)


def _run_group(run: RunDir, config: RunConfig, scaling: Any) -> Exception | None:
    """Runs one Ray Train group until it or a worker ends. Returns its failure; raises a user's error from its worker."""
    from ray.train import FailureConfig, TrainingFailedError
    from ray.train import RunConfig as RayRunConfig
    from ray.train.torch import TorchTrainer

    # Two runs with one name and storage path would silently resume each other.
    name = f"{config.name}-{uuid.uuid4().hex[:8]}"
    storage, error, group = run.ray, run.error(name), run.group
    trainer = TorchTrainer(
        _ray_worker,
        train_loop_config={"run": run, "error": error},
        scaling_config=scaling,
        run_config=RayRunConfig(
            name=name,
            storage_path=str(storage),
            failure_config=FailureConfig(max_failures=0, max_preemption_failures=0),  # Patience decides
            # Spinning threads slow a worker manyfold when something else needs its cores.
            worker_runtime_env={"env_vars": {"OMP_WAIT_POLICY": os.environ.get("OMP_WAIT_POLICY", "PASSIVE")}},
        ),
    )
    failed = None
    os.environ.setdefault("RAY_TRAIN_ENABLE_PREEMPTION_WATCHER", "0")  # a process for notices that nothing here reads
    try:
        with handlers_kept():  # Ray Train takes Ctrl-C over permanently, and then ends the process
            trainer.fit()
    except TrainingFailedError as failure:
        failed = failure
    shutil.rmtree(storage, ignore_errors=True)
    group.unlink(missing_ok=True)
    run.storage.get(error)
    if error.exists():
        told = read_json(error, {"field": string(), "remedy": anything, "device": flag}, "delete it")
        error.unlink()
        kind = DeviceError if told["device"] else InputError
        raise kind(told["field"], told.get("value"), str(told["remedy"]))
    return failed


@dataclass
class Patience:
    """Limits restarts of a failing group: every start may charge rounds again, so it restarts only while it progresses."""

    max_failures: int
    """Most consecutive failures without progress, that is, without another round in the checkpoint."""
    kept: int = 0
    failures: int = 0

    def start_again(self, kept: int) -> bool:
        """Whether to restart a group that failed with ``kept`` rounds in its checkpoint."""
        self.failures = 1 if kept > self.kept else self.failures + 1
        self.kept = kept
        return self.failures <= self.max_failures


def _kept(run: RunDir) -> int:
    run.storage.get(run.checkpoint, commit=COMMIT)
    return kept_rounds(run.checkpoint)


def _free(run: RunDir) -> None:
    """Frees what the group of a killed trial holds: Ray's own cleaner needs a dashboard, and a single Ray per machine."""
    import ray
    from ray.util.placement_group import PlacementGroup

    group = run.group
    run.storage.get(group)
    if not group.exists():
        return
    check_regular(group, "delete it", most=1000)
    if group.stat().st_size:  # empty if its writer was killed, or out of space
        try:
            held = ray.PlacementGroupID(bytes.fromhex(group.read_text()))
        except ValueError:
            raise InputError(group.name, str(group), "is damaged: delete it") from None
        # Another job's group ended with the job, or is alive.
        if held.hex().endswith(ray.get_runtime_context().get_job_id()):
            ray.util.remove_placement_group(PlacementGroup(held))
    group.unlink()


def _ray_worker(settings: dict[str, Any]) -> None:
    """The function that each Ray Train worker runs. A user's error is passed back as a file: retrying cannot fix it."""
    import ray.train
    import ray.train.torch

    context = ray.train.get_context()
    run, error_file = settings["run"], settings["error"]
    if context.get_world_rank() == 0:
        write_atomically(run.group, ray.util.get_current_placement_group().id.hex().encode(), private=True)
        run.storage.publish(run.group)
    try:
        run.fetch()
        with no_thread_no_blame(), blamed("training.batch_tokens", run.load_config().training.batch_tokens):
            run_worker(
                run,
                rank=context.get_world_rank(),
                num_workers=context.get_world_size(),
                reducer=DistributedReducer(),
                device=ray.train.torch.get_device(),
            )
    except InputError as error:
        value = error.value if isinstance(error.value, int | float | None) else str(error.value)
        fields: dict[str, Any] = {"field": error.field, "value": value, "remedy": error.remedy}
        fields["device"] = isinstance(error, DeviceError)
        error_file.write_text(json.dumps(fields))
        run.storage.publish(error_file)
        raise  # the other workers wait for this one until it fails


def _look_at_model(run: RunDir, reporter: Reporter) -> None:
    """Reports how to restore the model of a finished run, if it is missing or incomplete."""
    try:
        check_whole(run.model)
    except InputError:
        remedy = "delete result.json, and run again with --resume to rebuild it from checkpoint/"
        reporter.say(f"caution: {run.model} no longer holds a complete model: {remedy}")


@contextmanager
def _watch(run: RunDir, scores: Mapping[str, Check], reporter: Reporter) -> Iterator[None]:
    """Polls the driver's progress file, wherever the driver runs."""
    run.progress.unlink(missing_ok=True)  # an earlier start's
    done = threading.Event()

    def poll() -> None:
        seen, last = None, False
        while not last:
            last = done.wait(0.3)  # the last rounds are reported too
            try:
                row = read_json(run.progress, {**_PROGRESS, **scores}, "delete it")
            except (OSError, InputError):  # not there yet, or no descriptor is left, which the run itself reports
                continue
            if row != seen:
                seen = row
                reporter.round(row)

    thread = threading.Thread(target=poll, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
