"""Weighted sums of the gradients of single sentences: exact, in any order, and no longer than their lengths say.

    >>> import numpy as np
    >>> import torch
    >>> from uedp_ray.config import ModelConfig
    >>> from uedp_ray.models.build import build_model
    >>> from uedp_ray.models.gradients import sentence_gradients
    >>> from uedp_ray.models.parameters import FlatParameters
    >>> from uedp_ray.updates.weighted import WeightedSums, measured
    >>> from uedp_ray.tasks.next_word import NextWord
    >>> config = ModelConfig(max_length=8, num_layers=1, hidden_size=32, num_heads=2)
    >>> model = build_model(config, vocab_size=90, bos_id=0, eos_id=0, seed=0)
    >>> params, task = FlatParameters(model), NextWord(bos_id=0, eos_id=0, pad_id=0, max_length=8)
    >>> gradients = sentence_gradients(model, params, task, task.collate([np.array([5, 7, 9]), np.array([4])]))
    >>> batch = measured(gradients, params)
    >>> norms = gradients.norms()
    >>> bool((batch.lengths >= norms).all()), bool((batch.lengths < 1.001 * norms).all())    # (B,) float64
    (True, True)
    >>> sums, unit = WeightedSums(params, torch.device("cpu")), 2.0**-27
    >>> def summed(*rows):
    ...     total = torch.zeros(params.num, dtype=torch.float64)
    ...     sums.add([(batch, x, 1 / float(batch.lengths[x])) for x in rows], total, unit)
    ...     return total
    >>> bool(summed(0).norm() <= 1), torch.equal(summed(0, 1), summed(1) + summed(0))
    (True, True)

Each sentence's weighted gradient is formed in the type of the factors, truncated toward zero to multiples of a unit, and
added as an integer. So a sentence less changes a sum by that sentence's vector, whatever else is in it. Of a large parameter
the vector is formed in pieces that stay in a CPU's cache, for one user after the other: nowhere are there gradients of many
sentences, each as long as the network. What a length covers is proved in docs/accounting.md, "Floating point".

Shape legend: B sentences, T positions, P flattened trainable parameters; of one parameter matrix: I rows, J columns.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from uedp_ray.models.factors import TERMS, Factors
from uedp_ray.models.gradients import SentenceGradients
from uedp_ray.models.parameters import FlatParameters
from uedp_ray.privacy.clipping import wide_norms

_PIECE = {"cpu": 1 << 18, "cuda": 1 << 27}
"""Numbers that are formed at once."""
_BITS = 27
"""A weighted gradient of the largest length has at most 2^27 units in a coordinate, three more than float32 tells apart."""
_MOST = (1 << 31 - _BITS) - 1
"""So many of them fit an int32."""
MOST_SENTENCES = 1 << 53 - _BITS
"""And so many a float64."""
_ALIGNED = 64
"""Bytes. Kernels order their sums by where an operand begins in a cache line."""


def unit_of(length: float) -> float:
    """The power of two in whose multiples vectors of this length, or shorter ones, are summed.

    Raises: ValueError for a length that float32 could not scale to it.
    """
    if not 2.0**-70 < length < 2.0**70:
        raise ValueError(f"length {length:g}: sums need one between 1e-21 and 1e21")
    return math.ldexp(1.0, math.frexp(length)[1] - _BITS)


@dataclass
class Measured:
    """What is kept of a batch's gradients until they are summed: factors, and (B, F) ``formed``, which has the parameters
    ``names`` side by side. ``lengths`` (B,) float64: w / length times a gradient is no longer than w (1 + 1e-6) as
    ``WeightedSums`` adds it; not finite if a gradient is not."""

    kept: dict[str, Factors]
    names: tuple[str, ...]
    formed: Tensor
    lengths: Tensor

    def __iter__(self) -> Iterator[Tensor]:
        """All that is kept, each (B, ...)."""
        yield self.lengths
        yield self.formed
        for each in self.kept.values():
            for entries in (each.left, each.right, each.ids, each.rows):
                yield from entries

    @property
    def num_held(self) -> int:
        """Numbers in memory."""
        return sum(each.numel() for each in self)


@torch.no_grad()
def measured(gradients: SentenceGradients, params: FlatParameters) -> Measured:
    """Forms what is small, and measures all. Rows of one batch are treated alike."""
    kept = {name: each for name, each in gradients.factors.items() if each.worth_keeping}
    names = tuple(name for name in params.names if name in gradients.factors and name not in kept)
    formed = gradients.formed(names)
    squares = wide_norms(formed).square()
    rounded, terms, positions = torch.zeros_like(squares), 1, 1
    for each in kept.values():
        more, of_products = each.squares()
        squares, rounded = squares + more, rounded + of_products
        if each.left:
            terms = max(terms, min(TERMS, max(each.shape)))
            positions = max(positions, each.left[0].shape[1])
    u = torch.finfo(formed.dtype).eps / 2
    squares = torch.where(squares.isfinite(), squares.clamp_min(0.0), math.inf)  # -inf is no length of 0
    lengths = (squares + 2.5 * _gamma(terms + 8, u) * rounded).sqrt()
    return Measured(kept, names, formed, lengths + _gamma(positions + 8, u) * rounded.sqrt())


def _gamma(terms: int, u: float) -> float:
    return terms * u / (1.0 - terms * u)


def products_are_exact(params: FlatParameters, device: torch.device) -> bool:
    """Whether kernels keep to the bound on rounding that lengths rest on: tried on made-up factors of each trained shape.

    One that shortens what it multiplies (TF32, or bfloat16 in place of float32) does not.
    """
    made_up, positions = torch.Generator().manual_seed(0), 24
    for shape in {shape for shape in params.shapes if len(shape) == 2}:
        left, right = (torch.randn(1, positions, n, generator=made_up).to(device) for n in shape)
        rows, terms = left[0, :, : max(1, _PIECE["cpu"] // shape[1])].mT, right[:, :, :TERMS]
        for product, one, other in ((torch.mm, rows, right[0]), (torch.bmm, terms, terms.mT)):
            rounding = (product(one, other).double() - product(one.double(), other.double())).abs()
            most = product(one.double().abs(), other.double().abs()).mul_(
                _gamma(other.shape[-2] + 2, torch.finfo(one.dtype).eps / 2)
            )
            if bool((rounding > most).any()):
                return False
    return True


class WeightedSums:
    """Adds weighted gradients of sentences to a vector, with memory for one piece of it."""

    def __init__(self, params: FlatParameters, device: torch.device):
        self._params = params
        self._size = _PIECE.get(device.type, _PIECE["cpu"])
        self._formed = torch.empty(0, device=device)
        self._steps, self._sums = (torch.empty(0, dtype=torch.int32, device=device) for _ in range(2))

    @torch.no_grad()
    def add(self, rows: Sequence[tuple[Measured, int, float]], total: Tensor, unit: float | None) -> None:
        """Adds weight times gradient x of each (batch, x, weight), truncated to multiples of ``unit``, to (P,) float64.

        Each must be no longer than 2^27 units. ``None``: nothing is truncated; sums are rounded in float64, in the order of
        ``rows``, and claim nothing. A sentence's vector is formed by itself, so that its bits are its own: several at once
        would be filled up to each other's lengths, or computed by a kernel for as many.
        """
        scaled = [(batch, x, weight if unit is None else weight / unit) for batch, x, weight in rows]
        for name, whole in self._params.split(total).items():
            kept = [(batch.kept[name], x, weight) for batch, x, weight in scaled if name in batch.kept]
            if kept and kept[0][0].left:
                step = max(1, self._size // whole.shape[1])
                self._sum([_Product(each, x, weight, step) for each, x, weight in kept], whole, step, unit)
            else:
                for each, x, weight in kept:
                    rounded = each.rows[0][x] * weight
                    rounded = rounded.double() if unit is None else rounded.to(torch.int32).double()
                    whole.index_add_(0, each.ids[0][x], rounded, alpha=unit or 1.0)
        layouts: dict[tuple[str, ...], list[_Formed]] = {}
        for batch, x, weight in scaled:
            if batch.names:
                layouts.setdefault(batch.names, []).append(_Formed(batch.formed[x], weight))
        for names, formed in layouts.items():
            views = [view.view(-1) for name, view in self._params.split(total).items() if name in names]
            sums = torch.cat(views)
            self._sum(formed, sums, self._size, unit)
            for view, summed in zip(views, sums.split([len(view) for view in views]), strict=True):
                view.copy_(summed)

    def _sum(self, terms: Sequence[_Formed | _Product], total: Tensor, step: int, unit: float | None) -> None:
        """Adds the terms to ``total``, ``step`` rows of it at a time."""
        numbers = total[:step].numel()
        if self._formed.dtype != terms[0].dtype or len(self._formed) < numbers:
            self._formed = self._formed.new_empty(numbers, dtype=terms[0].dtype)
            self._steps, self._sums = (self._steps.new_empty(numbers) for _ in range(2))
        for start in range(0, len(total), step):
            piece = total[start : start + step]
            out, steps, sums = (
                each[: piece.numel()].view(piece.shape) for each in (self._formed, self._steps, self._sums)
            )
            for added, each in enumerate(terms):
                each.form(start, out)
                if unit is None:
                    piece.add_(out)
                elif added % _MOST:
                    sums.add_(steps.copy_(out))
                else:  # none yet, or as many as fit
                    if added:
                        piece.add_(sums, alpha=unit)
                    sums.copy_(out)
            if unit is not None:
                piece.add_(sums, alpha=unit)


@dataclass
class _Formed:
    """A gradient that is formed, and its weight."""

    row: Tensor
    weight: float

    @property
    def dtype(self) -> torch.dtype:
        return self.row.dtype

    def form(self, start: int, out: Tensor) -> None:
        """Writes the part from ``start``, weighted, to ``out`` (n,)."""
        torch.mul(self.row[start : start + len(out)], self.weight, out=out)


class _Product:
    """The factors of a sentence, weighted: what ``step`` rows of it are formed of at a time."""

    def __init__(self, of: Factors, x: int, weight: float, step: int):
        left, self._step = of.left[0][x], step
        self._left = (left if left.data_ptr() % _ALIGNED == 0 else left.clone()).mT
        self._right = of.right[0][x] * weight
        self.dtype = self._right.dtype
        self._ids: Tensor | None = None
        if of.ids:  # in order of the pieces that they are in
            order = of.ids[0][x].argsort(stable=True)
            self._ids, self._rows = of.ids[0][x][order], of.rows[0][x][order] * weight
            starts = torch.arange(0, len(self._left) + step, step, device=order.device)
            self._cuts = torch.searchsorted(self._ids, starts).tolist()

    def form(self, start: int, out: Tensor) -> None:
        """Writes rows from ``start`` to ``out`` (n, J)."""
        torch.mm(self._left[start : start + len(out)], self._right, out=out)
        if self._ids is not None:
            first, last = self._cuts[start // self._step : start // self._step + 2]
            if last > first:  # of several rows for one id all but one are zeros, in whatever order
                ids = self._ids[first:last] - start
                out.index_put_((ids,), self._rows[first:last], accumulate=True)
