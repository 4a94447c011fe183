"""What a model guarantees, of which unit and against whom: one entry for each unit, and units are never mixed.

    >>> import dataclasses
    >>> from uedp_ray.privacy.guarantee import Guarantee, central
    >>> for each in central({"user-entity": 2.0091, "user": 1.2, "entity": float("inf")}, delta=1e-5, relation="zero_out"):
    ...     print(each.unit, each.epsilon, each.trust, each.sound)
    user-entity 2.0091 central True
    user 1.2 central True
    >>> nothing, = central({"user": float("inf")}, delta=1e-5, relation="zero_out")    # of a model without noise
    >>> nothing.unit, nothing.epsilon, nothing.told
    ('none', None, 'no guarantee')
    >>> word = Guarantee(unit="word", epsilon=3.0, delta=0.0, relation="replacement", trust="local", accountant="pure")
    >>> word.told, dataclasses.replace(word, sound=True).told    # what nobody has proved is not a guarantee
    ('ε = 3.000 of one word, not a guarantee', 'ε = 3.000 of one word')

Figures of different units are different promises: no table ranks them, and no axis shows two. All inputs are public.
"""

from __future__ import annotations

import dataclasses
import math
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from uedp_ray.fields import Check, Later, flag, list_of, number, one_of, record, string
from uedp_ray.privacy.statement import show_epsilon
from uedp_ray.units import RECORD, UNITS

GuaranteedUnit = Literal["user-entity", "user", "entity", "record", "word", "word-metric", "none"]
"""Whose part is hidden. ``record``: one sentence, whoever wrote it. ``word``: one word, among those of its group.
``word-metric``: one word, with an epsilon times the distance to what it is mistaken for. ``none``: nobody's."""

_CALLED = {
    "user-entity": "one user and entity",
    "word-metric": "one word, times the distance between two words",
}


@dataclass(frozen=True, kw_only=True)
class Guarantee:
    """One promise. What is not said is the unsafe reading: ``sound`` is for whoever proved it to state."""

    unit: GuaranteedUnit
    epsilon: float | None
    """None: nothing is bounded."""
    delta: float
    relation: str
    """Which two texts are compared: ``zero_out (…)``, ``add_remove``, ``replacement``."""
    trust: Literal["central", "local"]
    """``local``: against the server too. ``central``: whoever trains sees the text."""
    accountant: str
    sound: bool = False
    """Whether a proof in docs/accounting.md covers it; False for figures as they were published, and wherever something is
    assumed."""
    assumed: tuple[str, ...] = ()
    """Settings that name code of others, and the code: with what is assumed of it (``privacy.md``) it is sound."""
    note: str = ""
    """What it leaves out, in full sentences."""

    @property
    def told(self) -> str:
        """In a line, as tables and figures show it."""
        if self.epsilon is None or self.unit == "none":
            return "no guarantee"
        of = _CALLED.get(self.unit, f"one {self.unit}")
        return f"ε = {show_epsilon(self.epsilon)} of {of}" + ("" if self.sound else f", {standing(self.to_dict())}")

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self) | {"assumed": [*self.assumed]}  # as files have it


GUARANTEE: Check = record(
    {
        "unit": one_of(*typing.get_args(GuaranteedUnit)),
        "epsilon": number(0.0, nothing=True),
        "delta": number(0.0, 1.0),
        "relation": string(),
        "trust": one_of("central", "local"),
        "accountant": string(),
        "sound": flag,
        "assumed": Later(list_of(string())),
        "note": string(),
    }
)
"""The check of one in a file."""
GUARANTEES: Check = list_of(GUARANTEE)


def guarantee_of(tree: Mapping[str, Any]) -> Guarantee:
    """The one in a file, which ``GUARANTEE`` has checked. What an earlier version did not write is not stated."""
    fields = {field.name for field in dataclasses.fields(Guarantee)} & tree.keys()
    return Guarantee(**{name: tree[name] for name in fields} | {"assumed": (*tree.get("assumed", ()),)})


def standing(guarantee: Mapping[str, Any]) -> str:
    """Whether one counts, in words, as tables have it; ``guarantee``: as in files.

    >>> from uedp_ray.privacy.guarantee import standing
    >>> standing({"sound": False}), standing({"sound": False, "assumed": ["task.kind: own"]})
    ('not a guarantee', 'sound if assumed (task.kind: own)')
    """
    if guarantee["sound"]:
        return "sound"
    named = ", ".join(guarantee.get("assumed", ()))
    return f"sound if assumed ({named})" if named else "not a guarantee"


def hides_anybody(result: Mapping[str, Any]) -> bool:
    """Whether a user or an entity is hidden in all that a run wrote (``result.json``), or a row of runs: one record or one
    word is nobody."""
    promised = (each["unit"] for each in result.get("guarantees", ()) if each["epsilon"] is not None)
    return bool(result["private"]) and not {*promised}.isdisjoint(UNITS)


def central(
    spent: Mapping[str, float], *, delta: float, relation: str, accountant: str = "pld", note: str = ""
) -> list[Guarantee]:
    """The guarantees of noised rounds, by unit; the single one of nothing if no epsilon is finite."""
    shared: dict[str, Any] = {"delta": delta, "relation": relation, "trust": "central", "accountant": accountant}
    found: Sequence[Guarantee] = [
        Guarantee(unit=typing.cast(Any, unit), epsilon=spent[unit], sound=True, note=note, **shared)
        for unit in (*UNITS, RECORD)
        if math.isfinite(spent.get(unit, math.inf))
    ]
    return [*found] or [nothing(delta=delta)]


def nothing(*, delta: float) -> Guarantee:
    """Of training that protects nobody."""
    return Guarantee(unit="none", epsilon=None, delta=delta, relation="none", trust="central", accountant="none")
