"""Removing one user, or one entity, moves the un-noised sum by at most its bound.

Corpora hit every cap. Slots kept: the bound holds for every rule, draw, bound and local update. Slots closed up and the
bounds recomputed: shown to break under truncation (hence the fixed-graph relation), and to hold where bounds are declared.
"""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from tests.training.runs import NUM_USERS, TEST_NOISE, TREE, parameters, run_config
from tests.updates.tiny import CPU, TinyCorpus, TinyWorker, tiny_config
from uedp_ray.config import BoundsConfig
from uedp_ray.corpus.bounds import apply_bounds
from uedp_ray.errors import InputError
from uedp_ray.models.parameters import FlatParameters
from uedp_ray.privacy.noise import GaussianNoise
from uedp_ray.privacy.sampling import PoissonSampler
from uedp_ray.tasks.next_word import NextWord
from uedp_ray.training.host import train
from uedp_ray.training.network import make_model
from uedp_ray.training.prepared import Prepared
from uedp_ray.training.run_vocabulary import draw_vocabulary
from uedp_ray.training.rundir import RunDir, sampling_key
from uedp_ray.updates.base import local_update

BETA, SENTENCE_CLIP, M, K = 1.0, 0.3, 2, 3
SETTINGS = list(itertools.product(["all", "any"], ["global", "per_user"], ["truncate", "reweight", "fill"]))


def worker_and_bounds(rule="all", draw="global", surplus="truncate", local_update="gradient", device="cpu", **bounds):
    privacy = {
        "l2_clip_norm": BETA,
        "selection_rule": rule,
        "entity_draw": draw,
        "entity_sampling_prob": 0.6,
        "extended_sampling_prob": 0.7,
        "sentence_clip_norm": SENTENCE_CLIP if local_update == "gradient" else None,
    }
    config = tiny_config(
        privacy=privacy,
        bounds={
            "max_sentences_per_entity": M,
            "max_holders": K,
            "entity_bound": "reweight" if surplus == "fill" else surplus,
            "holder_bound": surplus,
            "max_sentences_per_user": 5,
            **bounds,
        },
        training={"local_update": local_update, "local_learning_rate": 2.0, "local_batch_size": 3},
    )
    return TinyWorker(config, device=device), config


def drawn_users(config, corpus, round_index):
    sampler = PoissonSampler(b"sampling key of a test")
    return sampler.draw(
        config.privacy.user_sampling_prob, corpus.num_users, round_index=round_index, attempt=0, kind="user"
    )


def moved(a: torch.Tensor, b: torch.Tensor) -> float:
    return float(torch.linalg.vector_norm(a - b))


@pytest.mark.parametrize("local_update", ["gradient", "local_sgd"])
@pytest.mark.parametrize(("rule", "draw", "surplus"), SETTINGS)
def test_slots_kept(rule, draw, surplus, local_update, device):
    if local_update == "local_sgd" and surplus != "truncate":
        with pytest.raises(InputError, match="local_sgd"):
            worker_and_bounds(rule, draw, surplus, local_update)
        return
    worker, config = worker_and_bounds(rule, draw, surplus, local_update, device)
    largest_user = largest_entity = 0.0
    for seed in range(3):
        corpus = TinyCorpus.random(seed)
        assert corpus.entity_holders.max() > K, "the corpus must hit the cap"
        weight = apply_bounds(corpus, config.bounds, 12).sentence_weight
        cohort = drawn_users(config, corpus, seed)
        whole = worker.sum(corpus, weight, round_index=seed)
        for user in range(corpus.num_users):
            change = moved(whole, worker.sum(corpus.without_user(user), weight, round_index=seed))
            assert change <= (BETA if cohort[user] else 0.0)
            largest_user = max(largest_user, change)
        for entity in range(corpus.num_entities):
            holders = corpus.holders(entity)
            surviving = np.unique(corpus.user_of[corpus.holds(entity) & (weight > 0)])
            scale = min(1.0, K / max(1, len(holders))) if surplus == "reweight" else 1.0
            assert surplus != "truncate" or len(surviving) <= K
            bound = cohort[surviving].sum() * config.entity_clip_norm * scale
            if surplus == "fill":
                share_U = np.bincount(corpus.user_of, weight * corpus.holds(entity), minlength=corpus.num_users)
                assert share_U.max() <= M
                assert share_U.sum() <= K * M
                bound = cohort @ share_U * SENTENCE_CLIP
            change = moved(whole, worker.sum(corpus.without_entity(entity), weight, round_index=seed))
            assert change <= bound
            largest_entity = max(largest_entity, change)
    assert largest_user > 0.3 * BETA, "the bound on users was never near: the test proves nothing"
    assert largest_entity > 0.1 * config.entity_clip_norm


@pytest.mark.parametrize(("rule", "draw", "surplus"), SETTINGS[::5])
def test_slots_kept_of_factored_gradients(rule, draw, surplus, device, kept):
    test_slots_kept(rule, draw, surplus, "gradient", device)


def test_an_undrawn_entity_moves_nothing_under_rule_all_but_does_under_any():
    changes = {}
    for rule in ("all", "any"):
        worker, config = worker_and_bounds(rule)
        sampler = PoissonSampler(b"sampling key of a test")
        changes[rule] = 0.0
        for round_index in range(6):
            corpus = TinyCorpus.random(round_index)
            weight = apply_bounds(corpus, config.bounds, 12).sentence_weight
            drawn = sampler.draw(0.6, corpus.num_entities, round_index=round_index, attempt=0, kind="entity")
            whole = worker.sum(corpus, weight, round_index=round_index)
            for entity in np.flatnonzero(~drawn):
                without = worker.sum(corpus.without_entity(entity), weight, round_index=round_index)
                changes[rule] = max(changes[rule], moved(whole, without))
    assert changes["all"] == 0.0
    assert changes["any"] > 0.0


