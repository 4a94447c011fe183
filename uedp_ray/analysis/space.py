"""The searched settings as ``sweep.yaml`` states them: kind, range, scale, and when they exist.

    space = parse_space({"training.num_rounds": {"integer": [10, 40], "step": 10}})
    space["training.num_rounds"].scaled(20)    # 0.33, its place between the ends

Inputs are public. What a sweep file may say is checked by the sweep that wrote it, not here.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

KINDS = ("uniform", "log_uniform", "integer", "choice")


@dataclass(frozen=True)
class Parameter:
    """One searched setting."""

    key: str
    """Its dotted name in the configuration."""
    kind: str
    values: tuple[Any, ...]
    """The low and high end, or the choices."""
    step: int = 1
    when: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    """It exists only where the named settings have one of these values."""

    @property
    def is_log(self) -> bool:
        return self.kind == "log_uniform"

    @property
    def is_choice(self) -> bool:
        return self.kind == "choice"

    def active(self, point: Mapping[str, Any]) -> bool:
        """Whether it exists at a point; a null value there may also be a choice."""
        return all(point.get(key) in values for key, values in self.when.items())

    def scaled(self, value: Any) -> float:
        """A value's place in [0, 1]: along the range, on its scale, or among the choices."""
        if self.is_choice:
            return self.values.index(value) / max(1, len(self.values) - 1) if len(self.values) > 1 else 0.5
        low, high, at = (math.log(float(v)) if self.is_log else float(v) for v in (*self.values, value))
        return (at - low) / (high - low) if high > low else 0.5

    def at(self, share: float) -> float:
        """The value of a range at a share of the way."""
        low, high = (float(value) for value in self.values)
        return low * (high / low) ** share if self.is_log else low + share * (high - low)


def parse_space(tree: Mapping[str, Mapping[str, Any]]) -> dict[str, Parameter]:
    """The ``space`` of a sweep file by dotted key, in the file's order."""
    space = {}
    for key, spec in tree.items():
        kind = next(kind for kind in KINDS if kind in spec)
        step = spec.get("step", 1)
        values = list(spec[kind])
        if kind == "integer":  # the last step may fall short of the end
            values = [values[0], values[0] + (values[1] - values[0]) // step * step]
        elif kind != "choice":  # YAML 1.1 reads 1e-3 as a string
            values = [float(value) for value in values]
        elif not _one_type(values):  # a column of them is text
            values = [None if value is None else str(value) for value in values]
        when = {name: tuple(v) if isinstance(v, list) else (v,) for name, v in (spec.get("when") or {}).items()}
        space[key] = Parameter(key, kind, tuple(values), step, when)
    return space


def _one_type(values: list[Any]) -> bool:
    kinds = {type(value) for value in values if value is not None}
    return len(kinds) < 2 or kinds <= {int, float}


def labels(keys: Iterable[str]) -> dict[str, str]:
    """Short names: the last part of each key, or the whole key where two would be the same."""
    keys = list(keys)
    short = [key.rsplit(".", 1)[-1] for key in keys]
    return {key: name if short.count(name) == 1 else key for key, name in zip(keys, short, strict=True)}
