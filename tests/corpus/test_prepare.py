"""``prepare``: exact statistics, streaming, caching, atomic output, and the same result however it is run."""

from __future__ import annotations

import dataclasses
import json
import os
import random
import signal
import stat
import subprocess
import sys
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import ray

from tests.corpus.reading import ROWS, row_of, source_of, spacy_model
from tests.told import Told
from uedp_ray.config import SourceConfig
from uedp_ray.corpus import prepare as module
from uedp_ray.corpus.prepare import prepare
from uedp_ray.corpus.readers import read_rows
from uedp_ray.corpus.records import Sentence
from uedp_ray.corpus.store import open_corpus
from uedp_ray.errors import InputError

TABLE_ONE = [
    "Person", "Loc", "Org", "Misc", "GPE", "PII", "Date", "NoRP", "Fac", "Product", "Event", "Law", "Language",
    "Work of art", "Time", "Percent", "Money", "Quantity", "Ordinal", "Cardinal",
]  # fmt: skip


def test_statistics_of_a_small_corpus(tmp_path: Path) -> None:
    statistics = prepare(source_of(tmp_path, *ROWS), tmp_path / "out")
    assert statistics == {
        "users": 4,
        "sentences": 5,
        "tokens": 15,
        "vocabulary": 10,
        "entities": 3,
        "sensitive_sentences": {"loc": 1, "person": 2, "all": 3},
        "max_holders": 2,
        "mentions": {"loc": 1, "person": 5},
        "share_of_words_beyond": {"32": 0.0, "64": 0.0, "128": 0.0},
        "divided_for_max_words": {"sentences": 0, "share_of_words": 0.0},
        "rows_without_words": 2,
    }
    corpus = open_corpus(tmp_path / "out")
    assert corpus.statistics == statistics
    assert sorted(corpus.entity_table()["form"].to_pylist()) == ["ann", "bob smith", "rome"]
    assert sorted(corpus.entity_holders.tolist()) == [1, 2, 2]
    assert sorted(np.diff(corpus.entity_offsets).tolist()) == [0, 0, 1, 2, 2], "an entity counts once a sentence"


def test_a_name_wrapped_at_its_hyphen_is_the_entity_that_it_is_on_one_line(tmp_path: Path) -> None:
    name, wrapped, other = "Uwe Maier-Leibnitz", "Uwe Maier-\n> Leibnitz", "Uwe Maier - Leibnitz"
    rows = [{"user": f"u{number}", "text": f"> met {form} then"} for number, form in enumerate((name, wrapped, other))]
    for row, form in zip(rows, (name, wrapped, other), strict=True):
        row["entities"] = [{"category": "person", "start": 6, "end": 6 + len(form)}]  # type: ignore[assignment]
    prepare(source_of(tmp_path, *rows), tmp_path / "out")  # type: ignore[arg-type]
    corpus = open_corpus(tmp_path / "out")
    forms = pq.read_table(tmp_path / "out" / "entities.parquet")["form"].to_pylist()
    assert sorted(forms) == ["uwe maier - leibnitz", "uwe maier-leibnitz"]
    assert sorted(corpus.entity_holders) == [1, 2]


def test_shards_change_no_statistic(tmp_path: Path) -> None:
    source = SourceConfig(format="synthetic", num_users=40)
    assert prepare(source, tmp_path / "one", num_shards=1) == prepare(source, tmp_path / "many", num_shards=16)
    assert len(list((tmp_path / "many" / "shards").iterdir())) > 10


def test_categories_filter_and_pii(tmp_path: Path) -> None:
    statistics = prepare(source_of(tmp_path, *ROWS, categories=("loc", "org")), tmp_path / "out")
    assert statistics["sensitive_sentences"] == {"loc": 1, "org": 0, "all": 1}
    assert prepare(source_of(tmp_path, *ROWS, categories=("pii",)), tmp_path / "out")["sensitive_sentences"]["all"] == 3


