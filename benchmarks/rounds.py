"""Times a round's local updates, ours and by others' libraries, against plain training of the same sentences.

    python benchmarks/rounds.py [--rounds 3] [--methods plain "by hand"] [--size small|gpt2] [--lora] [--device cuda]
        [--precision bf16] [--check | --profile]

What is computed: ``one_round/workload.py``. Methods compute the same rounds, in turn, after a small one that warms up. The
table has the median of their seconds, the least and the most, and plain training's median as a share: CPU time of the
process and those that it starts, in one thread; seconds by the clock on a GPU. Then each method has a process to itself for
one more round: its peak is the most memory resident in it, or in it and its children, shared pages counted once. On a GPU it
is the most that tensors take there.

Libraries of others are left out if they are not installed. They want an environment of their own, without constraints.txt:

    pip install -e '.[benchmarks]' && pip install --no-deps 'pfl>=0.4,<0.7' multiprocess dill prv-accountant

``--check`` compares what each method computes of a tiny network with the same in float64, and times nothing. ``--profile``
has each method compute one round under torch's profiler, and prints where its seconds went: by the clock, so that they say
something on an idle machine only.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
from one_round.sentences import Opacus, VmapGrad
from one_round.users import ByHand, Ours, PflResearch
from one_round.workload import SIZES, Exactly, Network, Plain, Workload, checked_clips, clipped

Round = Callable[[list[int], int], torch.Tensor | None]


def flower(work: Workload) -> Round:
    from one_round.flower import Flower

    return Flower(work)


class Method(NamedTuple):
    """``computes``: see ``workload``. ``needs``: what must be installed. ``apart``: it starts processes and threads, and so
    has a process of its own."""

    computes: str
    build: Callable[[Workload], Round]
    needs: tuple[str, ...] = ()
    tied: bool = True
    apart: bool = False


METHODS = {
    "plain": Method("plain", Plain),
    "by hand": Method("local_sgd", ByHand),
    "pfl-research": Method("local_sgd", PflResearch, ("pfl",)),
    "Flower": Method("local_sgd", flower, ("flwr", "psutil"), apart=True),
    "ours, local_sgd": Method("local_sgd", partial(Ours, name="local_sgd")),
    "Opacus, hooks": Method("gradient", partial(Opacus, mode="hooks"), ("opacus",)),
    "Opacus, ghost": Method("gradient", partial(Opacus, mode="ghost"), ("opacus",)),
    "Opacus, ghost, untied": Method("gradient", partial(Opacus, mode="ghost"), ("opacus",), tied=False),
    "vmap(grad)": Method("gradient", VmapGrad),
    "ours, gradient": Method("gradient", partial(Ours, name="gradient")),
}
MARK = "@"
"""What a line of ``--serve`` begins with, as libraries print, too."""


def build(name: str, work: Workload) -> Round:
    method = METHODS[name]
    return method.build(work if method.tied else replace(work, tied=False))


def installed(name: str) -> bool:
    return all(map(importlib.util.find_spec, METHODS[name].needs))


def close(method: Round) -> None:
    getattr(method, "close", lambda: None)()


def cpu_seconds(apart: bool) -> float:
    """Of this process, and of those that it has started."""
    if not apart:
        return time.process_time()
    import processes

    return sum(map(processes.cpu_seconds, processes.family()))


def timed(name: str, method: Round, work: Workload, round_index: int) -> tuple[float, float]:
    """Seconds, and MiB of a GPU at the peak."""
    users, apart = work.drawn(round_index), METHODS[name].apart
    if work.device == "cpu":
        started = cpu_seconds(apart)
        method(users, round_index)
        return cpu_seconds(apart) - started, 0.0
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    begun = time.perf_counter()
    method(users, round_index)
    torch.cuda.synchronize()
    return time.perf_counter() - begun, torch.cuda.max_memory_allocated() / 2**20


class Apart:
    """A process for one method."""

    def __init__(self, name: str, options: list[str]):
        command = [sys.executable, __file__, *options, "--serve", name]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, round_index: int) -> tuple[float, float]:
        """Seconds of a round, and MiB at the peak: of a GPU, or resident in the process."""
        print(round_index, file=self.process.stdin, flush=True)
        for line in self.process.stdout:
            if line.startswith(MARK):
                return tuple(json.loads(line[len(MARK) :]))
        raise SystemExit(f"a process has ended: {self.process.args[-1]}")

    def close(self) -> None:
        self.process.stdin.close()
        self.process.wait()


def serve(name: str, work: Workload) -> None:
    """Answers rounds that are asked for."""
    method = build(name, work)
    for line in sys.stdin:
        seconds, peak = timed(name, method, work, int(line))
        print(MARK + json.dumps((seconds, peak or resident())), flush=True)
    close(method)


def resident() -> float:
    """MiB that were resident at most in this process, on Linux. What getrusage says may be the parent's."""
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) / 1024


