"""Texts that a model is to answer, from a file: no owner, no entities, nothing but the texts.

>>> import json
>>> from pathlib import Path
>>> from tempfile import TemporaryDirectory
>>> from uedp_ray.corpus.asked import read_texts
>>> folder = TemporaryDirectory()
>>> path = Path(folder.name, "asked.jsonl")
>>> size = path.write_text(json.dumps({"id": 7, "text": "the nurse"}))
>>> list(read_texts(path))
['the nurse']
>>> folder.cleanup()
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from uedp_ray.corpus._rows import read_jsonl_texts, read_parquet_texts
from uedp_ray.errors import InputError, unreadable
from uedp_ray.storage.files import check_regular

_READERS: Mapping[str, Callable[[Path], Iterator[str]]] = {".jsonl": read_jsonl_texts, ".parquet": read_parquet_texts}
SUFFIXES = tuple(_READERS)
"""Formats, by the end of a file's name."""


def read_texts(path: Path) -> Iterator[str]:
    """Yields the ``text`` of each row of a JSON Lines or Parquet file as it stands; other columns are not read.

    Raises: InputError for a file of another format, or that cannot be read, and for a row without text, by its place.
    """
    check_suffix("path", path)
    try:
        check_regular(path, "name a file")
    except OSError as error:
        raise unreadable(error, "path", str(path)) from None
    yield from _READERS[path.suffix](path)


def check_suffix(field: str, path: Path) -> None:
    """Raises: InputError for a file of another format."""
    if path.suffix not in SUFFIXES:
        raise InputError(field, str(path), f"is neither {' nor '.join(SUFFIXES)}: name a file of one of these formats")
