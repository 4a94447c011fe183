"""Words released from private text: what a user or an entity moves, and what is let through."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from statistics import NormalDist

import numpy as np
import pytest

from uedp_ray.config import VocabularyConfig
from uedp_ray.corpus.vocabulary import (
    SPECIAL,
    build_vocabulary,
    noisy_threshold,
    noisy_threshold_words,
    vocabulary_event_fields,
    word_histogram,
    word_slots,
)
from uedp_ray.errors import InputError

K, L = 3, 8
User = list[tuple[list[str], set[str]]]
"""A list of sentences; a sentence is (words, entities)."""


def _no_noise(size: int, std: float) -> np.ndarray:
    return np.zeros(size)


def _slots(user: User, null: str | None = None) -> list[str]:
    """A nulled sentence says nothing, and keeps its place."""
    return word_slots([[] if null in entities else words for words, entities in user], L)


def _users(rng: np.random.Generator) -> list[User]:
    """30 users over 40 words; three entities with exactly K holders each; users overflow L."""
    holders = {f"e{i}": set(rng.choice(30, size=K, replace=False).tolist()) for i in range(3)}
    return [
        [
            (
                [f"w{i}" for i in rng.integers(0, 40, size=rng.integers(0, 14))],
                {e for e in holders if u in holders[e] and rng.random() < 0.7},
            )
            for _ in range(4)
        ]
        for u in range(30)
    ]  # fmt: skip


def _distance(one: Iterable[Sequence[str]], other: Iterable[Sequence[str]]) -> float:
    a, b = word_histogram(one, L), word_histogram(other, L)
    return math.sqrt(sum((a.get(word, 0.0) - b.get(word, 0.0)) ** 2 for word in a.keys() | b.keys()))


def test_removing_a_user_or_an_entity_moves_the_histogram_by_at_most_1_or_k() -> None:
    moved = []
    for seed in range(20):
        users = _users(np.random.default_rng(seed))
        full = [_slots(user) for user in users]
        for gone in range(len(users)):
            assert _distance(full, full[:gone] + full[gone + 1 :]) <= 1 + 1e-9
        for entity in ("e0", "e1", "e2"):
            without = [_slots(user, entity) for user in users]
            moved.append(_distance(full, without))
            assert moved[-1] <= K + 1e-9
            assert _distance(full, without[1:]) <= K + 1 + 1e-9
    assert max(moved) > 1, "an entity moves more than a user may"


def test_the_bounds_are_attained() -> None:
    same: User = [([f"w{i}" for i in range(L)], {"e"})]
    holders = [same] * K
    assert _distance([_slots(u) for u in holders], [_slots(u, "e") for u in holders]) == pytest.approx(K)
    assert _distance([_slots(same)], []) == pytest.approx(1)


def test_nothing_moves_up_into_the_place_of_a_sentence_that_says_nothing() -> None:
    user: User = [([f"w{i}" for i in range(L)], {"e"}), ([f"v{i}" for i in range(L)], set())]
    assert word_histogram([_slots(user, "e")], L) == {}
    flat = [[word for words, held in user if null not in held for word in words] for null in (None, "e")]
    assert _distance(flat[:1], flat[1:]) > 1.4, "why slots are by place: the bound of 1 would fail"


def test_slots_are_divided_by_the_number_of_sentences_alone() -> None:
    words = [[f"{place}-{number}" for number in range(30)] for place in range(20)]
    for places, expected in ((1, [30]), (2, [25, 25]), (4, [13, 13, 13, 11]), (20, [8, 8, 8, 8, 8, 8, 2])):
        found = word_slots(words[:places], 50)
        assert found == [word for one, many in zip(words, expected, strict=False) for word in one[:many]]
        for silent in range(places):
            fewer = word_slots([[] if place == silent else one for place, one in enumerate(words[:places])], 50)
            assert fewer == [word for word in found if not word.startswith(f"{silent}-")]
    assert word_slots([], 50) == []
    assert word_slots([["a", "b"]], 1) == ["a"]


@pytest.mark.parametrize("max_holders", [0, 1, 5])
@pytest.mark.parametrize("threshold_delta", [1e-3, 1e-7, 1e-12])
def test_a_word_only_the_protected_hold_is_released_with_at_most_threshold_delta(
    max_holders: int, threshold_delta: float
) -> None:
    """Exact: all (K+1) L words, each with the largest count such a word can have, by a union bound."""
    settings = {"max_words_per_user": 20, "max_holders": max_holders, "noise_multiplier": 1.7}
    slots = [[f"secret{i}" for i in range(20)]] * (max_holders + 1)
    count = max(word_histogram(slots, 20).values())
    threshold = noisy_threshold(**settings, threshold_delta=threshold_delta)  # type: ignore[arg-type]
    one = NormalDist().cdf((count - threshold) / 1.7)
    assert (max_holders + 1) * 20 * one == pytest.approx(threshold_delta, rel=1e-6), "safe and not wasteful"
    released = noisy_threshold_words(slots, **settings, threshold_delta=threshold_delta, noise=_no_noise)  # type: ignore[arg-type]
    assert released == []


def test_the_release_uses_the_threshold_and_the_noise_it_states() -> None:
    """Simulated release of one word at its largest count; false alarm 1e-6 on each side."""
    rng, trials, delta, stds = np.random.default_rng(0), 4000, 0.2, set()

    def noise(size: int, std: float) -> np.ndarray:
        stds.add(std)
        return rng.normal(0.0, std, size)

    def release() -> list[str]:
        return noisy_threshold_words(
            [["w"], ["w"]],
            max_words_per_user=1,
            max_holders=1,
            noise_multiplier=0.8,
            threshold_delta=delta,
            noise=noise,
        )

    hits = sum(bool(release()) for _ in range(trials))
    expected = trials * delta / 2
    assert abs(hits - expected) < 4.9 * math.sqrt(expected)
    assert stds == {0.8}


def test_common_words_are_released_in_order_and_rare_ones_never() -> None:
    users = [["the", "form", f"name{u}"] for u in range(400)] + [["the", "rare"]] * 2
    words = noisy_threshold_words(
        users, max_words_per_user=4, max_holders=2, noise_multiplier=1.0, threshold_delta=1e-6, noise=_no_noise
    )
    assert words == ["the", "form"]


def test_noisy_threshold_vocabulary_from_a_config() -> None:
    config = VocabularyConfig(
        kind="noisy-threshold",
        noise_multiplier=1.0,
        threshold_delta=1e-6,
        max_words_per_user=50,
        strip_punctuation=True,
    )
    assert vocabulary_event_fields(config, 3) == {
        "noise_multiplier": 1.0, "max_holders": 3, "threshold_delta": 1e-6, "max_words_per_user": 50,
    }  # fmt: skip
    texts = [["The form was SIGNED .", f"Name{u} left"] for u in range(300)]
    rng = np.random.default_rng(1)
    vocabulary = build_vocabulary(
        config, private_texts=texts, max_holders=3, noise=lambda size, std: rng.normal(0.0, std, size)
    )
    known = set(vocabulary.tokenizer.get_vocab())
    assert known == {"<unk>", "</s>", "<pad>", "the", "form", "was", "signed", "left"}
    assert vocabulary.decode(vocabulary.encode_batch(["Name7 left ."])[0]) == "<unk> left"
    none = build_vocabulary(config, private_texts=texts[:2], max_holders=3, noise=_no_noise)
    assert set(none.tokenizer.get_vocab()) == set(SPECIAL), "released too: that no word passed"
    with pytest.raises(InputError, match="noise source"):
        build_vocabulary(config, private_texts=texts)
