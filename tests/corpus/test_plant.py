"""Canaries: which there are is public; whose sentences became one follows from a key, person by person."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from uedp_ray.config import SourceConfig, TransformConfig, VocabularyConfig
from uedp_ray.config.texts import MOST_CANARY_WORDS
from uedp_ray.corpus.prepare import prepare
from uedp_ray.corpus.records import Sentence
from uedp_ray.corpus.regroup import Regrouped
from uedp_ray.corpus.store import open_corpus
from uedp_ray.corpus.transforms.base import Generators, Transformed, transform_of
from uedp_ray.corpus.transforms.plant import WORDS, canaries_of, word_ids
from uedp_ray.corpus.vocabulary import build_vocabulary
from uedp_ray.errors import InputError

ALWAYS = TransformConfig(kind="plant", sharer_probs=(0.3,), planting_probs=(1.0,), canaries_per_cell=1)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    folder = tmp_path_factory.mktemp("corpus")
    prepare(SourceConfig(format="synthetic", num_users=30), folder)
    return open_corpus(folder)


def texts(corpus, config, key=b"key"):
    return list(
        itertools.chain.from_iterable(said for _, said in Transformed(corpus, transform_of(config), key).texts())
    )


def test_canaries_are_distinct_uniform_words_and_follow_from_public_settings_alone():
    assert len(set(WORDS)) == len(WORDS) == MOST_CANARY_WORDS
    config = TransformConfig(kind="plant", canaries_per_cell=100, canary_words=8)
    found = canaries_of(config)
    assert len({canary.text for canary in found}) == len(found) == 900
    assert [canary[1:] for canary in found[::100]] == [*itertools.product((0.002, 0.006, 0.02), (0.01, 0.1, 1.0))]
    for place in range(5):  # 112.5 expected of each, standard deviation 10
        counts = Counter(canary.text.split()[place] for canary in found)
        assert counts.keys() == set(WORDS[:8])
        assert all(abs(count - 112.5) < 60 for count in counts.values())
    assert canaries_of(replace(config, canary_seed=1)) != found


def test_users_share_and_sentences_are_replaced_independently_with_the_probabilities_of_the_cell():
    """1,500 users of 20 sentences; the bounds are six standard errors."""
    config = TransformConfig(kind="plant", sharer_probs=(0.05, 0.2), planting_probs=(0.1, 0.5), canaries_per_cell=1)
    names, users, size = {canary.text: place for place, canary in enumerate(canaries_of(config))}, 1500, 20
    planted = np.zeros((users, 4), int)
    for user in range(users):
        for number in range(size):
            transform = transform_of(config)
            text = transform.text_of(Sentence(f"u{user}", "hello"), Generators(b"key", user, user * size + number))
            if text != "hello":
                planted[user, names[text]] += 1
    for place, canary in enumerate(canaries_of(config)):
        shared, chance = canary.sharer_prob, canary.planting_prob
        nobody = (1 - chance) ** size  # a sharer none of whose sentences was replaced; others' canaries take few places
        found = np.mean(planted[:, place] > 0)
        assert abs(found - shared * (1 - nobody)) < 6 * np.sqrt(shared / users) + 0.02 * shared
        others = [(c.sharer_prob, c.planting_prob) for c in canaries_of(config) if c is not canary]
        taken = sum(p * q for p, q in others) / 2  # about half of the places that another one wants, too
        share = planted[:, place].sum() / size / users
        assert share == pytest.approx(shared * chance * (1 - taken), rel=6 / np.sqrt(shared * users))
    both = np.mean((planted[:, 1] > 0) & (planted[:, 3] > 0))
    assert abs(both - 0.05 * 0.2) < 6 * np.sqrt(0.01 / users), "who shares one is as likely to share another"


def test_a_null_sentence_changes_no_other_and_stays_null(corpus):
    config = TransformConfig(kind="plant", sharer_probs=(0.5,), planting_probs=(0.5,), canaries_per_cell=3)
    before, gone = texts(corpus, config), {3, 17, *range(40, 60)}

    class Nulled(type(corpus)):
        def sentences(self, users=None, *, every=False):
            numbers = itertools.count()
            for user, said in corpus.sentences(users, every=every):
                yield user, [replace(one, text="" if next(numbers) in gone else one.text) for one in said]

    nulled = Nulled.__new__(Nulled)
    nulled.__dict__ = vars(corpus)
    after = texts(nulled, config)
    assert [text for number, text in enumerate(after) if number not in gone] == [
        text for number, text in enumerate(before) if number not in gone
    ]
    assert {after[number] for number in gone} == {""}
    assert before != texts(corpus, config, b"another key")


def test_dealing_sentences_out_spreads_canaries_and_changes_neither_sharers_nor_counts(corpus):
    """The IID arm: planted text is shuffled. With p_e = 1 all of a sharer's sentences are the canary, and nobody else's."""
    [canary] = canaries_of(ALWAYS)
    whole = [set(said) == {canary.text} for _, said in Transformed(corpus, transform_of(ALWAYS), b"key").texts()]
    mixed = [canary.text in said for _, said in Transformed(corpus, transform_of(ALWAYS), b"key").texts()]
    assert whole == mixed
    assert 0 < sum(whole) < len(whole)
    dealt = Regrouped(corpus, "iid", b"key")
    sharers = {said[0].user for shared, (_, said) in zip(whole, corpus.sentences(), strict=True) if shared}
    pairs = [pair for _, said in Transformed(dealt, transform_of(ALWAYS), b"key").pairs() for pair in said]
    assert {sentence.user for sentence, text in pairs if text == canary.text} == sharers
    assert {sentence.user for sentence, text in pairs if text != canary.text}.isdisjoint(sharers)
    holding = [canary.text in said for _, said in Transformed(dealt, transform_of(ALWAYS), b"key").texts()]
    assert sum(holding) > sum(whole)


@pytest.mark.parametrize("kind", ["public-words", "public-subwords"])
def test_a_vocabulary_without_the_words_is_refused(kind):
    config = TransformConfig(kind="plant", canary_words=8)
    settings = VocabularyConfig(kind=kind, max_size=600)
    good = build_vocabulary(settings, public_text=lambda: [" ".join(WORDS[:8])] * 9)
    assert [good.decode([each]).strip() for each in word_ids(config, good)] == list(WORDS[:8])
    bad = build_vocabulary(settings, public_text=lambda: [" ".join(WORDS[:7])] * 9)
    with pytest.raises(InputError, match=rf"canary_words = 8: the vocabulary has no token for {WORDS[7]}: make it of"):
        transform_of(config).check_vocabulary(bad)


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"sharer_probs": (0.1, 1.5)}, r"sharer_probs = 1\.5: a probability"),
        ({"planting_probs": ()}, "planting_probs = .*give one probability or more"),
        ({"canary_words": 7}, "canary_words = 7: must be 8 or more"),
        ({"canary_words": 129}, "canary_words = 129: must be 128 or fewer"),
        ({"canaries_per_cell": 112}, "canaries_per_cell = 112: must be 111 or fewer"),
        ({"canary_seed": -1}, "canary_seed = -1"),
    ],
)
def test_bad_settings_are_refused(settings, told):
    with pytest.raises(InputError, match=told):
        TransformConfig(kind="plant", **settings)
