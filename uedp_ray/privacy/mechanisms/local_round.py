"""One user's steps of DP-SGD in one round, noised by that user before anything of them is sent.

    >>> from uedp_ray.privacy.events import epsilon_of_events
    >>> from uedp_ray.privacy.mechanisms.local_round import LocalRound
    >>> one = LocalRound(noise_multiplier=1.0, sampling_prob=0.1, steps=10)
    >>> LocalRound.from_event(one.to_event()) == one
    True
    >>> one.cost("user", "entity") is None, epsilon_of_events([one.to_event()], delta=1e-5, unit="user")
    (True, inf)

What it bounds is one sentence (``privacy.local.local_dp_sgd``). Of users and entities it bounds nothing: a user's sentences
together move each step by more than any clip says. Every field is public.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from uedp_ray.errors import InputError
from uedp_ray.privacy.mechanisms.base import Mechanism, count_of, number_of


@dataclass(frozen=True, kw_only=True)
class LocalRound(Mechanism):
    """``steps`` releases R = sum over drawn sentences of clipped gradients + N(0, (z C)^2 I), from one after the other's
    parameters. The user draws each of its sentences with ``sampling_prob``, anew and in secret, for each."""

    event_kind = "local_round"

    noise_multiplier: float
    """z: std of the noise of a step over the bound C on a sentence's gradient."""
    sampling_prob: float
    steps: int

    def __post_init__(self) -> None:
        if not 1e-100 <= self.noise_multiplier <= 1e100:
            raise InputError("noise_multiplier", self.noise_multiplier, "must lie in [1e-100, 1e100]")
        if not 0.0 <= self.sampling_prob <= 1.0:
            raise InputError("sampling_prob", self.sampling_prob, "a probability lies in [0, 1]")
        count_of({"steps": self.steps}, "steps")

    @classmethod
    def from_event(cls, event: Mapping[str, Any]) -> LocalRound:
        return cls(
            noise_multiplier=number_of(event, "noise_multiplier"),
            sampling_prob=number_of(event, "sampling_prob"),
            steps=count_of(event, "steps"),
        )
