"""What detectors find: by which names, in text however it lies, kept from one preparation to the next."""

from __future__ import annotations

import dataclasses
import stat
from collections.abc import Callable, Sequence, Set
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import spacy

from tests.corpus.reading import ROWS, row_of, source_of, spacy_model
from uedp_ray.config import SourceConfig
from uedp_ray.corpus.detectors import regex
from uedp_ray.corpus.detectors.base import AtLeast
from uedp_ray.corpus.detectors.spacy_model import SpacyPipeline
from uedp_ray.corpus.prepare import prepare
from uedp_ray.corpus.readers.base import of_files
from uedp_ray.corpus.records import Mention, Sentence, entity_form
from uedp_ray.corpus.store import open_corpus
from uedp_ray.errors import InputError


def _reading(monkeypatch: pytest.MonkeyPatch, *mentions: tuple[str, int, int]) -> None:
    """Puts a new reader in the place of ``jsonl``: one sentence, and marks that nothing has looked at."""
    row = Sentence("u", "Ann met Bob", mentions=tuple(Mention(*mention) for mention in mentions))
    monkeypatch.setattr("uedp_ray.corpus.readers.jsonl.READER", of_files(lambda path: iter([row])))


def _detecting(
    monkeypatch: pytest.MonkeyPatch,
    find: Callable[[Sequence[Sentence]], Any],
    categories: Set[str] = frozenset({"DRUG"}),
    *,
    cacheable: bool = False,
) -> None:
    """Puts a new detector in the place of ``regex``."""
    stated = {"fingerprint": "", "cacheable": cacheable, "reads": "sentences", "categories": categories}
    bare = SimpleNamespace(**stated, find=find)
    monkeypatch.setattr(regex, "Patterns", lambda: bare)


def test_labels_of_a_new_reader_or_detector_are_known_by_our_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _reading(monkeypatch, ("PER", 0, 3))
    found = prepare(source_of(tmp_path, categories=("person",)), tmp_path / "read")
    assert found["mentions"] == {"person": 1}
    _detecting(monkeypatch, lambda sentences: [(Mention("Drug", 4, 7),) for _ in sentences])
    source = source_of(tmp_path, categories=("person", "drug"), detector=("annotated", "regex"))
    assert prepare(source, tmp_path / "detected")["mentions"] == {"drug": 1, "person": 1}


def test_a_category_that_a_detector_does_not_declare_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a detector with a typo, no category that could be named kept what it found: none of it was protected."""
    _reading(monkeypatch)
    _detecting(monkeypatch, lambda sentences: [(Mention("drug", 0, 3), Mention("Drugs", 4, 7)) for _ in sentences])
    for number, keep in enumerate([(), ("drug",)]):
        with pytest.raises(
            TypeError, match=r"^SimpleNamespace, the detector of regex, finds 'drugs', which it does not"
        ):
            prepare(source_of(tmp_path, detector=("regex",), categories=keep), tmp_path / str(number))
        assert not (tmp_path / str(number)).exists()
    _detecting(monkeypatch, lambda sentences: [(Mention("Drugs", 4, 7),) for _ in sentences], AtLeast({"DRUG"}))
    assert prepare(source_of(tmp_path, detector=("regex",)), tmp_path / "more")["mentions"] == {"drugs": 1}


def test_what_was_kept_of_a_detector_is_held_to_what_it_declares_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _reading(monkeypatch)

    def find(sentences: Sequence[Sentence]) -> Any:
        return [(Mention("drug", 0, 3),) for _ in sentences]

    _detecting(monkeypatch, find, cacheable=True)
    prepare(source_of(tmp_path, detector=("regex",)), tmp_path / "out")
    _detecting(monkeypatch, find, {"drugs"}, cacheable=True)
    with pytest.raises(TypeError, match="finds 'drug', which it does not declare"):
        prepare(source_of(tmp_path, detector=("regex",)), tmp_path / "out")


@pytest.mark.parametrize("span", [(8, 3), (3, 3), (-3, 3), (8, 12)], ids=["length", "empty", "negative", "beyond"])
def test_marks_that_are_no_part_of_the_sentence_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, span: tuple[int, int]
) -> None:
    """They name something to protect, and where it stands is lost."""
    _reading(monkeypatch, ("person", *span))
    with pytest.raises(InputError, match=r"^detector = 'annotated': marks what is not part"):
        prepare(source_of(tmp_path), tmp_path / "out")
    _reading(monkeypatch)
    _detecting(monkeypatch, lambda sentences: [[Mention("drug", *span)] for _ in sentences])
    with pytest.raises(InputError, match=r"^detector = 'regex': marks what is not part"):
        prepare(source_of(tmp_path, detector=("regex",)), tmp_path / "out")


@pytest.mark.parametrize("num", [0, 2])
def test_a_detector_that_does_not_answer_each_sentence_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num: int
) -> None:
    _reading(monkeypatch)
    _detecting(monkeypatch, lambda sentences: iter([()] * num))
    with pytest.raises(InputError, match=r"^detector = 'regex': does not return one tuple of mentions"):
        prepare(source_of(tmp_path, detector=("regex",)), tmp_path / "out")


def _found(folder: Path, text: str, detector: str, **row: object) -> dict[str, list[str]]:
    """Entities of each sentence of a prepared row."""
    source = source_of(folder, {"user": "u", "text": text, **row}, detector=(detector,))
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
    detector = spacy_model(tmp_path / "model", PER="ann")
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
    other = dataclasses.replace(spacy_source, detector=(spacy_model(tmp_path / "other", PERSON="bob"),))
    assert prepare(other, tmp_path / "out")["mentions"] == {"person": 2}
    more = source_of(tmp_path, *ROWS, row_of("u9", "Ann in Rome"), detector=spacy_source.detector)
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
