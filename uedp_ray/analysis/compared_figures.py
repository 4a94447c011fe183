"""Figures of a comparison: the score against epsilon, and against every other setting of its grid.

    against(load_comparison("runs/compared"), "epsilon").savefig("epsilon.svg")

One line for each variant and its other settings. Units never share an axis: each has a panel, and so has what others
published, whose points are not ours to vouch for. Models without a guarantee are drawn in every panel: as a level, or as a
line where the axis is a setting that they use. An epsilon of the published arithmetic (``search.published``) shares no axis
with a real one: it has a figure of its own, and published points against epsilon are beside it there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from uedp_ray.analysis.comparisons import Compared
from uedp_ray.analysis.style import (
    BLACK,
    GREEN,
    GREY,
    LARGEST,
    NothingToShow,
    chart,
    far_off,
    legend,
    line,
    log_ticks,
    number,
    score_axis,
    whiskers,
)
from uedp_ray.privacy.guarantee import standing
from uedp_ray.privacy.statement import NO_GUARANTEE, show_delta
from uedp_ray.search.published import EPSILON
from uedp_ray.search.told import told

AS_PUBLISHED = "epsilon_as_published"
"""The axis of what the published arithmetic makes of our runs."""
DECIDES_EPSILON = ("privacy.target_epsilon", "privacy.noise_multiplier", "representation.target_epsilon")
"""Settings that these axes show."""
_OF_A_WORD = "corpus.transform.epsilon"
"""One more, where words are what is protected: it decides nothing of the rounds."""
_EPSILONS = (EPSILON, AS_PUBLISHED)
_ROUNDS = "training.num_rounds"
_SYMBOLS = {
    "privacy.target_epsilon": "ε",
    _ROUNDS: "T",
    "privacy.user_sampling_prob": "q_u",
    "privacy.entity_sampling_prob": "q_e",
    "privacy.extended_sampling_prob": "q_s",
}
_WIDE_RANGE = 5.0
"""Values further apart than this factor are on a logarithmic axis."""
_ALIKE = 1.01
_LONG = 26
"""Characters of a label for each panel's width, up to which two labels stand side by side in the legend."""
_NEAR = 1.2
"""Values within this factor have ticks between them: rounded to two digits, they would coincide."""
_FEW = 6
"""Values that an axis can name one by one."""


class _Dot(NamedTuple):
    label: str
    method: str
    unit: str
    x: Any
    """None: the row has no place on the axis, and is a level."""
    score: float
    ends: Mapping[str, Any] | None


def axes_of(compared: Compared) -> list[str]:
    """What there are figures against: ``epsilon``, ``AS_PUBLISHED`` where rows have one, and every setting of the grid that
    epsilon does not stand for."""
    as_published = [AS_PUBLISHED] if any(row.get("as_published") for row in compared.rows) else []
    shown = {key: [row for row in compared.rows if key in row["settings"]] for key in compared.grid}
    return [
        EPSILON,
        *as_published,
        *(key for key, rows in shown.items() if not all(_decides(key, row) for row in rows)),
    ]


def points_on(compared: Compared, axis: str) -> Sequence[Mapping[str, Any]]:
    """The published points that are drawn beside our rows against ``axis``."""
    if compared.published is None:
        return []
    theirs = compared.published["against"]
    if theirs == EPSILON and AS_PUBLISHED in axes_of(compared):
        theirs = AS_PUBLISHED
    return compared.published["points"] if theirs == axis else []


