"""The methods that are compared: each is a small set of settings applied over a run's config.

    >>> from uedp_ray.config import CorpusConfig, RunConfig
    >>> from uedp_ray.methods import METHODS, apply
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
    >>> METHODS["gaudp_as_published"].unit, METHODS["gaudp_as_published"].sound
    ('record', False)

A new method is one new entry. Settings are the keys of ``RunConfig``; see ``apply``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from uedp_ray.config import RunConfig, from_dict, set_keys, to_dict
from uedp_ray.errors import InputError
from uedp_ray.privacy.guarantee import GuaranteedUnit


@dataclass(frozen=True)
class Method:
    """Settings under a name. What is not said is the unsafe reading: it protects nobody."""

    settings: Mapping[str, Any]
    """By the keys of ``RunConfig``."""
    summary: str
    """What it is, in a line."""
    unit: GuaranteedUnit = "none"
    """What its figure is of: the unit that a run of it is trained for."""
    trust: Literal["central", "local"] = "central"
    """``local``: against the server too."""
    published: bool = False
    """Whether its noise is as others printed it, which proves nothing."""

    @property
    def sound(self) -> bool:
        """Whether a proof in docs/accounting.md covers what it promises; False if that is nothing."""
        return self.unit != "none" and not self.published


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


METHODS: Mapping[str, Method] = {
    "uedp": Method(
        {"privacy.unit": "user-entity", "privacy.estimator": "f_e_plus"},
        "UeDP: noised averages of sentences with entities and without (f_E+)",
        unit="user-entity",
    ),
    "uedp_fe": Method(
        {"privacy.unit": "user-entity", "privacy.estimator": "f_e"},
        "the same, of sentences with entities only (f_E)",
        unit="user-entity",
    ),
    "user_dp": Method(_USER_DP, "user-level DP: noised averages of all sentences", unit="user"),
    "record_dp": Method(
        {**_USER_DP, "corpus.regroup": "records"},
        "the same with each sentence as a user (declared_num_users: how many)",
        unit="record",
    ),
    "entity_dp": Method(
        {"privacy.unit": "entity"},
        "entity-level DP: the rounds of uedp, with the noise that one entity needs",
        unit="entity",
    ),
    "published": Method(_PUBLISHED, "the noise that the UeDP paper prints", published=True),
    "published_literal": Method(
        {
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
        "the UeDP paper's Algorithm 1 as it is printed",
        published=True,
    ),
    "local_dp_fedavg": Method(
        {
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
        "federated averaging of steps that each user noises itself (local DP-SGD)",
        unit="record",
        trust="local",
    ),
    "clip_only": Method({**_NO_NOISE, "bounds.mode": "none"}, "clipping without noise"),
    "ordinary": Method(_ORDINARY, "ordinary training, by epochs"),
    "de_identification": Method(
        {
            **_ORDINARY,
            "corpus.transform.kind": "mask",
            "corpus.transform.apply_to_evaluation": True,
        },
        "ordinary training on text whose entities are masked",
    ),
    "dpnr": Method(
        _of_vectors("laplace", 8.0),
        "a classifier's head on vectors of sentences with Laplace noise",
        unit="record",
        trust="local",
    ),
    "dpnr_as_published": Method(
        _of_vectors("laplace_published", 0.05),  # a coordinate's, as Lyu et al. print it
        "the same with the noise that was published: its epsilon is of one coordinate",
        unit="record",
        trust="local",
        published=True,
    ),
    "gaudp": Method(
        _of_vectors("gaussian", 8.0),
        "a classifier's head on clipped vectors of sentences with Gaussian noise",
        unit="record",
        trust="local",
    ),
    "gaudp_as_published": Method(
        _of_vectors("gaussian_published", 8.0),
        "the same with the noise that was published: for half the sensitivity",
        unit="record",
        trust="local",
        published=True,
    ),
    "noiseless": Method(_UNPROTECTED, "the rounds of uedp without clipping and noise"),
}


def apply(config: RunConfig, method: str, settings: Mapping[str, Any] | None = None) -> RunConfig:
    """Returns the config with a method's settings, then ``settings`` (dotted keys), applied over it.

    Raises: InputError for an unknown method, key or value.
    """
    if not isinstance(method, str) or method not in METHODS:
        raise InputError("method", method, f"choose one of {', '.join(METHODS)}")
    return overlay(config, {**METHODS[method].settings, **(settings or {})})


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
