"""The noised releases a run may make, one file per mechanism: sampled rounds (``poisson``), and what ``RELEASES`` lists.

Example:

    >>> from uedp_ray.privacy.mechanisms import RELEASES, UnsupportedEvent, release_of
    >>> list(RELEASES)
    ['vocabulary']
    >>> event = {"kind": "vocabulary", "noise_multiplier": 10.0, "max_holders": 5, "threshold_delta": 1e-6}
    >>> release_of(event).cost("user-entity", "entity").gaussians    # (sensitivity, noise std)
    ((6.0, 10.0),)
    >>> try:
    ...     release_of({"kind": "histogram"})    # refused, never skipped
    ... except UnsupportedEvent as error:
    ...     print(error)
    kind = 'histogram': no accountant for this event: use the version that wrote the ledger
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from uedp_ray.errors import InputError
from uedp_ray.privacy.mechanisms.base import Mechanism
from uedp_ray.privacy.mechanisms.noisy_threshold import NoisyThreshold

RELEASES: dict[str, type[Mechanism]] = {each.kind: each for each in (NoisyThreshold,)}
"""Releases that are not rounds, by the ``kind`` of their ledger event."""


class UnsupportedEvent(InputError):
    """An event no accountant here can bound."""


def release_of(event: Mapping[str, Any]) -> Mechanism:
    """The release that an event records. Raises: UnsupportedEvent for an unknown kind; as ``Mechanism.from_event``."""
    kind = event.get("kind") if isinstance(event, Mapping) else None
    if not isinstance(kind, str) or kind not in RELEASES:
        raise UnsupportedEvent("kind", kind, "no accountant for this event: use the version that wrote the ledger")
    return RELEASES[kind].from_event(event)
