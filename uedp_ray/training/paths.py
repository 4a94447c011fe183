"""Settings that name files: the form a run directory shows, and the form used to open them.

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
"""The file beside the corpora of one or several runs that records which text they are (``texts.keep_text``)."""


def with_absolute_paths(config: RunConfig) -> RunConfig:
    """The config as a run directory shows it: existing paths are absolute; hub names and ``$NAME`` stay as written."""
    return _with_paths(config, lambda field, path: path if "$" in path else _absolute(field, path))


def for_use(config: RunConfig) -> RunConfig:
    """The config for opening files: ``$NAME`` is replaced by this machine's value, and existing paths are absolute.

    Never published. Workers, which run elsewhere, read the copy in ``private/``. Raises: InputError naming the setting
    whose ``$NAME`` is not set.
    """
    return _with_paths(config, lambda field, path: _absolute(field, expand(field, path)))


def _absolute(field: str, path: str) -> str:
    """The absolute path, if it exists here. Raises: InputError if a config file could not hold it."""
    absolute = str(Path(path).resolve()) if path and os.path.exists(path) else path
    if UNPRINTABLE.search(absolute):  # from the folder it is in, or from a variable
        raise InputError(field, absolute, "a name in this path is not one line of printable text: rename it")
    return absolute


def _with_paths(config: RunConfig, change: Callable[[str, str], str]) -> RunConfig:
    """The config with ``change(key, value)`` applied to every setting that names a file."""

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
