from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from tests.models.helpers import TASK, sentences, tiny, tiny_llama
from uedp_ray.config import ModelConfig
from uedp_ray.errors import InputError
from uedp_ray.models.parameters import FlatParameters
from uedp_ray.models.saved import load_model, save_model
from uedp_ray.models.trainable import select_trainable


def names(model: nn.Module, part: str, **settings: object) -> tuple[str, ...]:
    config = ModelConfig(trainable=part, **settings)  # type: ignore[arg-type]
    return FlatParameters(select_trainable(model, config, seed=0)).names


def test_full() -> None:
    model = tiny()
    model.requires_grad_(False)
    assert len(names(model, "full")) == len(list(model.parameters()))


def test_bias_norm() -> None:
    assert all(".ln_" in name or name.endswith(".bias") for name in names(tiny(), "bias_norm"))
    assert len(names(tiny(), "bias_norm")) == 2 * 8 + 2
    assert all("norm" in name for name in names(tiny_llama(), "bias_norm"))
    assert names(tiny("awd_lstm"), "bias_norm") == ("decoder.bias", "layers.0.inputs.bias", "layers.1.inputs.bias")


def test_head() -> None:
    assert names(tiny(tie_embeddings=False), "head") == ("lm_head.weight",)
    assert names(tiny(), "head") == ("transformer.wte.weight",)  # tied: the same matrix
    assert names(tiny("awd_lstm", tie_embeddings=False), "head") == ("decoder.bias", "decoder.weight")


def test_nothing_to_train() -> None:
    with pytest.raises(InputError, match=r"model\.trainable"):
        names(nn_without_biases(), "bias_norm")
    with pytest.raises(InputError, match=r"model\.lora_targets"):
        names(tiny(), "lora", lora_targets=("q_proj",))


def nn_without_biases() -> nn.Module:
    model = tiny("awd_lstm")
    for module in model.modules():
        if isinstance(module, nn.Linear):
            module.bias = None  # type: ignore[assignment]
    return model


@pytest.mark.parametrize(("model", "layers"), [(tiny, 8), (tiny_llama, 14), (lambda: tiny("awd_lstm"), 4)])
def test_lora_starts_at_the_model_itself(model: object, layers: int) -> None:
    network = model()  # type: ignore[operator]
    batch = TASK.collate(sentences())
    before = TASK.losses(network, batch).detach()
    state = torch.get_rng_state()
    config = ModelConfig(trainable="lora", lora_rank=3)
    adapted = select_trainable(network, config, seed=0)
    assert torch.equal(torch.get_rng_state(), state)
    params = FlatParameters(adapted)
    assert len(params.names) == 2 * layers  # every linear layer but the head
    assert all("lora_" in name for name in params.names)
    torch.testing.assert_close(TASK.losses(adapted, batch).detach(), before, rtol=0, atol=0)
    params.set(params.get() + 0.1)
    assert (TASK.losses(adapted, batch).detach() - before).abs().max() > 1e-3


def test_lora_seed_and_targets() -> None:
    def start(seed: int, *targets: str) -> FlatParameters:
        config = ModelConfig(trainable="lora", lora_rank=3, lora_targets=targets)
        return FlatParameters(select_trainable(tiny(), config, seed=seed))

    assert torch.equal(start(0).get(), start(0).get())
    assert not torch.equal(start(0).get(), start(1).get())
    assert all("attn.c_attn.lora_" in name for name in start(0, "c_attn").names)
    assert len(start(0, "attn.c_proj").names) == 4  # a longer suffix tells the two c_proj apart


@pytest.mark.parametrize(("make", "others"), [(tiny, ("c_attn",)), (tiny_llama, ("q_proj",)), (tiny, ())])
def test_lora_of_a_head_leaves_the_embedding_alone(make: Callable[[], nn.Module], others: tuple[str], tmp_path: Path):
    """Tied, the two are one matrix: merged for export, the adapter would change what is read as well."""
    network = make()
    assert network.lm_head.weight is network.get_input_embeddings().weight
    config = ModelConfig(trainable="lora", lora_rank=3, lora_targets=("lm_head", *others))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        adapted = select_trainable(network, config, seed=0)
    params, batch = FlatParameters(adapted), TASK.collate(sentences())
    assert any("lm_head.lora_" in name for name in params.names)
    assert all("lora_" in name for name in params.names)
    before = TASK.losses(adapted, batch).detach()
    params.set(params.get() + 0.1 * torch.randn(params.num, generator=torch.Generator().manual_seed(0)))
    after = TASK.losses(adapted, batch).detach()
    assert (after - before).abs().max() > 1e-3
    save_model(adapted, tmp_path / "model")
    read = load_model(tmp_path / "model")
    torch.testing.assert_close(TASK.losses(read, batch).detach(), after)
    torch.testing.assert_close(read.get_input_embeddings().weight, make().get_input_embeddings().weight)


def test_lora_of_a_head_that_cannot_be_parted_from_the_embedding() -> None:
    with pytest.raises(InputError, match=r"model\.lora_targets.*set model\.tie_embeddings: false"):
        names(tiny("awd_lstm"), "lora", lora_targets=("decoder",))
    assert len(names(tiny("awd_lstm", tie_embeddings=False), "lora", lora_targets=("decoder",))) == 2
