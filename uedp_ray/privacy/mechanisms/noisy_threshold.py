"""A vocabulary of the words whose noised count passes a threshold: one release before the first round.

    >>> from uedp_ray.privacy.mechanisms.noisy_threshold import NoisyThreshold
    >>> words = NoisyThreshold(noise_multiplier=10.0, max_holders=5, threshold_delta=1e-6)
    >>> [words.sensitivity(unit, "entity") for unit in ("user", "entity", "user-entity")]
    [1.0, 5.0, 6.0]
    >>> twice = words.cost("user", "entity").times(2)
    >>> twice.gaussians, twice.failure_prob
    (((1.0, 10.0), (1.0, 10.0)), 2e-06)
    >>> for_users = NoisyThreshold(noise_multiplier=10.0, max_holders=None, threshold_delta=1e-6)
    >>> for_users.sensitivity("user", "entity"), for_users.sensitivity("entity", "entity")    # infinite: its cost is None
    (1.0, inf)

Proof: docs/accounting.md, "Vocabulary".
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from uedp_ray.errors import InputError
from uedp_ray.privacy.mechanisms.base import Cost, Mechanism, count_of, field_of, number_of


@dataclass(frozen=True)
class NoisyThreshold(Mechanism):
    """Word counts with Gaussian noise, thresholded."""

    event_kind = "vocabulary"

    noise_multiplier: float
    max_holders: int | None
    threshold_delta: float
    """Probability that a word appears that only the protected user and entity hold; to be taken off delta."""

    def cost(self, unit: str, kind: str) -> Cost | None:
        sensitivity = self.sensitivity(unit, kind)
        if math.isinf(sensitivity):
            return None
        return Cost(gaussians=((sensitivity, self.noise_multiplier),), failure_prob=self.threshold_delta)

    def sensitivity(self, unit: str, kind: str) -> float:
        """L2 norm by which the word counts move: 1 for the user, 1 for each holder of the entity."""
        if unit == "user":
            return 1.0
        if not self.max_holders:  # counted, and its threshold set, for users alone
            return math.inf
        holders = 1.0 if kind == "extended" else float(self.max_holders)
        return holders if unit == "entity" else 1.0 + holders

    @classmethod
    def from_event(cls, event: Mapping[str, Any]) -> NoisyThreshold:
        noise, holders = number_of(event, "noise_multiplier"), field_of(event, "max_holders")
        if noise <= 0.0:
            raise InputError("vocabulary.noise_multiplier", noise, "must be above 0")
        share = number_of(event, "threshold_delta")
        if not 0.0 <= share < 1.0:
            raise InputError("vocabulary.threshold_delta", share, "must lie in [0, 1)")
        return cls(noise, None if holders is None else count_of(event, "max_holders"), share)
