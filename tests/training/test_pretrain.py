"""Ordinary training on public text: it learns, and what it saves is a warm start."""

from __future__ import annotations

import dataclasses
import itertools
import re
import statistics

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.told import Told
from tests.training.runs import run_config
from tests.training.test_run import hand_perplexity
from uedp_ray.corpus.store import open_corpus
from uedp_ray.errors import InputError, TextError
from uedp_ray.models.build import build_model
from uedp_ray.models.saved import load_model
from uedp_ray.tasks.metrics import PERPLEXITY
from uedp_ray.training.epochs import mean_loss
from uedp_ray.training.evaluate import public_row
from uedp_ray.training.paths import for_use
from uedp_ray.training.pretrain import pretrain
from uedp_ray.training.run_vocabulary import make_vocabulary

TEXT = [{"format": "synthetic", "num_users": 8, "part": "public"}]


def config_of(corpora, **settings):
    return run_config(corpora, pretrain={"text": TEXT, "num_steps": 5, "batch_size": 8, **settings})


def test_perplexity_falls_well_below_that_of_word_guessing(pretrained):
    assert pretrained.result["perplexity"] < 0.5 * pretrained.result["initial_perplexity"]
    assert 200 < pretrained.result["initial_perplexity"] < 320  # untrained: about uniform over 250 words


def test_bits_per_byte_before_are_told_too(pretrained):
    assert pretrained.result["bits_per_byte"] < pretrained.result["initial_bits_per_byte"]


def test_what_of_the_evaluation_text_is_unknown_is_said_before_hours_of_training(corpora, tmp_path):
    """Of its own text hardly a word is: that figure said nothing of the text that the model is for."""
    events = []
    reporter = Told(say=events.append, step=lambda *row: events.append(row))
    (tmp_path / "other.txt").write_text("das ist ein anderer Text\n" * 9)
    text = {"format": "text", "path": str(tmp_path / "other.txt")}
    config = run_config(corpora, corpus={"evaluation": text}, pretrain={"text": TEXT, "num_steps": 1})
    result = pretrain(config, tmp_path / "out", reporter=reporter)
    assert result["unk_share"] < result["evaluation.unk_share"] == 1.0
    (warned,) = (
        place for place, said in enumerate(events) if str(said).startswith("warning: 100% of the words of corpus.")
    )
    assert warned < events.index(next(said for said in events if isinstance(said, tuple))), "before the first step"
    (tmp_path / "other.txt").unlink()
    assert "evaluation.unk_share" not in pretrain(config, tmp_path / "again"), "it may be elsewhere"


def test_the_model_is_scored_on_the_text_that_the_answer_is_scored_on(corpora, tmp_path):
    """A user knew its score on its own kind of text alone, until a search began."""
    said = []
    config = config_of(corpora)
    result = pretrain(config, tmp_path / "out", reporter=Told(say=said.append))
    start = dataclasses.replace(config, model=dataclasses.replace(config.model, warm_start=result["checkpoint"]))
    row = public_row("", start, make_vocabulary(for_use(start)))
    for name in ("perplexity", "bits_per_byte", "unk_share", "bzip2_bits_per_byte"):
        assert result[f"evaluation.{name}"] == row[name]
    assert f"the public model on corpus.evaluation: {PERPLEXITY.told(row)}" in said
    private = itertools.chain.from_iterable(each for _, each in open_corpus(corpora / "private").texts())
    (tmp_path / "copy.txt").write_text("\n".join(private))
    text = {"format": "text", "path": str(tmp_path / "copy.txt")}
    protected = run_config(corpora, corpus={"evaluation": text}, pretrain={"text": TEXT, "num_steps": 1})
    with pytest.raises(TextError, match=r"of its running text with corpus\.source"):
        pretrain(protected, tmp_path / "again")
    gone = {"evaluation": {"path": str(corpora / "held_out")}, "source": {"path": str(tmp_path / "gone")}}
    result = pretrain(run_config(corpora, corpus=gone, pretrain={"text": TEXT, "num_steps": 1}), tmp_path / "again")
    assert "evaluation.perplexity" not in result, "what cannot be compared may be the protected text"


