"""The metric of each task.

    >>> from uedp_ray.tasks.metrics import METRICS
    >>> metric = METRICS["next_word"]
    >>> metric.names
    ('perplexity', 'bits_per_byte', 'unk_share')
    >>> metric.say(151.72), metric.better, metric.worst
    ('perplexity 151.7', 'lower', inf)
    >>> [score.say(value) for score, value in zip(metric.beside, (2.18, 0.0412))]
    ['2.180 bits/byte', '4.1% <unk>']
    >>> metric.across.name, metric.references
    ('bits_per_byte', ('initial_perplexity', 'initial_bits_per_byte', 'bzip2_bits_per_byte'))

Importing this loads no network. Everything here is public.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from uedp_ray.components import in_table
from uedp_ray.config import RunConfig
from uedp_ray.tasks.metric import UNKNOWN, Metric, Score, Yardstick

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
        phrase="bzip2 takes {} bits/byte of the same text",
        format=".3f",
        of=lambda size: size.bzip2_bits_per_byte,
        worthless=", and knows no language: a model of {} writes little sense.",
    ),
    purpose="predicts the next word",
    continues_text=True,
)


def _commonest(score: str, reaches: str, label: str, each: str, of: Callable[[float], float]) -> Yardstick:
    """What giving all the same label reaches, the commonest of the text that is scored. ``of``: the score, of the share of
    it."""
    return Yardstick(
        name=f"commonest_{score}",
        title=f"commonest {label}",
        explained=f"{score.replace('_', ' ')} of giving every {each} the commonest {label} of the same text",
        phrase=f"the commonest {label}, given to every {each}, has {reaches} of {{}}",
        format=".1%",
        of=lambda size: None if size.commonest_share is None else of(size.commonest_share),
        worthless=": a model of {} tells no more than that.",
    )


ERROR_RATE = Metric(
    name="error_rate",
    title="error rate",
    explained="held-out sentences with another label than theirs",
    phrase="error rate {}",
    format=".1%",
    goal="min",
    beside=(UNKNOWN,),
    yardstick=_commonest("error_rate", "an error rate", "label", "sentence", lambda share: 1 - share),
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
    yardstick=_commonest("word_accuracy", "a word accuracy", "tag", "word", lambda share: share),
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
    return in_table(METRICS, config.task.kind, "METRICS of uedp_ray.tasks.metrics")


def metric_in(row: Collection[str]) -> Metric:
    """The metric that a row of a table or a result has. Raises: KeyError if it has none."""
    for metric in (*METRICS.values(), MASKED_PERPLEXITY):
        if metric.name in row:
            return metric
    raise KeyError(f"none of {', '.join(metric.name for metric in METRICS.values())}")
