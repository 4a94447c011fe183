"""Times the parts of a run's rounds with one worker and with several, each a process of Ray Train with one thread.

    python benchmarks/workers.py [--workers 1 2] [--nodes 4] [--users 200] [--rounds 4] [--hidden 128] [--layers 2]
        [--evaluate-every 1] [--aggregation auto] [--into FOLDER]

One run for each number of workers, of the same made-up text, samples and noise (``privacy.test_noise_seed``), and one on as
many Ray nodes as asked for, each of one CPU and one worker; 0 leaves that out. The first round, which warms up, does not
count. By the clock: seconds of a round, and as many rounds with one worker in that time. That says something only on a
machine that has a core for each worker and nothing else to do; and then no more than its cores do at once: ``N apart`` are
so many runs of one worker at the same time, which share nothing but the machine.

On any machine CPU seconds say what the clock would: a round takes as long as the slowest worker of each part, one part after
the other, and the rest of the workers wait. So over a round of one worker, ``from CPU`` is its CPU seconds over those of
the slowest, added up over parts; ``of linear`` has all workers' CPU seconds of the same run in place of one worker's, over
their number. Left out is what a network takes for a vector; waiting and messages are by the clock of the driver.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

os.environ |= {"OMP_NUM_THREADS": "1", "RAY_USAGE_STATS_ENABLED": "0"}
os.environ.setdefault("RAY_enable_worker_prestart", "0")

from uedp_ray.config import RunConfig, SourceConfig, from_dict
from uedp_ray.corpus.prepare import prepare
from uedp_ray.training import host
from uedp_ray.training.host import train

WORK = ("local sum", "noise", "step", "charge", "evaluation", "checkpoint", "rest")
"""Parts in which CPUs compute. ``rest``: of a process, in any thread; its messages, mostly."""
Round = dict[str, tuple[float, float]]
"""Seconds by the clock and of the CPU, by part."""


class Parts:
    """What one worker's rounds are made of. A part within another does not count for that one."""

    def __init__(self) -> None:
        self.rounds: list[dict[str, list[float]]] = []
        self._open: list[list[float]] = []
        self._began = (0.0, 0.0)

    def next_round(self) -> None:
        self.end()
        self.rounds.append(defaultdict(lambda: [0.0, 0.0]))
        self._began = time.perf_counter(), time.process_time()

    def end(self) -> None:
        if self.rounds and "round" not in self.rounds[-1]:
            wall, cpu = (now - then for now, then in zip(_now(time.process_time), self._began, strict=True))
            known = sum(self.rounds[-1][part][1] for part in WORK)
            self.rounds[-1] |= {"round": [wall, cpu], "rest": [0.0, cpu - known]}

    @contextlib.contextmanager
    def part(self, name: str) -> Iterator[None]:
        began = _now(time.thread_time)
        self._open.append([0.0, 0.0])
        yield
        whole = [now - then for now, then in zip(_now(time.thread_time), began, strict=True)]
        inner = self._open.pop()
        if self._open:
            self._open[-1] = [a + b for a, b in zip(self._open[-1], whole, strict=True)]
        if self.rounds:
            found = self.rounds[-1][name]
            found[:] = [a + b - c for a, b, c in zip(found, whole, inner, strict=True)]

    def timed(self, name: str, function: Callable[..., Any], before: Callable[..., None] | None = None) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            if before is not None:
                before(*args)
            with self.part(name):
                return function(*args, **kwargs)

        return call

    def drawn_ahead(self, blocks: Callable[..., Iterator[Any]]) -> Any:
        """Counts what a thread of its own draws as noise."""

        def draw(*args: Any, **kwargs: Any) -> Iterator[Any]:
            made = blocks(*args, **kwargs)
            while True:
                began, of = time.thread_time(), self.rounds[-1]["noise"] if self.rounds else [0.0, 0.0]
                block = next(made, None)
                of[1] += time.thread_time() - began
                if block is None:
                    return
                yield block

        return draw


def _now(cpu: Callable[[], float]) -> tuple[float, float]:
    return time.perf_counter(), cpu()


