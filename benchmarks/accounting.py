"""CPU seconds (one thread) for an epsilon, a calibration and a repeated call; run: python benchmarks/accounting.py"""
# ruff: noqa: E402 - threads must be limited before numpy is imported

from __future__ import annotations

import os

for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[variable] = "1"

import dataclasses
import itertools
import time
from collections.abc import Callable

from dp_accounting.pld import privacy_loss_distribution

from uedp_ray.privacy import accounting, composition, renyi
from uedp_ray.privacy.mechanisms.poisson import RoundMechanism

BASE = RoundMechanism(
    noise_multiplier=2.0,
    user_sampling_prob=0.05,
    entity_sampling_prob=0.5,
    max_holders=10,
    entity_clip=0.2,
    extended_clip=0.2,
)
CALL = {"rounds": 50, "delta": 1e-5}


def seconds(what: Callable[[], float], *, cold: bool = True, repeat: int = 3) -> tuple[float, float]:
    """Returns (median CPU seconds, answer); ``cold`` clears the caches before each call."""
    taken = []
    for _ in range(repeat):
        if cold:
            for cache in (accounting._epsilon, composition._one_round, renyi._one_round):
                cache.cache_clear()
        start = time.process_time()
        answer = what()
        taken.append(time.process_time() - start)
    return sorted(taken)[repeat // 2], answer


def library() -> float:
    """Epsilon for K = 1, entity only: the label by hand, each case with the library's own constructor."""
    mixture = privacy_loss_distribution.from_mixture_gaussian_mechanism(
        2.0, [0.0, 0.2], [0.5, 0.5], value_discretization_interval=1e-3
    )
    nothing = privacy_loss_distribution.identity(value_discretization_interval=1e-3)
    return mixture.compute_mixture(nothing, 0.05).self_compose(50).get_epsilon_for_delta(1e-5)


def main() -> None:
    accounting.epsilon(dataclasses.replace(BASE, max_holders=2), **CALL)  # imports and first-call costs
    many = dataclasses.replace(BASE, max_holders=50)
    spread = dataclasses.replace(BASE, max_holders=5, holder_bound="reweight", max_users=100_000)
    one = dataclasses.replace(BASE, max_holders=1)
    more = itertools.count(51)
    rows = [
        ("epsilon, K = 10", *seconds(lambda: accounting.epsilon(BASE, **CALL))),
        ("epsilon, K = 50", *seconds(lambda: accounting.epsilon(many, **CALL))),
        (
            "epsilon, K = 50, per_user",
            *seconds(lambda: accounting.epsilon(dataclasses.replace(many, entity_draw="per_user"), **CALL)),
        ),
        ("epsilon, K = 5, reweight up to 100,000", *seconds(lambda: accounting.epsilon(spread, **CALL))),
        ("noise for epsilon 4, K = 10", *seconds(lambda: accounting.calibrate(BASE, target_epsilon=4.0, **CALL))),
        (
            "noise for epsilon 4, K = 5, reweight",
            *seconds(lambda: accounting.calibrate(spread, target_epsilon=4.0, **CALL)),
        ),
        (
            "another round, K = 5, reweight",
            *seconds(lambda: accounting.epsilon(spread, rounds=next(more), delta=1e-5), cold=False),
        ),
        ("Renyi epsilon, K = 50", *seconds(lambda: accounting.epsilon(many, **CALL, accountant="renyi"))),
        ("repeated call", *seconds(lambda: accounting.epsilon(BASE, **CALL), cold=False, repeat=101)),
    ]
    ours = seconds(lambda: accounting.epsilon(one, **CALL, unit="entity", kind="entity"))
    theirs = seconds(library, repeat=1)
    rows += [("K = 1, entity only: here", *ours), ("K = 1, entity only: dp_accounting's mixtures", *theirs)]
    for name, taken, answer in rows:
        print(f"{name:48s} {taken:9.5f} s   {answer:.5g}")
    print(f"{'ratio of the last two':48s} {theirs[0] / ours[0]:9.1f}")


if __name__ == "__main__":
    main()
