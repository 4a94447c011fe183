"""A configuration as it may be published: all settings, and no path of the owner's machines.

    dump_config(published(run.load_config()), "config.yaml")

Paths name people, projects and machines. Where a name may be that of a public hub, it stays.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping

from uedp_ray.config import RunConfig, SourceConfig

NOT_PUBLISHED = "not-published"
DATE = 946684800
"""Of every file that is handed on: 2000-01-01. Its own would say when the run ended, and so how long it took."""
_HUB_NAME = re.compile(r"(?!\.)[\w.-]+(/[\w.-]+)?", re.ASCII)
_BARE = re.compile(r"[\w.-]+", re.ASCII)


def published(config: RunConfig) -> RunConfig:
    """The configuration without paths. Guarantees: no setting that may name a file keeps a folder, or a file's name.

    Its digest is not that of the ledger's header, which is of the configuration with its paths.
    """
    corpus, model, vocabulary, pretrain = config.corpus, config.model, config.vocabulary, config.pretrain
    return dataclasses.replace(
        config,
        corpus=dataclasses.replace(
            corpus,
            source=_source(corpus.source, "private"),
            evaluation=corpus.evaluation and _source(corpus.evaluation, "evaluation"),
        ),
        model=dataclasses.replace(
            model,
            path=PATH_SETTINGS["model.path"](model.path),
            warm_start=PATH_SETTINGS["model.warm_start"](model.warm_start),
        ),
        vocabulary=dataclasses.replace(
            vocabulary,
            path=PATH_SETTINGS["vocabulary.path"](vocabulary.path),
            public_text=_sources(vocabulary.public_text),
        ),
        pretrain=dataclasses.replace(pretrain, text=_sources(pretrain.text)),
    )


def named_detector(spec: str) -> str:
    """A detector without the file that it reads: ``list:FILE`` keeps its kind, ``spacy:MODEL`` the name of a package."""
    kind, colon, name = spec.partition(":")
    return spec if not colon or (kind == "spacy" and _BARE.fullmatch(name)) else f"{kind}:{NOT_PUBLISHED}"


def _sources(sources: tuple[SourceConfig, ...]) -> tuple[SourceConfig, ...]:
    return tuple(_source(source, "public") for source in sources)


def _source(source: SourceConfig, text: str) -> SourceConfig:
    """``text``: which one it is. The private text under the name of a public one would not be a valid configuration."""
    path = f"{NOT_PUBLISHED}-{text}-text" if source.path else ""
    return dataclasses.replace(source, path=path, detector=tuple(map(named_detector, source.detector)))


def _hub_name(path: str) -> str:
    """What exists here was made absolute when the run began (``paths.with_absolute_paths``)."""
    return path if not path or _HUB_NAME.fullmatch(path) else NOT_PUBLISHED


def _folder(path: str) -> str:
    return NOT_PUBLISHED if path else ""


PATH_SETTINGS: Mapping[str, Callable[[str], str]] = {
    "model.path": _hub_name,
    "model.warm_start": _folder,
    "vocabulary.path": _hub_name,
}
"""Settings beside text that name a path, by dotted key, and what is published of a path in a run's configuration."""
