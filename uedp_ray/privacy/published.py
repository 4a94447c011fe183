"""The published figures: the 2016 moments accountant with the paper's effective sampling probability. NOT a guarantee.

    >>> from uedp_ray.privacy.published import published_epsilon
    >>> printed = {"user_sampling_prob": 50 / 946, "sensitive_fraction": 11176 / 14040, "rounds": 50, "delta": 1e-5}
    >>> round(published_epsilon(noise_multiplier=2.0, **printed), 2)
    0.52

It is kept to reproduce what was printed. ``q_u q_e fraction`` is not an inclusion probability of anything, and for
long lists of rounds epsilon sits on ln(1/delta) / max_order, a floor of the truncated orders. See docs/accounting.md.
Inputs are public. Sources: Lai et al. 2022; Abadi et al. 2016 (moments accountant).
"""

from __future__ import annotations

import functools
import math
from typing import Literal, get_args

import dp_accounting
import numpy as np
from dp_accounting.rdp import RdpAccountant

from uedp_ray.errors import InputError
from uedp_ray.privacy.mechanisms.base import MAX_COUNT

Method = Literal["uedp", "uedp_fe", "user_dp"]

MAX_ORDER = 1024
"""Moments take seconds beyond it. The published figures use 32 and 64."""
PUBLISHED_METHODS: tuple[str, ...] = get_args(Method)


def published_unit(method: str) -> str:
    """The unit that a method protects, as published."""
    return "user" if method == "user_dp" else "user-entity"


def noise_factor(
    num_users: int, user_sampling_prob: float, *, cohort: Literal["expected", "all"] = "expected"
) -> float:
    """Eq. 6 before its division, for weights w_u of 1: by how much z is multiplied in the sum of user updates.

    >>> from uedp_ray.privacy.published import noise_factor
    >>> noise_factor(946, 50 / 946), noise_factor(946, 50 / 946, cohort="all")    # the paper's; the patent's
    (51.0, 947.0)
    """
    return num_users * (user_sampling_prob if cohort == "expected" else 1.0) + 1


def published_epsilon(
    *,
    method: Method = "uedp",
    noise_multiplier: float,
    user_sampling_prob: float,
    entity_sampling_prob: float = 0.5,
    sensitive_fraction: float = 1.0,
    rounds: int,
    delta: float,
    max_order: int = 32,
) -> float:
    """min over integer lambda in 1..max_order of (rounds log-moment(lambda) + ln(1/delta)) / lambda.

    ``noise_multiplier``: the paper's z. ``sensitive_fraction``: sensitive sentences over all, used by ``uedp`` only.
    Guarantees: nothing. Raises: InputError for values out of range.

    Edge cases:

        >>> from uedp_ray.privacy.published import published_epsilon
        >>> def at(**changed):
        ...     settings = {"noise_multiplier": 2.0, "user_sampling_prob": 0.05, "rounds": 50, "delta": 1e-5}
        ...     return round(published_epsilon(**{**settings, **changed}), 3)
        >>> at(), at(method="uedp_fe"), at(method="user_dp")    # of these, only user_dp leaves out entity_sampling_prob
        (0.587, 0.587, 1.113)
        >>> at(rounds=0), at(user_sampling_prob=0.0), at(noise_multiplier=1e100)    # ln(1/delta) / max_order, never 0
        (0.36, 0.36, 0.36)
        >>> at(rounds=0, max_order=64), at(max_order=64)    # a smaller floor, where nothing else is above it
        (0.18, 0.587)
        >>> at(user_sampling_prob=1.0), at(user_sampling_prob=1.0, method="user_dp")
        (11.258, 24.013)
        >>> at(delta=1e-300)    # any delta above 0: there is no least one
        24.501
        >>> at(noise_multiplier=0.0)
        Traceback (most recent call last):
            ...
        uedp_ray.errors.InputError: noise_multiplier = 0.0: must lie in [1e-100, 1e100]
    """
    if method not in PUBLISHED_METHODS:
        raise InputError("method", method, f"choose one of {', '.join(PUBLISHED_METHODS)}")
    for name, value in (
        ("user_sampling_prob", user_sampling_prob),
        ("entity_sampling_prob", entity_sampling_prob),
        ("sensitive_fraction", sensitive_fraction),
    ):
        if not 0.0 <= value <= 1.0:
            raise InputError(name, value, "must lie in [0, 1]")
    if not 1e-100 <= noise_multiplier <= 1e100:
        raise InputError("noise_multiplier", noise_multiplier, "must lie in [1e-100, 1e100]")
    for name, count, least, most in (("rounds", rounds, 0, MAX_COUNT), ("max_order", max_order, 1, MAX_ORDER)):
        if type(count) is not int or not least <= count <= most:
            raise InputError(name, count, f"must be an integer, {least} to {most:g}")
    if not 0.0 < delta < 1.0:
        raise InputError("delta", delta, "must lie strictly between 0 and 1")
    prob = user_sampling_prob
    if method != "user_dp":
        prob *= entity_sampling_prob
    if method == "uedp":
        prob *= sensitive_fraction
    orders = np.arange(1, max_order + 1)
    moments = orders * np.array(_renyi(prob, noise_multiplier, max_order)) * rounds
    return float(np.min((moments - math.log(delta)) / orders))


@functools.lru_cache(maxsize=256)
def _renyi(prob: float, noise_multiplier: float, max_order: int) -> tuple[float, ...]:
    """Renyi divergences of one round at orders 2 .. max_order + 1."""
    orders = [order + 1.0 for order in range(1, max_order + 1)]
    accountant = RdpAccountant(orders)
    accountant.compose(dp_accounting.PoissonSampledDpEvent(prob, dp_accounting.GaussianDpEvent(noise_multiplier)))
    return tuple(accountant._rdp)  # its public methods convert by the later, tighter formula
