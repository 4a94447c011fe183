"""Other users of the same sentences."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import numpy as np
import pytest

from uedp_ray.corpus.regroup import Regrouped
from uedp_ray.corpus.store import open_corpus


@pytest.fixture
def corpus(corpora):
    return open_corpus(corpora / "private")


def rows(corpus):
    """(text, its words, its entities) of every sentence, in order."""
    graph = pairwise(corpus.entity_offsets.tolist())
    texts = [text for _, texts in corpus.texts() for text in texts]
    held = [tuple(corpus.entity_ids[first:last].tolist()) for first, last in graph]
    return list(zip(texts, corpus.sentence_words.tolist(), held, strict=True))


def holders(corpus):
    found = [set() for _ in range(corpus.num_entities)]
    for user, (first, last) in enumerate(pairwise(corpus.user_offsets.tolist())):
        for entity in corpus.entity_ids[corpus.entity_offsets[first] : corpus.entity_offsets[last]].tolist():
            found[entity].add(user)
    return [len(each) for each in found]


def test_every_record_is_a_user(corpus):
    found = Regrouped(corpus, "records", b"key")
    assert rows(found) == rows(corpus)
    assert found.num_users == corpus.num_sentences == len(set(found.user_hash.tolist()))
    assert [len(texts) for _, texts in found.texts()] == [1] * corpus.num_sentences
    assert found.entity_holders.tolist() == holders(found)
    assert found.entity_holders.max() > corpus.entity_holders.max()
    some = [5, 3, corpus.num_sentences - 1]
    assert dict(found.texts(some)) == {user: [rows(corpus)[user][0]] for user in some}
    assert found.digest != corpus.digest


def test_a_records_hash_is_its_own(corpus):
    """Where an entity's holders are cut by it, nobody else's place may follow from how much others wrote."""
    found = Regrouped(corpus, "records", b"key")
    shorter = open_corpus(corpus.path)
    shorter.user_offsets = np.concatenate([corpus.user_offsets[:1], corpus.user_offsets[1:] - 1])
    shorter.sentence_words = corpus.sentence_words[1:]
    shorter.entity_offsets, shorter.entity_ids = np.zeros(len(shorter.sentence_words) + 1, int), np.zeros(0, np.int32)
    first = int(corpus.user_offsets[1])
    kept = Regrouped(shorter, "records", b"other").user_hash
    np.testing.assert_array_equal(found.user_hash[first:], kept[first - 1 :])


def test_sentences_are_dealt_out_with_all_that_is_known_of_them(corpus):
    found, same, other = (Regrouped(corpus, "iid", key) for key in (b"one", b"one", b"two"))
    np.testing.assert_array_equal(found.user_offsets, corpus.user_offsets)
    assert Counter(rows(found)) == Counter(rows(corpus))
    assert rows(found) == rows(same)
    assert rows(found) != rows(other)
    assert found.digest == same.digest
    assert len({found.digest, other.digest, corpus.digest}) == 3
    assert found.entity_holders.tolist() == holders(found)
    kept = sum(one == two for one, two in zip(rows(found), rows(corpus), strict=True))
    assert kept < corpus.num_sentences / 10
    whole = dict(found.sentences(every=True))
    assert [each.text for each in whole[3]] == dict(found.texts([3]))[3]


def test_who_gets_a_sentence_follows_from_no_text(corpus):
    """Chi-squared: of many keys, a sentence goes to users in proportion to what they hold."""
    owners = np.repeat(np.arange(corpus.num_users), np.diff(corpus.user_offsets))
    got = np.zeros(corpus.num_users)
    for number in range(400):
        order = Regrouped(corpus, "iid", number.to_bytes(4, "little"))._order
        got[owners[np.flatnonzero(order == 0)[0]]] += 1
    expected = 400 * np.diff(corpus.user_offsets) / corpus.num_sentences
    chi = float(((got - expected) ** 2 / expected).sum())
    assert chi < 80  # of 29 degrees of freedom: above it once in a million
