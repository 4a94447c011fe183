"""Early stopping, by hand."""

from __future__ import annotations

import math

import pytest

from uedp_ray.search.stopping import falls_behind


def at(step, *values):
    return [{step: value} for value in values]


@pytest.mark.parametrize(
    ("own", "elders", "behind"),
    [
        ({2: 5.0}, [], False),
        ({2: 5.0}, at(2, 6.0), False),
        ({2: 5.0}, at(2, 4.0), True),
        ({2: 5.0}, at(2, 5.0), False),
        ({2: 5.0}, at(2, 4.0, 6.0, 7.0), True),  # second of four
        ({2: 5.0}, at(2, 4.0, 6.0, 7.0, 8.0), False),  # second of five
        ({2: 5.0}, at(2, 4.0, 4.5, 7.0, 8.0), True),
        ({2: 5.0}, at(2, 4.0, 4.5, 7.0, 8.0, 9.0, 9.0, 9.0, 9.0), False),  # third of nine
        ({1: 5.0}, at(1, 4.0), False),  # before the first rung
        ({2: 4.0, 3: 9.0}, at(3, 4.0), False),  # it has passed the rung
        ({1: 4.0, 3: 9.0}, [{1: 9.0, 3: 4.0}], True),  # its first report at or after the rung
        ({2: 1.0, 8: 9.0}, [{2: 5.0}, {2: 5.0, 8: 4.0}], True),  # the second rung: 2 · 4
        ({2: 1.0, 8: 9.0}, [{2: 5.0}, {2: 5.0, 7: 4.0}], False),  # nobody got there
        ({2: math.nan}, at(2, 4.0), True),
        ({2: math.nan}, at(2, math.inf), False),
        ({2: 5.0}, at(2, math.nan), False),
        ({2: 5.0}, [{}], False),
    ],
)
def test_asha_keeps_the_best_quarter_of_those_that_got_to_a_rung(own, elders, behind):
    assert falls_behind("asha", 2, own, elders) is behind
    assert not falls_behind("none", 2, own, elders)


@pytest.mark.parametrize(
    ("own", "elders", "behind"),
    [
        ({2: 9.0}, at(2, 4.0, 5.0), False),  # three are needed
        ({2: 9.0}, at(2, 4.0, 5.0, 6.0), True),
        ({2: 5.0}, at(2, 4.0, 5.0, 6.0), False),
        ({1: 4.0, 2: 9.0}, at(2, 4.0, 5.0, 6.0), False),  # its best counts
        ({1: 9.0}, at(2, 4.0, 5.0, 6.0), False),  # grace
        ({3: 9.0}, [*at(3, 4.0, 5.0), {2: 1.0}], False),  # one ended before
        ({3: 9.0}, [*at(4, 4.0), {2: 1.0, 4: 99.0}, {1: 20.0, 3: 10.0}], False),  # means: none, 1, 15
        ({3: 9.0}, [{2: 1.0, 3: 5.0}, {2: 1.0, 4: 99.0}, {1: 20.0, 3: 10.0}], True),  # means: 3, 1, 15
        ({2: math.nan}, at(2, 4.0, 5.0, 6.0), True),
    ],
)
def test_median_compares_the_best_with_the_means_of_those_that_got_as_far(own, elders, behind):
    assert falls_behind("median", 2, own, elders) is behind
