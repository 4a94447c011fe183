"""Parallel coordinates: every trial as one line across the searched settings, to its score.

    parallel_coordinates(load_sweep("runs/quickstart")).savefig("parallel.svg")

Axes follow the scale that was searched; a setting that a trial does not have is drawn on a separate line below.
"""

from __future__ import annotations

import functools
import math
import textwrap
from collections.abc import Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from uedp_ray.analysis.axes import labels, point_of
from uedp_ray.analysis.figures import chosen_label, comparable_trials
from uedp_ray.analysis.frames import Sweep
from uedp_ray.analysis.style import BLACK, GREY, chart, legend, number, score_axis, shown_value
from uedp_ray.search.space import Dimension, Point

_ABSENT = -0.14


def parallel_coordinates(sweep: Sweep) -> Figure:
    """Draws one line per trial across the searched settings, to its score; settings it does not have are drawn below."""
    trials, metric = comparable_trials(sweep), sweep.metric
    names = labels(sweep.space)
    figure, (axes,) = chart(max(7.0, 1.25 * (len(names) + 1)), 4.2)
    far = score_axis(axes, metric, trials[metric.name])
    low, high = axes.get_ylim()
    along = functools.partial(_share, low=low, high=high, is_log=axes.get_yscale() == "log")
    ticks = [value for value in axes.get_yticks() if low <= value <= high]
    _bare(axes)
    columns = list(sweep.space.values())
    # Dark for good, light for bad: it survives greyscale printing, and the end of each line shows the value.
    shades_RC = matplotlib.colormaps["cividis"](np.linspace(0.05, 0.92, len(trials)))
    for index in reversed(range(len(trials))):
        row = trials.iloc[index]
        best = row["role"] == "best"
        point = point_of(sweep.space, row)
        heights = [_height(each, point) for each in columns]
        axes.plot(
            range(len(columns) + 1),
            [*heights, along(min(row[metric.name], far, high))],
            color=BLACK if best else shades_RC[index],
            linewidth=2.6 if best else 1.1,
            linestyle=":" if row["role"] == "stopped" else "-",
            marker="*" if best else "",
            markersize=11,
            alpha=1.0 if best or len(trials) < 60 else 0.6,
            zorder=3 if best else 2,
            label=chosen_label(sweep) if best else None,
        )
    for position, each in enumerate(columns):
        _coordinate(axes, position, *_ticks_of(each))
    _coordinate(axes, len(columns), [along(tick) for tick in ticks], [number(tick) for tick in ticks])
    if any(each.when for each in columns):
        axes.axhline(_ABSENT, color=GREY, linewidth=0.8, linestyle=(0, (1, 3)))
        beside: dict[str, Any] = {"xycoords": ("axes fraction", "data"), "ha": "right", "va": "center", "fontsize": 8}
        axes.annotate("not\nused", (-0.02, _ABSENT), **beside)
    titles = [*(_wrapped(names[each.key]) for each in columns), f"{metric.title}\n({metric.better} is\nbetter)"]
    axes.set_xticks(range(len(titles)), titles)
    axes.set_xlim(-0.15, len(columns) + 0.45)
    legend(figure, [axes])
    return figure


def _bare(axes: Axes) -> None:
    axes.set_yscale("linear")
    axes.set_ylim(-0.22, 1.06)
    axes.set_yticks([])
    axes.set_ylabel("")
    axes.grid(False)
    axes.spines[["left", "bottom"]].set_visible(False)
    axes.tick_params(axis="x", length=0)


def _share(value: float, low: float, high: float, is_log: bool) -> float:
    """Returns how far along an axis a value is, from 0 to 1."""
    if low == high:  # one choice, or an integer whose step is longer than its range
        return 0.5
    return (
        (math.log(value) - math.log(low)) / (math.log(high) - math.log(low)) if is_log else (value - low) / (high - low)
    )


def _place(dimension: Dimension, value: Any) -> float:
    if dimension.is_choice:
        return _share(dimension.values.index(value), 0, len(dimension.values) - 1, is_log=False)
    low, high = dimension.values
    return _share(value, low, high, dimension.is_log)


def _height(dimension: Dimension, point: Point) -> float:
    return _place(dimension, point[dimension.key]) if dimension.key in point else _ABSENT


def _ticks_of(dimension: Dimension) -> tuple[list[float], list[str]]:
    if dimension.is_choice:
        return [_place(dimension, value) for value in dimension.values], [shown_value(v) for v in dimension.values]
    low, high = dimension.values
    return [0.0, 0.5, 1.0], [number(low), f"{dimension.at(0.5):.2g}", number(high)]


def _coordinate(axes: Axes, position: int, heights: Sequence[float], texts: Sequence[str]) -> None:
    axes.plot([position, position], [0, 1], color=GREY, linewidth=1)
    for height, text in zip(heights, texts, strict=True):
        axes.plot([position - 0.02, position + 0.02], [height, height], color=GREY, linewidth=1)
        axes.annotate(
            text,
            (position, height),
            xytext=(7, 0),
            textcoords="offset points",
            va="center",
            fontsize=8,
            zorder=5,
            bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.75, "pad": 0.6},
        )


def _wrapped(name: str) -> str:
    words = name.replace("_", "_ ").replace(".", ". ")
    return "\n".join(part.replace(" ", "") for part in textwrap.wrap(words, 13))
