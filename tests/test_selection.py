"""What a round computes on, gathered for many users at once, against one user at a time."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

from tests.updates.tiny import TinyCorpus, tiny_config
from uedp_ray.corpus.gathering import blocks, held_by
from uedp_ray.plan import Plan, Weights
from uedp_ray.privacy.sampling import PoissonSampler

WHERE = {"round_index": 3, "attempt": 1}
RECORDED = "e20772d3b48a2ab4fd9d643a4fb1c2e09588de884dab256f00c643b052e91376"


def select(plan, corpus, weight, users=None, weights=None):
    users = np.arange(corpus.num_users) if users is None else users
    sampler = PoissonSampler(b"k" * 32)
    return list(plan.select(corpus, users, sampler, sentence_weight=weight, weights=weights, **WHERE))


def one_by_one(plan, corpus, weight, weights=None):
    """(user, sentences, weights, num_held) by the definition: one sentence after the other."""
    privacy, sampler = plan.config.privacy, PoissonSampler(b"k" * 32)
    extended_prob = plan.mechanism.extended_sampling_prob
    for user in np.flatnonzero(sampler.draw(privacy.user_sampling_prob, corpus.num_users, kind="user", **WHERE)):
        sentences = range(*corpus.user_offsets[user : user + 2])
        held = [corpus.entity_ids[slice(*corpus.entity_offsets[x : x + 2])].tolist() for x in sentences]
        own = sorted({entity for each in held for entity in each})
        if privacy.entity_draw == "per_user":
            drawn = sampler.draw(privacy.entity_sampling_prob, len(own), kind="entity", owner=user, **WHERE)
        else:
            drawn = sampler.draw(privacy.entity_sampling_prob, corpus.num_entities, kind="entity", **WHERE)[own]
        is_drawn = dict(zip(own, drawn.tolist(), strict=True))
        extended = sampler.draw(extended_prob, len(held), kind="extended", owner=user, **WHERE)
        found = []
        for slot, (x, entities) in enumerate(zip(sentences, held, strict=True)):
            rule = all if privacy.selection_rule == "all" else any
            factor = 1.0
            if weights is not None and entities:
                factor = np.float32(sum(weights.entity[e] for e in entities if is_drawn[e]))
            full = np.float32(weight[x]) * np.float32(factor)
            if full > 0 and (rule(is_drawn[e] for e in entities) if entities else extended[slot]):
                found.append((x, float(full)))
        if found:
            numbers, each = zip(*found, strict=True)
            yield (
                int(user),
                list(numbers),
                list(each),
                int(np.count_nonzero(weight[slice(*corpus.user_offsets[user : user + 2])])),
            )


@pytest.fixture
def corpus():
    return TinyCorpus.random(11, num_users=70, num_entities=30)


@pytest.fixture
def weight(corpus):
    return np.random.default_rng(0).choice([0.0, 0.3, 1.0], corpus.num_sentences).astype(np.float32)


def chosen(**privacy):
    defaults = {"noise_multiplier": 1.0, "entity_sampling_prob": 0.6, "extended_sampling_prob": 0.7}
    return Plan.of(tiny_config(privacy=defaults | privacy))


@pytest.mark.parametrize("most", [1, 7, 1 << 16])
@pytest.mark.parametrize("draw", ["global", "per_user"])
@pytest.mark.parametrize("rule", ["all", "any"])
def test_many_users_at_once_are_as_one_after_the_other(monkeypatch, corpus, weight, draw, rule, most):
    monkeypatch.setattr("uedp_ray.plan.blocks", lambda graph, users: blocks(graph, users, most_sentences=most))
    plan = chosen(entity_draw=draw, selection_rule=rule)
    found = [(s.user, s.sentences.tolist(), s.weights.tolist(), s.num_held) for s in select(plan, corpus, weight)]
    assert found == list(one_by_one(plan, corpus, weight))
    assert len(found) > 20


def test_published_weights_add_up_entity_by_entity(corpus, weight):
    plan = chosen(selection_rule="any")
    rng = np.random.default_rng(1)
    weights = Weights(rng.random(corpus.num_users), rng.random(corpus.num_entities), 1.0)
    found = select(plan, corpus, weight, weights=weights)
    expected = list(one_by_one(plan, corpus, weight, weights))
    assert [(s.user, s.sentences.tolist(), s.weights.tolist(), s.num_held) for s in found] == expected
    assert [s.weight for s in found] == [weights.user[s.user] for s in found]


def test_what_was_drawn_is_what_it_always_was(corpus, weight):
    """Recorded before users were gathered together: a resumed run must draw what it drew."""
    digest = hashlib.sha256()
    for draw in ("global", "per_user"):
        for each in select(chosen(entity_draw=draw), corpus, weight):
            digest.update(repr((each.user, each.sentences.tolist(), each.weights.tolist(), each.num_held)).encode())
    assert digest.hexdigest() == RECORDED


def test_types_stay(corpus, weight):
    for each in select(chosen(), corpus, weight):
        assert (each.sentences.dtype, each.weights.dtype) == (np.int64, np.float32)
        assert (type(each.user), type(each.num_held)) == (int, int)


def test_a_user_has_arrays_of_its_own(corpus, weight):
    """An update is given its user's selection: from a view of all users' arrays it could reach the others'."""
    for each in select(chosen(), corpus, weight):
        assert each.sentences.base is None
        assert each.weights.base is None


def test_users_without_sentences_hold_nothing():
    corpus = TinyCorpus(
        np.array([0, 0, 2, 2]), np.array([0, 0, 1]), np.zeros(1, np.int32), 1, [np.array([5]), np.array([6])]
    )
    plan = chosen(user_sampling_prob=1.0, entity_sampling_prob=1.0, extended_sampling_prob=1.0)
    found = select(plan, corpus, np.ones(2, np.float32))
    assert [(s.user, s.sentences.tolist()) for s in found] == [(1, [0, 1])]
    assert select(plan, corpus, np.ones(2, np.float32), users=np.array([0, 2])) == []


def test_blocks_hold_every_user_once_and_few_sentences(corpus):
    users = np.arange(3, corpus.num_users, 2)
    parts = list(blocks(corpus, users, most_sentences=9))
    assert np.concatenate(parts).tolist() == users.tolist()
    sizes = [int(held_by(corpus, part).sizes.sum()) for part in parts]
    assert len(parts) > 5
    assert all(size <= 9 or len(part) == 1 for size, part in zip(sizes, parts, strict=True))
    assert list(blocks(corpus, users[:0])) == []
