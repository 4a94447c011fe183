"""Figures of others' subsampled Gaussians, which need no data: recomputed as they were printed, and by our accountants."""

from __future__ import annotations

import math

import dp_accounting
import pytest
from dp_accounting.rdp import RdpAccountant

from uedp_ray.privacy.accounting import epsilon
from uedp_ray.privacy.mechanisms.poisson import RoundMechanism
from uedp_ray.privacy.published import published_epsilon

ORDERS = [1.25, 1.5, 1.75, 2, 2.25, 2.5, 3, 3.5, 4, 4.5, *range(5, 64), 128, 256, 512]
"""Of TensorFlow Privacy, with which they were computed."""
NOISES = (0.5, 1.0, 5.0, 10.0, 50.0)
RECORDS = 14_987  # sentences of CoNLL-2003


def of_client(num_clients: int, batch: int) -> tuple[float, int]:
    """q and T of ten epochs over a client's share of the sentences."""
    held = RECORDS / num_clients
    return batch / held, round(10 * held / batch)


FEDERATED = [
    *(
        (1 / RECORDS, 149_870, 1e-5, z, e)
        for z, e in zip(NOISES, (3.7276, 0.6876, 0.0486, 0.0242, 0.0226), strict=True)
    ),
    *((32 / RECORDS, 4_683, 1e-5, z, e) for z, e in zip(NOISES, (9.7348, 1.3669, 0.147, 0.0728, 0.0247), strict=True)),
    *((*of_client(n, 32), 1e-5, 1.0, e) for n, e in ((2, 1.715), (5, 2.636), (10, 3.82), (15, 4.778), (20, 5.597))),
    *((*of_client(n, 1), 1e-5, 1.0, e) for n, e in ((2, 0.74), (5, 0.866), (10, 0.982), (15, 1.082), (20, 1.191))),
]
USERS = [
    (5_000 / 392_000, 8_000, 1e-7, z, e)
    for z, e in ((0.756, 18.78), (1.0, 10.12), (1.5, 5.35), (2.0, 3.7), (2.5, 2.85))
]
BY_THEOREM = {0.756: 17.64, 1.0: 9.4, 1.5: 4.87, 2.0: 3.33, 2.5: 2.54}
"""Of ``USERS``, by the conversion of Canonne, Kamath and Steinke 2020 instead of the classic one."""


@pytest.mark.parametrize(("prob", "rounds", "delta", "noise", "printed"), [*FEDERATED, *USERS])
def test_ours_is_below_what_was_printed(prob, rounds, delta, noise, printed):
    accountant = RdpAccountant(ORDERS)
    accountant.compose(dp_accounting.PoissonSampledDpEvent(prob, dp_accounting.GaussianDpEvent(noise)), rounds)
    moments = accountant._rdp
    classic = min(m + math.log(1 / delta) / (order - 1) for m, order in zip(moments, ORDERS, strict=True))
    assert classic == pytest.approx(printed, abs=6e-3 if rounds == 8_000 else 1e-3)
    one = RoundMechanism(noise_multiplier=noise, user_sampling_prob=prob)
    sound, renyi = (epsilon(one, rounds=rounds, delta=delta, unit="user", accountant=name) for name in ("pld", "renyi"))
    assert 0 < sound <= renyi < printed


@pytest.mark.parametrize(("prob", "rounds", "delta", "noise", "printed"), USERS)
def test_the_conversion_by_theorem(prob, rounds, delta, noise, printed):
    """Ours is of finer orders: lower where the best lies between two integers, at little noise."""
    one = RoundMechanism(noise_multiplier=noise, user_sampling_prob=prob)
    found = epsilon(one, rounds=rounds, delta=delta, unit="user", accountant="renyi")
    assert BY_THEOREM[noise] * 0.997 < found < BY_THEOREM[noise] + 5e-3 < printed


@pytest.mark.parametrize(
    ("prob", "rounds", "delta", "noise", "printed", "as_published"),
    [(*FEDERATED[i], e) for i, e in ((0, 3.945), (1, 0.6876), (2, 0.0306), (6, 1.3669), (7, 0.1431), (9, 0.0247))]
    + [(*USERS[0], 18.777), (*USERS[3], 3.6996)],
)
def test_the_published_accountant_differs_by_its_orders_alone(prob, rounds, delta, noise, printed, as_published):
    """Integers up to 512: above what was printed where the best order is a fraction, below where it lies beyond 63."""
    found = published_epsilon(
        method="user_dp", noise_multiplier=noise, user_sampling_prob=prob, rounds=rounds, delta=delta, max_order=511
    )
    assert found == pytest.approx(as_published, abs=1e-3)


def test_the_first_orders_floor():
    assert math.log(1e5) / 511 == pytest.approx(0.0225, abs=5e-5)
    quiet = RoundMechanism(noise_multiplier=50.0, user_sampling_prob=1 / RECORDS)
    assert epsilon(quiet, rounds=149_870, delta=1e-5, unit="user", accountant="renyi") < 0.0225 / 5
