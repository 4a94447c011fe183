"""The hardware of a run's processes: their device, and the CPUs and GPUs that Ray Train workers request.

>>> from uedp_ray.config import RunConfig, from_dict
>>> from uedp_ray.training.placement import pick_device
>>> tree = {"corpus": {"declared_num_users": 100}, "privacy": {"noise_multiplier": 1.0}, "training": {"device": "cpu"}}
>>> pick_device(from_dict(RunConfig, tree))    # auto: a GPU, if this process may use one
device(type='cpu')
"""

from __future__ import annotations

import math
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from uedp_ray.config import RunConfig
from uedp_ray.errors import InputError
from uedp_ray.reporting import Reporter

if TYPE_CHECKING:
    import torch  # otherwise where a device is asked for: ``check_workers`` needs none, and nor does ``uedp-ray prepare``

_LIMIT = Path("/sys/fs/cgroup/cpu.max")
"""Microseconds of CPU time in each period, both of which a container's runtime sets (cgroups, version 2)."""


def pick_device(config: RunConfig) -> torch.device:
    """The configured device; ``auto`` uses a GPU if there is one, and in a Ray process only if Ray assigned it one.

    A process that was assigned a part of a GPU gets that part of its memory, so that what one trial takes ends no other.
    Raises: InputError for ``cuda`` without a GPU.
    """
    import torch

    wanted, share = config.training.device, _gpu_share()
    found = share > 0 and torch.cuda.is_available()
    if wanted == "cuda" and not found:
        remedy = "no GPU is visible: use auto or cpu" if share else "Ray gave this process no GPU: ask for one"
        raise InputError("training.device", wanted, remedy)
    if wanted == "cpu" or not found:
        return torch.device("cpu")
    if share < 1:
        torch.cuda.set_per_process_memory_fraction(share)
    return torch.device("cuda")


def num_cores() -> int:
    """CPUs that this process may use: of a container with a limit, or of a batch job, fewer than the machine has."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with suppress(OSError, ValueError):  # no such file, or "max": no limit
        quota, period = _LIMIT.read_text(encoding="utf-8").split()
        cores = min(cores, math.ceil(int(quota) / int(period)))
    return cores


def in_session() -> bool:
    """Whether this process is connected to Ray; asks without importing it, which takes a while."""
    return "ray" in sys.modules and sys.modules["ray"].is_initialized()


def elsewhere() -> bool:
    """Whether work goes to a Ray cluster, whose other machines may differ from this one."""
    return bool(os.environ.get("RAY_ADDRESS")) or in_session()


def check_workers(field: str, workers: int, *, here: bool = False) -> None:
    """Raises InputError for more workers than this machine could ever run, if they are to start on it (``here``)."""
    cores = num_cores()
    most = max(16, 4 * cores)
    if workers > most and (here or not elsewhere()):
        remedy = f"this machine has {cores} CPUs: ask for at most {most}, or connect to a Ray cluster"
        raise InputError(field, workers, remedy)


def best_device() -> torch.device:
    """A GPU, if this process may use one."""
    import torch

    return torch.device("cuda" if _gpu_share() > 0 and torch.cuda.is_available() else "cpu")


def _gpu_share() -> float:
    """GPUs that this process may use. Ray hides none from tasks and actors that requested none, so they must check."""
    if not in_session():
        return 1.0
    import ray

    context = ray.get_runtime_context()
    if context.get_task_id() is None and context.get_actor_id() is None:
        return 1.0  # a driver, to which Ray assigns nothing
    return float(context.get_assigned_resources().get("GPU", 0))


def gpus_for(wanted: str, num_workers: int, reporter: Reporter, doing: str = "training") -> int:
    """GPUs of each worker, by ``training.device``: 1 if there are enough for all, else 0."""
    import ray

    there = int(ray.cluster_resources().get("GPU", 0))
    if wanted == "cpu" or there == 0:
        return 0
    if there >= num_workers:
        return 1
    remedy = f"the cluster has {there} for {num_workers} workers: ask for fewer, or add nodes"
    if wanted == "cuda":
        raise InputError("training.device", wanted, remedy)
    reporter.say(f"{doing} on CPUs, not on GPUs: {remedy}")
    return 0


def warn_of_cores(num_workers: int, reporter: Reporter) -> None:
    """Tells of more workers than cores where Ray has this machine alone: it takes any number there."""
    import ray

    cores, nodes = num_cores(), [node["NodeManagerAddress"] for node in ray.nodes() if node["Alive"]]
    if num_workers > cores and nodes == [ray.util.get_node_ip_address()]:
        more = f"{num_workers} workers share the {cores} cores of this machine"
        reporter.say(f"caution: {more}, and are slower than {cores}: lower --workers, or training.num_workers")


def cpus_for(num_workers: int, gpus: float) -> int:
    """CPUs of a worker, as many as let all workers fit: it has as many threads, so an idle core is wasted.

    Raises: InputError if they do not fit with one CPU each: Ray would wait for room forever, ignoring Ctrl-C.
    """
    import ray

    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]

    def room(cpus: int) -> int:
        return sum(
            int(min(node.get("CPU", 0) // cpus, node.get("GPU", 0) / gpus if gpus else num_workers)) for node in nodes
        )

    if room(1) < num_workers:
        remedy = f"the cluster has room for {room(1)}: ask for fewer, or add nodes"
        raise InputError("training.num_workers", num_workers, remedy)
    most = int(max(node.get("CPU", 0) for node in nodes))
    return next(cpus for cpus in range(most, 0, -1) if room(cpus) >= num_workers)
