"""Ordinary training, the reference: what torch alone computes, epoch by epoch, and no privacy claimed."""

from __future__ import annotations

import os
import signal

import numpy as np
import pytest
import torch

from tests.training.runs import crash, parameters, run_config
from uedp_ray import methods
from uedp_ray.config import from_dict, to_dict
from uedp_ray.config.run import RunConfig
from uedp_ray.corpus.tokens import TokenStore
from uedp_ray.errors import InputError
from uedp_ray.models.isolation import ALONE
from uedp_ray.privacy.ledger import read_ledger
from uedp_ray.training import epochs, worker
from uedp_ray.training.checks import ignored
from uedp_ray.training.driver import RunDriver
from uedp_ray.training.epochs import shuffled
from uedp_ray.training.host import train
from uedp_ray.training.network import make_model
from uedp_ray.training.prepared import Prepared, make_task
from uedp_ray.training.reduce import LocalReducer
from uedp_ray.training.rundir import RunDir

SETTINGS = {"training.num_rounds": 3, "training.server_learning_rate": 0.01}


@pytest.fixture(scope="module")
def ordinary(corpora):
    return methods.apply(run_config(corpora), "ordinary", SETTINGS)


@pytest.fixture(scope="module")
def done(ordinary, tmp_path_factory):
    out = tmp_path_factory.mktemp("ordinary") / "run"
    return out, train(ordinary, out, workers=0)


def test_it_is_what_torch_does_with_the_whole_network(done):
    """AdamW over the parameters as they are, not over one flat vector, by a loop of its own."""
    prepared = Prepared.open(RunDir(done[0]))
    settings = prepared.config.training
    model = make_model(prepared.used, prepared.vocabulary)
    task = make_task(prepared.config, prepared.vocabulary)
    optimizer = torch.optim.AdamW(model.parameters(), betas=settings.adam_betas, eps=settings.adam_epsilon)
    numbers = np.flatnonzero(prepared.tokens.lengths)
    for epoch in range(3):
        batches = shuffled(prepared.tokens.lengths[numbers], 32, np.random.default_rng([settings.seed, epoch]))
        assert sorted(np.concatenate(batches).tolist()) == list(range(len(numbers))), "each sentence once"
        for step, batch in enumerate(batches):
            made = task.collate([prepared.tokens.sentence(int(number)) for number in numbers[batch]])
            logits = model(input_ids=made.input_ids).logits.flatten(0, 1)
            loss = torch.nn.functional.cross_entropy(logits, made.targets.flatten(), ignore_index=-100)
            optimizer.param_groups[0]["lr"] = 0.01 * (1 - (epoch + step / len(batches)) / 3)
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
    trained = sorted((name, p) for name, p in model.named_parameters() if p.requires_grad)
    by_hand = torch.cat([p.detach().flatten() for _, p in trained])
    torch.testing.assert_close(parameters(done[0]), by_hand, rtol=1e-3, atol=1e-4)


def test_it_learns_more_than_as_many_rounds_without_privacy_and_claims_nothing(corpora, done, tmp_path):
    rounds = train(methods.apply(run_config(corpora), "noiseless", SETTINGS), tmp_path / "run", workers=0)
    assert done[1]["perplexity"] < 0.9 * rounds["perplexity"]
    assert set(done[1]["epsilon"].values()) == {None}
    assert not done[1]["private"]
    statement = (done[0] / "privacy.md").read_text()
    assert "Poisson" not in statement
    assert "Sampling: none. All sentences in each epoch, which counts as a round" in statement


def test_a_crash_changes_no_bit(ordinary, done, tmp_path):
    crash(ordinary, tmp_path / "run", charges=2)
    train(ordinary, tmp_path / "run", workers=0, resume=True)
    assert torch.equal(parameters(tmp_path / "run"), parameters(done[0]))


