from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import math
import struct
from pathlib import Path

import numpy as np
import peft
import pytest
import torch
from torch import nn
from transformers import AutoModelForCausalLM, Gemma2Config, GPTJConfig, LlamaConfig, LlamaForCausalLM, MambaConfig

from tests.models.helpers import TASK, VOCABULARY, sentences, tiny, tiny_llama
from uedp_ray.config import ModelConfig
from uedp_ray.corpus.vocabulary import Vocabulary
from uedp_ray.errors import InputError
from uedp_ray.models.build import build_model, check_start_fits
from uedp_ray.models.parameters import FlatParameters
from uedp_ray.models.saved import load_model, save_model
from uedp_ray.models.trainable import select_trainable
from uedp_ray.tasks.next_word import NextWord

SMALL = ModelConfig(max_length=8, num_layers=1, hidden_size=12, num_heads=2, embedding_size=6)


def build(config: ModelConfig = SMALL, seed: int = 0, **changes: object) -> nn.Module:
    return build_model(dataclasses.replace(config, **changes), vocab_size=VOCABULARY, bos_id=0, eos_id=0, seed=seed)  # type: ignore[arg-type]


def loss(model: nn.Module) -> torch.Tensor:
    return TASK.losses(model.eval(), TASK.collate(sentences())).detach()


@pytest.mark.parametrize("architecture", ["gpt2", "awd_lstm"])
def test_seed_decides_and_the_global_generator_is_left_alone(architecture: str) -> None:
    state = torch.get_rng_state()
    first, same, other = (FlatParameters(build(architecture=architecture, seed=s)).get() for s in (0, 0, 1))
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(first, same)
    assert not torch.equal(first, other)


def test_gpt2_reads_the_config() -> None:
    model = build(dropout_embedding=0.1, dropout_hidden=0.2, dropout_output=0.3, num_layers=3)
    config = model.config
    assert (config.n_positions, config.n_embd, config.n_layer, config.n_head) == (8, 12, 3, 2)  # type: ignore[union-attr]
    assert (config.embd_pdrop, config.attn_pdrop, config.resid_pdrop) == (0.1, 0.2, 0.3)  # type: ignore[union-attr]
    ends = build_model(SMALL, vocab_size=VOCABULARY, bos_id=2, eos_id=1, seed=0).config
    assert (ends.bos_token_id, ends.eos_token_id) == (2, 1)  # type: ignore[union-attr]
    assert build(init_range=0.5).transformer.wte.weight.std() > 10 * model.transformer.wte.weight.std()  # type: ignore[union-attr]
    tied, untied = (FlatParameters(build(tie_embeddings=tie)).num for tie in (True, False))
    assert untied - tied == VOCABULARY * 12


@pytest.mark.parametrize("architecture", ["gpt2", "awd_lstm", "awd_lstm untied"])
def test_save_and_load(architecture: str, tmp_path: Path) -> None:
    model = tiny(architecture.split()[0], tie_embeddings="untied" not in architecture)
    save_model(model, tmp_path / "model")
    loaded = load_model(tmp_path / "model")
    assert type(loaded) is type(model)
    torch.testing.assert_close(loss(loaded), loss(model), rtol=0, atol=0)
    assert FlatParameters(loaded).num == FlatParameters(model).num  # still tied
    assert {p.suffix for p in (tmp_path / "model").iterdir()} == {".json", ".safetensors"}
    assert len({p.stat().st_mode for p in (tmp_path / "model").iterdir()}) == 1, (
        "whoever may read one file may read all"
    )