def peak_memory(name: str, options: list[str]) -> float:
    """MiB, of a round in a process of its own."""
    apart = Apart(name, options)
    if METHODS[name].apart:
        import processes

        with processes.memory_of_family(apart.process.pid) as most:
            apart.ask(1)
        (peak,) = most
    else:
        _, peak = apart.ask(1)
    print(f"peak memory, {name}: {peak:.0f} MiB", file=sys.stderr, flush=True)
    apart.close()
    return peak


def measured(names: list[str], work: Workload, options: list[str], rounds: int) -> dict[str, list[tuple[float, float]]]:
    """By method, each round's seconds and MiB."""
    asked: dict[str, Callable[[int], tuple[float, float]]] = {}
    methods: dict[str, Apart | Round] = {}
    for name in names:
        begun = time.perf_counter()
        methods[name] = method = Apart(name, options) if METHODS[name].apart else build(name, work)
        print(f"{name}: made and tried out in {time.perf_counter() - begun:.0f} s", file=sys.stderr, flush=True)
        asked[name] = method.ask if isinstance(method, Apart) else partial(timed, name, method, work)
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in names}
    for round_index in range(rounds + 1):
        for name, ask in asked.items():
            found[name].append(ask(round_index))
            print(f"round {round_index}, {name}: {found[name][-1][0]:.2f} s", file=sys.stderr, flush=True)
    for method in methods.values():
        close(method)
    return {name: each[1:] for name, each in found.items()}


def check(names: list[str], work: Workload) -> None:
    """Raises: SystemExit if a method computes something else."""
    users = work.drawn(1)
    for name in names:
        here = checked_clips(work if METHODS[name].tied else replace(work, tied=False), users, 1)
        exactly, method = Exactly(here), METHODS[name].build(here)
        found = method(users, 1)
        if isinstance(method, Ours):
            found = method.value(found)
        close(method)
        if METHODS[name].computes == "plain":
            continue
        if METHODS[name].computes == "local_sgd":
            expected = clipped(torch.stack(exactly.changes(users, 1)), here.user_clip).sum(0)
        else:
            of_users = torch.stack([clipped(rows, here.sentence_clip).sum(0) for rows in exactly.downhill(users)])
            expected = (clipped(of_users, here.user_clip) if isinstance(method, Ours) else of_users).sum(0)
        error = float((found.double() - expected).norm() / expected.norm())
        print(f"{name:22} {error:.1e} of the sum's length from the same in float64", flush=True)
        if not error < 1e-4:
            raise SystemExit(f"{name} computes something else")


KERNELS = {
    "products": ("aten::mm", "aten::addmm", "aten::bmm"),
    "attention": ("aten::_scaled_dot_product",),
    "losses": ("aten::_softmax", "aten::_log_softmax", "aten::nll_loss", "_Chunked", "LogSoftmaxBackward0"),
    "other kernels": ("aten::",),
}
"""By what their names begin with."""


