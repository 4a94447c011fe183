"""Losses of words through an output layer that is not trained, a few positions at a time: no logits of whole sentences.

    >>> import torch
    >>> from torch import nn
    >>> from uedp_ray.tasks.chunked import chunked_cross_entropy
    >>> from uedp_ray.tasks.loss import cross_entropy
    >>> hidden, targets = torch.randn(2, 3, 8, requires_grad=True), torch.tensor([[1, 2, 3], [4, -100, -100]])
    >>> head = nn.Linear(8, 50).requires_grad_(False)
    >>> losses = chunked_cross_entropy(hidden, head, targets, numbers=100)    # logits of one position of the two sentences
    >>> torch.allclose(losses, cross_entropy(head(hidden), targets), atol=1e-6)
    True
    >>> (gradient,) = torch.autograd.grad(losses.sum(), hidden)
    >>> tuple(gradient.shape)
    (2, 3, 8)

Of 152,064 words, logits of 1,024 positions are 0.6 GB of float32, and a loss has several tensors of their size. Only their
product with the output layer's matrix is needed for the gradient, and up to a factor for each position, which the backward
pass brings, it is known in the forward pass: so logits are let go at once, and nothing is computed twice.

Positions are divided by the shape of a batch alone, and all that is computed of a part are products and, row by row, sums
and maxima: other functions, of which CPU kernels compute the ends of a tensor by other code, are of whole tensors. So a
sentence's loss has the bits that a batch of its shape gives it. Source: the idea of Hsu et al. 2024 ("Liger Kernel"), fused
linear cross-entropy. Hidden states, logits and targets are private.

Shape legend: B sentences, T positions, D width, V vocabulary.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from uedp_ray.tasks.base import IGNORED, Batch, forward_logits
from uedp_ray.tasks.loss import cross_entropy

_NUMBERS = {"cpu": 1 << 22, "cuda": 1 << 27}
"""Logits at once."""
_ONLY_A_PRODUCT = frozenset(
    ["gpt2", "gpt_neox", "llama", "mistral", "qwen2", "qwen3", "gemma", "phi3", "olmo2", "smollm3"]
)
"""Architectures of transformers (``model_type``) whose logits are what the output layer gives."""


def word_losses(model: nn.Module, batch: Batch) -> Tensor:
    """(B, T) losses in nats, float32 or wider, of a network that predicts words; 0 where ``IGNORED``."""
    head = _head_of(model)
    if head is None:
        return cross_entropy(forward_logits(model, batch), batch.targets)
    read: list[Tensor] = []
    said: list[Tensor] = []

    def nothing(_: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        read.append(inputs[0])
        return (inputs[0][:, :0],)

    hooks = (
        head.register_forward_pre_hook(nothing),
        head.register_forward_hook(lambda _, inputs, output: said.append(output)),
    )
    try:
        logits = forward_logits(model, batch)
    finally:
        for hook in hooks:
            hook.remove()
    if len(read) != 1 or logits is not said[0]:  # somebody's network of this name does more with them
        return cross_entropy(forward_logits(model, batch), batch.targets)
    return chunked_cross_entropy(read[0], head, batch.targets)


def _head_of(model: nn.Module) -> nn.Linear | None:
    """The output layer, if its logits need not be there as a whole."""
    if getattr(getattr(model, "config", None), "model_type", None) not in _ONLY_A_PRODUCT:
        return None
    head = model.get_output_embeddings()  # type: ignore[operator]
    frozen = not torch.is_grad_enabled() or not any(each.requires_grad for each in head.parameters())
    return head if isinstance(head, nn.Linear) and frozen else None


def chunked_cross_entropy(hidden: Tensor, head: nn.Linear, targets: Tensor, *, numbers: int | None = None) -> Tensor:
    """(B, T, D) hidden states, and (B, T) targets -> (B, T) losses of ``head``'s logits; 0 where ``IGNORED``.

    ``numbers``: logits at once; at least those of one position of each sentence. The layer's parameters get no gradient.
    """
    if numbers is None:
        numbers = _NUMBERS.get(hidden.device.type, _NUMBERS["cpu"])
    losses: Tensor = _Chunked.apply(hidden, head.weight, head.bias, targets, numbers)
    return losses


class _Chunked(torch.autograd.Function):
    """``cross_entropy`` of ``F.linear``, but for rounding."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, numbers: int) -> Tensor:
        device = hidden.device.type
        dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else hidden.dtype
        matrix, shift = weight.to(dtype), None if bias is None else bias.to(dtype)
        at = targets.clamp_min(0)[..., None]
        wide = torch.promote_types(dtype, torch.float32)
        largest, likeliest, chosen = (torch.empty(targets.shape, dtype=wide, device=hidden.device) for _ in range(3))
        gradient = torch.empty(hidden.shape, dtype=dtype, device=hidden.device) if ctx.needs_input_grad[0] else None
        step = max(1, numbers // max(1, len(hidden) * len(weight)))
        with torch.autocast(device, enabled=False):
            for first in range(0, targets.shape[1], step):
                part = slice(first, first + step)
                rows = hidden[:, part].to(dtype)
                logits = F.linear(rows.flatten(0, 1), matrix, shift).unflatten(0, rows.shape[:2]).to(wide)
                probabilities = logits.softmax(-1)
                largest[:, part], likeliest[:, part] = logits.amax(-1), probabilities.amax(-1)
                chosen[:, part] = logits.gather(-1, at[:, part])[..., 0]
                if gradient is not None:
                    right = probabilities.gather(-1, at[:, part])
                    slopes = probabilities.scatter_(-1, at[:, part], right - 1).to(dtype)
                    gradient[:, part] = (slopes.flatten(0, 1) @ matrix).unflatten(0, rows.shape[:2])
        ctx.save_for_backward(targets, gradient)
        return torch.where(targets == IGNORED, 0, largest - likeliest.log() - chosen)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, None, None, None, None]:
        targets, gradient = ctx.saved_tensors
        slope = torch.where(targets == IGNORED, 0, slope)
        return (gradient * slope[..., None]).to(gradient.dtype), None, None, None, None
