"""Losses through an output layer that is not trained are those of whole logits, which are never there."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import AutoConfig, AutoModelForCausalLM

from tests.models.helpers import TASK, VOCABULARY, sentences, spread, tiny
from tests.models.test_gradients import formed, prepare
from uedp_ray.models.gradients import sentence_gradients
from uedp_ray.models.parameters import FlatParameters
from uedp_ray.tasks import chunked
from uedp_ray.tasks.base import IGNORED, Batch, forward_logits
from uedp_ray.tasks.loss import cross_entropy

CLOSE = {torch.float32: {"rtol": 1e-5, "atol": 1e-6}, torch.float64: {"rtol": 1e-10, "atol": 1e-12}}


def network(model_type: str, *, tied: bool = True) -> nn.Module:
    """Of random values."""
    sizes = {"hidden_size": 12, "num_hidden_layers": 2, "num_attention_heads": 2, "max_position_embeddings": 16}
    sizes |= {"vocab_size": VOCABULARY, "tie_word_embeddings": tied, "pad_token_id": 0}
    if model_type not in ("gpt2", "gpt_neox"):
        sizes |= {"num_key_value_heads": 1, "head_dim": 6}
    if model_type != "gpt2":
        sizes |= {"intermediate_size": 20}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        return spread(AutoModelForCausalLM.from_config(AutoConfig.for_model(model_type, **sizes)).eval())


def computed(model: nn.Module, batch: Batch, numbers: int | None, monkeypatch: pytest.MonkeyPatch, **given: Any) -> Any:
    """Gradients of a batch, with ``numbers`` logits at once, or all."""
    monkeypatch.setattr(chunked, "_NUMBERS", {} if numbers is None else dict.fromkeys(("cpu", "cuda"), numbers))
    with monkeypatch.context() as patched:
        if numbers is None:
            patched.setattr(chunked, "_head_of", lambda model: None)
        return sentence_gradients(model, FlatParameters(model), TASK, batch, **given)


@pytest.mark.parametrize("dtype", CLOSE)
@pytest.mark.parametrize("model_type", sorted(chunked._ONLY_A_PRODUCT))
def test_gradients_are_those_of_whole_logits(model_type, dtype, monkeypatch) -> None:
    """Of every network of which it is said that its logits are a product and no more."""
    model = prepare(network(model_type), "lora").to(dtype)
    assert chunked._head_of(model) is not None
    batch = TASK.collate(sentences())
    expected = computed(model, batch, None, monkeypatch)
    for numbers in (1, 400, 1 << 22):
        found = computed(model, batch, numbers, monkeypatch)
        torch.testing.assert_close(found.losses, expected.losses, **CLOSE[dtype])
        torch.testing.assert_close(formed(found), formed(expected), **CLOSE[dtype])


@pytest.mark.parametrize("numbers", [1, 400, 1 << 22])
@pytest.mark.parametrize("autocast", [None, torch.bfloat16])
def test_a_sentences_loss_has_the_same_bits_beside_any_others(numbers, autocast, monkeypatch, device) -> None:
    model = prepare(network("llama", tied=False), "lora").float().to(device)
    monkeypatch.setattr(chunked, "_NUMBERS", dict.fromkeys(("cpu", "cuda"), numbers))
    texts = sentences((5, 0, 1, 7, 12, 3, 6, 2))
    found = {}
    with torch.no_grad():
        model.get_input_embeddings().weight[22] = torch.nan
    for seed in range(3):  # the first four stay where they are
        others = sentences((7, 4, 3, 5), seed=seed + 1)
        batch = TASK.collate([*texts[:4], *others], (8, 8)).to(device)
        gradients = sentence_gradients(model, FlatParameters(model), TASK, batch, autocast_dtype=autocast)
        found[seed] = gradients.losses[:4], formed(gradients)[:4]
    for losses, rows in found.values():
        assert torch.equal(losses.nan_to_num(), found[0][0].nan_to_num())
        assert torch.equal(rows.nan_to_num(), found[0][1].nan_to_num())


def test_autocast_rounds_as_without(monkeypatch) -> None:
    model = prepare(network("qwen2", tied=False), "lora").float()
    batch, given = TASK.collate(sentences()), {"autocast_dtype": torch.bfloat16}
    found, expected = (computed(model, batch, numbers, monkeypatch, **given) for numbers in (100, None))
    assert found.losses.dtype == torch.float32
    torch.testing.assert_close(found.losses, expected.losses, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(formed(found), formed(expected), rtol=0.05, atol=0.02)


class Largest(TorchDispatchMode):
    """Numbers of the largest tensor of logits that an operation makes."""

    numbers = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        tensors = [each for each in tree_leaves(found) if isinstance(each, Tensor) and each.shape[-1:] == (VOCABULARY,)]
        self.numbers = max([self.numbers, *(each.numel() for each in tensors)])
        return found


def test_parts_follow_from_the_shape_of_a_batch_alone(monkeypatch) -> None:
    """And not from how much of it is predicted: a sentence's loss would have other bits beside others."""
    parts: list[torch.Size] = []
    linear = torch.nn.functional.linear

    def watched(rows: Tensor, *of: Tensor) -> Tensor:
        parts.append(rows.shape)
        return linear(rows, *of)

    monkeypatch.setattr(chunked.F, "linear", watched)
    hidden, head, seen = torch.randn(3, 8, 5), nn.Linear(5, VOCABULARY).requires_grad_(False), []
    for left_out in (0, 7):
        targets = torch.ones(3, 8, dtype=torch.int64)
        targets[:, 8 - left_out :] = IGNORED
        parts.clear()
        chunked.chunked_cross_entropy(hidden, head, targets, numbers=3 * VOCABULARY * 2)
        seen.append(list(parts))
    assert seen == [[torch.Size((6, 5))] * 4] * 2


def test_whole_logits_are_never_there(monkeypatch) -> None:
    model = prepare(network("llama", tied=False), "lora").float()
    batch = TASK.collate(sentences((7,) * 16))
    sizes = {}
    for numbers in (400, None):
        with Largest() as largest:
            computed(model, batch, numbers, monkeypatch)
        sizes[numbers] = largest.numbers
    assert sizes == {400: len(batch) * VOCABULARY, None: len(batch) * 8 * VOCABULARY}


def test_a_trained_layer_gets_its_gradient_and_is_scored_in_parts(monkeypatch) -> None:
    model, batch = network("gpt2"), TASK.collate(sentences())
    assert chunked._head_of(model) is None
    whole = TASK.sums(model, batch)
    with torch.no_grad():
        assert chunked._head_of(model) is not None
        expected = float(cross_entropy(forward_logits(model, batch), batch.targets).sum())
    assert whole == pytest.approx((expected, int((batch.targets != IGNORED).sum())), rel=1e-6)
    adapted = prepare(tiny(), "lora")
    assert chunked._head_of(adapted) is not None
    assert chunked._head_of(tiny("awd_lstm").requires_grad_(False)) is None


def test_a_network_that_does_more_with_its_logits_is_computed_as_it_is() -> None:
    model, batch = network("llama").requires_grad_(False), TASK.collate(sentences())
    forward, plain = model.forward, TASK.losses(model, batch)

    def capped(**inputs: Any) -> Any:
        output = forward(**inputs)
        output.logits = output.logits.tanh()
        return output

    model.forward = capped  # type: ignore[method-assign]
    logits = forward_logits(model, batch)
    expected = cross_entropy(logits, batch.targets).sum(1) / (batch.targets != IGNORED).sum(1).clamp_min(1)
    torch.testing.assert_close(TASK.losses(model, batch), expected)
    assert not torch.allclose(plain, expected)
