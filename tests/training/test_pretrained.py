"""A pretrained model keeps the tokenizer it came with: through pre-training, private training and prediction."""

from __future__ import annotations

import shutil
import struct

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, normalizers
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast

from tests.models.helpers import tiny_llama
from tests.training.runs import run_config
from tests.training.test_card import run_example
from tests.training.test_run import hand_perplexity
from uedp_ray import export
from uedp_ray.corpus.vocabulary import Vocabulary
from uedp_ray.errors import InputError
from uedp_ray.models.saved import save_model
from uedp_ray.training.checks import check_model
from uedp_ray.training.driver import RunDriver
from uedp_ray.training.evaluate import public_row
from uedp_ray.training.host import train
from uedp_ray.training.predict import predict
from uedp_ray.training.prepared import Prepared
from uedp_ray.training.pretrain import pretrain
from uedp_ray.training.rundir import RunDir

PUBLIC = {"text": [{"format": "synthetic", "num_users": 3, "part": "public"}], "num_steps": 2, "batch_size": 4}


def llama_tokenizer(pieces):
    """The byte-pair tokenizer of a llama2.c vocabulary: pieces in order, the earlier merged first."""
    known = {piece: number for number, piece in enumerate(pieces)}
    merges = [
        (piece[:i], piece[i:])
        for piece in pieces
        for i in range(1, len(piece))
        if piece[:i] in known and piece[i:] in known
    ]
    tokenizer = Tokenizer(models.BPE(known, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>", bos_token="<s>", eos_token="</s>")


def llama2c_pieces(path):
    data, offset, pieces = path.read_bytes(), 4, []
    while offset < len(data):
        (length,) = struct.unpack_from("<i", data, offset + 4)
        pieces.append(data[offset + 8 : offset + 8 + length].decode(errors="replace").replace(" ", "▁"))
        offset += 8 + length
    return ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *pieces[259:]]


@pytest.fixture
def stories(real_models, tmp_path):
    """The real model of children's stories, with its tokenizer beside it."""
    shutil.copytree(real_models / "stories260k" / "hf", tmp_path / "stories")
    tokenizer = llama_tokenizer(llama2c_pieces(real_models / "stories260k" / "tok512.bin"))
    tokenizer.save_pretrained(tmp_path / "stories")
    return tmp_path / "stories"


@pytest.fixture
def small(tmp_path):
    """A random model of 23 tokens, with its tokenizer beside it."""
    save_model(tiny_llama(), tmp_path / "small")
    llama_tokenizer(["<unk>", "<s>", "</s>", "▁", *"abcdefghilmnorstuwy"]).save_pretrained(tmp_path / "small")
    return tmp_path / "small"


@pytest.mark.parametrize("folder", ["small", "stories"])
def test_it_keeps_its_tokenizer_from_pretraining_to_prediction(folder, request, corpora, tmp_path, monkeypatch, capsys):
    path = request.getfixturevalue(folder)
    own = AutoTokenizer.from_pretrained(path).backend_tokenizer.to_str()
    sections = {"model": {"architecture": "pretrained", "path": str(path), "max_length": 12}, "vocabulary": {}}
    config = run_config(corpora, training={"num_rounds": 1}, pretrain=PUBLIC, **sections)
    direct = train(config, tmp_path / "direct", workers=0)
    pretrain(config, tmp_path / "public")
    warm = sections | {"model": sections["model"] | {"warm_start": str(tmp_path / "public" / "model")}}
    started = train(run_config(corpora, training={"num_rounds": 1}, **warm), tmp_path / "warm", workers=0)
    tokenizer = AutoTokenizer.from_pretrained(path)

    def by_hand(model, begin):
        network = AutoModelForCausalLM.from_pretrained(model).eval()
        return hand_perplexity(network, tokenizer, corpora, 12, tokenizer.convert_tokens_to_ids(begin))

    assert direct["initial_perplexity"] == pytest.approx(by_hand(path, "<s>"), rel=1e-5)
    assert direct["initial_perplexity"] != pytest.approx(by_hand(path, "</s>"), rel=1e-2)
    assert direct["perplexity"] == pytest.approx(by_hand(tmp_path / "direct" / "model", "<s>"), rel=1e-5)
    assert started["initial_perplexity"] == pytest.approx(by_hand(tmp_path / "public" / "model", "<s>"), rel=1e-5)
    for out in ("direct", "public", "warm"):
        model = tmp_path / out / "model"
        assert AutoTokenizer.from_pretrained(model).backend_tokenizer.to_str() == own, out
        rows = AutoModelForCausalLM.from_pretrained(model).get_input_embeddings().weight
        assert len(rows) == len(AutoTokenizer.from_pretrained(path))
    row = public_row("public-only", run_config(corpora, **warm), Vocabulary.load(tmp_path / "public" / "model"))
    assert row["perplexity"] == pytest.approx(started["initial_perplexity"], rel=1e-5)
    out = tmp_path / "out"
    export(tmp_path / "warm", out)
    card = (out / "README.md").read_text()
    assert "Sentences begin with `<s>` and end with `</s>`; " in card
    assert "| Base model | not published |" in card
    assert "base_model" not in card
    limit = AutoModelForCausalLM.from_pretrained(path).config.max_position_embeddings
    assert AutoTokenizer.from_pretrained(out / "model").model_max_length == limit
    with torch.random.fork_rng():
        torch.manual_seed(0)
        _, variables = run_example(out, monkeypatch, capsys, "once upon a time " * 99)
    assert variables["written"][0, 0] == tokenizer.bos_token_id
    assert variables["prompt"].shape[1] < variables["written"].shape[1] <= limit
    text = "Once upon a time there was a little"
    (found,) = predict(tmp_path / "warm", [text], top=5)
    assert predict(out, [text]) == [found]
    assert len(found["next"]) == 5
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "warm" / "model").eval()
    ids = tokenizer(text, add_special_tokens=False)["input_ids"][1 - model.config.max_position_embeddings :]
    with torch.no_grad():
        best = model(torch.tensor([[1, *ids]])).logits[0, -1].softmax(-1).topk(5)
    assert [each["probability"] for each in found["next"]] == pytest.approx(best.values.tolist(), abs=1e-5)
    if folder == "stories":
        (before,) = predict(path, [text], top=1)
        assert before["next"][0]["token"].strip() in ("girl", "boy", "dog", "c", "b", "d", "g"), (
            "the tokenizer of the fixture is the model's"
        )


