"""Chooses the part of a network that is trained; noise grows with the square root of its size.

    >>> from uedp_ray.config import ModelConfig
    >>> from uedp_ray.models.build import build_model
    >>> from uedp_ray.models.parameters import FlatParameters
    >>> from uedp_ray.models.trainable import select_trainable
    >>> for part in ("full", "head", "bias_norm"):    # or "lora"
    ...     config = ModelConfig(num_layers=1, hidden_size=8, num_heads=2, trainable=part)
    ...     model = build_model(config, vocab_size=50, bos_id=0, eos_id=0, seed=0)
    ...     part, FlatParameters(select_trainable(model, config, seed=0)).num
    ('full', 1800)
    ('head', 400)
    ('bias_norm', 120)

The choice is public. Source of LoRA: Hu et al. 2021, through peft; of bias-only training (BitFit): Ben Zaken et al. 2022.
"""

from __future__ import annotations

import warnings

import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

from uedp_ray.config import ModelConfig
from uedp_ray.errors import InputError
from uedp_ray.models.heads import head_names
from uedp_ray.models.held import widen


def select_trainable(model: nn.Module, config: ModelConfig, *, seed: int) -> nn.Module:
    """Sets ``requires_grad`` for ``config.trainable`` and returns the model to use (a peft wrapper for ``lora``).

    full: every parameter. lora: low-rank updates of ``lora_targets`` (module-name suffixes; default every linear layer
    but the output head), starting at exactly zero; a head that is named gets a matrix of its own. bias_norm: every bias and
    every parameter of a normalisation layer. head: the output layer; tied to the embedding, that is the same matrix and the
    embedding is trained with it. The head of a classifier, of which no public model knows anything, is always trained.

    Args:
      seed: for LoRA's random half; the global generator is left alone.
    Raises:
      InputError: nothing to train, or an adapter of a head that is one with the embedding and cannot be parted from it.
    """
    if config.trainable == "lora":
        return _add_lora(model, config, seed)
    of_head = head_names(model)
    drawn = of_head if model.get_output_embeddings() is None else set()  # type: ignore[operator]
    of_norms = {id(p) for m in model.modules() if "norm" in type(m).__name__.lower() for p in m.parameters(False)}
    for name, parameter in model.named_parameters():
        bias_norm = name.rpartition(".")[2] == "bias" or id(parameter) in of_norms
        chosen = {"full": True, "bias_norm": bias_norm, "head": name in of_head}
        parameter.requires_grad_(chosen[config.trainable] or name in drawn)
    if not any(p.requires_grad for p in model.parameters()):
        raise InputError(
            "model.trainable", config.trainable, "this network has no such parameters: choose another part"
        )
    return model


def lora_layers(model: nn.Module, config: ModelConfig) -> dict[str, nn.Module]:
    """The layers that get adapters, by name. Raises: InputError if ``lora_targets`` names one that there is not."""
    head = model.get_output_embeddings()  # type: ignore[operator]
    of_head = {name.rpartition(".")[0] for name in head_names(model)} if head is None else set()
    linear = {name: m for name, m in model.named_modules() if isinstance(m, nn.Linear | Conv1D) and name not in of_head}
    if not config.lora_targets:
        return {name: m for name, m in linear.items() if m is not head}
    for target in config.lora_targets:
        if not any(f".{name}".endswith(f".{target}") for name in linear):
            known = ", ".join(sorted({name.rpartition(".")[2] for name in linear}))
            remedy = f"no linear layer of this network has the name {target}: choose among {known}"
            raise InputError("model.lora_targets", config.lora_targets, remedy)
    suffixes = tuple(f".{target}" for target in config.lora_targets)
    return {name: m for name, m in linear.items() if f".{name}".endswith(suffixes)}


def _add_lora(model: nn.Module, config: ModelConfig, seed: int) -> nn.Module:
    from peft import LoraConfig, get_peft_model  # slow to import, and only needed here

    head = model.get_output_embeddings()  # type: ignore[operator]
    linear = lora_layers(model, config)
    names = head_names(model) if head is None else set()
    drawn = [parameter for name, parameter in model.named_parameters() if name in names]
    if any(m is head for m in linear.values()):
        _untie(model, head, config)
    transposed = {isinstance(m, Conv1D) for m in linear.values()}
    lora = LoraConfig(
        r=config.lora_rank,
        lora_alpha=config.lora_alpha,
        target_modules=list(linear),
        fan_in_fan_out=transposed == {True},
        lora_dropout=0.0,
    )
    if not hasattr(type(model), "is_gradient_checkpointing"):  # peft would have gradients go beyond adapters, in vain
        model.is_gradient_checkpointing = False  # type: ignore[assignment]
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*is_gradient_checkpointing", category=FutureWarning)  # peft's use
        warnings.filterwarnings("ignore", message="fan_in_fan_out is set to")  # both kinds of layers: peft sorts it out
        torch.manual_seed(seed)
        adapted = get_peft_model(model, lora)
    widen(adapted, drawn)
    for parameter in drawn:
        parameter.requires_grad_(True)
    return adapted


def _untie(model: nn.Module, head: nn.Module, config: ModelConfig) -> None:
    """Gives the output layer a matrix of its own: an adapter that is merged into it would change the embedding too."""
    if not any(m is not head and getattr(m, "weight", None) is head.weight for m in model.modules()):
        return
    from transformers import PreTrainedModel  # here, as it costs 2.5 s, which drivers that build no network are spared

    if not isinstance(model, PreTrainedModel):
        remedy = "the output layer is one with the embedding: set model.tie_embeddings: false, or leave it out"
        raise InputError("model.lora_targets", config.lora_targets, remedy)
    head.weight = nn.Parameter(head.get_parameter("weight").detach().clone(), requires_grad=False)
    for part in {id(part): part for part in (model.config, model.config.get_text_config())}.values():
        part.tie_word_embeddings = False
