"""Measures what a sweep costs beyond its training, and what a refused point costs.

    python benchmarks/sweep.py [--trials 32]

Prints the wall seconds of a whole sweep (Ray's start, trials, table, price, winner; corpora and the public model exist
beforehand) over the seconds that its trials take when they are trained one after another in one process, divided by the
cores; the same with the winner, which is trained when the trials have ended and so by one core alone, among what is
trained; where the sweep's seconds went; then the mean seconds to refuse a point. All parts of the ratio are measured in one
run, with one thread per trial.

On a machine that does other work, too, seconds mean little, as Ray gives its workers way to others: then read the CPU
seconds, of the trials' and the winner's processes, of the driver and of Ray's own processes, over those of bare training.

Two idle cores: sweep 419 s, bare training 688 s, ratio 1.22; a refused point 0.085 s.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
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

RECIPE = Path(__file__).parents[1] / "sweeps" / "quickstart.yaml"


class Phases(Reporter):
    """When the search began and ended, in seconds since this was made."""

    def __init__(self) -> None:
        self._made = time.perf_counter()
        self.at: dict[str, float] = {}

    def say(self, line: str) -> None:
        self.at[line.partition(":")[0].partition(",")[0]] = time.perf_counter() - self._made


def by_kind(seen: Mapping[psutil.Process, tuple[str, float]]) -> dict[str, float]:
    """CPU seconds of the processes below this one, by what they are."""
    taken = defaultdict[str, float](float)
    for process, (name, seconds) in seen.items():
        if process.pid != os.getpid():
            known = {"ray::Implicit": "trials", "ray::_answer": "winner"}
            taken[next((kind for start, kind in known.items() if name.startswith(start)), "beside")] += seconds
    return taken


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=32)
    trials = parser.parse_args().trials
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        config = load_sweep_config(RECIPE, [f"search.trials={trials}", "references.noiseless=null"])
        base = warm_started(prepare_corpora(config.base, work / "corpora"), work / "public")
        config = dataclasses.replace(config, base=dataclasses.replace(base, pretrain=PretrainConfig()))
        phases, own = Phases(), time.process_time()
        started = time.perf_counter()
        with cpu_of_family() as seen:
            answer = sweep(config, work / "sweep", reporter=phases)
        whole = time.perf_counter() - started
        taken = by_kind(seen)
        taken["driver"] = time.process_time() - own
        own = time.process_time()
        bare = sum(_bare(Path(row["run_dirs"][0]), work) for row in answer["trials"])
        alone = time.process_time() - own
        winner = _bare(Path("winner"), work)
    cores = os.cpu_count() or 1
    begun, ended = phases.at["searching"], phases.at["training the winner"]
    busy = sum(row["seconds"] for row in answer["trials"]) / cores
    print(f"{trials} trials, {cores} cores: sweep {whole:.0f} s, bare training {bare:.0f} s")
    print(f"wall / (bare / cores) = {whole / (bare / cores):.2f}")
    print(f"with the winner trained bare in {winner:.0f} s: {whole / ((bare + winner) / cores):.2f}")
    print(
        f"start {begun:.0f} s, search {ended - begun:.0f} s (trials open: {busy:.0f} s a core), end {whole - ended:.0f} s"
    )
    told = ", ".join(f"{name} {seconds:.0f} s" for name, seconds in sorted(taken.items()))
    print(f"CPU: {told}; bare training of the trials {alone:.0f} s, ratio {taken['trials'] / alone:.3f}")
    print(f"a refused point: {_refusal():.3f} s")


def _bare(run: Path, work: Path) -> float:
    config = load_config(work / "sweep" / run / "config.yaml")
    started = time.perf_counter()
    train(config, work / "bare" / run.name, workers=0, tokens=work / "tokens")
    return time.perf_counter() - started


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
