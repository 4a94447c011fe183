"""When trials ran: one bar for each, on the clock of the search.

    timeline(load_sweep("runs/quickstart")).savefig("timeline.svg")
    told(load_sweep("runs/quickstart"))          # the same in a few sentences

Times are the owner's: how long a trial takes may depend on the private text.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from uedp_ray.analysis.figures import chosen_label
from uedp_ray.analysis.frames import Sweep
from uedp_ray.analysis.style import (
    BLACK,
    BLUE,
    GREEN,
    GREY,
    LARGEST,
    SKY,
    VERMILION,
    Chart,
    NothingToShow,
    chart,
    legend,
    number,
)

WORDS = {"done": "finished", "stopped": "stopped early", "failed": "failed", "running": "not ended yet"}
_WINNER = "winner"
_LABELS = WORDS | {_WINNER: "the winner's training, on private text"}
_STYLES: dict[str, dict[str, Any]] = {
    "done": {"facecolor": SKY, "edgecolor": BLUE},
    "stopped": {"facecolor": "#d0d0d0", "edgecolor": GREY},
    "failed": {"facecolor": BLACK, "edgecolor": BLACK},
    "running": {"facecolor": "white", "edgecolor": BLUE, "hatch": "////"},
    _WINNER: {"facecolor": GREEN, "edgecolor": BLACK},
}
_UNITS = (("days", 86400.0, 4.0), ("hours", 3600.0, 2.0), ("minutes", 60.0, 2.0), ("seconds", 1.0, 0.0))
"""Name, seconds, and from how many of them on it is used."""
_MOST_NAMED = 30
"""More bars than this are named here and there only."""


@dataclass(frozen=True)
class Bar:
    """A trial, or the winner's own training; times are in seconds since the search began."""

    name: str
    state: str
    start: float
    end: float
    resumed: float | None = None
    folder: str = ""

    @property
    def words(self) -> str:
        what = "the winner's training" if self.state == _WINNER else f"trial {self.name}: {WORDS[self.state]}"
        took = "" if self.state == "running" else f", took {spell(self.end - self.start)}"
        again = "" if self.resumed is None else f", started again after {spell(self.resumed)}"
        return f"{what}, started after {spell(self.start)}{again}{took}"


def bars(sweep: Sweep) -> list[Bar]:
    """Returns a bar for each trial that began, by its start, and one for the winner's own training if its times are known.

    Raises: NothingToShow where times are not known, or are of one training only.
    """
    if sweep.published_space is not None:
        raise NothingToShow("Times may depend on the private text: a page for others has none.")
    rows = [row for _, row in sweep.trials.iterrows() if _known(row["started"]) and row["state"] in WORDS]
    ends = {row["trial"]: row["started"] + max(0.0, row["seconds"]) for row in rows if _known(row["seconds"])}
    now = max(
        [0.0, *ends.values(), *(time for row in rows for time in (row["started"], row["resumed"]) if _known(time))]
    )
    found = [
        Bar(
            row["trial"],
            row["state"],
            row["started"],
            ends.get(row["trial"], now),
            row["resumed"] if _known(row["resumed"]) else None,
            sweep.folder_of(row),
        )
        for row in rows
        if row["trial"] in ends or row["state"] == "running"  # of one that runs, or whose process died, no end is known
    ]
    found.sort(key=lambda bar: bar.start)
    found += _of_winner(sweep.winner_trained)
    if not found:
        raise NothingToShow("It is not known when trials started: the version that ran them did not record it.")
    if len(found) == 1:
        raise NothingToShow("Only one trial has run.")
    return found


def _known(time: Any) -> bool:
    return time is not None and abs(time) <= LARGEST


def _of_winner(times: Mapping[str, Any] | None) -> list[Bar]:
    if times is None or not (_known(times["started"]) and _known(times["seconds"])):
        return []
    return [Bar(_WINNER, _WINNER, times["started"], times["started"] + max(0.0, times["seconds"]))]


