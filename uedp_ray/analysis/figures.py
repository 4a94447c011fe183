"""Figures of a sweep's trials: Pareto front, utility against sampling, learning curves.

    in_order(load_sweep("runs/quickstart")).savefig("trials.svg")

Each takes a ``Sweep`` and returns a matplotlib figure, or raises ``NothingToShow`` with the reason in words. Epsilons of
different units or deltas never share an axis. Trials without a guarantee (infinite epsilon) are left out of all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from uedp_ray.analysis.axes import base_label, base_of, epsilon_label, labels, point_of, total_label
from uedp_ray.analysis.frames import Sweep, best_first, check_comparable, finished_trials
from uedp_ray.analysis.style import (
    BLACK,
    BLUE,
    GREEN,
    GREY,
    LARGEST,
    ORANGE,
    PURPLE,
    SKY,
    VERMILION,
    NothingToShow,
    chart,
    far_off,
    legend,
    line,
    link,
    log_ticks,
    number,
    score_axis,
    shown_value,
)
from uedp_ray.privacy.statement import show_epsilon


def noiseless(sweep: Sweep) -> str:
    """Says what the line of the model without noise is worth, and whether it may be shown."""
    if sweep.selection["rule"] == "public":
        return "no guarantee; trained without noise on the search's public text"
    return "no guarantee; trained without noise on the same text: do not publish this line"


EXTENDED = "privacy.extended_sampling_prob"
_ALIKE = 1.01
"""Epsilons that differ by less come from calibration, not from a setting; passes, from whole rounds."""
SAMPLING = (EXTENDED, "privacy.entity_sampling_prob", "privacy.user_sampling_prob", "expected_cohort_size")
_STYLES: dict[str, dict[str, Any]] = {
    "done": {"marker": "o", "color": SKY, "markeredgecolor": BLUE, "label": "trial"},
    "tied": {"marker": "D", "color": ORANGE, "markeredgecolor": BLACK, "label": "cannot be told apart from the best"},
    "stopped": {"marker": "v", "color": "white", "markeredgecolor": GREY, "label": "stopped early (not finished)"},
    "best": {"marker": "*", "color": VERMILION, "markeredgecolor": BLACK, "markersize": 15},
}


def comparable_trials(sweep: Sweep) -> pd.DataFrame:
    """Returns trials with a score and a finite epsilon, best first, with the column ``role``: a key of the legend.

    Raises: NothingToShow if there is none.
    """
    trials = sweep.trials
    shown = trials[
        np.isfinite(trials[sweep.metric.name])
        & (trials["epsilon"] <= LARGEST)
        & trials["state"].isin(["done", "stopped"])
    ]
    if shown.empty:
        raise NothingToShow(f"No trial has both {sweep.metric.title} and an ε yet.")
    best = sweep.best["trial"] if sweep.best else None
    role = np.select(
        [shown["trial"] == best, shown["state"] == "stopped", shown["tied_with_best"].fillna(False).astype(bool)],
        ["best", "stopped", "tied"],
        "done",
    )
    return best_first(shown.assign(role=role))


def pareto(sweep: Sweep) -> Figure:
    """Draws scores against epsilon, the front and the reference lines; beside it the trials best first, and their spread."""
    trials = comparable_trials(sweep)
    figure, panels = chart(7.4, 4.6, 2, sharey=True, width_ratios=(3, 2))
    by_epsilon, by_rank = panels
    levels = _reference_lines(sweep, panels)
    far = score_axis(by_epsilon, sweep.metric, trials[sweep.metric.name], levels.values())
    front = _front(sweep, trials, levels.get("public-only"), far)
    by_epsilon.plot(*front, drawstyle="steps-post", color=BLACK, linewidth=1.2, zorder=3.5, label="Pareto front")
    by_epsilon.axvline(sweep.target_epsilon, color=GREY, linewidth=1, linestyle=(0, (1, 2)))
    x_max = max(sweep.target_epsilon, trials["epsilon"].max())
    by_epsilon.set_xlim(-0.04 * x_max, 1.1 * x_max)
    by_epsilon.set_xlabel(epsilon_label(sweep) + total_label(sweep))
    by_epsilon.annotate(
        f"budget {number(sweep.target_epsilon)}",
        (sweep.target_epsilon, 0.02),
        xycoords=("data", "axes fraction"),
        xytext=(-4, 0),
        textcoords="offset points",
        ha="right",
        fontsize=8,
        color=GREY,
    )
    _points(by_epsilon, sweep, trials, trials["epsilon"], far)
    _points(by_rank, sweep, trials, pd.Series(np.arange(1, len(trials) + 1)), far)
    by_rank.set_xlabel("trials, best first")
    by_rank.xaxis.set_major_locator(MaxNLocator(integer=True))
    by_rank.tick_params(labelleft=False)
    by_rank.set_xlim(0.4 - 0.02 * len(trials), len(trials) * 1.02 + 0.6)
    legend(figure, panels)
    return figure


def check_traded(sweep: Sweep) -> None:
    """Raises: NothingToShow where all trials have one epsilon, which then buys nothing more or less."""
    if _all_alike(comparable_trials(sweep)["epsilon"]):
        raise NothingToShow(
            f"All trials have the same ε, to within {_ALIKE - 1:.0%}: none is traded for a better score."
        )


def _all_alike(values: pd.Series) -> bool:
    return bool(values.max() <= _ALIKE * values.min())


def in_order(sweep: Sweep) -> Figure:
    """Draws scores in the order in which trials were asked for, the best so far, and the base's own settings."""
    trials = comparable_trials(sweep).sort_values("number", ignore_index=True)
    metric = sweep.metric
    figure, (axes,) = chart(7.4, 4.0)
    levels = _reference_lines(sweep, [axes])
    far = score_axis(axes, metric, trials[metric.name], levels.values())
    done = trials[trials["role"] != "stopped"]
    costs = done[metric.name].map(metric.cost).cummin()
    so_far = costs if metric.goal == "min" else -costs
    axes.plot(
        done["number"], so_far.clip(upper=far), drawstyle="steps-post", color=BLACK, linewidth=1.2, label="best so far"
    )
    _points(axes, sweep, trials, trials["number"], far)
    base = base_of(sweep)
    if base is not None:
        at = [base["number"]], [min(base[metric.name], far)]
        axes.plot(*at, "o", markersize=12, fillstyle="none", color=BLACK, label=base_label(sweep))
    axes.set_xlabel(f"trial, in the order in which they were asked for{total_label(sweep)}")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlim(trials["number"].min() - 0.5, trials["number"].max() + 0.5)
    legend(figure, [axes])
    return figure


