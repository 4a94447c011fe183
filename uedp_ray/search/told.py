"""A comparison in words, for the console and its page. Loads neither the trainer nor text.

>>> from uedp_ray.search.told import about_total, told
>>> told(0.5), told([]), told(["person", "org"]), told(None)    # values of a grid
('0.5', 'all', 'person + org', 'none')
>>> total = {"unit": "user", "epsilon": 9.1, "delta": 1e-5, "rows": ["a", "b"], "without": ["c"]}
>>> about_total(total | {"categories": None, "why": ""})
'Together, unit user: ε = 9.100 for all 2 rows with that guarantee, every seed counted (δ = 1e-05). Not in it: c.'
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from uedp_ray.privacy.statement import narrowed, show_delta, show_epsilon

INTERVALS = {
    "t": "intervals of the mean over seeds at 95 % (Student's t)",
    "range": "intervals from the lower to the higher of two seeds",
}
"""What the ends of an interval are."""


def told(value: Any) -> str:
    """A value of a grid in words."""
    if isinstance(value, list | tuple):
        return " + ".join(map(told, value)) or "all"
    return "none" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def shortened(some: Sequence[Mapping[str, Any]], rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The names of some of the rows; one name for all rows of a variant."""
    others = {row["variant"] for row in rows if row not in some}
    return [*dict.fromkeys(row["name"] if row["variant"] in others else row["variant"] for row in some)]


def as_published(row: Mapping[str, Any]) -> str:
    """What the published arithmetic makes of a row (``AsPublished.price``): to be shown as no guarantee; empty for none."""
    theirs = row.get("as_published")
    return f"{theirs['epsilon']:.3f} ({theirs['unit']})" if theirs and theirs["epsilon"] is not None else ""


def about_total(total: Mapping[str, Any]) -> str:
    """A total in a sentence or two."""
    together = f"Together, unit {narrowed(total['unit'], total['categories'], 'row')}: "
    count = len(total["rows"])
    rows = f"{f'all {count} rows' if count > 1 else 'the row'} with that guarantee"
    left = f" Not in it: {', '.join(total['without'])}." if total["without"] else ""
    if total["epsilon"] is None:
        return f"{together}no ε for {rows}{': ' + total['why'] if total['why'] else ''}.{left}"
    epsilon, delta = show_epsilon(total["epsilon"]), show_delta(total["delta"])
    return f"{together}ε = {epsilon} for {rows}, every seed counted (δ = {delta}).{left}"
