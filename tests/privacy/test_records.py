"""One record among others of its user: what it costs, against the mechanism itself, summed over the plane."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import norm

from uedp_ray.privacy.events import Charges, epsilon_of_charges
from uedp_ray.privacy.mechanisms.poisson import RoundMechanism

DELTA = 1e-5
WITH, WITHOUT = np.array([math.sqrt(3) / 2, 0.5]), np.array([math.sqrt(3) / 2, -0.5])
"""Projected sums of a user's clipped gradients (1, 0) turned by -30 and 90 degrees, and of the first alone."""


def attained(arms: tuple[np.ndarray, np.ndarray], prob: float, noise: float, rounds: int, at: float) -> float:
    """delta at epsilon ``at`` of the composed rounds, from below: every loss is rounded down to a multiple of ``step``."""
    step, side = 1e-4, np.linspace(-9 * noise - 1, 9 * noise + 1, 1201)
    x, y = np.meshgrid(side, side, indexing="ij")
    with_x, without = (1 - prob + prob * np.exp((arm[0] * x + arm[1] * y - 0.5) / noise**2) for arm in arms)
    mass, loss = np.exp(-(x**2 + y**2) / (2 * noise**2)) * with_x, np.log(with_x / without)
    mass /= mass.sum()
    mean = float((mass * loss).sum())
    std = math.sqrt(rounds * float((mass * (loss - mean) ** 2).sum()))
    steps = np.floor(loss / step).astype(int).ravel()
    size = 1 << math.ceil(math.log2(max(2 * np.ptp(steps), (at + 40 * std) / step)))
    pmf = np.bincount(steps - steps.min(), weights=mass.ravel())
    composed = np.maximum(np.fft.irfft(np.fft.rfft(pmf, size) ** rounds, size), 0)
    middle = round(rounds * mean / step)
    place = (np.arange(size) + rounds * int(steps.min()) - middle + size // 2) % size - size // 2 + middle
    return float((composed * np.maximum(1 - np.exp(np.minimum(at - place * step, 1.0)), 0)).sum())


def of_record(prob: float, noise: float, rounds: int, *, dealt: bool) -> float:
    one = RoundMechanism(noise_multiplier=noise, user_sampling_prob=prob, extended_clip=1.0)
    charged = Charges(((one, rounds),), of_records=True, dealt=dealt)
    return epsilon_of_charges(charged, delta=DELTA, unit="record")


def test_the_pair_is_one_that_two_sentences_clipped_to_the_users_norm_make():
    first, second = WITHOUT, np.array([0.0, 1.0])
    assert np.linalg.norm(first) == pytest.approx(np.linalg.norm(second)) == pytest.approx(1.0)
    np.testing.assert_allclose((first + second) / max(1.0, np.linalg.norm(first + second)), WITH)
    assert np.linalg.norm(WITH - WITHOUT) == pytest.approx(1.0)


@pytest.mark.parametrize(("prob", "noise", "rounds"), [(0.01, 0.7, 10_000), (0.005, 0.5, 10_000)])
def test_what_hides_a_user_does_not_hide_one_of_several_records(prob, noise, rounds):
    of_user = of_record(prob, noise, rounds, dealt=False)
    assert attained((WITH, WITHOUT), prob, noise, rounds, of_user) > 3 * DELTA, "from below: it is no bound"
    found = of_record(prob, noise, rounds, dealt=True)
    assert attained((WITH, WITHOUT), prob, noise, rounds, found) <= DELTA
    assert of_user < found < 1.4 * of_user, "the draw of its user still hides it"


def of_dealt(
    accountant: str = "pld", *, prob: float = 0.3, noise: float = 2.0, rounds: int = 12, **changed: float
) -> float:
    one = RoundMechanism(noise_multiplier=noise, user_sampling_prob=prob, **{"extended_clip": 0.4, **changed})
    charged = Charges(((one, rounds),), of_records=True, dealt=True)
    return epsilon_of_charges(charged, delta=DELTA, unit="record", accountant=accountant)


@pytest.mark.parametrize("accountant", ["pld", "renyi"])
def test_a_record_with_a_small_clip_costs_a_gaussian_in_each_round_that_draws_its_user(accountant):
    """Of whose draw the others tell: delta is a binomial mean of closed forms, which no bound may go below."""
    prob, noise, rounds, clip = 0.3, 2.0, 12, 0.4
    weights = [math.comb(rounds, n) * prob**n * (1 - prob) ** (rounds - n) for n in range(rounds + 1)]
    mu = clip / noise * np.sqrt(np.arange(1, rounds + 1))

    def delta(at: float) -> float:
        each = norm.cdf(mu / 2 - at / mu) - math.exp(at) * norm.cdf(-mu / 2 - at / mu)
        return float(np.array(weights[1:]) @ each)

    found = of_dealt(accountant)
    assert delta(found) <= DELTA
    assert delta(0.995 * found if accountant == "pld" else 0.5 * found) > DELTA


def test_a_record_is_charged_as_used_whenever_its_user_is_drawn():
    """One with entities is used where those without are not (f_E: q_s = 0), which would cost nothing."""
    assert of_dealt(extended_sampling_prob=0.0) == of_dealt() > 0.0


def test_what_replacing_a_user_costs_is_the_most_that_a_record_does():
    whole = of_dealt(extended_clip=1.0)
    assert of_dealt() < whole == of_dealt(extended_clip=0.99)
    assert of_dealt("renyi") > of_dealt()
    assert of_dealt("renyi", extended_clip=1.0) > whole, "which is no figure of that accountant"
