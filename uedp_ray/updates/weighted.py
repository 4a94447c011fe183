"""Weighted sums of the gradients of single sentences: exact, in any order, and no longer than their lengths say.

    >>> import numpy as np
    >>> import torch
    >>> from uedp_ray.config import ModelConfig
    >>> from uedp_ray.models.build import build_model
    >>> from uedp_ray.models.gradients import sentence_gradients
    >>> from uedp_ray.models.parameters import FlatParameters
    >>> from uedp_ray.updates.weighted import ROOM, Group, WeightedSums, measured
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
    >>> rows = [(batch, x, 1 / float(batch.lengths[x])) for x in range(2)]
    >>> def summed(*groups):
    ...     total = torch.zeros(params.num, dtype=torch.float64)
    ...     sums.add([Group(group, least=1.0) for group in groups], total, unit)
    ...     return total
    >>> alone = [summed([row]) for row in rows]
    >>> bool(alone[0].norm() <= 1), torch.equal(summed(*[[row] for row in rows]), alone[1] + alone[0])
    (True, True)
    >>> bool((summed(rows) - alone[1]).norm() <= 1 + ROOM)    # formed together
    True

A group of sentences is formed as one product, in the type of the factors, truncated toward zero to multiples of a unit, and
added as integers. So a sentence less changes nothing that other groups add. It changes how its own group is rounded, by no
more than ``ROOM``: where that is not sure, each sentence of the group is formed alone. Of a large parameter a group is
formed in pieces that stay in a CPU's cache, for one user after the other: nowhere are there gradients of many sentences,
each as long as the network. What a length covers, and ``ROOM``, is proved in docs/accounting.md, "Floating point".

Shape legend: B sentences, T positions, P flattened trainable parameters; of one parameter matrix: I rows, J columns.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

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
AT_ONCE = (1 << 31 - _BITS) - 1
"""So many of them fit an int32."""
MOST_SENTENCES = 1 << 53 - _BITS
"""And so many a float64."""
ROOM = 2.0**-10
"""A share of the least that a sentence of a group may add: what one less may do, beside, to the rounding of the others."""
_ALIGNED = 64
"""Bytes. Kernels order their sums by where an operand begins in a cache line."""


def unit_of(length: float) -> float:
    """The power of two in whose multiples vectors of this length, or shorter ones, are summed.

    Raises: ValueError for a length that float32 could not scale to it.
    """
    if not 2.0**-70 < length < 2.0**70:
        raise ValueError(f"length {length:g}: sums need one between 1e-21 and 1e21")
    return math.ldexp(1.0, math.frexp(length)[1] - _BITS)


@dataclass(eq=False)
class Measured:
    """What is kept of a batch's gradients until they are summed: factors, and (B, F) ``formed``, which has the parameters
    ``names`` side by side. ``lengths`` (B,) float64: w / length times a gradient is no longer than w (1 + 1e-6) as
    ``WeightedSums`` adds it; not finite if a gradient is not. ``magnitudes`` (B,) float64: of the terms that the products
    add up, by which rounding is bounded; ``positions``: their number; ``u``: half a unit in the last place of 1."""

    kept: dict[str, Factors]
    names: tuple[str, ...]
    formed: Tensor
    lengths: Tensor
    magnitudes: Tensor
    positions: int
    u: float

    def __iter__(self) -> Iterator[Tensor]:
        """All that is kept, each (B, ...)."""
        yield self.lengths
        yield self.magnitudes
        yield self.formed
        for each in self.kept.values():
            for entries in (each.left, each.right, each.ids, each.rows):
                yield from entries

    @property
    def num_copied(self) -> int:
        """Numbers of one sentence that ``WeightedSums`` copies at once: those of a matrix of which factors are kept."""
        of_each = ((*each.left, *each.right, *each.ids, *each.rows) for each in self.kept.values())
        return max((sum(entry[0].numel() for entry in entries) for entries in of_each), default=0)

    @cached_property
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
    factors = (entry.dtype for each in kept.values() for entry in (*each.left, *each.right, *each.rows))
    u = max(torch.finfo(dtype).eps for dtype in (formed.dtype, *factors)) / 2  # losses may be wider than the network
    squares = torch.where(squares.isfinite(), squares.clamp_min(0.0), math.inf)  # -inf is no length of 0
    lengths, magnitudes = (squares + 2.5 * _gamma(terms + 8, u) * rounded).sqrt(), rounded.sqrt()
    return Measured(kept, names, formed, lengths + _gamma(positions + 8, u) * magnitudes, magnitudes, positions, u)


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


Row = tuple[Measured, int, float]
"""A batch, one of its sentences, and what its gradient is multiplied by."""


class Group(NamedTuple):
    """Sentences that are formed together. ``least``: a length that any one of them may have.

    If one is missing, the sum moves by no more than that one's length, or the most that it may have, and ``ROOM`` times
    ``least``. Which sentences may be in one group must not depend on which of them are there.
    """

    rows: Sequence[Row]
    least: float


class WeightedSums:
    """Adds weighted gradients of sentences to a vector, with memory for one piece of it."""

    def __init__(self, params: FlatParameters, device: torch.device):
        self._params = params
        self._size = _PIECE.get(device.type, _PIECE["cpu"])
        self._formed = torch.empty(0, device=device)
        self._steps, self._sums = (torch.empty(0, dtype=torch.int32, device=device) for _ in range(2))

    @torch.no_grad()
    def add(self, groups: Sequence[Group], total: Tensor, unit: float | None) -> None:
        """Adds the gradients of all rows, each multiplied, to (P,) float64, truncated to multiples of ``unit``.

        Each must be no longer than 2^27 units. ``None``: nothing is truncated; sums are rounded in float64, in the order of
        ``groups``, and claim nothing. What a group adds is the same whatever else is added.

        Raises: ValueError for a group whose truncated sum might not fit an int32.
        """
        if unit is not None and any(len(group.rows) > AT_ONCE for group in groups):
            raise ValueError(f"a group of more than {AT_ONCE} sentences might not fit an int32")
        for some in _at_once(groups, unit):
            self._add(some, total, unit)

    def _add(self, groups: Sequence[Group], total: Tensor, unit: float | None) -> None:
        together: list[list[Row]] = []
        layouts: dict[tuple[str, ...], list[_Formed]] = {}
        for rows, least in groups:
            scaled = [(batch, x, factor if unit is None else factor / unit) for batch, x, factor in rows]
            for batch, x, factor in scaled:
                if batch.names:
                    layouts.setdefault(batch.names, []).append(_Formed(batch.formed[x], factor))
            kept = [row for row in scaled if row[0].kept]
            joined = unit is None or self._may_join(kept, least / unit)
            together += [kept] if joined else [[row] for row in kept]
        for name, whole in self._params.split(total).items():
            parts = [
                [(batch.kept[name], x, factor) for batch, x, factor in rows if name in batch.kept] for rows in together
            ]
            parts = [part for part in parts if part]
            if parts and parts[0][0][0].left:
                step = max(1, self._size // whole.shape[1])
                self._sum([_Product(part, step) for part in parts], whole, step, unit)
            else:
                for each, x, factor in itertools.chain.from_iterable(parts):
                    rounded = each.rows[0][x] * factor
                    rounded = rounded.double() if unit is None else rounded.to(torch.int32).double()
                    whole.index_add_(0, each.ids[0][x], rounded, alpha=unit or 1.0)
        for names, formed in layouts.items():
            views = [view.view(-1) for name, view in self._params.split(total).items() if name in names]
            sums = torch.cat(views)
            self._sum(formed, sums, self._size, unit)
            for view, summed in zip(views, sums.split([len(view) for view in views]), strict=True):
                view.copy_(summed)

    def _may_join(self, rows: Sequence[Row], least: float) -> bool:
        """Whether one of these less changes how the others are rounded by no more than there is room for; in units."""
        u = max((batch.u for batch, _, _ in rows), default=0.0)
        gamma = _gamma(sum(batch.positions for batch, _, _ in rows) + 8, u)
        rounding = 2.5 * gamma * sum(abs(factor) * float(batch.magnitudes[x]) for batch, x, factor in rows)
        truncation = (len(rows) + 1) * math.sqrt(self._params.num)
        return rounding + truncation <= ROOM * least

    def _sum(self, terms: Sequence[_Formed | _Product], total: Tensor, step: int, unit: float | None) -> None:
        """Adds the terms, of ``AT_ONCE`` sentences at most, to ``total``, ``step`` rows of it at a time."""
        numbers = total[:step].numel()
        if self._formed.dtype != terms[0].dtype or len(self._formed) < numbers:
            self._formed = self._formed.new_empty(numbers, dtype=terms[0].dtype)
            self._steps, self._sums = (self._steps.new_empty(numbers) for _ in range(2))
        for start in range(0, len(total), step):
            piece = total[start : start + step]
            out, steps, sums = (
                each[: piece.numel()].view(piece.shape) for each in (self._formed, self._steps, self._sums)
            )
            for number, each in enumerate(terms):
                each.form(start, out)
                if unit is None:
                    piece.add_(out)
                elif number:
                    sums.add_(steps.copy_(out))
                else:
                    sums.copy_(out)
            if unit is not None:
                piece.add_(sums, alpha=unit)


def _at_once(groups: Sequence[Group], unit: float | None) -> Iterator[Sequence[Group]]:
    """Yields groups whose products may be there at once: as many as an int32 holds the sum of. Without a unit, each alone,
    as of one parameter products and formed rows of later groups come later, too."""
    first, num = 0, 0
    for last, group in enumerate(groups):
        if last > first and (unit is None or num + len(group.rows) > AT_ONCE):
            yield groups[first:last]
            first, num = last, 0
        num += len(group.rows)
    if groups:
        yield groups[first:]


@dataclass
class _Formed:
    """A gradient that is formed, and its weight."""

    row: Tensor
    factor: float

    @property
    def dtype(self) -> torch.dtype:
        return self.row.dtype

    def form(self, start: int, out: Tensor) -> None:
        """Writes the part from ``start``, multiplied, to ``out`` (n,)."""
        torch.mul(self.row[start : start + len(out)], self.factor, out=out)


class _Product:
    """The factors of sentences, multiplied: what ``step`` rows of their sum are formed of at a time."""

    def __init__(self, of: Sequence[tuple[Factors, int, float]], step: int):
        lefts = [each.left[0][x] for each, x, _ in of]
        as_it_is = len(lefts) == 1 and lefts[0].is_contiguous() and lefts[0].data_ptr() % _ALIGNED == 0
        self._left, self._step = (lefts[0] if as_it_is else torch.cat(lefts)).mT, step
        self._right = _joined([each.right[0][x] * factor for each, x, factor in of])
        self.dtype = self._right.dtype
        self._ids: Tensor | None = None
        if of[0][0].ids:  # in order of the pieces that they are in
            ids = _joined([each.ids[0][x] for each, x, _ in of])
            order = ids.argsort(stable=True)
            self._ids = ids[order]
            self._rows = _joined([each.rows[0][x] * factor for each, x, factor in of])[order]
            starts = torch.arange(0, len(self._left) + step, step, device=order.device)
            self._cuts = torch.searchsorted(self._ids, starts).tolist()

    def form(self, start: int, out: Tensor) -> None:
        """Writes rows from ``start`` to ``out`` (n, J)."""
        torch.mm(self._left[start : start + len(out)], self._right, out=out)
        if self._ids is not None:
            first, last = self._cuts[start // self._step : start // self._step + 2]
            if (
                last > first
            ):  # of a sentence's rows for one id all but one are zeros; other sentences' are added in order
                ids = self._ids[first:last] - start
                out.index_put_((ids,), self._rows[first:last], accumulate=True)


def _joined(parts: Sequence[Tensor]) -> Tensor:
    return parts[0].contiguous() if len(parts) == 1 else torch.cat(list(parts))
