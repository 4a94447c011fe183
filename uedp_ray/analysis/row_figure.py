"""The score of every row of a comparison that has no grid, and so no setting to draw it against.

    by_row(load_comparison("runs/compared")).savefig("rows.svg")

As in figures against epsilon, units share no panel: each has one, and so have rows without a guarantee.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure

from uedp_ray.analysis.comparisons import Compared
from uedp_ray.analysis.style import BLUE, GREEN, GREY, LARGEST, NothingToShow, chart, legend, score_axis, whiskers
from uedp_ray.search.told import promise_of

_MOST = 60
"""Rows that a page can show below each other."""
_NONE = "no guarantee"


def scored(compared: Compared) -> list[Mapping[str, Any]]:
    """The rows of trained models that have a score."""
    name = compared.metric.name
    return [row for row in compared.rows if row[name] is not None and abs(row[name]) <= LARGEST]


def by_row(compared: Compared) -> Figure:
    """Draws each row's score with its interval, and beside it what public text alone reaches.

    Raises: NothingToShow for fewer than two rows, or more than a page can show.
    """
    metric, rows = compared.metric, scored(compared)
    if not 2 <= len(rows) <= _MOST:
        raise NothingToShow(f"{len(rows)} rows have a score: 2 to {_MOST} can be drawn.")
    panels_of = _by_promise(rows)
    sizes = [len(group) + 0.6 for group in panels_of.values()]
    figure, panels = chart(7.4, 1.0 + 0.24 * sum(sizes), rows=len(sizes), sharex=True, height_ratios=sizes)
    levels = {row[metric.name]: "public text only" for row in compared.public if row["name"] == "public-only"}
    yardstick = metric.yardstick if metric.measured is metric else None
    known = [row[yardstick.name] for row in compared.rows if yardstick and row.get(yardstick.name) is not None]
    levels |= {level: yardstick.title for level in known[:1] if yardstick}
    ends = [row["interval"][end] for row in rows if row["interval"] for end in ("low", "high")]
    far = score_axis(panels[-1], metric, [*(row[metric.name] for row in rows), *ends], levels, which="x")
    for axes, (promise, group) in zip(panels, panels_of.items(), strict=True):
        for at, (level, label) in enumerate(levels.items()):
            color, dash = ((GREEN, "--"), (GREY, ":"))[at]
            axes.axvline(level, color=color, linestyle=dash, linewidth=1.2, label=f"{metric.show(level)}, {label}")
        color = GREY if promise == _NONE else BLUE
        for place, row in enumerate(group):
            score = row[metric.name]
            axes.plot([min(score, far)], [place], marker="o", markersize=5, color=color, linestyle="none")
            whiskers(axes, place, score, row["interval"], far, color, which="x")
        axes.set_title(promise, fontsize=9.5, loc="left")
        axes.set_yticks(range(len(group)), labels=[_named(row) for row in group])
        axes.set_ylim(len(group) - 0.4, -0.6)
        axes.tick_params(labelbottom=axes is panels[-1])
    if levels:
        legend(figure, panels)
    return figure


def _by_promise(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[Mapping[str, Any]]]:
    """The rows by what their ε is of, and whether it holds; those without one last."""
    found: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        _, unit, stands, _ = promise_of(row)
        promise = _NONE if stands == _NONE else unit if stands == "sound" else f"{unit}, {stands}"
        found.setdefault(promise, []).append(row)
    if _NONE in found:
        found[_NONE] = found.pop(_NONE)
    return found


def _named(row: Mapping[str, Any]) -> str:
    epsilon, _, stands, _ = promise_of(row)
    return str(row["name"]) if stands == _NONE else f"{row['name']}: ε = {epsilon}"
