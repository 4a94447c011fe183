"""Builds, saves and loads networks.

    model = build_model(ModelConfig(), vocab_size=10_000, eos_id=0, seed=0)
    save_model(model, "run/model")
    model = load_model("run/model")

All arguments are public; a saved model is as private as the training that made it.
"""

from __future__ import annotations

import copy
import json
import warnings
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, GPT2Config
from transformers.utils import logging as transformers_logging

from uedp_ray.config import ModelConfig
from uedp_ray.errors import InputError
from uedp_ray.models.awd_lstm import AWDLSTM, AWDLSTMConfig

transformers_logging.disable_progress_bar()  # our own progress line is the only one

_DROPOUTS = ("dropout_embedding", "dropout_input", "dropout_hidden", "dropout_weight", "dropout_output")
_USED_BY_GPT2 = ("dropout_embedding", "dropout_hidden", "dropout_output")


def build_model(config: ModelConfig, *, vocab_size: int, eos_id: int, seed: int) -> nn.Module:
    """A float32 causal language model on the CPU, all parameters trainable, in evaluation mode.

    ``gpt2``: dropout_embedding, dropout_hidden (attention) and dropout_output (residual) apply. ``awd_lstm``: all five.
    ``pretrained``: none, whatever the checkpoint says. ``config.warm_start`` replaces the initial values.

    Args:
      vocab_size: tokens of the vocabulary in use; a pretrained network may have more.
      seed: initial values; the global generator is left alone.
    Raises:
      InputError: a folder cannot be loaded or does not fit.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = _build(config, vocab_size, eos_id)
    if config.warm_start:
        try:
            model.load_state_dict(load_model(config.warm_start).state_dict())
        except RuntimeError:
            remedy = "its shapes differ from this model's: give the model section it was pre-trained with"
            raise InputError("model.warm_start", config.warm_start, remedy) from None
    return model.eval()


def _build(config: ModelConfig, vocab_size: int, eos_id: int) -> nn.Module:
    applied = {"gpt2": _USED_BY_GPT2, "awd_lstm": _DROPOUTS, "pretrained": ()}[config.architecture]
    for name in _DROPOUTS:
        if getattr(config, name) and name not in applied:
            warnings.warn(f"model.{name} is ignored by {config.architecture}", stacklevel=3)
    if config.architecture == "pretrained":
        return _pretrained(config, vocab_size)
    if config.architecture == "awd_lstm":
        shared = ("embedding_size", "hidden_size", "num_layers", "tie_embeddings", *_DROPOUTS)
        settings = {name: getattr(config, name) for name in shared}
        if config.init_range is not None:
            settings["init_range"] = config.init_range
        return AWDLSTM(AWDLSTMConfig(vocab_size=vocab_size, **settings))
    gpt2 = GPT2Config(
        vocab_size=vocab_size,
        n_positions=config.max_length,
        n_embd=config.hidden_size,
        n_layer=config.num_layers,
        n_head=config.num_heads,
        initializer_range=config.init_range or 0.02,
        embd_pdrop=config.dropout_embedding,
        attn_pdrop=config.dropout_hidden,
        resid_pdrop=config.dropout_output,
        tie_word_embeddings=config.tie_embeddings,
        bos_token_id=eos_id,
        eos_token_id=eos_id,
    )
    return AutoModelForCausalLM.from_config(gpt2, attn_implementation="sdpa", dtype=torch.float32)


def _pretrained(config: ModelConfig, vocab_size: int) -> nn.Module:
    try:
        hub: Any = AutoConfig.from_pretrained(config.path)
        for name, value in vars(hub).items():
            if isinstance(value, float) and name.endswith(("dropout", "pdrop")):
                setattr(hub, name, 0.0)
        model = AutoModelForCausalLM.from_pretrained(
            config.path, config=hub, dtype=torch.float32, attn_implementation="sdpa"
        )
    except (OSError, ValueError, KeyError) as error:
        remedy = (
            "not a causal language model that transformers can load: give a folder with config.json and safetensors"
        )
        raise InputError("model.path", config.path, f"{remedy} ({type(error).__name__})") from error
    num_rows = model.get_input_embeddings().num_embeddings
    if num_rows < vocab_size:
        remedy = f"it knows {num_rows} tokens, the vocabulary has {vocab_size}: use the tokenizer it came with"
        raise InputError("model.path", config.path, remedy)
    longest = getattr(model.config, "max_position_embeddings", config.max_length)
    if longest < config.max_length:
        raise InputError("model.max_length", config.max_length, f"this model reads {longest} tokens at most")
    return model


def save_model(model: nn.Module, path: str | Path) -> None:
    """Writes ``config.json`` and safetensors to the folder ``path``; LoRA is merged into a copy first.

    A transformers model can be read back by ``AutoModelForCausalLM.from_pretrained``, any by ``load_model``.
    """
    if hasattr(model, "merge_and_unload"):
        model = copy.deepcopy(model).merge_and_unload()  # type: ignore[operator]
    folder = Path(path)
    if isinstance(model, AWDLSTM):
        folder.mkdir(parents=True, exist_ok=True)
        safetensors.torch.save_model(model, str(folder / "model.safetensors"))
        (folder / "config.json").write_text(json.dumps(model.config_dict(), indent=2))
    else:
        model.save_pretrained(path)  # type: ignore[operator]
    for weights in folder.glob("*.safetensors"):  # which safetensors writes for the owner alone
        weights.chmod((folder / "config.json").stat().st_mode)


def load_model(path: str | Path) -> nn.Module:
    """Reads what ``save_model`` wrote: float32, on the CPU, in evaluation mode. Raises InputError if it cannot."""
    try:
        settings = json.loads((Path(path) / "config.json").read_text())
        if settings.pop("model_type") != "awd_lstm":
            return AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, attn_implementation="sdpa")
        model = AWDLSTM(AWDLSTMConfig(**settings))
        safetensors.torch.load_model(model, str(Path(path) / "model.safetensors"))
    except (OSError, ValueError, KeyError) as error:
        raise InputError("model", str(path), f"no model can be read here ({type(error).__name__})") from error
    return model.eval()
