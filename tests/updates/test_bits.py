"""A user's update is its own, to the bit, and sums of updates are exact: by adversarial corpora and spoilt weights.

One statement covers cohorts, order, batches and workers: the integer sum over a cohort is the sum of what its users give
alone, in this and any other split. It also says that removing a user moves the sum by that user's vector and no more.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GemmaConfig,
    GemmaForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from tests.updates.worker import LOCAL_SGD, NETWORKS, VOCABULARY, Worker, make, sentences
from uedp_ray.models.parameters import FlatParameters
from uedp_ray.updates import gradient
from uedp_ray.updates.shapes import balanced, padded_length, padded_lengths, row_counts, split
from uedp_ray.updates.weighted import ROOM

pytestmark = pytest.mark.whole


def assert_own(worker: Worker, seed: int = 0) -> dict[int, torch.Tensor]:
    """What each user gives alone; any cohort, in any order and split, gives the sum of it."""
    alone = {u: worker.steps(u) for u in worker.selections}
    shuffled = np.random.default_rng(seed).permutation(list(alone)).tolist()
    for cohort in (list(alone), shuffled, shuffled[:3], shuffled[3:]):
        assert torch.equal(worker.steps(*cohort), sum(alone[u] for u in cohort))
    assert torch.equal(alone[0], alone[1]), "the same words at another place"
    return alone


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("llama")
    layers = {"num_hidden_layers": 2, "num_attention_heads": 2, "max_position_embeddings": 64}
    torch.manual_seed(0)
    network = LlamaForCausalLM(LlamaConfig(vocab_size=VOCABULARY, hidden_size=32, intermediate_size=24, **layers))
    network.save_pretrained(folder)
    return folder


@pytest.mark.parametrize("precision", ["float32", "bf16"])
@pytest.mark.parametrize("network", NETWORKS)
def test_a_users_update_is_its_own(network, precision, device, llama, kept):
    worker = Worker(make(network, llama, {"precision": precision}), sentences(), device)
    if "dropout" in network:
        worker.texts[len(worker.selections[0].sentences)] = worker.texts[0]
        cohort = list(worker.selections)  # masks follow the sentence's number, so that equal words differ
        alone = {u: worker.steps(u) for u in cohort}
        assert torch.equal(worker.steps(*cohort), sum(alone.values()))
        assert torch.equal(worker.steps(*cohort[3:]), sum(alone[u] for u in cohort[3:]))
    else:
        alone = assert_own(worker)
    assert all(0.1 < worker.norm(steps) <= 1.0 for steps in alone.values())


def test_so_it_is_where_nothing_but_a_factored_matrix_is_trained(device, kept):
    config = make("gpt2")
    assert_own(
        Worker(
            dataclasses.replace(config, model=dataclasses.replace(config.model, trainable="head")), sentences(), device
        )
    )


@pytest.mark.parametrize(("network", "precision"), [("llama", "float32"), ("llama lora", "bf16")])
def test_so_it_is_of_a_published_model(network, precision, device, real_models, kept):
    config = make(network, real_models / "stories260k" / "hf", {"precision": precision})
    assert_own(Worker(config, sentences(), device))


@pytest.mark.parametrize("precision", ["float32", "bf16"])
@pytest.mark.parametrize("network", NETWORKS)
def test_so_it_is_under_local_sgd(network, precision, device, llama):
    worker = Worker(make(network, llama, {**LOCAL_SGD, "precision": precision}), sentences(), device)
    alone = {u: worker.steps(u) for u in worker.selections}
    assert torch.equal(worker.steps(*alone), sum(alone.values()))
    assert all(0.01 < worker.norm(steps) <= 1.0 for steps in alone.values())


@pytest.mark.parametrize(
    ("settings", "network"),
    [
        (GemmaConfig, GemmaForCausalLM),
        (Gemma2Config, Gemma2ForCausalLM),
        (Gemma3TextConfig, Gemma3ForCausalLM),
    ],
)
def test_so_it_is_with_an_embedding_of_the_networks_own_kind(settings, network, device, tmp_path):
    sizes = {"hidden_size": 32, "intermediate_size": 24, "num_hidden_layers": 1, "head_dim": 16}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 64}
    torch.manual_seed(0)
    network(settings(vocab_size=VOCABULARY, **sizes, **heads)).save_pretrained(tmp_path)
    worker = Worker(make("llama", tmp_path), sentences(), device)
    assert_own(worker)
    update = worker.update()
    update.probe()
    assert device == "cuda" or any(len(rows) > 1 for rows in update._rows.values())  # whose kernels vary with the rows


def test_so_it_is_where_a_branch_is_too_small_to_show_its_rounding_at_first(device, tmp_path):
    """Fresh layers add little to what passes by them, whose last bit hides theirs: on made-up sentences, not on all."""
    sizes = {"hidden_size": 2, "intermediate_size": 33, "num_hidden_layers": 2, "head_dim": 2}
    heads = {"num_attention_heads": 1, "num_key_value_heads": 1, "max_position_embeddings": 64}
    torch.manual_seed(1)
    Qwen3ForCausalLM(Qwen3Config(vocab_size=VOCABULARY, **sizes, **heads)).save_pretrained(tmp_path)
    config = make("llama", tmp_path, {"batch_tokens": 1000})
    config = dataclasses.replace(config, model=dataclasses.replace(config.model, max_length=13, trainable="head"))
    made_up = np.random.default_rng(1)
    said = {u: [made_up.integers(1, VOCABULARY, made_up.integers(0, 16))] for u in range(120)}
    worker = Worker(config, said, device)
    alone = sum(worker.steps(u) for u in range(120))
    assert torch.equal(worker.steps(*range(120)), alone)


def test_a_network_of_other_frozen_shapes_is_probed_anew(tmp_path, monkeypatch):
    """What is not trained decides on kernels too: two runs of one process may differ in their vocabularies alone."""
    probed, agreeing = [], gradient.Update._agreeing
    monkeypatch.setattr(
        gradient.Update, "_agreeing", lambda self, counts: probed.append(self._vocab_size) or agreeing(self, counts)
    )
    monkeypatch.setattr("uedp_ray.updates.gradient._PROBED", {})
    config = make("gpt2")
    config = dataclasses.replace(config, model=dataclasses.replace(config.model, trainable="lora", lora_rank=1))
    update = Worker(config, {0: [np.array([5, 6, 7])]}).update()
    for size in (VOCABULARY, VOCABULARY, VOCABULARY + 1):
        update.model.resize_token_embeddings(size) if size > VOCABULARY else None
        dataclasses.replace(update).probe()
    assert probed == [VOCABULARY, VOCABULARY + 1]


def test_scaling_for_the_probe_leaves_no_trace():
    """Neither of matrices that are far too large, nor of numbers that a smaller scale could not hold."""
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8))
    with torch.no_grad():
        model[0].weight.mul_(1e4)
        model[1].weight.mul_(1e30)[0, 0] = 1e-37
        model[2].weight.mul_(1e-6)
    before = [parameter.clone() for parameter in model.parameters()]
    with balanced(model, FlatParameters(model)):
        assert 0.1 < float(model[0].weight.detach().std()) < 2.0
        assert 0.1 < float(model[2].weight.detach().std()) < 2.0
    assert all(map(torch.equal, model.parameters(), before))


def test_so_it_is_on_many_cores(tmp_path):
    """Threads part a tensor within a row, and compute the ends of parts by other code: some SiLUs differ in the last bit."""
    layers = {"num_hidden_layers": 1, "num_attention_heads": 2, "max_position_embeddings": 64}
    torch.manual_seed(0)
    network = LlamaForCausalLM(LlamaConfig(vocab_size=VOCABULARY, hidden_size=32, intermediate_size=100, **layers))
    network.save_pretrained(tmp_path)
    config = make("llama", tmp_path)
    config = dataclasses.replace(config, model=dataclasses.replace(config.model, max_length=10))
    made_up = np.random.default_rng(0)
    worker = Worker(config, {u: [made_up.integers(1, VOCABULARY, 9)] for u in range(400)})
    threads = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        whole = worker.steps(*range(400))
        for left_out in (0, 1, 150):
            others = [u for u in range(400) if u != left_out]
            assert torch.equal(whole - worker.steps(*others), worker.steps(left_out))
        assert torch.get_num_threads() == 3, "evaluation may use them"
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("network", ["gpt2", "gpt2 dropout", "awd_lstm dropout"])
def test_neither_batches_nor_groups_of_users_matter(network, device, monkeypatch, kept):
    whole = Worker(make(network), sentences(), device).steps(*range(7))
    with monkeypatch.context() as patched:
        patched.setattr(gradient, "_HELD", 1)
        assert torch.equal(Worker(make(network), sentences(), device).steps(*range(7)), whole)
    worker = Worker(make(network), sentences(), device)
    update = worker.update()
    update.probe()
    if network.startswith("gpt2") and device == "cpu":
        assert any(len(rows) > 1 for rows in update._rows.values()), "one number of rows: nothing to compare"
    update._rows = {length: rows[-1:] for length, rows in update._rows.items()}
    chosen = [worker.selections[u] for u in range(7)]
    assert torch.equal(update.sum_updates(worker.parameters, chosen, 0), whole)


def test_neither_do_they_where_no_sentence_is_clipped(device, monkeypatch):
    """Sums are rounded then, so their order matters. What waits in memory, and so others, decided where a user's was cut."""
    config = make("gpt2")
    config = dataclasses.replace(
        config,
        privacy=dataclasses.replace(config.privacy, sentence_clip_norm=None),
        bounds=dataclasses.replace(config.bounds, holder_bound="truncate", entity_bound="truncate"),
        model=dataclasses.replace(config.model, hidden_size=32),
    )
    made_up = np.random.default_rng(1)
    users = {u: [made_up.integers(1, VOCABULARY, made_up.integers(0, 24)) for _ in range(150)] for u in range(3)}
    worker = Worker(config, users, device)
    worker.parameters *= 6  # so that exponents are spread, as in networks that are trained
    update = worker.update()
    update.probe()
    found = []
    for most in (1, 200_000, 400_000, 800_000, 1 << 40):
        monkeypatch.setattr(update, "_most_held", most)
        found += [update.sum_updates(worker.parameters, [worker.selections[u] for u in range(3)], 0)]
        alone = [update.sum_updates(worker.parameters, [worker.selections[u]], 0) for u in range(3)]
        assert torch.equal(found[-1], sum(alone))
    assert all(torch.equal(each, found[0]) for each in found)


