"""How a task is scored: the figure that models are compared by, and those reported beside it.

    >>> from uedp_ray.tasks.metric import METRICS
    >>> metric = METRICS["next_word"]
    >>> metric.names
    ('perplexity', 'bits_per_byte', 'unk_share')
    >>> metric.say(151.72), metric.better, metric.worst
    ('perplexity 151.7', 'lower', inf)
    >>> [score.say(value) for score, value in zip(metric.beside, (2.18, 0.0412))]
    ['2.180 bits/byte', '4.1% <unk>']
    >>> metric.across.name, metric.references
    ('bits_per_byte', ('initial_perplexity', 'initial_bits_per_byte', 'bzip2_bits_per_byte'))

Keys of ``result.json``, columns of tables, axes of figures and the search take the name, the goal and the format from
here. Importing this loads no network. Everything here is public.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from uedp_ray.components import in_table
from uedp_ray.config import RunConfig
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
    """What a program without a language model reaches on the same text, in the unit of ``Metric.across``."""

    of: Callable[[TextSize], float | None]
    """None if it is not known."""


@dataclass(frozen=True, kw_only=True)
class Metric(Score):
    """A score that models are compared by; in private training a function of released parameters only."""

    goal: Literal["min", "max"]
    ratio: bool = False
    """Whether its ratios count, not its differences: it is then above 0, and shown on a logarithmic scale."""
    beside: tuple[Score, ...] = ()
    """Reported with it. A ``Metric`` among them compares models of different vocabularies, too; others tell of the text."""
    yardstick: Yardstick | None = None
    """What a model must surpass to be of use, where ``across`` has such a figure."""
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
        return "" if self.yardstick is None or value is None else f"{self.yardstick.say(value)} of the same text"

    def told(self, row: Mapping[str, Any]) -> str:
        """The scores of a model, and the yardstick beside them if it is known."""
        scores = ", ".join(each.say(row[each.name]) for each in self.metrics)
        scale = self.against_yardstick(row)
        return f"{scores} ({scale})" if scale else scores

    def worthless(self, scores: Mapping[str, Any]) -> str:
        """A sentence for readers of the scores of a model that does not surpass the yardstick; empty for any other, and
        where that is not known.
        """
        said, across = self.against_yardstick(scores), self.across
        value = scores.get(across.name) if across else None
        if not said or across is None or self.yardstick is None or value is None:
            return ""
        if across.cost(value) < across.cost(scores[self.yardstick.name]):
            return ""
        return f"{said}, and knows no language: a model of {across.say(value)} writes little sense. {_BETTER_START}"

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
        Metric(
            name="bits_per_byte",
            title="bits/byte",
            explained="of the evaluation text, unknown words spelled out",
            phrase="{} bits/byte",
            format=".3f",
            goal="min",
            ratio=True,
        ),
        UNKNOWN,
    ),
    yardstick=Yardstick(
        name="bzip2_bits_per_byte",
        title="bzip2",
        explained="bits that bzip2 takes for a byte of the same text",
        phrase="bzip2 takes {} bits/byte",
        format=".3f",
        of=lambda size: size.bzip2_bits_per_byte,
    ),
    purpose="predicts the next word",
    continues_text=True,
)

ERROR_RATE = Metric(
    name="error_rate",
    title="error rate",
    explained="held-out sentences with another label than theirs",
    phrase="error rate {}",
    format=".1%",
    goal="min",
    beside=(UNKNOWN,),
    purpose="tells which of the labels in `config.yaml` (`task.labels`) a sentence has",
)
WORD_ACCURACY = Metric(
    name="word_accuracy",
    title="word accuracy",
    explained="held-out words with the right tag",
    phrase="word accuracy {}",
    format=".1%",
    goal="max",
    beside=(UNKNOWN,),
    purpose="gives each word one of the tags in `config.yaml` (`task.labels`)",
)
F1 = Metric(
    name="f1",
    title="F1",
    explained="of held-out entities, by first word, last word and category (micro)",
    phrase="F1 {}",
    format=".1%",
    goal="max",
    beside=(
        Score(
            name="precision",
            title="precision",
            explained="of the entities that were found, those that are there",
            phrase="precision {}",
            format=".1%",
        ),
        Score(
            name="recall",
            title="recall",
            explained="of the entities that are there, those that were found",
            phrase="recall {}",
            format=".1%",
        ),
        UNKNOWN,
    ),
    purpose="finds entities of the categories in `config.yaml` (`task.labels`)",
)

MASKED_PERPLEXITY = Metric(
    name="masked_perplexity",
    title="masked perplexity",
    explained="of held-out words that are masked",
    phrase="masked perplexity {}",
    format=".1f",
    least=1.0,
    goal="min",
    ratio=True,
    beside=(UNKNOWN,),
)
"""Of pre-training on masked words, which is no ``task.kind``."""

METRICS: Mapping[str, Metric] = {
    "next_word": PERPLEXITY,
    "classify": ERROR_RATE,
    "tag_words": WORD_ACCURACY,
    "tag_entities": F1,
}
"""The metric of each ``task.kind``. Metrics of one name are the same."""


def metric_of(config: RunConfig) -> Metric:
    """The metric of the config's task. Raises: TypeError for one without."""
    return in_table(METRICS, config.task.kind, "METRICS of uedp_ray.tasks.metric")


def metric_in(row: Collection[str]) -> Metric:
    """The metric that a row of a table or a result has. Raises: KeyError if it has none."""
    for metric in (*METRICS.values(), MASKED_PERPLEXITY):
        if metric.name in row:
            return metric
    raise KeyError(f"none of {', '.join(metric.name for metric in METRICS.values())}")
