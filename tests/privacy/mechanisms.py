"""The round that tests of the accountants start from, and the specification's table."""

from __future__ import annotations

import dataclasses

from uedp_ray.privacy.mechanisms.poisson import RoundMechanism

BASE = RoundMechanism(
    noise_multiplier=2.0,
    user_sampling_prob=0.05,
    entity_sampling_prob=0.5,
    max_holders=10,
    entity_clip=0.2,
    extended_clip=0.0,
)


def change(mechanism: RoundMechanism = BASE, **fields: object) -> RoundMechanism:
    return dataclasses.replace(mechanism, **fields)


# z, q_u, q_e, K, entity_clip, T, epsilon under all, under any: the specification's table.
REFERENCE = [
    (2.0, 0.05, 0.5, 0, 0.0, 50, 0.782, 0.782),
    (2.0, 0.05, 0.5, 1, 0.2, 50, 0.943, 1.250),
    (2.0, 0.05, 0.5, 10, 0.2, 50, 2.012, 3.485),
    (1.0, 0.05, 0.5, 10, 0.1, 200, 6.904, 9.867),
    (0.8, 0.02, 0.3, 5, 0.2, 500, 5.984, 12.338),
    (2.0, 0.05, 0.5, 1, 2.0, 50, 7.413, 12.546),
]
REWEIGHT = RoundMechanism(
    noise_multiplier=1.0,
    user_sampling_prob=0.1,
    entity_sampling_prob=0.5,
    max_holders=5,
    entity_clip=0.2,
    holder_bound="reweight",
    max_users=2000,
)