def timeline(sweep: Sweep) -> Figure:
    """Draws when each trial ran, the first to start on top, and how it ended; a triangle where it was started once more."""
    shown = bars(sweep)
    name, second = _unit(max(bar.end for bar in shown))
    figure, (axes,) = chart(7.4, min(8.0, 1.6 + 0.22 * len(shown)))
    thin = min(1.0, _MOST_NAMED / len(shown))
    _draw(figure, axes, shown, second, thin)
    best = sweep.best["trial"] if sweep.best else None
    ended = [(bar.end / second, y) for y, bar in enumerate(shown) if bar.name == best]
    again = [(bar.resumed / second, y) for y, bar in enumerate(shown) if bar.resumed is not None]
    marks: dict[str, Any] = {"linestyle": "none", "markeredgecolor": BLACK, "zorder": 4}
    if ended:
        axes.plot(*zip(*ended, strict=True), "*", color=VERMILION, markersize=13, label=chosen_label(sweep), **marks)
    if again:
        size = 4 + 3 * thin
        axes.plot(*zip(*again, strict=True), ">", color="white", markersize=size, label="started once more", **marks)
    every = math.ceil(len(shown) / _MOST_NAMED)
    axes.set_yticks(range(0, len(shown), every), [bar.name for bar in shown[::every]])
    axes.set_ylim(len(shown) - 0.4, -0.6)
    axes.grid(visible=False, axis="y")
    axes.set_xlim(left=min(0.0, shown[0].start / second))
    axes.set_xlabel(f"{name} since the search began")
    axes.set_ylabel("trial, by its start")
    legend(figure, [axes], columns=3)
    return figure


def _draw(figure: Chart, axes: Axes, shown: Sequence[Bar], second: float, thin: float) -> None:
    """Draws the bars in the order of time, which is that of a keyboard's steps from link to link."""
    known = set[str]()
    for y, bar in enumerate(shown):
        label = _LABELS[bar.state] if bar.state not in known else None
        known.add(bar.state)
        at = (bar.start / second, y - 0.35)
        patch = Rectangle(at, (bar.end - bar.start) / second, 0.7, label=label, zorder=2, **_STYLES[bar.state])
        patch.set_linewidth(max(0.3, 0.8 * thin))
        axes.add_patch(patch)
        if bar.folder:
            patch.set_url(bar.folder)
            figure.titles[bar.folder] = bar.words
    axes.autoscale_view()


def told(sweep: Sweep) -> str:
    """Says in words what the timeline shows, or why there is none."""
    try:
        shown = bars(sweep)
    except NothingToShow as nothing:
        return str(nothing)
    trials = [bar for bar in shown if bar.state != _WINNER]
    sentences = []
    if trials:
        whole = max(bar.end for bar in trials) - min(bar.start for bar in trials)
        mean = sum(bar.end - bar.start for bar in trials) / whole if whole else 0.0
        states = [bar.state for bar in trials]
        counts = ", ".join(f"{states.count(state)} {words}" for state, words in WORDS.items() if state in states)
        longest = max(trials, key=lambda bar: bar.end - bar.start)
        sentences += [
            f"{len(trials)} trials within {spell(whole)}, at most {_at_once(trials)} at once, {mean:.1f} on average: "
            f"{counts}.",
            f"The longest is trial {longest.name}, with {spell(longest.end - longest.start)}.",
        ]
    if again := [bar.name for bar in trials if bar.resumed is not None]:
        sentences.append(f"Started once more: {', '.join(again)}.")
    sentences += [f"{bar.words[0].upper()}{bar.words[1:]}." for bar in shown if bar.state == _WINNER]
    return " ".join(sentences)


def _at_once(trials: Sequence[Bar]) -> int:
    steps = sorted(
        [*((bar.start, 1) for bar in trials), *((bar.end, -1) for bar in trials)]
    )  # one ends before the next
    return max(1, *itertools.accumulate(step for _, step in steps))


def spell(seconds: float) -> str:
    """Returns a time with its unit: ``52 s``, ``2.4 min``, ``1.5 h``."""
    name, second = _unit(seconds)
    return f"{number(float(f'{seconds / second:.2g}'))} {_SHORT[name]}"


_SHORT = {"days": "days", "hours": "h", "minutes": "min", "seconds": "s"}


def _unit(seconds: float) -> tuple[str, float]:
    return next((name, second) for name, second, least in _UNITS if seconds >= least * second or second == 1.0)
