"""What there would be without a search: the base's own settings, trained once with the whole budget.

    row = no_search(sweep, rows, None)      # before a run is chosen
    row["epsilon"], row["noise_multiplier"], row["text"]

Nothing is trained for it. All but the score follows from the sweep's file; a score is that of a trial which was this very
run: on public text, or where every trial has the whole budget. Where trials are secret there is none, and nothing here says
whether one of them was.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from uedp_ray.calibration import noise_of, planned_charges, with_target
from uedp_ray.errors import InputError
from uedp_ray.privacy.events import epsilon_of_charges
from uedp_ray.privacy.selection import SECRET
from uedp_ray.privacy.statement import show_epsilon
from uedp_ray.search.space import Point
from uedp_ray.search.sweep_config import SweepConfig, laid_over

_SAME = 0.005
"""How far epsilons of equal runs lie apart at most: each noise is solved to a tolerance, on a text of its own."""
_NOISE, _TARGET = "privacy.noise_multiplier", "privacy.target_epsilon"
_DEAR = "not trained beside the search, as it would cost the whole budget"
_NONE = "no trial that ended was this run"


def no_search(sweep: SweepConfig, rows: Iterable[Mapping[str, Any]], best: Mapping[str, Any] | None) -> dict[str, Any]:
    """Returns ``epsilon`` and ``noise_multiplier``, both None where no noise meets the budget, ``rounds``, ``passes``,
    ``params`` (what is searched, as the base has it; noise as it is solved), the ``trial`` that was this very run and its
    scores, both None without one, and all of it in ``text``.

    ``chosen_noise_ratio``: the noise of the chosen run, in that of its settings with the whole budget; None if not known,
    and where noise is searched or given.

    Args:
      rows: all trials.
      best: the chosen run, as ``result.json`` has it; None before there is one.
    """
    metric, base, target = sweep.metric, sweep.base, sweep.budget.target_epsilon
    scores = (*metric.names, metric.spread, *sweep.score_columns.values())
    rounds = base.training.num_rounds
    rows = [] if sweep.search.rule in SECRET else list(rows)
    at_base, own = sweep.at_base(rows), None
    epsilon, noise = None, _solved(sweep, {})
    params = sweep.parsed_space.values_of(base)
    params |= {key: value for key, value in ((_NOISE, noise), (_TARGET, target)) if key in params}
    if noise is not None:
        charged = planned_charges(with_target(base, target), noise)
        epsilon = epsilon_of_charges(charged, delta=sweep.budget.delta, unit=sweep.budget.unit)
        epsilon = epsilon if base.privacy.test_noise_seed is None else math.inf
        spent = at_base and _known(at_base["epsilon"])
        if at_base and spent and at_base["rounds"] == rounds and math.isclose(spent, epsilon, rel_tol=_SAME):
            own = at_base
    chosen = None if best is None else best["noise_multiplier"]
    whole = _solved(sweep, best["params"]) if best is not None and chosen and not _searches_noise(sweep) else None
    found = f"which no noise keeps within ε = {target:g}"
    if epsilon is not None:
        found = f"ε = {show_epsilon(epsilon, '∞')}, noise multiplier {noise:.3f}"
    text = f"the base's own settings trained once with the whole budget ({found}): "
    text += _compared(sweep, rows, at_base, own, best)
    if chosen and whole:
        text += _spent(sweep, chosen, whole)
    return {
        "trial": own and own["trial"],
        **{name: None if own is None else _known(own[name]) for name in scores},
        "epsilon": epsilon,
        "noise_multiplier": noise,
        "rounds": rounds,
        "passes": rounds * base.privacy.user_sampling_prob,
        "params": params,
        "chosen_noise_ratio": chosen / whole if chosen and whole else None,
        "text": text,
    }


def _searches_noise(sweep: SweepConfig) -> bool:
    """Whether the noise of a run is the file's own or the searcher's choice, and says nothing of what a search takes."""
    return sweep.budget.noise == "free" or _TARGET in sweep.space


def _solved(sweep: SweepConfig, point: Point) -> float | None:
    """The noise multiplier of a point's settings with the whole budget; None if no noise keeps it."""
    try:
        return noise_of(with_target(laid_over(sweep.base, sweep, point), sweep.budget.target_epsilon))
    except InputError:
        return None


def _compared(
    sweep: SweepConfig,
    rows: Iterable[Mapping[str, Any]],
    at_base: Mapping[str, Any] | None,
    own: Mapping[str, Any] | None,
    best: Mapping[str, Any] | None,
) -> str:
    """The score of no search, if it is known, beside that of the best trial: both on the text that trials are scored on."""
    metric, rule = sweep.metric, sweep.search.rule
    why = _DEAR if sweep.shares_budget or rule in SECRET else _NONE
    there = " on the search's text" if rule == "public" else ""
    first = next((row for row in rows if best is not None and row["trial"] == best["trial"]), None)
    if at_base is None or first is None:
        return f"{why}."
    theirs, ours = (metric.say(row[metric.name]) for row in (at_base, first))
    against = "none did better" if at_base["trial"] == first["trial"] else f"the best has {ours}"
    if own is not None:
        return f"trial {own['trial']} was this run, with {theirs}{there}, and {against}."
    less = "at its share of the budget" if sweep.shares_budget else "but not this noise, or not all rounds"
    return f"{why}. Trial {at_base['trial']} has these settings {less}, with {theirs}{there}, and {against}."


def _spent(sweep: SweepConfig, chosen: float, whole: float) -> str:
    """What the search took: noise, where it shared the budget; else what its total exceeds that of one run by."""
    if not math.isclose(chosen, whole, rel_tol=_SAME):
        times = f"{chosen / whole:.2f} times the {whole:.3f}"
        return f" The chosen run has noise multiplier {chosen:.3f}, {times} of its settings with the whole budget."
    beyond = "" if sweep.shares_budget or sweep.search.rule == "public" else ": what its choice costs is in the total ε"
    return f" The chosen run has the noise of the whole budget, too{beyond}."


def _known(value: float | None) -> float | None:
    return None if value is None or math.isnan(value) else float(value)
