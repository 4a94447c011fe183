"""A network may keep something from pass to pass; a user's update never knows of it.

Each network here remembers what it has read, in one of the ways in which Python and torch let it, and lets that change what
it says. Taken as it is, a user's update would follow from who was drawn before.
"""

from __future__ import annotations

import dataclasses
import random
from collections import deque
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from transformers import BigBirdConfig, BigBirdForCausalLM, Emu3Config, LlamaConfig, LlamaForCausalLM, PreTrainedModel

from tests.training.runs import TEST_NOISE, parameters, run_config
from tests.training.test_pretrained import llama_tokenizer
from tests.updates.worker import LOCAL_SGD, VOCABULARY, Worker, make, sentences
from uedp_ray.config import ModelConfig
from uedp_ray.errors import InputError
from uedp_ray.models.parameters import FlatParameters
from uedp_ray.models.pretrained import pretrained_config
from uedp_ray.models.saved import longest_of, save_model
from uedp_ray.training.host import train
from uedp_ray.updates import gradient
from uedp_ray.updates.base import LocalUpdate, local_update

Remember = Callable[["Remembering", Tensor], Any]


class Slotted:
    __slots__ = ("longest",)


def counter() -> Callable[[int], float]:
    longest = 0

    def count(length: int) -> float:
        nonlocal longest
        longest = max(longest, length)
        return longest

    return count


class Remembering(nn.Module):
    """A small network that scales what it says by what ``remember`` gives of its input (B, T)."""

    def __init__(self, remember: Remember):
        super().__init__()
        self.remember = remember
        self.embedding = nn.Embedding(VOCABULARY, 4)
        self.decoder = nn.Linear(4, VOCABULARY)
        self.frozen = nn.Parameter(torch.zeros(1), requires_grad=False)
        self.register_buffer("longest", torch.zeros(1))
        self.register_buffer("growing", torch.zeros(1))
        self.number, self.seen, self.last, self.met, self.names = 0, [0], deque([0], maxlen=1), {0}, {"longest": 0}
        self.array, self.slotted, self.inner = np.zeros(1), Slotted(), SimpleNamespace(inner=SimpleNamespace(longest=0))
        self.count, self.given = counter(), partial(max, [0])

    def forward(self, input_ids: Tensor, position_ids: Tensor, use_cache: bool = False) -> SimpleNamespace:
        scale = 1 + 0.1 * float(self.remember(self, input_ids))
        return SimpleNamespace(logits=self.decoder(self.embedding(input_ids) * scale))


def longest(now: Any, ids: Tensor) -> float:
    return max(float(now), ids.shape[1])


def number(m: Remembering, ids: Tensor) -> float:
    m.number = longest(m.number, ids)
    return m.number


def new_attribute(m: Remembering, ids: Tensor) -> float:
    m.new = longest(getattr(m, "new", 0), ids)
    return m.new


def on_a_weight(m: Remembering, ids: Tensor) -> float:
    m.decoder.weight.longest = longest(getattr(m.decoder.weight, "longest", 0), ids)
    return m.decoder.weight.longest


def in_a_list(m: Remembering, ids: Tensor) -> float:
    m.seen.append(ids.shape[1])
    return max(m.seen)


def in_a_deque(m: Remembering, ids: Tensor) -> float:
    before = m.last[0]
    m.last.append(ids.shape[1])
    return before


def in_a_set(m: Remembering, ids: Tensor) -> float:
    m.met.add(ids.shape[1])
    return max(m.met)


def in_a_dict(m: Remembering, ids: Tensor) -> float:
    m.names["longest"] = longest(m.names["longest"], ids)
    return m.names["longest"]


def in_an_array(m: Remembering, ids: Tensor) -> float:
    m.array[0] = longest(m.array[0], ids)
    return m.array[0]


def in_a_slot(m: Remembering, ids: Tensor) -> float:
    m.slotted.longest = longest(getattr(m.slotted, "longest", 0), ids)
    return m.slotted.longest


def deep_inside(m: Remembering, ids: Tensor) -> float:
    m.inner.inner.longest = longest(m.inner.inner.longest, ids)
    return m.inner.inner.longest


def in_a_closure(m: Remembering, ids: Tensor) -> float:
    return m.count(ids.shape[1])


def in_an_argument(m: Remembering, ids: Tensor) -> float:
    m.given.args[0].append(ids.shape[1])
    return m.given()


def in_a_buffer(m: Remembering, ids: Tensor) -> float:
    m.longest.clamp_(min=ids.shape[1])
    return m.longest.item()


def in_another_buffer(m: Remembering, ids: Tensor) -> float:
    m.longest = torch.full((1,), longest(m.longest, ids))
    return m.longest.item()


def in_a_buffer_that_grows(m: Remembering, ids: Tensor) -> float:
    if ids.shape[1] > len(m.growing):
        m.growing.resize_(ids.shape[1]).fill_(0)
    return len(m.growing)


