"""What one row may cost: time that grows with it and no faster, memory in proportion to it."""

from __future__ import annotations

import random
import sys
import time
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from uedp_ray.corpus import _spill, overlap, records
from uedp_ray.corpus._layout import join_lines
from uedp_ray.corpus._rows import checked_row
from uedp_ray.corpus._spill import Spill
from uedp_ray.corpus.overlap import Distinct, Sketch, user_names
from uedp_ray.corpus.records import Mention, Sentence, composed, folded
from uedp_ray.errors import InputError


def _growth(work: Callable[[str], object], text: Callable[[int], str], length: int) -> float:
    """How many times as long four times the text takes: 4 where time is linear, 16 where it is the square."""

    def seconds(size: int) -> float:
        given, times = text(size), []
        for _ in range(3):
            begin = time.process_time()
            work(given)
            times.append(time.process_time() - begin)
        return min(times)

    return seconds(4 * length) / seconds(length)


TWO_CLASSES = ["\u0300\u0316", "\u0301\u0f73", "\u0301\uff9e"]  # the latter two hide a mark in what is none


@pytest.mark.parametrize("marks", TWO_CLASSES, ids=ascii)
@pytest.mark.parametrize(
    "work",
    [folded, lambda text: Sketch().add("u", text), lambda text: user_names([text])],
    ids=["form", "sketch", "user"],
)
def test_marks_are_put_in_order_in_linear_time(work: Callable[[str], object], marks: str) -> None:
    assert _growth(work, lambda size: "a" + marks * (size // 2), 10_000) < 9


@pytest.mark.parametrize("form", ["NFC", "NFKC"])
def test_marks_in_order_change_no_text(form: Any) -> None:
    letters = [letter for letter in map(chr, range(sys.maxunicode + 1)) if unicodedata.decomposition(letter)]
    marks = [letter for letter in map(chr, range(sys.maxunicode + 1)) if unicodedata.combining(letter)]
    more = ["\uff9e", "\uff9f", "\u0f73", "\u0f75", "\u0f81", "-", " ", "a", "\u1100", "\u1161", "\u11a8", "\u09be"]
    drawn = random.Random(0)
    for _ in range(2000):
        pool = [drawn.choice(marks), drawn.choice(marks), drawn.choice(letters), *drawn.choices(more, k=2)]
        text = "".join(drawn.choices(pool, (9, 9, 1, 5, 1), k=drawn.randrange(200)))
        assert composed(form, text) == unicodedata.normalize(form, text)


def test_what_begins_with_a_mark_is_looked_for_among_marks() -> None:
    """Every one: one that was taken for a letter would divide a run of marks."""
    for letter in map(chr, range(sys.maxunicode + 1)):
        if unicodedata.combining(unicodedata.normalize("NFKD", letter)[0]):
            assert records._MARKS.fullmatch(letter * 31)


def test_distinct_words_of_many_shards_are_each_sorted_a_few_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every shard brings words of its own, and words that all have."""
    rng, joined, sizes = np.random.default_rng(0), overlap.union, list[int]()
    monkeypatch.setattr(overlap, "union", lambda *parts: sizes.append(sum(map(len, parts))) or joined(*parts))
    shared = rng.integers(0, 2**64, 300, np.uint64)
    parts = [np.concatenate([shared, rng.integers(0, 2**64, 100, np.uint64)]) for _ in range(500)]
    words = Distinct()
    for part in parts:
        words.add(part)
    assert len(words) == len(set(np.concatenate(parts).tolist())) == 300 + 500 * 100
    assert sum(sizes) <= 4 * 500 * 400
    assert len(words) == 50_300
    assert len(Distinct()) == 0


def test_lines_below_a_long_one_are_joined_in_linear_time() -> None:
    assert _growth(join_lines, lambda size: "x" * size + "\n" + "a: b\n" * (size // 5), 5_000) < 9


@pytest.mark.parametrize("start", [None, "1"])
@pytest.mark.parametrize("form", ["a " * (1 << 15) + "b", "!" * (1 << 15) + "b"])
def test_a_long_entity_by_its_text_in_a_long_row_is_refused(form: str, start: object) -> None:
    row = {"user": "u", "text": form[:2] * (1 << 18), "entities": [{"category": "x", "text": form, "start": start}]}
    with pytest.raises(InputError, match="too many entities for so long a text"):
        checked_row(row, "x")


def test_an_entity_longer_than_its_row_is_not_looked_for() -> None:
    row = {"user": "u", "text": "a b", "entities": [{"category": "x", "text": "a " * (1 << 20)}]}
    with pytest.raises(InputError, match="does not occur"):
        checked_row(row, "x")


@pytest.mark.parametrize(
    "entities",
    [
        [{"category": "x", "text": "a"}] * 8,
        [{"category": f"x{i}", "start": 0, "end": 1 << 19} for i in range(1000)],
    ],
    ids=["many", "long"],
)
def test_entities_that_take_far_more_than_their_row_are_refused(entities: list[dict[str, object]]) -> None:
    with pytest.raises(InputError, match="too many, or too long"):
        checked_row({"user": "u", "text": "a " * (1 << 18), "entities": entities}, "x")


@pytest.mark.parametrize("key", ["user", "label", "category"])
def test_a_name_without_end_is_refused(key: str) -> None:
    """Each sentence of a row holds its user and label, each mention its category."""
    names = {"user": "u", "label": "l", "category": "c"} | {key: "n" * 1001}
    entities = [{"category": names["category"], "text": "a"}]
    row = {"user": names["user"], "text": "a b", "label": names["label"], "entities": entities}
    with pytest.raises(InputError, match=f"a {key} of more than 1,000 characters"):
        checked_row(row, "x")
    assert checked_row(row | {"user": "u", "label": "l", "entities": None}, "x").text == "a b"


@pytest.mark.parametrize(
    "held",
    [
        {"user": "u" * 1000},
        {"label": "l" * 1000},
        {"tags": ("t" * 1000,)},
        {"mentions": (Mention("c" * 1000, 0, 1),)},
        {"mentions": (Mention("c", 0, 1),) * 100},
    ],
    ids=["user", "label", "tags", "category", "mentions"],
)
def test_a_spill_holds_no_more_whatever_part_of_its_sentences_is_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, held: dict[str, Any]
) -> None:
    monkeypatch.setattr(_spill, "_BUFFERED_CHARACTERS", 100_000)
    spill, flushed = Spill(tmp_path / "buckets", 1), []
    monkeypatch.setattr(spill, "flush", lambda: flushed.append(len(spill._buffer[0])))
    for _ in range(100):
        spill.add(Sentence(**{"user": "u", "text": "a"} | held))
    assert flushed
    assert flushed[0] <= 100
