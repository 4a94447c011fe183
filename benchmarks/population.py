"""A round of 100,000,000 users on 1,000 workers, as some of these see it: draws, who takes whom, gathering, noise, step.

    python benchmarks/population.py [--users 100000000] [--cohort 100000] [--workers 1000] [--parameters 40000000]
        [--sentences 2] [--folder FOLDER] [--slow]

Run is the package's own code, for one worker at a time, on a made-up graph that is memory-mapped as a prepared corpus is (5
GB on disk at the default size; ``--folder`` keeps it for another time). Nothing is sent: what a worker would get of the
others is computed beforehand. No network is trained. CPU seconds of one thread; ``MiB`` is the most that NumPy and Python
took beside the mapped files, and of tensors what they hold.

``--slow`` draws all users by one stream, too, as runs of earlier versions do.
"""

from __future__ import annotations

import argparse
import tempfile
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from uedp_ray.config import RunConfig, from_dict
from uedp_ray.plan import Plan
from uedp_ray.privacy.noise import GaussianNoise
from uedp_ray.privacy.sampling import BLOCK, PoissonSampler
from uedp_ray.training.balance import Balance, DrawingTeam, loads_of, spread
from uedp_ray.training.checkpoint import Position, save_checkpoint
from uedp_ray.training.optimizers import server_optimizer
from uedp_ray.training.reduce import part_of
from uedp_ray.training.rounds import RoundState
from uedp_ray.training.sharding import Shard

_ROWS = 1 << 22
WHERE = {"round_index": 0, "attempt": 0}


def made_up(folder: Path, users: int, per_user: int) -> SimpleNamespace:
    """A corpus's graph, weights and token offsets: users have 1 to 2 n - 1 sentences, half of which hold an entity."""
    rng = np.random.default_rng(0)
    names = ("user_offsets", "token_offsets", "entity_offsets", "sentence_weight", "entity_ids")
    if not (folder / "entity_ids.npy").exists():
        _offsets(folder / "user_offsets.npy", users, lambda n: rng.integers(1, 2 * per_user, n))
        sentences = int(np.load(folder / "user_offsets.npy", mmap_mode="r")[-1])
        _offsets(folder / "token_offsets.npy", sentences, lambda n: rng.integers(8, 49, n))
        _offsets(folder / "entity_offsets.npy", sentences, lambda n: rng.integers(0, 2, n))
        held = int(np.load(folder / "entity_offsets.npy", mmap_mode="r")[-1])
        _filled(folder / "sentence_weight.npy", sentences, np.float32, lambda n: rng.integers(0, 8, n) > 0)
        _filled(folder / "entity_ids.npy", held, np.int32, lambda n: rng.random(n) ** 3 * users)
    return SimpleNamespace(**{n: np.load(folder / f"{n}.npy", mmap_mode="r") for n in names}, num_entities=users)


def _filled(path: Path, size: int, dtype: Any, values: Callable[[int], np.ndarray], more: int = 0) -> Any:
    mapped = np.lib.format.open_memmap(path, "w+", dtype, (size + more,))
    for start in range(0, size, _ROWS):
        stop = min(size, start + _ROWS)
        mapped[start + more : stop + more] = values(stop - start)
    return mapped


def _offsets(path: Path, size: int, counts: Callable[[int], np.ndarray]) -> None:
    last = [0]

    def running(n: int) -> np.ndarray:
        ends = np.cumsum(counts(n)) + last[0]
        last[0] = int(ends[-1])
        return ends

    _filled(path, size, np.int64, running, more=1)[0] = 0


def timed(name: str, function: Callable[[], Any], *, of_tensors: int = 0) -> Any:
    tracemalloc.start()
    began = time.process_time()
    found = function()
    seconds, most = time.process_time() - began, tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    print(f"{name:<66} {seconds:>9.4f} s {(most + of_tensors) / 2**20:>9.1f} MiB", flush=True)
    return found


class Heard:
    """A reducer of one of many workers: it gets what is known beforehand of the others."""

    is_driver = False

    def __init__(self, rank: int, num_workers: int, bits: torch.Tensor | None = None):
        self.rank, self.num_workers, self.bits = rank, num_workers, bits

    def sum_to_driver(self, vector: torch.Tensor) -> torch.Tensor:
        return vector

    def from_driver(self, vector: torch.Tensor) -> torch.Tensor:
        return vector if self.bits is None or vector.shape != self.bits.shape else self.bits

    def sum_of_part(self, vector: torch.Tensor) -> torch.Tensor:
        return vector[part_of(len(vector), self.rank, self.num_workers)].clone()

    def to_all(self, vector: torch.Tensor) -> torch.Tensor:
        return vector


