"""Runs that classify and tag, from the prepared corpus to a saved model."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter

import numpy as np
import pytest
import torch
from transformers import AutoModelForSequenceClassification, AutoModelForTokenClassification

from tests.training.runs import TREE, run_config
from uedp_ray.config import PretrainConfig, SourceConfig
from uedp_ray.corpus.store import open_corpus
from uedp_ray.errors import InputError
from uedp_ray.models.saved import load_model
from uedp_ray.tasks.metrics import METRICS
from uedp_ray.training.checks import check_run
from uedp_ray.training.host import train
from uedp_ray.training.prepared import Prepared
from uedp_ray.training.pretrain import pretrain
from uedp_ray.training.rundir import RunDir

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
    if metric.yardstick:
        held_out = open_corpus(corpora / "held_out")
        labels = [one.label for _, said in held_out.sentences(every=True) for one in said if one.text.strip()]
        if kind == "tag_words":
            labels = [tag for _, said in held_out.sentences(every=True) for one in said for tag in one.tags]
        most = Counter(labels).most_common(1)[0][1] / len(labels)
        expected = 1 - most if kind == "classify" else most
        assert result[metric.yardstick.name] == pytest.approx(expected, abs=0.02), "but for what max_length cuts off"
        useless = metric.cost(result[metric.name]) >= metric.cost(result[metric.yardstick.name])
        assert bool(metric.worthless(result)) == useless
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
    missing = (
        "a sentence whose label is missing" if kind == "classify" else "a sentence with a word whose tag is missing"
    )
    with pytest.raises(InputError, match=rf"task\.labels = .*: corpus\.source has {missing}") as raised:
        train(run_config(corpora, task=task, **SHORT), tmp_path / "run", workers=0)
    assert TASKS[kind]["labels"][0] not in str(raised.value)
    assert not (tmp_path / "run" / "ledger.jsonl").exists()


@pytest.mark.parametrize("labels", [["B-person", "I-person"], ["medicine"]])
def test_categories_of_which_a_text_has_no_entity_are_refused(corpora, tmp_path, labels):
    """A model was trained, and paid for, to find nothing."""
    task = {"kind": "tag_entities", "labels": labels}
    with pytest.raises(
        InputError, match=r"corpus\.source has no entity of these categories: name those that were found"
    ):
        train(run_config(corpora, task=task, **SHORT), tmp_path / "run", workers=0)
    assert not (tmp_path / "run" / "ledger.jsonl").exists()


def test_an_encoder_is_refused_for_next_words_which_it_sees(corpora):
    with pytest.raises(InputError, match=r"task\.kind = 'next_word': the network \(bert\) reads both ways"):
        check_run(run_config(corpora, **BERT))


COLUMNS = {
    "private": [
        "Ann NOUN B-PER, Lee PROPN I-PER, left VERB O, Oslo PROPN B-LOC, . PUNCT O",
        "Nobody PRON O, saw VERB O, Bo NOUN B-PER, Ek PROPN I-PER, near ADP O, Oslo PROPN B-LOC",
        "He PRON O, paid VERB O, 12 NUM O, crowns NOUN O, to ADP O, Acme PROPN B-ORG, ; PUNCT O, they PRON O, left VERB O",
    ],
    "held_out": [
        "Rain NOUN O, fell VERB O, on ADP O, Rome PROPN B-LOC, all DET O, day NOUN O",
        "Snow NOUN O, came VERB O",
    ],
}
"""Word, part of speech and entity of sentences, each of which two users say."""


@pytest.fixture
def replaced(tmp_path):
    """The corpus section of a run on CoNLL columns whose words are replaced."""
    for name, sentences in COLUMNS.items():
        rows = ["".join(f"{row}\n" for row in each.split(", ")) for each in sentences]
        (tmp_path / f"{name}.conll").write_text("".join(f"-DOCSTART- -X- O\n\n{row}\n" for row in rows * 2))
    words = ["oslo", "left", "east", "west", "up", "down", "near", "far"]
    (tmp_path / "toy.txt").write_text("".join(f"{word} {n} {n % 3}\n" for n, word in enumerate(words)))
    (tmp_path / "public.txt").write_text(f"{' '.join(words)}.\n")
    transform = {"kind": "replace_words", "vectors": str(tmp_path / "toy.txt"), "num_neighbours": 8}
    texts = {"private": "source", "held_out": "evaluation"}
    sources = {key: {"format": "conll", "path": str(tmp_path / f"{name}.conll")} for name, key in texts.items()}
    return {"declared_num_users": 30, **sources, "transform": transform}


@pytest.mark.parametrize("kind", ["tag_words", "tag_entities"])
def test_tags_stay_in_the_places_of_words_that_are_replaced(replaced, tmp_path, kind):
    labels = TAGS if kind == "tag_words" else ["person", "organization", "loc"]
    words = {"public_text": [{"format": "text", "path": str(tmp_path / "public.txt")}]}
    task = {"kind": kind, "labels": labels}
    config = run_config(tmp_path, corpus=replaced, task=task, vocabulary=words, **SHORT, **BERT)
    result, prepared = train(config, tmp_path / "run", workers=0), Prepared.open(RunDir(tmp_path / "run"))
    central, local = (next(each for each in result["guarantees"] if each["trust"] == of) for of in ("central", "local"))
    assert (central["unit"], local["unit"], local["epsilon"]) == ("user-entity", "word", 1.0)
    assert "Labels and tags stay as they are" in local["note"]
    entity = {"O": 0, "B-PER": 1, "I-PER": 2, "B-ORG": 3, "B-LOC": 5}
    known = set()
    for each in COLUMNS["private"]:
        rows = [row.split(" ") for row in each.split(", ")]
        numbers = [labels.index(tag) if kind == "tag_words" else entity[span] for _, tag, span in rows]
        known.add((" ".join(word for word, _, _ in rows), tuple(numbers)))
    found, said = set(), set()
    sentences = [one for _, each in prepared.corpus.sentences() for one in each]
    assert len(sentences) == 6
    for number, sentence in enumerate(sentences):
        ids, tags = np.split(prepared.tokens.sentence(number), 2)
        found.add((sentence.text, tuple((tags - 1).tolist())))
        said.add((sentence.text, tuple(ids.tolist())))
    assert found == known, "one token and one tag for each word"
    assert len(said) > len(COLUMNS["private"]), "drawn anew each time"


def test_words_that_a_transform_does_not_keep_cannot_be_tagged(replaced, tmp_path):
    moved = [("kind", "mask", {}), ("kind", "fragments", {}), ("scope", "entities", replaced["transform"])]
    names = tmp_path / "names.txt"
    names.write_text("Ada Byron\tperson\n")
    moved += [("unknown", "category_list", {**replaced["transform"], "category_list": str(names)})]
    for setting, value, others in moved:
        corpus = {**replaced, "transform": {**others, setting: value}}
        check_run(run_config(tmp_path, corpus=corpus, task=TASKS["classify"]))
        for kind in ("tag_words", "tag_entities"):
            with pytest.raises(InputError, match=rf"corpus\.transform\.{setting} = '{value}': does not keep each word"):
                check_run(run_config(tmp_path, corpus=corpus, task=TASKS[kind]))


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
