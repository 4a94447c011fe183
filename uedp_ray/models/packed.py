"""Sentences that share a row, so that no position of a pass is padding.

    >>> import numpy as np
    >>> import torch
    >>> from uedp_ray.config import ModelConfig
    >>> from uedp_ray.models.build import build_model
    >>> from uedp_ray.models.packed import pack_attention
    >>> from uedp_ray.tasks.next_word import NextWord
    >>> model = build_model(ModelConfig(max_length=8, num_layers=2), vocab_size=50, bos_id=0, eos_id=0, seed=0)
    >>> pack_attention(model, longest=8)
    True
    >>> task = NextWord(bos_id=0, eos_id=0, pad_id=0, max_length=8)
    >>> batch = task.collate([np.array([5, 7, 9, 2, 4, 3]), np.array([4]), np.array([6, 3])])
    >>> tuple(batch.input_ids.shape), tuple(batch.packed().input_ids.shape)
    ((3, 7), (1, 12))
    >>> losses, packed = task.losses(model, batch), task.losses(model, batch.packed())    # (3,)
    >>> torch.allclose(losses, packed, atol=1e-6)
    True

All but attention is computed position by position. For attention alone positions go back to a row for each sentence, where
none sees another sentence's, and its output is packed again. So a product has fewer rows, and nothing else of a sentence's
loss but its rounding changes: that may depend on which sentences share the row, so these must be one user's.

Source: padding-free training as in transformers (``DataCollatorWithFlattening``), which needs FlashAttention on a GPU.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from uedp_ray.tasks.base import Packing

_NAME = "uedp_ray_packed"
"""Of the attention function, in transformers."""
_KNOWN = frozenset(
    [
        *("gpt2", "gpt_neox", "llama", "mistral", "qwen2", "qwen3", "gemma", "phi3", "olmo2", "smollm3"),
        *("bert", "roberta", "distilbert", "electra"),
    ]
)
"""Networks of transformers (``model_type``) for which a test says that packed losses and gradients are the same."""


def pack_attention(model: nn.Module, longest: int) -> bool:
    """Has a network take packed batches (``Batch.packed``) as well as others; returns False for one that cannot.

    ``longest``: positions of the longest sentence. A layer that looks back less far needs a mask, and is not packed; nor is
    a network that is causal by its name, and set to look ahead.
    """
    hub: Any = getattr(model, "config", None)
    if getattr(hub, "model_type", None) not in _KNOWN or (getattr(hub, "sliding_window", None) or longest) < longest:
        return False
    if getattr(hub, "is_causal", True) is False or getattr(hub, "use_bidirectional_attention", None):
        return False
    if hub._attn_implementation == "sdpa":
        from transformers import AttentionInterface  # here, as it costs 2.5 s (``trainable``)

        AttentionInterface.register(_NAME, _attention)
        model.set_attn_implementation(_NAME)  # type: ignore[operator]
    return bool(hub._attn_implementation == _NAME)


def _attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    packing: Packing | None = None,
    **settings: Any,
) -> tuple[Tensor, None]:
    """As that of transformers by the name of ``sdpa``; where there is a ``packing``, of heads (1, H, N, D).

    transformers makes no masks for attention that it does not know, and hands on those that it is given.
    """
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    if packing is None:
        return sdpa_attention_forward(module, query, key, value, attention_mask, **settings)
    rows = [packing.spread(heads[0].transpose(0, 1)).transpose(1, 2) for heads in (query, key, value)]
    seen = None if getattr(module, "is_causal", True) else packing.filled[:, None, None]
    output, _ = sdpa_attention_forward(module, *rows, seen, **settings)  # (B, T, H, D)
    return packing.gather(output)[None], None
