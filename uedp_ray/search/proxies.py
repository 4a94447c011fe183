"""Rule ``public``: the texts that trials train on instead of the private one, and what a trial scores on all of them.

    bases = searched_bases(sweep)        # a base for each proxy; without any, the sweep's own

``score_of`` sums up the runs of a trial, and ``agreement`` says whether the proxies rank settings alike.

A proxy is public text in place of the private one. Nothing here reads private text.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from scipy import stats

from uedp_ray.config import RunConfig, from_dict, set_keys, to_dict
from uedp_ray.corpus.overlap import MOST_SHARED, Hashes, shared_text
from uedp_ray.corpus.store import Corpus
from uedp_ray.corpus.textsize import sampled_size
from uedp_ray.corpus.vocabulary import Vocabulary
from uedp_ray.errors import InputError, within
from uedp_ray.search.sweep_config import SweepConfig
from uedp_ray.tasks.metric import UNKNOWN, Metric

LEAST_TRIALS = 5
"""Trials below which an agreement says nothing."""
LEAST_AGREEMENT = 0.6
"""The rank correlation below which a reader is warned."""
_MORE_GAIN = 2.0
"""How many times as much log score a proxy gains by training, or more, for a reader to be told."""
_UNLIKE = 1.5
"""How many times as many users, or fewer, than declared make a proxy unlike the private text."""


def setting_of(proxy: str) -> str:
    """The setting that gives a proxy."""
    return f"search.public{f'.{proxy}' * bool(proxy)}"


def named(proxy: str) -> str:
    """A proxy in a sentence."""
    return f"proxy {proxy}" if proxy else "the proxy"


def naming(proxy: str) -> AbstractContextManager[None]:
    """Errors of a proxy's settings name them as the sweep file does."""
    return within(setting_of(proxy))


def searched_bases(sweep: SweepConfig) -> dict[str, RunConfig]:
    """Returns the base of the trials on each text, by its name. Raises: InputError for a proxy that names no other text."""
    bases = {}
    for proxy, settings in sweep.search.proxies.items():
        with naming(proxy):
            bases[proxy] = from_dict(RunConfig, set_keys(to_dict(sweep.base), settings))
        if bases[proxy].corpus.source == sweep.base.corpus.source:
            remedy = "rule public searches on public text: give corpus.source there"
            raise InputError(setting_of(proxy), bases[proxy].corpus.source.where, remedy)
    for proxy, other in itertools.combinations(bases, 2):
        if bases[proxy].corpus.source == bases[other].corpus.source:
            remedy = f"is the same text as {setting_of(proxy)}, which says nothing more: name other text, or drop one"
            raise InputError(setting_of(other), bases[other].corpus.source.where, remedy)
    return bases or {"": sweep.base}


def by_seed(sweep: SweepConfig, scores: Sequence[float]) -> list[float]:
    """The mean score over the texts, for each seed; ``scores``: of the runs of a trial."""
    return [
        sweep.metric.mean(scores[seed :: sweep.search.seeds_per_trial]) for seed in range(sweep.search.seeds_per_trial)
    ]


def score_of(sweep: SweepConfig, scores: Sequence[float]) -> float:
    """The score of a trial: the median over seeds of the mean over texts.

    Texts differ by a constant, their score without training, so that the mean of logarithms ranks settings as their mean
    gain over the public model does.
    """
    return statistics.median(by_seed(sweep, scores))


def of_each(sweep: SweepConfig, scores: Sequence[float]) -> dict[str, float]:
    """The score on each of several texts, by its column."""
    return {
        column: statistics.median(
            score for score, run in zip(scores, sweep.runs_of_trial, strict=True) if run.proxy == proxy
        )
        for proxy, column in sweep.score_columns.items()
    }


