"""The clipped sum of a worker, against loops over single sentences. ``test_bits`` has what must hold to the bit."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import torch

from tests.updates.tiny import TinyCorpus, TinyWorker, tiny_config
from uedp_ray.plan import UserSelection
from uedp_ray.privacy.sampling import PoissonSampler
from uedp_ray.tasks.next_word import NextWord
from uedp_ray.updates import gradient
from uedp_ray.updates.base import local_update, seed_of
from uedp_ray.updates.weighted import ROOM

KEY = b"sampling key of a test"
AWD = {"architecture": "awd_lstm", "num_layers": 2, "hidden_size": 6, "embedding_size": 5, "max_length": 10}
DROPOUT = {f"dropout_{name}": 0.3 for name in ("embedding", "input", "hidden", "weight", "output")}
HASH = np.random.default_rng(1).permutation(14).astype(np.uint64)
BOUNDS = {"max_holders": 3, "max_sentences_per_entity": 2, "entity_bound": "truncate", "holder_bound": "truncate"}


def config_of(model=None, privacy=None, **training):
    return tiny_config(
        privacy={"sentence_clip_norm": 0.3, "entity_sampling_prob": 0.7, "user_sampling_prob": 0.9, **(privacy or {})},
        bounds=BOUNDS,
        model=model or {},
        training=training,
    )


def local_sgd(**training):
    return config_of(
        privacy={"sentence_clip_norm": None},
        local_update="local_sgd",
        local_learning_rate=0.5,
        local_batch_size=2,
        **training,
    )


@pytest.fixture
def corpus():
    return TinyCorpus.random(4, num_users=len(HASH))


def weights_of(corpus):
    """Every kind of weight that bounds produce: none, part, all."""
    return np.random.default_rng(0).choice([0.0, 0.4, 1.0], corpus.num_sentences).astype(np.float32)


def selections(worker, corpus, users=None, round_index=0):
    users = np.arange(corpus.num_users) if users is None else users
    where = {"round_index": round_index, "attempt": 0}
    return list(worker.plan.select(corpus, users, PoissonSampler(KEY), sentence_weight=weights_of(corpus), **where))


def total(worker, corpus, users=None, round_index=0):
    return worker.sum(corpus, weights_of(corpus), users=users, round_index=round_index, key=KEY)


def update_of(worker, corpus):
    return local_update(worker.plan, worker.model, worker.params, worker.task, corpus.tokens.__getitem__, worker.device)


def relative(a, b):
    return float(torch.linalg.vector_norm(a.double() - b.double()) / torch.linalg.vector_norm(b.double()))


def sentence_gradient(worker, corpus, sentence):
    batch = worker.task.collate([corpus.tokens[sentence]]).to(worker.device)
    loss = worker.task.losses(worker.model, batch).sum()
    gradients = torch.autograd.grad(loss, worker.params.tensors, allow_unused=True)
    pieces = [(torch.zeros_like(p) if g is None else g).flatten().double()
              for g, p in zip(gradients, worker.params.tensors, strict=True)]  # fmt: skip
    return torch.cat(pieces)


def naive_gradient_sum(worker, corpus):
    privacy = worker.plan.config.privacy
    result = torch.zeros(worker.params.num, dtype=torch.float64, device=worker.device)
    clipped = {"sentence": 0, "user": 0}
    for selection in selections(worker, corpus):
        update = torch.zeros_like(result)
        for sentence, weight in zip(selection.sentences, selection.weights, strict=True):
            gradient = sentence_gradient(worker, corpus, sentence)
            clip, norm = privacy.sentence_clip_norm / (1 + ROOM), float(gradient.norm())
            clipped["sentence"] += norm > clip
            update -= float(weight) * min(1.0, clip / norm) * gradient
        norm = float(update.norm())
        clipped["user"] += norm > privacy.l2_clip_norm
        result += update * min(1.0, privacy.l2_clip_norm / max(norm, 1e-30))
    assert clipped["sentence"], "no bound is at work: the comparison proves little"
    return result, clipped


@pytest.mark.parametrize("model", [{}, AWD], ids=["gpt2", "awd_lstm"])
@pytest.mark.parametrize("batch_tokens", [1, 60, 100_000])
def test_gradient_sum_is_that_of_one_sentence_at_a_time(corpus, device, model, batch_tokens):
    config = config_of(model=model, privacy={"l2_clip_norm": 0.4}, batch_tokens=batch_tokens)
    worker = TinyWorker(config, dtype=torch.float64, device=device)
    expected, clipped = naive_gradient_sum(worker, corpus)
    assert clipped["user"]
    assert relative(total(worker, corpus), expected) < 3e-6  # clipping shrinks by 1e-6 for safety


@pytest.mark.parametrize("local_update", ["gradient", "local_sgd"])
@pytest.mark.parametrize(
    "model",
    [{**AWD, **DROPOUT, "dropout_weight": 0.0}, {**AWD, "dropout_weight": 0.3}, {"dropout_output": 0.3}],
    ids=["awd_lstm", "awd_lstm weights", "gpt2"],
)
def test_dropout_is_drawn_by_round_and_sentence(corpus, device, model, local_update):
    config = local_sgd() if local_update == "local_sgd" else config_of()
    worker = TinyWorker(dataclasses.replace(config, model=dataclasses.replace(config.model, **model)), device=device)
    update, chosen = update_of(worker, corpus), selections(worker, corpus)
    whole = update.sum_updates(worker.parameters, chosen, 0)
    torch.rand(5)  # whatever else draws from the default generator
    assert torch.equal(update.sum_updates(worker.parameters, chosen, 0), whole)
    assert relative(update.sum_updates(worker.parameters, chosen, 1), whole) > 1e-3


def test_dropout_is_on_in_local_updates(corpus, device):
    dropped = total(TinyWorker(config_of(model={"dropout_output": 0.5}), device=device), corpus)
    assert relative(dropped, total(TinyWorker(config_of(), device=device), corpus)) > 0.05


def naive_local_sgd(worker, corpus, epochs):
    training, privacy = worker.plan.config.training, worker.plan.config.privacy
    start = worker.params.get()
    result = torch.zeros(worker.params.num, dtype=torch.float64, device=worker.device)
    for selection in selections(worker, corpus):
        here = start.clone()
        pairs = zip(selection.sentences, selection.weights, strict=True)
        by_length = sorted(pairs, key=lambda pair: len(corpus.tokens[pair[0]]))
        batches = [by_length[n : n + training.local_batch_size]
                   for n in range(0, len(by_length), training.local_batch_size)]  # fmt: skip
        order = np.random.default_rng(seed_of(training.seed, 0, selection.user))
        for _ in range(epochs):
            for parts in (batches[n] for n in order.permutation(len(batches))):
                worker.params.set(here)
                mean = sum(float(w) * sentence_gradient(worker, corpus, x) for x, w in parts) / len(parts)
                here = here - training.local_learning_rate * mean
        difference = here - start
        result += difference * min(1.0, privacy.l2_clip_norm / float(difference.norm()))
    worker.params.set(start)
    return result


@pytest.mark.parametrize("epochs", [1, 2])
def test_local_sgd_is_a_loop_of_small_steps(corpus, device, epochs):
    config = local_sgd(local_epochs=epochs)
    config = dataclasses.replace(config, privacy=dataclasses.replace(config.privacy, l2_clip_norm=0.8))
    worker = TinyWorker(config, dtype=torch.float64, device=device)
    expected = naive_local_sgd(worker, corpus, epochs)
    assert relative(total(worker, corpus), expected) < 3e-6
    assert torch.equal(worker.params.get(), worker.parameters), "the round's parameters are put back"


def test_a_step_of_local_sgd_computes_no_padding(corpus, device):
    worker = TinyWorker(local_sgd(), device=device)
    selection = selections(worker, corpus)[0]._replace(sentences=np.arange(5), weights=np.ones(5, np.float32))
    update, positions = update_of(worker, corpus), []
    update.probe()
    embedding = worker.model.get_input_embeddings()
    hook = embedding.register_forward_pre_hook(lambda _, inputs: positions.append(inputs[0].shape))
    update.update_of(worker.parameters, selection, 0)
    hook.remove()
    lengths = sorted(worker.task.length(corpus.tokens[x]) for x in range(5))
    assert len(set(lengths)) > 2
    expected = [
        (1, sum(step)) if len(set(step)) > 1 else (len(step), step[0])
        for step in (lengths[:2], lengths[2:4], lengths[4:])
    ]
    assert sorted(map(tuple, positions)) == sorted(expected)


class Poisoned:
    """A task whose loss is NaN or infinite, and so its gradient, on sentences that begin with a given token."""

    def __init__(self, task, token, value):
        self.task, self.token, self.value = task, token, value

    only_positions = takes_packed = True

    def made_up(self, *how, **more):
        return self.task.made_up(*how, **more)

    def length(self, sentence):
        return self.task.length(sentence)

    def collate(self, sentences, shape=None):
        return self.task.collate(sentences, shape)

    def losses(self, model, batch):
        losses = self.task.losses(model, batch)
        return losses * torch.where(batch.by_sentence(batch.targets)[:, 0] == self.token, self.value, 1.0)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_gradient_that_is_not_finite_counts_as_zero_and_no_other_is_touched(corpus, device, value):
    worker = TinyWorker(config_of(privacy={"user_sampling_prob": 1.0}), device=device)
    chosen = selections(worker, corpus)
    token = int(corpus.tokens[chosen[2].sentences[0]][0])
    hit = [x for s in chosen for x in s.sentences if corpus.tokens[x][0] == token]
    task = Poisoned(worker.task, token, value)
    update = local_update(worker.plan, worker.model, worker.params, task, corpus.tokens.__getitem__, worker.device)
    summed = update.sum_updates(worker.parameters, chosen, 0)
    rest = [without(s, [i for i, x in enumerate(s.sentences) if corpus.tokens[x][0] == token]) for s in chosen]
    clean = update_of(worker, corpus)
    expected = clean.sum_updates(worker.parameters, [s for s in rest if len(s.sentences)], 0)
    assert relative(summed, expected) < 1e-12  # a user's float64 sum of fewer sentences
    assert update.num_non_finite == len(hit) > 0
    assert clean.num_non_finite == 0


def without(selection, gone):
    return selection._replace(
        sentences=np.delete(selection.sentences, gone), weights=np.delete(selection.weights, gone)
    )


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_user_whose_local_sgd_diverges_counts_as_zero(corpus, device, value):
    worker = TinyWorker(local_sgd(), device=device)
    chosen = selections(worker, corpus)
    token = int(corpus.tokens[chosen[1].sentences[0]][0])
    task = Poisoned(worker.task, token, value)
    update = local_update(worker.plan, worker.model, worker.params, task, corpus.tokens.__getitem__, worker.device)
    summed = update.sum_updates(worker.parameters, chosen, 0)
    untouched = [s for s in chosen if all(corpus.tokens[x][0] != token for x in s.sentences)]
    clean = update_of(worker, corpus)
    assert torch.equal(summed, clean.sum_updates(worker.parameters, untouched, 0))
    assert update.num_non_finite == len(chosen) - len(untouched) > 0


@pytest.mark.parametrize("how", ["gradient", "local_sgd"])
@pytest.mark.parametrize("apart", [0, 3])  # users between the two
def test_a_user_who_is_drawn_twice_is_refused(corpus, how, apart, monkeypatch):
    worker = TinyWorker(local_sgd() if how == "local_sgd" else config_of())
    monkeypatch.setattr(gradient, "_HELD", 1)
    chosen = selections(worker, corpus)
    twice = [*chosen[: apart + 1], chosen[0]._replace(num_held=99)]
    with pytest.raises(RuntimeError, match=f"user {chosen[0].user} is drawn twice in a round"):
        update_of(worker, corpus).sum_updates(worker.parameters, twice, 0)


def test_nobody_drawn_gives_zeros(corpus, device):
    worker = TinyWorker(config_of(), device=device)
    assert total(worker, corpus, users=np.arange(0)).tolist() == [0.0] * worker.params.num


@pytest.mark.parametrize("how", ["gradient", "local_sgd"])
def test_a_user_without_sentences_adds_nothing(corpus, device, how):
    worker = TinyWorker(local_sgd() if how == "local_sgd" else config_of(), device=device)
    chosen, nothing = selections(worker, corpus), (np.zeros(0, np.int64), np.zeros(0, np.float32), 0)
    cohorts = [chosen[:2], [UserSelection(99, *nothing), *chosen[:2], UserSelection(98, *nothing)]]
    without, with_both = (update_of(worker, corpus).sum_updates(worker.parameters, each, 0) for each in cohorts)
    assert torch.equal(without, with_both)


def test_bf16_stays_close(corpus, device):
    exact = total(TinyWorker(config_of(), device=device), corpus)
    rounded = total(TinyWorker(config_of(precision="bf16"), device=device), corpus)
    assert 0 < relative(rounded, exact) < 0.05


@pytest.mark.parametrize("part", ["full", "lora", "bias_norm", "head"])
@pytest.mark.parametrize("model", [{}, AWD], ids=["gpt2", "awd_lstm"])
def test_every_trainable_part_is_bounded_and_matches_the_loop(corpus, device, model, part):
    worker = TinyWorker(
        config_of(model={**model, "trainable": part, "lora_rank": 2}, privacy={"sentence_clip_norm": 0.002}),
        dtype=torch.float64,
        device=device,
    )
    expected, _ = naive_gradient_sum(worker, corpus)
    assert relative(total(worker, corpus), expected) < 3e-6
    whole = sum(p.numel() for p in worker.model.parameters())
    assert worker.params.num < whole if part != "full" else worker.params.num == whole


SHAPES: list[tuple[int, int]] = []


@dataclasses.dataclass(frozen=True)
class Shaped(NextWord):
    """A task that notes the shapes of batches where isolation does not look."""

    def collate(self, sentences, shape=None):
        SHAPES.append(shape or (len(sentences), max(map(len, sentences))))
        return super().collate(sentences, shape)


@pytest.mark.parametrize("how", ["gradient", "local_sgd"])
def test_the_memory_of_a_round_is_taken_before_the_first_whoever_is_drawn(corpus, device, how):
    """A run that stopped for want of memory would tell how many were drawn, or how long their sentences are."""
    worker, shapes = TinyWorker(local_sgd() if how == "local_sgd" else config_of(), device=device), SHAPES
    worker.task = Shaped(*dataclasses.astuple(worker.task))
    update = update_of(worker, corpus)
    update.probe()
    assert shapes
    most, held = max(shapes, key=math.prod), getattr(update, "_total", None)
    chosen, shapes[:] = selections(worker, corpus), []
    for cohort in (chosen[:1], chosen):
        update.sum_updates(worker.parameters, cohort, 0)
        assert getattr(update, "_total", None) is held
    assert all(rows * length <= math.prod(most) for rows, length in shapes)


def heavy(worker, corpus):
    user = selections(worker, corpus)[0]
    return user._replace(weights=np.full(len(user.weights), 3.0, np.float32))


def test_a_weight_above_one_is_refused_in_a_private_run(corpus):
    worker = TinyWorker(config_of(privacy={"test_noise_seed": None}))
    assert worker.plan.private
    with pytest.raises(ValueError, match="a sentence weighs more than 1"):
        update_of(worker, corpus).sum_updates(worker.parameters, [heavy(worker, corpus)], 0)


def test_the_published_weights_of_a_sentence_may_be_above_one(corpus):
    """One for each of its entities that is drawn."""
    worker = TinyWorker(config_of(privacy={"test_noise_seed": 0, "l2_clip_norm": 100.0}))
    user = heavy(worker, corpus)
    update, once = update_of(worker, corpus), user._replace(weights=user.weights / 3)
    heavier, lighter = (update.sum_updates(worker.parameters, [each], 0) for each in (user, once))
    assert relative(heavier, 3 * lighter) < 1e-6
