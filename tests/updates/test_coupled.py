"""Tasks that let one user's sentences into what is computed for another: refused, or one sentence a pass."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from tests.updates.worker import LOCAL_SGD, Worker, make
from uedp_ray.errors import InputError
from uedp_ray.tasks.base import IGNORED
from uedp_ray.tasks.classify import Classify
from uedp_ray.updates import base, gradient
from uedp_ray.updates.base import LocalUpdate

LENGTH = 8
SEEN: list[int] = []
"""Where isolation does not look."""


@dataclass(frozen=True)
class Score(Classify):
    """Regression: squared errors of tenths."""

    def losses(self, model, batch):
        wrong = (self.logits(model, batch)[:, 0].sigmoid() - self.scores_of(batch)) ** 2
        return torch.where(batch.targets == IGNORED, 0.0, wrong)

    def scores_of(self, batch):
        return batch.targets / 10


@dataclass(frozen=True)
class Mean(Score):
    """Scores less their mean in the batch, where there are ``least`` to ``most``."""

    least: int = 0
    most: int = 1 << 20

    def scores_of(self, batch):
        real = batch.targets != IGNORED
        mean = torch.where(real, batch.targets, 0).sum() / real.sum().clamp_min(1)
        return (batch.targets - mean + 7 if self.least <= real.sum() <= self.most else batch.targets) / 10


def less(mean, sentences):
    return [np.append(s[:-1], (s[-1] - int(mean)) % 11) if len(s) else s for s in sentences]


@dataclass(frozen=True)
class CollatedMean(Score):
    def collate(self, sentences, shape=None):
        return super().collate(less(np.mean([s[-1] for s in sentences if len(s)] or [0]), sentences), shape)


@dataclass(frozen=True)
class RunningMean(Score):
    def collate(self, sentences, shape=None):
        SEEN.extend(int(s[-1]) for s in sentences if len(s))
        return super().collate(less(np.mean(SEEN or [0]), sentences), shape)


@dataclass(frozen=True)
class RunningLength(Score):
    def length(self, sentence):
        SEEN.append(super().length(sentence))
        return min(LENGTH, max(SEEN))


@dataclass(frozen=True)
class RunningLoss(Score):
    def scores_of(self, batch):
        SEEN.extend(batch.targets[batch.targets != IGNORED].tolist())
        return (batch.targets - np.mean(SEEN or [0])) / 10


@pytest.fixture(autouse=True)
def unproved(monkeypatch):
    """Of no task is anything proved, and nothing was found out of any."""
    for module in (base, gradient):
        monkeypatch.setattr(module, "KEEPING_USERS_APART", frozenset({"gradient", "local_sgd"}))
    monkeypatch.setattr(gradient, "_PROBED", {})


def asked(kind: type[Score], training: dict | None = None, **fields: int) -> tuple[Worker, LocalUpdate]:
    """Forty sentences of one user, of the highest score, and two of each other, of the lowest."""
    SEEN.clear()
    made_up = np.random.default_rng(0)
    said = {
        u: [np.append(made_up.integers(1, 40, 4), 0 if u else 10) for _ in range(2 if u else 40)] for u in range(12)
    }
    config = make("gpt2", training=training)
    config = dataclasses.replace(config, model=dataclasses.replace(config.model, max_length=LENGTH))
    worker = Worker(config, said)
    labels = tuple(map(str, range(11)))
    task = kind(bos_id=0, eos_id=0, pad_id=1, max_length=LENGTH, labels=labels, **fields)
    return worker, dataclasses.replace(worker.update(), task=task)


def moved(worker: Worker, update: LocalUpdate) -> float:
    """By how many of its bounds the first user moves the sum when it says nothing."""
    nulled = [text if x >= 40 else text[:0] for x, text in enumerate(worker.texts)]
    users = list(worker.selections.values())
    gone = dataclasses.replace(update, sentence=nulled.__getitem__).sum_updates(worker.parameters, users, 0)
    difference = update.sum_updates(worker.parameters, users, 0) - gone
    return worker.norm(difference) / worker.plan.config.privacy.l2_clip_norm


def test_a_task_that_keeps_sentences_apart_shares_passes():
    worker, update = asked(Score)
    assert 0.5 < moved(worker, update) <= 1.0
    assert update._rows == {LENGTH: [32]}


def test_a_mean_over_many_sentences_costs_sharing_a_pass(monkeypatch):
    """The probe had the same sentences in each pass, and so the same mean: the sum moved by 12 bounds."""
    monkeypatch.setattr(
        gradient, "KEEPING_USERS_APART", frozenset({"gradient", "next_word"})
    )  # nor are losses compared
    worker, update = asked(Mean, least=8)
    assert moved(worker, update) <= 1.0
    assert update._rows == {LENGTH: [1]}


@pytest.mark.parametrize(
    ("kind", "where", "told"),
    [
        (Mean, {}, "a sentence's loss depends on others"),
        (Mean, {"least": 8}, "a sentence's loss depends on others"),
        (Mean, {"least": 4, "most": 12}, "a sentence's loss depends on others"),
        (RunningLoss, {}, "a sentence's loss depends on others"),
        (CollatedMean, {}, "beside them"),
        (RunningMean, {}, "after others"),
        (RunningLength, {}, "after others"),
    ],
)
def test_a_task_that_couples_sentences_is_refused_by_its_name(kind, where, told):
    """Collated means moved the sum by 4 bounds; of others the network or the device was blamed."""
    worker, update = asked(kind, **where)
    with pytest.raises(InputError, match=told) as error:
        moved(worker, update)
    assert (error.value.field, error.value.value) == ("task.kind", "next_word")


def test_under_local_sgd_a_task_must_not_remember_and_may_compare_sentences_of_a_user():
    for kind in (RunningMean, RunningLength):
        worker, update = asked(kind, LOCAL_SGD)
        with pytest.raises(InputError, match="after others"):
            moved(worker, update)
    worker, update = asked(RunningLoss, LOCAL_SGD)
    with pytest.raises(InputError, match="not the same in each pass") as error:
        moved(worker, update)
    assert error.value.field == "task.kind"
    for kind in (Mean, CollatedMean):
        worker, update = asked(kind, LOCAL_SGD)
        assert 0.0 < moved(worker, update) <= 1.0