def agreement(sweep: SweepConfig, rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Returns Spearman's rank correlation of trials trained to their end, for each pair of proxies, with its words in
    ``text``; None for too few trials, and where all score the same.
    """
    done, found = [row for row in rows if row["state"] == "done"], []
    for pair in itertools.combinations(sweep.score_columns, 2):
        one, other = ([row[sweep.score_columns[proxy]] for row in done] for proxy in pair)
        value = math.nan
        if len(done) >= LEAST_TRIALS and min(len(set(one)), len(set(other))) > 1:
            value = float(stats.spearmanr(one, other).statistic)
        bests = [f"{_best_on(sweep, proxy, done)} on {proxy}" for proxy in pair if done]
        text = f"Agreement of {' and '.join(pair)}: {_in_words(value, len(done), bests)}"
        known = None if math.isnan(value) else value
        found.append({"proxies": list(pair), "rank_correlation": known, "trials": len(done), "text": text})
    return found


def disagree(pair: Mapping[str, Any]) -> bool:
    """Whether two proxies, as ``agreement`` has them, are known to rank settings differently."""
    value = pair["rank_correlation"]
    return value is not None and value < LEAST_AGREEMENT


def _best_on(sweep: SweepConfig, proxy: str, done: Sequence[Mapping[str, Any]]) -> str:
    column = sweep.score_columns[proxy]
    return str(min(done, key=lambda row: sweep.metric.cost(row[column]))["trial"])


def _in_words(value: float, trials: int, bests: Sequence[str]) -> str:
    if math.isnan(value):
        return f"not known from {trials} trials."
    shown = f"rank correlation {value:.2f} over {trials} trials"
    if value >= LEAST_AGREEMENT:
        return f"{shown}."
    return (
        f"{shown}: they rank settings differently, so that the best here may not be the best on the private text; compare "
        f"the settings that are best on each (trial {', trial '.join(bests)}), or name public text that is more like yours."
    )


def unlike_gain(metric: Metric, searched: Mapping[str, Any], winner: Mapping[str, Any]) -> str | None:
    """Says that the search's text gained far more by training than the private text, if it did: it then asks for larger
    steps (docs/conll2003.md). The rows hold the metric before and after; of texts without a start, or a gain, None.
    """
    known = [row.get(name) for row in (searched, winner) for name in (metric.initial, metric.name)]
    numbers = [float(value) for value in known if value is not None and 0.0 < value < math.inf]
    if not metric.ratio or len(numbers) < len(known):
        return None
    ends = [(numbers[0], numbers[1]), (numbers[2], numbers[3])]
    theirs, own = (math.log(before / after) for before, after in ends)
    if not theirs > _MORE_GAIN * max(own, 0.0):
        return None
    shown = [f"{metric.show(before)} to {metric.show(after)}" for before, after in ends]
    return (
        f"The search's text gained more by training ({shown[0]}) than the private text ({shown[1]}): of settings that "
        "score alike, those with smaller steps may suit it better."
    )


def cautions(sweep: SweepConfig, proxy: str, corpus: Corpus, pretrained_on: Hashes | None) -> Iterator[str]:
    """Yields in what a proxy is unlike the private text as it is declared, or is not new to the public model."""
    declared, found = sweep.base.corpus.declared_num_users, corpus.num_users
    if declared and not declared / _UNLIKE <= found <= declared * _UNLIKE:
        yield (
            f"{named(proxy)} has {found:,} users, and {declared:,} are declared of the private text: "
            "what a round's noise does to it differs"
        )
    share = shared_text(corpus.text_sketch, pretrained_on) if pretrained_on is not None else None
    if share is not None and share >= MOST_SHARED:
        yield f"{named(proxy)} shares {share:.0%} of its text with the pre-training text, which has little left to teach"


def unread(sweep: SweepConfig, proxy: str, evaluation: Corpus, words: Vocabulary) -> str:
    """A caution for trials that are scored on text of which the ``words`` lack much; empty if they do not. It is no private
    text."""
    texts = itertools.chain.from_iterable(said for _, said in evaluation.texts())
    of_proxy = f" of {named(proxy)}" if sweep.search.proxies else ""
    share = sampled_size(texts, words, sweep.base.model.max_length).unk_share
    return sweep.metric.caution({UNKNOWN.name: share}, f"the evaluation text{of_proxy}")
