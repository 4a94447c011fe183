"""What each task says of a text, by networks whose output is written down here."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch

from uedp_ray.config import TaskConfig, VocabularyConfig
from uedp_ray.corpus.vocabulary import build_vocabulary
from uedp_ray.tasks.base import task_of

WORDS = "ann lee left rome for oslo"
VOCABULARY = build_vocabulary(VocabularyConfig(), public_text=lambda: iter([WORDS]))
ID = {word: int(VOCABULARY.encode_batch([word])[0][0]) for word in WORDS.split()}


def network(by_word, outputs):
    """Logits of each position by its word alone: 0, but what ``by_word`` says."""
    table = torch.zeros(VOCABULARY.size, outputs)
    for word, logits in by_word.items():
        for output, logit in logits.items():
            table[ID[word], output] = logit
    return lambda input_ids, **_: SimpleNamespace(logits=table[input_ids])


def answers(kind, labels, model, texts, *, top=5, max_length=16):
    task = task_of(kind).of(VOCABULARY, max_length, TaskConfig(kind=kind, labels=labels))
    known = [task.unlabelled(task.read(ids)) for ids in VOCABULARY.encode_batch(texts)]
    return task.answers(model, task.collate(known), texts, VOCABULARY, top=top)


def share(logit, outputs):
    """The probability of one output, the others having logit 0."""
    return pytest.approx(math.exp(logit) / (math.exp(logit) + outputs - 1), abs=1e-6)


def test_next_words_follow_the_last_word_of_each_text_whatever_it_stands_beside():
    size = VOCABULARY.size
    model = network({"lee": {ID["left"]: 3.0}, "for": {ID["oslo"]: 2.0}}, size)
    first, second = answers("next_word", (), model, ["ann lee", "ann lee left rome for"], top=1)
    assert first == [{"token": "left", "probability": share(3.0, size)}]
    assert second == [{"token": "oslo", "probability": share(2.0, size)}]


def test_of_a_text_to_continue_the_end_is_read_and_of_any_other_the_beginning():
    (ids,) = VOCABULARY.encode_batch([WORDS])
    for kind, kept in (("next_word", slice(-4, None)), ("classify", slice(0, 3)), ("tag_words", slice(0, 3))):
        labels = () if kind == "next_word" else ("a", "b")
        task = task_of(kind).of(VOCABULARY, 5, TaskConfig(kind=kind, labels=labels))
        assert task.read(ids).tolist() == ids[kept].tolist(), kind
        assert task.length(task.unlabelled(task.read(ids))) == 5, "with what is around it"
        assert task.left_out == ("beginning" if kind == "next_word" else "end")


def test_labels_come_with_their_probabilities_best_first():
    labels = ("sport", "travel", "food")
    model = lambda input_ids, **_: SimpleNamespace(logits=torch.tensor([[0.0, 2.0, 1.0], [3.0, 0.0, 0.0]]))  # noqa: E731
    first, second = answers("classify", labels, model, ["ann left rome", "lee"], top=2)
    total = 1 + math.exp(2) + math.exp(1)
    assert [each["label"] for each in first] == ["travel", "food"]
    assert [each["probability"] for each in first] == pytest.approx(
        [math.exp(2) / total, math.exp(1) / total], abs=1e-6
    )
    assert second[0] == {"label": "sport", "probability": share(3.0, 3)}


def test_each_word_has_a_tag_and_one_that_is_not_read_has_none():
    model = network({"ann": {1: 2.0}, "left": {2: 1.0}, "rome": {1: 3.0}}, 3)
    texts = ["ann left rome", "rome  left ann lee for"]
    first, second = answers("tag_words", ("X", "NN", "VB"), model, texts, max_length=5)  # reads three words
    assert first == [
        {"word": "ann", "tag": "NN", "probability": share(2.0, 3)},
        {"word": "left", "tag": "VB", "probability": share(1.0, 3)},
        {"word": "rome", "tag": "NN", "probability": share(3.0, 3)},
    ]
    assert [(each["word"], each["tag"]) for each in second] == [
        ("rome", "NN"), ("left", "VB"), ("ann", "NN"), ("lee", None), ("for", None)
    ]  # fmt: skip


def test_entities_are_whole_words_at_their_place_in_the_text():
    #                    outputs: O, B-person, I-person, B-location, I-location
    said = {"ann": 1, "lee": 2, "left": 0, "for": 0, "rome": 3, "oslo": 4}
    model = network({word: {output: 9.0} for word, output in said.items()}, 5)
    texts = ["Ann  Lee left Rome", "left for Oslo", "left"]
    first, second, third = answers("tag_entities", ("PER", "location"), model, texts)  # as corpora name them
    assert first == [
        {"category": "person", "text": "Ann  Lee", "start": 0, "end": 8},
        {"category": "loc", "text": "Rome", "start": 14, "end": 18},
    ]
    assert second == [{"category": "loc", "text": "Oslo", "start": 9, "end": 13}], "an I that continues nothing"
    assert third == []
