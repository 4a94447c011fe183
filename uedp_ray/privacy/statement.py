"""What an epsilon states: its unit, relation, delta, accountant, sentence rule and sampling, in one object.

    >>> from uedp_ray.privacy.statement import state
    >>> from uedp_ray.privacy.mechanisms.poisson import RoundMechanism
    >>> one = RoundMechanism(noise_multiplier=2.0, user_sampling_prob=0.05, max_holders=10)
    >>> found = state(one, epsilon=2.0091, delta=1e-5, unit="user-entity", declared=False)
    >>> for part in found.text.split("; "):
    ...     print(part)
    epsilon = 2.010 at delta = 1e-05 (an upper bound)
    unit: one user and entity
    relation: zero_out (fixed-graph)
    accountant: pld
    sentence rule: all
    sampling: poisson.
    >>> found.guarantee, state(one, epsilon=2.0091, delta=1e-5, unit="user", declared=False, private=False).guarantee
    (True, False)

All inputs are public.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from uedp_ray.privacy.mechanisms.poisson import RoundMechanism

_PART_OF_SWEEP = (
    "one run of a sweep, by itself. A model that was chosen among the runs of a sweep costs the sweep's total, which is in "
    "the sweep's result.json and first in what `uedp-ray export SWEEP --out DIR` writes; `uedp-ray epsilon --export DIR` "
    "computes it again"
)


_PART_OF_COMPARISON = (
    "one variant of a comparison, by itself. Which of them is chosen depends on the results of all, and nothing charges for "
    "that; a sweep prices its choice"
)


CHECKED = (
    "The guarantee is for pairs of corpora that both pass the checks made before the first round: whether a corpus passes "
    "them is reported without noise."
)
"""Part of the definition of the relation, wherever it is stated; docs/threat-model.md lists the checks."""


def part_of(events: Sequence[Mapping[str, Any]]) -> str | None:
    """What the run of a ledger is a part of (``sweep``, ``comparison``), if it is one of several."""
    return events[0]["header"].get("part_of") if events and events[0]["kind"] == "open" else None


def covers(header: Mapping[str, Any]) -> str:
    """What the epsilon of one run covers, from its ledger's header."""
    part = header.get("part_of")
    if part is None:
        return "this run alone, as if it was not chosen among others"
    return _PART_OF_COMPARISON if part == "comparison" else _PART_OF_SWEEP


def narrowed(unit: str, categories: Sequence[str] | None, each: str = "trial") -> str:
    """The unit of a total over runs that protect different categories: its entities are those that all of them protect."""
    return unit if categories is None else f"{unit}; entities: {', '.join(categories)}, which every {each} protects"


OF_RECORDS = "No person is hidden: whoever wrote several sentences is in as many records."
"""Said wherever an epsilon of one record is, ``units.RECORD``."""
NO_GUARANTEE = "as published, not a guarantee"
"""Stands wherever an epsilon of ``privacy.published`` is shown."""
OF_ONE_RUN = "of one run, not of its choice"
"""Said of the epsilon of one run of several (``part_of``): it holds, and is not the price of a model chosen among them."""
_EXACT = 2.0**53 / 1000
"""Above it a float has no thousandths to round up, and far above it the product with 1000 is infinite."""


def show_epsilon(value: float | None, nothing: str = "no guarantee") -> str:
    """Three decimals, rounded up, so that what is printed is a bound too. Infinity and None become ``nothing``.

    A number too large to have thousandths is shown whole.

        >>> import math
        >>> from uedp_ray.privacy.statement import show_epsilon
        >>> [show_epsilon(value) for value in (0.0, 1e-9, 2.0, 2.0091, 1e13, math.inf, None)]
        ['0.000', '0.001', '2.000', '2.010', '10000000000000', 'no guarantee', 'no guarantee']
    """
    if value is None or math.isinf(value):
        return nothing
    return f"{math.ceil(value * 1000) / 1000:.3f}" if value < _EXACT else str(math.ceil(value))


def show_delta(delta: float) -> str:
    """All digits that distinguish it: an epsilon holds at its own delta, not at one that is rounded to less.

    ``float`` reads the same number back.

        >>> from uedp_ray.privacy.statement import show_delta
        >>> show_delta(1e-5), show_delta(1 / 946)
        ('1e-05', '0.0010570824524312897')
    """
    return repr(float(delta))


_PARTS = {"entity": "detected entities", "extended": "sentences without detected entities"}


@dataclass(frozen=True, kw_only=True)
class Statement:
    """Every figure we print carries one; figures of different units never share an axis or a ranking."""

    epsilon: float
    delta: float
    unit: str
    accountant: str
    relation: str
    guarantee: bool
    selection_rule: str
    sampling: str
    text: str


def relation_of(*, declared: bool) -> str:
    """The neighbouring relation of rounds, by whether bounds are declared, or enforced on a graph that is fixed."""
    return f"zero_out ({'declared' if declared else 'fixed-graph'})"


def state(
    mechanism: RoundMechanism | None,
    *,
    epsilon: float,
    delta: float,
    unit: str,
    accountant: str = "pld",
    declared: bool,
    private: bool = True,
    nothing: str = "",
    note: str = "",
    kind: str = "both",
    chosen: bool = False,
    settled: bool = False,
) -> Statement:
    """The statement of ``epsilon``.

    ``mechanism`` None: nothing was released. ``declared``: the bounds were declared and the data satisfy them; else they
    were enforced by cutting or weighing, and who holds what is fixed. ``private``: False for test noise. ``accountant``
    published claims nothing: ``unit`` says which its figure was printed for. ``nothing``: why there is no guarantee.
    ``note``: a further sentence. ``kind``: the kind of entities, if it is one (``dominating.kinds``): that is a part of the
    unit, and not a guarantee for it. ``chosen``: whether the run is one of several, whose choice ``epsilon`` leaves out: not
    a guarantee for the model then. ``settled``: whether results settled ``epsilon`` (``odometer.SETTLED_BY_RESULTS``): it
    bounds what ``note`` says, and is not an (epsilon, delta) of the search whatever its outcome.
    """
    relation = relation_of(declared=declared)
    part = _PARTS.get(kind, "") if accountant != "published" and unit != "user" else ""
    bounded = private and accountant != "published" and math.isfinite(epsilon) and not part and not chosen
    guarantee = bounded and not settled
    rule = "none" if mechanism is None else mechanism.selection_rule
    sampling = "none" if mechanism is None else "poisson"
    if accountant == "published":
        claim = NO_GUARANTEE
    elif not private:
        claim = "not private: " + ("no noise" if mechanism is None else "noise by a test seed, or as published")
    elif bounded:
        claim = "settled by results, to be read as said below" if settled else "an upper bound"
    else:
        less = [f"of {part} alone"] * bool(part) + [OF_ONE_RUN] * chosen
        claim = nothing or ": ".join([", ".join(less), "no guarantee"] if less else ["no guarantee"])
    text = (
        f"epsilon = {show_epsilon(epsilon, 'infinite')} at delta = {show_delta(delta)} ({claim}); "
        f"unit: one {unit.replace('-', ' and ')}; relation: {relation}; "
        f"accountant: {accountant}; sentence rule: {rule}; sampling: {sampling}.{note}"
    )
    return Statement(
        epsilon=epsilon,
        delta=delta,
        unit=unit,
        accountant=accountant,
        relation=relation,
        guarantee=guarantee,
        selection_rule=rule,
        sampling=sampling,
        text=text,
    )
