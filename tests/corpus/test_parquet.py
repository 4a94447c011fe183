"""Parquet files: columns of any type, lists however they are encoded, and what unpacks without end."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from unittest import mock

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.corpus.reading import SECRET, read_file, write_file, write_rows
from uedp_ray.config import SourceConfig
from uedp_ray.corpus import _rows
from uedp_ray.corpus.readers import read_rows
from uedp_ray.corpus.records import Mention
from uedp_ray.errors import InputError


@pytest.mark.parametrize("kind", ["compressed", "repeated", "listed", "tags", "category", "text"])
def test_a_parquet_file_that_unpacks_without_end_is_refused(tmp_path: Path, kind: str) -> None:
    if kind == "compressed":  # one text of 64 MiB
        table = pa.table({"user": ["u"], "text": ["a " * (1 << 25)]})
        pq.write_table(table, tmp_path / "x", compression="zstd", use_dictionary=False)
    elif kind == "repeated":  # one text of 1 MB, 100,000 times
        columns = {"user": "u", "text": "w " * 500_000}
        index = pa.array(np.zeros(100_000, np.int32))
        table = pa.table({k: pa.DictionaryArray.from_arrays(index, [v]) for k, v in columns.items()})
        pq.write_table(table, tmp_path / "x", compression="zstd", dictionary_pagesize_limit=1 << 21)
    elif kind != "listed":  # one tag, category or text of an entity of 1 MB, 40,000 times
        many = pa.DictionaryArray.from_arrays(pa.array(np.zeros(40_000, np.int32)), pa.array(["w" * 1_000_000]))
        items = many if kind == "tags" else pa.StructArray.from_arrays([many], [kind])
        lists = pa.ListArray.from_arrays([*range(0, 40_000, 100), len(items)], items)
        count = len(lists)
        table = pa.table(
            {"user": ["u"] * count, "text": ["a"] * count, "tags" if kind == "tags" else "entities": lists}
        )
        pq.write_table(table, tmp_path / "x", compression="zstd", dictionary_pagesize_limit=1 << 21, store_schema=False)
    else:  # 20 million tags
        tags = pa.DictionaryArray.from_arrays(pa.array(np.zeros(20_000_000, np.int8)), ["t"])
        table = pa.table({"user": ["u"], "text": ["a"], "tags": pa.ListArray.from_arrays([0, len(tags)], tags)})
        pq.write_table(table, tmp_path / "x", compression="zstd")
    assert (tmp_path / "x").stat().st_size < 50_000
    script = f"""
import resource
from uedp_ray.corpus._rows import read_parquet
from uedp_ray.errors import InputError
from pathlib import Path
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    for _ in read_parquet(Path({str(tmp_path / "x")!r})):
        pass
except InputError as error:
    print(error.remedy, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) >> 10, sep="|")
