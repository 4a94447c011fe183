"""Gradient checkpointing: a block's activations are not kept from the forward pass, but computed again in the backward pass.

    >>> import torch
    >>> from uedp_ray.config import ModelConfig
    >>> from uedp_ray.models.build import build_model
    >>> from uedp_ray.models.recomputed import recompute_blocks, within
    >>> model = build_model(ModelConfig(max_length=8, num_layers=2), vocab_size=50, bos_id=0, eos_id=0, seed=0)
    >>> recompute_blocks(model)
    >>> blocks = within(model)
    >>> model.transformer.h[1].mlp.c_fc in blocks, model.lm_head in blocks
    (True, False)

Memory for activations is then that of one block, and of the inputs of all; a pass takes a third longer. The same operations
of the same shapes are done again, with the same dropout masks: no bit changes. Source: Chen et al. 2016 ("Training Deep Nets
with Sublinear Memory Cost"), through torch's non-reentrant ``checkpoint``, which leaves the graph of autograd as it is.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

from torch import nn
from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop

from uedp_ray.errors import InputError
from uedp_ray.models.masks import MaskedRows


def _recomputed(function: Callable[..., Any], *args: Any) -> Any:
    """Calls a block's ``forward``. It is computed again to its end: ``recorder`` waits for every module in it."""
    with set_checkpoint_early_stop(False):
        return checkpoint(function, *args, use_reentrant=False, context_fn=lambda: (nullcontext(), MaskedRows.again()))


def recompute_blocks(model: nn.Module) -> None:
    """Has the blocks of a network of transformers computed again. What is within them stays in the mode that it is in.

    Raises: InputError for a network without such blocks.
    """
    from transformers.modeling_layers import GradientCheckpointingLayer  # here, as it costs 2.5 s (``trainable``)

    blocks = [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]
    if not blocks:
        remedy = "this network has no blocks that can be computed again: set false"
        raise InputError("training.gradient_checkpointing", True, remedy)
    for block in blocks:
        block.gradient_checkpointing, block.training = True, True
        block._gradient_checkpointing_func = _recomputed


def within(model: nn.Module) -> set[nn.Module]:
    """Modules that a backward pass calls again."""
    blocks = (each for each in model.modules() if vars(each).get("_gradient_checkpointing_func") is _recomputed)
    return {each for block in blocks if block.training for each in block.modules()}
