"""Workers as processes of a gloo group, without Ray: a run's, or a function's of rank and reducer."""

from __future__ import annotations

import datetime
import multiprocessing
import os
import tempfile
import traceback
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch

from uedp_ray.config import RunConfig
from uedp_ray.storage.open import open_storage
from uedp_ray.training.reduce import DistributedReducer
from uedp_ray.training.rundir import RunDir
from uedp_ray.training.setup import prepare_run
from uedp_ray.training.worker import run_worker

_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(["tests.training.groups"])
SECONDS = 60
"""After which a worker no longer waits for another."""

Play = Callable[[int], AbstractContextManager[Any]]
"""Surrounds what a worker of a rank does."""


def unchanged(rank: int) -> AbstractContextManager[Any]:
    return nullcontext()


def group(work: Callable[[int, DistributedReducer], Any], num_workers: int) -> list[Any]:
    """What each rank's call returns; of one that raises, the traceback; of one that ends otherwise, its exit code."""
    with tempfile.TemporaryDirectory() as folder:
        pipes = [_FORKS.Pipe(duplex=False) for _ in range(num_workers)]
        processes = [
            _FORKS.Process(target=_member, args=(work, rank, num_workers, str(Path(folder, "meet")), sender))
            for rank, (_, sender) in enumerate(pipes)
        ]
        for process, (_, sender) in zip(processes, pipes, strict=True):
            process.start()
            sender.close()
        found = []
        for process, (receiver, _) in zip(processes, pipes, strict=True):
            try:
                found.append(receiver.recv())
            except EOFError:
                process.join()
                found.append(process.exitcode)
            process.join()
    return found


def _member(
    work: Callable[[int, DistributedReducer], Any], rank: int, num_workers: int, meet: str, sender: Any
) -> None:
    torch.set_num_threads(1)
    try:
        timeout = datetime.timedelta(seconds=SECONDS)
        torch.distributed.init_process_group(
            "gloo", init_method=f"file://{meet}", rank=rank, world_size=num_workers, timeout=timeout
        )
        sender.send(work(rank, DistributedReducer()))
        torch.distributed.destroy_process_group()
    except BaseException:
        sender.send(traceback.format_exc())
    os._exit(0)


class Workers:
    """Runs a worker of a run, as ``host`` has Ray run it. An object: it goes to other processes."""

    def __init__(self, out: Path, num_workers: int, play: Play):
        self.out, self.num_workers, self.play = out, num_workers, play

    def __call__(self, rank: int, reducer: DistributedReducer) -> None:
        with self.play(rank):
            run_worker(
                RunDir(self.out), rank=rank, num_workers=self.num_workers, reducer=reducer, device=torch.device("cpu")
            )


def train_in_group(
    config: RunConfig, out: Path, num_workers: int, *, resume: bool = False, play: Play = unchanged
) -> list[Any]:
    """Trains, and returns what ended each worker: None, a traceback or an exit code."""
    storage = open_storage(out)
    with storage.exclusive():
        prepare_run(config, storage, resume=resume)
    return group(Workers(out, num_workers, play), num_workers)
