"""Rows ``{user, text, label?, tags?, entities?}`` of JSON lines and Parquet files, turned into sentences."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from uedp_ray.corpus._lines import Lines
from uedp_ray.corpus._splitting import split_sentences
from uedp_ray.corpus.categories import canonical
from uedp_ray.corpus.records import Mention, Sentence
from uedp_ray.errors import InputError

_COLUMNS = ("user", "text", "label", "tags", "entities")
_BATCH_ROWS = 1024
_BUFFER = 1 << 20


def read_jsonl(path: Path) -> Iterator[Sentence]:
    """One JSON object a line; blank lines are passed over."""
    lines = Lines(path)
    for line in lines:
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            raise InputError("path", lines.where, "not JSON: write one object a line") from None
        if not isinstance(row, dict):
            raise InputError("path", lines.where, 'not a JSON object: write {"user": ..., "text": ...}')
        yield from sentences_of_row(row, lines.where)


def read_parquet(path: Path) -> Iterator[Sentence]:
    """The same columns in a Parquet file, read batch by batch."""
    try:
        with pq.ParquetFile(path, pre_buffer=False, buffer_size=_BUFFER) as file:  # else a row group is read as a whole
            names = set(file.schema_arrow.names)
            missing = sorted({"user", "text"} - names)
            if missing:
                raise InputError("path", str(path), f"no column {missing[0]}: a row needs user and text")
            number = 0
            for batch in file.iter_batches(_BATCH_ROWS, columns=[name for name in _COLUMNS if name in names]):
                for row in batch.to_pylist():
                    number += 1
                    yield from sentences_of_row(row, f"{path}:row {number}")
    except (pa.ArrowException, OSError, UnicodeDecodeError):  # the last two from damaged pages
        raise InputError("path", str(path), "not a readable Parquet file") from None


def sentences_of_row(row: Mapping[str, Any], where: str) -> Iterator[Sentence]:
    """The row's sentences. A row with tags or a label stays whole, since both describe its whole text.

    A row without a word yields one sentence without a word, so that it can be counted.
    Raises: InputError naming ``where`` and the key that is missing or wrong.
    """
    user, text = row.get("user"), row.get("text")
    if isinstance(user, int) and not isinstance(user, bool):
        user = str(user)
    if not isinstance(user, str) or not user.strip():
        raise InputError("path", where, "user is missing or empty: every row needs its owner")
    if not isinstance(text, str):
        raise InputError("path", where, "text is missing or not a string")
    mentions = tuple(_mentions(row.get("entities"), text, where))
    label, tags = row.get("label"), row.get("tags")
    if label is not None and not isinstance(label, str | int):
        raise InputError("path", where, "label must be a string or a whole number")
    if tags is not None:
        if not isinstance(tags, list) or not all(isinstance(tag, str) for tag in tags):
            raise InputError("path", where, "tags must be a list of strings")
        if len(tags) != len(text.split()):
            raise InputError("path", where, "tags must be as many as the words between blanks")
    try:
        "".join([user, text, str(label), *(tags or ()), *(mention.category for mention in mentions)]).encode()
    except UnicodeEncodeError:
        raise InputError("path", where, "holds half a surrogate pair: repair the escapes") from None
    if tags is None and label is None and text.strip():
        for sentence, held in split_sentences(text, mentions):
            yield Sentence(user, sentence, mentions=held)
    else:
        whole = None if label is None else str(label)
        yield Sentence(user, text, whole, None if tags is None else tuple(tags), mentions)


def _mentions(entities: Any, text: str, where: str) -> Iterator[Mention]:
    if entities is None:
        return
    if not isinstance(entities, list) or not all(isinstance(entity, dict) for entity in entities):
        raise InputError("path", where, "entities must be a list of {category, start, end} or {category, text}")
    for entity in entities:
        category, start, end, form = (entity.get(key) for key in ("category", "start", "end", "text"))
        if not isinstance(category, str) or not category.strip():
            raise InputError("path", where, "an entity needs a category")
        if type(start) is int and type(end) is int:
            if not 0 <= start < end <= len(text) or not text[start:end].strip():
                raise InputError("path", where, "an entity's start and end (in characters) hold no text")
            yield Mention(canonical(category), start, end)
        elif isinstance(form, str) and form.strip():
            words = r"\s+".join(map(re.escape, form.split()))
            found = [m.span() for m in re.finditer(rf"(?<!\w){words}(?!\w)", text, re.IGNORECASE)]
            if not found:
                raise InputError("path", where, "an entity's text does not occur in the row: it would go unprotected")
            yield from (Mention(canonical(category), *span) for span in found)
        else:
            raise InputError("path", where, "an entity needs start and end (whole numbers), or text")