def test_activations_that_are_computed_again_change_no_bit(device):
    """Dropout included: the masks of each sentence are drawn once more."""
    found = []
    for again in (False, True):
        worker = Worker(make("gpt2 dropout", training={"gradient_checkpointing": again}), sentences(), device)
        update = worker.update()
        update.probe()
        assert device != "cpu" or any(len(rows) > 1 for rows in update._rows.values())
        found.append(update.sum_updates(worker.parameters, list(worker.selections.values()), 0))
    assert torch.equal(*found)


def tables(model: nn.Module) -> dict[str, nn.Parameter]:
    """One matrix or vector of each kind, trained or frozen."""
    found: dict[str, nn.Parameter] = {}
    for name, module in model.named_modules():
        kind = (
            "position"
            if "wpe" in name
            else "norm"
            if "norm" in type(module).__name__.lower()
            else type(module).__name__
        )
        for attribute, parameter in module.named_parameters(recurse=False):
            found.setdefault(f"{kind} {attribute}", parameter)
    return found


@pytest.mark.parametrize("precision", ["float32", "bf16"])
@pytest.mark.parametrize("network", ["gpt2", "gpt2 lora", "awd_lstm dropout", "llama"])
def test_so_it_is_with_spoilt_weights(network, precision, device, llama, kept):
    """Large, infinite and NaN values in any kind of table; entities still move an update by no more than their bound."""
    worker = Worker(make(network, llama, {"precision": precision}), sentences(1), device)
    chosen, holder = np.random.default_rng(0), 2
    nulled = list(worker.texts)
    nulled[worker.selections[holder].sentences[0]] = np.zeros(0, np.int64)
    worker.update().probe()  # as a run does, of sound weights
    kinds, counted = tables(worker.model), 0
    assert len(kinds) > 2
    extreme = [float(chosen.choice([1e18, -1e20, math.inf, math.nan])) for _ in kinds]
    for (kind, table), value in zip([*kinds.items()] * 2, [*extreme, *[30.0] * len(kinds)], strict=True):
        worker.params.set(worker.parameters)
        before = table.detach().clone()
        with torch.no_grad():
            table.view(len(table), -1)[int(chosen.integers(1, len(table))), :2] = value
        parameters, worker.parameters = worker.parameters, worker.params.get()
        alone = {u: worker.steps(u) for u in worker.selections}
        assert torch.equal(worker.steps(*alone), sum(alone.values())), (kind, value)
        assert all(worker.norm(steps) <= 1.0 for steps in alone.values())
        moved = worker.norm(worker.steps(*alone) - worker.steps(*alone, texts=nulled))
        assert moved <= 0.3, (kind, value)
        counted += any(bool(steps.any()) for steps in alone.values())
        worker.parameters = parameters
        with torch.no_grad():
            table.copy_(before)
    assert counted > len(kinds), "everything was zero"


