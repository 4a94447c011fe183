"""A corpus that ``uedp-ray prepare`` wrote."""

from __future__ import annotations

from collections.abc import Iterator

from uedp_ray.config import SourceConfig
from uedp_ray.corpus.readers.base import Reader
from uedp_ray.corpus.records import Sentence
from uedp_ray.corpus.store import open_corpus


def _rows(source: SourceConfig) -> Iterator[Sentence]:
    return (sentence for _, sentences in open_corpus(source.path).sentences() for sentence in sentences)


def _numbered(source: SourceConfig) -> str | None:
    return open_corpus(source.path).numbered


READER = Reader(_rows, _numbered)
