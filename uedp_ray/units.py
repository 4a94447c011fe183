"""The unit of privacy: whose part in the text is hidden. Named once, here.

    >>> from uedp_ray.units import KINDS, UNITS
    >>> UNITS, KINDS
    (('user-entity', 'user', 'entity'), ('entity', 'extended'))

A ``kind`` that an accountant is asked for may also be ``both``: the larger epsilon of the two.
"""

from __future__ import annotations

import typing
from typing import Literal

Unit = Literal["user-entity", "user", "entity"]
"""One user and one entity together (every sentence of the user, and every sentence of anybody with the entity), one user, or
one entity."""
UNITS: tuple[str, ...] = typing.get_args(Unit)
RECORD = "record"
"""One sentence, whoever wrote it: all that is hidden in a run whose users are no persons (``corpus.regroup``). Not one of
``UNITS``: what hides a record says nothing of a user, and is accounted for such runs only."""
DEALT = "dealt record"
"""What a ledger calls it where a record shares its user with others, by a draw (``corpus.regroup: iid``): it costs more."""
KINDS = ("entity", "extended")
"""What ``entity`` stands for: one that was detected, and a sentence without any (an extended entity)."""
