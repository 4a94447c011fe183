"""Settings that name files: as a run directory shows them, and as they are opened.

Example:

    for_use(config).corpus.source.path          # "$DATA/notes.jsonl" is now /mnt/a/notes.jsonl, here
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from pathlib import Path

from uedp_ray.config import RunConfig, SourceConfig
from uedp_ray.config.io import expand
from uedp_ray.corpus.detectors import file_of
from uedp_ray.errors import InputError
from uedp_ray.fields import UNPRINTABLE

TEXT = "text.json"
"""Beside corpora that a run, or several, train on: which text that is (``texts.keep_text``)."""


def with_absolute_paths(config: RunConfig) -> RunConfig:
    """As a run directory shows it: what exists here is named from the root; hub names stay, and ``$NAME`` as written."""
    return _with_paths(config, lambda field, path: path if "$" in path else _absolute(field, path))


def for_use(config: RunConfig) -> RunConfig:
    """As files are opened: ``$NAME`` stands for this machine's value, and what exists here is named from the root.

    Never published. Workers, who run elsewhere, read the copy in ``private/``. Raises: InputError naming the setting
    whose ``$NAME`` is not set.
    """
    return _with_paths(config, lambda field, path: _absolute(field, expand(field, path)))


def _absolute(field: str, path: str) -> str:
    """Raises: InputError for what a config cannot hold, which is written and read again."""
    absolute = str(Path(path).resolve()) if path and os.path.exists(path) else path
    if UNPRINTABLE.search(absolute):  # of the folder it lies in, or of a variable
        raise InputError(field, absolute, "a name in this path is not one line of printable text: rename it")
    return absolute


def _with_paths(config: RunConfig, change: Callable[[str, str], str]) -> RunConfig:
    """The config with every setting that names a file changed: ``change`` gets its key and its value."""

    def source(field: str, source: SourceConfig) -> SourceConfig:
        detector = tuple(  # list:FILE and spacy:FOLDER; the name of a spaCy package stays
            f"{kind}:{change(f'{field}.detector', name)}" if file_of(spec) is not None or "/" in name else spec
            for spec, (kind, _, name) in ((spec, spec.partition(":")) for spec in source.detector)
        )
        return dataclasses.replace(source, path=change(f"{field}.path", source.path), detector=detector)

    def sources(field: str, texts: tuple[SourceConfig, ...]) -> tuple[SourceConfig, ...]:
        return tuple(source(f"{field}[{number}]", text) for number, text in enumerate(texts))

    corpus, model, vocabulary, pretrain = config.corpus, config.model, config.vocabulary, config.pretrain
    evaluation = corpus.evaluation and source("corpus.evaluation", corpus.evaluation)
    return dataclasses.replace(
        config,
        corpus=dataclasses.replace(corpus, source=source("corpus.source", corpus.source), evaluation=evaluation),
        model=dataclasses.replace(
            model,
            path=change("model.path", model.path),
            warm_start=change("model.warm_start", model.warm_start),
        ),
        vocabulary=dataclasses.replace(
            vocabulary,
            path=change("vocabulary.path", vocabulary.path),
            public_text=sources("vocabulary.public_text", vocabulary.public_text),
        ),
        pretrain=dataclasses.replace(pretrain, text=sources("pretrain.text", pretrain.text)),
    )
