"""Public text that is cut into users, of as many sentences, of as many words, as the private text has."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from tests.corpus.reading import write_file
from uedp_ray.config import SourceConfig
from uedp_ray.corpus.readers import numbered, read
from uedp_ray.errors import InputError

PARAGRAPHS = "Ann left. Ben came. He saw Rome. They sang.\n\nIt rained. Nobody minded. The end.\n"


def dealt(path: Path, **settings: Any) -> list[tuple[str, str]]:
    return [(s.user, s.text) for s in read(SourceConfig(path=str(path), format="pseudo-users", **settings))]


def test_pseudo_users_take_sentences_in_a_row_and_share_none(tmp_path: Path) -> None:
    path = write_file(tmp_path, PARAGRAPHS)
    first = dealt(path, num_users=2, sentences_per_user=2)
    assert first == [
        ("user-0", "Ann left."),
        ("user-0", "Ben came."),
        ("user-1", "He saw Rome."),
        ("user-1", "They sang."),
    ]
    assert dealt(path, num_users=1, sentences_per_user=2, skip_users=2) == [
        ("user-2", "It rained."),
        ("user-2", "Nobody minded."),
    ]
    assert len(dealt(path, num_users=2, sentences_per_user=3, max_words=2)) == 6, "what is too long counts as several"
    for settings, said in (
        ({"num_users": 4}, r"too short: 4 users of 2 sentences \(sentences_per_user\) take 8, each of"),
        (
            {"num_users": 1, "skip_users": 7},
            r"too short: 7 skipped and 1 users of 2 sentences \(sentences_per_user\) take 16,",
        ),
    ):
        with pytest.raises(InputError, match=said):
            dealt(path, sentences_per_user=2, **settings)


def test_pseudo_users_keep_what_their_text_marks(tmp_path: Path) -> None:
    path = write_file(tmp_path, "Ann NNP B-PER\nleft VBD O\n\nRome NNP B-LOC\n\n")
    source = SourceConfig(path=str(path), format="pseudo-users", read_as="conll", num_users=1, sentences_per_user=2)
    assert [[m.category for m in s.mentions] for s in read(source)] == [["person"], ["loc"]]
    assert numbered(source) == "2 sentences in a row of text without users"
    for other in ("pseudo-users", "prepared", "synthetic"):
        with pytest.raises(InputError, match="read_as"):
            dataclasses.replace(source, read_as=other)  # type: ignore[arg-type]


def test_pseudo_users_of_text_with_users_are_none_of_them(tmp_path: Path) -> None:
    path = write_file(tmp_path, "Ann:\nGood day. Come in.\n\nBen:\nThank you.\n")
    found = dealt(path, read_as="speeches", num_users=1, sentences_per_user=3)
    assert found == [("user-0", "Good day."), ("user-0", "Come in."), ("user-0", "Thank you.")]


def test_short_sentences_of_pseudo_users_are_joined_and_keep_their_mentions(tmp_path: Path) -> None:
    path = write_file(tmp_path, PARAGRAPHS)
    found = dealt(path, num_users=1, sentences_per_user=3, min_words=4, max_words=5)
    assert [text for _, text in found] == [
        "Ann left. Ben came.",
        "He saw Rome. They sang.",
        "It rained. Nobody minded.",
    ]
    found = dealt(path, num_users=1, sentences_per_user=4, min_words=4, max_words=4)
    assert [text for _, text in found] == [
        "Ann left. Ben came.",
        "He saw Rome.",
        "They sang. It rained.",
        "Nobody minded. The end.",
    ]
    path = write_file(tmp_path, "Ann NNP B-PER\nleft VBD O\n\nfor IN O\nRome NNP B-LOC\n\n")
    source = SourceConfig(
        path=str(path), format="pseudo-users", read_as="conll", num_users=1, sentences_per_user=1, min_words=3
    )
    (joined,) = read(source)
    assert joined.tags == ("NNP", "VBD", "IN", "NNP")
    assert [joined.text[m.start : m.end] for m in joined.mentions] == ["Ann", "Rome"]
    with pytest.raises(InputError, match="min_words"):
        dataclasses.replace(source, max_words=2)
