"""A configuration as it may be published: all settings, and no path on the owner's machines.

    dump_config(published(run.load_config()), "config.yaml")

Paths name people, projects and machines. A name that may be one on a public hub is kept.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping

from uedp_ray.config import RunConfig, SourceConfig

NOT_PUBLISHED = "not-published"
DATE = 946684800
"""The date of every file that is handed on, 2000-01-01: its own would say when the run ended, and so how long it took."""
_HUB_NAME = re.compile(r"(?!\.)[\w.-]+(/[\w.-]+)?", re.ASCII)
_BARE = re.compile(r"[\w.-]+", re.ASCII)


def published(config: RunConfig) -> RunConfig:
    """Returns the configuration without paths. Guarantees: no setting that may name a file keeps a folder, or a file's name.

    Its digest differs from the one in the ledger's header, which covers the configuration with its paths.
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
    """Returns a detector without its file: ``list:FILE`` keeps its kind, ``spacy:MODEL`` the name of a package."""
    kind, colon, name = spec.partition(":")
    return spec if not colon or (kind == "spacy" and _BARE.fullmatch(name)) else f"{kind}:{NOT_PUBLISHED}"


def _sources(sources: tuple[SourceConfig, ...]) -> tuple[SourceConfig, ...]:
    return tuple(_source(source, "public") for source in sources)


def _source(source: SourceConfig, text: str) -> SourceConfig:
    """``text`` keeps the names apart: a configuration in which private and public text share one would not be valid."""
    path = f"{NOT_PUBLISHED}-{text}-text" if source.path else ""
    return dataclasses.replace(source, path=path, detector=tuple(map(named_detector, source.detector)))


def _hub_name(path: str) -> str:
    """Keeps a hub name. A path that existed here was made absolute when the run started (``paths.with_absolute_paths``)."""
    return path if not path or _HUB_NAME.fullmatch(path) else NOT_PUBLISHED


def _folder(path: str) -> str:
    return NOT_PUBLISHED if path else ""


PATH_SETTINGS: Mapping[str, Callable[[str], str]] = {
    "model.path": _hub_name,
    "model.warm_start": _folder,
    "vocabulary.path": _hub_name,
}
"""Settings other than text that name a path, by dotted key, and what a published configuration keeps of the path."""
