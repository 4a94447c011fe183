"""What a task is scored by: one figure that models are compared by, and those that are stated beside it.

    METRICS["next_word"].name                      # 'perplexity'
    METRICS["next_word"].show(151.72)              # '151.7'

Keys of ``result.json``, columns of tables, axes of figures and the search take the name, the goal and the format from
here. Importing this loads no network. Everything here is public.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Literal

from uedp_ray.config import RunConfig
from uedp_ray.fields import Check, number


@dataclass(frozen=True, kw_only=True)
class Score:
    """A figure of a model on the evaluation text."""

    name: str
    """Its key in files, and the name of its column."""
    title: str
    """The heading of a column of it."""
    explained: str
    """The heading in long."""
    phrase: str
    """With the figure as ``{}``, beside others."""
    format: str
    """As ``format`` takes it."""
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
    """Whether it is ratios of it that count, not differences: it is above 0 then, and shown on a logarithmic scale."""
    beside: tuple[Score, ...] = ()

    @property
    def scores(self) -> tuple[Score, ...]:
        """All that is stated of a model, this one first."""
        return (self, *self.beside)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(score.name for score in self.scores)

    def checks(self, *, nothing: bool = True) -> dict[str, Check]:
        """Of what files say of a model; ``nothing``: whether a score may be missing."""
        return {score.name: number(score.least, nothing=nothing) for score in self.scores}

    def checks_of_run(self, *, nothing: bool = True) -> dict[str, Check]:
        """Of what a run's result says: its scores, and what it began with, which may be missing."""
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
        """What a table of trials has of it, in order."""
        return (self.name, self.spread, *(score.name for score in self.beside), self.initial)

    @property
    def direction(self) -> Literal["minimize", "maximize"]:
        """As Optuna has it."""
        return "minimize" if self.goal == "min" else "maximize"

    @property
    def better(self) -> str:
        """Which way lies the better model, in a word."""
        return "lower" if self.goal == "min" else "higher"

    @property
    def worst(self) -> float:
        return math.inf if self.goal == "min" else -math.inf

    def cost(self, value: float) -> float:
        """What is to be made small."""
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
"""By ``task.kind``. Those of one name are one."""


def metric_of(config: RunConfig) -> Metric:
    """The one that its task is scored by."""
    return METRICS[config.task.kind]


def metric_in(row: Collection[str]) -> Metric:
    """The one that a row of a table or a result has. Raises: KeyError where it has none."""
    for metric in METRICS.values():
        if metric.name in row:
            return metric
    raise KeyError(f"none of {', '.join(metric.name for metric in METRICS.values())}")