@pytest.mark.parametrize("precision", ["float32", "bf16"])
@pytest.mark.parametrize("network", ["gpt2", "awd_lstm dropout", "llama"])
def test_so_it_is_with_spoilt_weights_under_local_sgd(network, precision, device, llama):
    worker = Worker(make(network, llama, {**LOCAL_SGD, "precision": precision}), sentences(1), device)
    worker.update().probe()  # of sound weights
    for value, (kind, table) in zip(itertools.cycle([1e18, -1e20, math.inf, math.nan]), tables(worker.model).items()):
        worker.params.set(worker.parameters)
        before = table.detach().clone()
        with torch.no_grad():
            table.view(len(table), -1)[1, :2] = value
        parameters, worker.parameters = worker.parameters, worker.params.get()
        alone = {u: worker.steps(u) for u in worker.selections}
        assert torch.equal(worker.steps(*alone), sum(alone.values())), (kind, value)
        assert all(worker.norm(steps) <= 1.0 for steps in alone.values())
        worker.parameters = parameters
        with torch.no_grad():
            table.copy_(before)


@pytest.mark.parametrize("row", [10, 19])
def test_one_huge_position_does_not_reach_short_sentences_through_padding(row, device):
    """Short sentences beside a long one used to be padded to its length, and read the position."""
    users = {u: [np.array([5, 7, 9])] for u in range(12)}
    users[12] = [np.arange(1, 20)]
    worker = Worker(make("gpt2"), users, device)
    worker.update().probe()  # as a run does, of sound weights: a GPU's norm of such a row is not finite
    with torch.no_grad():
        worker.params.set(worker.parameters)
        worker.model.transformer.wpe.weight[row] = 1e20
        worker.parameters = worker.params.get()
    short, whole = worker.steps(*range(12)), worker.steps(*range(13))
    assert worker.norm(short) > 3
    assert torch.equal(whole - short, worker.steps(12))