def test_an_interrupt_within_an_epoch_keeps_none_of_it(ordinary, done, tmp_path, monkeypatch):
    steps, mean_loss = [], epochs.mean_loss

    def interrupted(*arguments, **settings):
        steps.append(1)
        if len(steps) == per_epoch + 2:
            raise KeyboardInterrupt
        return mean_loss(*arguments, **settings)

    lengths = TokenStore(next(done[0].rglob("tokens.npy")).parent).lengths
    per_epoch = len(shuffled(lengths[lengths > 0], 32, np.random.default_rng(0)))
    with monkeypatch.context() as patch:
        patch.setattr(epochs, "mean_loss", interrupted)
        with pytest.raises(KeyboardInterrupt):
            train(ordinary, tmp_path / "run", workers=0)
    train(ordinary, tmp_path / "run", workers=0, resume=True)
    assert torch.equal(parameters(tmp_path / "run"), parameters(done[0]))


def test_an_interrupt_amid_the_end_of_an_epoch_waits_and_loses_none(ordinary, tmp_path, monkeypatch):
    seldom = methods.apply(ordinary, "ordinary", SETTINGS | {"training.checkpoint_every": 100})
    charge = RunDriver.charge

    def signalled(self, epoch, attempt):
        if epoch == 1:
            os.kill(os.getpid(), signal.SIGINT)
        charge(self, epoch, attempt)

    with monkeypatch.context() as patch:
        patch.setattr(RunDriver, "charge", signalled)
        with pytest.raises(KeyboardInterrupt):
            train(seldom, tmp_path / "run", workers=0)
    train(seldom, tmp_path / "run", workers=0, resume=True)
    charged = [event["round"] for event in read_ledger(tmp_path / "run" / "ledger.jsonl") if "round" in event]
    assert charged == [0, 1, 2]


def test_each_epoch_draws_masks_of_its_own(ordinary, tmp_path, monkeypatch):
    seeds, seeded = [], epochs.seeded
    monkeypatch.setattr(epochs, "seeded", lambda device, seed: seeds.append(seed) or seeded(device, seed))
    train(ordinary, tmp_path / "run", workers=0)
    assert len(set(seeds)) == len(seeds) == 3


def test_further_workers_have_nothing_to_do(done, monkeypatch):
    class Other(LocalReducer):
        is_driver = False

        def sum_to_driver(self, vector):
            raise AssertionError("nothing is summed")

    monkeypatch.setattr(worker, "run_rounds", None)
    with ALONE:
        worker.run_worker(RunDir(done[0]), rank=1, num_workers=2, reducer=Other(), device=torch.device("cpu"))


@pytest.mark.parametrize("privacy", [{"noise_multiplier": 1.0}, {"noise": "none", "noise_multiplier": None}])
def test_it_is_refused_where_protection_is_asked_for(corpora, privacy):
    with pytest.raises(InputError, match=r"training\.loop = 'epochs': protects nobody: use rounds"):
        run_config(corpora, training={"loop": "epochs"}, privacy=privacy)


def test_bounds_that_it_would_not_keep_are_refused(ordinary):
    """Its statement would call them enforced."""
    with pytest.raises(InputError, match=r"training\.loop = 'epochs': keeps no bounds: set bounds\.mode: none"):
        methods.overlay(ordinary, {"bounds.mode": "enforced"})


def test_what_it_does_not_use_is_told(ordinary):
    assert not [each for each in ignored(ordinary) if "batch" in each]
    told = ignored(methods.overlay(ordinary, {"training.local_epochs": 2, "privacy.entity_sampling_prob": 0.5}))
    assert {"training.local_epochs is ignored: training.loop is epochs",
            "privacy.entity_sampling_prob is ignored: training.loop is epochs"} <= set(told)  # fmt: skip


def test_passes_are_epochs(ordinary):
    tree = to_dict(ordinary)
    tree["training"]["passes"] = 4
    assert from_dict(RunConfig, tree).training.num_rounds == 4
