"""What is legal and yet no use: a delta that protects nobody, noise under which nothing can be learnt.

    cautions(mechanism, delta=1e-5, num_users=1000)     # [] or sentences that name the remedy

Inputs are public.
"""

from __future__ import annotations

from uedp_ray.privacy.mechanisms.poisson import RoundMechanism


def cautions(mechanism: RoundMechanism, *, delta: float, num_users: int) -> list[str]:
    """Sentences to show before anything is trained.

    Noise is too much where its standard deviation, in one coordinate, is above the norm of the sum of a whole expected
    cohort whose updates all point one way: q_u ``num_users`` times the bound on one update. In P coordinates its norm is
    sqrt(P) times as large, and T rounds make up for sqrt(T) of that.
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
            "or user_sampling_prob, do fewer rounds, or bring more users"
        )
    return found