def watched(inner: Callable[[dict[str, Any]], None], folder: Path) -> Callable[[dict[str, Any]], None]:
    """The function that a worker of Ray Train runs, with a clock in it."""

    def work(settings: dict[str, Any]) -> None:
        import torch

        from uedp_ray.plan import Plan
        from uedp_ray.privacy import noise
        from uedp_ray.training import driver, reduce, rounds, worker

        torch.set_num_threads(1)
        parts = Parts()
        run_rounds = worker.run_rounds

        def wait(reducer: Any, vector: torch.Tensor) -> None:
            if vector.numel() > 1:
                with parts.part("waiting"):
                    torch.distributed.all_reduce(torch.zeros(1))

        def watching(state: rounds.RoundState, **how: Any) -> rounds.RoundState:
            summed, after = how["local_sum"], how["after_round"]

            def local_sum(*args: Any) -> torch.Tensor:
                parts.next_round()
                return parts.timed("local sum", summed)(*args)

            step = state.optimizer.step
            state.optimizer.step = parts.timed("step", step)  # type: ignore[method-assign]
            run_rounds(state, **how | {"local_sum": local_sum, "after_round": after})
            parts.end()
            (folder / f"{torch.distributed.get_rank()}.json").write_text(json.dumps(parts.rounds))
            return state

        worker.run_rounds = watching
        worker.score = parts.timed("evaluation", worker.score)
        Plan.release = parts.timed("noise", Plan.release)  # type: ignore[method-assign]
        noise.keyed_blocks = parts.drawn_ahead(noise.keyed_blocks)
        driver.RunDriver.charge = parts.timed("charge", driver.RunDriver.charge)  # type: ignore[method-assign]
        driver.save_checkpoint = parts.timed("checkpoint", driver.save_checkpoint)
        for name in ("sum_to_driver", "from_driver", "sum_of_parts", "to_all"):
            if hasattr(reduce.DistributedReducer, name):
                before = wait if name.startswith("sum") else None
                own = getattr(reduce.DistributedReducer, name)
                setattr(reduce.DistributedReducer, name, parts.timed("messages", own, before))
        inner(settings)

    return work


def rounds_of(config: RunConfig, workers: int, folder: Path) -> list[list[Round]]:
    """By worker, the parts of each round."""
    folder.mkdir()
    kept = host._ray_worker
    host._ray_worker = watched(kept, folder)
    try:
        train(config, folder / "run", workers=workers, cpus_per_worker=1, gpus_per_worker=0)
    finally:
        host._ray_worker = kept
    return [kept_rounds(folder, rank) for rank in range(workers)]


def kept_rounds(folder: Path, rank: int = 0) -> list[Round]:
    """The parts of a worker's rounds, but for the first."""
    found: list[Round] = json.loads((folder / f"{rank}.json").read_text())[1:]
    return found


def apart(number: int, folder: Path) -> list[list[Round]]:
    """The parts of each round of so many runs of one worker at once, in processes that run this file."""
    folders = [folder / f"{number}-apart" / str(n) for n in range(number)]
    alone = [sys.executable, __file__, *sys.argv[1:], "--workers=1", "--nodes=0", "--into"]
    children = [subprocess.Popen([*alone, str(each)], stdout=subprocess.DEVNULL) for each in folders]
    codes = [child.wait() for child in children]  # all of them
    if any(codes):
        raise SystemExit("a run beside another failed")
    return [kept_rounds(each / "1-worker") for each in folders]


@contextlib.contextmanager
def nodes(number: int) -> Iterator[None]:
    """A Ray cluster of so many nodes on this machine, each with one CPU."""
    import ray
    from ray.cluster_utils import Cluster

    from uedp_ray.interrupts import handlers_kept

    one = {"num_cpus": 1, "object_store_memory": 100_000_000}
    with handlers_kept():
        ray.init(address="local", num_cpus=1, include_dashboard=False, log_to_driver=False, logging_level="error")
        ray.shutdown()  # a session of its own has turned tokens on in this process
        cluster = Cluster(initialize_head=True, head_node_args={**one, "include_dashboard": False})
        for _ in range(number - 1):
            cluster.add_node(**one)
        ray.init(address=cluster.address, log_to_driver=False, logging_level="error")
    try:
        yield
    finally:
        ray.shutdown()
        cluster.shutdown()


