"""Which part of the cluster's GPUs a trial gets, and a warning about those that no trial gets.

    gpus = gpus_of_worker(config.resources, config.device, nodes, wanted=32)    # 0.25: four trials on each of eight GPUs
    idle(nodes, workers=32, gpus=gpus)                                          # None

Ray hides no GPU from a process that asked for none, and all such processes would take the first. So a GPU that is not
assigned is not used (``training.placement``), and ``auto`` assigns all there are.
"""

from __future__ import annotations

from collections.abc import Sequence

from uedp_ray.errors import InputError
from uedp_ray.search.preflight import Node
from uedp_ray.search.sections import ResourceConfig

MOST_ON_ONE = 4
"""Most trials that ``auto`` puts on one GPU: they share its memory, which Ray does not track."""


def gpus_of_worker(resources: ResourceConfig, device: str, nodes: Sequence[Node], wanted: int) -> float:
    """Returns the GPUs per worker of a trial: as configured; under ``auto``, the cluster's divided among the trials.

    A trial of one worker gets a whole GPU if there is one for each trial that would run at once, else a part of one. A trial
    of several workers gets one for each, or none. ``device``: ``training.device`` of the trials; ``wanted``: trials that are
    left to run.

    Raises: InputError if trials must train on a GPU and get none.
    """
    if resources.gpus_per_worker != "auto":
        gpus = resources.gpus_per_worker
    elif device == "cpu":
        gpus = 0.0
    else:
        gpus = _divided(resources, nodes, min(wanted, resources.max_concurrent or wanted))
    if device == "cuda" and gpus == 0:
        remedy = "training.device is cuda: give trials a GPU, or train on auto or cpu"
        raise InputError("resources.gpus_per_worker", resources.gpus_per_worker, remedy)
    return gpus


def _divided(resources: ResourceConfig, nodes: Sequence[Node], wanted: int) -> float:
    workers, cpus = resources.workers_per_trial, resources.cpus_per_worker
    with_gpus = [node for node in nodes if node.gpus >= 1]

    def room(gpus: float) -> int:
        return sum(node.holds(cpus, gpus) for node in with_gpus)

    if room(1) < workers:  # no GPU, none with a CPU beside it, or too few
        return 0.0
    if workers > 1:
        return 1.0
    at_once = min(room(0), wanted)
    parts = (round(1 / trials, 4) for trials in range(1, MOST_ON_ONE))
    return next((part for part in parts if room(part) >= at_once), 1 / MOST_ON_ONE)


def idle(nodes: Sequence[Node], workers: int, gpus: float) -> str | None:
    """Returns a line on the GPUs that ``workers`` workers at once, over all trials, with ``gpus`` GPUs each leave idle."""
    there = int(sum(node.gpus for node in nodes))
    if there == 0:
        return None
    if gpus == 0:
        return f"all {there} GPUs of the cluster will be idle: trials train on CPUs"
    together = int(1 / gpus + 1e-9) if gpus < 1 else 1
    taken = -(-workers // together) * max(1, int(gpus))
    if taken >= there:
        return None
    return (
        f"{there - taken} of {there} GPUs will be idle: {workers} workers at once, with {gpus:g} GPU each, use no more"
    )
