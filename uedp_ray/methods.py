"""The methods that are compared: each is a small set of settings applied over a run's config.

    >>> from uedp_ray.config import CorpusConfig, RunConfig
    >>> from uedp_ray.methods import apply
    >>> config = RunConfig(corpus=CorpusConfig(declared_num_users=1000))
    >>> for method in ("uedp", "user_dp", "entity_dp", "noiseless"):
    ...     found = apply(config, method)
    ...     print(method, found.privacy.unit, found.privacy.noise, found.bounds.mode)
    uedp user-entity calibrated enforced
    user_dp user calibrated none
    entity_dp entity calibrated enforced
    noiseless user-entity none none
    >>> apply(config, "user_dp", {"privacy.target_epsilon": 2}).privacy.target_epsilon
    2.0

A new method is one new entry. Settings are the keys of ``RunConfig``; see ``apply``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from uedp_ray.config import RunConfig, from_dict, set_keys, to_dict
from uedp_ray.errors import InputError

_NO_NOISE = {"privacy.noise": "none", "privacy.target_epsilon": None, "privacy.noise_multiplier": None}

_UNPROTECTED = {**_NO_NOISE, "privacy.clip": False, "privacy.sentence_clip_norm": None, "bounds.mode": "none"}

_USER_DP = {
    "privacy.unit": "user",
    "privacy.entity_sampling_prob": 1.0,
    "privacy.extended_sampling_prob": 1.0,
    "privacy.sentence_clip_norm": None,
    "bounds.mode": "none",
}

_PUBLISHED = {
    "privacy.noise": "published",
    "privacy.target_epsilon": None,
    "privacy.selection_rule": "any",
    "privacy.sentence_clip_norm": None,
    "bounds.mode": "none",
}

_ORDINARY = {
    **_UNPROTECTED,
    "training.loop": "epochs",
    "training.local_batch_size": 32,
    "training.server_optimizer": "adamw",
    "training.server_schedule": "linear",
    "training.evaluate_every": 1,
    "training.checkpoint_every": 1,
}


def _of_vectors(kind: str, target_epsilon: float) -> dict[str, Any]:
    """Ordinary training of a head on what each user sends of a sentence."""
    vectors = {"representation.kind": kind, "representation.target_epsilon": target_epsilon}
    return {**_ORDINARY, "model.trainable": "head", **vectors}


METHODS: Mapping[str, Mapping[str, Any]] = {
    "uedp": {"privacy.unit": "user-entity", "privacy.estimator": "f_e_plus"},
    "uedp_fe": {"privacy.unit": "user-entity", "privacy.estimator": "f_e"},
    "user_dp": _USER_DP,
    "record_dp": {**_USER_DP, "corpus.regroup": "records"},
    "entity_dp": {"privacy.unit": "entity"},
    "published": _PUBLISHED,
    "published_literal": {
        **_PUBLISHED,
        "privacy.unit": "user-entity",
        "privacy.estimator": "f_e_plus",
        "privacy.entity_draw": "global",
        "privacy.normalizer": "published",
        "privacy.noise_multiplier": 2.5,  # this and the settings below: Section VI, GPT-2
        "privacy.l2_clip_norm": 0.1,
        "privacy.user_sampling_prob": 0.05,
        "privacy.entity_sampling_prob": 0.5,
        "privacy.extended_sampling_prob": 1.0,
        "training.local_update": "local_sgd",
        "training.server_optimizer": "sgd",
        "training.server_learning_rate": 1.0,  # line 15 adds the average as it is
        "training.server_schedule": "constant",
    },
    "local_dp_fedavg": {
        **_NO_NOISE,
        "privacy.clip": False,
        "privacy.user_sampling_prob": 1.0,  # all take part, and send a plain difference
        "privacy.entity_sampling_prob": 1.0,
        "privacy.extended_sampling_prob": 1.0,
        "privacy.sentence_clip_norm": 1.5,  # this, the noise and the rate: Jana and Biemann 2021
        "bounds.mode": "none",
        "training.local_update": "local_dp_sgd",
        "training.local_noise_multiplier": 1.0,
        "training.local_learning_rate": 0.15,
        "training.server_optimizer": "sgd",
        "training.server_learning_rate": 1.0,
        "training.server_schedule": "constant",
    },
    "clip_only": {**_NO_NOISE, "bounds.mode": "none"},
    "ordinary": _ORDINARY,
    "de_identification": {
        **_ORDINARY,
        "corpus.transform.kind": "mask",
        "corpus.transform.apply_to_evaluation": True,
    },
    "dpnr": _of_vectors("laplace", 8.0),
    "dpnr_as_published": _of_vectors("laplace_published", 0.05),  # a coordinate's, as Lyu et al. print it
    "gaudp": _of_vectors("gaussian", 8.0),
    "gaudp_as_published": _of_vectors("gaussian_published", 8.0),
    "noiseless": _UNPROTECTED,
}
"""UeDP with f_E+ and f_E, user-level DP, the same of records as users (``corpus.declared_num_users`` is then the declared
number of records), entity-level DP, the paper's own noise, all of its Algorithm 1 as printed, averages of what each user
noised for its sentences, clipping without noise, ordinary training, the same on masked text, and the same rounds without
privacy. The two published ones claim nothing."""


def apply(config: RunConfig, method: str, settings: Mapping[str, Any] | None = None) -> RunConfig:
    """Returns the config with a method's settings, then ``settings`` (dotted keys), applied over it.

    Raises: InputError for an unknown method, key or value.
    """
    if not isinstance(method, str) or method not in METHODS:
        raise InputError("method", method, f"choose one of {', '.join(METHODS)}")
    return overlay(config, {**METHODS[method], **(settings or {})})


def overlay(config: RunConfig, settings: Mapping[str, Any]) -> RunConfig:
    """Returns the config with dotted keys replaced.

    Raises: InputError for an unknown key, a bad value, and rounds that the config's passes would silently replace.
    """
    found = from_dict(RunConfig, set_keys(to_dict(config), settings))
    rounds = settings.get("training.num_rounds")
    if rounds is not None and found.training.passes is not None and rounds != found.training.num_rounds:
        remedy = f"training.passes = {found.training.passes:g} decides them: give passes, or training.passes: null too"
        raise InputError("training.num_rounds", rounds, remedy)
    return found
