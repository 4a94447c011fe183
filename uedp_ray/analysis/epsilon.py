"""Figures of epsilon for one mechanism: against the number of rounds, and against the number of holders K.

    mechanism = RoundMechanism(noise_multiplier=2.0, user_sampling_prob=0.05, max_holders=1, entity_clip=0.2)
    epsilon_over_rounds(mechanism, rounds=50, delta=1e-5)
    epsilon_over_holders(mechanism, rounds=50, delta=1e-5)

Every unit has its own panel and axis. All inputs are public; no data is touched.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from uedp_ray.analysis.frames import UNITS
from uedp_ray.analysis.style import (
    BLACK,
    BLUE,
    GREY,
    ORANGE,
    VERMILION,
    NothingToShow,
    chart,
    legend,
    log_ticks,
)
from uedp_ray.privacy.events import charges, epsilon_of_charges
from uedp_ray.privacy.mechanisms.poisson import RoundMechanism
from uedp_ray.privacy.published import published_epsilon
from uedp_ray.privacy.statement import NO_GUARANTEE, show_delta, show_epsilon

Event = Mapping[str, Any]
_HOLDERS = (1, 2, 3, 5, 10, 20, 50, 100, 200, 500, 1000)
_REACH = 50
"""K is shown up to this many times the run's own."""


def epsilon_of_rounds(
    mechanism: RoundMechanism, rounds: int, *, delta: float, unit: str, others: Sequence[Event] = ()
) -> float:
    """Returns epsilon of ``rounds`` rounds and of ``others``: events of the ledger that are not rounds."""
    whole = charges(others)._replace(rounds=((mechanism, rounds),))
    return epsilon_of_charges(whole, delta=delta, unit=unit)


def epsilon_over_rounds(
    mechanism: RoundMechanism,
    *,
    rounds: int,
    delta: float,
    unit: str = "user-entity",
    target_epsilon: float | None = None,
    others: Sequence[Event] = (),
) -> Figure:
    """Draws epsilon by unit, one panel each, up to twice ``rounds``; ``published`` beside the unit that it claims.

    Args:
      unit: the budget's; its panel shows ``target_epsilon``.
      others: events of the ledger that are not rounds; they are spent before the first round.
    """
    figure, panels = chart(9.0, 3.9, len(UNITS))
    counts = sorted({rounds, *np.unique(np.linspace(1, 2 * rounds, 9).round().astype(int)).tolist()})
    claimed = "user" if unit == "user" else "user-entity"
    for axes, each in zip(panels, UNITS, strict=True):
        axes.set_xlabel(f"rounds T (this run: {rounds})")
        settings: dict[str, Any] = {"delta": delta, "unit": each, "others": others}
        values = [epsilon_of_rounds(mechanism, count, **settings) for count in counts]
        _draw(axes, each, delta, counts, values, rounds, "sound accountant: an upper bound")
        if math.isinf(max(values)) and each != claimed:
            axes.tick_params(labelleft=False, labelbottom=False)
        if each == unit and target_epsilon is not None and target_epsilon < 2 * max(values):
            axes.axhline(target_epsilon, color=GREY, linestyle=(0, (1, 2)), label="the budget")
        if each == claimed:
            paper = [_published(mechanism, count, delta, unit) for count in counts]
            axes.plot(
                counts,
                paper,
                color=ORANGE,
                linestyle="--",
                marker="x",
                markersize=5,
                label=f"published: {NO_GUARANTEE}",
            )
        axes.set_ylim(bottom=0)
        axes.set_xlim(left=0)
    panels[0].set_ylabel("ε of one run")
    legend(figure, panels)
    return figure


def epsilon_over_holders(
    mechanism: RoundMechanism, *, rounds: int, delta: float, others: Sequence[Event] = ()
) -> Figure:
    """Draws epsilon of the same noise if up to K users held an entity, for the two units that protect entities.

    Raises: NothingToShow if nothing bounds what an entity moves.
    """
    if mechanism.max_holders is None:
        raise NothingToShow("The chosen run puts no bound on the holders of an entity: it protects users only.")
    if mechanism.max_holders == 0:
        raise NothingToShow("The chosen run has no entities to protect.")
    largest = min(_REACH * mechanism.max_holders, mechanism.max_users or _HOLDERS[-1])
    counts = sorted({mechanism.max_holders, *(k for k in _HOLDERS if k <= largest)})
    figure, panels = chart(7.4, 3.9, 2)
    for axes, unit in zip(panels, ("user-entity", "entity"), strict=True):
        axes.set_xlabel(f"K: users who hold one entity (this run: {mechanism.max_holders})")
        values = []
        for held_by in counts:
            events = [  # a vocabulary may reckon with several times as many
                {**event, "max_holders": event["max_holders"] // mechanism.max_holders * held_by}
                if "max_holders" in event
                else event
                for event in others
            ]
            changed = dataclasses.replace(mechanism, max_holders=held_by)
            values.append(epsilon_of_rounds(changed, rounds, delta=delta, unit=unit, others=events))
        _draw(axes, unit, delta, counts, values, mechanism.max_holders, "same noise, other K")
        finite = [value for value in values if math.isfinite(value)]
        for which, low, high in (("x", counts[0], counts[-1]), ("y", min(finite), max(finite))):
            if high > low:
                getattr(axes, f"set_{which}scale")("log")
                log_ticks(axes, which, low, high)
    panels[0].set_ylabel("ε of one run")
    legend(figure, panels)
    return figure


def _published(mechanism: RoundMechanism, rounds: int, delta: float, unit: str) -> float:
    return published_epsilon(
        method="user_dp" if unit == "user" else "uedp_fe",
        noise_multiplier=mechanism.noise_multiplier,
        user_sampling_prob=mechanism.user_sampling_prob,
        entity_sampling_prob=mechanism.entity_sampling_prob,
        rounds=rounds,
        delta=delta,
    )


def _draw(
    axes: Axes, unit: str, delta: float, counts: Sequence[int], values: Sequence[float], at: int, label: str
) -> None:
    """Draws the curve with the run itself on it and its epsilon in the title; a note if the unit has no guarantee."""
    value = values[counts.index(at)]
    axes.set_title(
        f"unit: {unit.replace('-', ' and ')}\nthis run alone: ε = {show_epsilon(value)}\n"
        f"zero-out, δ = {show_delta(delta)}",
        fontsize=9,
    )
    if math.isinf(value):
        text = "no guarantee:\nnothing bounds what\nis removed here"
        middle: dict[str, Any] = {"xycoords": "axes fraction", "ha": "center", "va": "center"}
        axes.annotate(text, (0.5, 0.5), fontsize=9, color=GREY, **middle)
        return
    axes.plot(counts, np.where(np.isfinite(values), values, np.nan), color=BLUE, marker="o", markersize=4, label=label)
    star: dict[str, Any] = {"color": VERMILION, "markeredgecolor": BLACK, "markersize": 14, "zorder": 4}
    axes.plot([at], [value], "*", label="this run", **star)
