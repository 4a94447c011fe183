"""Losses and gradients of sentences that share a row are those of rows of their own."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForTokenClassification

from tests.models.helpers import VOCABULARY, spread, tiny
from tests.models.test_gradients import prepare
from uedp_ray.models import packed
from uedp_ray.models.packed import pack_attention
from uedp_ray.models.parameters import FlatParameters
from uedp_ray.models.recomputed import recompute_blocks
from uedp_ray.tasks.base import Batch, Task
from uedp_ray.tasks.next_word import NextWord
from uedp_ray.tasks.tag_words import TagWords

CLOSE = {torch.float32: {"rtol": 1e-5, "atol": 1e-5}, torch.float64: {"rtol": 1e-10, "atol": 1e-12}}
ENCODERS = {"bert", "roberta", "distilbert", "electra"}
WORDS = NextWord(bos_id=0, eos_id=0, pad_id=0, max_length=16)
TAGS = TagWords(bos_id=0, eos_id=0, pad_id=1, max_length=16, labels=("a", "b", "c"))
LONGEST = 14


def network(model_type: str) -> tuple[nn.Module, Task]:
    """Of random values, and what it can be trained to do."""
    sizes = {"hidden_size": 12, "num_hidden_layers": 2, "num_attention_heads": 2, "vocab_size": VOCABULARY}
    sizes |= {"max_position_embeddings": 18, "pad_token_id": 1, "num_labels": 3, "embedding_size": 8}
    sizes |= dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob", "attention_dropout", "dropout"), 0.0)
    if model_type not in {"gpt2", "gpt_neox", *ENCODERS}:
        sizes |= {"num_key_value_heads": 1, "head_dim": 6}
    if model_type != "gpt2":
        sizes |= {"intermediate_size": 20}
    if model_type == "distilbert":
        sizes |= {"dim": 12, "n_layers": 2, "n_heads": 2, "hidden_dim": 20}
    encoder = model_type in ENCODERS
    made_by = AutoModelForTokenClassification if encoder else AutoModelForCausalLM
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        model = made_by.from_config(AutoConfig.for_model(model_type, **sizes), attn_implementation="sdpa")
        return spread(model.eval()), TAGS if encoder else WORDS


def texts(task: Task) -> list[np.ndarray]:
    made_up = np.random.default_rng(0)
    found = [task.made_up(positions, VOCABULARY, made_up) for positions in (3, LONGEST, 5, 9, 4)]
    return [*found, found[0][:0]]


def computed(model: nn.Module, task: Task, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
    """Losses, and the gradient of a sum in which each counts differently."""
    losses = task.losses(model, batch)
    weights = torch.arange(1, len(losses) + 1, dtype=losses.dtype, device=losses.device)
    return losses.detach(), FlatParameters(model).gradient((losses * weights).sum())


@pytest.mark.parametrize(
    ("model_type", "dtype"),
    [
        *((model_type, torch.float32) for model_type in sorted(packed._KNOWN)),
        *((model_type, torch.float64) for model_type in sorted({"gpt2", *ENCODERS})),  # others have parts in float32
    ],
)
def test_packed_losses_and_gradients_are_those_of_padded_ones(model_type, dtype, device) -> None:
    """Of every network of which it is said that it can."""
    model, task = network(model_type)
    model = model.to(dtype).to(device)
    batch = task.collate(texts(task)).to(device)
    expected = computed(model, task, batch)
    assert pack_attention(model, LONGEST)
    for found in (computed(model, task, batch), computed(model, task, batch.packed())):
        for each, other in zip(found, expected, strict=True):
            torch.testing.assert_close(each, other, **CLOSE[dtype])
    assert batch.packed().input_ids.shape == (1, int(batch.lengths.sum()))
    assert float(expected[1].norm()) > 0.1


@pytest.mark.parametrize("recomputed", [False, True])
def test_adapters_of_a_frozen_network(recomputed) -> None:
    """Whose losses are those of parts of the logits (``tasks.chunked``)."""
    model, task = network("llama")
    model = prepare(model, "lora")
    batch = task.collate(texts(task))
    expected = computed(model, task, batch)
    assert pack_attention(model, LONGEST)
    if recomputed:
        recompute_blocks(model)
    for each, other in zip(computed(model, task, batch.packed()), expected, strict=True):
        torch.testing.assert_close(each, other, **CLOSE[torch.float32])


def test_under_autocast_and_with_dropout() -> None:
    model, task = network("gpt2")
    assert pack_attention(model, LONGEST)
    batch = task.collate(texts(task))
    expected, _ = computed(model, task, batch)
    with torch.autocast("cpu", torch.bfloat16):
        losses, _ = computed(model, task, batch.packed())
    torch.testing.assert_close(losses, expected, rtol=0.05, atol=0.05)
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.5
    model.train()
    losses, gradient = computed(model, task, batch.packed())
    assert bool(torch.isfinite(losses).all())
    assert bool(torch.isfinite(gradient).all())
    assert not torch.allclose(losses, expected, atol=1e-3)


def test_no_sentence_sees_another() -> None:
    model, task = network("gpt2")
    assert pack_attention(model, LONGEST)
    known = texts(task)
    with torch.no_grad():
        before = task.losses(model, task.collate(known).packed())
        known[2] = known[2][::-1] % 7 + 1
        after = task.losses(model, task.collate(known).packed())
    assert (before == after).tolist() == [True, True, False, True, True, True]


def test_a_packed_batch_is_moved_whole() -> None:
    """To ``meta``, which stands in for a GPU."""
    batch = WORDS.collate(texts(WORDS)).packed().to("meta")
    assert batch.packing is not None
    tensors = batch.input_ids, batch.targets, batch.lengths, batch.packing.places, batch.packing.filled
    assert {each.device.type for each in tensors} == {"meta"}
    assert batch.by_sentence(batch.targets).device.type == "meta"


def test_nothing_is_packed_where_nothing_is_padded() -> None:
    batch = WORDS.collate([np.array([3, 4]), np.array([5, 6])])
    assert batch.packed() is batch


@pytest.mark.parametrize(("window", "packs"), [(LONGEST, True), (LONGEST - 1, False), (None, True)])
def test_layers_that_look_back_less_far_than_a_sentence_are_not_packed(window, packs) -> None:
    model, _ = network("mistral")
    model.config.sliding_window = window
    assert pack_attention(model, LONGEST) is packs


@pytest.mark.parametrize(
    ("model_type", "ahead"), [("llama", {"is_causal": False}), ("gemma", {"use_bidirectional_attention": True})]
)
def test_causal_networks_that_look_ahead_are_not_packed(model_type, ahead) -> None:
    model, _ = network(model_type)
    model.config.update(ahead)
    assert not pack_attention(model, LONGEST)


def test_unknown_networks_are_left_as_they_are() -> None:
    for unknown in (tiny("awd_lstm"), nn.Linear(2, 2)):
        assert not pack_attention(unknown, LONGEST)
    eager, _ = network("gpt2")
    eager.set_attn_implementation("eager")
    assert not pack_attention(eager, LONGEST)
    assert eager.config._attn_implementation == "eager"


def test_what_is_saved_says_nothing_of_it(tmp_path: Path) -> None:
    model, _ = network("gpt2")
    assert pack_attention(model, LONGEST)
    model.save_pretrained(tmp_path)
    assert packed._NAME not in (tmp_path / "config.json").read_text()
    assert AutoModelForCausalLM.from_pretrained(tmp_path).config._attn_implementation == "sdpa"
