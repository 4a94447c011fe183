"""How a task is scored: the figure that models are compared by, and those reported beside it.

    >>> from uedp_ray.tasks.metric import METRICS
    >>> metric = METRICS["next_word"]
    >>> metric.names
    ('perplexity', 'bits_per_byte', 'unk_share')
    >>> metric.say(151.72), metric.better, metric.worst
    ('perplexity 151.7', 'lower', inf)
    >>> [score.say(value) for score, value in zip(metric.beside, (2.18, 0.0412))]
    ['2.180 bits/byte', '4.1% <unk>']

Keys of ``result.json``, columns of tables, axes of figures and the search take the name, the goal and the format from
here. Importing this loads no network. Everything here is public.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from uedp_ray.components import in_table
from uedp_ray.config import RunConfig
from uedp_ray.fields import Check, number


@dataclass(frozen=True, kw_only=True)
class Score:
    """A figure of a model on the evaluation text."""

    name: str
    """Its key in files, and the name of its column."""
    title: str
    """The heading of its column."""
    explained: str
    """The long form of the heading."""
    phrase: str
    """Its form in a sentence with others, with the figure as ``{}``."""
    format: str
    """The specification that ``format`` takes."""
    least: float = 0.0
    """No model scores less."""

    def show(self, value: float) -> str:
        return format(value, self.format)

    def say(self, value: float) -> str:
        """The figure with its name."""
        return self.phrase.format(self.show(value))


@dataclass(frozen=True, kw_only=True)
class Metric(Score):
    """The score that models are compared by; in private training a function of released parameters only."""

    goal: Literal["min", "max"]
    ratio: bool = False
    """Whether its ratios count, not its differences: it is then above 0, and shown on a logarithmic scale."""
    beside: tuple[Score, ...] = ()

    @property
    def scores(self) -> tuple[Score, ...]:
        """All scores that are reported of a model, this one first."""
        return (self, *self.beside)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(score.name for score in self.scores)

    def checks(self, *, nothing: bool = True) -> dict[str, Check]:
        """The checks of a model's scores in files; ``nothing``: whether a score may be missing."""
        return {score.name: number(score.least, nothing=nothing) for score in self.scores}

    def checks_of_run(self, *, nothing: bool = True) -> dict[str, Check]:
        """The checks of a run's result: its scores, and the one before training, which may be missing."""
        return self.checks(nothing=nothing) | {self.initial: number(self.least, nothing=True)}

    @property
    def spread(self) -> str:
        """The key of its standard deviation over seeds."""
        return f"{self.name}_std"

    @property
    def initial(self) -> str:
        """The key of its value before training."""
        return f"initial_{self.name}"

    @property
    def columns(self) -> tuple[str, ...]:
        """Its columns in a table of trials, in order."""
        return (self.name, self.spread, *(score.name for score in self.beside), self.initial)

    @property
    def direction(self) -> Literal["minimize", "maximize"]:
        """Optuna's word for the goal."""
        return "minimize" if self.goal == "min" else "maximize"

    @property
    def better(self) -> str:
        """The direction of better models, in a word."""
        return "lower" if self.goal == "min" else "higher"

    @property
    def worst(self) -> float:
        return math.inf if self.goal == "min" else -math.inf

    def on(self, text: str) -> str:
        """The key of its value on one of several evaluation texts."""
        return f"{text}.{self.name}"

    def mean(self, values: Iterable[float]) -> float:
        """The mean over texts or models; that of logarithms where ratios count."""
        values = list(values)
        if len(values) == 1:
            return values[0]  # without rounding
        return statistics.geometric_mean(values) if self.ratio else statistics.fmean(values)

    def cost(self, value: float) -> float:
        """The value to minimize."""
        return value if self.goal == "min" else -value


PERPLEXITY = Metric(
    name="perplexity",
    title="perplexity",
    explained="held-out perplexity",
    phrase="perplexity {}",
    format=".1f",
    least=1.0,
    goal="min",
    ratio=True,
    beside=(
        Score(
            name="bits_per_byte",
            title="bits/byte",
            explained="of the evaluation text, unknown words spelled out",
            phrase="{} bits/byte",
            format=".3f",
        ),
        Score(
            name="unk_share",
            title="<unk>",
            explained="share of the evaluation text's words that the vocabulary lacks",
            phrase="{} <unk>",
            format=".1%",
        ),
    ),
)

METRICS: Mapping[str, Metric] = {"next_word": PERPLEXITY}
"""The metric of each ``task.kind``. Metrics of one name are the same."""


def metric_of(config: RunConfig) -> Metric:
    """The metric of the config's task. Raises: TypeError for one without."""
    return in_table(METRICS, config.task.kind, "METRICS of uedp_ray.tasks.metric")


def metric_in(row: Collection[str]) -> Metric:
    """The metric that a row of a table or a result has. Raises: KeyError if it has none."""
    for metric in METRICS.values():
        if metric.name in row:
            return metric
    raise KeyError(f"none of {', '.join(metric.name for metric in METRICS.values())}")
