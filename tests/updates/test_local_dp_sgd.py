"""A user's noised steps: the noise that is charged, and what one sentence moves before it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats

from tests.updates.tiny import CPU, TinyCorpus, TinyWorker, tiny_config
from uedp_ray.config import from_dict, to_dict
from uedp_ray.config.run import RunConfig
from uedp_ray.errors import InputError
from uedp_ray.methods import apply
from uedp_ray.plan import Plan, UserSelection
from uedp_ray.privacy.sampling import PoissonSampler
from uedp_ray.updates import local_dp_sgd
from uedp_ray.updates.base import local_update

KEY = bytes(range(32))
CLIP, NOISE, RATE, BATCH = 0.25, 0.8, 0.5, 4


def config_of(**training):
    settings = {"local_sampling_prob": 1.0, "local_noise_multiplier": NOISE, "local_learning_rate": RATE}
    settings |= {"local_batch_size": BATCH, **training}
    named = {f"training.{name}": value for name, value in settings.items()}
    start = from_dict(RunConfig, to_dict(tiny_config()) | {"bounds": {}})
    return apply(
        start, "local_dp_fedavg", {"privacy.sentence_clip_norm": CLIP, "privacy.test_noise_seed": None, **named}
    )


@pytest.fixture
def corpus():
    return TinyCorpus.random(4, num_users=6)


def drawn(corpus, user=2, key=KEY, weights=None):
    first, last = corpus.user_offsets[user], corpus.user_offsets[user + 1]
    weights = np.ones(last - first, np.float32) if weights is None else weights
    return UserSelection(user, np.arange(first, last), weights, num_held=last - first, key=key)


def sent(worker, corpus, selection, round_index=0):
    update = local_update(worker.plan, worker.model, worker.params, worker.task, corpus.tokens.__getitem__, CPU)
    return update.sum_updates(worker.parameters, [selection], round_index)


def quiet(worker, corpus, selection, monkeypatch):
    """The same without noise, over minus rate and divisor: what a step sums. (The noise is the same in both worlds.)"""
    monkeypatch.setattr(local_dp_sgd, "keyed_blocks", lambda key, size, std: [torch.zeros(size, dtype=torch.float64)])
    return -sent(worker, corpus, selection) * BATCH / RATE


def test_the_noise_is_what_is_charged(corpus):
    """Of text that says nothing: steps of one round, in units of the bound on a sentence. False alarms: 1e-6 a side."""
    steps = 9
    worker = TinyWorker(config_of(local_epochs=steps))
    noise = sent(worker, corpus.nulled(np.ones(corpus.num_sentences, bool)), drawn(corpus)) * BATCH / RATE
    charged = Plan.of(worker.plan.config).event(round_index=0, attempt=0)
    assert (charged["kind"], charged["steps"], charged["sampling_prob"]) == ("local_round", steps, 1.0)
    variance = (charged["noise_multiplier"] * CLIP) ** 2 * charged["steps"]
    low, high = stats.chi2.ppf([1e-6, 1 - 1e-6], len(noise)) / len(noise)
    assert low < float(noise.square().mean()) / variance < high
    assert stats.kstest(noise.numpy() / np.sqrt(variance), "norm").pvalue > 1e-6


def test_a_sentence_moves_a_step_by_its_clip_at_most(corpus, monkeypatch):
    worker = TinyWorker(config_of())
    selection = drawn(corpus)
    assert len(selection.sentences) >= 3
    whole = quiet(worker, corpus, selection, monkeypatch)
    moved = []
    for number in selection.sentences:
        without = quiet(worker, corpus.nulled(np.arange(corpus.num_sentences) == number), selection, monkeypatch)
        moved.append(float((whole - without).norm()))
    assert max(moved) <= CLIP * (1 + 1e-5), "float32 parameters, in which the difference is taken"
    assert max(moved) > 0.99 * CLIP, "no bound is at work"


def test_the_other_sentences_of_a_user_keep_their_bits(corpus, monkeypatch):
    """What is left of a step, were the sentence not there at all, is what it is beside a null sentence."""
    worker, selection = TinyWorker(config_of()), drawn(corpus)
    gone = selection.sentences[1]
    nulled = quiet(worker, corpus.nulled(np.arange(corpus.num_sentences) == gone), selection, monkeypatch)
    rest = selection._replace(sentences=np.delete(selection.sentences, 1), weights=np.delete(selection.weights, 1))
    assert torch.equal(nulled, quiet(worker, corpus, rest, monkeypatch))


def test_it_is_clipped_gradients_summed_step_by_step(corpus, monkeypatch):
    """Against a loop in float64 that shares nothing but the network."""
    weights = np.array([1.0, 0.4, 1.0, 0.7, 1.0, 1.0, 1.0], np.float32)
    selection = drawn(corpus)
    selection = selection._replace(weights=weights[: len(selection.sentences)])
    worker = TinyWorker(config_of(local_epochs=2), dtype=torch.float64)
    here = worker.params.get()
    parameters = here.clone()
    for _ in range(2):
        worker.params.set(parameters)
        total = torch.zeros_like(parameters)
        for number, weight in zip(selection.sentences, selection.weights, strict=True):
            loss = worker.task.losses(worker.model, worker.task.collate([corpus.tokens[number]])).sum()
            pieces = torch.autograd.grad(loss, worker.params.tensors, allow_unused=True, materialize_grads=True)
            gradient = torch.cat([piece.flatten() for piece in pieces])
            total += float(weight) * min(1.0, CLIP / float(gradient.norm())) * gradient
        parameters = parameters - RATE / BATCH * total
    worker.params.set(here)
    expected = -(parameters - here) * BATCH / RATE
    found = quiet(worker, corpus, selection, monkeypatch)
    assert float((found - expected).norm() / expected.norm()) < 1e-5


def test_sentences_are_drawn_for_each_step_by_the_key(corpus, monkeypatch):
    """How often a sentence passes, over many steps: Binomial(steps, q), each sentence by itself."""
    worker = TinyWorker(config_of(local_sampling_prob=0.2, local_epochs=60))
    passed, selection = [], drawn(corpus)
    monkeypatch.setattr(local_dp_sgd.Update, "_add", lambda self, total, *rest: passed.append(rest[3]))
    update = local_update(worker.plan, worker.model, worker.params, worker.task, corpus.tokens.__getitem__, CPU)
    update.update_of(worker.parameters, selection, 0)
    steps = worker.plan.local.steps
    assert steps == 300
    low, high = stats.binom.ppf([1e-7, 1 - 1e-7], steps, 0.2)
    counts = np.bincount(passed, minlength=len(selection.sentences))
    assert low <= counts.min() <= counts.max() <= high
    assert len(set(counts)) > 1, "drawn one by one"


def test_a_key_has_its_noise_and_none_is_refused(corpus):
    worker = TinyWorker(config_of())
    one, again, other = (sent(worker, corpus, drawn(corpus, key=key)) for key in (KEY, KEY, bytes(32)))
    assert torch.equal(one, again)
    assert not bool((one == other).any())
    with pytest.raises(ValueError, match="key has 0 bytes"):
        sent(worker, corpus, drawn(corpus, key=b""))


def test_keys_are_of_a_user_in_a_round_and_attempt(corpus):
    plan, weight = Plan.of(config_of()), np.ones(corpus.num_sentences, np.float32)

    def keys(secret=KEY, round_index=0, attempt=0):
        where = {"round_index": round_index, "attempt": attempt}
        return [
            each.key
            for each in plan.select(corpus, np.arange(6), PoissonSampler(secret), sentence_weight=weight, **where)
        ]

    assert keys() == keys()
    all_keys = [*keys(), *keys(round_index=1), *keys(attempt=1), *keys(bytes(32))]
    assert len(set(all_keys)) == len(all_keys) == 24
    assert not any(
        each.key for each in Plan.of(tiny_config()).select(
            corpus, np.arange(6), PoissonSampler(KEY), sentence_weight=weight, round_index=0, attempt=0
        )
    )  # fmt: skip


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("training.local_noise_multiplier", None),
        ("training.local_noise_multiplier", 0.0),
        ("training.local_sampling_prob", 0.0),
        ("training.local_sampling_prob", 1.1),
        ("training.loop", "epochs"),
        ("privacy.sentence_clip_norm", None),
        ("privacy.normalizer", "published"),
        ("corpus.declared_num_users", None),
    ],
)
def test_what_would_void_it_is_refused(setting, value):
    with pytest.raises(InputError, match=setting.replace(".", r"\.")):
        apply(config_of(), "local_dp_fedavg", {setting: value})


def test_noise_beside_it_and_words_of_all_users_are_refused():
    with pytest.raises(InputError, match=r"privacy\.noise = .calibrated.*each user adds it"):
        apply(config_of(), "uedp", {"privacy.noise": "calibrated", "privacy.target_epsilon": 1.0, "privacy.clip": True})
    noisy = {"vocabulary.noise_multiplier": 9.0, "vocabulary.threshold_delta": 1e-6}
    with pytest.raises(InputError, match=r"vocabulary\.kind = .noisy-threshold."):
        apply(config_of(), "local_dp_fedavg", {"vocabulary.kind": "noisy-threshold", **noisy})


def test_a_fixed_test_seed_is_no_secret():
    plan = Plan.of(apply(config_of(), "local_dp_fedavg", {"privacy.test_noise_seed": 1}))
    assert (plan.private, plan.noised) == (False, False)
    assert Plan.of(config_of()).noised
