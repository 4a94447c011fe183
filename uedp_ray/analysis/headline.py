"""What a reader asks of a sweep first: what may be handed on under the budget, how good it is, and what it gained.

    for head, text in headline(load_sweep("runs/quickstart")): print(head, text)

Every epsilon in the text carries unit, relation and delta.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping
from typing import Any

from uedp_ray.analysis.axes import base_of
from uedp_ray.analysis.frames import Sweep
from uedp_ray.analysis.style import number, shown_value
from uedp_ray.analysis.summary import shown_total, terms, with_spread
from uedp_ray.privacy.selection import TRAINS_ANEW
from uedp_ray.tasks.metric import Metric


def headline(sweep: Sweep) -> list[tuple[str, str]]:
    """Returns headed lines; none for a sweep that is not finished, chose nothing or has no guarantee."""
    best, metric = sweep.best, sweep.metric
    if not sweep.finished or best is None or best["epsilon_with_choice"] is None:
        return []
    total: float = best["epsilon_with_choice"]
    what = f"trial {best['trial']}"
    if sweep.selection["rule"] in TRAINS_ANEW:
        what = f"the model trained by the settings of {what}"
    known = metric.across is not None and best.get(metric.across.name) is not None
    across = f", {metric.across.say(best[metric.across.name])}" if metric.across and known else ""
    over = f" (median of {best['seeds']} runs)" if best["seeds"] > 1 else ""
    found = [
        (
            "Model",
            f"{what}: {metric.title} {with_spread(metric, best[metric.name], best[metric.spread])}{across}{over}",
        ),
        ("Total ε", f"{shown_total(sweep)}, training and choosing, {_against_budget(sweep, total)} ({terms(sweep)})"),
        ("Settings", ", ".join(f"{key.split('.')[-1]} {shown_value(value)}" for key, value in best["params"].items())),
        *([("For scale", scale)] if (scale := metric.against_yardstick(best)) else []),
        ("Gained", "; ".join(gains(sweep)) or "not known: nothing to compare with"),
    ]
    if sweep.published_space is None:
        found.append(("To hand it on", f"uedp-ray export {shlex.quote(str(sweep.path))} --out DIR"))
    return found


def _against_budget(sweep: Sweep, total: float) -> str:
    target = number(sweep.target_epsilon)
    if sweep.sweep_config.budget.covers == "each_trial" and total > sweep.target_epsilon:
        return f"where the budget of {target} covers each trial alone"
    return f"of a budget of {target}"


def gains(sweep: Sweep) -> list[str]:
    """What training, and the search, gained: over the public model, and over the base's own settings."""
    best, metric, found = sweep.best, sweep.metric, []
    assert best is not None
    if change := _change(metric, {each.name: best.get(each.initial) for each in metric.metrics}, best):
        found.append(f"{change[0]} over the public model ({change[1]})")
    rows = sweep.trials.to_dict("records")
    base = base_of(sweep)
    chosen = next((row for row in rows if row["trial"] == best["trial"]), None)
    if base is None or chosen is None:
        return found
    whole = sweep.no_search["trial"] is not None or not sweep.sweep_config.shares_budget
    at = "" if whole else " at their share of the budget"
    if base["trial"] == chosen["trial"]:
        return [*found, f"nothing over the base's own settings{at}, which are the best"]
    gain, before = _change(metric, base, chosen) or ("", "")  # each has a score
    spread = chosen[metric.spread]
    known = "one run each, so how much of it is chance is not known"
    if spread == spread:  # not NaN
        known = f"the runs of one setting spread by {metric.show(spread)}"
    return [*found, f"{gain} over the base's own settings{at}, in trials ({before}; {known})"]


def _change(metric: Metric, before: Mapping[str, Any], after: Mapping[str, Any]) -> tuple[str, str] | None:
    """What was gained, and the scores before; None if they are not known.

    Where much of the text is ``<unk>``, only by the score that compares vocabularies: most of what the other one gains is
    that ``<unk>`` is predicted.
    """
    known = [each for each in metric.metrics if _known(before.get(each.name)) and _known(after.get(each.name))]
    if metric.across in known and metric.caution(after):
        known = [each for each in known if each is metric.across]
    if not known:
        return None
    first, *others = known
    sizes = (_size(each, before[each.name], after[each.name]) for each in known)
    named = [size if known == [metric] else f"{size} in {each.title}" for size, each in zip(sizes, known, strict=True)]
    shown = [first.show(before[first.name]), *(each.say(before[each.name]) for each in others)]
    return " and ".join(named), ", ".join(shown)


def _known(score: float | None) -> bool:
    return score is not None and not math.isnan(score)


def _size(metric: Metric, before: float, after: float) -> str:
    better = metric.cost(before) - metric.cost(after)
    size = f"{abs(better / before):.1%}" if metric.ratio and before else metric.show(abs(better))
    return size if better >= 0 else f"{size} lost"
