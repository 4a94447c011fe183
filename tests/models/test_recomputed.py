"""Gradient checkpointing changes no bit, and keeps nothing of a block that its backward pass computes again."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from transformers.modeling_layers import GradientCheckpointingLayer

from tests.models.helpers import TASK, VOCABULARY, sentences, spread, tiny, tiny_llama
from tests.models.test_gradients import assert_exact, formed, prepare
from tests.training.runs import TEST_NOISE, TREE, parameters, run_config
from tests.updates.worker import LOCAL_SGD, Worker, make
from tests.updates.worker import sentences as of_users
from uedp_ray.config import ModelConfig
from uedp_ray.errors import InputError
from uedp_ray.models.build import build_model
from uedp_ray.models.gradients import sentence_gradients
from uedp_ray.models.parameters import FlatParameters
from uedp_ray.models.recomputed import recompute_blocks, within
from uedp_ray.models.recorder import Recorder
from uedp_ray.tasks.base import Head
from uedp_ray.tasks.classify import Classify
from uedp_ray.training.host import train

NETWORKS = {
    "gpt2": tiny,
    "gpt2 dropout": lambda: tiny(dropout_embedding=0.2, dropout_hidden=0.2, dropout_output=0.2).train(),
    "llama": tiny_llama,
    "llama untied": lambda: tiny_llama(tied=False),
}


@pytest.mark.parametrize("autocast", [None, torch.bfloat16])
@pytest.mark.parametrize("part", ["full", "lora", "bias_norm"])
@pytest.mark.parametrize("network", NETWORKS)
def test_gradients_have_the_same_bits(network: str, part: str, autocast: torch.dtype | None, device: str) -> None:
    plain = prepare(NETWORKS[network](), part).float().to(device)
    again = copy.deepcopy(plain)
    recompute_blocks(again)
    found = []
    for model in (plain, again):
        torch.manual_seed(0)
        params, batch = FlatParameters(model), TASK.collate(sentences()).to(device)
        found.append(sentence_gradients(model, params, TASK, batch, autocast_dtype=autocast))
    assert torch.equal(found[0].losses, found[1].losses)
    assert torch.equal(*map(formed, found))
    assert formed(found[1]).norm() > 1


@pytest.mark.parametrize("network", NETWORKS)
def test_gradients_are_exact(network: str) -> None:
    model = prepare(NETWORKS[network](), "lora")
    recompute_blocks(model)
    assert_exact(model, TASK.collate(sentences()))


def test_of_an_encoder_that_classifies() -> None:
    config = ModelConfig(architecture="bert", max_length=8, num_layers=2, hidden_size=12, num_heads=2)
    tokens = {"vocab_size": VOCABULARY, "bos_id": 0, "eos_id": 0, "seed": 0}
    plain = spread(build_model(config, **tokens, head=Head("sequence-classification", 3)))
    again, found = copy.deepcopy(plain), []
    recompute_blocks(again)
    task = Classify(bos_id=0, eos_id=0, pad_id=0, max_length=8, labels=("a", "b", "c"))
    texts = [task.made_up(n, VOCABULARY, np.random.default_rng(n)) for n in (4, 8, 3)]
    for model in (plain, again):
        found.append(sentence_gradients(model, FlatParameters(model), task, task.collate(texts)))
    assert torch.equal(*map(formed, found))


@pytest.mark.parametrize("part", ["full", "lora"])
def test_nothing_is_kept_of_a_block_until_it_is_computed_again(part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = prepare(tiny_llama(), part)
    recompute_blocks(model)
    again, taken, end = within(model), [], Recorder.end

    def ended(recorder: Recorder) -> None:
        end(recorder)
        taken.extend(call.taken or bool(call.args) for call in recorder.calls if call.module in again)

    monkeypatch.setattr(Recorder, "end", ended)
    sentence_gradients(model, FlatParameters(model), TASK, TASK.collate(sentences()))
    assert taken
    assert not any(taken)


class Block(GradientCheckpointingLayer):
    def __init__(self, kind: str):
        super().__init__()
        self.kind = kind
        self.linear = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        y = self.linear(x)
        return self.linear(y.tanh()) if self.kind == "twice" else y.relu_()


class Blocks(nn.Module):
    def __init__(self, kind: str):
        super().__init__()
        self.embed, self.block, self.head = nn.Embedding(VOCABULARY, 6), Block(kind), nn.Linear(6, VOCABULARY)

    def forward(self, input_ids: Tensor, position_ids: Tensor, use_cache: bool = False) -> object:
        return type("Output", (), {"logits": self.head(self.block(self.embed(input_ids)))})


@pytest.mark.parametrize("kind", ["twice", "in place"])
def test_what_could_not_be_told_apart_is_refused(kind: str) -> None:
    model = Blocks(kind)
    recompute_blocks(model)
    with pytest.raises(InputError) as error:
        sentence_gradients(model, FlatParameters(model), TASK, TASK.collate(sentences()))
    assert error.value.field == "block.linear"


def test_a_network_without_blocks_is_refused() -> None:
    worker = Worker(make("awd_lstm", training={"gradient_checkpointing": True}), of_users())
    with pytest.raises(InputError, match=r"training\.gradient_checkpointing = True"):
        worker.update()


@pytest.mark.parametrize("training", [{}, LOCAL_SGD], ids=["gradient", "local_sgd"])
@pytest.mark.parametrize("network", ["gpt2 lora", "gpt2 dropout"])
def test_users_updates_have_the_same_bits(network: str, training: dict) -> None:
    plain, again = (
        Worker(make(network, training={**training, "gradient_checkpointing": each}), of_users())
        for each in (False, True)
    )
    cohort = list(plain.selections)
    assert torch.equal(plain.steps(*cohort), again.steps(*cohort))
    assert again.steps(0).any()


def test_a_run_is_the_same_and_may_go_on_with_it(corpora, tmp_path) -> None:
    found, digests = [], set()
    for again in (False, True):
        training = {"num_rounds": 2, "evaluate_every": 1, "gradient_checkpointing": again}
        config = run_config(corpora, privacy={**TREE["privacy"], **TEST_NOISE}, training=training)
        train(config, tmp_path / str(again), workers=0)
        found.append(parameters(tmp_path / str(again)))
        digests.add(config.digest())
    assert torch.equal(*found)
    assert len(digests) == 1
