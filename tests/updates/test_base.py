"""What a local update may claim: nothing, unless it says so and is listed as proved."""

from __future__ import annotations

import typing
from dataclasses import dataclass, replace
from importlib import import_module

import pytest

from tests.training.runs import NUM_USERS
from tests.updates.worker import Worker, make, sentences
from uedp_ray import methods
from uedp_ray.config import RunConfig, from_dict, run
from uedp_ray.config.choices import BOUNDING_SENTENCES, LocalUpdateName
from uedp_ray.errors import InputError
from uedp_ray.plan import Plan
from uedp_ray.updates.base import LocalUpdate

TREE = {"corpus": {"declared_num_users": NUM_USERS}, "privacy": {"target_epsilon": 8.0, "sentence_clip_norm": 0.1}}


def test_what_is_listed_as_bounding_sentences_says_so_of_itself():
    updates = {name: import_module(f"uedp_ray.updates.{name}").Update for name in typing.get_args(LocalUpdateName)}
    assert {name for name, update in updates.items() if update.bounds_sentences} == BOUNDING_SENTENCES
    assert not LocalUpdate.bounds_sentences


def test_a_new_name_bounds_nothing_but_the_users_update(monkeypatch):
    """As a name that is added to ``LocalUpdateName`` alone: no sentence clip is accounted for, and none is accepted."""
    bounded = from_dict(RunConfig, TREE)
    monkeypatch.setattr(run, "BOUNDING_SENTENCES", frozenset())
    with pytest.raises(InputError, match=r"privacy\.sentence_clip_norm"):
        methods.overlay(bounded, {"bounds.holder_bound": "truncate", "bounds.entity_bound": "truncate"})
    with pytest.raises(InputError, match="does not bound a reweighted sentence's effect"):
        methods.overlay(bounded, {"privacy.sentence_clip_norm": None})
    free = {"bounds.holder_bound": "truncate", "bounds.entity_bound": "truncate", "privacy.sentence_clip_norm": None}
    assert Plan.of(methods.overlay(bounded, free)).mechanism.entity_clip == 2.0
    assert bounded.entity_clip_norm == 2.0, "whatever the config was made with"


def test_an_update_that_bounds_no_sentence_is_not_used_where_one_is_accounted_for():
    @dataclass
    class Bare(LocalUpdate):
        def probe(self):
            """Finds nothing."""

        def update_of(self, parameters, selection, round_index):
            return parameters

    worker = Worker(make("gpt2"), sentences())
    given = (worker.model, worker.params, worker.update().task, lambda number: None, worker.device)
    with pytest.raises(TypeError, match="Bare bounds no sentence"):
        Bare(worker.plan, *given)
    config = replace(worker.plan.config, training=replace(worker.plan.config.training))
    object.__setattr__(config.training, "local_update", "bare")
    Bare(Plan(config, None), *given)
