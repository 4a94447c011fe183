"""The published figures."""

from __future__ import annotations

import pytest

from uedp_ray.errors import InputError
from uedp_ray.privacy.published import published_epsilon

CONLL = {"user_sampling_prob": 50 / 946, "sensitive_fraction": 11176 / 14040}
AG = {"user_sampling_prob": 500 / 7536, "sensitive_fraction": 67157 / 112000}
CALL = {"noise_multiplier": 2.0, "rounds": 50, "delta": 1e-5}


@pytest.mark.parametrize(
    ("corpus", "method", "printed"),
    [
        (CONLL, "uedp", 0.52),
        (CONLL, "uedp_fe", 0.62),
        (CONLL, "user_dp", 1.18),
        (AG, "uedp", 0.50),
        (AG, "uedp_fe", 0.75),
        (AG, "user_dp", 1.48),
    ],
)
def test_figures(corpus, method, printed):
    assert published_epsilon(method=method, **corpus, **CALL) == pytest.approx(printed, abs=0.01)


@pytest.mark.parametrize(("rounds", "printed"), [(1, 0.18), (50, 0.185), (99, 0.19), (148, 0.195), (197, 0.2)])
def test_gpt2_figures(rounds, printed):
    value = published_epsilon(
        noise_multiplier=2.5,
        user_sampling_prob=25 / 946,
        sensitive_fraction=4406 / 14040,
        rounds=rounds,
        delta=1e-5,
        max_order=64,
    )
    assert value == pytest.approx(printed, abs=5e-4)


def test_floor_of_the_truncated_orders():
    assert published_epsilon(**CONLL, **{**CALL, "rounds": 0}) == pytest.approx(11.512925 / 32)


@pytest.mark.parametrize(
    "fields",
    [
        {"method": "other"},
        {"user_sampling_prob": 1.1},
        {"sensitive_fraction": -0.1},
        {"noise_multiplier": 0.0},
        {"rounds": -1},
        {"max_order": 0},
        {"delta": 0.0},
    ],
)
def test_bad_calls(fields):
    with pytest.raises(InputError, match=next(iter(fields))):
        published_epsilon(**{**CONLL, **CALL, **fields})


@pytest.mark.parametrize("name", ["rounds", "max_order"])
def test_a_part_of_a_round_is_refused(name):
    settings = {"noise_multiplier": 2.0, "user_sampling_prob": 0.05, "rounds": 50, "delta": 1e-5, "max_order": 32}
    with pytest.raises(InputError, match=f"{name} = 2.5: must be an integer"):
        published_epsilon(**(settings | {name: 2.5}))
