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
from uedp_ray.updates import gradient, local_sgd
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
        def update_of(self, parameters, selection, round_index):
            return parameters

    worker = Worker(make("gpt2"), sentences())
    given = (worker.model, worker.params, worker.update().task, lambda number: None, worker.device)
    with pytest.raises(TypeError, match="Bare bounds no sentence"):
        Bare(worker.plan, *given)
    config = replace(worker.plan.config, training=replace(worker.plan.config.training))
    object.__setattr__(config.training, "local_update", "bare")
    Bare(Plan(config, None), *given)


def test_an_update_does_not_inherit_that_it_keeps_users_apart():
    """One that kept a count of earlier users' sentences moved the sum by 7.78 clip norms when a user was left out."""
    with pytest.raises(TypeError, match="Smooth yields updates by the each_update of Update, and does not state"):
        type("Smooth", (gradient.Update,), {"_packed": lambda self, numbers: iter(())})
    stated = type("Stated", (gradient.Update,), {"keeps_users_apart": True})
    with pytest.raises(TypeError, match="Again yields updates by the each_update of Update, and does not state"):
        type("Again", (stated,), {})


def test_nor_that_it_bounds_sentences():
    assert not type("Stated", (gradient.Update,), {"keeps_users_apart": True}).bounds_sentences


@pytest.mark.parametrize("stated", [{}, {"keeps_users_apart": True}])
def test_an_update_of_that_is_never_called_is_refused(stated):
    """The model was plain ``gradient``'s, under another name."""
    signs = {"update_of": lambda self, parameters, selection, round_index: parameters.sign()}
    with pytest.raises(TypeError, match="Signs has an update_of of its own, but the each_update of Update"):
        type("Signs", (gradient.Update,), signs | stated)
    with pytest.raises(TypeError, match="Signs has an update_of of its own"):
        type("Signs", (type("Mixin", (), signs), gradient.Update), stated)
    assert type("Signs", (local_sgd.Update,), signs), "LocalUpdate calls it"