def inputs(folder: Path, arguments: argparse.Namespace) -> RunConfig:
    for part, users in (("private", arguments.users), ("held_out", arguments.users // 4)):
        prepare(SourceConfig(format="synthetic", num_users=users, part=part), folder / part)  # type: ignore[arg-type]
    tree: dict[str, Any] = {
        "name": "workers",
        "corpus": {
            "declared_num_users": arguments.users,
            "source": {"path": str(folder / "private")},
            "evaluation": {"path": str(folder / "held_out")},
        },
        "vocabulary": {"public_text": [{"format": "synthetic", "num_users": 100, "part": "public"}]},
        "privacy": {"noise_multiplier": 1.0, "user_sampling_prob": 0.5, "delta": 1e-4, "test_noise_seed": 1},
        "bounds": {"max_holders": 20},
        "model": {"num_layers": arguments.layers, "hidden_size": arguments.hidden, "num_heads": 4, "max_length": 48},
    }
    tree["training"] = {
        "num_rounds": arguments.rounds + 1,
        "evaluate_every": arguments.evaluate_every,
        "checkpoint_every": arguments.rounds + 1,
        "device": "cpu",
    }
    if arguments.aggregation is not None:
        tree["training"]["aggregation"] = arguments.aggregation
    return from_dict(RunConfig, tree)


def slowest(found: list[list[Round]], part: str, which: int = 1) -> float:
    """Of a round: seconds of the worker that has most, on average."""
    return statistics.mean(
        max(each.get(part, (0.0, 0.0))[which] for each in of_all) for of_all in zip(*found, strict=True)
    )


def total(found: list[list[Round]], part: str) -> float:
    return sum(statistics.mean(each.get(part, (0.0, 0.0))[1] for each in of_one) for of_one in found)


def tell(name: str, found: list[list[Round]], alone: tuple[float, float] | None, rounds: int) -> tuple[float, float]:
    """Prints a run; returns a round's seconds by the clock and of the CPU. ``rounds``: those that end in that time."""
    workers = len(found)
    clock = slowest(found, "round", 0)
    work, longest = (sum(of(found, part) for part in WORK) for of in (total, slowest))
    shared = " ".join(f"{slowest(found, part):>10.3f}" for part in WORK)
    waiting, messages = (
        statistics.mean(each.get(part, [0.0, 0.0])[0] for each in found[0]) for part in ("waiting", "messages")
    )
    over = "" if alone is None else f"{rounds * alone[0] / clock:>9.2f} {rounds * alone[1] / longest:>9.2f}"
    print(f"{name:<10} {clock:>8.3f} {work:>8.3f} {shared} {waiting:>8.3f} {messages:>8.3f} {over:>19}", end="")
    print(f" {work / workers / longest:>9.3f}", flush=True)
    return clock, work


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--users", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--evaluate-every", type=int, default=1)
    parser.add_argument("--aggregation", choices=["auto", "driver", "sharded"])
    parser.add_argument("--into", type=Path, help="a folder to keep the parts of rounds in")
    arguments = parser.parse_args()
    runs: dict[str, list[list[Round]]] = {}
    with tempfile.TemporaryDirectory() as name:
        folder: Path = arguments.into or Path(name)
        folder.mkdir(parents=True, exist_ok=True)
        config = inputs(folder, arguments)
        for workers in arguments.workers:
            label = f"{workers} worker{'s' * (workers > 1)}"
            runs[label] = rounds_of(config, workers, folder / label.replace(" ", "-"))
            if workers > 1:
                runs[f"{workers} apart"] = apart(workers, folder)
        if arguments.nodes:
            with nodes(arguments.nodes):
                label = f"{arguments.nodes} nodes"
                runs[label] = rounds_of(config, arguments.nodes, folder / label.replace(" ", "-"))
    print(f"seconds of a round; {arguments.rounds} rounds, evaluated every {arguments.evaluate_every}")
    parts = " ".join(f"{part:>10}" for part in WORK)
    print(
        f"{'':<10} {'clock':>8} {'CPU':>8} {parts} {'waiting':>8} {'messages':>8} {'by clock':>9} {'from CPU':>9}",
        end="",
    )
    print(f" {'of linear':>9}")
    alone = None
    for label, found in runs.items():
        taken = tell(label, found, alone, len(found) if label.endswith("apart") else 1)
        alone = alone or (taken if len(found) == 1 else None)


if __name__ == "__main__":
    main()
