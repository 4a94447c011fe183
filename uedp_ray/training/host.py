"""Where the round loop runs: a Ray Train worker group, or this process.

    result = train(config, Path("runs/mine"), workers=2)          # Ray Train, two workers
    result = train(config, Path("runs/mine"), workers=0)          # this process, no Ray: small runs, sweep trials

Ray Train restarts a group whose worker died; the loop then resumes from the run's own checkpoint and ledger, never from
Ray's state. Each worker holds the users whose stable hash falls to it for the whole run.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any

import torch

from uedp_ray.config import RunConfig
from uedp_ray.errors import InputError
from uedp_ray.training.driver import Observe
from uedp_ray.training.reduce import DistributedReducer, LocalReducer
from uedp_ray.training.rundir import RunDir, Say, prepare_run
from uedp_ray.training.storage import Storage, open_storage
from uedp_ray.training.worker import run_worker

Progress = Callable[[dict[str, Any]], None]


def train(
    config: RunConfig,
    out: Path | str | Storage,
    *,
    workers: int | None = None,
    cpus_per_worker: int | None = None,
    resume: bool = False,
    tokens: Path | None = None,
    say: Say = lambda message: None,
    progress: Progress = lambda row: None,
    observe: Observe = lambda row: None,
) -> dict[str, Any]:
    """Trains one model and returns ``result.json``.

    Args:
      config: the run.
      out: the run directory, or a URL to keep it at (``training.mirror``); must be new unless ``resume``.
      workers: Ray Train workers; 0 runs in this process; None takes ``training.num_workers``.
      cpus_per_worker: CPUs, and so threads, of a Ray Train worker; None shares out what the cluster has.
      resume: continue the run in ``out``.
      tokens: a folder of tokenised text that several runs share.
      say: told what is being done before the rounds begin.
      progress: told the content of ``progress.json`` as rounds go by.
      observe: told each row of ``rounds.parquet``, where the run is in this process (``workers`` 0).

    Raises: InputError for what the user can mend; RuntimeError if the workers failed for good.
    """
    storage = open_storage(out)
    with storage.exclusive():
        run = prepare_run(config, storage, resume=resume, tokens=tokens, say=say)
        if not run.result.exists():
            num_workers = config.training.num_workers if workers is None else workers
            with _watch(run, progress):
                if num_workers == 0:
                    device = pick_device(config)
                    run_worker(run, rank=0, num_workers=1, reducer=LocalReducer(), device=device, observe=observe)
                else:
                    say(f"starting {num_workers} Ray Train worker{'s' if num_workers > 1 else ''}")
                    _train_on_ray(run, config, num_workers, cpus_per_worker)
            run.progress.unlink(missing_ok=True)
        elif storage.url:  # it may have ended between writing the result and publishing it
            storage.publish(run.result)
        return run.load_result()


def pick_device(config: RunConfig) -> torch.device:
    """The configured device; ``auto`` takes a GPU where there is one."""
    wanted = config.training.device
    if wanted == "cuda" and not torch.cuda.is_available():
        raise InputError("training.device", wanted, "no GPU is visible: use auto or cpu")
    return torch.device("cuda" if wanted != "cpu" and torch.cuda.is_available() else "cpu")


@contextmanager
def ray_session(num_workers: int, address: str | None = None) -> Iterator[None]:
    """Connects to ``address`` (none: ``RAY_ADDRESS``), or starts Ray here. An open session is used, and left open."""
    import ray

    if ray.is_initialized():
        yield
        return
    address = address or os.environ.get("RAY_ADDRESS")
    with redirect_stdout(sys.stderr):  # where Ray tells of lost nodes; standard output is for answers
        ray.init(
            address=address or "local",
            num_cpus=None if address else max(num_workers, os.cpu_count() or 1),
            include_dashboard=None if address else False,
            log_to_driver=False,
            logging_level="error",
        )
        try:
            yield
        finally:
            ray.shutdown()


def _train_on_ray(run: RunDir, config: RunConfig, num_workers: int, cpus_per_worker: int | None) -> None:
    import ray
    from ray.train import FailureConfig, ScalingConfig, TrainingFailedError
    from ray.train import RunConfig as RayRunConfig
    from ray.train.torch import TorchTrainer

    # Two runs with one name and storage path would silently resume each other.
    name = f"{config.name}-{uuid.uuid4().hex[:8]}"
    storage, error, group = run.private / "ray", run.private / f"error-{name}.json", run.private / "group"
    with ray_session(num_workers):
        _free(run, group)
        has_gpus = ray.cluster_resources().get("GPU", 0) >= num_workers
        if config.training.device == "cuda" and not has_gpus:
            raise InputError("training.device", "cuda", f"the cluster has no GPU for each of {num_workers} workers")
        use_gpu = config.training.device != "cpu" and has_gpus
        trainer = TorchTrainer(
            _ray_worker,
            train_loop_config={"run": run, "error": error, "group": group},
            scaling_config=ScalingConfig(
                num_workers=num_workers,
                use_gpu=use_gpu,
                resources_per_worker={"CPU": cpus_per_worker or _cpus_for(num_workers, use_gpu)},
            ),
            run_config=RayRunConfig(
                name=name,
                storage_path=str(storage),
                failure_config=FailureConfig(max_failures=3),
                # Threads that spin while they wait slow a worker manyfold where something else needs its cores.
                worker_runtime_env={"env_vars": {"OMP_WAIT_POLICY": os.environ.get("OMP_WAIT_POLICY", "PASSIVE")}},
            ),
        )
        try:
            with _interruptible():
                trainer.fit()
        except TrainingFailedError as failure:
            reason = str(failure).strip().splitlines()[-1]
            raise RuntimeError(f"the workers failed; what was charged stays charged: {reason}") from failure
    shutil.rmtree(storage, ignore_errors=True)
    group.unlink(missing_ok=True)
    run.storage.get(error, run.result)
    if error.exists():
        fields = json.loads(error.read_text())
        error.unlink()
        raise InputError(**fields)


def _cpus_for(num_workers: int, use_gpu: bool) -> int:
    """CPUs of a worker, as many as let all workers fit: its threads follow them, so an idle core is a core wasted.

    Raises: InputError if they do not fit with one CPU each: Ray would wait for room for good, deaf to Ctrl-C.
    """
    import ray

    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]

    def room(cpus: int) -> int:
        return sum(
            int(min(node.get("CPU", 0) // cpus, node.get("GPU", 0) if use_gpu else num_workers)) for node in nodes
        )

    if room(1) < num_workers:
        remedy = f"the cluster has room for {room(1)}: ask for fewer, or add nodes"
        raise InputError("training.num_workers", num_workers, remedy)
    most = int(max(node.get("CPU", 0) for node in nodes))
    return next(cpus for cpus in range(most, 0, -1) if room(cpus) >= num_workers)


def _free(run: RunDir, group: Path) -> None:
    """Takes back what the group of a killed trial holds: Ray's own cleaner needs a dashboard, and one Ray a machine."""
    import ray
    from ray.util.placement_group import PlacementGroup

    run.storage.get(group)
    if group.exists():
        held = ray.PlacementGroupID(bytes.fromhex(group.read_text()))
        # What another job held ended with it, or is alive.
        if held.hex().endswith(ray.get_runtime_context().get_job_id()):
            ray.util.remove_placement_group(PlacementGroup(held))
        group.unlink()


