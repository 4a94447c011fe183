"""Rows ``{user, text, label?, tags?, entities?}`` of JSON lines and Parquet files."""

from __future__ import annotations

import io
import itertools
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from uedp_ray.corpus._layout import join_lines
from uedp_ray.corpus._lines import LONGEST, Lines
from uedp_ray.corpus.records import Mention, Sentence
from uedp_ray.errors import InputError, unreadable
from uedp_ray.storage.tables import refusing_damage

_COLUMNS = ("user", "text", "label", "tags", "entities")
_BATCH = (64, 1 << 28)  # rows unpacked at once, and the most bytes that they, or a single row, may take
_LISTS = 2048  # rows whose lists are read at once: Arrow copies their dictionary each time
_BOUNDED: dict[str, Any] = {"pre_buffer": False, "buffer_size": 1 << 20}  # else a row group is read as a whole
_UNPACKED = (1 << 26, 1000)  # bytes that any file may unpack to, and how many times its size a larger one may
_NAME = 1000  # the most characters of a user, label or category: each sentence and each mention holds its own
_SEARCHED = 1 << 30  # characters of a row times entities given by text, one more per 16 characters of it: a minute
_MARKED = 1 << 26, 64  # characters that a row's entities may cover, and how many each counts in addition


class _Twice(Exception):
    """A duplicate key. In JSON the last one wins, which for ``user`` decides whose sentence it is."""


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        known = [key for key, _ in pairs if key in _COLUMNS]
        raise _Twice(next((f"{key!r}" for key in known if known.count(key) > 1), "a key"))
    return found


_OBJECT = json.JSONDecoder(object_pairs_hook=_once)


def read_jsonl(path: Path) -> Iterator[Sentence]:
    """Reads one JSON object per line; blank lines are skipped."""
    for row, where in _objects(path):
        yield checked_row(row, where)


def read_jsonl_texts(path: Path) -> Iterator[str]:
    """Reads the ``text`` of each, as it stands."""
    for row, where in _objects(path):
        yield _checked_text(row, where)


def _objects(path: Path) -> Iterator[tuple[dict[str, Any], str]]:
    """Yields the object of each line, and its place."""
    lines = Lines(path)
    for line in lines:
        if not line.strip():
            continue
        try:
            row = _OBJECT.decode(line)
        except _Twice as twice:
            raise InputError("path", lines.where, f"{twice} is written twice in one object: keep one") from None
        except (ValueError, RecursionError):
            raise InputError("path", lines.where, "not JSON: write one object per line") from None
        if not isinstance(row, dict):
            raise InputError("path", lines.where, 'not a JSON object: write {"user": ..., "text": ...}')
        yield row, lines.where


def read_parquet(path: Path) -> Iterator[Sentence]:
    """Reads the same columns of a Parquet file, batch by batch; see ``_of_parquet``."""
    for row, where in _of_parquet(path, ("user", "text"), _COLUMNS):
        yield checked_row(row, where)


def read_parquet_texts(path: Path) -> Iterator[str]:
    """Reads the column ``text``, as it stands; see ``_of_parquet``."""
    for row, where in _of_parquet(path, ("text",), ("text",)):
        yield _checked_text(row, where)


def _of_parquet(path: Path, needed: Sequence[str], read: Sequence[str]) -> Iterator[tuple[dict[str, Any], str]]:
    """Yields each row of these columns, and its place.

    Text repeats itself only so much: what unpacks to more than 64 MiB and a thousand times the file is refused, by what
    the file declares before anything is unpacked, and again as it is read.
    """
    try:
        with refusing_damage(InputError("path", str(path), "not a readable Parquet file")):
            yield from _parquet_rows(path, needed, read)
    except OSError as error:
        raise unreadable(error, "path", str(path)) from None


