"""Text that the package generates."""

from __future__ import annotations

from collections.abc import Iterator

from uedp_ray.config import SourceConfig
from uedp_ray.corpus.readers.base import Reader
from uedp_ray.corpus.records import Sentence
from uedp_ray.corpus.synthetic import generate


def _rows(source: SourceConfig) -> Iterator[Sentence]:
    return generate(source.num_users, seed=source.seed, part=source.part)


READER = Reader(
    _rows, lambda source: "as generated", whole_users=True, generated_bytes=lambda source: source.num_users << 10
)