def in_running_statistics(m: Remembering, ids: Tensor) -> float:
    torch.batch_norm(torch.full((2, 1), float(ids.shape[1])), None, None, m.growing, m.longest, True, 0.5, 1e-5, False)
    return m.growing.item()


def in_a_layer(m: Remembering, ids: Tensor) -> float:
    if ids.shape[1] > 8:
        m.add_module("long", nn.Identity())
    return hasattr(m, "long")


def in_the_mode(m: Remembering, ids: Tensor) -> float:
    m.train(m.training or ids.shape[1] > 8)
    return m.training


def drawn_by_torch(m: Remembering, ids: Tensor) -> float:
    return torch.rand(1).item()


def drawn_by_numpy(m: Remembering, ids: Tensor) -> float:
    return np.random.rand()  # noqa: NPY002 - as BigBird does


def drawn_by_python(m: Remembering, ids: Tensor) -> float:
    return random.random()


MEMORIES = [
    *(
        number,
        new_attribute,
        on_a_weight,
        in_a_list,
        in_a_deque,
        in_a_set,
        in_a_dict,
        in_an_array,
        in_a_slot,
        deep_inside,
    ),
    *(
        in_a_closure,
        in_an_argument,
        in_a_buffer,
        in_another_buffer,
        in_a_buffer_that_grows,
        in_running_statistics,
        in_a_layer,
        in_the_mode,
    ),
    *(drawn_by_torch, drawn_by_numpy, drawn_by_python),
]


def read_by(model: nn.Module, training: dict[str, Any] | None = None) -> Worker:
    worker = Worker(make("gpt2", training=training), sentences())
    worker.model, worker.params = model, FlatParameters(model)
    worker.parameters = worker.params.get()
    return worker


@pytest.fixture
def anew(monkeypatch):
    """A worker whose probe reads nothing long: after it, a memory of the longest text would not grow any more."""
    monkeypatch.setattr(gradient, "_PROBED", {})
    monkeypatch.setattr(gradient, "agreeing_rows", lambda *of, made_up: of[-1][-1:])
    monkeypatch.setattr(LocalUpdate, "probe", lambda self: None)


def remembering(remember: Remember) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return Remembering(remember).eval()


@pytest.mark.parametrize("training", [None, LOCAL_SGD], ids=["gradient", "local_sgd"])
@pytest.mark.parametrize("remember", MEMORIES)
def test_a_users_update_does_not_follow_from_who_was_drawn_before(remember, training, anew):
    worker = read_by(remembering(remember), training)
    alone = {u: read_by(remembering(remember), training).steps(u) for u in worker.selections}
    update = worker.update()
    for cohort in ([3, 0, 5], [5, 3], [0], [6, 2, 1, 4, 3]):
        found = update.sum_updates(worker.parameters, [worker.selections[u] for u in cohort], 0)
        assert torch.equal(found, sum(alone[u] for u in cohort))
    assert all(steps.any() for steps in alone.values())


def test_what_is_watched_is_what_was_read(anew):
    """That the memories above change anything: without isolation the same pass gives something else."""
    for remember in MEMORIES:
        model, long, short = remembering(remember), torch.ones(1, 12).long(), torch.ones(1, 3).long()
        first = model(short, None).logits
        model(long, None)
        assert not torch.equal(first, model(short, None).logits), remember.__name__


def test_a_network_that_writes_to_its_weights_is_refused(anew):
    def to_a_frozen_weight(m, ids):
        with torch.no_grad():
            m.frozen.clamp_(min=ids.shape[1])
        return m.frozen.item()

    def to_a_trained_weight(m, ids):
        with torch.no_grad():
            m.decoder.bias[0] += 0.1
        return 0.0

    for write in (to_a_frozen_weight, to_a_trained_weight):
        worker = read_by(remembering(write))
        with pytest.raises(InputError, match="writes to its own weights"):
            worker.steps(0)
    worker = read_by(remembering(to_a_frozen_weight), LOCAL_SGD)
    with pytest.raises(InputError, match="writes to its own weights"):
        worker.steps(0)


def shows_no_other_user(worker: Worker, task: Any) -> None:
    """Asserts that the sum over users is that of their sums alone, whatever the task keeps."""
    made = worker.plan, worker.model, worker.params, task, worker.texts.__getitem__, worker.device
    update = local_update(*made)
    whole = update.sum_updates(worker.parameters, worker.selections.values(), 0)
    alone = [update.sum_updates(worker.parameters, [each], 0) for each in worker.selections.values()]
    assert whole.any()
    assert torch.equal(sum(alone), whole)


