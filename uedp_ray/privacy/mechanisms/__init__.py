"""The noised releases a run may make, one file per mechanism: sampled rounds (``poisson``), and what ``RELEASES`` lists.

Example:

    >>> from uedp_ray.privacy.mechanisms import UnsupportedEvent, release_of
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
from uedp_ray.privacy.mechanisms.local_round import LocalRound
from uedp_ray.privacy.mechanisms.noisy_threshold import NoisyThreshold

OTHER_EVENTS = ("round", "open", "plan", "unprotected")
"""Kinds of a ledger's events that are no mechanism's: ``events.charges`` reads them itself."""


class UnsupportedEvent(InputError):
    """An event no accountant here can bound."""


def by_kind(*mechanisms: type[Mechanism]) -> dict[str, type[Mechanism]]:
    """Mechanisms by their kind. Raises: TypeError for a kind that is missing or taken, and for one that reads no event."""
    found: dict[str, type[Mechanism]] = {}
    for each in mechanisms:
        if not each.event_kind:
            raise TypeError(f"{each.__name__} states no event_kind, which its ledger event needs")
        if each.event_kind in OTHER_EVENTS:
            raise TypeError(f"the event_kind of {each.__name__}, {each.event_kind!r}, is read by privacy.events itself")
        if each.event_kind in found:
            raise TypeError(
                f"the event_kind of {each.__name__}, {each.event_kind!r}, is that of {found[each.event_kind].__name__} too"
            )
        if vars(each)["from_event"] is vars(Mechanism)["from_event"]:
            raise TypeError(f"{each.__name__} has no from_event, which reads its ledger event")
        found[each.event_kind] = each
    return found


RELEASES = by_kind(NoisyThreshold, LocalRound)
"""Releases by the ``kind`` of their ledger event, but for the rounds of which a noised sum is released."""
ROUNDS = ("round", LocalRound.event_kind)
"""Kinds of events of rounds that are noised: once by the driver, or by each user."""


def release_of(event: Mapping[str, Any]) -> Mechanism:
    """The release that an event records. Raises: UnsupportedEvent for an unknown kind; as ``Mechanism.from_event``."""
    kind = event.get("kind") if isinstance(event, Mapping) else None
    if not isinstance(kind, str) or kind not in RELEASES:
        raise UnsupportedEvent("kind", kind, "no accountant for this event: use the version that wrote the ledger")
    return RELEASES[kind].from_event(event)