def compute(sweep: Sweep) -> Figure:
    """Draws scores against the work of one run, in passes over the text, and the best score for that much work at most.

    Where trials differ in epsilon too, those on the front of three axes are ringed: no other has a better score, a smaller
    epsilon and less work.
    Raises: NothingToShow where all trials took the same work.
    """
    trials = comparable_trials(sweep)
    trials, front = trials[trials["role"] != "stopped"], sweep.front("passes").sort_values("passes")
    if trials.empty or front.empty or _all_alike(trials["passes"]):
        raise NothingToShow("No two trials that ended passed over the text differently often.")
    metric = sweep.metric
    figure, (axes,) = chart(7.4, 4.0)
    levels = _reference_lines(sweep, [axes])
    far = score_axis(axes, metric, trials[metric.name], levels.values())
    most = trials["passes"].max()
    corners = [*front["passes"], most], [*front[metric.name].clip(upper=far), min(front[metric.name].iloc[-1], far)]
    axes.plot(
        *corners, drawstyle="steps-post", color=BLACK, linewidth=1.2, zorder=3.5, label="best with so many at most"
    )
    if not _all_alike(trials["epsilon"]):
        ringed = sweep.front("epsilon", "passes")
        at = ringed["passes"], ringed[metric.name].clip(upper=far)
        axes.plot(
            *at, "o", markersize=12, fillstyle="none", color=BLACK, label="none is better, cheaper in ε and quicker"
        )
    _points(axes, sweep, trials, trials["passes"], far)
    axes.set_xscale("log")
    log_ticks(axes, "x", trials["passes"].min(), most)
    axes.set_xlabel("passes over the text in one run (rounds · q_u)")
    legend(figure, [axes])
    return figure


def _front(sweep: Sweep, trials: pd.DataFrame, public: float | None, far: float) -> tuple[list[float], list[float]]:
    """Returns the corners of the front, from the public model at epsilon 0, if there is one, to the edge of the budget."""
    corners = [] if public is None else [(0.0, public)]
    front = _drawable_front(sweep, far)
    metric = sweep.metric
    for epsilon, score in zip(front["epsilon"], front[metric.name], strict=True):
        if public is None or metric.cost(score) < metric.cost(public):
            corners.append((epsilon, score))
    if corners:
        corners.append((max(sweep.target_epsilon, *trials["epsilon"]), corners[-1][1]))
    return [epsilon for epsilon, _ in corners], [score for _, score in corners]


def _drawable_front(sweep: Sweep, far: float) -> pd.DataFrame:
    front = sweep.pareto
    return front[(front[sweep.metric.name] <= far) & (front["epsilon"] <= LARGEST)]


