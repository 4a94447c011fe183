"""Compares ways to run entity detection: one process, plain Ray tasks, or Ray Data.

    python benchmarks/detection.py CONLL_FILE SPACY_MODEL [--sentences 4000] [--workers 2] [--repeats 2]

Each way prepares the same buckets from scratch (no cache). Ray is started beforehand and its start is not counted,
but each new worker's imports and model loading are.
Measured on 2 nearly idle cores, 8,000 sentences of CoNLL-2003, best of 2: Ray Data over tasks 1.23, one process over two
tasks 1.20. On busy cores (load 3 to 8) Ray Data over tasks was 1.16, 0.78, 1.04 and one process over tasks 0.58 to 0.76.
So ``prepare`` uses plain tasks, and one process unless more are requested.
"""

from __future__ import annotations

import argparse
import itertools
import json
import logging
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ray

from uedp_ray.config import SourceConfig
from uedp_ray.corpus._shards import ShardTask, prepare_shard
from uedp_ray.corpus._spill import Spill
from uedp_ray.corpus.prepare import _run
from uedp_ray.corpus.readers import read_rows


def with_ray_data(tasks: list[ShardTask], workers: int) -> list[str]:
    """Returns the digests of the shards, in order, from a pool of ``workers`` actors, each with its own pipeline."""

    class Worker:
        def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
            return {"number": row["number"], "digest": prepare_shard(tasks[row["number"]]).digest}

    numbers = [{"number": number} for number in range(len(tasks))]
    dataset = ray.data.from_items(numbers, override_num_blocks=len(tasks))
    rows = dataset.map(Worker, compute=ray.data.ActorPoolStrategy(size=workers), num_cpus=1).take_all()
    return [row["digest"] for row in sorted(rows, key=lambda row: row["number"])]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("source")
    parser.add_argument("model")
    parser.add_argument("--sentences", type=int, default=4000)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=2)
    arguments = parser.parse_args()
    ray.init(address="local", num_cpus=arguments.workers, include_dashboard=False, log_to_driver=False)
    ray.data.DataContext.get_current().enable_progress_bars = False
    logging.getLogger("ray.data").setLevel(logging.ERROR)

    ways: dict[str, Callable[[list[ShardTask]], list[str]]] = {
        "one_process": lambda tasks: [result.digest for result in _run(tasks, 1)],
        "ray_tasks": lambda tasks: [result.digest for result in _run(tasks, arguments.workers)],
        "ray_data": lambda tasks: with_ray_data(tasks, arguments.workers),
    }
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    digests: dict[str, list[str]] = {}
    source = SourceConfig(path=arguments.source, format="conll", detector=(f"spacy:{arguments.model}",))
    for _ in range(arguments.repeats):
        for name, way in ways.items():
            folder = Path(tempfile.mkdtemp())
            spill = Spill(folder / "buckets", 8)
            for row in itertools.islice(read_rows(source), arguments.sentences):
                spill.add(row)
            (folder / "cache").mkdir()
            tasks = [
                ShardTask(
                    bucket=bucket,
                    shard=folder / bucket.name,
                    cache=folder / "cache",
                    detectors=source.detector,
                    keep=None,
                    max_words=source.max_words,
                )
                for bucket in spill.close()
            ]
            started = time.perf_counter()
            digests[name] = way(tasks)
            seconds[name].append(round(time.perf_counter() - started, 2))
            shutil.rmtree(folder)
    if len({tuple(digest) for digest in digests.values()}) != 1:
        raise SystemExit("the ways disagree")
    best = {name: min(taken) for name, taken in seconds.items()}
    report = {
        "sentences": arguments.sentences,
        "workers": arguments.workers,
        "seconds": seconds,
        "data_over_tasks": round(best["ray_data"] / best["ray_tasks"], 2),
        "one_process_over_tasks": round(best["one_process"] / best["ray_tasks"], 2),
    }
    json.dump(report, sys.stdout)


if __name__ == "__main__":
    main()
