"""The trainable part of a network as one vector: what is summed, noised and released.

    >>> import torch
    >>> from uedp_ray.models.parameters import FlatParameters
    >>> model = torch.nn.Linear(3, 2)
    >>> params = FlatParameters(model)
    >>> params.names, params.num
    (('bias', 'weight'), 8)
    >>> params.set(torch.zeros(params.num))
    >>> step = torch.arange(8.0)    # (P,)
    >>> params.set(params.get() - 0.5 * step)
    >>> model.bias.tolist(), tuple(params.split(step)["weight"].shape)
    ([0.0, -0.5], (2, 3))

Names, shapes and their order are public. Shape legend: P flattened trainable parameters.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn


class FlatParameters:
    """The parameters with ``requires_grad``, in the order of their names; a tied one appears once.

    ``names`` and ``shapes`` are fixed here: call ``select_trainable`` first. float32, or float64 if a parameter is.
    """

    def __init__(self, model: nn.Module):
        named = sorted((name, p) for name, p in model.named_parameters() if p.requires_grad)
        self.names = tuple(name for name, _ in named)
        self.tensors = tuple(p for _, p in named)
        self.shapes = tuple(p.shape for p in self.tensors)
        self._sizes = [math.prod(shape) for shape in self.shapes]
        self.num = sum(self._sizes)

    @torch.no_grad()
    def get(self) -> Tensor:
        """(P,) copy of the current values."""
        pieces = [p.to(torch.promote_types(p.dtype, torch.float32)).flatten() for p in self.tensors]
        return torch.cat(pieces)

    @torch.no_grad()
    def set(self, vector: Tensor) -> None:
        """Overwrites the parameters with ``vector`` (P,), keeping their types and devices."""
        for parameter, value in zip(self.tensors, self._pieces(vector), strict=True):
            parameter.copy_(value)

    def gradient(self, loss: Tensor) -> Tensor:
        """(P,) gradient of a number; zeros for what it does not depend on."""
        found = torch.autograd.grad(loss, self.tensors, allow_unused=True, materialize_grads=True)
        return torch.cat([g.to(torch.promote_types(g.dtype, torch.float32)).flatten() for g in found])

    def split(self, vector: Tensor) -> dict[str, Tensor]:
        """Views of ``vector`` (P,) under each parameter's name, in its shape."""
        return dict(zip(self.names, self._pieces(vector), strict=True))

    def _pieces(self, vector: Tensor) -> list[Tensor]:
        if vector.shape != (self.num,):
            raise ValueError(f"a vector of shape ({self.num},) is needed, got {tuple(vector.shape)}")
        return [v.view(shape) for v, shape in zip(vector.split(self._sizes), self.shapes, strict=True)]
