"""What a run guarantees: by its rounds, and by what was done to its text before.

    >>> from uedp_ray.config import CorpusConfig, RunConfig
    >>> from uedp_ray.methods import apply
    >>> from uedp_ray.plan import Plan
    >>> from uedp_ray.training.guarantees import guarantees
    >>> config = apply(RunConfig(corpus=CorpusConfig(declared_num_users=1000)), "noiseless")
    >>> [each.told for each in guarantees(Plan.of(config), {"user-entity": float("inf")})]
    ['no guarantee']

A transform that makes a promise of its own (``Transform.claim``) adds it. That of the rounds is about the text before, and
holds with any transform (docs/accounting.md, "Transforms").
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from uedp_ray.corpus.transforms.base import transform_of
from uedp_ray.plan import Plan
from uedp_ray.privacy.guarantee import Guarantee, GuaranteedUnit, central
from uedp_ray.privacy.statement import relation_of


def guarantees(plan: Plan, spent: Mapping[str, float]) -> list[Guarantee]:
    """Of a run that has ``spent`` by unit."""
    config = plan.config
    relation = relation_of(declared=config.bounds.mode == "declared")
    of_rounds = central(spent if plan.private else {}, delta=config.privacy.delta, relation=relation)
    transform = transform_of(config.corpus.transform)
    claim = None if transform is None else transform.claim()
    if claim is None:
        return of_rounds
    of_text = Guarantee(
        unit=cast(GuaranteedUnit, claim.unit),
        epsilon=claim.epsilon,
        delta=0.0,
        relation="replacement",
        trust="local",
        accountant="pure",
        sound=True,
        note=claim.note,
    )
    return [*(each for each in of_rounds if each.unit != "none"), of_text]