@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_a_base_that_is_held_in_bfloat16_trains_and_is_handed_on_whole(precision, small, corpora, tmp_path):
    """It is pre-trained and read again in float32, and scores what the model that is written scores."""
    model = {"architecture": "pretrained", "path": str(small), "max_length": 12, "trainable": "lora", "lora_rank": 2}
    model |= {"base_dtype": "bf16"}
    training = {"num_rounds": 2, "precision": precision}
    config = run_config(corpora, model=model, training=training, pretrain=PUBLIC, vocabulary={})
    pretrain(config, tmp_path / "public")
    warm = model | {"warm_start": str(tmp_path / "public" / "model")}
    result = train(run_config(corpora, model=warm, training=training, vocabulary={}), tmp_path / "warm", workers=0)
    export(tmp_path / "warm", tmp_path / "out")
    for folder in (tmp_path / "public", tmp_path / "warm", tmp_path / "out"):
        written = AutoModelForCausalLM.from_pretrained(folder / "model")
        assert {each.dtype for each in written.parameters()} == {torch.float32}
    tokenizer = AutoTokenizer.from_pretrained(small)
    by_hand = hand_perplexity(written.eval(), tokenizer, corpora, 12, tokenizer.convert_tokens_to_ids("<s>"))
    assert result["perplexity"] == pytest.approx(by_hand, rel=1e-5 if precision == "float32" else 0.02)
    assert predict(tmp_path / "warm", ["once"]) == predict(tmp_path / "out", ["once"])


@pytest.mark.parametrize(
    ("settings", "bytes_each", "remedy"),
    [
        ({"trainable": "full"}, 12, "choose a smaller model$"),
        ({"trainable": "lora"}, 4, "choose a smaller model, or set model.base_dtype: bf16$"),
        ({"trainable": "lora", "base_dtype": "bf16"}, 2, "choose a smaller model$"),
    ],
)
def test_a_model_beyond_this_machine_is_refused_before_it_is_read(
    small, corpora, monkeypatch, settings, bytes_each, remedy
):
    model = {"architecture": "pretrained", "path": str(small), "max_length": 12, **settings}
    config = run_config(corpora, model=model, vocabulary={})
    numbers = sum(each.numel() for each in AutoModelForCausalLM.from_pretrained(small).parameters())
    of_machine = {"SC_PAGE_SIZE": 1, "SC_PHYS_PAGES": numbers * bytes_each}
    monkeypatch.setattr("os.sysconf", of_machine.__getitem__)
    check_model(config)
    of_machine["SC_PHYS_PAGES"] -= 1
    with pytest.raises(InputError, match=f"model.path = .*its parameters would take .*{remedy}"):
        check_model(config)
    monkeypatch.setenv("RAY_ADDRESS", "auto")  # it is read elsewhere
    check_model(config)


def test_without_a_tokenizer_beside_it_one_is_asked_for(small, corpora, tmp_path):
    for file in small.glob("tokenizer*"):
        file.unlink()
    model = {"architecture": "pretrained", "path": str(small), "max_length": 12}
    with pytest.raises(InputError, match=r"model.path = .*no tokenizer beside it: .*vocabulary.path"):
        train(run_config(corpora, model=model, vocabulary={}), tmp_path / "run", workers=0)


def test_the_speed_of_made_up_text_is_in_words(small, corpora, tmp_path, monkeypatch):
    """As declared_num_tokens, by which plan multiplies it: pieces would promise half of the time."""
    begin, counted = RunDriver.resume, []
    monkeypatch.setattr(RunDriver, "resume", lambda driver: counted.append(driver.num_tokens) or begin(driver))
    pretrained = {"architecture": "pretrained", "path": str(small), "max_length": 12}  # its pieces have an unknown one
    cut, of = {"kind": "public-subwords", "max_size": 300}, {"source": {"format": "synthetic", "num_users": 5}}
    pretrain(run_config(corpora, vocabulary=cut, pretrain=PUBLIC), tmp_path / "public")
    warm = {"warm_start": str(tmp_path / "public" / "model")}  # a run's file names no vocabulary then
    tags = {"kind": "tag_entities", "labels": ["person", "organization"]}  # as many as tokens, and beside them
    words = {"kind": "public-words", "max_size": 300}
    cases = {
        "words": {"vocabulary": words},
        "tags": {"vocabulary": words, "task": tags, "model": {"architecture": "bert"}},
        "pieces": {"vocabulary": cut},
        "warm": {"vocabulary": {}, "model": warm},
        "pretrained": {"vocabulary": {}, "model": pretrained},
    }
    for name, sections in cases.items():
        config = run_config(corpora, corpus=of, training={"num_rounds": 1}, **sections)
        train(config, tmp_path / name, workers=0)
        said = [text for _, texts in Prepared.open(RunDir(tmp_path / name)).corpus.texts() for text in texts]
        assert counted.pop() == len(" ".join(said).split()) > 500
