"""Sums on a grid: exact, never longer, without overflow; and noise that commutes with them."""

from __future__ import annotations

import math

import pytest
import torch

from uedp_ray.privacy.grid import SumGrid


@pytest.mark.parametrize("bound", [1e-3, 1.0, 1e6])
@pytest.mark.parametrize("num_vectors", [1, 1000, 2**31])
@pytest.mark.parametrize("noise", [0.0, 0.1, 1000.0])
def test_the_grid_holds_all_vectors_and_the_noise(bound, num_vectors, noise):
    grid = SumGrid.of(bound=bound, num_vectors=num_vectors, noise_std=noise * bound)
    assert math.frexp(grid.step)[0] == 0.5, "a power of two"
    assert 2**61 <= (bound * num_vectors + 64 * noise * bound) / grid.step < 2**62
    released = grid.step * 2**grid.shift
    if grid.shift:
        assert noise * bound * 2**-21 < released <= noise * bound * 2**-20


def test_sums_are_exact_and_vectors_are_never_lengthened():
    grid = SumGrid.of(bound=1.0, num_vectors=100, noise_std=1.0)
    vectors = torch.randn(100, 50, generator=torch.Generator().manual_seed(0), dtype=torch.float64) / 8
    alone = [torch.zeros(50, dtype=torch.int64) for _ in vectors]
    for total, vector in zip(alone, vectors, strict=True):
        grid.add(total, vector, 0.7)
        error = 0.7 * vector - total.double() * grid.step
        assert (error.abs() <= 2 * grid.step).all()
        assert ((total.double() * grid.step).abs() <= 0.7 * vector.abs() * (1 + 1e-15)).all()
    forth, back = torch.zeros(50, dtype=torch.int64), torch.zeros(50, dtype=torch.int64)
    for vector, other in zip(vectors, vectors.flip(0), strict=True):
        grid.add(forth, vector, 0.7)
        grid.add(back, other, 0.7)
    assert torch.equal(forth, back)
    assert torch.equal(forth, sum(alone))


def test_rounding_noise_commutes_with_adding_it():
    """What is released is a function of the exact sum plus real noise: post-processing of the Gaussian mechanism."""
    grid = SumGrid.of(bound=1.0, num_vectors=10, noise_std=0.5)
    noise = torch.tensor([0.1, -0.3, 1e300, -1e300, 2.6 * grid.step, -2.6 * grid.step], dtype=torch.float64)
    total = torch.tensor([12345, -(2**60), 5, 7, 10, 10])
    noised = total.clone()
    grid.add_noise(noised, iter([noise[:3].clone(), noise[3:].clone()]))
    assert noised[:2].tolist() == [12345 + round(0.1 / grid.step), -(2**60) + round(-0.3 / grid.step)]
    assert noised[2:].tolist() == [5 + 2**62, 7 - 2**62, 13, 7]
    with pytest.raises(ValueError, match="3 of 6"):
        grid.add_noise(total, iter([noise[:3].clone()]))


def test_what_is_released_lies_on_a_grid_that_the_data_do_not_change():
    grid = SumGrid.of(bound=1.0, num_vectors=10, noise_std=0.5)
    coarse = grid.step * 2**grid.shift
    assert coarse == 2.0**-21
    for total in (
        torch.arange(-50, 50) * 2**52 + 12345,
        torch.arange(-50, 50) * 2**33 + 12345,
        torch.tensor([0, 1, 2**61, -(2**61)]),
    ):
        exact = total.double() * grid.step
        released = grid.value(grid.coarsen(total.clone()))
        assert (released / coarse == (released / coarse).round()).all()
        assert ((released - exact).abs() <= coarse / 2).all()
