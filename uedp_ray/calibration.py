"""What a config is accounted as: the mechanism of its rounds, its other releases, the noise that meets a target.

    planned_charges(config, noise_multiplier=2.0)       # of a run that is not stopped early; no text is read

Everything here follows from public settings alone.
"""

from __future__ import annotations

import dataclasses
from typing import assert_never

from uedp_ray import methods
from uedp_ray.config import BoundsConfig, RunConfig, SurplusRule
from uedp_ray.corpus.vocabulary import vocabulary_event_fields
from uedp_ray.errors import InputError
from uedp_ray.privacy import accounting
from uedp_ray.privacy.events import Charges, epsilon_of_charges
from uedp_ray.privacy.mechanisms import release_of
from uedp_ray.privacy.mechanisms.base import Mechanism
from uedp_ray.privacy.mechanisms.poisson import RoundMechanism
from uedp_ray.units import RECORD

_LEAST_NOISE = 2e-3
"""Where the search for less noise ends, as that of ``accounting.calibrate`` does about there: nothing is to be hidden."""


def extended_sampling_prob(config: RunConfig) -> float:
    """q_s; the estimator f_E leaves out sentences without a detected entity."""
    if config.privacy.estimator == "f_e":
        return 0.0
    if config.privacy.estimator == "f_e_plus":
        return config.privacy.extended_sampling_prob
    assert_never(config.privacy.estimator)


def holder_bound_of(bounds: BoundsConfig) -> SurplusRule:
    """What happens to an entity's holders beyond K, as the accountant knows it; if none is enforced, nobody has more.

    ``reweight`` stands for all weights that sum to K, whichever they are.
    """
    if bounds.mode == "none" or bounds.mode == "declared":
        return "truncate"
    if bounds.mode != "enforced":
        assert_never(bounds.mode)
    if bounds.holder_bound == "truncate":
        return "truncate"
    if bounds.holder_bound == "reweight" or bounds.holder_bound == "fill":
        return "reweight"
    assert_never(bounds.holder_bound)


def mechanism_of(config: RunConfig, noise_multiplier: float) -> RoundMechanism:
    privacy, bounds = config.privacy, config.bounds
    return RoundMechanism(
        noise_multiplier=noise_multiplier,
        user_sampling_prob=privacy.user_sampling_prob,
        entity_sampling_prob=privacy.entity_sampling_prob,
        extended_sampling_prob=extended_sampling_prob(config),
        selection_rule=privacy.selection_rule,
        entity_draw=privacy.entity_draw,
        max_holders=None if bounds.mode == "none" else bounds.max_holders,
        entity_clip=config.entity_clip_norm / privacy.l2_clip_norm,
        extended_clip=config.extended_clip_norm / privacy.l2_clip_norm,
        holder_bound=holder_bound_of(bounds),
        max_users=config.corpus.declared_num_users,
    )


def calibrated(config: RunConfig, mechanism: RoundMechanism, target_epsilon: float) -> RoundMechanism:
    """The mechanism with the least noise whose rounds and other releases meet the target."""
    privacy, rounds = config.privacy, config.training.num_rounds
    z = accounting.calibrate(
        mechanism, target_epsilon=target_epsilon, rounds=rounds, delta=privacy.delta, unit=privacy.unit
    )
    if planned_releases(config) or config.corpus.regroup == "iid":

        def fits(z: float) -> bool:
            planned = planned_charges(config, z)
            return epsilon_of_charges(planned, delta=privacy.delta, unit=config.unit) <= target_epsilon

        low, high = z, 2 * z
        while low > _LEAST_NOISE and fits(low):  # one record of several may cost less than a user
            low, high = low / 2, low
        while not fits(high):
            if high > 1e5 * z:
                raise InputError(
                    "vocabulary.noise_multiplier",
                    config.vocabulary.noise_multiplier,
                    f"the vocabulary alone spends more than epsilon {target_epsilon:g}: raise it or the target",
                )
            low, high = high, 2 * high
        while high > 1.001 * low:
            middle = (low + high) / 2
            low, high = (low, middle) if fits(middle) else (middle, high)
        z = high
    return dataclasses.replace(mechanism, noise_multiplier=z)


def with_target(config: RunConfig, target_epsilon: float) -> RunConfig:
    """Returns the run with noise to be solved for this epsilon, in place of what its noise was."""
    settings = {
        "privacy.target_epsilon": target_epsilon,
        "privacy.noise_multiplier": None,
        "privacy.noise": "calibrated",
    }
    return methods.overlay(config, settings)


def noise_of(config: RunConfig) -> float:
    """The noise multiplier of a run that has a target epsilon. Raises: InputError if none meets it."""
    assert config.privacy.target_epsilon is not None  # as ``with_target`` gives it
    return calibrated(config, mechanism_of(config, 1.0), config.privacy.target_epsilon).noise_multiplier


def planned_charges(config: RunConfig, noise_multiplier: float) -> Charges:
    """What a run with calibrated noise charges if it is not stopped early. Public: no text is read."""
    rounds = mechanism_of(config, noise_multiplier), config.training.num_rounds
    dealt = config.corpus.regroup == "iid"
    return Charges((rounds,), planned_releases(config), of_records=config.unit == RECORD, dealt=dealt)


def planned_releases(config: RunConfig) -> tuple[Mechanism, ...]:
    """What a run releases beside its rounds: a vocabulary of private text, unless its warm start brings another."""
    if config.vocabulary.kind != "noisy-threshold" or config.model.warm_start:
        return ()
    words = vocabulary_event_fields(config.vocabulary, vocabulary_holders(config))
    return (release_of({"kind": "vocabulary", **words}),)


def vocabulary_holders(config: RunConfig) -> int:
    """How many users may count a word with one entity in a noisy-threshold vocabulary; 0 if only users are protected.

    Sentences count that weigh 1: K users have such, or K m, each with one, where weights sum to K m.
    """
    bounds = config.bounds
    if bounds.mode == "none":
        return 0
    per_holder = bounds.max_sentences_per_entity if (bounds.mode, bounds.holder_bound) == ("enforced", "fill") else 1
    return bounds.max_holders * per_holder