def drawing(graph: SimpleNamespace, plan: Plan, arguments: argparse.Namespace) -> None:
    users, workers, cpu = arguments.users, arguments.workers, torch.device("cpu")
    loads = timed("a user's load, for all users (once a start)", lambda: _loads(graph))
    probability = plan.config.privacy.user_sampling_prob
    if arguments.slow:
        sampler = PoissonSampler(bytes(32))
        timed("all draws, by one stream", lambda: sampler.draw(probability, users, kind="user", **WHERE))
    alone = PoissonSampler(bytes(32), block=BLOCK)
    drawn = timed("all draws, by blocks", lambda: alone.draw(probability, users, kind="user", **WHERE))
    bits = torch.from_numpy(np.packbits(drawn))
    print(f"{int(drawn.sum()):,} users drawn; a worker sends and gets {len(bits) / 2**20:.1f} MiB")
    for rank in (0, workers // 2, workers - 1):
        heard = Heard(rank, workers, bits)
        of = {"rank": rank, "num_workers": workers, "reducer": heard, "device": cpu}
        sampler = PoissonSampler(bytes(32), block=BLOCK, team=DrawingTeam(**of))
        balance = Balance(loads=loads, sampler=sampler, **of)
        found = timed(f"worker {rank}: its draws", lambda s=sampler: s.draw(probability, users, kind="user", **WHERE))
        assert np.array_equal(found, drawn)
        taken = timed(f"worker {rank}: who takes whom", lambda b=balance: b.share(np.flatnonzero(drawn), **WHERE))
        selected = timed(
            f"worker {rank}: draws, who takes whom, and gathering",
            lambda s=sampler, b=balance: sum(
                1
                for _ in plan.select(
                    graph,  # type: ignore[arg-type]  # the rest of the graph is for bounds
                    None,
                    s,
                    sentence_weight=graph.sentence_weight,
                    share=lambda some: b.share(some, **WHERE),
                    **WHERE,
                )
            ),
        )
        print(f"  {len(taken):,} users, {selected:,} with a sentence that counts")
    of_worker = np.bincount(spread(loads[drawn], workers), loads[drawn], workers)
    print(f"the slowest worker has {of_worker.max() / of_worker.mean():.3f} times the mean load")


def _loads(graph: SimpleNamespace) -> np.ndarray:
    return loads_of(graph.user_offsets, graph.token_offsets, graph.sentence_weight)


def releasing(plan: Plan, size: int, workers: int) -> None:
    """The driver's noise and step, and a worker's."""
    parameters = torch.zeros(size)
    state = RoundState(parameters, server_optimizer(parameters, plan.config.training))
    total = plan.zeros(size, torch.device("cpu"))
    released = timed(
        "the driver: noise", lambda: plan.release(total, GaussianNoise(), round_index=0), of_tensors=total.nbytes
    )

    def step() -> None:
        state.stepped.grad = released.to(torch.float32).neg_()
        state.optimizer.step()
        state.stepped.grad = None

    step()
    timed("the driver: step", step, of_tensors=4 * parameters.nbytes)
    with tempfile.TemporaryDirectory() as folder:
        position = Position(1, "config", 1, "ledger")
        timed(
            "the driver: checkpoint",
            lambda: save_checkpoint(Path(folder, "checkpoint"), state, position),
            of_tensors=3 * parameters.nbytes,
        )
    shard = Shard(plan, None, Heard(workers // 2, workers), parameters)
    optimizer, whole = shard.optimizer(state.optimizer, stepped=False), plan.zeros(size, torch.device("cpu"))
    part = shard.sum(whole)
    released = timed("a worker: noise of its part", lambda: shard.release(part, 0), of_tensors=part.nbytes)
    own = shard.own

    def step_part() -> None:
        own.grad = released.to(torch.float32).neg_()
        optimizer.param_groups[0]["params"][0].grad = own.grad
        optimizer.step()

    step_part()
    timed("a worker: step of its part", step_part, of_tensors=4 * own.nbytes)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--users", type=int, default=10**8)
    parser.add_argument("--sentences", type=int, default=2, help="of a user, on average")
    parser.add_argument("--cohort", type=int, default=10**5)
    parser.add_argument("--workers", type=int, default=1_000)
    parser.add_argument("--parameters", type=int, default=40_000_000)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--slow", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    tree = {
        "corpus": {"declared_num_users": arguments.users},
        "privacy": {"noise_multiplier": 1.0, "user_sampling_prob": arguments.cohort / arguments.users},
    }
    plan = Plan.of(from_dict(RunConfig, tree))
    print(f"{arguments.users:,} users, {arguments.workers:,} workers, {arguments.parameters:,} trained parameters")
    releasing(plan, arguments.parameters, arguments.workers)
    with tempfile.TemporaryDirectory() as name:
        folder = arguments.folder or Path(name)
        folder.mkdir(exist_ok=True, parents=True)
        drawing(made_up(folder, arguments.users, arguments.sentences), plan, arguments)


if __name__ == "__main__":
    main()
