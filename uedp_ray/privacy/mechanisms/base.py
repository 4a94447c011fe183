"""Mechanisms: what is charged for, as the ledger records it and accountants bound it.

A mechanism is a frozen dataclass of public parameters that subclasses ``Mechanism``. One that does not override ``cost``
bounds nothing: every epsilon it enters is infinite. One without an ``event_kind`` or a ``from_event`` is not registered.

Example:

    >>> from dataclasses import dataclass
    >>> from uedp_ray.privacy.events import Charges, epsilon_of_charges
    >>> from uedp_ray.privacy.mechanisms.base import Cost, Mechanism
    >>> @dataclass(frozen=True)
    ... class UserCount(Mechanism):
    ...     event_kind = "user_count"
    ...     noise_multiplier: float
    ...
    ...     def cost(self, unit, kind):    # a user moves the count by 1; an entity moves no user
    ...         return Cost(gaussians=((0.0 if unit == "entity" else 1.0, self.noise_multiplier),))
    >>> counts = Charges((), (UserCount(10.0), UserCount(10.0)))
    >>> round(epsilon_of_charges(counts, delta=1e-5, unit="user"), 3), epsilon_of_charges(counts, delta=1e-5, unit="entity")
    (0.497, 0.0)
    >>> class Bare(Mechanism):    # does not say what it costs
    ...     event_kind = "bare"
    >>> epsilon_of_charges(Charges((), (Bare(),)), delta=1e-5, unit="user")
    inf
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterable, Mapping, Sized
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from uedp_ray.components import drop_inherited
from uedp_ray.errors import InputError

MOST_OF_ONE_RUN = 64
"""The most mechanisms in what one run is charged, planned or read off its ledger; a run has one, and each takes a while."""
MAX_COUNT = 10**10
"""The most users, holders or rounds: more than exist, and as many as can be accounted for within seconds."""


@dataclass(frozen=True)
class Cost:
    """Releases that dominate a mechanism's, composed: what accountants know how to add up. Units: beta = 1."""

    rounds: tuple[tuple[Mechanism, int], ...] = ()
    """Poisson-sampled rounds (``poisson.RoundMechanism``), each with a count."""
    gaussians: tuple[tuple[float, float], ...] = ()
    """(L2 sensitivity, noise std) of plain Gaussian releases, for the unit and kind that were asked for."""
    failure_prob: float = 0.0
    """Probability of an outcome that nothing else here covers; taken off delta."""

    @property
    def is_stated(self) -> bool:
        """Whether it says anything: an empty one is no bound of 0."""
        return bool(self.rounds or self.gaussians or self.failure_prob)

    def times(self, count: int) -> Cost:
        """The cost of as many releases."""
        rounds = tuple((mechanism, number * count) for mechanism, number in self.rounds)
        return Cost(rounds, self.gaussians * count, self.failure_prob * count)

    def __post_init__(self) -> None:
        check_gaussians(self.gaussians)
        if not is_finite(self.failure_prob) or self.failure_prob < 0.0:
            raise InputError("failure_prob", self.failure_prob, "must be a finite number, 0 or more")


@dataclass(frozen=True)
class Mechanism:
    """The public parameters of a noised release."""

    event_kind: ClassVar[str] = ""
    """The ``kind`` of its ledger event; an event without one is refused."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        drop_inherited(
            cls, Mechanism, "event_kind", "cost", "from_event"
        )  # or its event is read and priced as another's

    def cost(self, unit: str, kind: str) -> Cost | None:
        """The cost of one release for a protected ``unit``; ``kind``: entity or extended (``units.KINDS``).

        Returns: None if there is no bound, the default, or a cost that says something: of a release that the unit does not
          move, a Gaussian of sensitivity 0. Only what is proved (docs/accounting.md) is returned.
        """
        return None

    def to_dict(self) -> dict[str, Any]:
        """Plain values, complete and in field order."""
        return dataclasses.asdict(self)

    def to_event(self) -> dict[str, Any]:
        """``to_dict`` with the kind: what ``mechanisms.release_of`` reads."""
        return {"kind": self.event_kind, **self.to_dict()}

    @classmethod
    def from_event(cls, event: Mapping[str, Any]) -> Self:
        """Reads the event of a ledger. Raises: InputError for a field that is missing or out of range."""
        raise NotImplementedError(f"{cls.__name__} does not say how its event is read")


def is_finite(value: object) -> bool:
    """Whether ``value`` is a number (a bool is not) that a float can hold."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return abs(value) <= sys.float_info.max  # an int may be larger than any float


def check_gaussians(gaussians: Iterable[tuple[float, float]]) -> None:
    """Raises: InputError for a sensitivity below 0, noise of 0 or less, and what is no number: it would cost nothing."""
    for sensitivity, noise_std in gaussians:
        if not (is_finite(sensitivity) and is_finite(noise_std) and sensitivity >= 0.0 < noise_std):
            raise InputError(
                "gaussians", (sensitivity, noise_std), "must be a sensitivity of 0 or more and noise above 0"
            )


def check_counts(parts: Iterable[tuple[Mechanism, int]]) -> None:
    for _, count in parts:
        if type(count) is not int or not 0 <= count <= MAX_COUNT:
            raise InputError("rounds", count, f"must be an integer, 0 to {MAX_COUNT:g}")


def check_of_one_run(parts: Sized, field: str) -> None:
    """Raises: InputError for more mechanisms than any run has, as in a file of somebody else."""
    if len(parts) > MOST_OF_ONE_RUN:
        raise InputError(field, len(parts), f"has more mechanisms than any run ({MOST_OF_ONE_RUN})")


def field_of(event: Mapping[str, Any], name: str) -> Any:
    if name not in event:
        raise InputError(_named(event, name), None, "is missing from the event")
    return event[name]


def mapping_of(event: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = field_of(event, name)
    if not isinstance(found, Mapping):
        raise InputError(_named(event, name), found, "must be a mapping")
    return found


def count_of(event: Mapping[str, Any], name: str) -> int:
    found = field_of(event, name)
    if type(found) is not int or not 0 <= found <= MAX_COUNT:
        raise InputError(_named(event, name), found, f"must be an integer, 0 to {MAX_COUNT:g}")
    return found


def number_of(event: Mapping[str, Any], name: str) -> float:
    found = field_of(event, name)
    if not is_finite(found):
        raise InputError(_named(event, name), found, "must be a finite number")
    return float(found)


def _named(event: Mapping[str, Any], name: str) -> str:
    return f"{event['kind']}.{name}" if isinstance(event.get("kind"), str) else f"ledger.{name}"
