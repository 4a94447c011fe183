"""Heads that are trained on noised vectors: what leaves a user is what is charged."""

from __future__ import annotations

import json
import stat
from collections import defaultdict
from contextlib import contextmanager
from dataclasses import replace
from unittest import mock

import numpy as np
import pytest
import torch

from tests.training.runs import TEST_NOISE, TREE, crash, parameters, run_config
from tests.training.test_tasks import TASKS
from uedp_ray.config import ModelConfig, RepresentationConfig, RunConfig, from_dict
from uedp_ray.corpus.store import open_corpus
from uedp_ray.corpus.vocabulary import Vocabulary
from uedp_ray.errors import InputError
from uedp_ray.methods import METHODS, apply
from uedp_ray.models.build import build_model
from uedp_ray.models.saved import load_model
from uedp_ray.models.trainable import select_trainable
from uedp_ray.privacy.representation import NoisedVectors
from uedp_ray.tasks.base import Head
from uedp_ray.tasks.classify import Classify
from uedp_ray.training import epochs
from uedp_ray.training.checks import unused
from uedp_ray.training.host import train
from uedp_ray.training.network import initial_model
from uedp_ray.training.pretrain import pretrain
from uedp_ray.training.representation import PrivateVectors, Sender

LABELS = ("a", "b", "c")


def noised(kind="gaussian", target=1.0, *, dimension=6, epochs=1, delta=1e-5, batch_size=32, **settings):
    config = RepresentationConfig(kind=kind, target_epsilon=target, **settings)
    return NoisedVectors(config, dimension=dimension, delta=delta, epochs=epochs, batch_size=batch_size)


def user_of(model, task, mechanism, key=b"key"):
    return Sender(model, task, mechanism, key, mask_id=3)


def vectors_of(sentences, mechanism, *, architecture="bert", key=b"key", labels=None):
    """A network, its task, and what its head reads in the place of these tokens."""
    task = Classify(bos_id=0, eos_id=1, pad_id=1, max_length=12, labels=LABELS)  # the end is also padding, as in GPT-2
    small = {**TREE["model"], "architecture": architecture, "embedding_size": 8, "trainable": "head"}
    config, head = ModelConfig(**small), Head("sequence-classification", 3)
    model = build_model(config, vocab_size=40, bos_id=0, eos_id=1, pad_id=1, seed=0, head=head)
    select_trainable(model, config, seed=0)
    user = user_of(model, task, mechanism, key)
    kept = np.stack([user.kept(number, np.array(tokens, np.int64)) for number, tokens in enumerate(sentences)])
    labels = np.array(labels or [2] * len(kept))
    return model, task, PrivateVectors(model, task, kept, labels, user)


def losses_of(model, task, vectors, numbers, epoch=0):
    with vectors.of(numbers, epoch) as read, torch.no_grad():
        return task.losses(model, read)


@pytest.mark.parametrize("architecture", ["gpt2", "awd_lstm", "bert"])
def test_the_head_reads_what_the_network_would_give_it_but_noised(architecture):
    """Nearly without noise, losses are those of the sentences; with noise that drowns the vectors, those of any others."""
    sentences = [[5, 6, 7, 8], [9, 30], []]
    exact = noised("gaussian_published", 1e9, dimension=8, clip_norm=100.0, num_records=10, batch_size=1)
    exact.scale = 1e-6
    model, task, vectors = vectors_of(sentences, exact, architecture=architecture)
    with torch.no_grad():
        plain = torch.cat([task.losses(model, task.collate([np.array([*each, 2])])) for each in sentences])
    torch.testing.assert_close(losses_of(model, task, vectors, [0, 1, 2]), plain, rtol=1e-3, atol=1e-4)
    drowned = noised(target=1e-6, dimension=8)
    found = [
        losses_of(*vectors_of(given, drowned, architecture=architecture), [0, 1])
        for given in (sentences, [[30, 31, 32], []])
    ]
    torch.testing.assert_close(*found, rtol=1e-3, atol=1e-4)
    assert found[0][0] != pytest.approx(float(found[0][1]), rel=1e-3), "another sentence has other noise"


