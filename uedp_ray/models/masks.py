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
must be given each sentence alone if there is dropout. One that keeps to ``PerSentenceMasks`` need not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn


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
