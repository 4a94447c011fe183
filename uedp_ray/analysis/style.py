"""How figures look: colours that colour-blind readers can tell apart, a marker or dash for every colour, SVG with real text.

    figure, (axes,) = chart(6, 3)
    axes.plot([1, 2], [3, 4], **line(0))
    text = svg(figure, "example")

Matplotlib's object-oriented interface only: no pyplot, no global state. A figure shows itself in a notebook.
Palette: Okabe and Ito, "Color universal design" (2008).
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import matplotlib
import numpy as np
from markupsafe import escape
from matplotlib.axes import Axes
from matplotlib.container import BarContainer
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from uedp_ray.tasks.metric import Metric

BLACK, ORANGE, SKY, GREEN, BLUE, VERMILION, PURPLE = (
    "#000000",
    "#e69f00",
    "#56b4e9",
    "#009e73",
    "#0072b2",
    "#d55e00",
    "#cc79a7",
)
GREY = "#767676"
_LINES = (
    (BLUE, "-", "o"),
    (VERMILION, "--", "s"),
    (GREEN, "-.", "^"),
    (PURPLE, ":", "D"),
    (ORANGE, (0, (5, 1, 1, 1, 1, 1)), "v"),
    (SKY, (0, (8, 2)), "P"),
)
_FAR = 3.0
"""A score beyond this many times the typical one is drawn at the edge: it would flatten the rest."""
LARGEST = 1e100
"""Figures treat larger values as infinite: an axis for the largest numbers has no end."""
_FONTS = "DejaVu Sans', Verdana, Arial, Helvetica, sans-serif"
_SMALL = 8.5


class NothingToShow(ValueError):
    """There is no honest figure of these data; the message says why, as a sentence for the reader."""


class Chart(Figure):
    """A figure that a notebook shows without any set-up."""

    titles: dict[str, str]
    """What points link to, with the words that a reader sees who points at them, or comes to them by keyboard."""

    def _repr_svg_(self) -> str:
        return svg(self, f"chart-{id(self)}")


def chart(width: float, height: float, columns: int = 1, rows: int = 1, **grid: Any) -> tuple[Chart, Sequence[Axes]]:
    """Returns a figure, sized in inches, and its panels, row by row; ``grid`` as for ``Figure.subplots``."""
    figure = Chart(figsize=(width, height), layout="constrained")
    figure.titles = {}
    panels = list(figure.subplots(rows, columns, squeeze=False, **grid).flat)
    for axes in panels:
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(color="#e3e3e3", linewidth=0.6)
        axes.set_axisbelow(True)
        axes.tick_params(labelsize=_SMALL)
        axes.xaxis.label.set_size(9.5)
        axes.yaxis.label.set_size(9.5)
    return figure, panels


def link(axes: Axes, x: Iterable[float], y: Iterable[float], titles: Iterable[tuple[str, str]]) -> None:
    """Makes points links; ``titles``: the address and the words of each. Without an address a point stays as it is."""
    points = [(*place, *words) for *place, words in zip(x, y, titles, strict=True) if words[0]]
    figure = axes.get_figure()
    if points and isinstance(figure, Chart):
        xs, ys, addresses, words = zip(*points, strict=True)
        axes.scatter(xs, ys, s=80, alpha=0.0, zorder=5).set_urls(list(addresses))
        figure.titles |= dict(zip(addresses, words, strict=True))


def line(index: int) -> dict[str, Any]:
    """Returns colour, dash and marker of the ``index``-th line; they start again after six."""
    color, dash, marker = _LINES[index % len(_LINES)]
    return {"color": color, "linestyle": dash, "marker": marker, "markersize": 4.5, "linewidth": 1.5}


def legend(figure: Figure, axes: Iterable[Axes], columns: int = 2) -> None:
    """Draws one legend below all panels, each label once."""
    handles = dict[str, Any]()
    for each in axes:
        for handle, label in zip(*each.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    figure.legend(
        list(handles.values()),
        list(handles),
        loc="outside lower left",
        ncols=columns,
        fontsize=_SMALL,
        frameon=False,
        handlelength=3.2,
        columnspacing=1.5,
    )


def score_axis(
    axes: Axes, metric: Metric, values: Iterable[float], lines: Iterable[float] = (), which: Literal["x", "y"] = "y"
) -> float:
    """Sets an axis for scores, and returns the value beyond which they are to be drawn at its edge.

    ``lines``: levels that must be visible. For ratios, the scale is logarithmic if values span more than a factor
    of three.
    """
    shown, levels = np.array(list(values)), list(lines)
    far = LARGEST
    if metric.ratio:
        far = min(_FAR * max([float(np.median(shown.clip(max=LARGEST))), float(shown.min()), *levels]), LARGEST)
    inside = [*shown[shown <= far].tolist(), *levels] or [far]
    low, high = min(inside), max(inside)
    cut = bool((shown > far).any())
    top = far if cut else high
    if metric.ratio and top > 3 * low:
        axes.set(**{f"{which}scale": "log"})
        axes.set(**{f"{which}lim": (low / (top / low) ** 0.06, top * (top / low) ** 0.06)})
        log_ticks(axes, which, low, top)
    else:
        room = (top - low or 0.1 * top or 1.0) * 0.08
        axes.set(**{f"{which}lim": (low - room, top + room)})
    axes.set(**{f"{which}label": f"{metric.title} ({metric.better} is better)"})
    return far if cut else math.inf


def whiskers(
    axes: Axes,
    place: float,
    score: float,
    ends: Mapping[str, Any] | None,
    far: float,
    color: Any,
    which: Literal["x", "y"] = "y",
) -> None:
    """Draws the interval of a score, if it has one, along the axis of ``score_axis``, which returned ``far``."""
    if ends and score <= far:
        reach = [[max(0.0, score - ends["low"])], [max(0.0, min(ends["high"], far) - score)]]
        drawn: dict[str, Any] = {which: [score], "x" if which == "y" else "y": [place], f"{which}err": reach}
        axes.errorbar(**drawn, fmt="none", ecolor=color, elinewidth=0.9, capsize=2.5)


def far_off(metric: Metric, level: float, near: Sequence[float]) -> bool:
    """Whether a level is further from the scores than they are apart, by more than twice that."""
    low, high, here = (math.log(x) if metric.ratio else x for x in (min(near), max(near), level))
    return max(low - here, here - high) > 2 * (high - low) > 0


def log_ticks(axes: Axes, which: str, low: float, high: float) -> None:
    """Sets plain numbers on a logarithmic axis, and enough of them where it spans less than a decade."""
    axis = axes.xaxis if which == "x" else axes.yaxis
    decades = math.log10(high / low) if high > low > 0 else 0.0
    if decades < 0.6:
        axis.set_major_locator(MaxNLocator(5))
    else:
        subs = (1.0, 1.5, 2.0, 3.0, 5.0, 7.0) if decades < 1.2 else (1.0, 2.0, 5.0) if decades < 3 else (1.0,)
        axis.set_major_locator(LogLocator(subs=subs, numticks=12))
    axis.set_major_formatter(FuncFormatter(lambda value, _: number(value)))
    axis.set_minor_formatter(NullFormatter())


def number(value: float) -> str:
    """Formats four significant digits, without an exponent where that stays short."""
    if value == 0 or 1e-4 <= abs(value) < 1e6:
        return f"{float(f'{value:.4g}'):.10g}"
    return re.sub(r"e\+?(-?)0*", r"e\1", f"{value:.3g}")


def shown_value(value: Any) -> str:
    """Returns a setting's value in short; ``none`` for a choice that is null."""
    if value is None:
        return "none"
    return number(float(value)) if isinstance(value, int | float) and not isinstance(value, bool) else str(value)


