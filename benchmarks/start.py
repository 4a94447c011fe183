"""Times what stands between a command and its work: imports, checks, a run's set-up, Ray.

    python benchmarks/start.py [--runs 7] [--sweeps 3]

Prints CPU seconds, medians of runs that take turns, with the least and the most: of whole commands, of `train` to the end of
its first round, and of a sweep of two trials with all processes that it starts. The floor is what importing torch,
transformers and GPT-2 takes, before Python takes them down again; the last column is the ratio to it. The inputs are made
here: 30 made-up users, a network of one layer and eight dimensions. One thread each.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
from processes import cpu_of_family, cpu_seconds

from uedp_ray.config import SourceConfig
from uedp_ray.corpus.prepare import prepare

ONE_THREAD = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "RAY_USAGE_STATS_ENABLED": "0"}
FLOOR = "import os, torch, transformers; from transformers import GPT2LMHeadModel"
ROUNDS = 5
PUBLIC = [{"format": "synthetic", "num_users": 20, "part": "public"}]
COMMAND = (sys.executable, "-m", "uedp_ray")
MOMENT = 0.02
"""Seconds between two looks at processes; what one takes after the last look at it is missed."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=7, help="of each command")
    parser.add_argument("--sweeps", type=int, default=3, help="sweeps among them; 0: none")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        seconds = measured(Path(folder), arguments.runs, arguments.sweeps)
    floor = statistics.median(seconds["floor"])
    print(f"{'':24} {'CPU seconds':>11} {'least to most':>15} {'of the floor':>13}")
    for name, found in seconds.items():
        spread, middle = f"{min(found):.2f} to {max(found):.2f}", statistics.median(found)
        print(f"{name:24} {middle:11.2f} {spread:>15} {middle / floor:13.2f}")


def measured(folder: Path, runs: int, sweeps: int) -> dict[str, list[float]]:
    run, sweep = inputs(folder)
    asked = ("--q-u", "0.01", "--noise-multiplier", "1", "--rounds", "1000", "--max-holders", "5")
    long = ("--set", "training.num_rounds=1000")
    commands: dict[str, Callable[[Path], float]] = {
        "floor": lambda out: whole(sys.executable, "-c", f"{FLOOR}; os._exit(0)"),
        "floor, and its end": lambda out: whole(sys.executable, "-c", FLOOR),
        "--help": lambda out: whole(*COMMAND, "--help"),
        "epsilon": lambda out: whole(*COMMAND, "epsilon", *asked),
        "plan": lambda out: whole(*COMMAND, "plan", run),
        "train, to round 1": lambda out: until(
            out / "progress.json", *COMMAND, "train", run, *long, "--workers", "0", "--out", out
        ),
        f"train, {ROUNDS} rounds": lambda out: whole(*COMMAND, "train", run, "--workers", "0", "--out", out),
        "sweep, 2 trials": lambda out: with_all(*COMMAND, "sweep", sweep, "--out", out),
    }
    seconds: dict[str, list[float]] = {name: [] for name in commands}
    for turn in range(runs):
        for place, (name, command) in enumerate(commands.items()):
            if turn < sweeps or not name.startswith("sweep"):
                seconds[name].append(command(folder / f"{turn}-{place}"))
    return {name: found for name, found in seconds.items() if found}


def inputs(folder: Path) -> tuple[Path, Path]:
    """A run file and a sweep file, on text that is prepared beforehand."""
    for part in ("private", "held_out"):
        prepare(SourceConfig(format="synthetic", num_users=30, part=part), folder / part)  # type: ignore[arg-type]
    tree: dict[str, Any] = {
        "name": "tiny",
        "corpus": {"declared_num_users": 30, "declared_num_tokens": 5000, "source": {"path": str(folder / "private")}},
        "vocabulary": {"public_text": PUBLIC, "max_size": 250},
        "privacy": {"noise_multiplier": 1.0, "user_sampling_prob": 0.3, "delta": 1e-4},
        "bounds": {"max_holders": 3},
        "model": {"num_layers": 1, "hidden_size": 8, "num_heads": 2, "max_length": 12},
        "training": {"num_rounds": ROUNDS, "evaluate_every": 2, "checkpoint_every": 2, "device": "cpu"},
    }
    tree["corpus"]["evaluation"] = {"path": str(folder / "held_out")}
    run, sweep = folder / "run.yaml", folder / "sweep.yaml"
    run.write_text(json.dumps(tree))  # which is YAML, too
    searched = {
        "base": {**tree, "privacy": {"user_sampling_prob": 0.3}},
        "space": {"training.server_learning_rate": {"log_uniform": [0.001, 0.1]}},
        "budget": {"target_epsilon": 8.0, "delta": 1e-4, "covers": "each_trial"},
        "search": {"trials": 2},
        "resources": {"max_concurrent": 1},
    }
    sweep.write_text(json.dumps(searched))
    return run, sweep


def started(*command: object) -> subprocess.Popen[bytes]:
    quiet = subprocess.DEVNULL
    return subprocess.Popen([*map(str, command)], env={**os.environ, **ONE_THREAD}, stdout=quiet, stderr=quiet)


def whole(*command: object) -> float:
    """CPU seconds of a command that starts no process of its own."""
    process = started(*command)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0, command
    return used.ru_utime + used.ru_stime


def until(file: Path, *command: object) -> float:
    """CPU seconds of a command until it writes a file. It is then killed."""
    with started(*command) as process:
        while not file.exists():
            assert process.poll() is None, command
            time.sleep(MOMENT / 4)
        taken = cpu_seconds(psutil.Process(process.pid))
        process.kill()
    return taken


def with_all(*command: object) -> float:
    """CPU seconds of a command and of all processes below it, as last seen."""
    with started(*command) as process, cpu_of_family(process.pid, MOMENT) as seen:
        process.wait()
    assert process.returncode == 0, command
    return sum(seconds for _, seconds in seen.values())


if __name__ == "__main__":
    main()
