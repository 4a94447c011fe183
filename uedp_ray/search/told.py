"""A comparison in words, for the console and its page. Loads neither the trainer nor text.

>>> from uedp_ray.search.told import about_total, told
>>> told(0.5), told([]), told(["person", "org"]), told(None)    # values of a grid
('0.5', 'all', 'person + org', 'none')
>>> total = {"unit": "user", "epsilon": 9.1, "delta": 1e-5, "rows": ["a", "b"], "without": ["c"]}
>>> about_total(total | {"categories": None, "why": ""})
'Together, unit user: ε = 9.100 for all 2 rows with that guarantee, every seed counted (δ = 1e-05). Not in it: c.'
>>> about_total(total | {"without": ["c", "d", "e"], "categories": None, "why": ""})    # the shorter list
'Together, unit user: ε = 9.100 for all 2 rows with that guarantee (a; b), every seed counted (δ = 1e-05).'
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from uedp_ray.privacy.guarantee import standing
from uedp_ray.privacy.statement import narrowed, show_delta, show_epsilon
from uedp_ray.tasks.metric import Metric

MEANINGS = {
    "user-entity": "one user and one entity together, all their sentences",
    "user": "one user, all of its sentences",
    "entity": "one entity, all sentences that have it, whoever wrote them",
    "record": "one sentence; nothing of a user or an entity, who have many",
    "word": "one word, in sentences that are cut alike, among those it may be taken for; nothing of a sentence, a user or "
    "an entity",
    "word-metric": "one word, in sentences that are cut alike, times the distance between it and another; nothing of a "
    "sentence, a user or an entity",
}
"""Whose part an epsilon hides."""
RETENTION = (
    "retention: share of the detected mentions that the trained text still says as they were "
    "(private: read off the text)"
)
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


def promise_of(row: Mapping[str, Any]) -> tuple[str, str, str, str]:
    """Of a row of the table: epsilon, its unit, whether a proof covers it, and what else the same runs guarantee.

    >>> from uedp_ray.search.told import promise_of
    >>> word = {"unit": "word", "epsilon": 6.0, "sound": True, "trust": "local"}
    >>> promise_of({"method": "ordinary", "guarantee": word, "guarantees": [word]})
    ('6.000', 'word (local)', 'sound', '')
    """
    own = row["guarantee"]
    if row["method"] is None:
        return show_epsilon(own["epsilon"]), "every unit", "sound", ""
    if own["unit"] == "none" or own["epsilon"] is None:
        return "∞", "-", "no guarantee", ""
    others = (
        f"{show_epsilon(each['epsilon'])} {_unit(each)}{'' if each['sound'] else f' ({standing(each)})'}"
        for each in row["guarantees"]
        if each["unit"] != own["unit"]
    )
    return show_epsilon(own["epsilon"]), _unit(own), standing(own), ", ".join(others)


def _unit(guarantee: Mapping[str, Any]) -> str:
    return str(guarantee["unit"]) + " (local)" * (guarantee["trust"] == "local")


def about_units(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """What the units in the table mean, a sentence each."""
    promises = [each for row in rows if row["method"] is not None for each in row["guarantees"]]
    found = {each["unit"] for each in promises}
    lines = [f"{unit}: {meaning}." for unit, meaning in MEANINGS.items() if unit in found]
    if any(each["trust"] == "local" for each in promises):
        lines.append(
            "local: against whoever trains, too, if users do their part themselves (here one program plays them all); what "
            "it leaves out, such as labels, is in privacy.md. Without it, against whoever has the model."
        )
    if any(each.get("assumed") for each in promises):
        lines.append("assumed: of the code that is named, nothing is proved; what has to hold of it is in privacy.md.")
    return lines


def left_out(rows: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """What the rows' promises leave out, each with the variants whose it is."""
    of: dict[str, list[str]] = {}
    for row in rows:
        for each in row["guarantees"]:
            if each["note"]:
                of.setdefault(each["note"], []).append(row["variant"])
    return [(named(dict.fromkeys(variants)), note) for note, variants in of.items()]


def about_scale(rows: Sequence[Mapping[str, Any]], metric: Metric) -> list[str]:
    """What scores are to be read against, a sentence each: ``_no_ceiling``, and the yardstick, which is the same in all rows
    that have it."""
    known = next(filter(None, map(metric.against_yardstick, rows)), "")
    return [*filter(None, [_no_ceiling(rows, metric), f"For scale: {known}." if known else ""])]


def _no_ceiling(rows: Sequence[Mapping[str, Any]], metric: Metric) -> str:
    """Names variants that are trained without noise, on the text as it is, and are yet worse than another row: what the
    others lose by privacy is not seen from them. Empty if there are none."""
    scored = [row for row in rows if row[metric.name] is not None]
    best = min(scored, key=lambda row: metric.cost(row[metric.name]), default=None)
    free = [row for row in scored if _unchanged(row)]
    worse = [row for row in free if best and metric.cost(row[metric.name]) > metric.cost(best[metric.name])]
    if not best or not worse:
        return ""
    names = named(dict.fromkeys(row["variant"] for row in worse))
    return (
        f"Without privacy, and yet worse than {best['name']}: {names}. What privacy costs is not seen from rows whose "
        "learning rate and rounds do not suit them."
    )


def _unchanged(row: Mapping[str, Any]) -> bool:
    return row["guarantee"]["unit"] == "none" and row.get("noise_multiplier", 0.0) is None and not tells_text(row)


def tells_text(row: Mapping[str, Any]) -> bool:
    """Whether a row has a figure that was read off the private text, and that no epsilon covers: the retention of a
    transform. Without one every mention is retained, whatever the text."""
    return "retention" in row and row["transform"] != "none"


def retained(row: Mapping[str, Any]) -> str:
    """The retention of a row, as tables show it."""
    share = row.get("retention")
    return "-" if share is None else f"{share:.1%}"


def named(names: Iterable[str]) -> str:
    """A list of rows, whose names may have commas."""
    return "; ".join(names)


def about_total(total: Mapping[str, Any]) -> str:
    """A total in a sentence or two."""
    together = f"Together, unit {narrowed(total['unit'], total['categories'], 'row')}: "
    count = len(total["rows"])
    rows = f"{f'all {count} rows' if count > 1 else 'the row'} with that guarantee"
    left = f" Not in it: {named(total['without'])}." if total["without"] else ""
    if len(total["without"]) > count:  # the shorter of two lists
        rows, left = f"{rows} ({named(total['rows'])})", ""
    if total.get("assumed"):
        left += f" Assumed, not proved, of {named(total['assumed'])}: see privacy.md."
    if total["epsilon"] is None:
        return f"{together}no ε for {rows}{': ' + total['why'] if total['why'] else ''}.{left}"
    epsilon, delta = show_epsilon(total["epsilon"]), show_delta(total["delta"])
    return f"{together}ε = {epsilon} for {rows}, every seed counted (δ = {delta}).{left}"
