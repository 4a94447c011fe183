"""The model card of an export: what a hub reads, and an example that runs."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from transformers import AutoTokenizer

from tests.told import Told
from tests.training.runs import TREE, run_config
from uedp_ray import export
from uedp_ray.config import load_config
from uedp_ray.corpus.vocabulary import Vocabulary
from uedp_ray.privacy.statement import CHECKED
from uedp_ray.training.card import card
from uedp_ray.training.host import train
from uedp_ray.training.predict import predict
from uedp_ray.training.privacy_page import Total


def test_the_card_is_one_that_a_hub_reads_with_the_total_before_any_other_figure(exported):
    out, answer = exported
    text = (out / "README.md").read_text()
    front = yaml.safe_load(text.split("---\n")[1])
    assert front["library_name"] == "transformers"
    assert "differential-privacy" in front["tags"]
    figures = re.findall(r"\d+\.\d+", text.split("---\n", 2)[2])
    assert float(figures[0]) == pytest.approx(answer["epsilon"], abs=1e-3)
    assert "5 of 5 planned" in text


def test_a_name_is_no_markup(private_run, exported):
    out, _ = exported
    config = dataclasses.replace(load_config(out / "config.yaml"), name="<img src=x> [my_run](x)")
    total = Total(1.0, "user-entity", "none", "")
    text = card(config, private_run.result, total, Vocabulary.load(out / "model"), longest=None)
    assert r"# \<img src=x\> \[my\_run\](x)" in text.splitlines()


def test_that_the_text_passed_the_checks_is_no_part_of_the_guarantee(exported):
    for name in ("privacy.md", "README.md"):
        assert CHECKED in (exported[0] / name).read_text()


def test_the_card_tells_what_perplexity_leaves_out(private_run, exported):
    text, result = (exported[0] / "README.md").read_text(), private_run.result
    scores = (
        f"| {result['perplexity']:.1f}; {result['bits_per_byte']:.3f} bits/byte; {result['unk_share']:.1%} \\<unk\\>"
    )
    assert f"Held-out perplexity {scores}" in text
    before = f"{result['initial_perplexity']:.1f}, {result['initial_bits_per_byte']:.3f} bits/byte"
    assert f"before training on the private text | {before} |" in text
    assert f"| For scale | bzip2 takes {result['bzip2_bits_per_byte']:.3f} bits/byte of the same text |" in text
    assert "| Caution | bzip2 takes " in text  # of a model that was trained for five rounds
    assert "| Licence | none is stated here;" in text
    assert "Base model" not in text


def test_the_card_warns_where_much_is_unknown(private_run, exported):
    out, _ = exported
    config, total = load_config(out / "config.yaml"), Total(1.0, "user-entity", "none", "")

    def rows(share):
        result = private_run.result | {"unk_share": share}
        return card(config, result, total, Vocabulary.load(out / "model"), longest=None).splitlines()

    warned = r"| Caution | 56% of the words of the evaluation text are \<unk\>, which is easy to predict: "
    assert [row for row in rows(0.56) if row.startswith(warned)]
    assert not [row for row in rows(0.09) if "easy to predict" in row]


def test_the_card_says_where_the_public_model_does_as_well(private_run, exported):
    out, _ = exported
    config, total = load_config(out / "config.yaml"), Total(1.0, "user-entity", "none", "")

    def told(config, initial):
        result = private_run.result | {"perplexity": 100.0, "initial_perplexity": initial}
        return "began from scores as well" in card(config, result, total, Vocabulary.load(out / "model"), longest=None)

    assert (told(config, 100.2), told(config, 110.0)) == (config.starts_public, False)
    started = dataclasses.replace(config, model=dataclasses.replace(config.model, warm_start="not-published"))
    assert (told(started, 100.2), told(started, 110.0)) == (True, False)


def run_example(out: Path, monkeypatch, capsys, text: str = "The") -> tuple[str, dict[str, Any]]:
    """What the code of the card prints for a text, and its variables."""
    (code,) = re.findall("```python\n(.*?)```", (out / "README.md").read_text(), re.DOTALL)
    assert '"The"' in code
    monkeypatch.chdir(out)
    capsys.readouterr()
    variables: dict[str, Any] = {}
    exec(code.replace('"The"', repr(text)), variables)
    return capsys.readouterr().out, variables


def test_the_example_of_the_card_runs_also_where_the_text_fills_the_model(exported, monkeypatch, capsys):
    out, _ = exported
    tokenizer = AutoTokenizer.from_pretrained(out / "model")
    assert tokenizer.model_max_length == 12, "the model has no more positions"
    with torch.random.fork_rng():
        for text in ("The", "the nurse met " * 9):
            torch.manual_seed(0)
            printed, found = run_example(out, monkeypatch, capsys, text)
            assert found["written"][0, 0] == tokenizer.eos_token_id
            assert found["prompt"].shape[1] < found["written"].shape[1] <= 12
            assert printed
    text = (out / "README.md").read_text()
    assert "Sentences begin and end with `</s>`; " in text
    assert "reads at most 12 tokens" in text


def test_a_model_of_pieces_of_words_reads_and_writes_any_text(corpora, tmp_path, monkeypatch, capsys):
    said = []
    words = {"kind": "public-subwords", "max_size": 500}
    config = run_config(corpora, vocabulary={**TREE["vocabulary"], **words}, training={"num_rounds": 1})
    result = train(config, tmp_path / "run", workers=0, reporter=Told(say=said.append))
    assert result["unk_share"] == 0
    assert any("of the tokens are beyond model.max_length" in line for line in said)
    assert not any("max_size" in line for line in said), "there is text enough"
    export(tmp_path / "run", tmp_path / "out")
    printed, found = run_example(tmp_path / "out", monkeypatch, capsys, "né")
    tokenizer = found["tokenizer"]
    assert tokenizer.decode(found["prompt"][0], skip_special_tokens=True) == " né"
    assert (len(tokenizer), tokenizer.unk_token) == (500, None)
    assert found["model"].config.vocab_size == 500
    assert printed
    assert predict(tmp_path / "out", ["Grüße"]) == predict(tmp_path / "run", ["Grüße"])


def test_the_example_of_a_network_of_our_own(corpora, tmp_path, monkeypatch, capsys):
    model = {**TREE["model"], "architecture": "awd_lstm", "embedding_size": 8}
    train(run_config(corpora, model=model, training={"num_rounds": 1}), tmp_path / "run", workers=0)
    export(tmp_path / "run", tmp_path / "out")
    assert "'probability': " in run_example(tmp_path / "out", monkeypatch, capsys)[0]
    assert "reads at most" not in (tmp_path / "out" / "README.md").read_text()