@pytest.mark.parametrize("network", ["gpt2", "llama", "awd_lstm"])
def test_lora_is_merged_on_saving(network: str, tmp_path: Path) -> None:
    plain = tiny_llama() if network == "llama" else tiny(network)
    original = loss(plain)
    model = select_trainable(plain, ModelConfig(trainable="lora"), seed=0)
    params = FlatParameters(model)
    params.set(params.get() + 0.05)
    adapted = loss(model)
    assert (adapted - original).abs().max() > 1e-3
    save_model(model, tmp_path)
    loaded = load_model(tmp_path) if network == "awd_lstm" else AutoModelForCausalLM.from_pretrained(tmp_path)
    assert not any("lora" in name for name, _ in loaded.named_parameters())
    torch.testing.assert_close(loss(loaded), adapted, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(loss(model), adapted, rtol=0, atol=0)  # training can go on


def test_merging_copies_no_more_than_what_adapters_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy of a large network, on the GPU that trained it, would end the run when all of its budget is spent."""
    model = select_trainable(tiny_llama(), ModelConfig(trainable="lora"), seed=0)
    before, written = FlatParameters(model).get(), []
    of_model = {each.data_ptr(): name for name, each in model.named_parameters() if "lora" not in name}
    monkeypatch.setattr(LlamaForCausalLM, "save_pretrained", lambda merged, path: written.append(merged))
    save_model(model, tmp_path)
    shared = {name for name, each in written[0].named_parameters() if each.data_ptr() in of_model}
    assert shared == {name for name, _ in tiny_llama().named_parameters() if "proj" not in name}
    assert torch.equal(FlatParameters(model).get(), before)


def test_pretrained_from_a_folder_runs_without_its_dropout(tmp_path: Path) -> None:
    saved = tiny(dropout_output=0.5)
    save_model(saved, tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["resid_pdrop"] == 0.5
    model = build(architecture="pretrained", path=str(tmp_path))
    assert torch.equal(loss(model), loss(saved))
    batch = TASK.collate(sentences())
    torch.testing.assert_close(TASK.losses(model.train(), batch).detach(), loss(saved), rtol=0, atol=0)


def test_pretrained_must_fit(tmp_path: Path) -> None:
    save_model(tiny(), tmp_path / "model")
    config = dataclasses.replace(SMALL, architecture="pretrained", path=str(tmp_path / "model"))
    with pytest.raises(InputError, match="use the tokenizer it came with"):
        build_model(config, vocab_size=VOCABULARY + 1, bos_id=0, eos_id=0, seed=0)
    with pytest.raises(InputError, match=r"model\.max_length"):
        build(config, max_length=9)
    for bad in (tmp_path, tmp_path / "none"):
        with pytest.raises(InputError, match=r"model\.path"):
            build(config, path=str(bad))
        with pytest.raises(InputError, match="no model can be read"):
            load_model(bad)


def test_a_model_whose_attention_is_its_own_loads(tmp_path: Path) -> None:
    """Mamba has none, Gemma 2 caps its logits: an attention asked of every model would refuse both."""
    small = {"vocab_size": VOCABULARY, "hidden_size": 16, "num_hidden_layers": 1}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8, "intermediate_size": 16}
    for name, hub in {"mamba": MambaConfig(**small, state_size=4), "gemma": Gemma2Config(**small, **heads)}.items():
        saved = AutoModelForCausalLM.from_config(hub).eval()
        save_model(saved, tmp_path / name)
        model = build(architecture="pretrained", path=str(tmp_path / name))
        assert torch.equal(loss(model), loss(saved)), name
        assert torch.equal(loss(load_model(tmp_path / name)), loss(saved)), name


def test_what_transformers_says_of_a_folder_is_passed_on(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "of my own"}')
    with pytest.raises(InputError, match=r"model\.path = .*`of my own`"):
        build(architecture="pretrained", path=str(tmp_path))


def test_a_model_with_an_adapter_beside_it_is_refused_and_nobody_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """transformers loads both, and then saves the adapter alone, for a base of the name that its settings give."""
    monkeypatch.setattr("socket.socket.connect", lambda *_: pytest.fail("somebody was asked"))
    save_model(tiny_llama(), tmp_path)
    peft.get_peft_model(tiny_llama(), peft.LoraConfig(r=2, task_type="CAUSAL_LM")).save_pretrained(tmp_path)  # type: ignore[arg-type]
    adapter = tmp_path / "adapter_config.json"
    adapter.write_text(json.dumps(json.loads(adapter.read_text()) | {"base_model_name_or_path": "someone/base"}))
    for reads in (
        lambda: build(architecture="pretrained", path=str(tmp_path)),
        lambda: check_start_fits(dataclasses.replace(SMALL, warm_start=str(tmp_path)), VOCABULARY),
        lambda: load_model(tmp_path),
    ):
        with pytest.raises(InputError, match=r"adapter_config\.json adds an adapter.*merge_and_unload"):
            reads()


def test_what_cannot_be_saved_is_not_trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise ValueError("no such setting\nand more")

    save_model(tiny_llama(), tmp_path)
    monkeypatch.setattr("transformers.GenerationConfig.save_pretrained", refuse)
    with pytest.raises(InputError, match=r"model\.path = .*but not save it \(no such setting\): fix"):
        build(architecture="pretrained", path=str(tmp_path))


@pytest.mark.parametrize("model_type", ["llama", "of my own"])
def test_code_beside_a_model_is_not_run_and_nobody_is_asked(
    model_type: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, ran = [], tmp_path / "ran"
    monkeypatch.setattr("builtins.input", lambda *args: asked.append(args) or "y")
    save_model(tiny_llama(), tmp_path / "model")
    settings = json.loads((tmp_path / "model" / "config.json").read_text())
    code = {"AutoConfig": "mine.Config", "AutoModelForCausalLM": "mine.Net", "AutoTokenizer": ["mine.Words", None]}
    settings |= {"auto_map": code, "model_type": model_type}
    (tmp_path / "model" / "config.json").write_text(json.dumps(settings))
    (tmp_path / "model" / "tokenizer_config.json").write_text(json.dumps({"auto_map": code}))
    (tmp_path / "model" / "mine.py").write_text(f"open({str(ran)!r}, 'w')")
    for reads in (
        lambda: build(architecture="pretrained", path=str(tmp_path / "model")),
        lambda: load_model(tmp_path / "model"),
        lambda: Vocabulary.load(tmp_path / "model"),
    ):
        with contextlib.suppress(InputError):
            reads()
    assert (asked, ran.exists()) == ([], False)


def test_embeddings_are_replaced_for_words_only_when_asked(tmp_path: Path) -> None:
    save_model(tiny_llama(), tmp_path)
    own = build(architecture="pretrained", path=str(tmp_path))
    config = dataclasses.replace(SMALL, architecture="pretrained", path=str(tmp_path))
    for size in (VOCABULARY // 2, VOCABULARY * 2):
        model = build_model(config, vocab_size=size, bos_id=2, eos_id=1, seed=0, replace_embeddings=True)
        rows, old = model.get_input_embeddings().weight, own.get_input_embeddings().weight  # type: ignore[operator]
        assert len(rows) == size
        assert not (rows[: size // 2] == old[: size // 2]).any()
        assert (model.config.bos_token_id, model.config.eos_token_id) == (2, 1)  # type: ignore[union-attr]
        save_model(model, tmp_path / "again")
        assert len(load_model(tmp_path / "again").get_input_embeddings().weight) == size  # type: ignore[operator]


@pytest.mark.parametrize("architecture", ["gpt2", "awd_lstm"])
def test_warm_start(architecture: str, tmp_path: Path) -> None:
    first = build(architecture=architecture, seed=7)
    save_model(first, tmp_path)
    second = build(architecture=architecture, seed=8, warm_start=str(tmp_path), dropout_output=0.1)
    assert torch.equal(FlatParameters(first).get(), FlatParameters(second).get())
    with pytest.raises(InputError, match=r"model\.warm_start"):
        build(architecture=architecture, warm_start=str(tmp_path), num_layers=2)


def test_whether_a_warm_start_fits_is_told_from_its_settings(tmp_path: Path) -> None:
    for name, model in {"gpt2": tiny(), "awd_lstm": tiny("awd_lstm"), "llama": tiny_llama()}.items():
        save_model(model, tmp_path / name)
    larger = LlamaConfig(**{**tiny_llama().config.to_dict(), "intermediate_size": 24})  # type: ignore[operator, union-attr]
    larger.save_pretrained(tmp_path / "larger")

    def fits(start: str, size: int = VOCABULARY, **changes: object) -> None:
        shape = {"max_length": 8, "num_layers": 2, "hidden_size": 12, "num_heads": 2, "embedding_size": 6}
        shape |= {"architecture": start, "warm_start": str(tmp_path / start), **changes}
        config = ModelConfig(**shape)  # type: ignore[arg-type]
        check_start_fits(config, size, replace_embeddings=size != VOCABULARY and start == "llama")

    for start in ("gpt2", "awd_lstm"):
        fits(start)
        for wrong in ({"num_layers": 1}, {"hidden_size": 24}, {"tie_embeddings": False}):
            with pytest.raises(InputError, match=f"model.{next(iter(wrong))} = .* model.warm_start has"):
                fits(start, **wrong)
        with pytest.raises(InputError, match=r"model\.warm_start = .*shapes differ"):
            fits(start, VOCABULARY + 1)
    fits("awd_lstm", max_length=99, num_heads=3)
    llama = {"architecture": "pretrained", "path": str(tmp_path / "llama")}
    fits("llama", **llama, num_layers=7)
    with pytest.raises(InputError, match=r"model\.warm_start = .*shapes differ"):
        fits("larger", **llama)
    with pytest.raises(InputError, match=r"model\.warm_start = .*shapes differ"):
        fits("llama", VOCABULARY + 1, **llama)
    with pytest.raises(InputError, match=r"model\.path = .*is llama, but model.warm_start is gpt2"):
        fits("gpt2", **llama)
    (tmp_path / "gpt2" / "config.json").write_text("{}")
    with pytest.raises(InputError, match=r"model\.warm_start = .*no model can be read"):
        fits("gpt2")


def test_a_damaged_file_of_a_warm_start_is_named_before_any_text_is_read(tmp_path: Path) -> None:
    save_model(tiny(), tmp_path)
    config = dataclasses.replace(SMALL, num_layers=2, warm_start=str(tmp_path))
    check_start_fits(config, VOCABULARY)
    for name, content in {
        "generation_config.json": b'{"max_new_tokens": "x"}',
        "config.json": b'{"model_type": "gpt2", "n_layer": "x"}',
        "model.safetensors": (tmp_path / "model.safetensors").read_bytes()[:-1],
    }.items():
        whole = (tmp_path / name).read_bytes()
        (tmp_path / name).write_bytes(content)
        for use in (
            lambda: check_start_fits(config, VOCABULARY),
            lambda: build(config),
            lambda: build(architecture="pretrained", path=str(tmp_path)),
        ):
            with pytest.raises(InputError, match=rf"model\.(warm_start|path) = .*\({name} is damaged|Valid") as raised:
                use()
            assert "\n" not in str(raised.value)
        (tmp_path / name).write_bytes(whole)
    check_start_fits(config, VOCABULARY)


def test_a_table_of_positions_that_no_memory_holds_is_refused(tmp_path: Path) -> None:
    sizes = {"n_positions": 64, "n_embd": 16, "n_layer": 1, "n_head": 2, "rotary_dim": 8}
    AutoModelForCausalLM.from_config(GPTJConfig(vocab_size=VOCABULARY, **sizes)).save_pretrained(tmp_path)
    settings = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(settings | {"n_positions": 10**8}))  # 3.2 GB that no file holds
    with pytest.raises(InputError, match=r"config.json does not match the weights"):
        build(architecture="pretrained", path=str(tmp_path))


def test_more_layers_than_are_stored_are_refused_before_they_are_built(tmp_path: Path, monkeypatch) -> None:
    save_model(tiny(), tmp_path)
    settings = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(settings | {"n_layer": 1000}))
    monkeypatch.setattr("uedp_ray.models.saved.size_of", lambda hub: pytest.fail("they were built"))
    with pytest.raises(InputError, match=r"config.json does not match the weights"):
        build(architecture="pretrained", path=str(tmp_path))


class Pieces:
    """Reads a llama2.c tokenizer file (int32 longest piece; per piece float32 score, int32 length, bytes)."""

    def __init__(self, path: Path):
        data, offset = path.read_bytes(), 4
        self.scores: dict[bytes, tuple[float, int]] = {}
        while offset < len(data):
            score, length = struct.unpack_from("<fi", data, offset)
            self.scores[data[offset + 8 : offset + 8 + length]] = score, len(self.scores)
            offset += 8 + length

    def encode(self, text: str) -> np.ndarray:
        """Joins the neighbours whose union scores best until none is a piece."""
        pieces = [character.encode() for character in " " + text]
        while True:
            pairs = [a + b for a, b in itertools.pairwise(pieces)]
            joined = [(self.scores[pair][0], -i) for i, pair in enumerate(pairs) if pair in self.scores]
            if not joined:
                return np.array([self.scores[piece][1] for piece in pieces])
            i = -max(joined)[1]
            pieces[i : i + 2] = [pairs[i]]


def test_real_model_prefers_stories(real_models: Path) -> None:
    folder = real_models / "stories260k"
    pieces = Pieces(folder / "tok512.bin")
    assert len(pieces.scores) == 512
    config = ModelConfig(architecture="pretrained", path=str(folder / "hf"))
    model = build_model(config, vocab_size=512, bos_id=1, eos_id=1, seed=0)
    story = "Once upon a time there was a little dog. He liked to play in the park with his friends."
    words = story.split()
    shuffled = " ".join(words[i] for i in np.random.default_rng(0).permutation(len(words)))
    task = NextWord(bos_id=1, eos_id=1, pad_id=0, max_length=128)  # token 1 opens a story in this model

    def perplexity(network: nn.Module, text: str) -> float:
        total, count = task.sums(network, task.collate([pieces.encode(text)]))
        return math.exp(total / count)

    untrained = AutoModelForCausalLM.from_config(model.config)
    assert perplexity(model, story) < 12
    assert perplexity(model, shuffled) > 3 * perplexity(model, story)
    assert perplexity(untrained, story) > 20 * perplexity(model, story)
