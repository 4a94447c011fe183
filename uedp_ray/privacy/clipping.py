"""Bounds on what one sentence and one user can add to a round's sum.

    >>> import torch
    >>> from uedp_ray.privacy.clipping import clip_factors, wide_norms
    >>> rows = torch.tensor([[3.0, 4.0], [0.03, 0.04]])    # of norm 5 and 0.05
    >>> factors = clip_factors(wide_norms(rows), 0.1)      # (B, P) -> (B,) in [0, 1]
    >>> [round(factor, 4) for factor in factors.tolist()]
    [0.02, 1.0]

Guarantee: ``factor * norm <= bound`` also after rounding (the factor is shrunk by 1e-6 relative), zero norms keep their
vector, NaN and infinite norms get the factor 0. Projection onto a ball, which is what scaling by
this factor is, does not expand distances: a change of at most d before it is a change of at most min(d, 2 bound) after it,
but for ``projection_margin``.
"""

from __future__ import annotations

import math

import torch

from uedp_ray.privacy.grid import parts

_SHRINK = 1.0 - 1e-6
"""Room for the rounding of a float64 norm of up to 9e9 numbers, of the factor, and of weights kept in float32."""


def clip_factors(norms: torch.Tensor, bound: float | None) -> torch.Tensor:
    """Returns (B,) factors min(1, bound / norm); 0 where the norm is not finite. ``None`` bounds nothing else.

    Raises: ValueError unless the bound is above 0.

    Edge cases:

        >>> import math
        >>> import torch
        >>> from uedp_ray.privacy.clipping import clip_factors
        >>> def of(*norms, bound=1.0):
        ...     factors = clip_factors(torch.tensor(norms, dtype=torch.float64), bound)
        ...     return [round(factor, 7) for factor in factors.tolist()]
        >>> of(0.0, 0.5, 1.0, 2.0)    # what is at the bound is shrunk too, by 1e-6
        [1.0, 1.0, 0.999999, 0.4999995]
        >>> of(math.nan, math.inf)
        [0.0, 0.0]
        >>> of(1e9, math.nan, bound=None)
        [1.0, 0.0]
        >>> of()    # no rows
        []
        >>> of(1.0, bound=0.0)
        Traceback (most recent call last):
            ...
        ValueError: clipping bound 0.0 must be above 0
    """
    finite = torch.isfinite(norms)
    if bound is None:
        return finite.to(norms.dtype)
    if not bound > 0:
        raise ValueError(f"clipping bound {bound} must be above 0")
    factors = torch.clamp(bound * _SHRINK / norms.clamp_min(torch.finfo(norms.dtype).tiny), max=1.0)
    return torch.where(finite, factors, torch.zeros_like(factors))


def wide_norms(rows: torch.Tensor) -> torch.Tensor:
    """(B, P) -> (B,) float64 L2 norms.

    A norm has the same bits wherever the row is, and however many there are: kernels order their sums by shape and
    alignment. So rows of one part are added up by halves, number by number, and of longer ones each part is squared into a
    vector of its own first.
    """
    if not len(rows) or len(parts(rows[0])) > 1:
        long = [[part.to(torch.float64, copy=True).square_().sum() for part in parts(row)] for row in rows]
        return torch.stack([torch.stack(row).sum() for row in long]).sqrt() if long else rows.new_zeros(0).double()
    squares = rows.to(torch.float64, copy=True).square_()
    while (width := squares.shape[1]) > 1:
        half = (width + 1) // 2
        squares[:, : width - half] += squares[:, half:]
        squares = squares[:, :half]
    return squares.sum(1).sqrt()


def wide_norm(vector: torch.Tensor) -> float:
    """The float64 L2 norm of (P,), of float32 or float64."""
    return math.hypot(*(float(torch.linalg.vector_norm(part, dtype=torch.float64)) for part in parts(vector)))


def projection_margin(bound: float, num_params: int, step: float) -> float:
    """How much further apart than before two vectors of P coordinates may be once projected and truncated to a grid.

    In exact arithmetic: not at all. The norm of P numbers, and so the ball's radius, is off by less than P 2^-53 relative
    for each of the two; truncation moves each by at most step sqrt(P).
    """
    return bound * num_params * 2.0**-52 + 2.0 * step * math.sqrt(num_params)
