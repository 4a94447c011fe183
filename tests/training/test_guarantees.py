"""What a run states that it guarantees, and what of it counts."""

from __future__ import annotations

import json
import math
from types import SimpleNamespace

import numpy as np
import pytest

from tests.training.runs import run_config
from tests.updates.tiny import tiny_config
from uedp_ray.config import TransformConfig
from uedp_ray.config.choices import PROVED_TRANSFORMS, PROVED_WORD_MECHANISMS
from uedp_ray.corpus import transform_checks
from uedp_ray.corpus.transforms.base import Claim, Transform, claim_of
from uedp_ray.corpus.transforms.replace_words import ReplaceWords
from uedp_ray.corpus.vectors import Vectors
from uedp_ray.corpus.word_mechanisms import WordMechanism
from uedp_ray.plan import Plan
from uedp_ray.privacy.guarantee import GUARANTEE
from uedp_ray.training import guarantees
from uedp_ray.training.checks import check_run


class Claiming(Transform):
    """Changes nothing, and claims what it is told to."""

    claimed = Claim("word", 0.5, "")

    def claim(self):
        return self.claimed

    def text_of(self, sentence, generators):
        return sentence.text


@pytest.mark.parametrize(
    ("claim", "message"),
    [
        (Claim("user", 0.1, ""), "claims an epsilon of one 'user': word or word-metric"),
        (Claim("user-entity", 0.1, ""), "'user-entity'"),
        (Claim("record", 0.1, ""), "'record'"),
        (Claim("wrod", 1.0, ""), "'wrod'"),
        (Claim("word", -1.0, ""), "Claiming claims an epsilon of -1"),
        (Claim("word", math.inf, ""), "an epsilon of inf: a finite one from 0, or None"),
        (Claim("word-metric", math.nan, ""), "an epsilon of nan"),
    ],
)
def test_a_claim_that_no_transform_of_text_can_make_is_refused_before_a_run(monkeypatch, corpora, claim, message):
    monkeypatch.setattr(Claiming, "claimed", claim)
    monkeypatch.setattr(transform_checks, "transform_of", lambda config: Claiming(config))
    with pytest.raises(TypeError, match=message):
        check_run(run_config(corpora))


def test_a_mechanism_that_states_nothing_claims_nothing():
    """It had no attribute ``unit``, which was found once a run asked for it: after its last round."""

    class Bare(WordMechanism):
        def __init__(self):
            self.vectors = Vectors(("a", "b"), np.zeros((2, 1)))

        def sample(self, words, generator):
            return words

        def channel(self, words, generator):
            return np.eye(2)[words]

        def hidden_among(self):
            return np.full(2, 2)

    bare = ReplaceWords(TransformConfig(kind="replace_words", vectors="toy"))
    bare.__dict__["_public"] = SimpleNamespace(mechanism=Bare())
    assert claim_of(bare) is None


def test_what_is_assumed_is_said_where_machines_read_it(monkeypatch):
    """With a task of others every figure was "sound": true, and only the page spoke of an assumption."""
    config = tiny_config(privacy={"test_noise_seed": None})
    (found,) = guarantees.guarantees(Plan.of(config), {"user-entity": 2.0})
    assert (found.sound, found.assumed, found.told) == (True, (), "ε = 2.000 of one user and entity")
    object.__setattr__(config.task, "kind", "own")
    (found,) = guarantees.guarantees(Plan.of(config), {"user-entity": 2.0})
    assert (found.sound, found.assumed) == (False, ("task.kind: own",))
    assert found.told.endswith(", sound if assumed (task.kind: own)")
    GUARANTEE(json.loads(json.dumps(found.to_dict())), "")
    published = tiny_config(privacy={"test_noise_seed": None, "noise": "published", "noise_multiplier": 1.0})
    object.__setattr__(published.task, "kind", "own")
    assert [each.assumed for each in guarantees.guarantees(Plan.of(published), {"user-entity": 2.0})] == [()]


def of_text(config, monkeypatch):
    monkeypatch.setattr(guarantees, "transform_of", lambda config: Claiming(config))
    return guarantees.guarantees(Plan.of(config), {"user-entity": 2.0})[-1]


def test_a_claim_is_sound_only_of_what_is_proved(monkeypatch):
    """Whatever a transform of others claimed was printed as sound."""
    config = tiny_config(privacy={"test_noise_seed": None})
    transform = config.corpus.transform
    for kind, mechanism, sound in (
        ("replace_words", "santext", True),
        ("replace_words", "own", False),
        ("own", "santext", False),
    ):
        object.__setattr__(transform, "kind", kind)
        object.__setattr__(transform, "mechanism", mechanism)
        found = of_text(config, monkeypatch)
        assert (found.unit, found.epsilon, found.sound) == ("word", 0.5, sound)
        assert ("not a guarantee" in found.told) == (not sound)
    object.__setattr__(transform, "kind", "replace_words")
    object.__setattr__(config.task, "kind", "own")  # it is given sentences as they were, and may train on their words
    found = of_text(config, monkeypatch)
    assert (found.sound, found.assumed) == (False, ("task.kind: own",))
    assert {"mask", "fragments", "plant", "replace_words"} == PROVED_TRANSFORMS, "docs/accounting.md, Transforms"
    assert {"custext", "santext", "fbdd", "vickrey", "random"} == PROVED_WORD_MECHANISMS, "docs/accounting.md, Words"
