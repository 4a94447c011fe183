"""What a reader asks of a sweep first: what may be handed on under the budget, how good it is, and what it gained.

    for head, text in headline(load_sweep("runs/quickstart")): print(head, text)

Every epsilon in the text carries unit, relation and delta.
"""

from __future__ import annotations

import shlex

from uedp_ray.analysis.frames import Sweep
from uedp_ray.analysis.style import number, shown_value
from uedp_ray.analysis.summary import shown, terms, with_spread
from uedp_ray.privacy.selection import TRAINS_ANEW


def headline(sweep: Sweep) -> list[tuple[str, str]]:
    """Returns headed lines; none for a sweep that is not finished, chose nothing or has no guarantee."""
    best, metric = sweep.best, sweep.metric
    if not sweep.finished or best is None or best["epsilon_with_choice"] is None:
        return []
    total: float = best["epsilon_with_choice"]
    what = f"trial {best['trial']}"
    if sweep.selection["rule"] in TRAINS_ANEW:
        what = f"the model trained by the settings of {what}"
    over = f" (median of {best['seeds']} runs)" if best["seeds"] > 1 else ""
    found = [
        ("Model", f"{what}: {metric.title} {with_spread(best[metric.name], best[metric.spread])}{over}"),
        ("Total ε", f"{shown(total)}, training and choosing, {_against_budget(sweep, total)} ({terms(sweep)})"),
        ("Settings", ", ".join(f"{key.split('.')[-1]} {shown_value(value)}" for key, value in best["params"].items())),
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
    before = best.get(metric.initial)
    if before:
        found.append(f"{_change(sweep, before, best[metric.name])} over the public model ({metric.show(before)})")
    rows = sweep.trials.to_dict("records")
    base = sweep.sweep_config.at_base(rows)
    chosen = next((row for row in rows if row["trial"] == best["trial"]), None)
    if base is None or chosen is None:
        return found
    if base["trial"] == chosen["trial"]:
        return [*found, "nothing over the base's own settings, which are the best"]
    gain = _change(sweep, base[metric.name], chosen[metric.name])
    spread = chosen[metric.spread]
    known = "one run each, so how much of it is chance is not known"
    if spread == spread:  # not NaN
        known = f"the runs of one setting spread by {spread:.2g}"
    return [*found, f"{gain} over the base's own settings, in trials ({metric.show(base[metric.name])}; {known})"]


def _change(sweep: Sweep, before: float, after: float) -> str:
    metric = sweep.metric
    better = metric.cost(before) - metric.cost(after)
    size = f"{abs(better / before):.1%}" if metric.ratio else metric.show(abs(better))
    return size if better >= 0 else f"{size} lost"
