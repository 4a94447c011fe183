"""What a run guarantees: by its rounds, and by what was done to its text before.

    >>> from uedp_ray.config import CorpusConfig, RunConfig
    >>> from uedp_ray.methods import apply
    >>> from uedp_ray.plan import Plan
    >>> from uedp_ray.training.guarantees import guarantees
    >>> config = apply(RunConfig(corpus=CorpusConfig(declared_num_users=1000)), "noiseless")
    >>> nothing = {"user-entity": float("inf")}
    >>> [each.told for each in guarantees(Plan.of(config), nothing)]
    ['no guarantee']
    >>> [(each.told, each.trust) for each in guarantees(Plan.of(apply(config, "local_dp_fedavg")), nothing)]
    [('ε = 16.568 of one record', 'local')]

A transform that makes a promise of its own (``Transform.claim``) adds it, sound if it is one of those that are proved, and
if the task, which is given sentences as they were for their labels, is. That of the rounds is about the text before, and
holds with any transform (docs/accounting.md, "Transforms").
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Set
from typing import cast

from uedp_ray.config import RunConfig, TransformConfig
from uedp_ray.config.choices import (
    KEEPING_USERS_APART,
    PROVED_ARCHITECTURES,
    PROVED_TRANSFORMS,
    PROVED_WORD_MECHANISMS,
)
from uedp_ray.corpus.transforms.base import claim_of, transform_of
from uedp_ray.plan import Plan
from uedp_ray.privacy.events import Charges
from uedp_ray.privacy.guarantee import Guarantee, GuaranteedUnit, central
from uedp_ray.privacy.local import local_dp_sgd
from uedp_ray.privacy.statement import OF_RECORDS, relation_of
from uedp_ray.training.representation import noised_vectors
from uedp_ray.units import RECORD


def guarantees(plan: Plan, spent: Mapping[str, float], charged: Charges | None = None) -> list[Guarantee]:
    """Of a run that has ``spent`` by unit (``plan.units_of``). ``charged``: its ledger, which may hold more rounds than were
    planned."""
    config = plan.config
    relation = relation_of(declared=config.bounds.mode == "declared")
    note = OF_RECORDS if config.unit == RECORD else ""
    of_rounds = central(spent if plan.private else {}, delta=config.privacy.delta, relation=relation, note=note)
    secret = config.privacy.test_noise_seed is None
    if plan.noised and plan.local is not None:
        rounds = max(config.training.num_rounds, 0 if charged is None else charged.num_rounds)
        of_rounds = [local_dp_sgd(plan.local, rounds=rounds, delta=config.privacy.delta)]
    elif config.representation.kind != "none" and secret:
        of_rounds = noised_vectors(config).guarantees()
    if named := assumed(config):
        of_rounds = [
            dataclasses.replace(each, sound=False, assumed=named) if each.sound else each for each in of_rounds
        ]
    transform = transform_of(config.corpus.transform)
    claim = None if transform is None else claim_of(transform)
    if claim is None or not secret:
        return of_rounds
    unproved, tasks = _unproved(config), tuple(named for named in assumed(config) if named.startswith(_TASK))
    of_text = Guarantee(
        unit=cast(GuaranteedUnit, claim.unit),
        epsilon=claim.epsilon,
        delta=0.0,
        relation="replacement",
        trust="local",
        accountant="pure",
        sound=not unproved and not tasks,
        assumed=() if unproved else tasks,
        note=claim.note,
    )
    return [*(each for each in of_rounds if each.unit != "none"), of_text]


def assumed(config: RunConfig) -> tuple[str, ...]:
    """The code of a run that no proof covers, each ``setting: name``: its guarantee assumes something of it."""
    chosen: list[tuple[str, str, Set[str]]] = [("task.kind", config.task.kind, KEEPING_USERS_APART)]
    if config.training.loop == "rounds":
        chosen.insert(0, ("training.local_update", config.training.local_update, KEEPING_USERS_APART))
    chosen.append(("model.architecture", config.model.architecture, PROVED_ARCHITECTURES))
    return (*(f"{setting}: {name}" for setting, name, proved in chosen if name not in proved), *_unproved(config))


def of_texts(named: str) -> bool:
    """Whether what ``assumed`` names makes texts, and no update."""
    return named.startswith(_TRANSFORM)


_TRANSFORM, _TASK = "corpus.transform.", "task."


def _unproved(config: RunConfig) -> tuple[str, ...]:
    transform: TransformConfig = config.corpus.transform
    if transform.kind != "none" and transform.kind not in PROVED_TRANSFORMS:
        return (f"{_TRANSFORM}kind: {transform.kind}",)
    if transform.kind == "replace_words" and transform.mechanism not in PROVED_WORD_MECHANISMS:
        return (f"{_TRANSFORM}mechanism: {transform.mechanism}",)
    return ()
