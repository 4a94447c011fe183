"""Measures what a sweep costs beyond its training, and what a refused point costs.

    python benchmarks/sweep.py [--trials 32]

A whole sweep is run (Ray's start, trials, table, price, winner; corpora and the public model exist beforehand). Then the
same runs are trained bare, by as many processes at once as there are cores, which share what was tried out, and without a
search. Printed are

- CPU seconds of the sweep by what they were spent on, and over those of bare training: what can be read on a machine that
  does other work, too;
- the wall seconds of the sweep over those of its trials' bare training, and of that with the winner, divided by the cores,
  and where they went. The winner is trained when all trials have ended, by one core. They mean something on an idle machine
  only, as Ray gives its workers way to others;
- the mean seconds to refuse a point.

All are of one run, one thread a process.
"""

from __future__ import annotations

import argparse
import dataclasses
import multiprocessing
import os
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

import psutil
import torch
from processes import cpu_of_family

from uedp_ray.config import PretrainConfig, load_config
from uedp_ray.reporting import Reporter
from uedp_ray.search.feasibility import alone, judge, random_points
from uedp_ray.search.sweep import sweep
from uedp_ray.search.sweep_config import load_sweep_config
from uedp_ray.training.host import train
from uedp_ray.training.pretrain import warm_started
from uedp_ray.training.texts import prepare_corpora
from uedp_ray.training.tryouts import kept_in

RECIPE = Path(__file__).parents[1] / "sweeps" / "quickstart.yaml"


class Phases(Reporter):
    """When the search began and ended, in seconds since this was made."""

    def __init__(self) -> None:
        self._made = time.perf_counter()
        self.at: dict[str, float] = {}

    def say(self, line: str) -> None:
        self.at[line.partition(":")[0].partition(",")[0]] = time.perf_counter() - self._made


KINDS = {
    "ray::Implicit": "trials",
    "ray::_answer": "winner",
    "ray::Dashboard": "Ray: agents",
    "ray::RuntimeEnv": "Ray: agents",
    "ray::": "Ray: other workers",
    "raylet": "Ray: raylet",
    "gcs_server": "Ray: gcs_server",
}
"""Of processes, by how their names begin."""


def by_kind(seen: Mapping[psutil.Process, tuple[str, float]]) -> dict[str, float]:
    """CPU seconds of the processes below this one, by what they are."""
    taken = defaultdict[str, float](float)
    for process, (name, seconds) in seen.items():
        if process.pid != os.getpid():
            taken[next((kind for start, kind in KINDS.items() if name.startswith(start)), "Ray: Python")] += seconds
    return taken


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=32)
    trials = parser.parse_args().trials
    torch.set_num_threads(1)
    cores = os.cpu_count() or 1
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        config = load_sweep_config(RECIPE, [f"search.trials={trials}", "references.noiseless=null"])
        base = warm_started(prepare_corpora(config.base, work / "corpora"), work / "public")
        config = dataclasses.replace(config, base=dataclasses.replace(base, pretrain=PretrainConfig()))
        phases, own = Phases(), time.process_time()
        started = time.perf_counter()
        with cpu_of_family(every=2.0) as seen:
            answer = sweep(config, work / "sweep", reporter=phases)
        whole = time.perf_counter() - started
        taken = by_kind(seen) | {"driver": time.process_time() - own}
        print(f"the sweep has taken {whole:.0f} s; now bare training", file=sys.stderr, flush=True)
        runs = [row["run_dirs"][0] for row in answer["trials"] if row["state"] == "done"]
        with multiprocessing.get_context("spawn").Pool(cores) as pool:
            bare = [pool.apply_async(_bare, (run, work)) for run in runs]
            wall, cpu = (sum(each) for each in zip(*(one.get() for one in bare), strict=True))
            winner_wall, winner_cpu = pool.apply(_bare, ("winner", work))
    begun, ended = phases.at["searching"], phases.at["training the winner"]
    busy = sum(row["seconds"] for row in answer["trials"]) / cores
    print(f"{len(runs)} of {trials} trials, {cores} cores\n")
    print(f"{'':20} {'CPU seconds':>11} {'of bare training':>17}")
    told = {"trials, bare": cpu, "winner, bare": winner_cpu}
    told |= dict(sorted(taken.items(), key=lambda item: -item[1])) | {"the whole sweep": sum(taken.values())}
    for name, seconds in told.items():
        print(f"{name:20} {seconds:11.1f} {seconds / (cpu + winner_cpu):17.3f}")
    print(f"trials over bare {taken['trials'] / cpu:.3f}, winner over bare {taken['winner'] / winner_cpu:.3f}\n")
    print(f"wall seconds: sweep {whole:.0f}, bare training {wall:.0f}, and of the winner {winner_wall:.0f}")
    print(f"over bare training {whole * cores / wall:.2f}, with the winner {whole * cores / (wall + winner_wall):.2f}")
    print(
        f"start {begun:.0f} s, search {ended - begun:.0f} s (trials open: {busy:.0f} s a core), end {whole - ended:.0f} s"
    )
    print(f"a refused point: {_refusal():.3f} s")


def _bare(run: str, work: Path) -> tuple[float, float]:
    """Wall and CPU seconds to train a run of the sweep again, in this process."""
    torch.set_num_threads(1)
    config = load_config(work / "sweep" / run / "config.yaml")
    wall, cpu = time.perf_counter(), time.process_time()
    with kept_in(work / "tryouts"):
        train(config, work / "bare" / Path(run).name, workers=0, tokens=work / "tokens")
    return time.perf_counter() - wall, time.process_time() - cpu


def _refusal(count: int = 20) -> float:
    """Returns the mean seconds to refuse a point that was not seen before."""
    space = "{privacy.noise_multiplier: {uniform: [0.4, 0.8]}, privacy.user_sampling_prob: {uniform: [0.3, 0.5]}}"
    config = load_sweep_config(RECIPE, ["budget.noise=free", f"space={space}"])
    points = random_points(config)
    judge(config, next(points), alone(config))
    started = time.perf_counter()
    for _ in range(count):
        assert judge(config, next(points), alone(config)).config is None
    return (time.perf_counter() - started) / count


if __name__ == "__main__":
    main()