@pytest.mark.parametrize("category", TABLE_ONE)
def test_every_category_of_the_seeds_can_be_chosen_alone(tmp_path: Path, category: str) -> None:
    rows = [row_of("u", f"thing{i} here", (label, f"thing{i}")) for i, label in enumerate(TABLE_ONE)]
    found = prepare(source_of(tmp_path, *rows, categories=(category,)), tmp_path / "out")["sensitive_sentences"]
    assert found["all"] == (4 if category == "PII" else 1)  # person, loc, gpe and what is marked as PII


def test_categories_of_the_source_and_of_a_spacy_model_can_be_chosen(tmp_path: Path) -> None:
    rows = [row_of("u1", "Ann of Acme", ("employer", "Acme"), ("person", "Ann"))]
    chosen = prepare(source_of(tmp_path, *rows, categories=("Employer",)), tmp_path / "out")
    assert chosen["mentions"] == {"employer": 1}
    detector = spacy_model(tmp_path / "model", DRUG="acme")
    chosen = prepare(source_of(tmp_path, *rows, detector=(detector,), categories=("drug",)), tmp_path / "out")
    assert chosen["mentions"] == {"drug": 1}
    with pytest.raises(InputError, match="employer"):
        prepare(source_of(tmp_path, *rows, detector=(detector,), categories=("employer",)), tmp_path / "out")
    with pytest.raises(InputError, match="categories = 'rank'") as caught:
        prepare(source_of(tmp_path, *rows, categories=("rank",)), tmp_path / "out")
    assert "employer" not in str(caught.value), "what the source marks is private"


def test_an_entity_is_one_whatever_its_encoding_case_and_spacing(tmp_path: Path) -> None:
    forms = ["Zo\u00eb Lee", "zoe\u0308  LEE", "ZOE\u0308\u00a0lee"]
    rows = [row_of(f"u{i}", form, ("person", form)) for i, form in enumerate(forms)]
    statistics = prepare(source_of(tmp_path, *rows), tmp_path / "out")
    assert (statistics["entities"], statistics["max_holders"]) == (1, 3)


def test_no_sensitive_sentence_is_legal_and_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    statistics = prepare(source_of(tmp_path, {"user": "u", "text": "word"}), tmp_path / "out")
    assert statistics["sensitive_sentences"] == {"all": 0}
    assert (statistics["entities"], statistics["max_holders"]) == (0, 0)
    corpus = open_corpus(tmp_path / "out")
    assert (corpus.num_entities, len(corpus.entity_ids), corpus.num_sentences) == (0, 0, 1)
    assert dict(corpus.texts()) == {0: ["word"]}
    assert "no sensitive entity" in caplog.text


