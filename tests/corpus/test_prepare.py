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
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import ray
import spacy

from tests.told import Told
from uedp_ray.config import SourceConfig
from uedp_ray.corpus import prepare as module
from uedp_ray.corpus.detectors import regex
from uedp_ray.corpus.detectors.spacy_model import SpacyPipeline
from uedp_ray.corpus.prepare import prepare
from uedp_ray.corpus.readers import read_rows
from uedp_ray.corpus.readers.base import of_files
from uedp_ray.corpus.records import Mention, Sentence, entity_form
from uedp_ray.corpus.store import open_corpus
from uedp_ray.errors import InputError


def _source(folder: Path, *rows: dict[str, object], **settings: object) -> SourceConfig:
    path = folder / "rows.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    return SourceConfig(path=str(path), format="jsonl", **settings)  # type: ignore[arg-type]


def _row(user: str, text: str, *entities: tuple[str, str]) -> dict[str, object]:
    return {"user": user, "text": text, "entities": [{"category": c, "text": form} for c, form in entities]}


ROWS: list[dict[str, object]] = [
    _row("u1", "Ann met  BOB SMITH", ("PER", "Ann"), ("PER", "bob smith")),
    _row("u2", "in Rome", ("LOC", "Rome")),
    {"user": "u1", "text": "the end"},
    {"user": "u2", "text": "  "},
    {"user": "u3", "text": ""},
    _row("u4", "Bob  Smith and Ann and ann", ("person", "Bob Smith"), ("person", "ann")),
    {"user": "u5", "text": "Hello"},
]


TABLE_ONE = [
    "Person", "Loc", "Org", "Misc", "GPE", "PII", "Date", "NoRP", "Fac", "Product", "Event", "Law", "Language",
    "Work of art", "Time", "Percent", "Money", "Quantity", "Ordinal", "Cardinal",
]  # fmt: skip


def _spacy(folder: Path, **phrases: str) -> str:
    """A pipeline on disk that marks one word a label."""
    pipeline = spacy.blank("en")
    ruler = pipeline.add_pipe("entity_ruler")
    ruler.add_patterns([{"label": label, "pattern": [{"LOWER": word}]} for label, word in phrases.items()])
    pipeline.to_disk(folder)
    return f"spacy:{folder}"


def test_statistics_of_a_small_corpus(tmp_path: Path) -> None:
    statistics = prepare(_source(tmp_path, *ROWS), tmp_path / "out")
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
    prepare(_source(tmp_path, *rows), tmp_path / "out")  # type: ignore[arg-type]
    corpus = open_corpus(tmp_path / "out")
    forms = pq.read_table(tmp_path / "out" / "entities.parquet")["form"].to_pylist()
    assert sorted(forms) == ["uwe maier - leibnitz", "uwe maier-leibnitz"]
    assert sorted(corpus.entity_holders) == [1, 2]


def _reading(monkeypatch: pytest.MonkeyPatch, *mentions: tuple[str, int, int]) -> None:
    """Puts a new reader in the place of ``jsonl``: one sentence, and marks that nothing has looked at."""
    row = Sentence("u", "Ann met Bob", mentions=tuple(Mention(*mention) for mention in mentions))
    monkeypatch.setattr("uedp_ray.corpus.readers.jsonl.READER", of_files(lambda path: iter([row])))


def _detecting(monkeypatch: pytest.MonkeyPatch, find: Callable[[Sequence[Sentence]], Any]) -> None:
    """Puts a new detector in the place of ``regex``."""
    bare = SimpleNamespace(fingerprint="", cacheable=False, reads="sentences", categories={"DRUG"}, find=find)
    monkeypatch.setattr(regex, "Patterns", lambda: bare)


def test_labels_of_a_new_reader_or_detector_are_known_by_our_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _reading(monkeypatch, ("PER", 0, 3))
    found = prepare(_source(tmp_path, categories=("person",)), tmp_path / "read")
    assert found["mentions"] == {"person": 1}
    _detecting(monkeypatch, lambda sentences: [(Mention("Drug", 4, 7),) for _ in sentences])
    source = _source(tmp_path, categories=("person", "drug"), detector=("annotated", "regex"))
    assert prepare(source, tmp_path / "detected")["mentions"] == {"drug": 1, "person": 1}


