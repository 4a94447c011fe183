"""Ranks and beams against every sequence, enumerated; a model that saw nothing else remembers a canary."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from uedp_ray.audit.memory import exposure, found_by_beam, rank_of

V, WORDS, NO_WORDS = 12, np.arange(4, 10, dtype=np.int32), np.array([0, 1])
CANARY = np.array([5, 9, 4, 7, 7], np.int32)


def network(seed, scale):
    torch.manual_seed(seed)
    sizes = {"n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 8, "bos_token_id": 0, "eos_token_id": 0}
    model = GPT2LMHeadModel(GPT2Config(vocab_size=V, initializer_range=scale, **sizes))
    return model.eval()


def asked(model):
    """What a run's ``Predictor`` answers, of a bare network whose sentences begin with token 0."""

    @torch.no_grad()
    def next_log_probs(contexts, tokens):
        begun = torch.from_numpy(np.pad(contexts.astype(np.int64), ((0, 0), (1, 0))))
        found = model(begun).logits[:, -1].double().log_softmax(-1)
        return found if tokens is None else found[:, tokens]

    return next_log_probs


@torch.no_grad()
def log_probs(model, sequences, given):
    """(N,) of what follows the first ``given`` tokens of each sequence, in one pass over whole sequences."""
    rows = torch.tensor([[0, *sequence] for sequence in sequences])
    scores = model(rows).logits.double().log_softmax(-1)
    each = scores[:, :-1].gather(2, rows[:, 1:, None])[..., 0]
    return each[:, given:].sum(1).numpy()


def test_exposure_is_of_the_first_all_bits_and_of_the_last_none():
    for bits in (4, 18):
        assert exposure(1, 2**bits) == bits
        assert exposure(2**bits, 2**bits) == 0
        assert exposure(2 ** (bits - 3), 2**bits) == 3


@pytest.mark.parametrize("scale", [0.02, 0.6])
def test_a_rank_is_the_number_of_suffixes_that_are_no_less_likely(scale):
    model = network(3, scale)
    suffixes = list(itertools.product(WORDS.tolist(), repeat=3))
    scores = log_probs(model, [[5, 9, *suffix] for suffix in suffixes], given=2)
    order = np.argsort(-scores)
    for place in (0, 1, 50, 107, 214, 215):
        canary = np.array([5, 9, *suffixes[order[place]]], np.int32)
        alike = np.abs(scores - scores[order[place]]) < 2e-4
        found = rank_of(canary, WORDS, asked(model))
        assert abs(found - (place + 1)) < alike.sum(), "but for those that are as likely, in float32"
        assert found >= 1 + np.sum(scores > scores[order[place]] + 2e-4)
    best = np.array([5, 9, *suffixes[order[0]]], np.int32)
    assert scale < 0.1 or rank_of(best, WORDS, asked(model)) == 1


def test_of_a_model_that_knows_nothing_every_suffix_ranks_last():
    uniform = network(0, 0.02)
    torch.nn.init.zeros_(uniform.transformer.wte.weight)
    assert rank_of(CANARY, WORDS, asked(uniform)) == len(WORDS) ** 3


def test_a_beam_that_keeps_everything_finds_the_best_five_of_all_and_no_token_that_is_no_word():
    model = network(5, 0.6)
    kept = [token for token in range(V) if token not in NO_WORDS]
    sequences = [(5, *rest) for rest in itertools.product(kept, repeat=4)]
    scores = log_probs(model, sequences, given=1)
    order = np.argsort(-scores)
    for place in (0, 4, 5, 30):
        canary = np.array(sequences[order[place]], np.int32)
        assert found_by_beam(canary, NO_WORDS, len(sequences), asked(model)) == (place < 5)
    assert not found_by_beam(np.array([5, 1, 1, 1, 1], np.int32), NO_WORDS, 5, asked(model))


def test_a_model_trained_on_a_canary_alone_remembers_it_and_an_untrained_one_does_not():
    model = network(1, 0.02)
    assert rank_of(CANARY, WORDS, asked(model)) > 1
    assert not found_by_beam(CANARY, NO_WORDS, 5, asked(model))
    rows = torch.tensor([[0, *CANARY.tolist(), 0]])
    optimizer = torch.optim.Adam(model.train().parameters(), lr=0.01)
    for _ in range(200):
        optimizer.zero_grad()
        model(rows, labels=rows).loss.backward()
        optimizer.step()
    model.eval()
    assert rank_of(CANARY, WORDS, asked(model)) == 1
    assert found_by_beam(CANARY, NO_WORDS, 5, asked(model))
    assert rank_of(np.array([9, 5, 4, 4, 8], np.int32), WORDS, asked(model)) > 1, "of another, that it never saw"
