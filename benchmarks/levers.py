"""What a change of settings is worth at one epsilon: variants of a sweep's base, each trained some times, side by side.

    UEDP_DATA=/path/to/corpora python benchmarks/levers.py sweeps/conll2003.yaml --text plays contracts --out /tmp/levers \
      --variant "40 passes: training.passes=40 training.server_learning_rate=0.006" \
      --variant "fill: training.passes=40 training.server_learning_rate=0.006 bounds.holder_bound=fill" --jobs 2

A variant is laid over the one before it if its name begins with ``+``, else over the base. ``--text`` names proxies of the
sweep. ``--private`` adds its private text: an experiment on research text, as no epsilon pays for reading several runs. Runs
of one variant differ in sampling and noise, and share a pre-trained start, which is made anew for other pre-training. Prints
each run as it ends, and at last a line per variant and text: the mean, a 95 % interval of it (Student's t), and seconds.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import json
import math
import multiprocessing
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from scipy import stats

from uedp_ray.config import RunConfig
from uedp_ray.config.io import to_dict
from uedp_ray.search.feasibility import laid_over
from uedp_ray.search.proxies import searched_bases
from uedp_ray.search.sweep_config import load_sweep_config
from uedp_ray.training.host import train
from uedp_ray.training.pretrain import pretrain
from uedp_ray.training.texts import prepare_corpora


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
    parser.add_argument("--prepare", action="store_true", help="prepare the texts, and end")
    arguments = parser.parse_args()
    sweep = load_sweep_config(arguments.sweep, arguments.set)
    bases = {name: base for name, base in searched_bases(sweep).items() if name in arguments.text}
    if arguments.private:
        bases["private"] = sweep.base
    bases = {name: prepare_corpora(base, arguments.out / "corpora" / name) for name, base in bases.items()}
    if arguments.prepare:
        return
    points = variants(arguments.variant)
    runs = [
        (name, text, epsilon, at_epsilon(laid_over(base, sweep, point), epsilon))
        for _ in range(arguments.seeds)
        for name, point in points.items()
        for text, base in bases.items()
        for epsilon in arguments.epsilon
    ]
    with ProcessPoolExecutor(arguments.jobs, multiprocessing.get_context("spawn"), one_thread) as pool:
        starts = {start_of(run): run for *_, run in runs}
        made = {key: pool.submit(started, run, arguments.out / "pretrained" / key) for key, run in starts.items()}
        ends = {}
        for number, (name, text, epsilon, run) in enumerate(runs):
            where = arguments.out / "runs" / f"{number}-{text}"
            ends[pool.submit(trained, run, where, made[start_of(run)].result(), text != "private")] = (
                name,
                text,
                epsilon,
            )
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


def at_epsilon(run: RunConfig, epsilon: float) -> RunConfig:
    return dataclasses.replace(
        run, privacy=dataclasses.replace(run.privacy, target_epsilon=epsilon, noise_multiplier=None)
    )


def start_of(run: RunConfig) -> str:
    """Runs that start from the same weights."""
    tree = to_dict(run)
    kept = {name: value for name, value in tree["model"].items() if not name.startswith(("trainable", "lora"))}
    text = json.dumps([tree["pretrain"], tree["vocabulary"], kept], default=str, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def one_thread() -> None:
    torch.set_num_threads(1)


def started(run: RunConfig, out: Path) -> str:
    if not (out / "model").exists():
        run = dataclasses.replace(run, model=dataclasses.replace(run.model, trainable="full"))
        print(json.dumps({"pretrained": out.name, **pretrain(run, out)}), flush=True)
    return str(out / "model")


def trained(run: RunConfig, out: Path, start: str, public: bool) -> dict[str, float]:
    run = dataclasses.replace(run, model=dataclasses.replace(run.model, warm_start=start))
    began = time.perf_counter()
    result = train(
        run, out, workers=0, tokens=out.parent / f"tokens-{out.name.partition('-')[2]}", public_source=public
    )
    return {name: result[name] for name in ("perplexity", "initial_perplexity", "rounds")} | {
        "seconds": time.perf_counter() - began
    }


def summary(values: list[float]) -> tuple[str, str]:
    if len(values) == 1:
        return f"{values[0]:.1f}", ""
    half = stats.t.ppf(0.975, len(values) - 1) * np.std(values, ddof=1) / math.sqrt(len(values))
    return f"{np.mean(values):.1f}", f"± {half:.1f} (n = {len(values)})"


if __name__ == "__main__":
    main()