def test_draws_are_kept_or_made_anew_as_is_charged():
    def losses(drawn, key=b"key"):
        made = vectors_of([[5, 6, 7, 8]], noised(dimension=8, epochs=2, drawn=drawn), key=key)
        return [float(losses_of(*made, [0], epoch)[0]) for epoch in (0, 1, 0)]

    once, anew = losses("once"), losses("each_epoch")
    assert once[0] == once[1] == once[2]
    assert anew[0] == anew[2] != anew[1]
    assert losses("once", b"other")[0] != once[0]


def test_dropped_words_are_as_many_as_stated_and_move_no_draw_of_the_noise():
    class Watched(Sender):
        def _vector(self, tokens):
            seen.append(tokens)
            return np.zeros(8, np.float32)

    seen, mechanism = [], noised("laplace", dimension=8, word_dropout=0.3)
    user = Watched(None, None, mechanism, b"key", mask_id=3)
    sent = [user.kept(number, np.arange(10, 70)) for number in range(50)]
    lost = np.stack(seen) == 3
    assert lost.mean() == pytest.approx(0.3, abs=0.03)
    assert (np.stack(seen)[~lost] >= 10).all()
    for number in range(50):
        assert np.array_equal(user.kept(number, np.arange(10, 13)), sent[number]), "whatever the length"


@contextmanager
def what_the_head_reads():
    """Within it, every vector that the head of a BERT reads of a sentence in training, by the sentence's number."""
    read, asked = defaultdict(set), []
    of, mean_loss = PrivateVectors.of, epochs.mean_loss

    def watched(self, *arguments):
        asked.append(arguments[-2])
        return of(self, *arguments)

    def looked(model, *arguments, **settings):
        def look(_, given):
            for number, row in zip(asked[-1], given[0].detach(), strict=True):
                read[int(number)].add(row.numpy().tobytes())

        handle = model.bert.pooler.dense.register_forward_pre_hook(look)
        try:
            return mean_loss(model, *arguments, **settings)
        finally:
            handle.remove()

    with mock.patch.object(PrivateVectors, "of", watched), mock.patch.object(epochs, "mean_loss", looked):
        yield read


def config_of(corpora, kind="laplace", target=8.0, *, num_rounds=4, sections=None, **settings):
    model = {**TREE["model"], "architecture": "bert", "hidden_size": 64}
    base = run_config(corpora, task=TASKS["classify"], model=model, **(sections or {}))
    settings = {f"representation.{name}": value for name, value in settings.items()}
    asked = {"representation.kind": kind, "representation.target_epsilon": target, "training.num_rounds": num_rounds}
    return apply(base, "dpnr", asked | {"training.local_batch_size": 8} | settings)


@pytest.mark.parametrize(
    ("kind", "target", "settings"),
    [("laplace", 8.0, {"word_dropout": 0.2}), ("laplace", 1e5, {}), ("gaussian", 100.0, {})],
    ids=["dropout", "laplace", "gaussian"],
)
def test_a_run_that_is_charged_once_reads_each_vector_once_to_the_last_bit(corpora, tmp_path, kind, target, settings):
    """However sentences meet in batches: with little noise, its last digit would show in which."""
    with what_the_head_reads() as read:
        train(config_of(corpora, kind, target, **settings), tmp_path / "run", workers=0)
    assert len(read) == open_corpus(corpora / "private").num_sentences
    assert {len(each) for each in read.values()} == {1}


def test_a_run_that_draws_in_each_epoch_reads_as_many_as_are_charged(corpora, tmp_path):
    with what_the_head_reads() as read:
        result = train(config_of(corpora, drawn="each_epoch"), tmp_path / "run", workers=0)
    assert {len(each) for each in read.values()} == {4}
    assert "Charged for 4 draws" in result["guarantees"][0]["note"]


