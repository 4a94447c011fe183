"""What a run tries out before it calls itself private: passes that repeat, rows and sentences that are apart."""

from __future__ import annotations

import dataclasses
import secrets
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    OPTConfig,
    OPTForCausalLM,
)
from transformers.pytorch_utils import Conv1D

from tests.updates.worker import LENGTH, LOCAL_SGD, VOCABULARY, Worker, make, sentences
from uedp_ray.errors import InputError
from uedp_ray.models import factors
from uedp_ray.models.parameters import FlatParameters
from uedp_ray.tasks.next_word import NextWord
from uedp_ray.training.faults import blamed
from uedp_ray.updates import gradient, weighted
from uedp_ray.updates.base import UNORDERED, LocalUpdate
from uedp_ray.updates.shapes import rows_are_apart


class Shaky(nn.Module):
    """A network whose kernels favour a row, one number of rows, or no order at all."""

    def __init__(self, kind: str):
        super().__init__()
        self.kind = kind
        self.embedding = nn.Embedding(VOCABULARY, 4)
        self.decoder = nn.Linear(4, VOCABULARY)

    def forward(self, input_ids: torch.Tensor, position_ids: torch.Tensor, use_cache: bool = False) -> object:
        x = self.embedding(input_ids)
        scale = torch.ones(len(x), 1, 1)
        if self.kind == "row":
            scale[-1] += 1e-6 * (len(x) > 1)
        elif self.kind == "rows":
            scale += 1e-6 * (len(x) > 8)
        elif self.kind == "random":
            scale += 1e-6 * secrets.randbelow(1000)
        elif self.kind == "leak":  # a row's NaN reaches all
            scale = scale + 0 * x.sum()
        return type("Output", (), {"logits": self.decoder(x * scale)})


def shaky(kind: str, **privacy: object) -> LocalUpdate:
    worker = Worker(make("gpt2", **privacy), sentences())
    worker.model = Shaky(kind)
    worker.params = FlatParameters(worker.model)
    return worker.update()


@pytest.mark.parametrize(("kind", "rows"), [("even", {32, 8, 4}), ("row", {1}), ("leak", {1}), ("rows", {32})])
def test_the_probe_keeps_the_numbers_of_rows_that_agree(kind, rows, monkeypatch):
    monkeypatch.setattr(gradient, "_PROBED", {})
    monkeypatch.setattr(gradient, "check_exact", lambda *args, isolated: None)
    monkeypatch.setattr(gradient, "rows_are_apart", lambda model: True)
    update = shaky(kind)
    update.probe()
    assert set(update._rows[8]) == rows


def test_rows_that_were_looked_up_are_tried_unless_they_can_be_those_of_this_run(monkeypatch):
    counts = Worker(make("gpt2"), sentences()).update()._counts()
    firsts = {length: tried[:1] for length, tried in counts.items()}
    wrong = [{**counts, 8: rows} for rows in ([3], [], [*counts[8], 3])]
    for looked_up in (counts, firsts, *wrong, {8: counts[8]}, {}):
        monkeypatch.setattr(gradient, "_PROBED", {})
        update = Worker(make("gpt2"), sentences()).update()
        monkeypatch.setattr(update, "_agreeing", lambda counts: {length: [1] for length in counts})
        token = gradient.KNOWN.set(lambda update, key, find, possible, rows=looked_up: rows)
        try:
            update.probe()
        finally:
            gradient.KNOWN.reset(token)
        assert update._rows == (looked_up if looked_up in (counts, firsts) else {length: [1] for length in counts})


def test_the_probe_of_local_sgd_takes_steps_as_large_as_a_rounds(monkeypatch):
    """Nearly: of sentences of unlike lengths, which share a row."""
    worker = Worker(make("gpt2", training=LOCAL_SGD | {"local_batch_size": 3}), sentences())
    update, shapes, losses = worker.update(), [], NextWord.losses

    def watched(task, model, batch):
        shapes.append(tuple(batch.input_ids.shape))
        return losses(task, model, batch)

    monkeypatch.setattr(NextWord, "losses", watched)
    update.probe()
    longest = update.plan.config.model.max_length
    assert (1, 3 * longest - 1) in shapes
    assert (3, longest) in shapes


def test_sentences_of_a_network_that_is_not_known_pass_alone(monkeypatch):
    """In a mixture of experts the neighbours decide on the shapes of products: what a probe has not met may differ."""
    monkeypatch.setattr(gradient, "_PROBED", {})
    tiny = {
        "vocab_size": 20,
        "hidden_size": 8,
        "intermediate_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
    }
    experts = MixtralForCausalLM(MixtralConfig(**tiny, num_key_value_heads=2, num_local_experts=2))
    llama = LlamaForCausalLM(LlamaConfig(**tiny))
    assert [rows_are_apart(model) for model in (experts, llama, Worker(make("gpt2"), sentences()).model)] == [
        False,
        True,
        True,
    ]
    monkeypatch.setattr(gradient, "check_exact", lambda *args, isolated: None)
    update = shaky("even")
    update.probe()
    assert set(update._rows[8]) == {1}


