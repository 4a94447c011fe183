"""A frozen network held in bfloat16 computes what it would if it were kept as float32."""

from __future__ import annotations

import copy
import dataclasses
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from transformers import Gemma3ForCausalLM, Gemma3TextConfig

from tests.models.helpers import TASK, VOCABULARY, reference_gradients, sentences, tiny, tiny_llama
from uedp_ray.config import ModelConfig
from uedp_ray.errors import InputError
from uedp_ray.models.build import build_model
from uedp_ray.models.gradients import SentenceGradients, sentence_gradients
from uedp_ray.models.held import hold
from uedp_ray.models.parameters import FlatParameters
from uedp_ray.models.saved import load_model, save_model
from uedp_ray.models.trainable import select_trainable
from uedp_ray.tasks.base import Head

NETWORKS = {"gpt2": tiny, "llama": tiny_llama, "llama untied": lambda: tiny_llama(tied=False)}
LORA = ModelConfig(trainable="lora", lora_rank=2)


def formed(gradients: SentenceGradients) -> Tensor:
    """(B, P)"""
    return torch.cat([rows.clone() for _, rows in gradients.chunks()])


def both(network: str, config: ModelConfig = LORA, device: str = "cpu") -> tuple[nn.Module, nn.Module]:
    """One network twice, of rounded values: kept as float32, and held. Adapters are away from zero."""
    plain = NETWORKS[network]()
    with torch.no_grad():
        for parameter in plain.parameters():
            parameter.copy_(parameter.bfloat16())
    kept, held = (
        select_trainable(each, config, seed=0).to(device) for each in (copy.deepcopy(plain), hold(copy.deepcopy(plain)))
    )
    vector = FlatParameters(kept).get()
    vector += 0.1 * torch.randn(len(vector), generator=torch.Generator().manual_seed(0)).to(device)
    for each in (kept, held):
        FlatParameters(each).set(vector)
    return kept, held


@pytest.mark.parametrize("autocast", [None, torch.bfloat16])
@pytest.mark.parametrize("network", NETWORKS)
def test_gradients_have_the_same_bits(network: str, autocast: torch.dtype | None, device: str) -> None:
    found = []
    for model in both(network, device=device):
        params, batch = FlatParameters(model), TASK.collate(sentences()).to(device)
        found.append(sentence_gradients(model, params, TASK, batch, autocast_dtype=autocast))
        assert {each.dtype for each in params.tensors} == {torch.float32}
    assert torch.equal(found[0].losses, found[1].losses)
    assert torch.equal(*map(formed, found))


@pytest.mark.parametrize("network", NETWORKS)
def test_gradients_are_exact(network: str) -> None:
    model = both(network)[1]
    params, batch = FlatParameters(model), TASK.collate(sentences())
    expected = reference_gradients(model, params, TASK, batch)
    torch.testing.assert_close(formed(sentence_gradients(model, params, TASK, batch)), expected, rtol=1e-5, atol=1e-6)
    model.double()
    expected = reference_gradients(model, params, TASK, batch)
    torch.testing.assert_close(formed(sentence_gradients(model, params, TASK, batch)), expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("network", NETWORKS)
def test_matrices_take_half_and_what_is_kept_for_the_backward_pass_is_no_copy_of_them(network: str) -> None:
    """What autograd keeps of a widened matrix would be a float32 copy of the network."""
    shapes = {tuple(each.shape) for each in NETWORKS[network]().parameters() if each.dim() == 2}
    widened: list[tuple[int, ...]] = []

    def pack(tensor: Tensor) -> Tensor:
        if tensor.dtype == torch.float32 and {(shape := tuple(tensor.shape)), shape[::-1]} & shapes:
            widened.append(shape)
        return tensor

    model = both(network)[1]
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        TASK.losses(model, TASK.collate(sentences((3,))))
    assert not widened
    frozen = [each for each in model.parameters() if not each.requires_grad]
    assert all((each.dtype == torch.bfloat16) == (each.dim() == 2) for each in frozen)


@pytest.mark.parametrize("network", NETWORKS)
def test_it_is_merged_and_saved_in_float32(network: str, tmp_path: Path) -> None:
    """In bfloat16 an adapter would be lost: it changes a matrix by less than its last bit."""
    kept, held = both(network, dataclasses.replace(LORA, lora_alpha=1e-3))
    for name, model in {"kept": kept, "held": held}.items():
        save_model(model, tmp_path / name)
    models = [load_model(tmp_path / name) for name in ("kept", "held")]
    for one, other in zip(*(model.parameters() for model in models), strict=True):
        assert one.dtype == other.dtype == torch.float32
        assert torch.equal(one, other)
    changed = [not torch.equal(each, each.bfloat16().float()) for each in models[1].parameters()]
    assert sum(changed) >= 8
    assert '"float32"' in (tmp_path / "held" / "config.json").read_text()
    batch = TASK.collate(sentences())
    torch.testing.assert_close(TASK.losses(models[1], batch), TASK.losses(held, batch), rtol=1e-5, atol=1e-5)


def test_a_folder_is_read_in_it_and_its_new_head_is_trained_in_float32(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_model(tiny_llama(), tmp_path)
    config = dataclasses.replace(LORA, architecture="pretrained", path=str(tmp_path), max_length=8, base_dtype="bf16")
    asked, tokens = [], {"vocab_size": VOCABULARY, "bos_id": 0, "eos_id": 0, "seed": 0}
    for cls in ("AutoModelForCausalLM", "AutoModelForSequenceClassification"):
        kind = getattr(__import__("transformers"), cls)
        read = kind.from_pretrained
        monkeypatch.setattr(
            kind, "from_pretrained", lambda *a, read=read, **named: asked.append(named["dtype"]) or read(*a, **named)
        )
    for warm in ("", str(tmp_path)):
        model = build_model(dataclasses.replace(config, warm_start=warm), **tokens)
        assert model.lm_head.weight.dtype == model.model.layers[0].mlp.up_proj.weight.dtype == torch.bfloat16
        assert torch.equal(model.lm_head.weight, tiny_llama().lm_head.weight.bfloat16())
        assert model.lm_head.weight is model.model.embed_tokens.weight
    classifier = select_trainable(
        build_model(config, **tokens, head=Head("sequence-classification", 3)), config, seed=0
    )
    assert set(asked) == {torch.bfloat16}
    params = FlatParameters(classifier)
    assert {each.dtype for each in params.tensors} == {torch.float32}
    assert any(name.endswith("score.weight") for name in params.names)


def test_a_layer_of_a_kind_of_its_own_keeps_float32() -> None:
    sizes = {"hidden_size": 12, "intermediate_size": 20, "num_hidden_layers": 1, "head_dim": 6}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 16}
    model = hold(Gemma3ForCausalLM(Gemma3TextConfig(vocab_size=VOCABULARY, **sizes, **heads)).eval())
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert model.lm_head.weight.dtype == torch.float32
    assert model.model.layers[0].mlp.up_proj.weight.dtype == torch.bfloat16
    assert TASK.losses(model, TASK.collate(sentences())).isfinite().all()


@pytest.mark.parametrize("trainable", ["full", "bias_norm", "head"])
def test_what_is_trained_is_not_held(trainable: str) -> None:
    with pytest.raises(InputError, match=rf"model\.base_dtype = .*model\.trainable is {trainable}"):
        ModelConfig(trainable=trainable, base_dtype="bf16")  # type: ignore[arg-type]
