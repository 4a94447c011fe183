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
import threading
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

import torch

from uedp_ray.config import PretrainConfig, load_config
from uedp_ray.reporting import Reporter
from uedp_ray.search.feasibility import alone, judge, random_points
from uedp_ray.search.sweep import sweep
from uedp_ray.search.sweep_config import load_sweep_config
from uedp_ray.training.host import train
from uedp_ray.training.pretrain import warm_started
from uedp_ray.training.texts import prepare_corpora


class Phases(Reporter):
    """When the search began and ended, in seconds since this was made."""

    def __init__(self) -> None:
        self._made = time.perf_counter()
        self.at: dict[str, float] = {}

    def say(self, line: str) -> None:
        self.at[line.partition(":")[0].partition(",")[0]] = time.perf_counter() - self._made


class Descendants(threading.Thread):
    """CPU seconds of this process and all below it, by what they are, as far as they were seen before they ended."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self._seen: dict[tuple[str, int], float] = {}
        self._ended = threading.Event()

    def run(self) -> None:
        while not self._ended.wait(0.5):
            self._look()

    def _look(self) -> None:
        found = {}
        for path in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                name, _, rest = (path / "stat").read_text().partition("(")[2].rpartition(")")
                fields = rest.split()
                found[int(path.name)] = (
                    name,
                    int(fields[1]),
                    (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"),
                )
        below = {os.getpid()}
        while more := {pid for pid, (_, parent, _) in found.items() if parent in below} - below:
            below |= more
        for pid in below & found.keys():
            name, _, taken = found[pid]
            what = "driver" if pid == os.getpid() else "trials" if name.startswith("ray::Implicit") else "beside"
            what = "winner" if name.startswith("ray::_answer") else what
            self._seen[what, pid] = taken

    def end(self) -> dict[str, float]:
        self._ended.set()
        self.join()
        total = Counter[str]()
        for (what, _), taken in self._seen.items():
            total[what] += taken
        return total


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
        phases, below, own = Phases(), Descendants(), time.process_time()
        below.start()
        started = time.perf_counter()
        answer = sweep(config, work / "sweep", reporter=phases)
        whole = time.perf_counter() - started
        taken = below.end() | {"driver": time.process_time() - own}
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
