"""The unit of privacy: whose part in the text is hidden. Named once, here."""

from __future__ import annotations

import typing
from typing import Literal

Unit = Literal["user-entity", "user", "entity"]
"""One user and one entity together (every sentence of the user, and every sentence of anybody with the entity), one user, or
one entity."""
UNITS: tuple[str, ...] = typing.get_args(Unit)
KINDS = ("entity", "extended")
"""What ``entity`` stands for: one that was detected, and a sentence without any (an extended entity)."""
