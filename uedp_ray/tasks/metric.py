"""How a task is scored: the figure that models are compared by, and those reported beside it.

Keys of ``result.json``, columns of tables, axes of figures and the search take the name, the goal and the format from
a ``Metric``; each task's is in ``metrics``. Importing this loads no network. Everything here is public.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from uedp_ray.fields import Check, Later, number

if TYPE_CHECKING:  # which loads tokenizers
    from uedp_ray.corpus.textsize import TextSize

MUCH_UNKNOWN = 0.1
"""The share of a text's words that are ``<unk>`` above which scores say more of ``<unk>`` than of words."""
_FEWER_UNKNOWN = (
    "there is none with pieces of words (vocabulary.kind: public-subwords), and less of it with more public text to take "
    "words from (and a vocabulary.max_size that has room for them), or with vocabulary.strip_punctuation: true"
)

_BY_CHANCE = 0.01
"""The share of a score that is no gain where its spread over seeds is not known: two runs of one setting differ by some 2 %
(docs/conll2003.md)."""

_BETTER_START = (
    "What helps is a better public start: a pretrained model (model.architecture: pretrained), or more public text in "
    "the language of the private one, and more steps on it (pretrain)"
)


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

    @property
    def heading(self) -> str:
        """``title`` as it begins a line: an abbreviation keeps its capitals."""
        return self.title[:1].upper() + self.title[1:]

    def show(self, value: float) -> str:
        return format(value, self.format)

    def say(self, value: float) -> str:
        """The figure with its name."""
        return self.phrase.format(self.show(value))

    def on(self, text: str) -> str:
        """The key of its value on one of several evaluation texts."""
        return f"{text}.{self.name}"


@dataclass(frozen=True, kw_only=True)
class Yardstick(Score):
    """What is reached on the same text without a model, in the unit of ``Metric.measured``."""

    of: Callable[[TextSize], float | None]
    """None if it is not known."""
    worthless: str
    """What a model that does no better is worth, in a sentence with its score as ``{}``."""