def against(compared: Compared, axis: str) -> Figure:
    """Draws the score against one of ``axes_of``. Raises: NothingToShow if no row has a place there."""
    dots = [*_dots(compared, axis)]
    placed = [dot for dot in dots if dot.x is not None]
    if not placed:
        raise NothingToShow(f"No row has both {compared.metric.title} and {'an ε' if axis in _EPSILONS else axis}.")
    units = [*dict.fromkeys(dot.unit for dot in placed if dot.unit)] or [""]
    points = points_on(compared, axis)
    if axis == EPSILON and not points and not _traded(placed):
        raise NothingToShow("No two rows of one method and unit differ in ε, which then buys nothing more or less.")
    theirs = [*dict.fromkeys(point["unit"] for point in points)]
    theirs = [unit for unit in theirs if unit != "none"] or theirs
    columns = len(units) + len(theirs)
    public = [row[compared.metric.name] for row in compared.public if row["name"] == "public-only"]
    names = [*dict.fromkeys(dot.label for dot in dots), *dict.fromkeys(map(_source, points)), *public]
    beside = 2 if max(map(len, map(str, names))) < _LONG * max(2, columns) else 1
    figure, panels = chart(
        max(7.4, min(3.4, max(2.8, 11.6 / columns)) * columns), 3.6 + 0.2 * len(names) / beside, columns
    )
    ours, published = panels[: len(units)], panels[len(units) :]
    scores = [dot.score for dot in placed]
    levels = [
        dot.score for dot in dots if dot.x is None and not far_off(compared.metric, dot.score, [*scores, *public])
    ]
    ends = [dot.ends[end] for dot in placed if dot.ends for end in ("low", "high")]
    far = score_axis(ours[0], compared.metric, [*scores, *ends], [*public, *levels])
    ticks = _ticks(placed)
    for axes, unit in zip(ours, units, strict=True):
        if axes is not ours[0]:
            axes.sharey(ours[0])
            axes.tick_params(labelleft=False)
        axes.set_title("our runs\n" * (axis == AS_PUBLISHED) + (unit or "no guarantee"), fontsize=9.5)
        for level in public:
            at = f"{number(level)}, public text only: ε = 0"
            axes.axhline(level, color=GREEN, linestyle="--", linewidth=1.2, label=at)
        for shown in dict.fromkeys((unit, "")):
            for index, label in enumerate(dict.fromkeys(dot.label for dot in dots if dot.unit == shown)):
                style = line(index) | ({} if shown else {"color": (GREY, BLACK)[index % 2], "markerfacecolor": "white"})
                _draw(axes, [dot for dot in dots if dot.label == label], style, ticks, [*scores, *levels], far)
        _horizontal(axes, compared, axis, [dot.x for dot in placed if dot.unit in (unit, "")], ticks)
    for axes, unit in zip(published, theirs, strict=True):
        _draw_published(axes, compared, axis, unit, [point for point in points if point["unit"] in (unit, "none")])
    legend(figure, panels, beside)
    return figure


def _dots(compared: Compared, axis: str) -> Iterator[_Dot]:
    along = _along_rounds(compared) if axis in _EPSILONS else set()
    for row in compared.rows:
        score, promised = row[compared.metric.name], _epsilon_of(row, axis)
        if score is None or score > LARGEST or promised is None:
            continue
        epsilon = promised["epsilon"]
        covered = promised["unit"] != "none" and epsilon is not None and epsilon <= LARGEST
        unit = promised["unit"] + ("" if promised["sound"] else f", {standing(promised)}") if covered else ""
        settings, on_epsilon = row["settings"], axis in _EPSILONS
        rounds = [_ROUNDS] if row["variant"] in along else []
        shown = [*rounds, *(key for key in settings if (_decides(key, row) if on_epsilon else key == axis))]
        others = [f"{_symbol(key)} = {told(value)}" for key, value in settings.items() if key not in shown]
        label = f"{', '.join([row['variant'], *others])} ({unit or 'no guarantee'})"
        x = (epsilon if covered else None) if on_epsilon else row["settings"].get(axis)
        if axis in row["settings"] and not _is_number(x):
            x = told(x)
        yield _Dot(label, row["method"], unit, x, score, row["interval"])


def _along_rounds(compared: Compared) -> set[str]:
    """The variants whose noise is given: their epsilon follows from T, and one line goes through all rounds."""
    noise: dict[str, set[float | None]] = {}
    for row in compared.rows:
        noise.setdefault(row["variant"], set()).add(row.get("noise_multiplier"))
    return {variant for variant, values in noise.items() if len(values) == 1 and None not in values}


def _epsilon_of(row: Mapping[str, Any], axis: str) -> Mapping[str, Any] | None:
    """The guarantee of a row, or what takes its place on the axis as published; None for a row that has no part in it."""
    theirs = row.get("as_published")
    if axis == AS_PUBLISHED and theirs:
        return {**theirs, "sound": False}
    guarantee: Mapping[str, Any] = row["guarantee"]
    return None if axis == AS_PUBLISHED and guarantee["unit"] != "none" else guarantee


def _decides(key: str, row: Mapping[str, Any]) -> bool:
    """Whether a setting of the grid decides on a row's ε, so that the axis of ε shows it."""
    return key in DECIDES_EPSILON or (key == _OF_A_WORD and row["guarantee"]["unit"].startswith("word"))