def _parquet_rows(path: Path, needed: Sequence[str], read: Sequence[str]) -> Iterator[tuple[dict[str, Any], str]]:
    most = max(_UNPACKED[0], _UNPACKED[1] * path.stat().st_size)
    bomb = InputError("path", str(path), f"unpacks to more than {_UNPACKED[1]:,} times its size: not text")
    _check_parts(path)
    listed = _listed_text(pq.read_metadata(path), path)
    with pq.ParquetFile(path, read_dictionary=listed, **_BOUNDED) as file:
        names = set(file.schema_arrow.names)
        if len(names) < len(file.schema_arrow.names):
            raise InputError("path", str(path), "has two columns of one name: keep one")
        missing = sorted(set(needed) - names)
        if missing:
            raise InputError("path", str(path), f"no column {missing[0]}: a row needs {' and '.join(needed)}")
        declared = _declared(file.metadata)
        if sum(declared) > most:
            raise bomb
        rows = max(1, min(_BATCH[0], _BATCH[1] // max(*declared, 1)))
        inside = {name.partition(".")[0] for name in listed} & set(read)
        plain = [name for name in read if name in names - inside]
        number = 0
        for group in range(file.num_row_groups):  # Arrow cannot join lists whose dictionaries differ

            def batches(columns: list[str], rows: int, group: int = group) -> Iterator[pa.RecordBatch]:
                nonlocal most
                for batch in file.iter_batches(rows, row_groups=[group], columns=columns):
                    most -= _unpacked(batch)
                    if most < 0:
                        raise bomb
                    yield batch

            lists = _rows(batches(sorted(inside), _LISTS), path, number) if inside else itertools.repeat({})
            cells = _rows(batches(plain, rows), path, number) if plain else itertools.repeat({})
            last = number + file.metadata.row_group(group).num_rows
            for _, cell, others in zip(range(number, last), cells, lists, strict=False):
                number += 1
                yield cell | others, f"{path}:row {number}"
            if number < last:
                raise pa.ArrowInvalid("a column ends before the others")


class _NoPagesError(Exception):
    pass


class _NoPages(io.FileIO):
    """A file that refuses reads once it is shut."""

    shut = False

    def read(self, size: int | None = -1, /) -> bytes:
        if self.shut:
            raise _NoPagesError
        return super().read(size)


def _check_parts(path: Path) -> None:
    """Starts to read each row group, but no page: for a damaged part of a column Arrow raises an error here, which where
    ``_parts`` asks for that part would end the process, uncaught in C++.
    """
    with _NoPages(path) as raw, pq.ParquetFile(raw, **_BOUNDED) as file:
        raw.shut = True
        for group in range(file.num_row_groups):
            with suppress(_NoPagesError):
                next(file.iter_batches(1, row_groups=[group], use_threads=False), None)


def _rows(batches: Iterable[pa.RecordBatch], path: Path, before: int) -> Iterator[dict[str, Any]]:
    """Yields their rows by column, unpacked as many at once as allowed; ``before``: how many rows of the file come first.

    Raises: InputError for a cell that Python cannot hold, and for a row that takes too many bytes.
    """
    for batch in batches:
        fits = _unpacked(batch) <= _BATCH[1]
        step = _BATCH[0] if fits else 1
        for begin in range(0, batch.num_rows, step):
            part = batch.slice(begin, step)
            if not fits and _unpacked(part) > _BATCH[1]:
                where = f"{path}:row {before + begin + 1}"
                raise InputError("path", where, f"unpacks to more than {_BATCH[1]:,} bytes: split it")
            yield from _as_python(part, path, before + begin)
        before += batch.num_rows


def _as_python(batch: pa.RecordBatch, path: Path, before: int) -> list[dict[str, Any]]:
    try:
        return batch.to_pylist()
    except UnicodeDecodeError:  # a damaged page
        raise
    except (OverflowError, ValueError):  # a date after the year 9999, an unknown time zone, a name twice in a struct
        columns = list(zip(batch.schema.names, batch.columns, strict=True))
        for index, (name, column) in itertools.product(range(batch.num_rows), columns):
            try:
                column[index].as_py()
            except (OverflowError, ValueError):
                where = f"{path}:row {before + index + 1}"
                raise InputError("path", where, f"{name} holds neither text nor numbers nor lists of them") from None
        raise


def _listed_text(metadata: Any, path: Path) -> list[str]:
    """The columns that hold text in lists, such as tags. Read as dictionaries, they stay as small as they are in the file,
    however long a text they repeat.

    Raises: InputError for the encodings that Arrow cannot read that way.
    """
    columns = map(metadata.schema.column, range(metadata.num_columns))
    listed = {c.path for c in columns if c.max_repetition_level and c.physical_type == "BYTE_ARRAY"}
    for part in _parts(metadata):
        delta = [encoding for encoding in part.encodings if encoding.startswith("DELTA")]
        if delta and part.path_in_schema in listed:
            remedy = f"{part.path_in_schema} is encoded as {delta[0]}: write it with a dictionary, or PLAIN"
            raise InputError("path", str(path), remedy)
    return sorted(listed)


def _unpacked(held: Any) -> int:
    """About how many bytes a batch or an array takes as Python objects; dictionary texts count each time they are used."""
    if isinstance(held, pa.RecordBatch):
        return sum(map(_unpacked, held.columns))
    if isinstance(held, pa.ExtensionArray):
        return _unpacked(held.storage)
    if isinstance(held, pa.StructArray):
        return sum(map(_unpacked, held.flatten()))
    if isinstance(held, pa.MapArray):
        return _unpacked(held.values[held.offsets[0].as_py() : held.offsets[-1].as_py()])
    if pa.types.is_nested(held.type):
        return _unpacked(held.flatten())
    size = held.nbytes
    if isinstance(held, pa.DictionaryArray):
        size = pc.sum(pc.binary_length(held.dictionary).take(held.indices)).as_py() or 0
    return size + 32 * (len(held) - held.null_count)


def _parts(metadata: Any) -> Iterator[Any]:
    """Yields every column of every row group, of those that are read."""
    for group in map(metadata.row_group, range(metadata.num_row_groups)):
        for part in map(group.column, range(group.num_columns)):
            if part.path_in_schema.partition(".")[0] in _COLUMNS:
                yield part


def _declared(metadata: Any) -> list[int]:
    """Bytes that each part of a column takes when it is unpacked: its pages, and a place for every value."""
    columns = map(metadata.schema.column, range(metadata.num_columns))
    wide = {column.path: max(column.length, 4) for column in columns}  # for values of fixed length
    return [max(part.total_uncompressed_size, wide[part.path_in_schema] * part.num_values) for part in _parts(metadata)]


def checked_row(row: Mapping[str, Any], where: str) -> Sentence:
    """The row with its lines joined: running text, unless it carries tags or a label, which describe it as a whole.

    A NUL character counts as a blank. Raises: InputError naming ``where`` and the key that is missing or wrong.
    """
    user = row.get("user")
    if isinstance(user, int) and not isinstance(user, bool):
        user = str(user)
    if user is not None and not isinstance(user, str):
        raise InputError("path", where, "user is neither text nor a whole number: write user ids as text")
    if not isinstance(user, str) or not user.strip():
        raise InputError(
            "path",
            where,
            "user is missing or empty: every row needs its owner under the name user, and its text under the name text",
        )
    _check_name("user", user, where)
    text = _checked_text(row, where).replace("\0", " ")
    label, tags = row.get("label"), row.get("tags")
    if label is not None and not isinstance(label, str | int):
        raise InputError("path", where, "label must be a string or a whole number")
    _check_name("label", str(label), where)
    if tags is not None:
        if not isinstance(tags, list) or not all(isinstance(tag, str) for tag in tags):
            raise InputError("path", where, "tags must be a list of strings")
        if len(tags) != len(text.split()):
            raise InputError("path", where, "tags must be as many as the words between blanks")
        text = re.sub(r"[\r\n]", " ", text)  # quote markers have a tag
    else:
        text = join_lines(text)
    mentions = tuple(_mentions(row.get("entities"), text, where))
    _check_pairs([user, str(label), *(tags or ()), *(mention.category for mention in mentions)], where)
    whole = None if label is None else str(label)
    return Sentence(user, text, whole, None if tags is None else tuple(tags), mentions, label is None and tags is None)


def _checked_text(row: Mapping[str, Any], where: str) -> str:
    text = row.get("text")
    if not isinstance(text, str):
        raise InputError("path", where, "text is missing or not a string: every row needs it under the name text")
    if len(text) > LONGEST:
        raise InputError("path", where, f"a text of more than {LONGEST:,} characters: split it")
    _check_pairs([text], where)
    return text


def _check_pairs(texts: Iterable[str], where: str) -> None:
    try:
        "".join(texts).encode()
    except UnicodeEncodeError:
        raise InputError("path", where, "holds half a surrogate pair: repair the escapes") from None


def _check_name(key: str, name: str, where: str) -> None:
    if len(name) > _NAME:
        raise InputError("path", where, f"a {key} of more than {_NAME:,} characters: shorten it")


def _mentions(entities: Any, text: str, where: str) -> Iterator[Mention]:
    if entities is None:
        return
    if not isinstance(entities, list) or not all(isinstance(entity, dict) for entity in entities):
        raise InputError("path", where, "entities must be a list of {category, start, end} or {category, text}")
    placed = [type(entity.get("start")) is type(entity.get("end")) is int for entity in entities]
    forms = (entity.get("text") for entity, known in zip(entities, placed, strict=True) if not known)
    if sum(1 + len(form) // 16 for form in forms if isinstance(form, str)) * len(text) > _SEARCHED:
        raise InputError("path", where, "too many entities for so long a text: give start and end, or split it")
    left, each = _MARKED
    for entity, known in zip(entities, placed, strict=True):
        category, start, end, form = (entity.get(key) for key in ("category", "start", "end", "text"))
        if not isinstance(category, str) or not category.strip():
            raise InputError("path", where, "an entity needs a category")
        _check_name("category", category, where)
        if known:
            if not 0 <= start < end <= len(text) or not text[start:end].strip():
                raise InputError("path", where, "an entity's start and end (in characters) hold no text")
            found = [(start, end)]
        elif isinstance(form, str) and form.strip():
            found = list(itertools.islice(_places(form.split(), text), left // each + 1))
            if not found:
                raise InputError("path", where, "an entity's text does not occur in the row: it would go unprotected")
        else:
            raise InputError("path", where, "an entity needs start and end (whole numbers), or text")
        left -= sum(end - start + each for start, end in found)
        if left < 0:
            raise InputError("path", where, "its entities are too many, or too long: split it")
        yield from (Mention(category, *span) for span in found)


def _places(words: list[str], text: str) -> Iterator[tuple[int, int]]:
    if sum(map(len, words)) <= len(text):
        form = r"\s+".join(map(re.escape, words))
        yield from (match.span() for match in re.finditer(rf"(?<!\w){form}(?!\w)", text, re.IGNORECASE))
