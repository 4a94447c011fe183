"""Next words of a trained model: those of highest probability, computed again by hand."""

from __future__ import annotations

import json
import os
import pickle
import random
import shutil
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast

from tests.models.helpers import VOCABULARY, tiny, tiny_llama
from tests.told import Told
from uedp_ray.config import RunConfig, VocabularyConfig, as_yaml, from_dict
from uedp_ray.corpus.vocabulary import Vocabulary, build_vocabulary
from uedp_ray.errors import InputError
from uedp_ray.models.saved import load_model, save_model
from uedp_ray.training.network import initial_model
from uedp_ray.training.predict import Predictor, predict


def test_the_best_next_words_with_their_probabilities(pretrained):
    model = AutoModelForCausalLM.from_pretrained(pretrained.out / "model").eval()
    tokenizer = AutoTokenizer.from_pretrained(pretrained.out / "model")
    texts = ["please call the", ""]
    found = predict(pretrained.out, texts, top=4)
    assert [each["text"] for each in found] == texts
    for each in found:
        ids = [tokenizer.eos_token_id, *tokenizer(each["text"], add_special_tokens=False)["input_ids"]]
        with torch.no_grad():
            probabilities = model(torch.tensor([ids])).logits[0, -1].softmax(-1)
        best = probabilities.topk(4)
        assert [e["probability"] for e in each["next"]] == pytest.approx(best.values.tolist(), abs=1e-6)
        assert [e["token"] for e in each["next"]] == [tokenizer.decode([i]) for i in best.indices.tolist()]
    assert found[0]["next"] != found[1]["next"]


def test_pieces_of_words_are_told_from_words_and_from_the_sentence_end(tmp_path):
    """A piece that decodes to nothing was shown as a sentence end, and a word's beginning as its middle."""
    pieces = {piece: number for number, piece in enumerate(("<unk>", "</s>", "▁", "▁w", "w", "er"))}
    tokenizer = Tokenizer(BPE(pieces, [("▁", "w")], unk_token="<unk>"))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    save_model(tiny_llama(), tmp_path / "model")
    Vocabulary(PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="</s>", unk_token="<unk>")).save(
        tmp_path / "model", longest=8
    )
    (found,) = predict(tmp_path / "model", ["w er"], top=VOCABULARY)
    shown = {each["token"] for each in found["next"]}
    assert {"<unk>", "</s>", " ", " w", "w", "er"} | {f"(token {each})" for each in range(6, VOCABULARY)} == shown


def test_a_run_or_its_model_folder_will_do(pretrained):
    assert predict(pretrained.out, ["the"]) == predict(pretrained.out / "model", ["the"])


def test_more_words_than_there_are_is_all_of_them(pretrained):
    (found,) = predict(pretrained.out, ["the"], top=10_000)
    assert sum(each["probability"] for each in found["next"]) == pytest.approx(1, abs=1e-3)


def test_a_text_longer_than_the_model_reads_is_continued_from_its_end(pretrained):
    short, long = (predict(pretrained.out, ["the " * n + "patient"])[0]["next"] for n in (30, 60))
    assert short == long, "only the last words fit"


def test_a_text_that_is_not_utf8_is_not_blamed_on_the_tokenizer(pretrained, command):
    """As Python reads the bytes of a command line in Latin-1."""
    code, _, err = command("predict", pretrained.out, "--text", b"caf\xe9".decode(errors="surrogateescape"))
    assert (code, err) == (
        2,
        "error: --text = \"'caf\\\\udce9'\": is not UTF-8: check the encoding of the terminal or script\n",
    )


def test_that_a_text_is_cut_is_said_once(pretrained, command):
    texts = [f"--text={'the ' * n}" for n in (11, 12, 30)]
    code, _, err = command("predict", pretrained.out, *texts)
    assert (code, err) == (
        0,
        "note: 2 of 3 texts are longer than the 11 tokens that the model reads: the beginning is left out\n",
    )
    assert command("predict", pretrained.out, texts[0])[2] == ""
    assert "note: the text is longer than the 11 tokens" in command("predict", pretrained.out, texts[1])[2]


def test_that_words_are_unknown_is_said(small, command):
    assert command("predict", small, "--text=w1 unknown w2", "--text=w3")[2] == (
        "note: 1 of 4 words are not in the vocabulary, and are read as <unk>\n"
    )
    assert command("predict", small, "--text=w1 w2")[2] == ""


def test_a_folder_without_a_model_and_no_words_at_all_are_refused(pretrained, tmp_path):
    with pytest.raises(InputError, match="finished run"):
        predict(tmp_path, ["the"])
    with pytest.raises(InputError, match=r"top = 0"):
        predict(pretrained.out, ["the"], top=0)


