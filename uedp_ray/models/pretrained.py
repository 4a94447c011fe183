"""A pretrained causal language model of transformers, from a folder or the hub, with the tokens it knows.

    >>> from tempfile import TemporaryDirectory
    >>> from uedp_ray.config import ModelConfig
    >>> from uedp_ray.models.build import build_model
    >>> from uedp_ray.models.saved import save_model
    >>> tokens = {"vocab_size": 50, "bos_id": 0, "eos_id": 0, "seed": 0}
    >>> folder = TemporaryDirectory()
    >>> tiny = ModelConfig(max_length=8, num_layers=1, hidden_size=8, num_heads=2)
    >>> save_model(build_model(tiny, **tokens), folder.name)
    >>> config = ModelConfig(architecture="pretrained", path=folder.name, max_length=8)
    >>> build_model(config, **tokens).num_parameters()
    1352
    >>> build_model(config, **tokens | {"vocab_size": 40}, replace_embeddings=True).num_parameters()    # other words
    1272
    >>> build_model(ModelConfig(architecture="pretrained", path=folder.name, max_length=16), **tokens)
    Traceback (most recent call last):
        ...
    uedp_ray.errors.InputError: model.max_length = 16: this model reads at most 8 tokens
    >>> folder.cleanup()

No dropout applies, whatever its configuration says.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import AutoConfig

from uedp_ray.config import ModelConfig
from uedp_ray.errors import InputError
from uedp_ray.models.architecture import Architecture, Tokens
from uedp_ray.models.heads import CLASSES, set_head
from uedp_ray.models.held import read_in
from uedp_ray.models.saved import (
    ADAPTER,
    MERGE,
    check_files,
    check_filled,
    longest_by,
    said,
    said_by_transformers,
    unread,
)
from uedp_ray.tasks.base import Head

_WEIGHTS = ("*.safetensors", "*.bin")


def _build(config: ModelConfig, tokens: Tokens, head: Head) -> nn.Module:
    hub = pretrained_config(config)
    for name, value in vars(hub).items():
        if isinstance(value, float) and name.endswith(("dropout", "pdrop")):
            setattr(hub, name, 0.0)
    set_head(hub, tokens, head)
    with said_by_transformers("model.path", config.path):  # the architecture's own attention: not all have sdpa
        model = CLASSES[head.kind].from_pretrained(
            config.path, config=hub, dtype=read_in(config), trust_remote_code=False
        )
    if tokens.replaced:
        _replace_embeddings(model, tokens)
    check_fits(config, model.get_input_embeddings().num_embeddings, tokens.size)
    _check_saves(model, config.path)
    return model


def pretrained_config(config: ModelConfig) -> Any:
    """The transformers configuration of a pretrained model; no weights are read.

    Raises: InputError if there is none, or the model reads fewer tokens than ``model.max_length``.
    """
    hub = settings_of(config.path)
    longest = longest_by(hub) or config.max_length
    if longest < config.max_length:
        raise InputError("model.max_length", config.max_length, f"this model reads at most {longest} tokens")
    return hub


def settings_of(path: str) -> Any:
    """The transformers configuration of a model by its hub name, or in a folder, whose files are checked to be a model's.

    Raises: InputError naming ``model.path``.
    """
    folder, stored = Path(path), []
    if folder.is_dir():
        with unread("model.path", folder):
            stored = check_files(folder)
    with said_by_transformers("model.path", path):
        hub = AutoConfig.from_pretrained(path, trust_remote_code=False)
    if folder.is_dir() and not any(file for pattern in _WEIGHTS for file in folder.glob(pattern)):
        raise InputError(
            "model.path", path, "holds no weights (*.safetensors): add those that belong to its config.json"
        )
    with unread("model.path", folder):
        check_filled(folder, hub, stored)
    return hub


def _check_saves(model: Any, path: str) -> None:
    """Raises InputError if the model cannot be saved, before it is trained in vain. Writes all but weights."""
    if getattr(model, "_hf_peft_config_loaded", False):  # from a hub name: a folder's files were checked
        raise InputError("model.path", path, f"{ADAPTER} {MERGE}")
    try:
        with tempfile.TemporaryDirectory() as folder:
            model.save_pretrained(folder, state_dict={})
    except (OSError, MemoryError):
        raise
    except Exception as error:
        remedy = f"transformers can load this model but not save it ({said(error)}): fix its settings"
        raise InputError("model.path", path, remedy) from error


def check_fits(config: ModelConfig, num_rows: int, vocab_size: int) -> None:
    """Raises InputError if a pretrained model has no embedding for some token of the vocabulary."""
    if num_rows < vocab_size:
        remedy = f"it knows {num_rows} tokens, the vocabulary has {vocab_size}: use the tokenizer it came with"
        raise InputError("model.path", config.path, remedy)


def _replace_embeddings(model: Any, tokens: Tokens) -> None:
    """Draws embeddings for the tokens of another vocabulary, as the model's were drawn before it was trained."""
    model.resize_token_embeddings(tokens.size, mean_resizing=False)
    std = getattr(model.config, "initializer_range", 0.02)
    tables = [layer.weight for layer in (model.get_input_embeddings(), model.get_output_embeddings()) if layer]
    with torch.no_grad():
        for table in {id(table): table for table in tables}.values():  # one, if they are tied
            table.normal_(0.0, std)
    for settings in (model.config, model.generation_config):
        settings.bos_token_id, settings.eos_token_id = tokens.bos_id, tokens.eos_id
        settings.pad_token_id = None


ARCHITECTURE = Architecture(
    build=_build,
    heads=frozenset(CLASSES),
    width=lambda config: int(pretrained_config(config).get_text_config().hidden_size),
    why_ignored="a pretrained model has its own shape",
)