def profile(names: list[str], work: Workload) -> None:
    """Prints seconds of a round by kind of kernel; ``rest``: Python, and what is between kernels. ``pages``: CPU seconds of
    all these in which the system found memory."""
    print(f"{'':22} {'all':>6}" + "".join(f"{kind:>14}" for kind in (*KERNELS, "rest", "pages")))
    for name in names:
        method = build(name, work)
        method(work.drawn(0), 0)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as seen:
            begun, system = time.perf_counter(), resource.getrusage(resource.RUSAGE_SELF).ru_stime
            method(work.drawn(1), 1)
            whole = time.perf_counter() - begun
            pages = resource.getrusage(resource.RUSAGE_SELF).ru_stime - system
        seconds = dict.fromkeys(KERNELS, 0.0)
        for each in seen.key_averages():
            kind = next((kind for kind, starts in KERNELS.items() if each.key.startswith(starts)), None)
            if kind is not None:
                seconds[kind] += each.self_cpu_time_total / 1e6
        told = (*seconds.values(), whole - sum(seconds.values()), pages)
        print(f"{name:22} {whole:6.2f}" + "".join(f"{each:14.2f}" for each in told), flush=True)
        close(method)


def versions() -> str:
    names = ("torch", "transformers", "pfl", "flwr", "ray", "opacus")
    return ", ".join(f"{name} {importlib.metadata.version(name)}" for name in names if importlib.util.find_spec(name))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--precision", default="float32", choices=["float32", "bf16"])
    parser.add_argument("--size", default="small", choices=SIZES)
    parser.add_argument("--lora", action="store_true", help="train LoRA matrices of rank 4 only")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=METHODS, metavar="METHOD")
    parser.add_argument(
        "--sentence-batch", type=int, help="sentences of a batch of Opacus and vmap: 16, or 64 on a GPU"
    )
    instead = parser.add_mutually_exclusive_group()
    instead.add_argument("--check", action="store_true", help="compare what methods compute, and time nothing")
    instead.add_argument("--profile", action="store_true", help="say where a round's seconds go")
    parser.add_argument("--serve", choices=METHODS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    sentence_batch = arguments.sentence_batch or (16 if arguments.device == "cpu" else 64)
    options = ["--device", arguments.device, "--precision", arguments.precision, "--size", arguments.size]
    options += ["--sentence-batch", str(sentence_batch), *["--lora"] * arguments.lora]
    named = {"device": arguments.device, "precision": arguments.precision, "lora": arguments.lora}
    work = replace(SIZES["tiny" if arguments.check else arguments.size], sentence_batch_size=sentence_batch, **named)
    if arguments.serve:
        return serve(arguments.serve, work)
    asked = [
        name for name in METHODS if name in {"plain", *arguments.methods} and (METHODS[name].tied or not work.lora)
    ]
    names = [name for name in asked if installed(name)]
    if arguments.check:
        return check(names, work)
    if arguments.profile:
        return profile([name for name in names if not METHODS[name].apart], work)
    found = measured(names, work, options, arguments.rounds)
    peaks = {name: peak_memory(name, options) for name in names} if work.device == "cpu" else {}
    where = torch.cuda.get_device_name() if work.device == "cuda" else "one thread of a CPU"
    print(f"{Network(work).params.num / 1e6:.2f} million trained parameters, {work.precision}, {where}")
    print(f"{versions()}; rounds: {arguments.rounds}")
    print(f"{'':22} {'computes':>10} {'seconds':>8} {'least to most':>16} {'speed':>6} {'peak MiB':>9}")
    plain = statistics.median(seconds for seconds, _ in found["plain"])
    for name in asked:
        if name not in names:
            print(f"{name:22} not installed")
            continue
        seconds = [each for each, _ in found[name]]
        middle, spread = statistics.median(seconds), f"{min(seconds):.2f} to {max(seconds):.2f}"
        peak = peaks.get(name) or (0.0 if METHODS[name].apart else max(each for _, each in found[name]))
        print(
            f"{name:22} {METHODS[name].computes:>10} {middle:8.2f} {spread:>16} {plain / middle:6.2f} "
            + (f"{peak:9.0f}" if peak else "")  # of a GPU, other processes' is not seen
        )
    return None


if __name__ == "__main__":
    os.environ |= {"OMP_NUM_THREADS": "1", "RAY_USAGE_STATS_ENABLED": "0", "FLWR_TELEMETRY_ENABLED": "0"}
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # of which ``exact_arithmetic`` may be too late to tell
    main()