def test_the_head_follows_from_what_is_sent_and_from_labels(tmp_path, monkeypatch):
    """What is sent is here the same whatever a sentence says: then its length, or that it has no token, changes no bit."""

    def nothing_of_it(self, vector, generator):
        return generator.normal(size=len(vector))

    monkeypatch.setattr(NoisedVectors, "release", nothing_of_it)
    heads = []
    for place, said in enumerate(("a word", " ".join(["word"] * 9), "...")):
        rows = [{"user": f"u{n}", "text": " ".join(["met"] * (n % 7 + 1)), "label": "ab"[n % 2]} for n in range(40)]
        rows[7]["text"] = said
        path = tmp_path / f"{place}.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        source = {"source": {"format": "jsonl", "path": str(path)}, "declared_num_users": 40, "evaluation": None}
        task = {"kind": "classify", "labels": ["a", "b"]}
        sections = {"corpus": source, "task": task, "vocabulary": {**TREE["vocabulary"], "strip_punctuation": True}}
        tree = {**TREE, **sections, "model": {**TREE["model"], "architecture": "bert"}}
        tree["privacy"] = {**TREE["privacy"], "test_noise_seed": 7}
        config = apply(from_dict(RunConfig, tree), "gaudp", {"training.num_rounds": 2, "training.local_batch_size": 4})
        train(config, tmp_path / f"run-{place}", workers=0)
        heads.append(parameters(tmp_path / f"run-{place}"))
    assert torch.equal(heads[0], heads[1])
    assert torch.equal(heads[0], heads[2])


@pytest.mark.parametrize(
    ("vocabulary", "units"),
    [({}, ["record", "word"]), ({"strip_punctuation": True}, ["record"]), ({"kind": "public-subwords"}, ["record"])],
)
def test_a_word_is_promised_something_only_where_it_is_one_token(corpora, tmp_path, vocabulary, units):
    sections = {"vocabulary": {**vocabulary, "max_size": 300}}
    config = config_of(corpora, word_dropout=0.9, num_rounds=1, sections=sections)
    found = train(config, tmp_path / "run", workers=0)["guarantees"]
    assert [each["unit"] for each in found] == units
    assert found[0]["epsilon"] == pytest.approx(8.0)
    assert Vocabulary.load(tmp_path / "run" / "vocabulary").words_are_tokens == ("word" in units)


def test_a_warm_start_with_parts_of_words_promises_nothing_of_one(corpora, tmp_path):
    sections = {"vocabulary": {"kind": "public-subwords", "max_size": 300}, "corpus": {"evaluation": None}}
    text = {"text": [{"format": "synthetic", "num_users": 20, "part": "public"}], "num_steps": 1}
    model = {**TREE["model"], "architecture": "bert", "hidden_size": 64}
    pretrain(run_config(corpora, pretrain=text, model=model, **sections), tmp_path / "start")
    config = config_of(corpora, num_rounds=1)
    warm = replace(config, model=replace(config.model, warm_start=str(tmp_path / "start" / "model")))
    with pytest.raises(InputError, match=r"vocabulary\.kind.*model\.warm_start"):
        train(warm, tmp_path / "run", workers=0)
    told = replace(warm, vocabulary=replace(config.vocabulary, kind="public-subwords", max_size=300))
    assert [each["unit"] for each in train(told, tmp_path / "told", workers=0)["guarantees"]] == ["record"]


def test_a_resumed_run_reads_the_same_vectors_and_makes_none_anew(corpora, tmp_path, monkeypatch):
    config = config_of(corpora, word_dropout=0.2, sections={"privacy": TEST_NOISE})
    train(config, tmp_path / "whole", workers=0)
    crash(config, tmp_path / "run", charges=2)
    path = tmp_path / "run" / "private" / "vectors.npy"
    kept = path.read_bytes()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    monkeypatch.setattr(Sender, "kept", None)
    path.unlink()
    with pytest.raises(InputError, match=r"vectors\.npy.*is missing"):
        train(config, tmp_path / "run", workers=0, resume=True)
    np.save(path, np.zeros((3, 8), np.float32))
    with pytest.raises(InputError, match=r"vectors\.npy.*is damaged"):
        train(config, tmp_path / "run", workers=0, resume=True)
    path.write_bytes(kept)
    train(config, tmp_path / "run", workers=0, resume=True)
    assert torch.equal(parameters(tmp_path / "run"), parameters(tmp_path / "whole"))


def test_another_node_goes_on_with_the_vectors_of_the_first(corpora, url, node, monkeypatch):
    config = config_of(corpora, sections={"privacy": TEST_NOISE})
    crash(config, url, charges=2)
    node("b")
    monkeypatch.setattr(Sender, "kept", None)
    assert train(config, url, workers=0, resume=True)["rounds"] == 4


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
