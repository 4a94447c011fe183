"""Heads that are trained on noised vectors: what leaves a user is what is charged."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.training.runs import TREE, run_config
from tests.training.test_tasks import TASKS
from uedp_ray.config import ModelConfig, RepresentationConfig
from uedp_ray.corpus.vocabulary import Vocabulary
from uedp_ray.errors import InputError
from uedp_ray.methods import METHODS, apply
from uedp_ray.models.build import build_model
from uedp_ray.models.saved import load_model
from uedp_ray.models.trainable import select_trainable
from uedp_ray.privacy.representation import NoisedVectors
from uedp_ray.tasks.base import Head
from uedp_ray.tasks.classify import Classify
from uedp_ray.training.checks import unused
from uedp_ray.training.host import train
from uedp_ray.training.network import initial_model
from uedp_ray.training.representation import PrivateVectors

LABELS = ("a", "b", "c")


def noised(kind="gaussian", target=1.0, *, dimension=6, epochs=1, delta=1e-5, batch_size=32, **settings):
    config = RepresentationConfig(kind=kind, target_epsilon=target, **settings)
    return NoisedVectors(config, dimension=dimension, delta=delta, epochs=epochs, batch_size=batch_size)


@pytest.mark.parametrize("architecture", ["gpt2", "awd_lstm", "bert"])
def test_the_head_reads_nothing_of_a_sentence_but_what_was_released(architecture):
    """With the words of another sentence and the same draws, losses differ only by the released vector: with noise that
    drowns it they agree, and all of the gradient is the head's."""
    task = Classify(bos_id=0, eos_id=1, pad_id=1, max_length=12, labels=LABELS)  # the end is also padding, as in GPT-2
    small = {**TREE["model"], "architecture": architecture, "embedding_size": 8, "trainable": "head"}
    config = model_config(small)
    model = build_model(
        config, vocab_size=40, bos_id=0, eos_id=1, pad_id=1, seed=0, head=Head("sequence-classification", 3)
    )
    select_trainable(model, config, seed=0)
    drowned = PrivateVectors(model, noised(target=1e-6, dimension=8), b"key", mask_id=2)
    one, other = (task.collate([np.array(words)]) for words in ([5, 6, 7, 8, 2], [9, 30, 2]))
    losses = []
    for batch, numbers in ((one, [0]), (other, [0]), (one, [1])):
        with drowned.of(batch, numbers, 0) as read:
            losses.append(float(task.losses(model, read)[0].detach()))
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)
    assert losses[0] != pytest.approx(losses[2], rel=1e-3), "another sentence has other noise"
    plain = float(task.losses(model, one)[0].detach())
    assert plain != pytest.approx(losses[0], rel=1e-3), "and outside nothing is noised"


def model_config(model):
    return ModelConfig(**model)


def test_draws_are_kept_or_made_anew_as_is_charged():
    task = Classify(bos_id=0, eos_id=1, pad_id=2, max_length=12, labels=LABELS)
    config = model_config({**TREE["model"], "architecture": "bert", "trainable": "head"})
    model = build_model(config, vocab_size=40, bos_id=0, eos_id=1, seed=0, head=Head("sequence-classification", 3))
    batch = task.collate([np.array([5, 6, 7, 8, 2])])

    def losses(drawn, key=b"key"):
        vectors = PrivateVectors(model, noised(dimension=8, epochs=2, drawn=drawn), key, mask_id=2)
        found = []
        for epoch in (0, 1, 0):
            with vectors.of(batch, [7], epoch) as read, torch.no_grad():
                found.append(float(task.losses(model, read)[0]))
        return found

    once, anew = losses("once"), losses("each_epoch")
    assert once[0] == once[1] == once[2]
    assert anew[0] == anew[2] != anew[1]
    assert losses("once", b"other")[0] != once[0]


