"""Perplexity: exp of the mean over words and sentence ends, however it is batched."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from tests.training.tiny import CPU, VOCABULARY, tiny_config
from uedp_ray.errors import InputError
from uedp_ray.models.build import build_model
from uedp_ray.models.task import NextWord
from uedp_ray.training.evaluate import batches, perplexity

END, PAD, UNKNOWN = 0, 1, 2
TASK = NextWord(END, PAD, 10)


@pytest.fixture(scope="module")
def model():
    model = build_model(tiny_config().model, vocab_size=VOCABULARY, eos_id=END, seed=3)
    with torch.no_grad():
        model.get_input_embeddings().weight.mul_(20)  # far from uniform, so that every token counts differently
    return model


def sentences(count=40, unknown=0.2):
    rng = np.random.default_rng(0)
    made = [rng.integers(3, VOCABULARY, rng.integers(0, 9)) for _ in range(count)]
    return [np.where(rng.random(len(s)) < unknown, UNKNOWN, s).astype(np.int32) for s in made]


def by_hand(model, chosen):
    total, count = 0.0, 0
    for words in chosen:
        if not len(words):
            continue  # a sentence without words predicts nothing
        sequence = torch.tensor([[END, *words.tolist(), END]])
        with torch.no_grad():
            logp = model(sequence[:, :-1]).logits[0].double().log_softmax(-1)
        total -= sum(float(logp[t, word]) for t, word in enumerate(sequence[0, 1:].tolist()))
        count += len(words) + 1
    return math.exp(total / count)


@pytest.mark.parametrize("batch_tokens", [1, 50, 10_000])
def test_it_is_the_hand_computation_whatever_the_batches(model, batch_tokens):
    chosen = sentences()
    assert any(UNKNOWN in s for s in chosen)
    assert any(not len(s) for s in chosen)
    found = perplexity(model, TASK, chosen, device=CPU, batch_tokens=batch_tokens)
    assert found == pytest.approx(by_hand(model, chosen), rel=1e-5)


def test_unknown_words_and_sentence_ends_count(model):
    words = np.array([5, UNKNOWN, 7], dtype=np.int32)
    with_unknown = perplexity(model, TASK, [words], device=CPU)
    assert with_unknown == pytest.approx(by_hand(model, [words]), rel=1e-5)
    assert with_unknown != pytest.approx(by_hand(model, [words[[0, 2]]]), rel=1e-2)


def test_a_uniform_model_has_the_perplexity_of_its_vocabulary(model):
    uniform = build_model(tiny_config().model, vocab_size=VOCABULARY, eos_id=END, seed=3)
    with torch.no_grad():
        for parameter in uniform.parameters():
            parameter.zero_()
    assert perplexity(uniform, TASK, sentences(), device=CPU) == pytest.approx(VOCABULARY, rel=1e-6)


def test_dropout_is_off_while_evaluating_and_the_mode_comes_back():
    config = tiny_config(model={"dropout_output": 0.9, "dropout_embedding": 0.9})
    model = build_model(config.model, vocab_size=VOCABULARY, eos_id=END, seed=3).train()
    first, second = (perplexity(model, TASK, sentences(), device=CPU) for _ in range(2))
    assert first == second
    assert model.training


def test_batches_hold_every_sentence_once_within_the_limit():
    lengths = np.random.default_rng(1).integers(0, 30, 200)
    packed = list(batches(lengths, 100))
    assert sorted(np.concatenate(packed).tolist()) == list(range(200))
    assert all(len(b) * (lengths[b].max() + 2) <= 100 for b in packed if len(b) > 1)
    assert len(packed) < 100


@pytest.mark.parametrize("empty", [[], [np.zeros(0, np.int32)]])
def test_nothing_to_predict_is_the_users_error(model, empty):
    with pytest.raises(InputError, match=r"corpus\.evaluation"):
        perplexity(model, TASK, empty, device=CPU)
