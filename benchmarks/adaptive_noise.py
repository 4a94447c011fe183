"""What an adaptive search of N runs under one budget costs each run in noise: python benchmarks/adaptive_noise.py

Noise over that with which N copies of the very run, fixed beforehand, would cost the budget: under the filter of
``privacy.odometer``, and if instead every run's profile had to lie below one that was fixed beforehand, N copies of which
cost the budget (the theorem of docs/accounting.md, "Pilots"). The fixed one is that of the first row; what a profile may
exceed it by is a thousandth of a run's share of delta.
"""

from __future__ import annotations

import math

import numpy as np
from scipy import optimize

from uedp_ray.privacy.accounting import calibrate
from uedp_ray.privacy.composition import composed_losses
from uedp_ray.privacy.events import Charges
from uedp_ray.privacy.mechanisms.poisson import RoundMechanism
from uedp_ray.privacy.odometer import filter_of

RUNS, TARGET, DELTA = 8, 8.0, 1e-5
POINTS = [  # q_u, sentence clip, rounds
    (0.25, 0.4, 16),
    (0.5, 0.4, 8),
    (0.1, 0.4, 40),
    (0.4, 0.2, 15),
    (0.4, 0.6, 15),
    (0.2, 0.4, 10),
    (0.5, 0.4, 20),
]
GRID = np.linspace(-3.0, TARGET, 200)
SLACK = 1e-3 * DELTA / RUNS


def mechanism(share: float, clip: float, noise: float = 1.0) -> RoundMechanism:
    return RoundMechanism(
        noise_multiplier=noise, user_sampling_prob=share, max_holders=1, entity_clip=clip, extended_clip=clip
    )


def alone(share: float, clip: float, rounds: int) -> float:
    """The noise with which RUNS copies cost the target."""
    one = mechanism(share, clip)
    return calibrate(one, target_epsilon=TARGET, rounds=RUNS * rounds, delta=DELTA, kind="entity")


def profiles(one: RoundMechanism, rounds: int) -> np.ndarray:
    """(2, G) of a whole run, by direction, at GRID."""
    found = composed_losses([(one, rounds)], "user-entity", "entity", DELTA / RUNS)
    assert found is not None
    rows = []
    for each in found:
        rest_GG = np.maximum(each.loss_G - GRID[:, None], 0.0)
        rows.append((each.mass_G * -np.expm1(-rest_GG)).sum(1) + each.infinite + each.lost)
    return np.stack(rows)


def excess(log_ratio: float, point: tuple[float, float, int], own: float, largest: np.ndarray) -> float:
    """By how much a run with so much more noise than its own has a larger profile somewhere."""
    share, clip, rounds = point
    return float((profiles(mechanism(share, clip, own * math.exp(log_ratio)), rounds) - largest).max() - SLACK)


def planned(point: tuple[float, float, int], noise: float) -> Charges:
    share, clip, rounds = point
    return Charges(((mechanism(share, clip, noise), rounds),))


def main() -> None:
    share, clip, rounds = POINTS[0]
    largest = profiles(mechanism(share, clip, alone(*POINTS[0])), rounds)
    filtering = filter_of(lambda noise: planned(POINTS[0], noise), runs=RUNS, target=TARGET, delta=DELTA)
    print(f"{'q_u':>5} {'clip':>5} {'T':>4} {'noise':>7} {'filter':>7} {'below one profile':>18}")
    for point in POINTS:
        own = alone(*point)
        below = math.exp(optimize.brentq(excess, -0.2, 0.5, args=(point, own, largest), xtol=1e-3))
        filtered = filtering.least_noise(lambda noise, point=point: planned(point, noise))  # type: ignore[misc]
        print("{:5} {:5} {:4}".format(*point), f"{own:7.3f} {filtered / own:7.3f} {below:18.3f}")


if __name__ == "__main__":
    main()