def test_recomputed_truncation_breaks_the_bound_of_one_user():
    """One user's absence lets other users' sentences in: why bounds are computed once and slots are kept."""
    config = tiny_config(
        privacy={"noise_multiplier": 1.0, "user_sampling_prob": 1.0, "test_noise_seed": 0, "sentence_clip_norm": 1.0},
        bounds={"max_holders": 1, "entity_bound": "truncate", "holder_bound": "truncate"},
    )
    worker = TinyWorker(config)
    rng = np.random.default_rng(0)
    corpus = TinyCorpus(  # user 0 shares one entity with each of the users 1 to 6
        user_offsets=np.array([0, 6, 7, 8, 9, 10, 11, 12]),
        entity_offsets=np.arange(13),
        entity_ids=np.array([*range(6), *range(6)], dtype=np.int32),
        num_entities=6,
        tokens=[rng.integers(3, 24, 6).astype(np.int32) for _ in range(12)],
    )
    weight = apply_bounds(corpus, config.bounds, 12).sentence_weight
    whole = worker.sum(corpus, weight)
    assert moved(whole, worker.sum(corpus.without_user(0), weight)) <= BETA
    smaller = corpus.removed(corpus.user_of == 0)
    recomputed = apply_bounds(smaller, config.bounds, 12).sentence_weight
    assert moved(whole, worker.sum(smaller, recomputed)) > 1.2 * BETA


def test_declared_bounds_refuse_data_that_break_them_and_hold_both_ways():
    worker, config = worker_and_bounds(
        "any", mode="declared", max_holders=12, max_sentences_per_user=None, max_sentences_per_entity=7
    )
    for seed in range(3):
        corpus = TinyCorpus.random(seed)
        weight = apply_bounds(corpus, config.bounds, 12).sentence_weight
        assert (weight == 1).all()
        whole = worker.sum(corpus, weight, round_index=seed)
        for user in range(corpus.num_users):
            smaller = corpus.removed(corpus.user_of == user)
            weights = apply_bounds(smaller, config.bounds, 12).sentence_weight
            assert (weights == 1).all()
            # Extended draws are addressed by slot: the user's own slots are gone, nobody else's moved.
            assert moved(whole, worker.sum(smaller, weights, round_index=seed)) <= BETA
    with pytest.raises(InputError, match="max_holders"):
        apply_bounds(TinyCorpus.random(0), BoundsConfig(mode="declared", max_holders=K, max_sentences_per_entity=7), 12)


@pytest.mark.parametrize("surplus", ["truncate", "reweight", "fill"])
def test_a_private_vocabulary_counts_only_sentences_that_no_bound_touched(surplus):
    """Everybody's sentences with an entity would move the counts by the number of its holders, not by K."""
    config = tiny_config(
        vocabulary={
            "kind": "noisy-threshold",
            "noise_multiplier": 1e-3,
            "threshold_delta": 1e-6,
            "max_words_per_user": 2,
        },
        bounds={"max_holders": 1, "holder_bound": surplus},
    )
    graph = TinyCorpus(  # each of 12 users: one plain sentence, one with the only entity
        np.arange(13) * 2, np.repeat(np.arange(13), 2)[:-1], np.zeros(12, np.int32), 1, [np.array([5])] * 24
    )
    weight = apply_bounds(graph, config.bounds, 12).sentence_weight
    texts = [(user, ["plain", "secret"]) for user in range(12)]
    corpus = SimpleNamespace(user_offsets=graph.user_offsets, texts=lambda: texts)
    vocabulary, event = draw_vocabulary(config, corpus, weight)
    words = vocabulary.tokenizer.get_vocab()
    assert event["max_holders"] == 1
    assert "plain" in words
    assert "secret" not in words


def test_what_leaves_a_round_is_the_noised_sum_over_a_public_number(corpora, tmp_path):
    """A whole run against its parts: one sum, one noise of std z beta, the declared number of users, nothing else."""
    settings = {"num_rounds": 1, "server_optimizer": "sgd", "server_learning_rate": 0.5, "device": "cpu"}
    privacy = {**TREE["privacy"], **TEST_NOISE, "noise_multiplier": 0.3, "l2_clip_norm": 0.5}
    config = run_config(corpora, privacy=privacy, training=settings)
    run = RunDir(tmp_path / "run")
    train(config, run.root, workers=0)
    prepared = Prepared.open(run)
    words, corpus = prepared.vocabulary, prepared.corpus
    model = make_model(config, words)
    params = FlatParameters(model)
    start = params.get()
    task = NextWord.of(words, config.model.max_length, config.task)
    where = {"round_index": 0, "attempt": 0, "sentence_weight": prepared.sentence_weight}
    chosen = prepared.plan.select(
        corpus, np.arange(NUM_USERS), PoissonSampler(sampling_key(run, prepared.config)), **where
    )
    update = local_update(prepared.plan, model, params, task, prepared.tokens.sentence, CPU)
    total = update.sum_updates(start, chosen, 0).double() * prepared.plan.grid.step
    noise = GaussianNoise(TEST_NOISE["test_noise_seed"]).sample(total.numel(), std=0.3 * 0.5, round_index=0)
    expected = start + 0.5 * (total + noise) / (0.3 * NUM_USERS)
    assert total.norm() > 0.5
    torch.testing.assert_close(parameters(run.root).double(), expected, rtol=1e-5, atol=1e-6)
