"""The public parameters of one noised round: everything an accountant needs, and nothing else.

    >>> from uedp_ray.privacy.accounting import epsilon
    >>> from uedp_ray.privacy.mechanisms.poisson import RoundMechanism
    >>> one = RoundMechanism(
    ...     noise_multiplier=2.0, user_sampling_prob=0.05, entity_sampling_prob=0.5, max_holders=10, entity_clip=0.2
    ... )
    >>> round(epsilon(one, rounds=50, delta=1e-5, kind="entity"), 3)
    2.013
    >>> bare = RoundMechanism(noise_multiplier=2.0, user_sampling_prob=0.05)
    >>> bare.max_holders, bare.entity_clip, epsilon(bare, rounds=50, delta=1e-5, kind="entity")
    (None, 2.0, inf)

Every field is public. Norms are in units of beta, the bound on one user's update (``l2_clip_norm``). A bound that is left
out bounds nothing.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from uedp_ray.errors import InputError
from uedp_ray.privacy.mechanisms.base import MAX_COUNT, Cost, Mechanism, is_finite

_PROBABILITIES = ("user_sampling_prob", "entity_sampling_prob", "extended_sampling_prob")
_CHOICES = {
    "selection_rule": ("all", "any"),
    "entity_draw": ("global", "per_user"),
    "holder_bound": ("truncate", "reweight"),
}


@dataclass(frozen=True, kw_only=True)
class RoundMechanism(Mechanism):
    """One release R = sum over drawn users of c_v + N(0, (z beta)^2 I), with ||c_v|| <= beta.

    Raises: InputError naming the field that is out of range.

    Edge cases:

        >>> from uedp_ray.errors import InputError
        >>> from uedp_ray.privacy.mechanisms.poisson import RoundMechanism
        >>> def tried(**settings):
        ...     try:
        ...         RoundMechanism(**{"noise_multiplier": 2.0, "user_sampling_prob": 0.05, **settings})
        ...     except InputError as error:
        ...         return str(error)
        ...     return "accepted"
        >>> tried(noise_multiplier=0.0)
        'noise_multiplier = 0.0: must be above 0'
        >>> tried(user_sampling_prob=0.0), tried(user_sampling_prob=1.0)
        ('accepted', 'accepted')
        >>> tried(entity_sampling_prob=1.01)
        'entity_sampling_prob = 1.01: a probability lies in [0, 1]'
        >>> tried(max_holders=0), tried(max_holders=None)    # there is no entity; unbounded
        ('accepted', 'accepted')
        >>> tried(max_holders=2.0)
        'max_holders = 2.0: must be an integer, 0 to 1e+10'
        >>> tried(entity_clip=0.0), tried(entity_clip=-0.1)
        ('accepted', 'entity_clip = -0.1: must be 0 or more')
        >>> tried(holder_bound="reweight", max_holders=10)
        'max_users = None: reweight needs a declared bound of max_holders = 10 or more'
        >>> tried(holder_bound="reweight", max_holders=10, max_users=10)
        'accepted'
    """

    event_kind = "round"
    noise_multiplier: float
    """z: std of the noise in the sum, over ``l2_clip_norm``."""
    user_sampling_prob: float
    """q_u: each user is drawn with this probability, independently (Poisson)."""
    entity_sampling_prob: float = 1.0
    """q_e."""
    extended_sampling_prob: float = 1.0
    """q_s, for sentences without a detected entity; 0 says that they are never used."""
    selection_rule: Literal["all", "any"] = "all"
    entity_draw: Literal["global", "per_user"] = "global"
    max_holders: int | None = None
    """K: users that hold one entity; 0: there is no entity to protect; None: unbounded, so entities are not protected."""
    entity_clip: float = 2.0
    """beta_e / beta: how far one entity can move one user's update."""
    extended_clip: float = 2.0
    """How far one sentence can move its user's update, over beta."""
    holder_bound: Literal["truncate", "reweight"] = "truncate"
    """``reweight``: sentences have weights, with which an entity's holders count as K or fewer, so more than K may be drawn.

    That bounds something only where sentences have a clip norm of their own, that is for ``entity_clip`` below 2; at 2
    the user's clip sets the bound, scaling does not lower it, and every declared user counts in full."""
    max_users: int | None = None
    """Declared bound on the number of users, so on an entity's holders; ``reweight`` needs it."""

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if field.name in _CHOICES:
                if not isinstance(value, str) or value not in _CHOICES[field.name]:
                    raise InputError(field.name, value, f"choose one of {', '.join(_CHOICES[field.name])}")
            elif field.name in ("max_holders", "max_users"):
                if value is not None and (type(value) is not int or not 0 <= value <= MAX_COUNT):
                    raise InputError(field.name, value, f"must be an integer, 0 to {MAX_COUNT:g}")
            elif not is_finite(value):
                raise InputError(field.name, value, "must be a finite number")
            elif field.name in _PROBABILITIES and not 0.0 <= value <= 1.0:
                raise InputError(field.name, value, "a probability lies in [0, 1]")
            elif value < 0.0 or (field.name == "noise_multiplier" and value == 0.0):
                raise InputError(field.name, value, "must be above 0" if "noise" in field.name else "must be 0 or more")
        if self.holder_bound == "reweight" and (self.max_users is None or self.max_users < (self.max_holders or 0)):
            remedy = f"reweight needs a declared bound of max_holders = {self.max_holders} or more"
            raise InputError("max_users", self.max_users, remedy)

    def cost(self, unit: str, kind: str) -> Cost:
        return Cost(rounds=((self, 1),))

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> RoundMechanism:
        """Reads what ``to_dict`` wrote. Raises: InputError for an unknown or a missing key: no default is assumed."""
        if not isinstance(values, Mapping):
            raise InputError("mechanism", values, "must be a mapping")
        known = [field.name for field in dataclasses.fields(cls)]
        for key in values:
            if key not in known:
                raise InputError(key, values[key], f"unknown key; known: {', '.join(known)}")
        for name in known:
            if name not in values:
                raise InputError(name, None, "is missing")
        return cls(**values)


def counted(parts: Iterable[tuple[RoundMechanism, int]]) -> Counter[RoundMechanism]:
    """Rounds by mechanism, without those of which there are none."""
    counts = Counter[RoundMechanism]()
    for mechanism, count in parts:
        counts[mechanism] += count
    return +counts