@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_many_users_who_say_the_same_do_not_add_up_their_rounding(precision, device, kept):
    """A bf16 batch as long as the longest sentence of one user moved everybody's gradient the same way."""
    users = {u: [np.array([5, 7, 9])] for u in range(300)}
    users[300] = [np.arange(1, 20)]
    config = make("gpt2", training={"precision": precision, "batch_tokens": 65536}, sentence_clip_norm=1.0)
    worker = Worker(config, users, device)
    moved = worker.norm(worker.steps(*range(301)) - worker.steps(*range(300)))
    assert 0.8 < moved <= 1.0


@pytest.mark.parametrize("precision", ["float32", "bf16"])
@pytest.mark.parametrize("network", ["gpt2", "gpt2 lora", "awd_lstm"])
def test_an_entity_moves_a_user_by_m_times_c_at_most_and_the_bound_is_met(network, precision, device, kept):
    """m sentences of one direction, clipped; the user's own clip does not bind."""
    m, c = 6, 0.001
    worker = Worker(
        make(network, training={"precision": precision}, sentence_clip_norm=c),
        {0: [np.arange(3, 14)] * m + [np.arange(2)]},
        device,
    )
    nulled = [np.zeros(0, np.int64) if x < m else text for x, text in enumerate(worker.texts)]
    moved = worker.norm(worker.steps(0) - worker.steps(0, texts=nulled))
    assert 1 - (1e-5 if kept == "as chosen" else 1e-3) < moved / (m * c) * (1 + ROOM) <= 1 + ROOM


@pytest.mark.parametrize(("dtype", "bytes_each"), [(torch.float32, 4), (torch.bfloat16, 2)])
def test_functions_of_whole_vectors_have_the_same_bits(dtype, bytes_each):
    """Of 16 numbers fewer, sigmoid, gelu, softplus and elu round up to a tenth of the last ones otherwise."""
    made_up, whole = torch.Generator().manual_seed(0), 128 // bytes_each
    functions = [torch.sigmoid, torch.tanh, torch.exp, *(getattr(functional, n) for n in ("gelu", "silu", "softplus"))]
    functions.append(partial(functional.gelu, approximate="tanh"))
    for size, function in itertools.product((0.5, 4.0), functions):
        for _ in range(300):
            numbers = size * torch.randn(4 * whole, generator=made_up).to(dtype)
            assert torch.equal(function(numbers)[: 3 * whole], function(numbers[: 3 * whole].clone()))


def test_padded_lengths_and_batches():
    assert padded_lengths(50) == [*range(8, 50, 4), 50]
    assert [padded_length(n, 20) for n in (1, 8, 9, 13, 17, 20)] == [8, 8, 12, 16, 20, 20]
    assert padded_lengths(600)[14:] == [64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 384, 448, 512, 600]
    assert row_counts(8, tokens=512, batch_tokens=4096) == [64, 16, 4]
    assert row_counts(8, tokens=512, batch_tokens=4096, bytes_each=2) == [64, 16, 8]
    assert row_counts(50, tokens=512, batch_tokens=4096) == [16]
    assert row_counts(49, tokens=512, batch_tokens=4096) == [1]  # of 32 rows most would be empty
    assert row_counts(600, tokens=512, batch_tokens=512) == [1]
    assert row_counts(16, tokens=512, batch_tokens=4096, units=[6]) == [32, 16]
    for num in range(200):
        packed = list(split(num, [64, 16, 8]))
        assert sum(n for n, _ in packed) == num
        assert all(n <= rows for n, rows in packed)
        assert sum(rows for _, rows in packed) <= 2 * num + 8
    assert list(split(5, [16])) == [(5, 16)]