def test_what_is_saved_loads_and_predicts_text_it_has_not_seen(pretrained, corpora):
    folder = pretrained.out / "model"
    assert pretrained.result["checkpoint"] == str(folder.resolve())
    tokenizer = AutoTokenizer.from_pretrained(folder)
    found = hand_perplexity(AutoModelForCausalLM.from_pretrained(folder).eval(), tokenizer, corpora, 12)
    config = run_config(corpora)
    untrained = build_model(
        config.model, vocab_size=len(tokenizer), bos_id=tokenizer.eos_token_id, eos_id=tokenizer.eos_token_id, seed=0
    )
    assert found < 0.6 * hand_perplexity(untrained, tokenizer, corpora, 12)
    assert not list(folder.glob("*.bin"))


def test_the_same_seed_gives_the_same_model_and_another_another(corpora, tmp_path):
    models = {}
    for name, seed in (("one", 0), ("two", 0), ("three", 1)):
        pretrain(config_of(corpora, seed=seed), tmp_path / name)
        models[name] = torch.cat([p.flatten() for p in load_model(tmp_path / name / "model").parameters()])
    assert torch.equal(models["one"], models["two"])
    assert not torch.equal(models["one"], models["three"])


def test_zero_steps_leave_the_model_as_it_was(corpora, tmp_path):
    result = pretrain(config_of(corpora, num_steps=0), tmp_path / "out")
    assert result["perplexity"] == result["initial_perplexity"]


def test_progress_is_told_by_the_mean_loss_since_the_report_before(corpora, tmp_path, monkeypatch):
    told, losses = [], []

    def noted(*args, **settings):
        losses.append(mean_loss(*args, **settings))
        return losses[-1]

    monkeypatch.setattr("uedp_ray.training.pretrain.mean_loss", noted)
    pretrain(config_of(corpora, num_steps=25), tmp_path / "out", reporter=Told(step=lambda *row: told.append(row)))
    assert [row[:2] for row in told] == [(20, 25), (25, 25)]
    means = [statistics.fmean(loss.item() for loss in some) for some in (losses[:20], losses[20:])]
    assert [loss for *_, loss in told] == pytest.approx(means, rel=1e-5)


def test_what_the_public_text_does_not_give_or_the_model_not_read_is_told_once(corpora, tmp_path):
    said = []
    words = {"kind": "public-subwords", "max_size": 50_000, "public_text": []}
    settings = {"pretrain": {"text": TEXT, "num_steps": 1}, "vocabulary": words}
    result = pretrain(run_config(corpora, **settings), tmp_path / "out", reporter=Told(say=said.append))
    assert result["unk_share"] == 0
    tokens = len(AutoTokenizer.from_pretrained(tmp_path / "out" / "model"))
    few = f"the vocabulary has {tokens} tokens, fewer than vocabulary.max_size = 50000: pretrain.text holds no more"
    assert [line for line in said if "max_size" in line] == [few]
    (cut,) = [line for line in said if "max_length" in line]
    assert re.fullmatch(
        r"\d+\.\d% of the tokens are beyond model.max_length = 12 and not used \(of the public text\)", cut
    )


def test_the_default_generator_is_left_alone(corpora, tmp_path):
    torch.manual_seed(0)
    before = torch.random.get_rng_state()
    pretrain(config_of(corpora), tmp_path / "out")
    assert torch.equal(torch.random.get_rng_state(), before)


@pytest.mark.parametrize(("settings", "message"), [({"text": []}, "pretrain.text"), ({}, "not empty")])
def test_what_cannot_be_done_is_refused(corpora, tmp_path, settings, message):
    (tmp_path / "occupied").write_text("")
    with pytest.raises(InputError, match=message):
        pretrain(config_of(corpora, **settings), tmp_path)
