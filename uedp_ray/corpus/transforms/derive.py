"""Writes the corpus that a transform makes of a prepared one.

    transform = transform_of(TransformConfig(kind="fragments"))
    derive(open_corpus("corpora/conll"), transform, "corpora/fragments")

Users keep their numbers, entities their category and form. A piece holds the entities of its sources; where its text
mentions them is not recorded.
"""

from __future__ import annotations

import dataclasses
import hashlib
import secrets
from contextlib import closing
from pathlib import Path

import numpy as np

from uedp_ray.corpus._shards import ShardBuilder, ShardResult
from uedp_ray.corpus.prepare import Index, replacing_corpus, write_manifest
from uedp_ray.corpus.records import Sentence
from uedp_ray.corpus.store import Corpus
from uedp_ray.corpus.transforms.base import Transform


def derive(corpus: Corpus, transform: Transform, out: str | Path, *, test_seed: int | None = None) -> None:
    """Writes ``out``, a prepared corpus: complete, or as it was.

    Args:
      corpus: opened with all its categories.
      transform: applied to one user at a time.
      test_seed: fixes the randomness of runs that are compared and not private; else it is secret.

    Raises: InputError if ``corpus`` is itself transformed, or ``out`` holds something else.
    """
    key = secrets.token_bytes(32) if test_seed is None else str(test_seed).encode()
    table = corpus.entity_table()
    entities = list(zip(table["category"].to_pylist(), table["form"].to_pylist(), strict=True))
    with replacing_corpus(Path(out).resolve()) as work:
        (work / "shards").mkdir()
        with closing(Index(work)) as index:
            for number in range(len(corpus.shard_users) - 1):
                path = work / "shards" / f"part-{number:05d}.parquet"
                index.add(_shard(corpus, entities, number, transform, key, path))
            finished = index.finish(frozenset(corpus.categories or ()))
        write_manifest(
            work,
            finished,
            source_format="prepared",
            names_users=corpus.names_users,
            detectors=corpus.detectors,
            fingerprints=[],
            categories=corpus.categories,
            transform=dataclasses.asdict(transform.config),
        )


def _shard(
    corpus: Corpus, entities: list[tuple[str, str]], number: int, transform: Transform, key: bytes, path: Path
) -> ShardResult:
    with ShardBuilder(path) as builder:
        for user, sentences in corpus.sentences(np.arange(*corpus.shard_users[number : number + 2])):
            first, name = int(corpus.user_offsets[user]), sentences[0].user
            builder.user(name)
            digest = hashlib.blake2b(name.encode(), key=key, digest_size=16).digest()
            generator = np.random.Generator(np.random.Philox(key=int.from_bytes(digest)))
            for piece in transform.apply(sentences, generator):
                sources = range(len(sentences)) if piece.sources is None else piece.sources
                held = {entity for place in sources for entity in _held(corpus, first + range(len(sentences))[place])}
                sentence = Sentence(name, piece.text, piece.label, piece.tags)
                builder.add(sentence, [], [entities[entity] for entity in sorted(held)])
    return builder.result([])


def _held(corpus: Corpus, sentence: int) -> list[int]:
    found: list[int] = corpus.entity_ids[slice(*corpus.entity_offsets[sentence : sentence + 2])].tolist()
    return found
