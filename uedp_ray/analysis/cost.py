"""What the choice among trials cost, compared with what one run costs and what other rules would have charged.

    [(price.what, price.epsilon) for price in prices(load_sweep("runs/quickstart"))]

Only the row of the rule that the sweep used is a statement about this sweep. The others are computed from public numbers,
the chosen run's mechanism and the planned number of trials, and say what as many trials like the chosen one would cost.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from uedp_ray.analysis.files import inside
from uedp_ray.analysis.frames import Sweep
from uedp_ray.privacy import selection
from uedp_ray.privacy.accounting import compose
from uedp_ray.privacy.ledger import read_ledger
from uedp_ray.privacy.mechanisms import RELEASES
from uedp_ray.privacy.mechanisms.poisson import RoundMechanism


@dataclass(frozen=True)
class Price:
    """One row. ``epsilon``: None is no guarantee. ``of_sweep``: whether it is a statement about this sweep."""

    what: str
    epsilon: float | None
    of_sweep: bool


@dataclass(frozen=True)
class Spent:
    """What the chosen run did, from its ledger."""

    mechanism: RoundMechanism
    rounds: int
    others: tuple[Mapping[str, Any], ...]
    """Charged events of releases that are not rounds."""


def spent_by_best(sweep: Sweep) -> Spent | None:
    """Returns what the chosen run did; None if nothing is chosen, or if the chosen run has no guarantee."""
    if sweep.best_run is None:
        return None
    ledger = inside(sweep.path, str(sweep.best_run.relative_to(sweep.path) / "ledger.jsonl"))
    opened, *events = read_ledger(ledger)
    rounds = [event for event in events if event["kind"] == "round"]
    private = opened["header"].get("private") is True and all(event.get("private") is True for event in rounds)
    if not rounds or not private:
        return None
    others = tuple(event for event in events if event["kind"] in RELEASES)
    return Spent(RoundMechanism.from_dict(rounds[-1]["mechanism"]), len(rounds), others)


def prices(sweep: Sweep) -> list[Price]:
    """Returns the price of the model by the sweep's rule, of its run alone, and of the same choice by the other rules."""
    if sweep.best is None:
        return []
    rule, best = sweep.selection["rule"], sweep.best
    read = ", settled by results" * sweep.selection["settled_by_results"]
    total = Price(f"in total: the chosen run and its choice, by rule {rule}{read}", best["epsilon_with_choice"], True)
    named = "one run: " if best["seeds"] < 2 else f"one of the {best['seeds']} runs of "
    if rule in selection.TRAINS_ANEW and sweep.finished:
        named += f"the last one, by the settings of trial {best['trial']}, alone, as if they were not chosen"
    else:
        named += f"trial {best['trial']} alone, as if it was not chosen"
    alone = Price(named, best["epsilon"][sweep.unit], True)
    return [*([total] if sweep.finished else []), alone, *_elsewhere(sweep, rule)]


def _elsewhere(sweep: Sweep, rule: str) -> Iterator[Price]:
    spent = spent_by_best(sweep)
    if spent is None or spent.others or sweep.best is None:
        return
    trials, rounds = sweep.sweep_config.num_trials, spent.rounds * sweep.best["seeds"]
    settings: dict[str, Any] = {"delta": sweep.delta, "unit": sweep.unit}
    if rule != "repeat_and_select":
        for law in ("logarithmic", "geometric"):
            epsilon = selection.epsilon_of_choosing(
                "repeat_and_select",
                searcher="random",
                early_stopping=False,
                candidates=[[(spent.mechanism, rounds)]],
                mean=float(trials),
                law=law,
                **settings,
            )
            what = f"repeat_and_select: a random number of independent trials, {trials} on average ({law} law)"
            yield Price(what, epsilon, False)
    if rule != "composition":
        epsilon = compose([(spent.mechanism, rounds * trials)], **settings)
        yield Price(f"composition: {trials} trials fixed beforehand, all of them published", epsilon, False)