def test_a_sweep_is_answered_with_its_best_run(tmp_path):
    (tmp_path / "sweep.yaml").touch()
    with pytest.raises(InputError, match=r"is a sweep: name one of its finished runs in .*trials"):
        predict(tmp_path, ["the"])
    (tmp_path / "result.json").write_text('{"best": {"run_dir": "trials/0003"}}')
    with pytest.raises(InputError, match=r"is a sweep: name its best run, .*trials/0003"):
        predict(tmp_path, ["the"])
    (tmp_path / "result.json").write_text('{"best": {"run_dir": "../../elsewhere"}}')
    with pytest.raises(InputError, match=r"is a sweep: name one of its finished runs"):
        predict(tmp_path, ["the"])


def test_a_pipe_in_the_place_of_a_sweeps_result_is_not_waited_for(tmp_path):
    (tmp_path / "sweep.yaml").touch()
    os.mkfifo(tmp_path / "result.json")
    with pytest.raises(InputError, match="is a sweep: name one of its finished runs"):
        predict(tmp_path, ["a"])


@pytest.fixture(scope="module", params=["gpt2", "llama", "awd_lstm"])
def small(request, tmp_path_factory):
    """A model's folder, with its tokenizer."""
    folder = tmp_path_factory.mktemp("small") / request.param
    save_model(tiny_llama() if request.param == "llama" else tiny(request.param), folder)
    words = " ".join(f"w{i}" for i in range(VOCABULARY - 3))
    build_vocabulary(VocabularyConfig(kind="public-words"), public_text=lambda: [words]).save(folder, longest=8)
    assert predict(folder, ["w1 unknown"])
    return folder


def entries(value, path=()):
    """The path of every value within one that was JSON."""
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield *path, key
        yield from entries(inner, (*path, key))


WRONG = ["x", -1, 0, 1.5, 3, 10**9, 10**30, 1e308, None, True, [], ["x"], {}, {"a": {"b": [1]}}, "NESTED"]
DAMAGED = [b"", b"[]", b"null", b"{}", b'"x"', bytes(range(256)), b"[" * 20_000 + b"]" * 20_000]
CASES = 24


