"""Clipping: the bound holds for every input, and projection does not expand."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from uedp_ray.privacy.clipping import clip_factors, projection_margin, wide_norms


def clip_to_ball(vector, bound):
    """What ``Plan.add_user`` does, before the grid."""
    factor = clip_factors(wide_norms(vector[None]), bound)
    return vector.double() * factor if factor > 0 else torch.zeros(len(vector)).double()


vectors = hnp.arrays(
    "float32", st.integers(1, 40), elements=st.floats(-(2.0**60), 2.0**60, width=32, allow_subnormal=False)
)


@given(vectors, st.floats(1e-6, 1e6))
def test_norm_is_bounded(vector, bound):
    clipped = clip_to_ball(torch.from_numpy(vector), bound)
    assert torch.linalg.vector_norm(clipped.double()) <= bound


@given(st.lists(st.floats(-10, 10, width=32), min_size=4, max_size=4), st.floats(0.01, 20))
def test_projection_does_not_expand(values, bound):
    a, b = torch.tensor(values[:2], dtype=torch.float64), torch.tensor(values[2:], dtype=torch.float64)
    moved = torch.linalg.vector_norm(clip_to_ball(a, bound) - clip_to_ball(b, bound))
    assert moved <= min(float(torch.linalg.vector_norm(a - b)), 2 * bound) + 1e-5 * bound


def test_small_vectors_and_zero_are_untouched():
    vector = torch.tensor([0.3, 0.4])
    assert torch.equal(clip_to_ball(vector, 1.0), vector.double())
    assert torch.equal(clip_to_ball(torch.zeros(3), 1.0), torch.zeros(3).double())


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("bound", [1.0, None])
def test_non_finite_updates_become_zero(bad, bound):
    assert torch.equal(clip_to_ball(torch.tensor([1.0, bad, 2.0]), bound), torch.zeros(3).double())


def test_factors():
    norms = torch.tensor([0.0, 0.5, 2.0, float("nan"), float("inf")])
    assert torch.allclose(clip_factors(norms, 1.0), torch.tensor([1.0, 1.0, 0.5, 0.0, 0.0]))
    assert torch.equal(clip_factors(norms, None), torch.tensor([1.0, 1.0, 1.0, 0.0, 0.0]))


def test_bound_must_be_positive():
    with pytest.raises(ValueError, match="above 0"):
        clip_factors(torch.ones(1), 0.0)


@pytest.mark.parametrize("length", [1, 2, 3, 1000, 131_071, 300_001])  # of one part, and of several
def test_norms_do_not_depend_on_where_a_row_stands(length):
    row = torch.randn(length, generator=torch.Generator().manual_seed(0))
    alone = wide_norms(row[None])
    assert float(alone) == pytest.approx(float(row.double().norm()), rel=1e-12)
    for shift in (1, 3, 8):
        block = torch.cat([torch.full((shift,), 1e30), row, torch.full((7,), torch.nan), row])
        assert torch.equal(wide_norms(block[shift : shift + len(row)][None]), alone)
        assert torch.equal(wide_norms(torch.stack([row] * shift)), alone.expand(shift))
        assert torch.equal(
            wide_norms(torch.stack([*[1e30 * row] * shift, row, torch.nan * row]))[shift : shift + 1], alone
        )
    assert wide_norms(row[None][:0]).tolist() == []


def test_the_margin_of_a_projection_grows_with_its_coordinates():
    assert projection_margin(2.0, 10_000, 1e-9) == pytest.approx(2e-7, rel=1e-3)


def test_a_bound_that_is_no_number_is_refused():
    with pytest.raises(ValueError, match="must be above 0"):
        clip_factors(torch.ones(1), float("nan"))
