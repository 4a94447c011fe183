"""Standard JSON: no NaN, no infinity."""

from __future__ import annotations

import json
import math
from typing import Any


def to_json(value: Any) -> str:
    """Returns indented JSON; a number that is not finite becomes null."""
    return json.dumps(plain(value), indent=1, allow_nan=False)


def plain(value: Any) -> Any:
    """Returns the value with null for every number that is not finite."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
