"""Times the draws of a round and the gathering of who computes on what, at 1,000,000 users and 10,000,000 sentences; and
how evenly the users of a round are spread over workers.

    python benchmarks/sampling.py [--users 1000000] [--cohorts 1000 10000] [--workers 8 64] [--repeats 7]

The graph is made up, and memory-mapped as a prepared corpus is: users have sentences by a lognormal law, half of the
sentences hold one to three entities of a Zipf law. CPU time, user and system: the least and the median of rounds, and the
most memory that a round took beyond the graph, with the CPU time as a multiple of what SHAKE-256 takes for the users' draws
alone, below which no round can get. No network: the model comes on top.

The slowest worker's positions as a multiple of the mean, over ten rounds: the median and the most, with the CPU time that
spreading took, and the same where users go by a hash.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
import tracemalloc
from pathlib import Path
from types import SimpleNamespace

import numpy as np

from uedp_ray.config import RunConfig, from_dict
from uedp_ray.corpus.bounds import mix64
from uedp_ray.plan import Plan
from uedp_ray.privacy.sampling import PoissonSampler
from uedp_ray.training.balance import loads_of, spread


def made_up(folder: Path, users: int, per_user: int) -> SimpleNamespace:
    """A corpus's graph and weights, memory-mapped."""
    rng = np.random.default_rng(0)
    size = rng.lognormal(0.0, 1.0, users)
    sentences = np.maximum(1, np.round(size * per_user / size.mean())).astype(np.int64)
    user_offsets = np.concatenate([[0], np.cumsum(sentences)])
    total = int(user_offsets[-1])
    held = np.where(rng.random(total) < 0.5, rng.integers(1, 4, total), 0)
    num_entities = users
    ids = np.minimum(rng.zipf(1.3, int(held.sum())), num_entities) - 1
    order = np.lexsort((ids, np.repeat(np.arange(total), held)))
    owner, ids = np.repeat(np.arange(total), held)[order], ids[order]
    distinct = np.concatenate([[True], (owner[1:] != owner[:-1]) | (ids[1:] != ids[:-1])])
    counts = np.bincount(owner[distinct], minlength=total)
    arrays = {
        "user_offsets": user_offsets,
        "entity_offsets": np.concatenate([[0], np.cumsum(counts)]),
        "entity_ids": ids[distinct].astype(np.int32),
        "sentence_weight": rng.choice(np.array([0.0, 0.5, 1.0], np.float32), total),
    }
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array)
    mapped = {name: np.load(folder / f"{name}.npy", mmap_mode="r") for name in arrays}
    return SimpleNamespace(**mapped, num_entities=num_entities)


def measure(name: str, graph: SimpleNamespace, cohort: int, repeats: int, alone: float, **privacy: object) -> None:
    users = len(graph.user_offsets) - 1
    tree = {
        "corpus": {"declared_num_users": users},
        "privacy": {"noise_multiplier": 1.0, "user_sampling_prob": cohort / users, **privacy},
    }
    plan, sampler = Plan.of(from_dict(RunConfig, tree)), PoissonSampler(bytes(32))
    everyone = np.arange(users)
    seconds, drawn, sentences = [], 0, 0
    for round_index in range(repeats + 2):
        if round_index == repeats + 1:
            tracemalloc.start()
        began = time.process_time()
        drawn = sentences = 0
        for each in plan.select(
            graph,  # type: ignore[arg-type]  # the rest of the graph is for bounds
            everyone,
            sampler,
            round_index=round_index,
            attempt=0,
            sentence_weight=graph.sentence_weight,
        ):
            drawn, sentences = drawn + 1, sentences + len(each.sentences)
        seconds.append(time.process_time() - began)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    seconds = seconds[1:-1]  # the first reads the files, the last is traced
    middle = statistics.median(seconds)
    print(
        f"{name:<34}{drawn:>8,} users {sentences:>9,} sentences   "
        f"{min(seconds) * 1e3:6.1f} to {middle * 1e3:6.1f} ms ({middle / alone:4.1f})   {most / 2**20:6.1f} MiB"
    )


def spread_out(graph: SimpleNamespace, cohort: int, num_workers: int, rounds: int = 10) -> None:
    users = len(graph.user_offsets) - 1
    lengths = np.random.default_rng(1).integers(8, 49, len(graph.entity_offsets) - 1)
    token_offsets = np.concatenate([[0], np.cumsum(lengths)])
    loads = loads_of(graph.user_offsets, token_offsets, graph.sentence_weight)
    sampler, shares, hashed, seconds = PoissonSampler(bytes(32)), [], [], []
    for round_index in range(rounds):
        drawn = np.flatnonzero(sampler.draw(cohort / users, users, round_index=round_index, attempt=0, kind="user"))
        began = time.process_time()
        worker_of = spread(loads[drawn], num_workers)
        seconds.append(time.process_time() - began)
        by_hash = mix64(drawn.astype(np.uint64)) % np.uint64(num_workers)
        for found, where in ((shares, worker_of), (hashed, by_hash.astype(np.int64))):
            of_worker = np.bincount(where, loads[drawn], num_workers)
            found.append(float(of_worker.max() / of_worker.mean()))
    print(
        f"{num_workers:>3} workers, {cohort:>6,} users: by load {statistics.median(shares):.3f}, at most {max(shares):.3f}; "
        f"by hash {statistics.median(hashed):.2f}, at most {max(hashed):.2f}; {statistics.median(seconds) * 1e3:.1f} ms"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--users", type=int, default=1_000_000)
    parser.add_argument("--sentences", type=int, default=10, help="of a user, on average")
    parser.add_argument("--cohorts", type=int, nargs="+", default=[1_000, 10_000])
    parser.add_argument("--workers", type=int, nargs="+", default=[8, 64])
    parser.add_argument("--repeats", type=int, default=7)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        graph = made_up(Path(folder), args.users, args.sentences)
        sampler = PoissonSampler(bytes(32))
        began = time.process_time()
        for round_index in range(args.repeats):
            sampler.draw(0.001, args.users, round_index=round_index, attempt=0, kind="user")
        alone = (time.process_time() - began) / args.repeats
        print(f"drawing {args.users:,} users alone: {alone * 1e3:.1f} ms")
        for cohort in args.cohorts:
            measure("every entity (probability 1)", graph, cohort, args.repeats, alone, entity_sampling_prob=1.0)
            measure("entities for all, 0.5", graph, cohort, args.repeats, alone, entity_sampling_prob=0.5)
            each = {"entity_sampling_prob": 0.5, "entity_draw": "per_user"}
            measure("entities for each user, 0.5", graph, cohort, args.repeats, alone, **each)
            for num_workers in args.workers:
                spread_out(graph, cohort, num_workers)


if __name__ == "__main__":
    main()
