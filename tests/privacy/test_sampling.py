"""The sampler: rates, independence, addressing. Statistical tests state their false-alarm rate."""

from __future__ import annotations

import itertools
import math
import tracemalloc
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


def in_blocks(p, n, block, team=None, **where):
    where = {"round_index": 0, "attempt": 0, "kind": "user"} | where
    return PoissonSampler(KEY, block=block, team=team).draw(p, n, **where)


def test_blocks_are_streams_of_their_own():
    n, block = 100_000, 30_000
    drawn = in_blocks(0.3, n, block)
    low, high = stats.binom.interval(1 - FALSE_ALARM, n, 0.3)
    assert low <= drawn.sum() <= high
    low, high = stats.binom.interval(1 - FALSE_ALARM, block, 0.09)
    for one, other in itertools.combinations(range(3), 2):
        assert low <= (drawn[one * block :][:block] & drawn[other * block :][:block]).sum() <= high
    assert np.array_equal(drawn[-10_000:], draw(0.3, 10_000, owner=3))


def test_what_fits_a_block_and_what_is_a_users_own_is_drawn_as_ever():
    assert np.array_equal(in_blocks(0.3, 1000, 1000), draw(0.3, 1000))
    assert np.array_equal(in_blocks(0.3, 1001, 1000)[:1000], draw(0.3, 1000))
    assert np.array_equal(
        in_blocks(0.3, 5000, 1000, owner=7, kind="extended"), draw(0.3, 5000, owner=7, kind="extended")
    )
    assert in_blocks(1.0, 5000, 1000).all()


class Half:
    """One of two who share blocks."""

    def __init__(self, rank):
        self.rank, self.own = rank, None

    def mine(self, num_blocks):
        return range(self.rank, num_blocks, 2)

    def joined(self, drawn):
        self.own = drawn
        return drawn


def test_a_team_draws_what_one_would():
    halves = [in_blocks(0.3, 4500, 1000, Half(rank)) for rank in (0, 1)]
    assert not (halves[0] & halves[1]).any()
    assert not halves[0][1000:2000].any()
    assert np.array_equal(halves[0] | halves[1], in_blocks(0.3, 4500, 1000))


def test_blocks_take_the_memory_of_one_stream_each():
    peaks = []
    for block in (None, 1 << 14):
        tracemalloc.start()
        in_blocks(0.3, 1 << 20, block)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[0] > 8 << 20
    assert peaks[1] < 2 << 20


def test_bad_input():
    with pytest.raises(ValueError, match="key"):
        PoissonSampler(b"short")
    with pytest.raises(ValueError, match=r"\[0, 1\]"):
        draw(1.5, 3)
