"""A sweep in words: what was searched, what was found, what it cost, and what may be published.

    dict(summary(load_sweep("runs/quickstart")))["May be published"]

Every epsilon in the text carries unit, relation and delta.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from uedp_ray.analysis.figures import noiseless
from uedp_ray.analysis.frames import UNITS, Sweep
from uedp_ray.analysis.style import number
from uedp_ray.privacy.odometer import SETTLED_BY_RESULTS
from uedp_ray.privacy.selection import SECRET, TRAINS_ANEW
from uedp_ray.privacy.statement import show_delta, show_epsilon
from uedp_ray.search.proxies import disagree
from uedp_ray.search.space import Dimension
from uedp_ray.tasks.metric import Metric

_WORDS = {
    "done": "finished",
    "stopped": "stopped early",
    "failed": "failed",
    "refused": "refused before training",
    "running": "not finished",
}


def terms(sweep: Sweep) -> str:
    """Says what an epsilon of the sweep means."""
    return f"unit {sweep.sweep_config.unit}, {sweep.relation}, {_delta(sweep)}"


def _delta(sweep: Sweep) -> str:
    return f"δ\N{NO-BREAK SPACE}=\N{NO-BREAK SPACE}{show_delta(sweep.delta)}"


def shown(epsilon: float | None, unknown: str = "not known") -> str:
    """``show_epsilon`` for a column of a frame, where NaN is an epsilon that is not known."""
    return unknown if epsilon is not None and math.isnan(epsilon) else show_epsilon(epsilon)


def shown_total(sweep: Sweep) -> str:
    """What the chosen model costs, its choice included; if results settled it, this says so: it is no guarantee then."""
    assert sweep.best is not None
    return shown(sweep.best["epsilon_with_choice"]) + ", settled by results" * sweep.selection["settled_by_results"]


def with_spread(metric: Metric, score: float, spread: float | None) -> str:
    """``95.1 ± 1.3``; without the spread where there is one seed."""
    return metric.show(score) + ("" if spread is None or math.isnan(spread) else f" ± {metric.show(spread)}")


def ranges(dimension: Dimension) -> str:
    """A searched setting in words."""
    if dimension.is_choice:
        text = "one of " + ", ".join("none" if value is None else str(value) for value in dimension.values)
    else:
        low, high = (number(value) for value in dimension.values)
        text = f"{low} to {high}" + (", log scale" if dimension.is_log else "")
        text += f", steps of {dimension.step}" if dimension.step > 1 else ""
    for key, values in dimension.when.items():
        text += f"; only where {key} is {' or '.join(map(str, values))}"
    return text


def summary(sweep: Sweep) -> list[tuple[str, str]]:
    """Returns headed paragraphs of plain text."""
    return [
        ("Searched", _searched(sweep)),
        ("Trials", _sentence(_trials(sweep))),
        ("Found", _found(sweep)),
        ("No search", _sentence(sweep.no_search["text"])),
        ("ε in total, the choice included", _choosing(sweep)),
        *([("ε of the chosen run alone", _spent(sweep, sweep.best))] if sweep.best else []),
        ("May be published", _sentence(sweep.selection["releasable"].replace("`", ""))),
    ]


def warnings(sweep: Sweep) -> list[str]:
    """Returns what a reader must know before showing this page to anybody, or believing its scores."""
    found = []
    if not sweep.finished:
        found.append("The sweep is not finished. Nothing here is final, and the price of choosing is not settled.")
    if sweep.selection["rule"] in SECRET:
        found.append(
            f"This page itself is private. Under the rule {sweep.selection['rule']} only the winner may be released (its "
            "model, score, configuration and ledger): other trials, their scores and their number are not paid for."
        )
    if "noiseless" in set(sweep.references["name"]):
        found.append(f"The noiseless reference on this page: {noiseless(sweep)}.")
    if caution := sweep.metric.caution(sweep.best or {}):
        found.append(f"{_sentence(sweep.metric.title)[:-1]} flatters the model: {caution}.")
    if caution := sweep.metric.worthless(sweep.best or {}):
        found.append(f"For scale: {caution}.")
    found += [pair["text"] for pair in sweep.agreement if disagree(pair)]
    public = sweep.sweep_config.starts_public
    if sweep.finished and (caution := sweep.metric.gained_nothing(sweep.best or {}, public=public)):
        found.append(_sentence(caution))
    return found


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:].rstrip('.')}."


def _searched(sweep: Sweep) -> str:
    search = sweep.sweep_config.search
    noise = (
        "the noise of every trial is solved from what it may spend"
        if sweep.sweep_config.budget.noise == "calibrated"
        else "the noise is free, and points beyond what a run may spend are refused before training"
    )
    of_what = "per run" if sweep.sweep_config.budget.covers == "each_trial" else "in total"
    names = ", ".join(key.split(".")[-1] for key in sweep.space)
    dimensions = f"{len(sweep.space)} dimension{'s' * (len(sweep.space) > 1)} ({names})"
    trials = sum(sweep.counts[state] for state in _WORDS)
    where = f"{dimensions} in {trials} trial{'s' * (trials != 1)}"
    seeds = search.seeds_per_trial
    return (
        f"{where}, by the searcher {search.searcher}, under the budget ε ≤ {sweep.target_epsilon:g} {of_what} "
        f"({terms(sweep)}); {noise}. {seeds} seed{'s' if seeds > 1 else ''} per trial{_on_each(sweep)}."
    )


def _on_each(sweep: Sweep) -> str:
    names = list(sweep.sweep_config.score_columns)
    return f" on each of the public texts {', '.join(names)}, whose mean score counts" if len(names) > 1 else ""


def _trials(sweep: Sweep) -> str:
    states = [f"{sweep.counts[state]} {words}" for state, words in _WORDS.items() if sweep.counts[state]]
    planned = sweep.sweep_config.num_trials
    asked = f"{planned} asked for"
    if sweep.sweep_config.search.rule in SECRET:  # whatever it was priced by in the end
        secret = "secret " if sweep.selection["rule"] in SECRET else ""
        asked = f"a {secret}random number, {planned} on average"
    return f"{asked}; {', '.join(states) or 'none started'}"


def _found(sweep: Sweep) -> str:
    best, metric = sweep.best, sweep.metric
    if best is None:
        return "No trial finished within the budget: there is nothing to choose."
    verb, anew = (
        "is the best" + " so far" * (not sweep.finished),
        sweep.finished and sweep.selection["rule"] in TRAINS_ANEW,
    )
    has = ": the model trained anew on the private text by its settings has" if anew else ", with"
    text = f"Trial {best['trial']} {verb}{has} {metric.title} {with_spread(metric, best[metric.name], best[metric.spread])}"
    text += f" over {best['seeds']} seeds" if best["seeds"] > 1 else ""
    beside = [score.say(best[score.name]) for score in metric.beside if best.get(score.name) is not None]
    text += f" ({', '.join(beside)})" if beside else ""
    levels = dict(zip(sweep.references["name"], sweep.references[metric.name], strict=True))
    if sweep.selection["rule"] == "public" and not sweep.finished:
        text, levels = f"{text}, on the search's text", {}
    if sweep.selection["rule"] == "public":  # trials and references are of other text than the winner
        before, levels = metric.before(best), {}
    else:
        before = metric.show(levels["public-only"]) if "public-only" in levels else ""
    if before:
        text += f"; a model trained on public text only has {before} (ε = 0)"
    if "noiseless" in levels:
        text += f"; a noiseless one {metric.show(levels['noiseless'])} (no guarantee)"
    agreed = "".join(f" {pair['text']}" for pair in sweep.agreement if not disagree(pair))  # else a warning
    return f"{text}. {_ties(best)}{agreed}"


def _ties(best: Mapping[str, Any]) -> str:
    if best["seeds"] == 1 or best["tied"] is None:
        return (
            "With one seed per trial, the spread from noise and start is not known: close results may differ by chance."
        )
    if not best["tied"]:
        return "The spread over seeds tells it apart from every other trial."
    return f"By the spread over seeds it cannot be told apart from {', '.join(best['tied'])}."


def _spent(sweep: Sweep, best: Mapping[str, Any]) -> str:
    each = ", ".join(f"{unit} {shown(best['epsilon'][unit])}" for unit in UNITS)
    return f"By unit: {each}; {sweep.relation}, {_delta(sweep)}; upper bounds for this one run, not for its choice."


def _choosing(sweep: Sweep) -> str:
    price = sweep.selection
    if not sweep.finished:
        return str(price["text"])
    total = sweep.best["epsilon_with_choice"] if sweep.best else price["epsilon"]
    counted = "the chosen run and its choice" if sweep.best else "the trials"
    text = f"Rule {price['rule']}: {counted} together cost ε = {shown(total)} ({terms(sweep)})."
    if price["rule"] == "public":
        return f"{text} {price['text']}"
    return f"{text} Computed by: {price['accountant']}." + (
        f" {SETTLED_BY_RESULTS}" if price["settled_by_results"] else ""
    )
