"""Which searched settings the good trials have in common: PED-ANOVA by Optuna, with what chance alone would give.

    importances(load_sweep("runs/quickstart"))     # columns importance, chance

``importance`` draws those that chance does not explain.

The importance of a setting says how far its values among the best quarter of the finished trials differ from its values
among all of them. Shares add up to one whatever the data, so each is shown beside the 95 % quantile of the same figure with
the scores shuffled among the trials. Reference: Watanabe, Bansal and Hutter, arXiv 2304.10255.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import optuna
import pandas as pd
from matplotlib.figure import Figure
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution

from uedp_ray.analysis.axes import labels, point_of
from uedp_ray.analysis.figures import comparable_trials
from uedp_ray.analysis.frames import Sweep
from uedp_ray.analysis.style import BLACK, BLUE, NothingToShow, chart, legend
from uedp_ray.search.space import Dimension, Point

LEAST_TRIALS = 8
_BEST_SHARE = 0.25
_SHUFFLES = 60


def importances(sweep: Sweep) -> pd.DataFrame:
    """Returns shares that add up to one, most important first, and the 95 % quantile of ``chance``; one row per setting.

    Raises: NothingToShow if there are too few trials, or fewer than two settings.
    """
    trials = _assessed(sweep)
    points = [point_of(sweep.space, row) for _, row in trials.iterrows()]
    distributions = {key: _distribution(dimension) for key, dimension in sweep.space.items()}
    costs = trials[sweep.metric.name].map(sweep.metric.cost).to_numpy()
    generator = np.random.default_rng(0)
    with _quiet():
        found = _shares(points, distributions, costs)
        shuffled = [_shares(points, distributions, generator.permutation(costs)) for _ in range(_SHUFFLES)]
    table = pd.DataFrame({"importance": found, "chance": pd.DataFrame(shuffled).quantile(0.95)})
    return table.sort_values("importance", ascending=False)


def importance(sweep: Sweep) -> Figure:
    """Draws bars of ``importances`` that chance does not explain, a mark where chance may reach, and the number of trials.

    Raises: NothingToShow also where chance explains all of them.
    """
    table = importances(sweep)
    table = table[table["importance"] > table["chance"]]
    if table.empty:
        raise NothingToShow(
            f"No setting stands out from what chance would give in {len(_assessed(sweep))} trials (95 % of shuffled scores)."
        )
    names = labels(table.index)
    figure, (axes,) = chart(7.0, 1.5 + 0.36 * len(table))
    rows = np.arange(len(table))[::-1]
    axes.barh(rows, table["importance"], color=BLUE, height=0.55, label="importance")
    axes.plot(
        table["chance"],
        rows,
        "|",
        color=BLACK,
        markersize=16,
        markeredgewidth=2,
        label="as far as chance reaches (95 % of shuffled scores)",
    )
    axes.set_yticks(rows, [names[key] for key in table.index])
    axes.grid(axis="y", visible=False)
    axes.set_xlim(left=0)
    axes.set_xlabel(f"share of importance (PED-ANOVA, best quarter of {len(_assessed(sweep))} finished trials)")
    legend(figure, [axes])
    return figure


def _assessed(sweep: Sweep) -> pd.DataFrame:
    trials = comparable_trials(sweep)
    trials = trials[trials["role"] != "stopped"]
    if len(trials) < LEAST_TRIALS:
        raise NothingToShow(
            f"Only {len(trials)} trial{'s have' if len(trials) != 1 else ' has'} finished: "
            f"with fewer than {LEAST_TRIALS}, importance would be noise."
        )
    if len(sweep.space) < 2:
        raise NothingToShow("Only one setting was searched: there is nothing to compare its importance with.")
    return trials


def _distribution(dimension: Dimension) -> BaseDistribution:
    if dimension.is_choice:
        return CategoricalDistribution(dimension.values)
    low, high = dimension.values
    if dimension.kind == "integer":
        return IntDistribution(low, high, step=dimension.step)
    return FloatDistribution(low, high, log=dimension.is_log)


def _shares(points: list[Point], distributions: dict[str, BaseDistribution], costs: np.ndarray) -> dict[str, float]:
    study = optuna.create_study(direction="minimize")
    study.add_trials(
        optuna.create_trial(params=point, distributions={key: distributions[key] for key in point}, value=float(value))
        for point, value in zip(points, costs, strict=True)
    )
    evaluator = optuna.importance.PedAnovaImportanceEvaluator(target_quantile=_BEST_SHARE)
    return optuna.importance.get_param_importances(study, evaluator=evaluator)


@contextmanager
def _quiet() -> Iterator[None]:
    """Silences Optuna, which announces every study that it makes."""
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        yield
    finally:
        optuna.logging.set_verbosity(before)
