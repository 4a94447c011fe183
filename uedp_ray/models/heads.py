"""What a network ends in: the class of transformers for each head, and which parameters are the head's.

    >>> from uedp_ray.config import ModelConfig
    >>> from uedp_ray.models.build import build_model
    >>> from uedp_ray.models.heads import head_names, of_body
    >>> from uedp_ray.tasks.base import Head
    >>> config = ModelConfig(max_length=8, num_layers=1, hidden_size=8, num_heads=2)
    >>> model = build_model(config, vocab_size=50, bos_id=0, eos_id=0, seed=0, head=Head("token-classification", 3))
    >>> sorted(head_names(model))
    ['classifier.bias', 'classifier.weight']
    >>> of_body(model, "transformer.wte.weight")
    True

A network that was trained to predict words is given another head for another task: what the two have in common is kept, and
the new head is drawn. All arguments are public.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from transformers import (
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
)

from uedp_ray.models.architecture import Tokens
from uedp_ray.tasks.base import Head, both_ways

CLASSES: Mapping[str, Any] = {
    "causal-lm": AutoModelForCausalLM,
    "masked-lm": AutoModelForMaskedLM,
    "sequence-classification": AutoModelForSequenceClassification,
    "token-classification": AutoModelForTokenClassification,
}
_ENDINGS = {
    "ForMaskedLM": "masked-lm",
    "ForSequenceClassification": "sequence-classification",
    "ForTokenClassification": "token-classification",
}


def set_head(hub: Any, tokens: Tokens, head: Head) -> None:
    """Writes into a transformers configuration what a network with this head needs."""
    if not head.predicts_words:
        hub.num_labels = head.num_labels
        if hub.get_text_config().pad_token_id is None:  # by which a causal classifier finds the last token
            hub.get_text_config().pad_token_id = tokens.pad_id
        for name in ("classifier_dropout", "summary_first_dropout"):
            if hasattr(hub, name):
                setattr(hub, name, 0.0)


def from_settings(hub: Any, tokens: Tokens, head: Head) -> nn.Module:
    """A network of transformers with random values."""
    set_head(hub, tokens, head)
    model: nn.Module = CLASSES[head.kind].from_config(hub, attn_implementation="sdpa", dtype=torch.float32)
    return model


def saved_kind(hub: Any) -> str:
    """The kind of head that a saved network of transformers has, by its settings."""
    name = next(iter(getattr(hub, "architectures", None) or ()), "")
    known = next((kind for ending, kind in _ENDINGS.items() if name.endswith(ending)), None)
    return known or ("masked-lm" if both_ways(hub) else "causal-lm")


def head_names(model: nn.Module) -> set[str]:
    """Names of the parameters of a network's head: its output layer, and what pools a sentence for it. An output layer that
    is tied to the embedding is the embedding."""
    output = model.get_output_embeddings()  # type: ignore[operator]
    if output is None:
        return {name for name, _ in model.named_parameters() if not of_body(model, name)}
    chosen = {id(parameter) for parameter in output.parameters()}
    return {name for name, parameter in model.named_parameters() if id(parameter) in chosen}


def of_body(model: nn.Module, name: str) -> bool:
    """Whether a parameter or buffer belongs to what networks with different heads have in common."""
    prefix = getattr(model, "base_model_prefix", "")
    if not prefix:
        return not name.startswith("decoder.")
    return name.startswith(f"{prefix}.") and ".pooler." not in name


def taken_over(model: nn.Module, start: nn.Module) -> set[str] | None:
    """Names of what ``model`` takes over from ``start``; None if the two do not fit. A network that predicted words may lack
    the head of one that does not."""
    ours, theirs = ({name: tensor.shape for name, tensor in network.state_dict().items()} for network in (model, start))
    if ours == theirs:
        return set(ours)
    body = {name for name in ours if of_body(model, name)}
    known = start.get_output_embeddings() is not None and model.get_output_embeddings() is None  # type: ignore[operator]
    fitting = known and body and all(theirs.get(name) == ours[name] for name in body)
    return body if fitting else None