def in_words(figure: Figure) -> str:
    """What the labelled lines and bars of a figure show, first and last, for those who do not see it."""
    found = []
    for axes in figure.axes:
        if len(figure.axes) > 1 and (panel := axes.get_title() or axes.get_ylabel()):
            found.append(f"{' '.join(panel.split())}:")
        for each in axes.get_lines():
            label, points = str(each.get_label()), np.array(each.get_xydata(), float)
            points = points[np.isfinite(points).all(1)]
            if label.startswith("_") or not len(points):  # matplotlib's mark of what no legend names
                continue
            if each.get_transform() != axes.transData:  # a line right across, whose label has its value
                found.append(f"{label}.")
                continue
            (x, y), (x_last, y_last) = points[0], points[-1]
            whole = f" to {y_last:.4g} at {x_last:.4g}" if len(points) > 1 and (x, y) != (x_last, y_last) else ""
            found.append(f"{label}: {y:.4g} at {x:.4g}{whole}.")
        names = [tick.get_text() for tick in axes.get_yticklabels()]
        bars = [each for each in axes.containers if isinstance(each, BarContainer)]
        found += [
            f"{name}: {bar.get_width():.2f}." for each in bars for name, bar in zip(names, each.patches, strict=False)
        ]
    return " ".join(found)


def identifier(name: str) -> str:
    """A name with hyphens for all but letters and digits: one that a file brought is then neither markup nor a path."""
    return re.sub(r"[^a-zA-Z0-9]", "-", name)


def svg(figure: Figure, name: str) -> str:
    """Returns the figure as one ``<svg>``, text as text, ids beginning with ``identifier(name)``: a page may hold many."""
    buffer, name = io.StringIO(), identifier(name)
    # Metadata would contain web addresses; the salt makes ids, and so the file, the same every time.
    metadata = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    for text in figure.findobj(Text):  # a name in the sweep is not a formula
        text.set_parse_math(False)
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": name, "text.parse_math": False}):
        figure.savefig(buffer, format="svg", metadata=metadata)
    drawn = buffer.getvalue()
    drawn = drawn[drawn.index("<svg") :].strip()
    drawn = re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{name}-", drawn)
    for address, words in getattr(figure, "titles", {}).items():
        opened = f'<a xlink:href="{escape(address)}" target="_blank">'
        drawn = drawn.replace(opened, f"{opened}<title>{escape(words)}</title>")
    return re.sub(r"DejaVu Sans'[^;\"<>]*", _FONTS, drawn)
