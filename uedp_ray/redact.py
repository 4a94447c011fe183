"""A configuration as it may be published: all settings, and no path on the owner's machines.

    >>> from uedp_ray.config import CorpusConfig, ModelConfig, RunConfig, SourceConfig
    >>> from uedp_ray.redact import published
    >>> notes = SourceConfig(path="/home/ann/notes.jsonl", format="jsonl", detector=("regex", "list:/home/ann/names.txt"))
    >>> gpt2 = ModelConfig(architecture="pretrained", path="openai-community/gpt2")
    >>> config = published(RunConfig(corpus=CorpusConfig(source=notes, declared_num_users=1000), model=gpt2))
    >>> config.corpus.source.path, config.corpus.source.detector, config.model.path
    ('not-published-private-text', ('regex', 'list:not-published'), 'openai-community/gpt2')

Paths name people, projects and machines. A name that may be one on a public hub is kept.
"""

from __future__ import annotations

import re

from uedp_ray.config import RunConfig
from uedp_ray.config.files import FileKind, map_files

NOT_PUBLISHED = "not-published"
DATE = 946684800
"""The date of every file that is handed on, 2000-01-01: its own would say when the run ended, and so how long it took."""
_HUB_NAME = re.compile(r"(?!\.)[\w.-]+(/[\w.-]+)?", re.ASCII)
"""A path that existed here was made absolute when the run started (``paths.with_absolute_paths``), and is none."""
_TEXTS = {"corpus.source.path": "private", "corpus.evaluation.path": "evaluation"}
"""Names that keep texts apart: a configuration in which private and public text share one would not be valid."""
_BARE = re.compile(r"[\w.-]+", re.ASCII)


def published(config: RunConfig) -> RunConfig:
    """Returns the configuration without paths. Guarantees: no setting that may name a file keeps a folder, or a file's name.

    Its digest differs from the one in the ledger's header, which covers the configuration with its paths.
    """
    return map_files(config, _published)


def _published(key: str, value: str, kind: FileKind) -> str:
    if kind == "detector":
        return named_detector(value)
    if kind == "text":
        return f"{NOT_PUBLISHED}-{_TEXTS.get(key, 'public')}-text"
    return value if kind == "hub" and _HUB_NAME.fullmatch(value) else NOT_PUBLISHED


def named_detector(spec: str) -> str:
    """Returns a detector without its file: ``list:FILE`` keeps its kind, ``spacy:MODEL`` the name of a package."""
    kind, colon, name = spec.partition(":")
    return spec if not colon or (kind == "spacy" and _BARE.fullmatch(name)) else f"{kind}:{NOT_PUBLISHED}"
