"""Settings that name files: the form a run directory shows, and the form used to open them.

Example:

    >>> import os
    >>> from unittest.mock import patch
    >>> from uedp_ray.config import RunConfig, from_dict
    >>> from uedp_ray.training.paths import for_use, with_absolute_paths
    >>> tree = {"corpus": {"declared_num_users": 100}, "privacy": {"noise_multiplier": 1.0}}
    >>> tree["corpus"]["source"] = {"format": "jsonl", "path": "$DATA/notes.jsonl"}
    >>> config = from_dict(RunConfig, tree)
    >>> with patch.dict(os.environ, DATA="/mnt/a"):
    ...     for_use(config).corpus.source.path    # here
    ...     with_absolute_paths(config).corpus.source.path    # in the run directory
    '/mnt/a/notes.jsonl'
    '$DATA/notes.jsonl'
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from uedp_ray.config import RunConfig
from uedp_ray.config.files import FileKind, map_files
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
    """The config with ``change(key, path)`` applied to every path: of a detector to its file, not to a package's name."""

    def changed(key: str, value: str, kind: FileKind) -> str:
        if kind != "detector":
            return change(key, value)
        name, _, file = value.partition(":")
        return f"{name}:{change(key, file)}" if file_of(value) is not None or "/" in file else value

    return map_files(config, changed)