@contextmanager
def _interruptible() -> Iterator[None]:
    """Ray Train takes Ctrl-C over for good, to stop its workers, and then ends the process: here it stays an exception."""
    handler = signal.getsignal(signal.SIGINT)
    try:
        yield
    except SystemExit:
        raise KeyboardInterrupt from None
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, handler)


def _ray_worker(settings: dict[str, Any]) -> None:
    """What each Ray Train worker runs. A user's error is handed back as a file: retrying cannot mend it."""
    import ray.train
    import ray.train.torch

    context = ray.train.get_context()
    run, error_file = settings["run"], settings["error"]
    run.storage.get(error_file)
    if error_file.exists():  # the group that met it was ended below; there is nothing to try again
        return
    if context.get_world_rank() == 0:
        settings["group"].write_text(ray.util.get_current_placement_group().id.hex())
        run.storage.publish(settings["group"])
    try:
        run.fetch()
        run_worker(
            run,
            rank=context.get_world_rank(),
            num_workers=context.get_world_size(),
            reducer=DistributedReducer(),
            device=ray.train.torch.get_device(),
        )
    except InputError as error:
        fields = {"field": error.field, "value": str(error.value), "remedy": error.remedy}
        error_file.write_text(json.dumps(fields))
        run.storage.publish(error_file)
        raise  # the other workers wait for this one: only a failure ends their waiting


@contextmanager
def _watch(run: RunDir, progress: Progress) -> Iterator[None]:
    """Polls the driver's progress file, wherever the driver runs."""
    done = threading.Event()

    def poll() -> None:
        seen, last = None, False
        while not last:
            last = done.wait(0.3)  # the last rounds are told too
            try:
                row = json.loads(run.progress.read_text())
            except (OSError, ValueError):  # not there yet, or no descriptor is left: the run itself will say so
                continue
            if row != seen:
                seen = row
                progress(row)

    thread = threading.Thread(target=poll, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