def _draw(
    axes: Axes, dots: Sequence[_Dot], style: Mapping[str, Any], ticks: Sequence[str], near: Sequence[float], far: float
) -> None:
    """Draws one line, with its intervals; a level if it has no place on the axis, in the legend alone if not ``near``."""
    score = dots[0].score
    if dots[0].x is None:
        level = {"color": style["color"], "linestyle": style["linestyle"], "linewidth": 1.2}
        if score in near:
            axes.axhline(score, label=f"{number(score)}, {dots[0].label}", **level)
        else:
            axes.plot([], [], label=f"{number(score)}, beyond the axis: {dots[0].label}", **level)
        return
    if ticks:  # words are in no order that a line could show
        dots = sorted(dots, key=lambda dot: ticks.index(told(dot.x)))
        x, style = [float(ticks.index(told(dot.x))) for dot in dots], {**style, "linestyle": "none"}
    else:
        dots = sorted(dots, key=lambda dot: dot.x)
        x = [dot.x for dot in dots]
    axes.plot(x, [min(dot.score, far) for dot in dots], label=dots[0].label, **style)
    for place, dot in zip(x, dots, strict=True):
        whiskers(axes, place, dot.score, dot.ends, far, style["color"])


def _draw_published(axes: Axes, compared: Compared, axis: str, unit: str, points: Sequence[Mapping[str, Any]]) -> None:
    """Draws the points of one unit; those that no unit is protected in are levels."""
    scores = [point["y"] for point in points]
    score_axis(axes, compared.metric, scores, scores)  # all of them: what is printed is not cut
    axes.set_title(f"{unit}, as published", fontsize=9.5)
    placed = [point for point in points if point["unit"] != "none"] or points
    for index, name in enumerate(dict.fromkeys(map(_source, placed))):
        own = sorted((point["x"], point["y"]) for point in placed if _source(point) == name)
        axes.plot(*zip(*own, strict=True), label=name, **line(index) | {"markerfacecolor": "white"})
    for index, point in enumerate(each for each in points if each not in placed):
        color, dash = (GREY, BLACK)[index % 2], ("--", ":")[index % 2]
        label = f"{number(point['y'])}, {_source(point)}"
        axes.axhline(point["y"], color=color, linestyle=dash, linewidth=1.2, label=label)
    _places(axes, [point["x"] for point in placed])
    axes.set_xlabel(f"ε {NO_GUARANTEE}" if axis in _EPSILONS else f"{_label(axis)}, as published")


def _source(point: Mapping[str, Any]) -> str:
    """The label of a published point."""
    return f"as published: {point['series']}, {point['corpus']} ({point['source']})"


def _traded(placed: Sequence[_Dot]) -> bool:
    """Whether two rows of one method and unit differ in epsilon by more than calibration leaves. Where it is 0, nothing was
    left to trade for."""
    found: dict[tuple[str, str], list[float]] = {}
    for dot in placed:
        if dot.x:
            found.setdefault((dot.method, dot.unit), []).append(dot.x)
    return any(max(values) > _ALIKE * min(values) for values in found.values())


def _horizontal(axes: Axes, compared: Compared, axis: str, places: Sequence[Any], ticks: Sequence[str]) -> None:
    if axis in _EPSILONS:
        deltas = {row["guarantee"]["delta"] for row in compared.rows if row["guarantee"]["unit"] != "none"}
        at = f"(δ = {show_delta(*deltas)})" if len(deltas) == 1 and 0.0 not in deltas else ""
        axes.set_xlabel(f"ε of one run {at}" if axis == EPSILON else f"ε {NO_GUARANTEE}\n{at}")
    else:
        axes.set_xlabel(_label(axis))
    if ticks:
        axes.set_xticks(range(len(ticks)), labels=list(ticks))
        axes.set_xlim(-0.5, len(ticks) - 0.5)
    else:
        _places(axes, places)


def _places(axes: Axes, places: Sequence[float]) -> None:
    """Scales the axis of these numbers, and names them if they are few."""
    if min(places) > 0 and max(places) > _WIDE_RANGE * min(places):
        axes.set_xscale("log")
        log_ticks(axes, "x", min(places), max(places))
    values = sorted({float(f"{place:.2g}") for place in places})
    if max(places) < _NEAR * min(places):
        axes.xaxis.set_major_locator(MaxNLocator(3, steps=[1, 2, 5, 10]))
    elif len(values) <= _FEW:
        axes.set_xticks(values, labels=[number(value) for value in values])
        axes.minorticks_off()
    elif axes.get_xscale() == "linear":
        axes.xaxis.set_major_locator(MaxNLocator(_FEW))


def _ticks(placed: Sequence[_Dot]) -> list[str]:
    """The values of an axis of words, in order; empty for one of numbers."""
    if all(_is_number(dot.x) for dot in placed):
        return []
    return [*dict.fromkeys(told(dot.x) for dot in placed)]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= LARGEST


def _name(key: str) -> str:
    return key.rsplit(".")[-1]


def _symbol(key: str) -> str:
    return _SYMBOLS.get(key, _name(key))


def _label(key: str) -> str:
    return f"{_SYMBOLS[key]}: {_name(key)}" if key in _SYMBOLS else _name(key)
