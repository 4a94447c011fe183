"""Parquet files with a bit flipped in what describes them: each place that reads one refuses it in a line, or reads it."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from uedp_ray.analysis.files import read_table
from uedp_ray.config import SourceConfig
from uedp_ray.corpus._shards import _KEPT, _kept
from uedp_ray.corpus.prepare import prepare
from uedp_ray.corpus.readers import read
from uedp_ray.corpus.store import open_corpus
from uedp_ray.errors import InputError
from uedp_ray.storage.tables import refusing_damage
from uedp_ray.tasks.metrics import PERPLEXITY
from uedp_ray.training.driver import RunDriver
from uedp_ray.units import UNITS

MOST = 1000  # of a footer's bits, drawn at random


def flips(content: bytes, seed: int = 0) -> list[bytes]:
    """The file with one bit of its footer flipped, for each of some bits."""
    length = int.from_bytes(content[-8:-4], "little")
    bits = range(8 * (len(content) - 8 - length), 8 * len(content))
    flipped = []
    for bit in random.Random(seed).sample(bits, min(MOST, len(bits))):
        damaged = bytearray(content)
        damaged[bit // 8] ^= 1 << bit % 8
        flipped.append(bytes(damaged))
    return flipped


def read_or_refused(path: Path, act: Callable[[], object]) -> None:
    sound = path.read_bytes()
    lines = []
    for damaged in flips(sound):
        path.write_bytes(damaged)
        try:
            act()
        except InputError as error:
            lines.append(str(error))
    assert lines
    assert not any("\n" in line for line in lines)
    path.write_bytes(sound)
    act()


@pytest.fixture(scope="module")
def corpus(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("damaged") / "out"
    prepare(SourceConfig(format="synthetic", num_users=5), out, num_shards=1)
    return out


def rows(num: int = 3) -> pa.Table:
    held = [{"category": "person", "start": 0, "end": 3}]
    columns = {"user": ["u"] * num, "text": ["Ann wrote"] * num, "label": ["a"] * num, "tags": [["N", "V"]] * num}
    return pa.table({**columns, "entities": [held] * num})


@pytest.mark.parametrize("name", ["shards/part-00000.parquet", "entities.parquet"])
def test_of_a_prepared_corpus(corpus, tmp_path, name):
    out = shutil.copytree(corpus, tmp_path / "out")

    def act() -> None:
        opened = open_corpus(out)
        if name == "entities.parquet":
            opened.entity_table().to_pylist()
            return
        for _, sentences in opened.sentences():
            assert all(isinstance(part, str) for each in sentences for part in (each.user, each.text))

    read_or_refused(out / name, act)


def test_of_a_table_of_runs(tmp_path):
    """Of which ``rounds.parquet`` and ``trials.parquet`` are read."""
    table = pa.table({"trial": ["0000", "0001"], "round": [0, 1], "perplexity": [3.5, None], "run_dirs": [["a"], []]})
    pq.write_table(table, tmp_path / "trials.parquet")

    def act() -> None:
        found = read_table(tmp_path, "trials.parquet")
        assert all(found.column_names)
        found.to_pandas()

    read_or_refused(tmp_path / "trials.parquet", act)


def test_rows_of_nothing_are_counted(tmp_path):
    """Two megabytes of them were read for minutes, into gigabytes."""
    pq.write_table(pa.table({"nothing": pa.nulls(2_000_000)}), tmp_path / "trials.parquet")
    assert (tmp_path / "trials.parquet").stat().st_size < 10_000
    with pytest.raises(InputError, match="unpacks to more than"):
        read_table(tmp_path, "trials.parquet")


def test_of_the_rounds_of_a_run_that_is_resumed(tmp_path):
    path = tmp_path / "rounds.parquet"
    row = {"round": 0, "bits_per_byte": None, "unk_share": None, "perplexity": 3.5, "noise_std": 1.0}
    pq.write_table(pa.Table.from_pylist([row | {f"epsilon_{unit}": 1.0 for unit in UNITS}]), path)
    driver = SimpleNamespace(
        run=SimpleNamespace(rounds=path), _training=SimpleNamespace(num_rounds=3), _metric=PERPLEXITY
    )
    driver._is_row = lambda row: RunDriver._is_row(driver, row)  # type: ignore[arg-type]

    def act() -> None:
        if not RunDriver._known_rows(driver):  # type: ignore[arg-type]
            raise InputError("path", str(path), "is made anew")

    read_or_refused(path, act)


def test_of_findings_kept_from_an_earlier_run(tmp_path):
    path = tmp_path / "kept.parquet"
    pq.write_table(pa.table({"mentions": rows()["entities"]}).cast(_KEPT), path)

    def act() -> None:
        if (kept := _kept(path)) is None:
            raise InputError("path", str(path), "is made again")
        assert all(type(mention.start) is type(mention.end) is int for row in kept for mention in row)

    read_or_refused(path, act)


def test_of_a_source(tmp_path):
    pq.write_table(rows(), tmp_path / "rows.parquet")
    source = SourceConfig(path=str(tmp_path / "rows.parquet"), format="parquet")
    read_or_refused(tmp_path / "rows.parquet", lambda: list(read(source)))


@pytest.mark.parametrize("name", ["shards/part-00000.parquet", "entities.parquet"])
def test_a_bit_of_the_rows_themselves_is_noticed(corpus, tmp_path, name):
    """Another text or place of an entity would be read without a word, but for the checksums of pages."""
    out = shutil.copytree(corpus, tmp_path / "out")
    path = out / name

    def found() -> object:
        opened = open_corpus(out)
        return opened.entity_table() if name == "entities.parquet" else list(opened.sentences())

    sound, first = path.read_bytes(), found()
    footer = len(sound) - 8 - int.from_bytes(sound[-8:-4], "little")
    noticed = 0
    for bit in random.Random(0).sample(range(8 * 4, 8 * footer), 200):
        damaged = bytearray(sound)
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        try:
            assert found() == first
        except InputError:
            noticed += 1
    assert noticed > 100


@pytest.mark.parametrize(
    "error", [KeyError("x"), OSError("no thrift"), pa.ArrowMemoryError("2**60 bytes"), TypeError()]
)
def test_what_a_damaged_file_leads_to_is_refused(error):
    with pytest.raises(InputError, match="is damaged"), refusing_damage(InputError("path", "x", "is damaged")):
        raise error


@pytest.mark.parametrize(
    "error", [FileNotFoundError(2, "no"), OSError(24, "files"), MemoryError(), KeyboardInterrupt()]
)
def test_what_is_no_fault_of_the_file_passes(error):
    with pytest.raises(type(error)), refusing_damage(InputError("path", "x", "is damaged")):
        raise error