def test_a_run_whose_passes_differ_is_not_called_private(monkeypatch):
    monkeypatch.setattr(gradient, "_PROBED", {})
    with pytest.raises(InputError, match="not the same in each pass") as error:
        shaky("random").probe()
    assert error.value.field == "training.device"
    shaky("random", test_noise_seed=0).probe()


HEARD = [0.0]
"""Where isolation does not look."""


@pytest.mark.parametrize("kind", ["random", "remembers"])
def test_nor_one_whose_steps_differ(kind):
    def disturbed(module, args, output):
        output = output + (HEARD[0] if kind == "remembers" else 1e-3 * secrets.randbelow(1000))
        HEARD[0] = float(output.detach().abs().sum())
        return output

    worker = Worker(make("gpt2", training=LOCAL_SGD), sentences())
    worker.update().probe()
    next(m for m in worker.model.modules() if isinstance(m, nn.Embedding)).register_forward_hook(disturbed)
    with pytest.raises(InputError, match="not the same in each pass"):
        worker.update().probe()


def test_sentences_that_influence_each_other_are_found_before_the_first_round(monkeypatch):
    monkeypatch.setattr(gradient, "_PROBED", {})
    update = shaky("even")
    forward = update.model.forward

    def mixed(input_ids, position_ids, use_cache=False):
        output = forward(input_ids, position_ids)
        output.logits = output.logits - output.logits.mean(0)
        return output

    update.model.forward = mixed
    with pytest.raises(InputError, match="not exact"):
        update.sum_updates(update.params.get(), [], 0)


def test_a_device_that_shortens_products_is_refused_though_an_earlier_run_needed_no_clip_of_sentences(monkeypatch):
    """What a probe found is kept for later runs of its process, and the earlier one had claimed nothing of products."""
    monkeypatch.setattr(gradient, "products_are_exact", lambda params, device: False)
    free = {"holder_bound": "truncate", "entity_bound": "truncate"}
    config = make("gpt2", sentence_clip_norm=0.3)
    bare = dataclasses.replace(
        config,
        privacy=dataclasses.replace(config.privacy, sentence_clip_norm=None),
        bounds=dataclasses.replace(config.bounds, **free),
    )
    Worker(bare, sentences()).update().probe()
    with pytest.raises(InputError, match="not of float32's precision"):
        Worker(config, sentences()).update().probe()


def test_lengths_that_follow_from_the_number_of_rows_are_found(monkeypatch, kept):
    """What clips a sentence is its own, too: a kernel may add up a product differently for many rows."""
    products = factors._products

    def by_rows(one, other):
        return products(one, other) * (1 + 1e-9 * (len(one) >= 16))

    monkeypatch.setattr(gradient, "_PROBED", {})
    monkeypatch.setattr(factors, "_products", by_rows)
    update = Worker(make("gpt2"), sentences()).update()
    update.probe()
    assert (set(update._rows[8]) == {32}) == (kept == "all kept")


@dataclass(frozen=True)
class Contrast(NextWord):
    """A task whose losses depend on the batch: it has the fields of another."""

    def losses(self, model, batch):
        losses = super().losses(model, batch)
        return losses * losses.mean()


def test_what_was_found_of_one_task_is_not_taken_to_hold_for_another():
    worker = Worker(make("gpt2"), sentences())
    update = worker.update()
    update.probe()
    other = worker.update()
    other.task = Contrast(*dataclasses.astuple(update.task))
    with pytest.raises(InputError, match="not exact"):
        other.probe()


def test_a_kernel_without_a_fixed_order_is_not_taken_for_a_network_without_gradients(monkeypatch):
    def unordered(*arguments, **settings):
        raise RuntimeError(f"some_kernel_cuda {UNORDERED}, but you set 'torch.use_deterministic_algorithms(True)'")

    monkeypatch.setattr(gradient, "_PROBED", {})
    monkeypatch.setattr(gradient, "check_exact", unordered)
    with pytest.raises(InputError, match="a kernel of this network adds in no fixed order"), blamed("x", 1):
        Worker(make("gpt2"), sentences()).update().probe()


def test_a_network_whose_gradients_cannot_be_had_is_refused_in_a_line(monkeypatch):
    monkeypatch.setattr(gradient, "_PROBED", {})
    worker = Worker(make("gpt2"), sentences())
    sizes = {"hidden_size": 8, "ffn_dim": 8, "word_embed_proj_dim": 8, "num_attention_heads": 2, "num_hidden_layers": 1}
    worker.model = OPTForCausalLM(OPTConfig(vocab_size=VOCABULARY, max_position_embeddings=32, **sizes)).eval()
    worker.model.requires_grad_(False)
    worker.model.model.decoder.embed_positions.requires_grad_(True)  # the others are named, as what sees no sentences
    worker.params = FlatParameters(worker.model)
    with pytest.raises(InputError, match="cannot be computed"):
        worker.update().probe()