@pytest.mark.parametrize("span", [(8, 3), (3, 3), (-3, 3), (8, 12)], ids=["length", "empty", "negative", "beyond"])
def test_marks_that_are_no_part_of_the_sentence_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, span: tuple[int, int]
) -> None:
    """They name something to protect, and where it stands is lost."""
    _reading(monkeypatch, ("person", *span))
    with pytest.raises(InputError, match=r"^detector = 'annotated': marks what is no part"):
        prepare(_source(tmp_path), tmp_path / "out")
    _reading(monkeypatch)
    _detecting(monkeypatch, lambda sentences: [[Mention("drug", *span)] for _ in sentences])
    with pytest.raises(InputError, match=r"^detector = 'regex': marks what is no part"):
        prepare(_source(tmp_path, detector=("regex",)), tmp_path / "out")


@pytest.mark.parametrize("num", [0, 2])
def test_a_detector_that_does_not_answer_each_sentence_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num: int
) -> None:
    _reading(monkeypatch)
    _detecting(monkeypatch, lambda sentences: iter([()] * num))
    with pytest.raises(InputError, match=r"^detector = 'regex': does not answer every sentence"):
        prepare(_source(tmp_path, detector=("regex",)), tmp_path / "out")


def test_shards_change_no_statistic(tmp_path: Path) -> None:
    source = SourceConfig(format="synthetic", num_users=40)
    assert prepare(source, tmp_path / "one", num_shards=1) == prepare(source, tmp_path / "many", num_shards=16)
    assert len(list((tmp_path / "many" / "shards").iterdir())) > 10


def test_categories_filter_and_pii(tmp_path: Path) -> None:
    statistics = prepare(_source(tmp_path, *ROWS, categories=("loc", "org")), tmp_path / "out")
    assert statistics["sensitive_sentences"] == {"loc": 1, "org": 0, "all": 1}
    assert prepare(_source(tmp_path, *ROWS, categories=("pii",)), tmp_path / "out")["sensitive_sentences"]["all"] == 3


@pytest.mark.parametrize("category", TABLE_ONE)
def test_every_category_of_the_seeds_can_be_chosen_alone(tmp_path: Path, category: str) -> None:
    rows = [_row("u", f"thing{i} here", (label, f"thing{i}")) for i, label in enumerate(TABLE_ONE)]
    found = prepare(_source(tmp_path, *rows, categories=(category,)), tmp_path / "out")["sensitive_sentences"]
    assert found["all"] == (4 if category == "PII" else 1)  # person, loc, gpe and what is marked as PII


def test_categories_of_the_source_and_of_a_spacy_model_can_be_chosen(tmp_path: Path) -> None:
    rows = [_row("u1", "Ann of Acme", ("employer", "Acme"), ("person", "Ann"))]
    chosen = prepare(_source(tmp_path, *rows, categories=("Employer",)), tmp_path / "out")
    assert chosen["mentions"] == {"employer": 1}
    detector = _spacy(tmp_path / "model", DRUG="acme")
    chosen = prepare(_source(tmp_path, *rows, detector=(detector,), categories=("drug",)), tmp_path / "out")
    assert chosen["mentions"] == {"drug": 1}
    with pytest.raises(InputError, match="employer"):
        prepare(_source(tmp_path, *rows, detector=(detector,), categories=("employer",)), tmp_path / "out")
    with pytest.raises(InputError, match="categories = 'rank'") as caught:
        prepare(_source(tmp_path, *rows, categories=("rank",)), tmp_path / "out")
    assert "employer" not in str(caught.value), "what the source marks is private"


def test_an_entity_is_one_whatever_its_encoding_case_and_spacing(tmp_path: Path) -> None:
    forms = ["Zo\u00eb Lee", "zoe\u0308  LEE", "ZOE\u0308\u00a0lee"]
    rows = [_row(f"u{i}", form, ("person", form)) for i, form in enumerate(forms)]
    statistics = prepare(_source(tmp_path, *rows), tmp_path / "out")
    assert (statistics["entities"], statistics["max_holders"]) == (1, 3)


