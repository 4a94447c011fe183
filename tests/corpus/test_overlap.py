"""Shared users and shared text, told from digests."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

from uedp_ray.config import SourceConfig
from uedp_ray.corpus import overlap
from uedp_ray.corpus.overlap import Sketch, shared_text, shared_users, smallest, user_names
from uedp_ray.corpus.readers import read

WORDS = [f"{a}{b}" for a in ("ra", "so", "min", "tel", "pu") for b in ("lo", "ne", "di", "gar", "vost", "ik")]


def text(seed: int, sentences: int = 60, length: int = 9) -> list[str]:
    rng = random.Random(seed)
    return [" ".join(rng.choices(WORDS, k=length)).capitalize() + "." for _ in range(sentences)]


def sketch(sentences: list[str], user: str = "ann") -> np.ndarray:
    taken = Sketch()
    for sentence in sentences:
        taken.add(user, sentence)
    return taken.hashes


@pytest.mark.parametrize(
    "copied",
    [
        lambda lines: [line.upper() for line in lines],
        lambda lines: ["  ".join(line.replace(".", " . ").split()) + "\t" for line in lines],
        lambda lines: [" ".join(lines)],  # not cut at all
        lambda lines: " ".join(lines).replace(" ", "\n", 100).split("\n"),  # cut elsewhere
        lambda lines: sorted(lines),  # another order; in which windows of one sentence alone are left
        lambda lines: lines[:20] + text(9, 200),  # a third of it, in other text
        lambda lines: [line.replace("r", "\u2460r").replace("\u2460", "") for line in lines],
    ],
)
def test_a_copy_is_told_however_it_is_spelled_cut_or_mixed(copied) -> None:
    lines = text(0)
    share = shared_text(sketch(lines), sketch(copied(lines)))
    assert share is not None
    assert share >= overlap.MOST_SHARED


def test_other_text_of_the_same_words_is_no_copy() -> None:
    share = shared_text(sketch(text(0)), sketch(text(1)))
    assert share is not None
    assert share < 0.01


def test_a_small_part_is_told_whichever_text_is_the_longer() -> None:
    long, short = text(0, 400), text(0, 400)[:20]
    assert shared_text(sketch(long), sketch(short)) == shared_text(sketch(short), sketch(long)) == 1.0


def test_short_sentences_that_everybody_writes_do_not_count() -> None:
    """One user each, so that no window runs on into the next."""
    one, other = Sketch(), Sketch()
    for i in range(50):
        for taken in (one, other):
            taken.add(f"user {i}", "Yes, I think so.")
    assert len(one.hashes) == 0
    assert shared_text(one.hashes, other.hashes) is None


def test_short_messages_are_told_in_any_order_and_under_any_name() -> None:
    lines = [" ".join(random.Random(i).choices(WORDS, k=5)) for i in range(300)]
    assert max(len(overlap._letters(line)) for line in lines) < 40
    one, other = Sketch(), Sketch()
    for i, line in enumerate(lines):
        one.add(f"user {i % 7}", line)
    for line in sorted(lines, key=lambda line: line[::-1]):
        other.add("everybody", line)
    assert shared_text(one.hashes, other.hashes) == 1.0


def test_windows_run_on_over_the_sentences_of_a_user_wherever_others_come_between() -> None:
    together, between = Sketch(), Sketch()
    lines = {user: text(seed, 30, 2) for seed, user in enumerate(("ann", "bob"))}
    for user, own in lines.items():
        for line in own:
            together.add(user, line)
    for pair in zip(*lines.values(), strict=True):
        for user, line in zip(lines, pair, strict=True):
            between.add(user, line)
    assert together.hashes.tolist() == between.hashes.tolist()


def test_windows_are_the_same_however_text_is_buffered(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [*text(0), "x" * 5000, *text(1)]
    whole = sketch(lines)
    monkeypatch.setattr(overlap, "_CHUNK", 40)
    assert sketch(lines).tolist() == whole.tolist()
    letters = "".join(overlap._letters(line) for line in lines)
    windows = {letters[i : i + 32] for i in range(len(letters) - 31)}
    assert len(whole) == len(windows) + len({line for line in lines if " " in line}), "distinct ones, no collision"


def test_sketches_of_long_text_estimate_its_share(monkeypatch: pytest.MonkeyPatch) -> None:
    whole, part = text(0, 800), text(0, 800)[:200] + text(1, 200)
    exact = shared_text(sketch(whole), sketch(part))
    monkeypatch.setattr(overlap, "SKETCH_SIZE", 2000)
    sampled = sketch(whole)
    assert len(sampled) == 2000
    assert sampled.tolist() == smallest(sketch(whole[:300]), sketch(whole[295:])).tolist(), "shards join to the same"
    estimate = shared_text(sampled, sketch(part))
    assert exact == pytest.approx(0.5, abs=0.02)
    assert estimate == pytest.approx(exact, abs=0.1)  # 2,000 of 50,000 windows: three standard deviations are 0.06


def test_users_are_told_in_any_case_and_composition() -> None:
    private = user_names(["Ann Lee", "bo\u0308b@mail.example", "cleo"])
    assert shared_users(private, user_names(["ANN  LEE ", "B\u00d6B@MAIL.EXAMPLE", "dan"])) == 2
    assert shared_users(private, user_names(["ann-lee", "ann"])) == 0
    assert shared_users(private, user_names([])) is None


@pytest.mark.parametrize(
    ("one", "other"),
    [("conll2003/eng.train", "conll2003/eng.testa"), ("wikitext2/wiki.valid.tokens", "wikitext2/wiki.test.tokens")],
)
def test_parts_of_real_corpora_are_far_from_a_copy(real_data: Path, one: str, other: str) -> None:
    def taken(name: str) -> np.ndarray:
        found = Sketch()
        for sentence in read(SourceConfig(path=str(real_data / name), format="conll" if "eng" in name else "text")):
            found.add(sentence.user, sentence.text)
        return found.hashes

    share = shared_text(taken(one), taken(other))
    assert share is not None
    assert share < overlap.MOST_SHARED / 2
