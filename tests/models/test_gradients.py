from __future__ import annotations

import gc
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from tests.models.helpers import LENGTHS, TASK, VOCABULARY, reference_gradients, sentences, spread, tiny, tiny_llama
from uedp_ray.config import ModelConfig
from uedp_ray.errors import InputError
from uedp_ray.models import gradients as module_under_test
from uedp_ray.models import recorder as recorder_module
from uedp_ray.models.build import build_model
from uedp_ray.models.factors import Factors
from uedp_ray.models.gradients import SentenceGradients, check_exact, sentence_gradients
from uedp_ray.models.parameters import FlatParameters
from uedp_ray.models.trainable import select_trainable
from uedp_ray.tasks.base import Batch
from uedp_ray.tasks.next_word import NextWord


def formed(gradients: SentenceGradients) -> Tensor:
    """(B, P)"""
    return torch.cat([rows.clone() for _, rows in gradients.chunks()])


def assert_exact(model: nn.Module, batch: Batch, seed: int = 5) -> Tensor:
    """Gradients and norms against one backward pass per sentence; returns the reference (B, P)."""
    params, batch = FlatParameters(model), batch.to(next(model.parameters()).device)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        expected = reference_gradients(model, params, TASK, batch)
        torch.manual_seed(seed)
        found = sentence_gradients(model, params, TASK, batch)
    torch.testing.assert_close(formed(found), expected, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(found.norms(), expected.norm(dim=1), rtol=1e-9, atol=1e-12)
    return expected


def prepare(model: nn.Module, part: str = "full") -> nn.Module:
    model = select_trainable(model, ModelConfig(trainable=part, lora_rank=2), seed=0)  # type: ignore[arg-type]
    if part == "lora":  # away from B = 0, where half of the gradients vanish
        trained = FlatParameters(model)
        trained.set(trained.get() + 0.1)
    return model.double()


@pytest.mark.parametrize("part", ["full", "lora", "bias_norm", "head"])
@pytest.mark.parametrize(
    "network",
    ["gpt2", "gpt2 untied", "awd_lstm", "awd_lstm untied", "llama", "llama untied"],
)
def test_equal_to_one_backward_pass_per_sentence(network: str, part: str, device: str) -> None:
    name, tied = network.split()[0], "untied" not in network
    model = tiny_llama(tied=tied) if name == "llama" else tiny(name, tie_embeddings=tied)
    batch = TASK.collate(sentences())
    expected = assert_exact(prepare(model, part).to(device), batch)
    norms = expected.norm(dim=1)
    assert norms[1] == 0  # the sentence without words
    assert (norms[[0, 2, 3, 4, 5]] > 1e-3).all()


@pytest.mark.parametrize("part", ["full", "lora"])
def test_awd_lstm_with_every_dropout(part: str, device: str) -> None:
    dropouts = {f"dropout_{name}": 0.3 for name in ("embedding", "input", "hidden", "weight", "output")}
    model = prepare(tiny("awd_lstm", num_layers=3, **dropouts), part).train().to(device)
    batch = TASK.collate(sentences())
    first = assert_exact(model, batch, seed=5)
    assert (first - assert_exact(model, batch, seed=6)).norm() > 1e-2  # the masks were on


def test_gpt2_with_dropout(device: str) -> None:
    model = prepare(tiny(dropout_embedding=0.2, dropout_hidden=0.2, dropout_output=0.2)).train().to(device)
    assert_exact(model, TASK.collate(sentences()))


@pytest.mark.parametrize("size", [1, 5000, 1 << 21])
def test_rows_are_formed_a_few_at_a_time(size: int, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = prepare(tiny()).to(device)
    monkeypatch.setitem(module_under_test._CHUNK, device, size)
    found = sentence_gradients(model, FlatParameters(model), TASK, TASK.collate(sentences()).to(device))
    num = [len(rows) for _, rows in found.chunks()]
    assert sum(num) == len(LENGTHS)
    assert [x for x, _ in found.chunks(2)] == [0, 1][: 1 if max(num) > 1 else 2]
    assert_exact(model, TASK.collate(sentences()))


def test_a_word_said_twice_is_added_up_before_it_is_written() -> None:
    """Adding in parallel has no fixed order."""
    ids, rows = torch.tensor([[3, 1, 3, 3]]), torch.arange(8.0).view(1, 4, 2)
    factors = module_under_test.Factors(torch.Size((5, 2)), ids=[ids], rows=[rows])
    factors.join()
    assert factors.rows[0].tolist() == [[[10.0, 13.0], [2.0, 3.0], [0.0, 0.0], [0.0, 0.0]]]


def test_filling_a_batch_up_changes_nothing() -> None:
    model = prepare(tiny())
    params, rows = FlatParameters(model), sentences()
    whole = sentence_gradients(model, params, TASK, TASK.collate(rows))
    filled = sentence_gradients(model, params, TASK, TASK.collate(rows, (9, 8)))
    torch.testing.assert_close(formed(filled)[: len(rows)], formed(whole), rtol=1e-9, atol=1e-14)
    assert not formed(filled)[len(rows) :].any()


@pytest.mark.parametrize("network", ["gpt2", "awd_lstm", "llama"])
def test_nan_stays_in_its_sentence(network: str, device: str) -> None:
    """Word 22 has a NaN embedding: only the sentence that holds it is lost."""
    model = prepare(tiny_llama(tied=False) if network == "llama" else tiny(network, tie_embeddings=False)).to(device)
    rows = [row[row != 22] for row in sentences()]
    clean = sentence_gradients(model, FlatParameters(model), TASK, TASK.collate(rows).to(device))
    embedding = model.embedding if network == "awd_lstm" else model.get_input_embeddings()  # type: ignore[operator]
    with torch.no_grad():
        embedding.weight[22] = torch.nan  # type: ignore[index, operator, union-attr]
    rows[3] = rows[3].copy()
    rows[3][1] = 22
    found = sentence_gradients(model, FlatParameters(model), TASK, TASK.collate(rows).to(device))
    others = [0, 1, 2, 4, 5]
    assert not found.norms()[3].isfinite()
    torch.testing.assert_close(formed(found)[others], formed(clean)[others], rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("network", ["gpt2", "awd_lstm", "llama"])
@pytest.mark.parametrize("part", ["full", "lora"])
def test_bf16_autocast(network: str, part: str, device: str) -> None:
    model = prepare(tiny_llama() if network == "llama" else tiny(network), part).float().to(device)
    params, batch = FlatParameters(model), TASK.collate(sentences()).to(device)
    exact = sentence_gradients(model, params, TASK, batch)
    rounded = sentence_gradients(model, params, TASK, batch, autocast_dtype=torch.bfloat16)
    assert formed(rounded).dtype == rounded.losses.dtype == torch.float32
    torch.testing.assert_close(rounded.norms(), exact.norms(), rtol=0.04, atol=1e-6)
    assert not torch.equal(rounded.norms(), exact.norms())  # it did run in bf16


def test_leaves_model_and_generator_alone() -> None:
    model = prepare(tiny())
    state, before = torch.get_rng_state(), FlatParameters(model).get()
    sentence_gradients(model, FlatParameters(model), TASK, TASK.collate(sentences())).norms()
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(FlatParameters(model).get(), before)
    assert all(p.grad is None for p in model.parameters())
    assert not any(m._forward_hooks for m in model.modules())


class Toy(nn.Module):
    """Logits of a bag of known and unknown layers, to be broken in one place per test."""

    def __init__(self, kind: str):
        super().__init__()
        self.kind = kind
        self.embed = nn.Embedding(VOCABULARY, 6)
        self.mix = nn.Linear(6, 6)
        self.position = nn.Embedding(16, 6)
        self.grid = nn.LayerNorm((2, 3))
        self.norm = nn.BatchNorm1d(6, track_running_stats=False)
        self.head = nn.Linear(6, VOCABULARY)

    def forward(self, input_ids: Tensor, position_ids: Tensor, use_cache: bool = False) -> object:
        x = self.mix(self.embed(input_ids))
        if self.kind == "shared positions":
            x = x + self.position(position_ids[:1])
        elif self.kind == "in place":
            x = x.relu_()
        elif self.kind == "input in place":
            x = self.mix(x) + x.relu_()
        elif self.kind == "bypass of a known one":
            x = self.position(position_ids) + self.head(x.detach() @ self.mix.weight) @ self.head.weight
        elif self.kind == "bypass":
            x = x @ self.mix.weight + self.grid.weight.flatten()
        elif self.kind == "batch norm":
            x = self.norm(x.mT).mT
        else:  # an unknown module, and a known one called twice
            x = self.mix(self.grid(x.unflatten(2, (2, 3))).flatten(2))
        return type("Output", (), {"logits": self.head(x)})


def toy(kind: str) -> nn.Module:
    return spread(Toy(kind)).double()


def test_an_embeddings_padding_has_no_gradient() -> None:
    model = toy("unknown")
    model.embed.padding_idx = 12  # type: ignore[union-attr]
    batch = TASK.collate(sentences())
    assert (batch.input_ids == 12).any()
    assert_exact(model, batch)


def test_unknown_layers_and_repeated_calls() -> None:
    model = toy("unknown")
    assert_exact(model, TASK.collate(sentences()))
    check_exact(model, FlatParameters(model), TASK, TASK.collate(sentences()))


@pytest.mark.parametrize(
    ("kind", "field"),
    [
        ("shared positions", "position"),
        ("in place", "mix"),
        ("input in place", "mix"),
        ("bypass", "grid.weight"),
        ("bypass of a known one", "head"),
    ],
)
def test_refuses_what_it_cannot_know(kind: str, field: str) -> None:
    model = toy(kind)
    with pytest.raises(InputError) as error:
        sentence_gradients(model, FlatParameters(model), TASK, TASK.collate(sentences()))
    assert error.value.field == field


@pytest.mark.parametrize("kind", ["batch norm", "bypass"])
def test_check_exact_finds_mixed_sentences(kind: str) -> None:
    model = toy(kind)
    if kind == "bypass":
        model.grid.requires_grad_(False)  # type: ignore[union-attr]
    else:
        model.norm.requires_grad_(False)  # type: ignore[union-attr]
    with pytest.raises(InputError, match="not exact"):
        check_exact(model, FlatParameters(model), TASK, TASK.collate(sentences()))


@pytest.mark.parametrize("network", ["gpt2", "llama", "awd_lstm"])
def test_of_adapters_nothing_is_kept_until_the_end_but_their_gradients(
    network: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Inputs, outputs and gradients of every layer, as long as the sentence, took more than half of a pass."""
    model = prepare(tiny_llama() if network == "llama" else tiny(network), "lora")
    params, batch, kept = FlatParameters(model), TASK.collate(sentences()), []
    file, ends = recorder_module.Recorder._file, recorder_module.Recorder.factors

    def filed(recorder: object, call: object) -> None:
        file(recorder, call)
        assert (call.args, call.kwargs, call.gradient) == ((), {}, None)  # type: ignore[attr-defined]
        kept.extend((piece.of, call.path) for piece in call.pieces)  # type: ignore[attr-defined]

    def ended(recorder: object, losses: Tensor) -> dict[str, Factors]:
        assert all(call.pieces for call in recorder.calls)  # type: ignore[attr-defined]
        assert not any(call.changes.untyped_storage().nbytes() for call in recorder.calls)  # type: ignore[attr-defined]
        return ends(recorder, losses)

    monkeypatch.setattr(recorder_module.Recorder, "_file", filed)
    monkeypatch.setattr(recorder_module.Recorder, "factors", ended)
    sentence_gradients(model, params, TASK, batch)
    factored = {path for of, path in kept if of != "full"}
    assert all("recurrent" in path for path in factored)  # one position at a time
    assert bool(factored) == (network == "awd_lstm")


@pytest.mark.parametrize("part", ["full", "lora"])
def test_a_pass_leaves_nothing_for_the_garbage_collector(part: str) -> None:
    """It is seldom asked: memory of passes before would pile up."""

    def live() -> int:
        return sum(issubclass(type(each), Tensor) for each in gc.get_objects())

    model = prepare(tiny_llama(), part)
    params, batch = FlatParameters(model), TASK.collate(sentences())
    sentence_gradients(model, params, TASK, batch)
    gc.collect()
    gc.disable()
    try:
        before = live()
        sentence_gradients(model, params, TASK, batch)
        assert live() == before
    finally:
        gc.enable()


def test_empty_batch() -> None:
    params = FlatParameters(tiny())
    found = sentence_gradients(tiny(), params, TASK, TASK.collate([]))
    assert found.losses.shape == found.norms().shape == (0,)


@pytest.mark.parametrize("part", ["full", "lora"])
def test_real_model(real_models: Path, part: str, device: str) -> None:
    config = ModelConfig(architecture="pretrained", path=str(real_models / "stories260k" / "hf"), trainable=part)  # type: ignore[arg-type]
    model = (
        select_trainable(build_model(config, vocab_size=512, bos_id=1, eos_id=1, seed=0), config, seed=0)
        .double()
        .to(device)
    )
    params, task = FlatParameters(model), NextWord(bos_id=1, eos_id=1, pad_id=0, max_length=16)
    batch = task.collate(sentences((9, 0, 15, 30), vocab_size=512)).to(device)
    expected = reference_gradients(model, params, task, batch)
    found = sentence_gradients(model, params, task, batch)
    # LlamaRMSNorm and the rotary tables compute in float32 even here.
    torch.testing.assert_close(found.norms(), expected.norm(dim=1), rtol=1e-4, atol=1e-6)
    assert (formed(found) - expected).norm() < 1e-4 * expected.norm()


@pytest.mark.parametrize("sizes", [(2, 33), (33, 2), (65, 1), (2, 33, 3)])
def test_equal_sentences_have_equal_bits_wherever_they_stand(sizes: tuple[int, ...], device: str) -> None:
    """Products that are written to rows at odd places are added up in another order, by MKL."""
    model = nn.Sequential(nn.Linear(sizes[1], sizes[0], bias=False), nn.Linear(1, sizes[-1], bias=False)).to(device)
    params, made_up = FlatParameters(model), torch.Generator().manual_seed(0)
    for _ in range(40):
        left, right = (torch.randn(1, 12, n, generator=made_up).repeat(9, 1, 1).to(device) for n in sizes[:2])
        factors = Factors(params.shapes[0], left=[left], right=[right])
        gradients = SentenceGradients(torch.zeros(9, device=device), params, {"0.weight": factors})
        for _, rows in gradients.chunks():
            assert torch.equal(rows, rows[:1].expand_as(rows))
