"""One parameter's gradients of several sentences, as products that need not be formed to know how long they are.

    >>> import torch
    >>> from uedp_ray.models.factors import Factors
    >>> made_up = torch.Generator().manual_seed(0)
    >>> left, right = torch.randn(2, 3, 50, generator=made_up), torch.randn(2, 3, 40, generator=made_up)    # T = 3
    >>> factors = Factors(torch.Size((50, 40)), left=[left], right=[right])
    >>> factors.join()
    >>> squares, rounding = factors.squares()    # (B,) float64
    >>> factors.form(slice(None), formed := torch.empty(2, 50, 40))
    >>> torch.allclose(squares, formed.double().square().sum((1, 2)), rtol=1e-6)
    True
    >>> bool((rounding >= squares).all())    # the most that the terms of the products may add up to
    True

A linear layer's gradient for sentence x is ``left_x^T right_x``, a sum of T outer products. Its squared norm is the sum of
``(left_x left_x^T) * (right_x right_x^T)``: T^2 (I + J) products instead of T I J. Source: Goodfellow 2015 ("Efficient
per-example gradient computations"); what rounding may do to it, and to the product once it is formed: docs/accounting.md,
"Floating point". Shape legend: B sentences, T positions; of one parameter matrix: I rows, J columns.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

TERMS = 256
"""Terms of a dot product that are added up in the type of the factors; their sums are added in float64."""


_ALIGNED = 16
"""The elements from row to row are a multiple of it. If rows start at different places of a cache line, a product that is
written there is summed in a different order from row to row (MKL)."""


def aligned(like: Tensor, num: int, width: int) -> Tensor:
    """(num, width) zeros, in rows that begin at like places of a cache line."""
    return like.new_zeros(num, -(-width // _ALIGNED) * _ALIGNED)[:, :width]


def smaller(left: Tensor, right: Tensor, shape: torch.Size) -> bool:
    """Whether (B, T, I) and (B, T, J) are smaller than the (B, I, J) that they form."""
    return left[0].numel() + right[0].numel() < shape.numel()


def contracted(left: Tensor, right: Tensor) -> Tensor:
    """(B, I, J): what (B, T, I) and (B, T, J) form, a row by itself."""
    shape = left.shape[2], right.shape[2]
    return torch.bmm(left.mT, right, out=aligned(right, len(right), shape[0] * shape[1]).unflatten(1, shape))


@dataclass
class Factors:
    """One parameter's gradients: ``scale * (left^T right) + (rows added up at ids) + full``, any of which may be absent.

    left (B, T, I), right (B, T, J); ids (B, T) int64, rows (B, T, J): a one-hot left kept as an index; full (B, *shape);
    scale (I, J): DropConnect. Lists hold one entry per call of the module until ``join``.
    """

    shape: torch.Size
    left: list[Tensor] = field(default_factory=list)
    right: list[Tensor] = field(default_factory=list)
    ids: list[Tensor] = field(default_factory=list)
    rows: list[Tensor] = field(default_factory=list)
    full: list[Tensor] = field(default_factory=list)
    scale: Tensor | None = None

    def join(self) -> None:
        """Several calls become one: outer products are concatenated along T, explicit gradients added."""
        for name in ("left", "right", "ids", "rows"):
            if len(entries := getattr(self, name)) > 1:
                setattr(self, name, [torch.cat(entries, 1)])
        if len(self.full) > 1:
            self.full = [torch.stack(self.full).sum(0)]
        if self.ids:  # a row that occurs twice is summed at its first place: adding in parallel has no fixed order
            ids, rows = self.ids[0], self.rows[0]
            same = ids[:, :, None] == ids[:, None, :]
            first = ~same.tril(-1).any(2, keepdim=True)
            self.rows = [(same & first).to(rows.dtype) @ rows]

    @property
    def worth_keeping(self) -> bool:
        """Whether the factors are smaller than what they form, and their norm is known without forming it."""
        if self.full or self.scale is not None:
            return False
        return (
            sum(entries[0][0].numel() for entries in (self.left, self.right, self.rows) if entries) < self.shape.numel()
        )

    def form(self, which: slice, out: Tensor) -> None:
        """Writes the gradients of some sentences to ``out`` (b, *shape)."""
        if self.left:
            torch.bmm(self.left[0][which].mT, self.right[0][which], out=out)
            if self.scale is not None:
                out.mul_(self.scale)
            for full in self.full:
                out.add_(full[which])
        elif self.full:
            out.copy_(self.full[0][which])
        else:
            out.zero_()
        for ids, rows in zip(self.ids, self.rows, strict=True):
            if out.is_cuda:  # one kernel: of several rows for one id all but the first are zeros, in whatever order
                sentence = torch.arange(len(out), device=out.device)[:, None].expand_as(ids[which])
                out.index_put_((sentence, ids[which]), rows[which], accumulate=True)
                continue
            for each, at, added in zip(out, ids[which], rows[which], strict=True):
                each.index_add_(0, at, added)

    def squares(self) -> tuple[Tensor, Tensor]:
        """Where ``worth_keeping``: (B,) squared norms, and (B,) squares of |left| |right| + |rows| (Frobenius norms), by
        which rounding is bounded, or 0 where there are rows alone. float64.

        The latter are raised by what numbers lose that are too small for the type: at most ``tiny`` for each product. Where
        a product overflows, the former are not finite, perhaps -inf.
        """
        known = (self.rows or self.right)[0]
        rows = known.double().square().sum((1, 2)) if self.rows else known.new_zeros(len(known), dtype=torch.float64)
        if not self.left:
            return rows, torch.zeros_like(rows)
        left, right = self.left[0], self.right[0]
        of_left, of_right = _products(left, left), _products(right, right)
        squares = (of_left * of_right).sum((1, 2)) + rows
        if self.ids:
            at = left.gather(2, self.ids[0][:, None, :].expand(-1, left.shape[1], -1))  # (B, T, T): left, at each id
            squares += 2.0 * (at.double() * _products(right, self.rows[0])).sum((1, 2))
        of_left, of_right, info = _trace(of_left), _trace(of_right), torch.finfo(left.dtype)
        lost = info.tiny / info.eps * 2**21 * left.shape[1] * (of_left + of_right + 1.0)
        return squares, ((of_left * of_right).sqrt() + rows.sqrt()).square() + lost


def _products(one: Tensor, other: Tensor) -> Tensor:
    """(B, T, N), (B, S, N) -> (B, T, S) float64 dot products."""
    found = one.new_zeros(one.shape[0], one.shape[1], other.shape[1], dtype=torch.float64)
    for a, b in zip(one.split(TERMS, 2), other.split(TERMS, 2), strict=True):
        found += torch.bmm(a, b.mT)
    return found


def _trace(products: Tensor) -> Tensor:
    return products.diagonal(dim1=1, dim2=2).sum(1)
