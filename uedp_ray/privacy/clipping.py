"""Bounds on what one sentence and one user can add to a round's sum.

    factors = clip_factors(norms, 0.1)            # (B,) in [0, 1]
    update = clip_to_ball(update, 1.0)            # (P,)

Guarantee: ``factor * norm <= bound`` also after rounding (the factor is shrunk by 1e-6 relative), zero norms keep their
vector, NaN and infinite norms get the factor 0. Projection onto a ball does not expand distances, so a change of at
most d before ``clip_to_ball`` is a change of at most min(d, 2 bound) after it.
"""

from __future__ import annotations

import torch

_SHRINK = 1.0 - 1e-6
"""Room for float32 rounding between the norm that is measured and the vector that is summed."""


def clip_factors(norms: torch.Tensor, bound: float | None) -> torch.Tensor:
    """Returns (B,) factors min(1, bound / norm); 0 where the norm is not finite. ``None`` bounds nothing else.

    Raises: ValueError if bound <= 0.
    """
    finite = torch.isfinite(norms)
    if bound is None:
        return finite.to(norms.dtype)
    if bound <= 0:
        raise ValueError(f"clipping bound {bound} must be above 0")
    factors = torch.clamp(bound * _SHRINK / norms.clamp_min(torch.finfo(norms.dtype).tiny), max=1.0)
    return torch.where(finite, factors, torch.zeros_like(factors))


def clip_to_ball(vector: torch.Tensor, bound: float | None) -> torch.Tensor:
    """Projects a (P,) vector onto the L2 ball of radius ``bound``; a vector that is not finite becomes zero."""
    norm = torch.linalg.vector_norm(vector, dtype=torch.float64)
    factor = clip_factors(norm, bound)
    return torch.where(factor > 0, vector * factor.to(vector.dtype), torch.zeros_like(vector))