"""
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    remedy, mebibytes = done.stdout.split("|")
    assert "unpacks to" in remedy
    assert int(mebibytes) < 600


def test_parquet_reads_as_json_lines_do(tmp_path: Path) -> None:
    rows = [
        {"user": "b", "text": "Ann ran.", "entities": [{"category": "PER", "start": 0, "end": 3}]},
        {"user": "a", "text": "", "entities": None},
    ]
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.Table.from_pylist(rows), path)
    assert read_file(path, "parquet") == read_file(write_rows(tmp_path, *rows), "jsonl")


def test_parquet_bad_input(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="Parquet"):
        read_file(write_file(tmp_path, "no"), "parquet")
    pq.write_table(pa.table({"text": ["a"]}), tmp_path / "x")
    with pytest.raises(InputError, match="no column user"):
        read_file(tmp_path / "x", "parquet")
    pq.write_table(pa.table({"user": ["u", None], "text": ["a", "b"]}), tmp_path / "x")
    with pytest.raises(InputError, match="row 2"):
        read_file(tmp_path / "x", "parquet")
    twice = pa.table([["ann", "ann"], ["a", "b"], ["row1", "row2"]], names=["user", "text", "user"])
    pq.write_table(twice, tmp_path / "x")
    with pytest.raises(InputError, match="has two columns of one name: keep one"):
        read_file(tmp_path / "x", "parquet")
    pq.write_table(pa.table({"user": [5.0], "text": ["a"]}), tmp_path / "x")
    with pytest.raises(InputError, match="user is neither text nor a whole number: write user ids as text"):
        read_file(tmp_path / "x", "parquet")
    latin = pa.array([f"{SECRET} caf\xe9".encode("latin-1")]).view(pa.string())
    pq.write_table(pa.table({"user": ["u"], "text": latin}), tmp_path / "x")
    with pytest.raises(InputError, match="not a readable Parquet") as caught:
        read_file(tmp_path / "x", "parquet")
    assert SECRET not in str(caught.value)
    pq.write_table(pa.table({"user": ["u"] * 9000, "text": [f"{i} words" for i in range(9000)]}), tmp_path / "x")
    damaged = bytearray((tmp_path / "x").read_bytes())
    damaged[300:4000] = bytes(3700)
    (tmp_path / "x").write_bytes(damaged)
    with pytest.raises(InputError, match="not a readable Parquet"):
        read_file(tmp_path / "x", "parquet")


_STRUCT = pa.struct([("category", pa.string()), ("start", pa.int64())])


OTHER_TYPES: dict[str, pa.Array] = {
    "float": pa.array([1.5, float("nan")]),
    "boolean": pa.array([True, False]),
    "integer": pa.array([7, 2**62]),
    "decimal": pa.array([7, 8]).cast(pa.decimal128(20, 1)),
    "binary": pa.array([SECRET.encode(), b"\xff"]),
    "date": pa.array([7, 8], pa.int32()).cast(pa.date32()),
    "late date": pa.array([2**31 - 1, 8], pa.int32()).cast(pa.date32()),
    "late timestamp": pa.array([2**62, 8]).cast(pa.timestamp("us")),
    "timestamp of nowhere": pa.array([7, 8]).cast(pa.timestamp("us", "Nowhere/Land")),
    "time": pa.array([7, 8]).cast(pa.time64("us")),
    "long duration": pa.array([2**62, 8]).cast(pa.duration("ms")),
    "dictionary": pa.array([7, 8]).dictionary_encode(),
    "struct": pa.array([{"category": SECRET, "start": 0}] * 2, _STRUCT),
    "struct of a name twice": pa.StructArray.from_arrays([pa.array(["a", SECRET])] * 2, ["category", "category"]),
    "map": pa.array([[(SECRET, 1)], []], pa.map_(pa.string(), pa.int64())),
    "list of integers": pa.array([[1], [2]]),
    "list of lists": pa.array([[[SECRET]], [[]]]),
    "list of nulls": pa.array([[None], []], pa.list_(pa.null())),
    "list of late timestamps": pa.array([[2**62], [8]]).cast(pa.list_(pa.timestamp("us"))),
}


NAMING = {"user": ("integer", "dictionary"), "label": ("integer", "dictionary", "boolean")}
"""What may name a user or a label."""


@pytest.mark.parametrize(
    ("column", "kind"),
    [
        (column, kind)
        for column in ("user", "text", "label", "tags", "entities")
        for kind in OTHER_TYPES
        if kind not in NAMING.get(column, ())
    ],
)
def test_a_parquet_column_of_another_type_is_named_with_its_row_and_not_shown(
    tmp_path: Path, column: str, kind: str
) -> None:
    columns = {"user": ["Ann", "Bob"], "text": [f"{SECRET} ran", "away"], column: OTHER_TYPES[kind]}
    pq.write_table(pa.table(columns), tmp_path / "x")
    with pytest.raises(InputError, match=rf"x:row [12]': .*{column}") as caught:
        read_file(tmp_path / "x", "parquet")
    assert SECRET not in str(caught.value)


def test_a_label_that_unpacks_without_end_is_refused_as_it_is_read(tmp_path):
    """A dictionary holds a value once, whatever the number of rows that show it."""
    count, label = 200, "x" * (1 << 20)
    labels = pa.DictionaryArray.from_arrays(pa.array([0] * count, pa.int32()), pa.array([label]))
    table = pa.table({"user": ["u"] * count, "text": ["a b"] * count, "label": labels})
    pq.write_table(table, tmp_path / "bomb.parquet", compression="zstd")
    with pytest.raises(InputError, match="unpacks to more than"):
        for _ in read_rows(SourceConfig(path=str(tmp_path / "bomb.parquet"), format="parquet")):
            pass


@pytest.mark.parametrize("rows", [{}, {"row_group_size": 7}], ids=["one group", "groups"])
def test_lists_of_text_are_read_whatever_dictionaries_they_have(tmp_path: Path, rows: dict[str, int]) -> None:
    """A page of a dictionary that is full is followed by pages without."""
    text = "Ann met Ben"
    entities = [[{"category": f"c{i % 90}", "start": 0, "end": 3, "text": None}] for i in range(300)]
    columns = {"user": "u", "text": text, "tags": [["A", f"B{i % 80}", "C"] for i in range(300)], "entities": entities}
    table = pa.table({key: value if isinstance(value, list) else [value] * 300 for key, value in columns.items()})
    small = {"dictionary_pagesize_limit": 200, "data_page_size": 100, "write_batch_size": 10}
    pq.write_table(table, tmp_path / "x", **small, **rows)
    read = read_file(tmp_path / "x", "parquet")
    assert [list(row.tags or ()) for row in read] == columns["tags"]
    assert [row.mentions for row in read] == [(Mention(f"c{i % 90}", 0, 3),) for i in range(300)]


def test_a_list_of_text_in_an_encoding_that_repeats_it_is_refused_by_name(tmp_path: Path) -> None:
    table = pa.table({"user": ["u"], "text": ["a b"], "tags": [["A", "B"]]})
    encoding = {"tags.list.element": "DELTA_BYTE_ARRAY"}
    pq.write_table(table, tmp_path / "x", use_dictionary=False, column_encoding=encoding)
    with pytest.raises(InputError, match=r"tags\.list\.element is encoded as DELTA_BYTE_ARRAY"):
        read_file(tmp_path / "x", "parquet")


def test_a_row_that_unpacks_to_more_than_may_be_held_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = pa.table({"user": ["u"] * 3, "text": ["a", "b", " ".join("c" * 200)], "tags": [["t"], ["t"], ["t"] * 200]})
    pq.write_table(table, tmp_path / "x")
    assert len(read_file(tmp_path / "x", "parquet", max_words=500)) == 3
    monkeypatch.setattr(_rows, "_BATCH", (64, 5000))
    with pytest.raises(InputError, match=r"x:row 3': unpacks to more than 5,000 bytes"):
        read_file(tmp_path / "x", "parquet")


def test_lists_are_read_many_rows_at_once(tmp_path: Path) -> None:
    """Arrow copies a dictionary for every batch that is read with it."""
    table = pa.table({"user": ["u"] * 20_000, "text": ["a"] * 20_000, "tags": [[f"A{i}"] for i in range(20_000)]})
    pq.write_table(table, tmp_path / "x")
    with mock.patch.object(_rows, "_unpacked", wraps=_rows._unpacked) as counted:
        assert len(read_file(tmp_path / "x", "parquet")) == 20_000
    held = [call.args[0] for call in counted.call_args_list]
    assert sum(isinstance(part, pa.RecordBatch) and "tags" in part.schema.names for part in held) < 50


def test_lists_in_columns_that_are_no_part_of_a_row_are_not_read(tmp_path: Path) -> None:
    pq.write_table(pa.table({"user": ["u"], "text": ["a b"], "more": [["x"]], "tags": [["A", "B"]]}), tmp_path / "x")
    with mock.patch.object(_rows, "checked_row", wraps=_rows.checked_row) as checked:
        read_file(tmp_path / "x", "parquet")
    assert checked.call_args.args[0].keys() == {"user", "text", "tags"}
