"""Runs that classify and tag, from the prepared corpus to a saved model."""

from __future__ import annotations

import dataclasses
import json

import pytest
import torch
from transformers import AutoModelForSequenceClassification, AutoModelForTokenClassification

from tests.training.runs import TREE, run_config
from uedp_ray.config import PretrainConfig, SourceConfig
from uedp_ray.errors import InputError
from uedp_ray.models.saved import load_model
from uedp_ray.tasks.metric import METRICS
from uedp_ray.training.checks import check_run
from uedp_ray.training.host import train
from uedp_ray.training.pretrain import pretrain

TOPICS = ["contracts", "support", "finance", "medicine", "travel", "sport", "cooking", "weather"]
TAGS = ["NOUN", "ADJ", "ADP", "ADV", "AUX", "CCONJ", "DET", "INTJ"]
TAGS += ["NUM", "PART", "PRON", "PROPN", "PUNCT", "SCONJ", "VERB", "X"]
TASKS = {
    "classify": {"kind": "classify", "labels": TOPICS},
    "tag_words": {"kind": "tag_words", "labels": TAGS},
    "tag_entities": {"kind": "tag_entities", "labels": ["person", "organization", "gpe"]},
}
SHORT = {"training": {**TREE["training"], "num_rounds": 2, "server_learning_rate": 0.05}}
BERT = {"model": {**TREE["model"], "architecture": "bert"}}


@pytest.mark.parametrize("kind", TASKS)
def test_a_run_scores_saves_and_states_what_it_did(corpora, tmp_path, kind):
    config = run_config(corpora, task=TASKS[kind], **SHORT, **BERT)
    result, metric = train(config, tmp_path / "run", workers=0), METRICS[kind]
    assert result["private"]
    assert 0.0 <= result[metric.name] <= 1.0
    assert set(metric.names) <= set(result)
    assert "perplexity" not in json.dumps(result)
    if kind == "tag_entities":
        assert set(result["by_category"]) == {"person", "org", "gpe"}
        assert set(result["by_category"]["gpe"]) == {"precision", "recall", "f1"}
    model = load_model(tmp_path / "run" / "model")
    kinds = AutoModelForSequenceClassification if kind == "classify" else AutoModelForTokenClassification
    theirs = kinds.from_pretrained(tmp_path / "run" / "model")
    assert type(model) is type(theirs)
    ids = torch.tensor([[0, 5, 6, 0]])
    assert torch.equal(model(input_ids=ids).logits, theirs(input_ids=ids).logits)
    assert metric.title in (tmp_path / "run" / "privacy.md").read_text().lower() or metric.title == "F1"


def test_a_finished_run_resumes_to_the_same_scores_by_category(corpora, tmp_path):
    config = run_config(corpora, task=TASKS["tag_entities"], **SHORT, **BERT)
    first = train(config, tmp_path / "run", workers=0)
    (tmp_path / "run" / "result.json").unlink()  # as a kill before its last file
    again = train(config, tmp_path / "run", workers=0, resume=True)
    assert again["by_category"] == first["by_category"]


@pytest.mark.parametrize("kind", ["classify", "tag_words"])
def test_a_label_that_is_not_listed_is_refused_without_its_name(corpora, tmp_path, kind):
    task = {**TASKS[kind], "labels": TASKS[kind]["labels"][1:]}
    with pytest.raises(InputError, match=r"task\.labels = .*: corpus\.source has a sentence whose label") as raised:
        train(run_config(corpora, task=task, **SHORT), tmp_path / "run", workers=0)
    assert TASKS[kind]["labels"][0] not in str(raised.value)
    assert not (tmp_path / "run" / "ledger.jsonl").exists()


def test_an_encoder_is_refused_for_next_words_which_it_sees(corpora):
    with pytest.raises(InputError, match=r"task\.kind = 'next_word': the network \(bert\) reads both ways"):
        check_run(run_config(corpora, **BERT))


def test_words_that_a_transform_does_not_keep_cannot_be_tagged(corpora):
    tree = {"declared_num_users": 30, "transform": {"kind": "mask"}}
    corpus = {**tree, "source": {"path": str(corpora / "private")}, "evaluation": {"path": str(corpora / "held_out")}}
    check_run(run_config(corpora, corpus=corpus, task=TASKS["classify"]))
    with pytest.raises(InputError, match=r"corpus\.transform\.kind = 'mask': .* not keep the words"):
        check_run(run_config(corpora, corpus=corpus, task=TASKS["tag_words"]))


@pytest.mark.parametrize("architecture", ["gpt2", "awd_lstm", "bert"])
@pytest.mark.parametrize("part", ["full", "lora", "bias_norm"])
def test_a_classifier_starts_from_a_model_of_words_and_always_trains_its_head(corpora, tmp_path, architecture, part):
    model = {**TREE["model"], "architecture": architecture, "embedding_size": 8}
    config = run_config(corpora, task=TASKS["classify"], model=model, **SHORT)
    public = SourceConfig(format="synthetic", num_users=20, part="public")
    config = dataclasses.replace(config, pretrain=PretrainConfig(text=(public,), num_steps=3))
    answer = pretrain(config, tmp_path / "public")
    assert ("masked_perplexity" in answer) == (architecture == "bert")
    start = str(tmp_path / "public" / "model")
    config = dataclasses.replace(config, model=dataclasses.replace(config.model, warm_start=start, trainable=part))
    train(config, tmp_path / "run", workers=0)
    before, after = (load_model(folder).state_dict() for folder in (start, tmp_path / "run" / "model"))
    changed = {name for name in after if name not in before or not torch.equal(after[name], before[name])}
    embedding = {"gpt2": "transformer.wte.weight", "awd_lstm": "embedding.weight"}
    known = embedding.get(architecture, "bert.embeddings.word_embeddings.weight")
    assert known in before.keys() & after.keys()
    assert (known in changed) == (part == "full")
    heads = {"gpt2": "score.weight", "awd_lstm": "decoder.weight", "bert": "classifier.weight"}
    assert heads[architecture] in changed