def damage(folder, seed):
    """Another damage of one file for every seed; returns what it was."""
    dice = random.Random(seed)
    file = dice.choice([file for file in sorted(folder.iterdir()) if file.suffix == ".json"])
    if seed % 4 == 0:
        file = dice.choice(sorted(folder.iterdir()))
        data = file.read_bytes()
        content = dice.choice([*DAMAGED, data[: len(data) // 2], data + b"0"])
        file.write_bytes(content)
        return file.name, content[:20]
    settings = json.loads(file.read_text())
    *path, last = dice.choice(list(entries(settings)))
    place, value = settings, dice.choice(WRONG)
    for key in path:
        place = place[key]
    place[last] = value
    file.write_text(json.dumps(settings).replace('"NESTED"', "[" * 5000 + "]" * 5000))
    return file.name, *path, last, value


def test_whatever_is_wrong_in_a_models_folder_is_said_in_one_line(small, tmp_path):
    named = []
    for seed in range(CASES):
        folder = tmp_path / str(seed)
        shutil.copytree(small, folder)
        done = damage(folder, seed)
        try:
            predict(folder, ["w1 w2", "unknown"])
        except InputError as error:
            named.append((str(error), done))
        except BaseException as error:
            raise AssertionError(f"{done}: {error!r}") from error
    assert len(named) > CASES / 4
    assert [done for line, done in named if "\n" in line or str(tmp_path) not in line] == []


WORDS = {"type": "WordLevel", "unk_token": "a"}
COUNTS: list[dict[str, Any]] = [
    *({"num_labels": number} for number in (10**5, 10**30)),
    {"text_config": {"model_type": "qwen2", "num_hidden_layers": 10**9}},
    {"model_type": "qwen2", "num_hidden_layers": 10**9},
    {"id2label": {str(number): "" for number in range(10**5)}},
    {"model_type": "gpt_neo", "attention_types": [[["global"], 2 * 10**9]]},
    {"activation_function": "out of memory"},
]
IMPOSSIBLE = {
    "gpt2": {
        "config.json": [{"n_layer": "x"}, {"n_embd": -4}, {"n_layer": 10**9}, {"layer_norm_epsilon": None}, *COUNTS]
    },
    "awd_lstm": {"config.json": [{"num_layers": 10**9}, {"vocab_size": 10**9}, {"init_range": None}]},
    "llama": {
        "tokenizer_config.json": [{"eos_token": []}],
        "tokenizer.json": [
            {"model": WORDS | {"vocab": {"a": 0, "b": 10**9}}},
            {"model": WORDS | {"vocab": {"a": 0, "b": 100}}},
            {"model": WORDS | {"vocab": {"w1": 0, "b": 1}}},
        ],
    },
}


def test_settings_that_no_model_has_are_refused(small, tmp_path):
    for file, wrong in IMPOSSIBLE[small.name].items():
        for number, settings in enumerate(wrong):
            folder = tmp_path / f"{number}-{file}"
            shutil.copytree(small, folder)
            (folder / file).write_text(json.dumps(json.loads((small / file).read_text()) | settings))
            with pytest.raises(InputError, match=str(folder)):
                predict(folder, ["w1 b unknown"])


def test_a_file_larger_than_a_model_has_is_not_read(small, tmp_path):
    for name in {file.name for file in small.iterdir()}:
        folder = tmp_path / name.partition(".")[0]
        shutil.copytree(small, folder)
        os.truncate(folder / name, 40 << 30)
        with pytest.raises(InputError, match=rf"{name} is damaged"):
            predict(folder, ["w1"])


@pytest.fixture(scope="module", params=["bert", "awd_lstm"])
def classifier(request, tmp_path_factory):
    """A run directory, as far as prediction reads it, of an untrained model that classifies; and the settings."""
    folder = tmp_path_factory.mktemp("classifier") / request.param
    tree = {
        "corpus": {"declared_num_users": 10},
        "privacy": {"noise_multiplier": 1.0},
        "task": {"kind": "classify", "labels": ["sport", "travel", "food"]},
        "model": {"architecture": request.param, "max_length": 8, "num_layers": 1, "hidden_size": 8, "num_heads": 2},
    }
    config = from_dict(RunConfig, tree)
    vocabulary = build_vocabulary(VocabularyConfig(kind="public-words"), public_text=lambda: ["the nurse left rome"])
    (folder / "model").mkdir(parents=True)
    save_model(initial_model(config, vocabulary), folder / "model")
    vocabulary.save(folder / "model")
    (folder / "config.yaml").write_text(as_yaml(config))
    return folder, config


def test_a_run_that_classifies_answers_with_its_labels(classifier):
    folder, config = classifier
    model, tokenizer = load_model(folder / "model"), AutoTokenizer.from_pretrained(folder / "model")
    texts = ["the nurse", "left", "rome the nurse left the"]
    found = predict(folder, texts, top=3)
    for text, each in zip(texts, found, strict=True):
        end = tokenizer.eos_token_id
        ids = [end, *tokenizer(text, add_special_tokens=False)["input_ids"], end]
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([ids])).logits
        row = logits[0] if logits.dim() == 2 else logits[0, -1]
        by_label = dict(zip(config.task.labels, row.softmax(-1).tolist(), strict=True))
        best = sorted(by_label, key=lambda label: -by_label[label])
        assert [one["label"] for one in each["labels"]] == best
        assert [one["probability"] for one in each["labels"]] == pytest.approx([by_label[b] for b in best], abs=1e-6)
    assert predict(folder / "model", texts, top=3) == found, "the settings are beside the model's folder"


def test_a_text_of_which_the_end_is_left_out_says_so(classifier):
    said: list[str] = []
    predict(classifier[0], ["the nurse left rome the nurse left"], reporter=Told(say=said.append))
    assert said == ["note: the text is longer than the 6 tokens that the model reads: the end is left out"]


def test_a_model_that_is_not_of_the_task_is_refused(classifier, small, tmp_path):
    shutil.copytree(classifier[0] / "model", tmp_path / "alone")  # nothing says what it was trained for
    with pytest.raises(InputError, match=r"not of task\.kind next_word: name the run directory"):
        predict(tmp_path / "alone", ["the"])
    shutil.copytree(small, tmp_path / "run" / "model")
    shutil.copy(classifier[0] / "config.yaml", tmp_path / "run")
    with pytest.raises(InputError, match=r"not of task\.kind classify"):
        predict(tmp_path / "run", ["the"])


def test_one_load_answers_many_batches_in_any_process(small):
    predictor = pickle.loads(pickle.dumps(Predictor(small)))
    texts = ["w1", "w2 w3 w4 w5", "w1 w6"]
    assert predictor.predict(texts[:1]) == predict(small, texts[:1])
    together = predictor.predict(texts, top=2)
    assert [each["text"] for each in together] == texts
    for text, each in zip(texts, together, strict=True):
        (alone,) = predictor.predict([text], top=2)
        assert [one["token"] for one in each["next"]] == [one["token"] for one in alone["next"]]
        for one, other in zip(each["next"], alone["next"], strict=True):
            assert one["probability"] == pytest.approx(other["probability"], abs=2e-6)
    assert predictor.predict([]) == []