def test_no_sensitive_sentence_is_legal_and_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    statistics = prepare(_source(tmp_path, {"user": "u", "text": "word"}), tmp_path / "out")
    assert statistics["sensitive_sentences"] == {"all": 0}
    assert (statistics["entities"], statistics["max_holders"]) == (0, 0)
    corpus = open_corpus(tmp_path / "out")
    assert (corpus.num_entities, len(corpus.entity_ids), corpus.num_sentences) == (0, 0, 1)
    assert dict(corpus.texts()) == {0: ["word"]}
    assert "no sensitive entity" in caplog.text


def test_evaluation_text_need_hold_no_sensitive_entity(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    source = _source(tmp_path, {"user": "u", "text": "word"})
    prepare(source, tmp_path / "held-out", protected=False)
    assert not caplog.text
    prepare(source, tmp_path / "private")
    assert f"found in {source.path}" in caplog.text


def _found(folder: Path, text: str, detector: str, **row: object) -> dict[str, list[str]]:
    """Entities of each sentence of a prepared row."""
    source = _source(folder, {"user": "u", "text": text, **row}, detector=(detector,))
    prepare(source, folder / "out", num_shards=1)
    ((_, sentences),) = open_corpus(folder / "out").sentences()
    return {s.text: [entity_form(s.text, m) for m in s.mentions] for s in sentences}


def _all(found: dict[str, list[str]]) -> list[str]:
    return [form for forms in found.values() for form in forms]


WRAPPED = {
    "Doctor Angela\nMerkel in New\nYork": ["angela merkel", "new york"],
    "seen: Angela\r\n    Merkel again": ["angela merkel"],
    "> with Angela\n> Merkel in New\n> York": ["angela merkel", "new york"],
    "- Angela\n  Merkel\n- New York": ["angela merkel", "new york"],
}


@pytest.mark.parametrize("kind", ["list", "spacy"])
def test_an_entity_across_a_line_end_is_found_whole(tmp_path: Path, kind: str) -> None:
    (tmp_path / "list").write_text("Angela Merkel\nNew York\n")
    detector = f"list:{tmp_path / 'list'}"
    if kind == "spacy":
        pipeline = spacy.blank("en")
        pipeline.add_pipe("entity_ruler").add_patterns(
            [{"label": "X", "pattern": "Angela Merkel"}, {"label": "X", "pattern": "New York"}]
        )
        pipeline.to_disk(tmp_path / "model")
        detector = f"spacy:{tmp_path / 'model'}"
    for text, forms in WRAPPED.items():
        assert _all(_found(tmp_path, text, detector)) == forms
    assert _all(_found(tmp_path, "Angela\nMerkel left", detector, label="x")) == ["angela merkel"]
    assert _all(_found(tmp_path, "Angela\nMerkel left", detector, tags=["N", "N", "V"])) == ["angela merkel"]


@pytest.mark.parametrize(
    "text",
    ["call 415 555 0199 now", "call (415) 555-0199", "card 4111 1111 1111 1111 paid", "BE68 5390 0754 7034 sent"],
)
def test_a_number_across_any_line_end_is_found_whole(tmp_path: Path, text: str) -> None:
    (whole,) = _found(tmp_path, text, "regex").values()
    for place, character in enumerate(text):
        if character in " -" and len(whole[0]) > 5:
            for end in ("\n", "\r\n", "\n> "):
                quoted = "> " if ">" in end else ""
                cut = quoted + text[: place + 1].rstrip() + end + text[place + 1 :]
                forms = _all(_found(tmp_path, cut, "regex"))
                assert [form.replace("- ", "-") for form in forms] == whole, cut


def test_no_cut_falls_inside_what_a_detector_found(tmp_path: Path) -> None:
    (tmp_path / "list").write_text("Yahoo! Inc\nNo. Nine\n")
    text = "At Yahoo! Inc they met. At No. Nine they rest. So " + " ".join(f"w{i}" for i in range(200))
    found = _found(tmp_path, text, f"list:{tmp_path / 'list'}")
    assert list(found.values()) == [["yahoo! inc"], ["no. nine"], [], []]
    assert [len(text.split()) for text in found] == [5, 5, 101, 100]


def test_what_crosses_the_end_of_a_window_is_found_and_windows_are_bounded(tmp_path: Path) -> None:
    detector = _spacy(tmp_path / "model", PER="ann")
    for before in (110, 127, 128, 250):
        found = _found(tmp_path, "so " * before + "Ann " + "so " * 200, detector)
        assert _all(found) == ["ann"]
    seen: list[int] = []

    def spying(self: SpacyPipeline, sentences: list[Sentence]) -> list[tuple[Mention, ...]]:
        seen.extend(len(sentence.text) for sentence in sentences)
        return [()] * len(sentences)

    with mock.patch.object(SpacyPipeline, "find", spying):
        _found(tmp_path, "x" * 100_000 + " " * 100_000 + "y" * 100_000 + " word" * 10_000, detector)
    assert max(seen) <= 128 * 81


def test_categories_change_no_sentence(tmp_path: Path) -> None:
    rows = [_row("u", "At Yahoo! Inc they met. Ann left", ("org", "Yahoo! Inc"), ("per", "Ann"))]
    texts = []
    for categories in ((), ("person",)):
        prepare(_source(tmp_path, *rows, categories=categories), tmp_path / "out")
        texts.append(dict(open_corpus(tmp_path / "out").texts()))
    assert texts[0] == texts[1] == {0: ["At Yahoo! Inc they met.", "Ann left"]}


def test_what_is_cut_off_or_divided_is_told(tmp_path: Path) -> None:
    rows = [{"user": "u", "text": "w " * 300, "label": 1}, {"user": "v", "text": "w " * 50}, {"user": "v", "text": ""}]
    statistics = prepare(_source(tmp_path, *rows, max_words=100), tmp_path / "out")
    assert statistics["share_of_words_beyond"] == {"32": round(222 / 350, 4), "64": round(108 / 350, 4), "128": 0.0}
    assert statistics["divided_for_max_words"] == {"sentences": 1, "share_of_words": round(300 / 350, 4)}
    assert statistics["rows_without_words"] == 1
    assert open_corpus(tmp_path / "out").has_labels


def test_only_sensitive_sentences_are_legal(tmp_path: Path) -> None:
    statistics = prepare(_source(tmp_path, ROWS[0], ROWS[1]), tmp_path / "out")
    assert statistics["sensitive_sentences"]["all"] == statistics["sentences"] == 2


def test_nothing_to_read_is_refused(tmp_path: Path) -> None:
    for rows in ([], [ROWS[3], ROWS[4]]):
        with pytest.raises(InputError, match="holds no sentence"):
            prepare(_source(tmp_path, *rows), tmp_path / "out")
        assert not (tmp_path / "out").exists()


def test_detectors_are_united(tmp_path: Path) -> None:
    (tmp_path / "list").write_text("hello\nthe end\tevent\n")
    detectors = ("annotated", f"list:{tmp_path / 'list'}", "regex")
    rows = [*ROWS, {"user": "u5", "text": "ann@example.org"}]
    statistics = prepare(_source(tmp_path, *rows, detector=detectors), tmp_path / "out")
    assert statistics["mentions"] == {"email": 1, "event": 1, "listed": 1, "loc": 1, "person": 5}
    kept = prepare(_source(tmp_path, *rows, detector=detectors, categories=("event",)), tmp_path / "out")
    assert kept["mentions"] == {"event": 1, "listed": 1}  # a list's own phrases are always protected


def test_a_list_that_matches_nothing_is_refused(tmp_path: Path) -> None:
    (tmp_path / "list").write_text("xylophone\n")
    with pytest.raises(InputError, match="matches nothing"):
        prepare(_source(tmp_path, *ROWS, detector=("annotated", f"list:{tmp_path / 'list'}")), tmp_path / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["list", "rows.jsonl"]


def test_bad_targets_and_settings(tmp_path: Path) -> None:
    source = _source(tmp_path, *ROWS)
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
        prepare(_source(tmp_path, *ROWS, categories=("persn",)), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_failed_run_leaves_what_was_there(tmp_path: Path) -> None:
    prepare(_source(tmp_path, *ROWS), tmp_path / "out")
    digest = open_corpus(tmp_path / "out").digest
    with pytest.raises(InputError, match=r"rows.jsonl:8"):
        prepare(_source(tmp_path, *ROWS, {"text": "no owner"}), tmp_path / "out")
    assert open_corpus(tmp_path / "out").digest == digest
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "rows.jsonl"]


def test_a_folder_is_prepared_by_one_process_at_a_time(tmp_path: Path) -> None:
    source, refused = _source(tmp_path, *ROWS), []

    def prepare_again(stage: str, done: int, total: int | None) -> None:
        with pytest.raises(InputError, match="another process") as caught:
            prepare(source, tmp_path / "out")
        refused.append(caught)

    prepare(source, tmp_path / "out", num_shards=1, reporter=Told(prepared=prepare_again))
    assert refused
    assert open_corpus(tmp_path / "out").num_users == 4


def test_output_is_for_the_owner_only(tmp_path: Path) -> None:
    prepare(_source(tmp_path, *ROWS), tmp_path / "out")
    for path in (tmp_path / "out", *(tmp_path / "out").rglob("*")):
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600)


def test_digest_is_of_the_content(tmp_path: Path) -> None:
    def digest(*rows: dict[str, object], **settings: object) -> str:
        prepare(_source(tmp_path, *rows, **settings), tmp_path / "out")
        return open_corpus(tmp_path / "out").digest

    assert digest(*ROWS) == digest(*ROWS)
    assert digest(*ROWS) != digest(*ROWS[:-1])
    assert digest(*ROWS) != digest(*ROWS, categories=("loc",))


def test_progress_is_told(tmp_path: Path) -> None:
    told: list[tuple[str, int, int | None]] = []
    prepare(
        _source(tmp_path, *ROWS),
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


@pytest.fixture
def spacy_source(tmp_path: Path) -> SourceConfig:
    return _source(tmp_path, *ROWS, detector=(_spacy(tmp_path / "model", PERSON="ann", GPE="rome"),))


def test_costly_findings_are_kept(spacy_source: SourceConfig, tmp_path: Path) -> None:
    first = prepare(spacy_source, tmp_path / "out")
    with mock.patch.object(SpacyPipeline, "find", side_effect=AssertionError("ran again")):
        again = prepare(dataclasses.replace(spacy_source, categories=("person",)), tmp_path / "out")
    assert again["mentions"] == {"person": first["mentions"]["person"]}
    for path in (tmp_path / "out" / "cache").iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_kept_findings_are_of_one_model_and_one_text(spacy_source: SourceConfig, tmp_path: Path) -> None:
    first = prepare(spacy_source, tmp_path / "out")
    assert first["mentions"] == {"gpe": 1, "person": 3}
    other = dataclasses.replace(spacy_source, detector=(_spacy(tmp_path / "other", PERSON="bob"),))
    assert prepare(other, tmp_path / "out")["mentions"] == {"person": 2}
    more = _source(tmp_path, *ROWS, _row("u9", "Ann in Rome"), detector=spacy_source.detector)
    assert prepare(more, tmp_path / "out")["mentions"] == {"gpe": 2, "person": 4}


def test_findings_survive_a_run_that_failed_later(spacy_source: SourceConfig, tmp_path: Path) -> None:
    (tmp_path / "list").write_text("xylophone\n")
    broken = dataclasses.replace(spacy_source, detector=(*spacy_source.detector, f"list:{tmp_path / 'list'}"))
    with pytest.raises(InputError, match="matches nothing"):
        prepare(broken, tmp_path / "out")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["cache"]
    assert list((tmp_path / "out" / "cache").iterdir())
    with mock.patch.object(SpacyPipeline, "find", side_effect=AssertionError("ran again")):
        prepare(spacy_source, tmp_path / "out")


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

    source = _source(tmp_path, *ROWS, detector=(f"list:{phrases}",))
    with mock.patch.object(module, "read_rows", reading), pytest.raises(InputError, match="no such file"):
        prepare(source, tmp_path / "out", workers=2)
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_workers_that_are_killed_each_time_end_it_in_one_line(tmp_path: Path) -> None:
    def killed(task: object) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    source = _source(tmp_path, *ROWS)
    with (
        mock.patch.object(module, "leave_result", killed),
        pytest.raises(RuntimeError, match=r"a worker died each time \(WorkerCrashedError\).* --workers 1"),
    ):
        prepare(source, tmp_path / "out", workers=2)
    assert not (tmp_path / "out").exists()
    assert not ray.is_initialized()
