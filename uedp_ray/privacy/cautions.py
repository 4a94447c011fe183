"""Warns of valid but useless settings: an epsilon or a delta that protects nobody, noise under which nothing can be learnt.

    >>> from uedp_ray.privacy.cautions import cautions, weakness
    >>> from uedp_ray.privacy.mechanisms.poisson import RoundMechanism
    >>> one = RoundMechanism(noise_multiplier=2.0, user_sampling_prob=0.05)
    >>> cautions(one, delta=1e-5, num_users=1000)
    []
    >>> print(*cautions(one, delta=0.01, num_users=1000))
    delta = 0.01 is not below 1 / 1000 declared users: it allows publishing a user's text outright; choose 1e-05 or so
    >>> print(cautions(one, delta=1e-5, num_users=20)[0].partition(": ")[2])    # of noise above any sum of updates
    nothing can be learnt; raise epsilon or user_sampling_prob, run fewer rounds, or bring more users
    >>> weakness(2.0), weakness(12.0)[0].rpartition("the odds of ")[2]
    ([], 'a guess about the protected unit by a factor of 162,755')

Inputs are public.
"""

from __future__ import annotations

import math

from uedp_ray.privacy.mechanisms.poisson import RoundMechanism
from uedp_ray.privacy.statement import show_epsilon

LARGE_EPSILON = 10.0
"""Above it a guarantee is weak to none (Ponomareva et al., arXiv 2303.00654, section 5.2)."""

_MOST_SHOWN = 1e6


def weakness(epsilon: float) -> list[str]:
    """Says what an epsilon above ``LARGE_EPSILON`` allows; empty for a smaller one, and for infinity."""
    if not LARGE_EPSILON < epsilon < math.inf:
        return []
    tenths = math.ceil(min(epsilon, _MOST_SHOWN) / math.log(10) * 10)
    factor = f"{math.ceil(math.exp(epsilon)):,}" if epsilon < 14 else f"10^{tenths / 10:.1f}"
    factor += " or more" if epsilon > _MOST_SHOWN else ""
    return [
        f"epsilon = {show_epsilon(epsilon)} is above {LARGE_EPSILON:g}: a weak guarantee, which allows what is "
        f"published to raise the odds of a guess about the protected unit by a factor of {factor}"
    ]


def cautions(mechanism: RoundMechanism, *, delta: float, num_users: int) -> list[str]:
    """Sentences to show before anything is trained.

    Noise is too much where its standard deviation, in one coordinate, is above the norm of the sum of a whole expected
    cohort whose updates all point one way: q_u ``num_users`` times the bound on one update. In P coordinates the noise has
    sqrt(P) times that norm, and T rounds make up for sqrt(T) of it.
    """
    found = []
    if num_users and delta >= 1.0 / num_users:
        found.append(
            f"delta = {delta:g} is not below 1 / {num_users} declared users: it allows publishing a user's text outright; "
            f"choose {0.01 / num_users:.0e} or so"
        )
    signal = mechanism.user_sampling_prob * num_users
    if mechanism.noise_multiplier > signal:
        ratio = f"{mechanism.noise_multiplier / signal:.3g} times" if signal else "without limit above"
        found.append(
            f"the noise, {mechanism.noise_multiplier:.3g} in every coordinate, is {ratio} the largest sum that an expected "
            f"cohort of {signal:.3g} users can give (both in units of l2_clip_norm): nothing can be learnt; raise epsilon "
            "or user_sampling_prob, run fewer rounds, or bring more users"
        )
    return found
