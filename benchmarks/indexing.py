"""Times what ``prepare`` and the set-up of a run do once for the whole text: counting its distinct words, shard after shard,
beside NumPy's union of each shard with all before it; and weighing its sentences by the bounds, once and
as the next run of the same process does.

    python benchmarks/indexing.py [--words 1000000] [--shards 64] [--users 1000000] [--incidences 5000000]

CPU time, user and system; memory is the most that NumPy held at once.
"""

from __future__ import annotations

import argparse
import time
import tracemalloc
from collections.abc import Callable
from types import SimpleNamespace

import numpy as np

from uedp_ray.config import BoundsConfig
from uedp_ray.corpus.bounds import apply_bounds, bounded_once
from uedp_ray.corpus.overlap import Distinct


def seconds(work: Callable[[], object]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began


def count_words(words: int, shards: int) -> None:
    rng = np.random.default_rng(0)
    shared = rng.integers(0, 2**64, 10_000, np.uint64)
    parts = [np.concatenate([shared, rng.integers(0, 2**64, words // shards, np.uint64)]) for _ in range(shards)]
    distinct, known = Distinct(), np.zeros(0, np.uint64)

    def ours() -> None:
        for part in parts:
            distinct.add(part)
        len(distinct)

    def by_union() -> None:
        nonlocal known
        for part in parts:
            known = np.union1d(known, part)

    new, old = seconds(ours), seconds(by_union)
    assert len(distinct) == len(known)
    print(f"{len(known):,} words in {shards} shards: {new:.2f} s, by unions {old:.1f} s ({old / new:.0f})")


def weigh(users: int, incidences: int) -> None:
    rng = np.random.default_rng(0)
    sentences = np.maximum(1, np.round(rng.lognormal(1.8, 1.0, users))).astype(np.int64)
    total, num_entities = int(sentences.sum()), users // 2
    pairs = np.unique(
        np.sort(rng.integers(0, total, incidences)) * num_entities
        + np.minimum(rng.zipf(1.3, incidences), num_entities)
        - 1
    )
    held, ids = np.divmod(pairs, num_entities)
    graph = SimpleNamespace(
        user_offsets=np.concatenate([[0], np.cumsum(sentences)]),
        user_hash=rng.integers(0, 2**64, users, np.uint64),
        num_entities=num_entities,
        entity_offsets=np.concatenate([[0], np.cumsum(np.bincount(held, minlength=total))]),
        entity_ids=ids.astype(np.int32),
        entity_hash=rng.integers(0, 2**64, num_entities, np.uint64),
        sentence_words=rng.integers(1, 60, total).astype(np.int32),
    )
    for entity_bound, holder_bound in (("truncate", "truncate"), ("reweight", "reweight"), ("reweight", "fill")):
        bounds = BoundsConfig(
            mode="enforced", max_sentences_per_user=256, entity_bound=entity_bound, holder_bound=holder_bound
        )
        took = seconds(lambda bounds=bounds: apply_bounds(graph, bounds, None))  # type: ignore[misc]
        tracemalloc.start()
        apply_bounds(graph, bounds, None)  # type: ignore[arg-type]
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        bounded_once(graph, bounds, None)  # type: ignore[arg-type]
        again = seconds(lambda bounds=bounds: bounded_once(graph, bounds, None))  # type: ignore[misc]
        named = f"{total:,} sentences, {len(ids):,} incidences, {entity_bound}, {holder_bound}"
        print(f"{named:<66} {took:.2f} s, again {again:.2f} s   {most / 2**20:,.0f} MiB")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--words", type=int, default=1_000_000)
    parser.add_argument("--shards", type=int, default=64)
    parser.add_argument("--users", type=int, default=1_000_000)
    parser.add_argument("--incidences", type=int, default=5_000_000)
    args = parser.parse_args()
    count_words(args.words, args.shards)
    weigh(args.users, args.incidences)


if __name__ == "__main__":
    main()