@pytest.mark.parametrize("alone", [True, False])
def test_passes_of_a_round_run_on_one_thread(monkeypatch, alone):
    """Several compute the ends of their parts by other code: a row's bits would follow from its place."""
    worker, used, compute = Worker(make("gpt2"), sentences()), [], gradient.sentence_gradients

    def watched(*args, **settings):
        used.append(torch.get_num_threads())
        return compute(*args, **settings)

    update, here = worker.update(), torch.get_num_threads()
    update.probe()
    monkeypatch.setattr(gradient, "sentence_gradients", watched)
    torch.set_num_threads(2)
    try:
        if alone:
            update.update_of(worker.parameters, worker.selections[0], 0)
        else:
            update.sum_updates(worker.parameters, worker.selections.values(), 0)
        assert (set(used), torch.get_num_threads()) == ({1}, 2)
    finally:
        torch.set_num_threads(here)


@pytest.mark.parametrize("how", [{}, LOCAL_SGD])
def test_what_was_tried_out_says_whether_another_machine_computes_the_same(how, monkeypatch):
    """By it workers find out whether it matters who computes a user: of another version an activation is another kernel."""

    def found(activation: nn.Module | None = None) -> object:
        monkeypatch.setattr(gradient, "_PROBED", {})
        worker = Worker(make("gpt2", training=how), sentences())
        for block in worker.model.transformer.h if activation else ():
            block.mlp.act = activation
        update = worker.update()
        assert update.tried_out is None
        update.probe()
        return update.tried_out

    assert found() == found() is not None
    assert found(nn.GELU(approximate="tanh")) != found()


def test_what_was_tried_out_is_of_as_many_rows_as_rounds_use(monkeypatch):
    """Which kernel multiplies follows from the number of rows, so one sentence alone says nothing of a batch's."""
    forward, rows = Conv1D.forward, []

    def in_another_order(layer: Conv1D, x: Tensor) -> Tensor:
        flat, half = x.flatten(0, -2), x.shape[-1] // 2
        if len(flat) <= LENGTH:
            return forward(layer, x)
        product = torch.addmm(layer.bias, flat[:, :half], layer.weight[:half]) + flat[:, half:] @ layer.weight[half:]
        return product.view(*x.shape[:-1], layer.nf)

    def found() -> object:
        monkeypatch.setattr(gradient, "_PROBED", {})
        update = Worker(make("gpt2"), sentences()).update()
        update.probe()
        rows.append(update._rows)
        return update.tried_out

    here = found()
    monkeypatch.setattr(Conv1D, "forward", in_another_order)
    assert found() != here
    assert rows[0] == rows[1]


def test_what_was_tried_out_is_of_sums_too(monkeypatch):
    """The products by which sentences are added up together."""
    config = make("gpt2")  # of matrices that are larger than their factors
    config = dataclasses.replace(config, model=dataclasses.replace(config.model, hidden_size=64))

    def found() -> object:
        update = Worker(config, sentences()).update()
        update.probe()
        return update.tried_out

    def in_another_order(product: object, start: int, out: Tensor) -> None:
        form(product, start, out)
        out[out != 0] *= 1 + 1e-6

    here, form = found(), weighted._Product.form
    monkeypatch.setattr(weighted._Product, "form", in_another_order)
    assert found() != here


def test_what_was_tried_out_is_of_short_texts_too(monkeypatch):
    """A step of few positions is multiplied by another kernel than one of many."""
    forward = Conv1D.forward

    def in_another_order(layer: Conv1D, x: Tensor) -> Tensor:
        found = forward(layer, x)
        return found * (1 + 1e-6) if x[..., 0].numel() <= 4 else found

    def found() -> object:
        update = Worker(make("gpt2", training=LOCAL_SGD), sentences()).update()
        update.probe()
        return update.tried_out

    here = found()
    monkeypatch.setattr(Conv1D, "forward", in_another_order)
    assert found() != here


def test_what_was_tried_out_tells_the_numbers_of_rows(monkeypatch):
    counts = []
    for keep in (lambda counts: counts, lambda counts: counts[:1]):
        monkeypatch.setattr(gradient, "_PROBED", {})
        monkeypatch.setattr(
            gradient.Update, "_agreeing", lambda update, tried, keep=keep: {n: keep(each) for n, each in tried.items()}
        )
        update = Worker(make("gpt2"), sentences()).update()
        update.probe()
        counts.append(update.tried_out)
    assert counts[0] != counts[1]
