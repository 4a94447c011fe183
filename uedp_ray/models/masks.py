"""Dropout masks that belong to one sentence each, whichever others share its pass.

    >>> import torch
    >>> from uedp_ray.models.awd_lstm import AWDLSTM, AWDLSTMConfig
    >>> from uedp_ray.models.masks import MaskSeeds
    >>> network = AWDLSTM(AWDLSTMConfig(vocab_size=50, embedding_size=64, num_layers=1, dropout_input=0.5))
    >>> ids = torch.tensor([[1, 2, 3], [4, 5, 6]])
    >>> network.mask_seeds = MaskSeeds(weight=1, sentences=[4, 5])    # of a batch of two
    >>> both = network(ids).logits
    >>> network.mask_seeds = MaskSeeds(weight=1, sentences=[5])
    >>> torch.allclose(network(ids[1:]).logits[0], both[1], atol=1e-6)    # the same mask, beside another or alone
    True
    >>> network.mask_seeds = None    # drawn from torch's default generator
    >>> torch.allclose(network(ids).logits, both, atol=1e-6)
    False

A network that draws its masks from torch's default generator gives a sentence different masks beside different others, so it
must be given each sentence alone if there is dropout. One that keeps to ``PerSentenceMasks`` need not. Nor need one all of
whose dropout is torch's own, of tensors that have a row for each sentence, if it is called within ``MaskedRows``:

    >>> from torch import nn
    >>> from uedp_ray.models.masks import MaskedRows
    >>> dropout, rows = nn.Dropout(0.5), torch.ones(2, 3, 4)
    >>> with MaskedRows(MaskSeeds(weight=1, sentences=[4, 5])):
    ...     both = dropout(rows)
    >>> with MaskedRows(MaskSeeds(weight=1, sentences=[5])):
    ...     torch.equal(dropout(rows[1:])[0], both[1])
    True
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from copy import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode


@dataclass(frozen=True)
class MaskSeeds:
    """Seeds of one pass: one for the DropConnect mask, and one for each of its (B,) sentences."""

    weight: int
    sentences: Sequence[int]


def _mask(shape: tuple[int, ...], prob: float, like: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """0 with probability ``prob``, else 1 / (1 - prob), so that the expectation is 1."""
    device = like.device if generator is None else generator.device
    kept = torch.rand(shape, device=device, generator=generator) >= prob
    return kept.to(like.device, like.dtype) / max(1.0 - prob, 1e-12)


class Masks:
    """The masks of one pass. Seeded ones are drawn on the CPU, so that a GPU sees the same."""

    def __init__(self, seeds: MaskSeeds | None):
        self._weight = None if seeds is None else torch.Generator().manual_seed(seeds.weight)
        self._sentences = [] if seeds is None else [torch.Generator().manual_seed(seed) for seed in seeds.sentences]

    def again(self) -> Masks:
        """Draws what this one will draw."""
        found = copy(self)
        found._sentences = [each.clone_state() for each in self._sentences]
        found._weight = None if self._weight is None else self._weight.clone_state()
        return found

    def weight(self, shape: tuple[int, ...], prob: float, like: Tensor) -> Tensor:
        return _mask(shape, prob, like, self._weight)

    def sentences(self, size: int, prob: float, like: Tensor) -> Tensor:
        """(B, size): a row for each sentence of ``like`` (B, ...)."""
        if not self._sentences:
            return _mask((len(like), size), prob, like)
        return torch.cat([_mask((1, size), prob, like, generator) for generator in self._sentences])


class PerSentenceMasks(nn.Module):
    """A network whose dropout depends on ``mask_seeds`` alone, if they are given."""

    mask_seeds: MaskSeeds | None = None
    layer_sizes: Sequence[int] = ()
    """Units of layers that take one position at a time (see ``updates.shapes.row_counts``)."""


class MaskedRows(TorchFunctionMode):
    """Within it, ``dropout`` and ``scaled_dot_product_attention`` of ``torch.nn.functional`` draw a mask of its own for each
    row, by the seed of its sentence. A pass must make the same calls whoever is in the batch.

    Raises: ValueError for a tensor that has not a row for each sentence.
    """

    _within: ContextVar[MaskedRows | None] = ContextVar("_within", default=None)

    def __init__(self, seeds: MaskSeeds):
        super().__init__()
        self._masks, self._num = Masks(seeds), len(seeds.sentences)

    def __enter__(self) -> MaskedRows:
        self._outer = self._within.set(self)
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._within.reset(self._outer)

    @classmethod
    def again(cls) -> AbstractContextManager[Any]:
        """Draws once more what is drawn from here on, in whichever thread; nothing, outside of all."""
        here = cls._within.get()
        if here is None:
            return nullcontext()
        again = copy(here)
        again._masks = here._masks.again()
        return again

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        settings = dict(kwargs or {})
        if func is F.dropout:
            return self._dropout(*args, **settings)
        if func is F.scaled_dot_product_attention and settings.get("dropout_p"):
            return self._attention(*args, **settings)
        return func(*args, **settings)

    def _dropout(self, input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:  # noqa: A002
        if not (training and p):
            return input
        if len(input) != self._num:
            raise ValueError(f"dropout of {len(input)} rows in a batch of {self._num} sentences")
        mask = self._masks.sentences(input[0].numel(), p, input).view_as(input)
        return input.mul_(mask) if inplace else input * mask

    def _attention(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Tensor:
        """What torch computes, whose own masks come from one stream."""
        if enable_gqa:
            key, value = (each.repeat_interleave(query.shape[1] // key.shape[1], 1) for each in (key, value))
        weights = query @ key.mT * (1 / math.sqrt(query.shape[-1]) if scale is None else scale)
        if is_causal:
            weights = weights.masked_fill(weights.new_ones(weights.shape[-2:], dtype=torch.bool).triu(1), -math.inf)
        if attn_mask is not None:
            boolean = attn_mask.dtype == torch.bool
            weights = weights.masked_fill(~attn_mask, -math.inf) if boolean else weights + attn_mask
        return self._dropout(weights.softmax(-1).to(value.dtype), dropout_p) @ value