def joint_pareto(sweeps: Sequence[Sweep]) -> Figure:
    """Draws what each sweep may hand on, by its total epsilon, on one pair of axes.

    Raises: InputError as ``frames.check_comparable`` does; NothingToShow if none is finished with a guarantee.
    """
    check_comparable(sweeps)
    metric = sweeps[0].metric
    answers = [(sweep, sweep.best) for sweep in sweeps if sweep.finished and sweep.best is not None]
    totals = [
        (sweep, best["epsilon_with_choice"], best[metric.name])
        for sweep, best in answers
        if best["epsilon_with_choice"] is not None and best["epsilon_with_choice"] <= LARGEST
    ]
    if not totals:
        raise NothingToShow("None of the sweeps is finished and has a total ε.")
    figure, (axes,) = chart(7.4, 4.2)
    far = score_axis(axes, metric, [score for *_, score in totals])
    for index, (sweep, total, score) in enumerate(totals):
        style = line(index) | {"linestyle": "none", "markersize": 9}
        at = show_epsilon(total) + ", settled by results" * sweep.selection["settled_by_results"]
        axes.plot([total], [min(score, far)], **style, label=f"{sweep.name}: {metric.say(score)} at ε = {at}")
    axes.set_xlim(0, 1.1 * max(total for _, total, _ in totals))
    axes.set_xlabel(epsilon_label(sweeps[0], "in total, training and choosing"))
    legend(figure, [axes])
    return figure


def utility(sweep: Sweep) -> Figure:
    """Draws scores against each sampling probability that was searched, q_s first.

    Raises: NothingToShow if none was searched.
    """
    keys = [key for key in SAMPLING if key in sweep.space]
    if not keys:
        raise NothingToShow("No sampling probability was searched.")
    trials = comparable_trials(sweep)
    figure, panels = chart(max(7.0, 3.2 * len(keys)), 4.0, len(keys), sharey=True)
    levels = _reference_lines(sweep, panels)
    far = score_axis(panels[0], sweep.metric, trials[sweep.metric.name], levels.values())
    for axes, key in zip(panels, keys, strict=True):
        shown = trials[trials[key].notna()]
        _points(axes, sweep, shown, shown[key].astype(float), far)
        dimension = sweep.space[key]
        if dimension.is_log:
            axes.set_xscale("log")
            log_ticks(axes, "x", *dimension.values)
        if not dimension.is_choice:
            axes.set_xlim(dimension.at(-0.03), dimension.at(1.03))
        axes.set_xlabel(_SYMBOLS[key] + labels(sweep.space)[key])
        if axes is not panels[0]:
            axes.set_ylabel("")
            axes.tick_params(labelleft=False)
    legend(figure, panels)
    return figure


_SYMBOLS = dict(zip(SAMPLING, ("q_s: ", "q_e: ", "q_u: ", ""), strict=True))


def learning_curves(sweep: Sweep, top: int = 5) -> Figure:
    """Draws the held-out score over the rounds of the ``top`` best trials; a thin line for each further seed."""
    score = sweep.metric.name
    best = best_first(finished_trials(sweep.trials)).head(top)["trial"]
    curves = [(trial, _curves(sweep, trial)) for trial in best]
    curves = [(trial, rounds) for trial, rounds in curves if not rounds.empty]
    if not curves:
        raise NothingToShow(f"No finished trial has recorded {sweep.metric.title} during its rounds.")
    figure, (axes,) = chart(7.0, 4.0)
    levels = _reference_lines(sweep, [axes])
    far = score_axis(axes, sweep.metric, pd.concat([rounds[score] for _, rounds in curves]), levels.values())
    for index, (trial, rounds) in enumerate(curves):
        chosen = sweep.best is not None and trial == sweep.best["trial"]
        for seed, run in rounds.groupby("seed"):
            style = line(index) | {"linewidth": 2.4 if chosen else 1.5}
            if seed:
                style |= {"linewidth": 0.8, "markersize": 2.5}
            label = None if seed else f"trial {trial}{f', {chosen_label(sweep)}' if chosen else ''}"
            axes.plot(run["round"], run[score].clip(upper=far), label=label, **style)
    axes.set_xlim(left=0)
    axes.set_xlabel("round")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    legend(figure, [axes])
    return figure


def _curves(sweep: Sweep, trial: str) -> pd.DataFrame:
    """The score of each seed over the rounds, the mean over proxies."""
    rounds, score = sweep.rounds(trial), sweep.metric.name
    rounds = rounds[np.isfinite(rounds[score])]
    return rounds.groupby(["seed", "round"], as_index=False)[score].agg(sweep.metric.mean)