@dataclass(frozen=True, kw_only=True)
class Metric(Score):
    """A score that models are compared by; in private training a function of released parameters only."""

    goal: Literal["min", "max"]
    ratio: bool = False
    """Whether its ratios count, not its differences: it is then above 0, and shown on a logarithmic scale."""
    beside: tuple[Score, ...] = ()
    """Reported with it. A ``Metric`` among them compares models of different vocabularies, too; others tell of the text."""
    yardstick: Yardstick | None = None
    """What a model must surpass to be of use, where there is such a figure."""
    purpose: str = ""
    """What a model that was trained for it does, in a sentence about "a language model that …"."""
    continues_text: bool = False
    """Whether such a model is there to continue a text, as model cards then show."""

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
        """The checks of a run's result: its scores, and those before training, which may be missing."""
        first, *later = self.reference_checks().items()
        return self.checks(nothing=nothing) | dict([first]) | {name: Later(check) for name, check in later}

    def reference_checks(self) -> dict[str, Check]:
        """The checks of ``references``, any of which may be missing."""
        least = {metric.initial: metric.least for metric in self.metrics}
        if self.yardstick:
            least[self.yardstick.name] = self.yardstick.least
        return {name: number(value, nothing=True) for name, value in least.items()}

    @property
    def across(self) -> Metric | None:
        """The score beside it that compares models whatever their vocabularies are, if there is one."""
        return next((score for score in self.beside if isinstance(score, Metric)), None)

    @property
    def measured(self) -> Metric:
        """The score that is held against the yardstick."""
        return self.across or self

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """The scores that tell of the model, and so change by training: this one, and ``across``."""
        return (self, self.across) if self.across else (self,)

    @property
    def spread(self) -> str:
        """The key of its standard deviation over seeds."""
        return f"{self.name}_std"

    @property
    def initial(self) -> str:
        """The key of its value before training."""
        return f"initial_{self.name}"

    @property
    def references(self) -> tuple[str, ...]:
        """The keys of what a model's scores are read against: those before training, and the yardstick."""
        return tuple(self.reference_checks())

    def yardstick_of(self, size: TextSize | None) -> dict[str, float | None]:
        """The yardstick on a text of this size, by its key; empty if there is none. None: no text."""
        if self.yardstick is None:
            return {}
        return {self.yardstick.name: None if size is None else self.yardstick.of(size)}

    def against_yardstick(self, scores: Mapping[str, Any]) -> str:
        """The yardstick in a sentence; empty if it is not known."""
        value = scores.get(self.yardstick.name) if self.yardstick else None
        return "" if self.yardstick is None or value is None else self.yardstick.say(value)

    def told(self, row: Mapping[str, Any]) -> str:
        """The scores of a model, and the yardstick beside them if it is known."""
        scores = ", ".join(each.say(row[each.name]) for each in self.metrics)
        scale = self.against_yardstick(row)
        return f"{scores} ({scale})" if scale else scores

    def worthless(self, scores: Mapping[str, Any]) -> str:
        """A sentence for readers of the scores of a model that does not surpass the yardstick; empty for any other, and
        where that is not known.
        """
        said, measured = self.against_yardstick(scores), self.measured
        value = scores.get(measured.name)
        if not said or self.yardstick is None or value is None:
            return ""
        if measured.cost(value) < measured.cost(scores[self.yardstick.name]):
            return ""
        return f"{said}{self.yardstick.worthless.format(measured.say(value))} {_BETTER_START}"

    def before(self, result: Mapping[str, Any]) -> str:
        """The scores before training, in a sentence that names the metric; empty if they are not known."""
        found = [(metric, result.get(metric.initial)) for metric in self.metrics]
        return ", ".join(
            metric.show(value) if metric is self else metric.say(value) for metric, value in found if value is not None
        )

    def harmed(self, result: Mapping[str, Any]) -> str:
        """The score before training and now of a model that predicts worse than before; empty for any other, and where the
        former is not known. Of a model that diverged the latter is None.
        """
        before, after = result.get(self.initial), result.get(self.name)
        if before is None or (after is not None and self.cost(after) <= self.cost(before)):
            return ""
        return f"{self.say(before)}, now {'not finite' if after is None else self.show(after)}"

    def gained_nothing(self, result: Mapping[str, Any], *, public: bool) -> str:
        """A sentence for readers of a model that scores no better than the one that its training began from, by more than
        chance gives; empty for any other, and where that is not known. ``public``: whether that one is public.
        """
        before, after, spread = (result.get(name) for name in (self.initial, self.name, self.spread))
        if before is None or math.isnan(before):
            return ""
        harmed = self.harmed(result)
        if not public:
            return f"the model predicts worse than it did before training ({harmed})" if harmed else ""
        chance = _BY_CHANCE * abs(before) if spread is None or math.isnan(spread) else spread
        if after is not None and self.cost(before) - self.cost(after) > chance:
            return ""
        as_well = "better" if harmed else "as well, as far as chance lets one tell"
        now = "not finite" if after is None else self.show(after)
        return (
            f"the public model that training began from scores {as_well} ({self.say(before)}, now {now}): hand that on "
            "instead; what was trained stays spent, and covers this choice too"
        )

    def caution(self, scores: Mapping[str, Any], text: str = "the evaluation text") -> str:
        """A sentence for readers of a model's scores on a text of which much is ``<unk>``; empty for any other.

        ``scores`` may lack some, of which nothing is said. ``text``: its name for the reader.
        """
        unknown = scores.get(UNKNOWN.name)
        if unknown is None or not unknown > MUCH_UNKNOWN:
            return ""
        compare = f"compare models by {self.across.title}; " if self.across else ""
        return f"{unknown:.0%} of the words of {text} are <unk>, which is easy to predict: {compare}{_FEWER_UNKNOWN}"

    def cautions(self, scores: Mapping[str, Any], *, public: bool = False) -> list[str]:
        """What readers of a model's scores must know: ``caution``, ``worthless``, ``gained_nothing``."""
        found = (self.caution(scores), self.worthless(scores), self.gained_nothing(scores, public=public))
        return [*filter(None, found)]

    @property
    def columns(self) -> tuple[str, ...]:
        """Its columns in a table of trials, in order."""
        return (self.name, self.spread, *(score.name for score in self.beside), *self.references)

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

    def mean(self, values: Iterable[float]) -> float:
        """The mean over texts or models; that of logarithms where ratios count."""
        values = list(values)
        if len(values) == 1:
            return values[0]  # without rounding
        return statistics.geometric_mean(values) if self.ratio else statistics.fmean(values)

    def cost(self, value: float) -> float:
        """The value to minimize."""
        return value if self.goal == "min" else -value


UNKNOWN = Score(
    name="unk_share",
    title="<unk>",
    explained="share of the evaluation text's words that the vocabulary lacks",
    phrase="{} <unk>",
    format=".1%",
)
