"""What a change of settings is worth at one epsilon: variants of a sweep's base, each trained some times, side by side.

    UEDP_DATA=/path/to/corpora python benchmarks/levers.py sweeps/conll2003.yaml --text plays contracts --out /tmp/levers \
      --variant "40 passes: training.passes=40 training.server_learning_rate=0.006" \
      --variant "fill: training.passes=40 training.server_learning_rate=0.006 bounds.holder_bound=fill" --jobs 2

A variant is laid over the one before it if its name begins with ``+``, else over the base. ``--text`` names proxies of the
sweep. ``--private`` adds its private text: an experiment on research text, as no epsilon pays for reading several runs. Runs
of one variant differ in sampling and noise, and share a pre-trained start, which is made anew for other pre-training. Prints
each run as it ends, with the best of the scores on the way (what choosing a checkpoint could give; the evaluated text must
then be unprotected), and at last a line per variant and text: the mean, a 95 % interval of it (Student's t), and seconds.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
import yaml
from scipy import stats

from uedp_ray.config import RunConfig
from uedp_ray.methods import overlay
from uedp_ray.search.layout import SweepDir
from uedp_ray.search.proxies import searched_bases
from uedp_ray.search.sweep_config import laid_over, load_sweep_config
from uedp_ray.training.host import train
from uedp_ray.training.pretrain import warm_started
from uedp_ray.training.texts import prepare_corpora

PRIVATE = "private"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("sweep")
    parser.add_argument("--text", nargs="*", default=[])
    parser.add_argument("--private", action="store_true")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--epsilon", type=float, nargs="+", default=[8.0])
    parser.add_argument("--variant", action="append", default=[])
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--set", action="append", default=[])
    arguments = parser.parse_args()
    sweep = load_sweep_config(arguments.sweep, arguments.set)
    bases = {name: base for name, base in searched_bases(sweep).items() if name in arguments.text}
    if arguments.private:
        bases[PRIVATE] = sweep.base
    bases = {name: prepare_corpora(base, arguments.out / "corpora" / name) for name, base in bases.items()}
    points = variants(arguments.variant)
    runs = [
        (
            name,
            text,
            epsilon,
            overlay(
                laid_over(base, sweep, point), {"privacy.target_epsilon": epsilon, "privacy.noise_multiplier": None}
            ),
        )
        for _ in range(arguments.seeds)
        for name, point in points.items()
        for text, base in bases.items()
        for epsilon in arguments.epsilon
    ]
    with ProcessPoolExecutor(arguments.jobs, multiprocessing.get_context("spawn"), one_thread) as pool:
        ends = {
            pool.submit(trained, run, arguments.out, f"{number}-{text}"): (name, text, epsilon)
            for number, (name, text, epsilon, run) in enumerate(runs)
        }
        found: dict[tuple[str, str, float], list[dict[str, float]]] = {}
        for end in as_completed(ends):
            row = {"variant": ends[end][0], "text": ends[end][1], "epsilon": ends[end][2], **end.result()}
            print(json.dumps(row), flush=True)
            found.setdefault(ends[end], []).append(row)
    for key, rows in sorted(found.items(), key=lambda item: (item[0][1:], item[0][0])):
        print(*key, *summary([row["perplexity"] for row in rows]), f"{np.mean([row['seconds'] for row in rows]):.0f} s")


def variants(texts: list[str]) -> dict[str, dict[str, Any]]:
    """Name -> settings."""
    found: dict[str, dict[str, Any]] = {}
    before: dict[str, Any] = {}
    for text in texts:
        name, _, settings = text.partition(":")
        own = {key: yaml.safe_load(value) for key, _, value in (each.partition("=") for each in settings.split())}
        before = found[name] = before | own if name.startswith("+") else own
    return found


def one_thread() -> None:
    torch.set_num_threads(1)


def trained(run: RunConfig, out: Path, name: str) -> dict[str, float]:
    run = warm_started(run, SweepDir(out).pretrained(run))
    began, text = time.perf_counter(), name.partition("-")[2]
    tokens, public = out / "tokens" / text, text != PRIVATE
    result = train(run, out / "runs" / name, workers=0, tokens=tokens, public_source=public)
    scores = ("perplexity", "initial_perplexity", "bits_per_byte", "initial_bits_per_byte")
    kept = {name: result[name] for name in (*scores, "rounds")}
    rounds = pd.read_parquet(out / "runs" / name / "rounds.parquet")
    kept["best_on_the_way"] = min(float(rounds["perplexity"].min()), result["perplexity"])
    return kept | {"seconds": time.perf_counter() - began}


def summary(values: list[float]) -> tuple[str, str]:
    if len(values) == 1:
        return f"{values[0]:.1f}", ""
    half = stats.t.ppf(0.975, len(values) - 1) * np.std(values, ddof=1) / math.sqrt(len(values))
    return f"{np.mean(values):.1f}", f"± {half:.1f} (n = {len(values)})"


if __name__ == "__main__":
    main()
