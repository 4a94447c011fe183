"""Frozen matrices held in bfloat16: half the memory of a network of which only adapters are trained.

    >>> import torch
    >>> from uedp_ray.config import ModelConfig
    >>> from uedp_ray.models.build import build_model
    >>> config = ModelConfig(max_length=8, num_layers=1, hidden_size=8, num_heads=2, trainable="lora", base_dtype="bf16")
    >>> model = build_model(config, vocab_size=50, bos_id=0, eos_id=0, seed=0)
    >>> model.transformer.h[0].mlp.c_fc.weight.dtype, model.transformer.h[0].ln_1.weight.dtype
    (torch.bfloat16, torch.float32)
    >>> model(input_ids=torch.tensor([[1, 2, 3]])).logits.dtype
    torch.float32

Every value of the network is rounded to bfloat16, in which most large ones are published; matrices of linear layers and
embeddings are also kept in it. What passes compute in is as without: under autocast a product rounds its float32 matrix to
bfloat16 anyway, so that of rounded values both give the same bits; without, a matrix is widened for each product and let go.
Layers of kinds of their own (experts of a mixture, scaled embeddings) keep float32. All arguments are public.

Shape legend: N rows of a product, J inputs, I outputs.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from transformers.pytorch_utils import Conv1D

from uedp_ray.config import ModelConfig


class _Widened(torch.autograd.Function):
    """(N, J) times a narrower (J, I), plus (I,): the matrix is widened for the product, and again for its gradient, as what
    is kept from one to the other would be a float32 copy of the network."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, matrix: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(matrix)
        wide = matrix.to(rows.dtype)
        return rows @ wide if bias is None else torch.addmm(bias, rows, wide)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor, None, None]:
        (matrix,) = ctx.saved_tensors
        return slope @ matrix.to(slope.dtype).mT, None, None


def _product(x: Tensor, matrix: Tensor, bias: Tensor | None) -> Tensor:
    return _Widened.apply(x.reshape(-1, x.shape[-1]), matrix, bias).unflatten(0, x.shape[:-1])


class HeldLinear(nn.Linear):
    """A linear layer whose matrix is narrower than its input, and frozen."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        if torch.is_autocast_enabled(input.device.type):
            return super().forward(input)
        return _product(input, self.weight.mT, self.bias)


class HeldConv1D(Conv1D):
    """The same of GPT-2's layers, which store (inputs, outputs)."""

    def forward(self, x: Tensor) -> Tensor:
        if torch.is_autocast_enabled(x.device.type):
            return super().forward(x)
        return _product(x, self.weight, self.bias)


class HeldEmbedding(nn.Embedding):
    """An embedding whose rows are widened as they are looked up."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        rows = super().forward(input)
        return rows.to(torch.promote_types(rows.dtype, torch.float32))


_HELD: dict[type[nn.Module], type[nn.Module]] = {
    nn.Linear: HeldLinear,
    Conv1D: HeldConv1D,
    nn.Embedding: HeldEmbedding,
}


def read_in(config: ModelConfig) -> torch.dtype:
    """What weights are read in, so that a large network is at no time in memory as float32 if it is held in less."""
    return torch.bfloat16 if config.base_dtype == "bf16" else torch.float32


@torch.no_grad()
def hold(model: nn.Module) -> nn.Module:
    """Rounds all values to bfloat16, in place, and holds in it the matrices that layers of known kinds own alone."""
    owners: dict[int, list[tuple[nn.Module, str]]] = defaultdict(list)
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            owners[id(parameter)].append((module, name))
    for parameter in model.parameters():
        of = owners[id(parameter)]
        held = parameter.dim() == 2 and all(type(module) in _HELD and name == "weight" for module, name in of)
        rounded = parameter.data.to(torch.bfloat16)
        parameter.data = rounded if held else rounded.float()
        for module, _ in of if held else ():
            module.__class__ = _HELD[type(module)]
    for buffer in model.buffers():
        if buffer.is_floating_point():
            buffer.data = buffer.data.float()
    return model


@torch.no_grad()
def widen(model: nn.Module, parameters: Collection[nn.Parameter]) -> None:
    """Gives these, which are to be trained, float32, and their layers the kinds that they had."""
    chosen = set(map(id, parameters))
    kinds = {held: kind for kind, held in _HELD.items()}
    for module in model.modules():
        if type(module) in kinds and any(id(each) in chosen for each in module.parameters(recurse=False)):
            module.__class__ = kinds[type(module)]
    for parameter in parameters:
        parameter.data = parameter.data.float()
