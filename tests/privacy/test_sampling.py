"""The sampler: rates, independence, addressing. Statistical tests state their false-alarm rate."""

from __future__ import annotations

import itertools
import math
from typing import get_args

import numpy as np
import pytest
from scipy import stats

from uedp_ray.privacy.sampling import Kind, PoissonSampler

KEY = bytes(range(32))
FALSE_ALARM = 1e-6
"""Each statistical assertion fails on a correct sampler with at most this probability (keys are fixed: never flaky)."""


def draw(p, n, **where):
    where = {"round_index": 0, "attempt": 0, "kind": "user"} | where
    return PoissonSampler(KEY).draw(p, n, **where)


@pytest.mark.parametrize("probability", [0.001, 0.05, 0.5, 0.97])
def test_inclusion_rate(probability):
    n = 200_000
    low, high = stats.binom.interval(1 - FALSE_ALARM, n, probability)
    assert low <= draw(probability, n).sum() <= high


def test_zero_and_one_are_exact():
    assert not draw(0.0, 1000).any()
    assert draw(1.0, 1000).all()


def test_cohort_size_is_binomial_not_fixed():
    sizes = np.array([draw(0.1, 500, round_index=t).sum() for t in range(2000)])
    statistic = ((sizes - 50) ** 2).sum() / 45  # chi-square with 2000 degrees of freedom when Poisson sampled
    low, high = stats.norm.interval(1 - FALSE_ALARM, 2000, math.sqrt(2 * 2000))
    assert low <= statistic <= high


@pytest.mark.parametrize(
    ("one", "other"),
    [
        *(({}, other) for other in ({"round_index": 1}, {"attempt": 1}, {"owner": 7})),
        *(({"kind": one}, {"kind": other}) for one, other in itertools.combinations(get_args(Kind), 2)),
    ],
)
def test_streams_are_independent(one, other):
    n = 100_000
    both = (draw(0.3, n, **one) & draw(0.3, n, **other)).sum()
    low, high = stats.binom.interval(1 - FALSE_ALARM, n, 0.09)
    assert low <= both <= high


def test_neighbouring_positions_are_independent():
    drawn = draw(0.3, 100_001)
    low, high = stats.binom.interval(1 - FALSE_ALARM, 50_000, 0.09)
    assert low <= (drawn[0:100_000:2] & drawn[1:100_000:2]).sum() <= high


def test_a_draw_depends_on_its_address_only():
    assert np.array_equal(draw(0.3, 1000), draw(0.3, 5000)[:1000])
    assert not np.array_equal(
        draw(0.5, 200), PoissonSampler(b"another key, 16+").draw(0.5, 200, round_index=0, attempt=0, kind="user")
    )


def test_bad_input():
    with pytest.raises(ValueError, match="key"):
        PoissonSampler(b"short")
    with pytest.raises(ValueError, match=r"\[0, 1\]"):
        draw(1.5, 3)