def proxies(sweep: Sweep) -> Figure:
    """Draws the trials' scores on each pair of proxies; a trial that is best on both lies in the corner of both axes.

    Raises: NothingToShow where trials have one text.
    """
    pairs = sweep.agreement
    if not pairs:
        raise NothingToShow("The trials have one text, so there is nothing to compare.")
    trials, metric = comparable_trials(sweep), sweep.metric
    trials = trials[trials["role"] != "stopped"]
    figure, panels = chart(max(4.6, 3.6 * len(pairs)), 4.2, len(pairs))
    for axes, pair in zip(panels, pairs, strict=True):
        one, other = (sweep.sweep_config.score_columns[proxy] for proxy in pair["proxies"])
        for role in ("done", "best"):
            shown = trials[(trials["role"] == "best") == (role == "best")]
            axes.plot(shown[one], shown[other], linestyle="none", **{"markersize": 6, **_STYLES[role]})
        if metric.ratio:
            axes.set_xscale("log")
            axes.set_yscale("log")
            for which, column in (("x", one), ("y", other)):
                log_ticks(axes, which, trials[column].min(), trials[column].max())
        axes.set_xlabel(f"{metric.title} on {pair['proxies'][0]}")
        axes.set_ylabel(f"{metric.title} on {pair['proxies'][1]}")
        known = pair["rank_correlation"]
        axes.set_title("" if known is None else f"rank correlation {known:.2f}", fontsize=9)
    legend(figure, panels)
    return figure


def _reference_lines(sweep: Sweep, panels: Sequence[Axes]) -> dict[str, float]:
    """Draws the levels of the model trained on public text only, and of that trained without noise; one so far off that the
    trials would share a corner is in the legend alone. Returns what is drawn."""
    named = zip(sweep.references["name"], sweep.references[sweep.metric.name], strict=True)
    levels = {name: level for name, level in named if level <= LARGEST}
    scores = sweep.trials[sweep.metric.name]
    near = [*scores[scores <= LARGEST], *(level for name, level in levels.items() if name == "public-only")]
    drawn = {name: level for name, level in levels.items() if not far_off(sweep.metric, level, near)}
    looks = {
        "public-only": (GREEN, "--", "public text only: ε = 0"),
        "noiseless": (PURPLE, (0, (6, 2, 1, 2)), f"noiseless: {noiseless(sweep)}".replace("; ", ";\n")),
    }
    for name, level in levels.items():
        color, dash, text = looks[name]
        where = "," if name in drawn else ", beyond the axis:"
        for axes in panels:
            line = axes.axhline(level) if name in drawn else axes.plot([], [])[0]
            line.set(color=color, linestyle=dash, linewidth=1.4, label=f"{number(level)}{where} {text}")
    return drawn


def chosen_label(sweep: Sweep) -> str:
    """Returns the label of the best trial."""
    return "chosen" if sweep.finished else "best so far"


def _points(axes: Axes, sweep: Sweep, trials: pd.DataFrame, x: pd.Series, far: float) -> None:
    """Draws trials by role, with the spread over seeds; those beyond ``far`` as arrow heads at the edge."""
    metric = sweep.metric
    beyond = (trials[metric.name] > far).to_numpy()
    for role, style in (_STYLES | {"best": _STYLES["best"] | {"label": chosen_label(sweep)}}).items():
        mask = (trials["role"] == role).to_numpy() & ~beyond
        if mask.any():
            spread = trials[metric.spread][mask]
            axes.errorbar(
                x[mask],
                trials[metric.name][mask],
                yerr=None if spread.isna().all() else spread.fillna(0.0).clip(upper=LARGEST),
                linestyle="none",
                elinewidth=0.9,
                ecolor=GREY,
                capsize=2,
                zorder=4 if role == "best" else 3,
                **{"markersize": 6, **style},
            )
    inside = ~beyond
    link(axes, x[inside], trials[metric.name][inside], (_title(sweep, row) for _, row in trials[inside].iterrows()))
    if beyond.any():
        text = f"beyond the axis: {beyond.sum()} trial{'s' if beyond.sum() > 1 else ''} of {metric.title} over {number(far)}"
        edge = axes.get_xaxis_transform()
        axes.plot(x[beyond], np.full(beyond.sum(), 0.985), "^", transform=edge, color=GREY, markersize=6, label=text)


def _title(sweep: Sweep, row: pd.Series) -> tuple[str, str]:
    """The folder of a trial, relative to the sweep's, and what it is; no folder on a page for others."""
    settings = ", ".join(f"{key} {shown_value(row[key])}" for key in point_of(sweep.space, row))
    return sweep.folder_of(row), f"trial {row['trial']}: {sweep.metric.say(row[sweep.metric.name])}; {settings}"
