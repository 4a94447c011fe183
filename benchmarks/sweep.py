"""Measures what a sweep costs beyond its training, and what a refused point costs.

    python benchmarks/sweep.py [--trials 32]

Prints the wall seconds of a whole sweep (Ray's start, trials, table, price; corpora and the public model exist beforehand)
over the seconds that its trials take when they are trained one after another in one process, divided by the cores; then the
mean seconds to refuse a point. Both parts of the ratio are measured in one run, with one thread per trial.

Two idle cores: sweep 419 s, bare training 688 s, ratio 1.22; a refused point 0.085 s.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import tempfile
import time
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

import torch

from uedp_ray.config import PretrainConfig, load_config
from uedp_ray.search.feasibility import alone, judge, random_points
from uedp_ray.search.sweep import sweep
from uedp_ray.search.sweep_config import load_sweep_config
from uedp_ray.training.host import train
from uedp_ray.training.pretrain import warm_started
from uedp_ray.training.texts import prepare_corpora

RECIPE = Path(__file__).parents[1] / "sweeps" / "quickstart.yaml"


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
        started = time.perf_counter()
        answer = sweep(config, work / "sweep")
        whole = time.perf_counter() - started
        bare = sum(_bare(Path(row["run_dirs"][0]), work) for row in answer["trials"])
    cores = os.cpu_count() or 1
    print(f"{trials} trials, {cores} cores: sweep {whole:.0f} s, bare training {bare:.0f} s")
    print(f"wall / (bare / cores) = {whole / (bare / cores):.2f}")
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