def test_evaluation_text_need_hold_no_sensitive_entity(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    source = source_of(tmp_path, {"user": "u", "text": "word"})
    prepare(source, tmp_path / "held-out", protected=False)
    assert not caplog.text
    prepare(source, tmp_path / "private")
    assert f"found in {source.path}" in caplog.text


def test_categories_change_no_sentence(tmp_path: Path) -> None:
    rows = [row_of("u", "At Yahoo! Inc they met. Ann left", ("org", "Yahoo! Inc"), ("per", "Ann"))]
    texts = []
    for categories in ((), ("person",)):
        prepare(source_of(tmp_path, *rows, categories=categories), tmp_path / "out")
        texts.append(dict(open_corpus(tmp_path / "out").texts()))
    assert texts[0] == texts[1] == {0: ["At Yahoo! Inc they met.", "Ann left"]}


def test_what_is_cut_off_or_divided_is_told(tmp_path: Path) -> None:
    rows = [{"user": "u", "text": "w " * 300, "label": 1}, {"user": "v", "text": "w " * 50}, {"user": "v", "text": ""}]
    statistics = prepare(source_of(tmp_path, *rows, max_words=100), tmp_path / "out")
    assert statistics["share_of_words_beyond"] == {"32": round(222 / 350, 4), "64": round(108 / 350, 4), "128": 0.0}
    assert statistics["divided_for_max_words"] == {"sentences": 1, "share_of_words": round(300 / 350, 4)}
    assert statistics["rows_without_words"] == 1
    assert open_corpus(tmp_path / "out").has_labels


def test_only_sensitive_sentences_are_legal(tmp_path: Path) -> None:
    statistics = prepare(source_of(tmp_path, ROWS[0], ROWS[1]), tmp_path / "out")
    assert statistics["sensitive_sentences"]["all"] == statistics["sentences"] == 2


def test_nothing_to_read_is_refused(tmp_path: Path) -> None:
    for rows in ([], [ROWS[3], ROWS[4]]):
        with pytest.raises(InputError, match="holds no sentence"):
            prepare(source_of(tmp_path, *rows), tmp_path / "out")
        assert not (tmp_path / "out").exists()


def test_detectors_are_united(tmp_path: Path) -> None:
    (tmp_path / "list").write_text("hello\nthe end\tevent\n")
    detectors = ("annotated", f"list:{tmp_path / 'list'}", "regex")
    rows = [*ROWS, {"user": "u5", "text": "ann@example.org"}]
    statistics = prepare(source_of(tmp_path, *rows, detector=detectors), tmp_path / "out")
    assert statistics["mentions"] == {"email": 1, "event": 1, "listed": 1, "loc": 1, "person": 5}
    kept = prepare(source_of(tmp_path, *rows, detector=detectors, categories=("event",)), tmp_path / "out")
    assert kept["mentions"] == {"event": 1, "listed": 1}  # a list's own phrases are always protected


def test_a_list_that_matches_nothing_is_refused(tmp_path: Path) -> None:
    (tmp_path / "list").write_text("xylophone\n")
    with pytest.raises(InputError, match="matches nothing"):
        prepare(source_of(tmp_path, *ROWS, detector=("annotated", f"list:{tmp_path / 'list'}")), tmp_path / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["list", "rows.jsonl"]


def test_bad_targets_and_settings(tmp_path: Path) -> None:
    source = source_of(tmp_path, *ROWS)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("x")
    with pytest.raises(InputError, match="something else"):
        prepare(source, tmp_path / "mine")
    with pytest.raises(InputError, match="is a file"):
        prepare(source, tmp_path / "rows.jsonl")
    with pytest.raises(InputError, match="workers"):
        prepare(source, tmp_path / "out", workers=0)
    with pytest.raises(InputError, match="num_shards"):
        prepare(source, tmp_path / "out", num_shards=0)
    with pytest.raises(InputError, match="persn"):
        prepare(source_of(tmp_path, *ROWS, categories=("persn",)), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_failed_run_leaves_what_was_there(tmp_path: Path) -> None:
    prepare(source_of(tmp_path, *ROWS), tmp_path / "out")
    digest = open_corpus(tmp_path / "out").digest
    with pytest.raises(InputError, match=r"rows.jsonl:8"):
        prepare(source_of(tmp_path, *ROWS, {"text": "no owner"}), tmp_path / "out")
    assert open_corpus(tmp_path / "out").digest == digest
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "rows.jsonl"]


def test_a_folder_is_prepared_by_one_process_at_a_time(tmp_path: Path) -> None:
    source, refused = source_of(tmp_path, *ROWS), []

    def prepare_again(stage: str, done: int, total: int | None) -> None:
        with pytest.raises(InputError, match="another process") as caught:
            prepare(source, tmp_path / "out")
        refused.append(caught)

    prepare(source, tmp_path / "out", num_shards=1, reporter=Told(prepared=prepare_again))
    assert refused
    assert open_corpus(tmp_path / "out").num_users == 4


def test_output_is_for_the_owner_only(tmp_path: Path) -> None:
    prepare(source_of(tmp_path, *ROWS), tmp_path / "out")
    for path in (tmp_path / "out", *(tmp_path / "out").rglob("*")):
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600)


def test_digest_is_of_the_content(tmp_path: Path) -> None:
    def digest(*rows: dict[str, object], **settings: object) -> str:
        prepare(source_of(tmp_path, *rows, **settings), tmp_path / "out")
        return open_corpus(tmp_path / "out").digest

    assert digest(*ROWS) == digest(*ROWS)
    assert digest(*ROWS) != digest(*ROWS[:-1])
    assert digest(*ROWS) != digest(*ROWS, categories=("loc",))


def test_progress_is_told(tmp_path: Path) -> None:
    told: list[tuple[str, int, int | None]] = []
    prepare(
        source_of(tmp_path, *ROWS),
        tmp_path / "out",
        num_shards=1,
        reporter=Told(prepared=lambda *step: told.append(step)),
    )
    assert told == [("detect", 1, 1)]


def _stream(num_users: int, each: int) -> Iterator[Sentence]:
    filler = f"{'lorem' * 96} " * 5  # few words: counting them is slow while memory is traced
    for slot in range(each):
        for user in range(num_users):
            yield Sentence(f"user {user}", f"{filler}{user % 7} {slot}")


def test_a_corpus_is_never_held_as_a_whole(tmp_path: Path) -> None:
    """24 MB of text, users scattered all over it: the peak stays below half of that."""
    (tmp_path / "any").write_text("")
    source = SourceConfig(path=str(tmp_path / "any"), format="jsonl")
    text_bytes = 10_000 * 2400
    with mock.patch.object(module, "read_rows", return_value=_stream(5, 2)):
        prepare(source, tmp_path / "first", num_shards=2)  # what is imported at the first use is not counted
    with mock.patch.object(module, "read_rows", return_value=_stream(500, 20)):
        tracemalloc.start()
        statistics = prepare(source, tmp_path / "out", num_shards=32)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert (statistics["users"], statistics["sentences"]) == (500, 10_000)
    assert peak < text_bytes / 2
    corpus = open_corpus(tmp_path / "out")
    assert set(np.diff(corpus.user_offsets).tolist()) == {20}
    assert all([int(t.split()[-1]) for t in texts] == list(range(20)) for _, texts in corpus.texts([5, 499]))


@pytest.mark.slow
def test_arrow_never_holds_the_corpus_either(tmp_path: Path) -> None:
    """A Parquet file of one row group, 20 MB, in a process of its own: Arrow's peak is of the process."""
    texts = [random.Random(i).randbytes(1000).hex() for i in range(10_000)]
    table = pa.table({"user": [f"u{i % 100}" for i in range(len(texts))], "text": texts})
    pq.write_table(table, tmp_path / "rows.parquet", row_group_size=len(texts))
    script = f"""
import pyarrow
from uedp_ray.config import SourceConfig
from uedp_ray.corpus.prepare import prepare
prepare(SourceConfig(path={str(tmp_path / "rows.parquet")!r}, format="parquet"), {str(tmp_path / "out")!r}, num_shards=32)
print(pyarrow.default_memory_pool().max_memory())
"""
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    assert 0 < int(done.stdout) < sum(map(len, texts)) / 2


def test_conll_counts_are_exact(real_data: Path, tmp_path: Path) -> None:
    source = SourceConfig(path=str(real_data / "conll2003/eng.train"), format="conll")
    statistics = prepare(source, tmp_path / "out")
    assert (statistics["users"], statistics["sentences"], statistics["tokens"]) == (946, 14_041, 203_621)
    assert statistics["sensitive_sentences"] == {"person": 4373, "loc": 5127, "org": 4587, "misc": 2698, "all": 11_132}
    assert statistics["mentions"] == {"loc": 7140, "person": 6600, "org": 6321, "misc": 3438}
    assert statistics["max_holders"] == 112
    corpus = open_corpus(tmp_path / "out")
    assert corpus.has_tags
    assert all(len(t) == len(g) for (_, ts), (_, gs) in zip(corpus.texts([9]), corpus.tags([9]), strict=True)
               for t, g in zip(map(str.split, ts), gs, strict=True))  # fmt: skip


@pytest.mark.slow
def test_workers_change_nothing(spacy_source: SourceConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    alone = prepare(spacy_source, tmp_path / "alone")
    passed, get = [], ray.get

    def spy(reference: Any) -> Any:
        passed.append(get(reference))
        return passed[-1]

    monkeypatch.setattr(ray, "get", spy)
    together = prepare(spacy_source, tmp_path / "together", workers=2)
    assert alone == together
    assert passed
    assert {type(each) for each in passed} <= {type(tmp_path)}, "names went through Ray's object store"
    assert not list(tmp_path.rglob("*.result"))
    assert not ray.is_initialized()  # what it started, it stopped
    one, two = open_corpus(tmp_path / "alone"), open_corpus(tmp_path / "together")
    assert one.digest == two.digest
    for name in ("user_hash", "user_offsets", "entity_ids", "entity_offsets", "entity_hash", "entity_holders"):
        assert np.array_equal(getattr(one, name), getattr(two, name))


@pytest.mark.slow
def test_a_mistake_seen_by_a_worker_comes_back_as_the_users(tmp_path: Path) -> None:
    phrases = tmp_path / "list"
    phrases.write_text("hello\n")

    def reading(source: SourceConfig) -> Iterator[Sentence]:
        yield from read_rows(source)
        phrases.unlink()

    source = source_of(tmp_path, *ROWS, detector=(f"list:{phrases}",))
    with mock.patch.object(module, "read_rows", reading), pytest.raises(InputError, match="no such file"):
        prepare(source, tmp_path / "out", workers=2)
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_workers_that_are_killed_each_time_end_it_in_one_line(tmp_path: Path) -> None:
    def killed(task: object) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    source = source_of(tmp_path, *ROWS)
    with (
        mock.patch.object(module, "leave_result", killed),
        pytest.raises(RuntimeError, match=r"a worker died each time \(WorkerCrashedError\).* --workers 1"),
    ):
        prepare(source, tmp_path / "out", workers=2)
    assert not (tmp_path / "out").exists()
    assert not ray.is_initialized()


def test_a_prepared_corpus_that_is_prepared_again_keeps_what_is_known_of_it(tmp_path: Path) -> None:
    """It was said to be annotated, and to hold all categories that were found."""
    rows = [{"user": f"u{n}", "text": "Ann went to Rome"} for n in range(9)]
    spans = [{"category": "person", "start": 0, "end": 3}, {"category": "gpe", "start": 12, "end": 16}]
    text = tmp_path / "rows.jsonl"
    text.write_text("\n".join(json.dumps(row | {"entities": spans}) for row in rows))
    first = SourceConfig(path=str(text), format="jsonl", detector=("annotated", "regex"), categories=("gpe",))
    prepare(first, tmp_path / "one")
    again = SourceConfig(path=str(tmp_path / "one"))
    prepare(again, tmp_path / "two")
    one, two = open_corpus(tmp_path / "one"), open_corpus(tmp_path / "two")
    assert (two.detectors, two.categories) == (one.detectors, one.categories) == (["annotated", "regex"], ["gpe"])
    with pytest.raises(InputError, match=r"categories = 'person'.*was prepared for gpe: prepare its text anew"):
        prepare(dataclasses.replace(again, categories=("person",)), tmp_path / "three")
    more = dataclasses.replace(again, detector=("annotated", "regex"))
    prepare(more, tmp_path / "four")
    assert {"gpe", "email"} < set(open_corpus(tmp_path / "four").categories)
    before = sorted((path, path.stat().st_mtime_ns) for path in (tmp_path / "one").rglob("*"))
    with pytest.raises(InputError, match="is the corpus that is read, whose entities would be lost"):
        prepare(again, tmp_path / "one")
    assert sorted((path, path.stat().st_mtime_ns) for path in (tmp_path / "one").rglob("*")) == before