def test_dropped_words_are_as_many_as_stated_and_never_the_ends():
    task = Classify(bos_id=0, eos_id=1, pad_id=2, max_length=64, labels=LABELS)
    config = model_config({**TREE["model"], "architecture": "bert", "max_length": 64, "trainable": "head"})
    model = build_model(config, vocab_size=80, bos_id=0, eos_id=1, seed=0, head=Head("sequence-classification", 3))
    vectors = PrivateVectors(model, noised("laplace", dimension=8, word_dropout=0.3), b"key", mask_id=3)
    batch = task.collate([np.append(np.arange(10, 70), 1)] * 50)
    with vectors.of(batch, range(50), 0) as read:
        lost = read.input_ids == 3
    assert float(lost[:, 1:61].float().mean()) == pytest.approx(0.3, abs=0.03)
    assert not lost[:, 0].any()
    assert not lost[:, 61:].any()
    assert torch.equal(read.targets, batch.targets)


@pytest.mark.parametrize(
    ("method", "unit", "sound"),
    [("gaudp", "record", True), ("dpnr", "record", True), ("gaudp_as_published", "record", False)],
)
def test_a_run_states_what_it_promises_and_leaves_the_body_alone(corpora, tmp_path, method, unit, sound):
    extra = {"representation.num_records": 400} if "gaudp_as" in method else {}
    model = {**TREE["model"], "architecture": "bert"}
    config = apply(
        run_config(corpora, task=TASKS["classify"], model=model), method, {"training.num_rounds": 2, **extra}
    )
    result = train(config, tmp_path / "run", workers=0)
    assert not result["private"]
    assert result["epsilon"] == dict.fromkeys(("user-entity", "user", "entity"))
    first = result["guarantees"][0]
    assert (first["unit"], first["sound"], first["trust"]) == (unit, sound, "local")
    assert first["epsilon"] == pytest.approx(8.0, rel=1e-3)
    assert first["epsilon"] <= 8.0 + 1e-9
    page = (tmp_path / "run" / "privacy.md").read_text()
    assert page.count("ε = 8.00") == len(result["guarantees"])
    assert ("not a guarantee" in page) == (not sound)
    assert page.startswith("# Privacy statement\n\n**NOT PRIVATE for users and entities")
    assert "label that is sent beside it has no guarantee" in page or not sound
    after = load_model(tmp_path / "run" / "model").state_dict()
    before = initial_model(config, Vocabulary.load(tmp_path / "run" / "vocabulary")).state_dict()
    assert {name for name in after if not torch.equal(after[name], before[name])} == {
        *("classifier.weight", "classifier.bias"),
        *("bert.pooler.dense.weight", "bert.pooler.dense.bias"),
    }


def test_a_representation_needs_what_its_guarantee_rests_on(corpora):
    base = run_config(corpora, task=TASKS["classify"], model={**TREE["model"], "architecture": "bert"})
    for name, value in (("model.trainable", "full"), ("training.loop", "rounds"), ("model.dropout_output", 0.1)):
        with pytest.raises(InputError, match=name.replace(".", r"\.")):
            apply(base, "gaudp", {name: value})
    with pytest.raises(InputError, match=r"task\.kind"):
        apply(run_config(corpora), "gaudp")
    with pytest.raises(InputError, match=r"representation\.num_records"):
        apply(base, "gaudp_as_published")
    with pytest.raises(InputError, match=r"representation\.target_epsilon"):
        RepresentationConfig(kind="gaussian")


def test_settings_of_other_noise_change_nothing(corpora):
    base = run_config(corpora, task=TASKS["classify"], model={**TREE["model"], "architecture": "bert"})
    settings = {"representation.target_epsilon": 2.0, "representation.num_records": 400}
    vain = {method: {key for key in settings if key in unused(apply(base, method, settings))} for method in METHODS}
    assert vain["ordinary"] == {*settings}
    assert vain["gaudp"] == vain["dpnr"] == {"representation.num_records"}
    assert vain["gaudp_as_published"] == set()