def test_a_task_whose_lengths_remember_is_followed_sentence_by_sentence(monkeypatch, anew):
    """The network says something else in a longer batch, as dynamic rotary tables do: it moved the sum by 10 clip norms."""
    monkeypatch.setattr("uedp_ray.updates.gradient.KEEPING_USERS_APART", frozenset())
    model = remembering(new_attribute)
    worker = read_by(model)
    task = worker.update().task

    class Longest:
        made_up, only_positions, takes_packed = staticmethod(task.made_up), True, False
        collate, losses = staticmethod(task.collate), staticmethod(task.losses)

        def __init__(self):
            self.longest = 0

        def length(self, sentence):
            self.longest = max(self.longest, task.length(sentence))
            return self.longest

    shows_no_other_user(worker, Longest())


@pytest.mark.parametrize("training", [None, LOCAL_SGD], ids=["gradient", "local_sgd"])
def test_what_a_task_keeps_of_lengths_reaches_no_other_user(training, anew):
    worker = Worker(make("gpt2", training=training), sentences())
    task = worker.update().task

    class Keeps:
        collate, made_up = staticmethod(task.collate), staticmethod(task.made_up)
        only_positions, takes_packed = True, False

        def __init__(self):
            self.heard = []

        def length(self, sentence):
            self.heard.append(len(sentence))
            return task.length(sentence)

        def losses(self, model, batch):
            return task.losses(model, batch) * (1 + len(self.heard))

    shows_no_other_user(worker, Keeps())


SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 8,
    "intermediate_size": 12,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
}


def dynamic() -> PreTrainedModel:
    """Its rotary table grows with the longest text so far, and is made small again by a short one only."""
    rope = {"rope_type": "dynamic", "factor": 8.0, "rope_theta": 10000.0}
    sizes = {**SIZES, "num_hidden_layers": 1, "num_key_value_heads": 2, "max_position_embeddings": 8}
    return LlamaForCausalLM(LlamaConfig(**sizes, rope_parameters=rope)).eval()


def big_bird(**settings: object) -> PreTrainedModel:
    """It draws blocks to attend to from NumPy's generator, and a short text switches it to full attention for good."""
    sizes = {**SIZES, "num_hidden_layers": 2, "max_position_embeddings": 64, "block_size": 1, "num_random_blocks": 1}
    kind = {"attention_type": "block_sparse", "is_decoder": True, "sep_token_id": 2}
    model = BigBirdForCausalLM(BigBirdConfig(**{**sizes, **kind, **settings})).eval()
    model.bert.embeddings.token_type_embeddings.requires_grad_(False)  # looked up once for the whole batch
    model.cls.predictions.bias.requires_grad_(False)  # two layers own it
    return model


@pytest.mark.parametrize("training", [None, LOCAL_SGD], ids=["gradient", "local_sgd"])
@pytest.mark.parametrize("network", [dynamic, big_bird])
def test_real_networks_that_remember(network, training, anew):
    """Lengths in both directions: a text is read as if nothing had been read before it, however long that was."""
    worker = read_by(network(), training)
    alone = {u: worker.steps(u) for u in worker.selections}
    for cohort in ([3, 0, 5], [5, 3], [0], [6, 2, 1, 4, 3]):
        assert torch.equal(worker.steps(*cohort), sum(alone[u] for u in cohort))


def test_evaluation_leaves_nothing_for_the_rounds_to_come(corpora, tmp_path):
    """A short sentence of it would switch the network to another kind of attention in all rounds after it."""
    save_model(big_bird(vocab_size=23), tmp_path / "small")
    llama_tokenizer(["<unk>", "<s>", "</s>", "▁", *"abcdefghilmnorstuwy"]).save_pretrained(tmp_path / "small")
    sections = {
        "model": {"architecture": "pretrained", "path": str(tmp_path / "small"), "max_length": 12},
        "vocabulary": {},
        "privacy": TEST_NOISE | {"sentence_clip_norm": None},
        "bounds": {"holder_bound": "truncate", "entity_bound": "truncate"},
        "training": {"num_rounds": 2, "evaluate_every": 1, **LOCAL_SGD},
    }
    found = []
    (tmp_path / "short.txt").write_text("so\n\nis it\n")
    short = {"format": "text", "path": str(tmp_path / "short.txt")}
    for name, evaluation in (("with", short), ("without", None)):
        config = run_config(corpora, **sections, corpus={"evaluation": evaluation})
        train(config, tmp_path / name, workers=0)
        found.append(parameters(tmp_path / name))
    assert torch.equal(*found)


def test_the_limit_of_a_composite_model_is_that_of_its_text(tmp_path):
    text = {
        "hidden_size": 8,
        "intermediate_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
    }
    text |= {"vocab_size": 40, "max_position_embeddings": 16, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    Emu3Config(text_config=text).save_pretrained(tmp_path)
    (tmp_path / "pytorch_model.bin").touch()  # weights, which are not read here
    config = ModelConfig(architecture="pretrained", path=str(tmp_path), max_length=17)
    with pytest.raises(InputError, match="reads at most 16 tokens") as error:
        pretrained_config(config)
    assert error.value.field == "model.max_length"
    assert longest_of(tmp_path) == 16
    pretrained_config(dataclasses.replace(config, max_length=16))
