"""Classification and tagging: what is known of a sentence, its gradient, and its score."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.nn import functional as F
from transformers import RobertaConfig, RobertaForTokenClassification

from tests.models.helpers import VOCABULARY, reference_gradients, spread
from tests.updates.tiny import tiny_config
from uedp_ray.config import ModelConfig, TaskConfig, VocabularyConfig
from uedp_ray.corpus.readers.conll import decode_tags
from uedp_ray.corpus.records import Mention, Sentence
from uedp_ray.corpus.textsize import TextSize
from uedp_ray.corpus.vocabulary import build_vocabulary
from uedp_ray.errors import InputError
from uedp_ray.models.build import build_model
from uedp_ray.models.gradients import sentence_gradients
from uedp_ray.models.parameters import FlatParameters
from uedp_ray.plan import Plan, UserSelection
from uedp_ray.tasks.base import IGNORED, Task, forward_logits, task_of
from uedp_ray.tasks.classify import Classify
from uedp_ray.tasks.masked_word import MaskedWord
from uedp_ray.tasks.next_word import NextWord
from uedp_ray.tasks.tag_entities import TagEntities, spans
from uedp_ray.tasks.tags import first_pieces
from uedp_ray.updates.base import local_update
from uedp_ray.updates.gradient import Update
from uedp_ray.updates.weighted import measured

SETTINGS = {
    "classify": TaskConfig(kind="classify", labels=("a", "b", "c")),
    "tag_words": TaskConfig(kind="tag_words", labels=("x", "y", "z")),
    "tag_entities": TaskConfig(kind="tag_entities", labels=("person", "org")),
}
ENDS = SimpleNamespace(bos_id=0, eos_id=1, pad_id=2)
SIZE = TextSize(ends=1, tokens=9, unknown=0, cut=0, num_bytes=50, unknown_bytes=0)


def made(kind: str, architecture: str, max_length: int = 12) -> tuple[Task, torch.nn.Module]:
    task = task_of(kind).of(ENDS, max_length, SETTINGS[kind])  # type: ignore[arg-type]
    small = {"max_length": max_length, "num_layers": 2, "hidden_size": 12, "num_heads": 2, "embedding_size": 6}
    config = ModelConfig(architecture=architecture, **small)  # type: ignore[arg-type]
    ends = {"bos_id": 0, "eos_id": 1, "pad_id": 2}
    head = type(task).head(SETTINGS[kind])
    return task, spread(build_model(config, vocab_size=VOCABULARY, **ends, seed=1, head=head))


def some(task: Task, positions: tuple[int, ...] = (5, 12, 3, 9)) -> list[np.ndarray]:
    generator = np.random.default_rng(0)
    return [task.made_up(each, VOCABULARY, generator) for each in positions]


@pytest.mark.parametrize("kind", SETTINGS)
@pytest.mark.parametrize("architecture", ["gpt2", "awd_lstm", "bert"])
def test_gradients_of_sentences_are_exact_and_padding_is_not_seen(kind, architecture):
    task, model = made(kind, architecture)
    sentences = [*some(task), np.zeros(0, np.int64)]
    params = FlatParameters(model)
    batch = task.collate(sentences)
    found = torch.cat([rows.clone() for _, rows in sentence_gradients(model, params, task, batch).chunks()])
    torch.testing.assert_close(found, reference_gradients(model, params, task, batch), rtol=1e-4, atol=1e-5)
    for sentence, row in zip(sentences, found, strict=True):
        alone = reference_gradients(model, params, task, task.collate([sentence]))[0]
        torch.testing.assert_close(row, alone, rtol=1e-4, atol=1e-5)
    assert (found.norm(dim=1) > 1e-3).tolist() == [True, True, True, True, False], "the empty one predicts nothing"


@pytest.mark.parametrize("kind", SETTINGS)
@pytest.mark.parametrize("architecture", ["gpt2", "awd_lstm", "bert"])
def test_a_users_update_has_the_same_bits_whoever_shares_its_batches(kind, architecture):
    """Also where all sentences of a batch fill it, and transformers would leave the mask out."""
    config = tiny_config(model={"architecture": architecture, "max_length": 12}, privacy={"sentence_clip_norm": 0.1})
    task, model = made(kind, architecture)
    texts = some(task, (*[12] * 16, *[9] * 8))
    params, plan = FlatParameters(model), Plan.of(config)
    update = local_update(plan, model, params, task, texts.__getitem__, torch.device("cpu"))
    users = [np.arange(8), np.arange(8, 16), np.arange(16, 24)]  # the first two fill a batch of 16 rows
    drawn = [
        UserSelection(user, which, np.ones(len(which), np.float32), num_held=len(which))
        for user, which in enumerate(users)
    ]
    alone = [update.sum_updates(params.get(), [each], 0) for each in drawn]
    assert all(each.any() for each in alone)
    assert torch.equal(update.sum_updates(params.get(), drawn, 0), sum(alone))
    for pair in (drawn[:2], drawn[::2], drawn[1:]):
        assert torch.equal(update.sum_updates(params.get(), pair, 0), sum(alone[each.user] for each in pair))


@pytest.mark.parametrize("kind", SETTINGS)
@pytest.mark.parametrize("architecture", ["gpt2", "awd_lstm", "bert"])
def test_no_more_waits_for_a_sum_than_is_counted(kind, architecture):
    """A pooler reads one position of each sentence: a view of all of them, which would stay in memory."""
    task, model = made(kind, architecture)
    params, texts = FlatParameters(model), some(task)
    kept = measured(sentence_gradients(model, params, task, task.collate(texts)), params)
    assert kept.kept
    for each in kept:
        room = 16 * len(texts)  # rows of what is formed are aligned
        assert each.untyped_storage().nbytes() <= each.element_size() * (each.numel() + room)


def test_what_has_a_number_for_each_sentence_fills_whole_vectors():
    """A kernel's ``log`` of the remainder differs on some values, which no probe need meet."""
    config = tiny_config(model={"architecture": "bert", "max_length": 12}, privacy={"sentence_clip_norm": 0.1})
    for kind, whole in (("classify", 32), ("tag_words", 4), ("tag_entities", 4)):
        task, model = made(kind, "bert")
        params, plan = FlatParameters(model), Plan.of(config)
        update = Update(plan, model, params, task, some(task).__getitem__, torch.device("cpu"))
        update.probe()
        assert {rows % whole for counts in update._rows.values() for rows in counts} == {0}
    bare = type("Bare", (NextWord,), {})  # what it inherits is not stated of it
    assert (NextWord.only_positions, bare.only_positions) == (True, False)
    assert (NextWord.takes_packed, bare.takes_packed, made("classify", "bert")[0].takes_packed) == (True, False, False)


def test_an_encoder_of_transformers_is_read_as_it_reads_itself():
    """RoBERTa counts positions from beyond its padding token's."""
    sizes = {"hidden_size": 12, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = RobertaConfig(vocab_size=VOCABULARY, max_position_embeddings=20, pad_token_id=2, num_labels=3, **sizes)
    model = spread(RobertaForTokenClassification(config).eval())
    task = task_of("tag_words").of(ENDS, 12, SETTINGS["tag_words"])  # type: ignore[arg-type]
    batch = task.collate([each % 20 + 3 * (np.arange(len(each)) < len(each) // 2) for each in some(task)])
    inside = torch.arange(batch.input_ids.shape[1]) < batch.lengths[:, None]
    with torch.no_grad():
        ours = forward_logits(model, batch)
        theirs = model(input_ids=batch.input_ids, attention_mask=inside.long()).logits
    torch.testing.assert_close(ours[inside], theirs[inside], rtol=1e-5, atol=1e-5)


def test_what_is_read_of_a_sentence_and_what_is_refused():
    vocabulary = build_vocabulary(VocabularyConfig(), public_text=lambda: iter(["ann lee left rome"]))
    classify = Classify.of(vocabulary, 5, SETTINGS["classify"])
    ids = vocabulary.encode_batch(["ann left rome"])[0]
    known = classify.annotated(ids, "ann left rome", Sentence("u", "ann left rome", label="c"), vocabulary)
    assert known.tolist() == [*ids, 2]
    assert len(classify.annotated(ids[:0], "", Sentence("u", "", label="b"), vocabulary)) == 0
    for label in (None, "secret label"):
        with pytest.raises(InputError, match=r"task\.labels") as raised:
            classify.annotated(ids, "", Sentence("u", "ann", label=label), vocabulary)
        assert "secret" not in str(raised.value)
    words = task_of("tag_words").of(vocabulary, 9, SETTINGS["tag_words"])
    for tags in (None, ("x", "secret tag", "y")):
        with pytest.raises(InputError, match=r"task\.labels") as raised:
            words.annotated(ids, "ann left rome", Sentence("u", "ann left rome", tags=tags), vocabulary)
        assert "secret" not in str(raised.value)
    tagged = Sentence("u", "ann left rome", tags=("x", "y", "z"))
    assert not len(words.annotated(ids, "ann rome", tagged, vocabulary)), "its words are no longer those of its tags"


@pytest.mark.parametrize(
    ("labels", "kind", "told"),
    [
        (("a",), "classify", "list 2 or more, each once"),
        (("a", "a"), "tag_words", "each once"),
        ((), "tag_entities", "list 1 or more"),
        (("a", "b"), "next_word", "next_word predicts words"),
    ],
)
def test_labels_that_no_task_can_predict(labels, kind, told):
    with pytest.raises(InputError, match=r"task\.labels") as raised:
        TaskConfig(kind=kind, labels=labels)
    assert told in str(raised.value)


def test_the_first_piece_of_each_word_has_its_tag():
    text = ["Annabelle Lee-Smith left  Rome , see annabelle@lee.org", "a a a"]
    settings = VocabularyConfig(kind="public-subwords", max_size=270, lowercase=False)
    vocabulary = build_vocabulary(settings, public_text=lambda: iter(text))
    ids, offsets = vocabulary.encode_batch(text[:1])[0], vocabulary.offsets(text[0])
    found = first_pieces(text[0], vocabulary, len(ids))
    assert list(found) == list(range(7)), "every word has a first piece, in order"
    for word, piece in found.items():
        begin = text[0].index(text[0].split()[word])
        assert offsets[piece][0] <= begin < offsets[piece][1]
    assert len(first_pieces(text[0], vocabulary, found[3])) == 3, "words beyond the cut have none"
    assert first_pieces("", vocabulary, 5) == first_pieces("  ", vocabulary, 5) == {}


def test_mentions_become_tags_of_whole_words():
    task = TagEntities.of(ENDS, 12, SETTINGS["tag_entities"])  # type: ignore[arg-type]
    text = "Ann Lee's firm , Lee & Sons Ltd. , paid Bob"
    mentions = [("PER", "Lee &"), ("ORG", "Lee & Sons Ltd"), ("PER", "Ann Lee"), ("DATE", "paid"), ("PER", "Bob")]
    where = [(name, text.index(form, 10 if "&" in form else 0), len(form)) for name, form in mentions]
    found = Sentence("u", text, mentions=tuple(Mention(name, at, at + size) for name, at, size in where))
    tags = [task.outputs[number] for number in task.labels_of(found)]
    assert tags == [
        *("B-person", "I-person", "O", "O"),
        *("B-org", "I-org", "I-org", "I-org", "O", "O", "B-person"),
    ], "the longer of two that begin together; no category that is not listed"


def test_spans_are_those_of_the_columns_they_came_from():
    """Against the reader's decoder, which shares no code, on every kind of neighbour."""
    generator = np.random.default_rng(0)
    outputs = TagEntities.of(ENDS, 12, SETTINGS["tag_entities"]).outputs  # type: ignore[arg-type]
    for _ in range(300):
        tags = generator.integers(0, 5, generator.integers(1, 9))
        words = ["w"] * len(tags)
        expected = {
            (each.start // 2, each.end // 2 + 1, each.category)
            for each in decode_tags(words, [outputs[number] for number in tags])
        }
        assert {(a, b, ("person", "org")[c]) for a, b, c in spans(tags)} == expected


def fixed(logits: torch.Tensor) -> Callable[..., SimpleNamespace]:
    """A network with these logits."""
    return lambda **_: SimpleNamespace(logits=logits)


def test_entity_scores_by_hand():
    task = TagEntities.of(ENDS, 12, SETTINGS["tag_entities"])  # type: ignore[arg-type]
    there = [1, 2, 0, 3, 0, 1, 0, 0]  # two persons, one organisation
    said = [1, 2, 0, 1, 0, 1, 2, 3]  # one person right; one too long; an organisation called a person; one of nothing
    ids = np.arange(3, 3 + len(there))
    batch = task.collate([np.concatenate([ids, 1 + np.array(there)])])
    logits = F.one_hot(torch.tensor([[0, *said, 0]]), 5).float()
    sums = task.sums(fixed(logits), batch)  # type: ignore[arg-type]
    assert sums == (1, 3, 2, 0, 1, 1, len(there))
    scores = task.scores(sums, SIZE)
    assert (scores["precision"], scores["recall"]) == (1 / 4, 1 / 3)
    assert scores["f1"] == pytest.approx(2 * (1 / 4) * (1 / 3) / (1 / 4 + 1 / 3))
    assert task.by_category(sums)["person"] == {"precision": 1 / 3, "recall": 1 / 2, "f1": pytest.approx(0.4)}
    assert task.by_category(sums)["org"] == {"precision": 0.0, "recall": 0.0, "f1": 0.0}
    twice = task.scores([2 * each for each in sums], SIZE)
    assert twice == scores, "micro: of entities, not of sentences"
    nothing = task.sums(fixed(logits + math.nan), batch)  # type: ignore[arg-type]
    assert math.isnan(task.scores(nothing, SIZE)["f1"]), "a model that diverged is told by its score"


def test_shares_of_what_is_predicted():
    classify = Classify.of(ENDS, 12, SETTINGS["classify"])  # type: ignore[arg-type]
    batch = classify.collate([np.array([5, 6, 2]), np.array([7, 0]), np.array([8, 1]), np.zeros(0, np.int64)])
    logits = F.one_hot(torch.tensor([2, 1, 1, 0]), 3).float()
    wrong = classify.sums(fixed(logits), batch)  # type: ignore[arg-type]
    assert classify.scores(wrong, SIZE)["error_rate"] == 1 / 3, "an empty sentence is none"
    assert math.isnan(classify.scores(classify.sums(fixed(logits + math.nan), batch), SIZE)["error_rate"])  # type: ignore[arg-type]
    words = task_of("tag_words").of(ENDS, 12, SETTINGS["tag_words"])  # type: ignore[arg-type]
    batch = words.collate([np.array([5, 6, 7, 1, 0, 2]), np.array([5, 6, 1, 3])])  # the second piece goes on a word
    logits = F.one_hot(torch.tensor([[0, 0, 2, 2, 0], [0, 0, 2, 1, 0]]), 3).float()
    right = words.sums(fixed(logits), batch)  # type: ignore[arg-type]
    assert right == (3, 4)
    assert words.scores(right, SIZE)["word_accuracy"] == 3 / 4
    spoilt = words.sums(fixed(logits + math.nan), batch)  # type: ignore[arg-type]
    assert math.isnan(words.scores(spoilt, SIZE)["word_accuracy"]), "a model that diverged is told by its score"


def test_masked_words_are_those_that_were_there():
    task = MaskedWord(bos_id=0, eos_id=1, pad_id=2, mask_id=3, vocab_size=40, max_length=64)
    words = [np.arange(10, 30), np.arange(10, 12), np.zeros(0, np.int64)]
    masked = changed = chosen = total = 0
    firsts: list[list[int]] = []
    with torch.random.fork_rng():
        torch.manual_seed(0)
        for _ in range(200):
            batch = task.collate(words)
            known = batch.targets != IGNORED
            assert known.any(1).tolist() == [True, True, False]
            firsts.append(batch.targets[:, 0].tolist())
            known[:, 0] = False
            assert known.any(1).tolist() == [True, True, False]
            assert torch.equal(batch.targets[0][known[0]], (torch.arange(22) + 9)[known[0]])
            assert not known[1, 3:].any()
            chosen += int(known[0].sum())
            masked += int((batch.input_ids[0][known[0]] == 3).sum())
            changed += int((batch.input_ids[0][~known[0]][1:-1] != 3).sum())
            total += 20
    assert chosen / total == pytest.approx(0.15, abs=0.02)
    assert masked / chosen == pytest.approx(0.8, abs=0.06)
    of_long, of_short, of_none = zip(*firsts, strict=True)
    assert set(of_long) == set(range(10, 30))  # the first position tells any word, and none of a sentence without words
    assert set(of_short) == {10, 11}
    assert set(of_none) == {IGNORED}


def test_the_loss_of_masked_words_is_the_mean_over_what_is_predicted():
    task = MaskedWord(bos_id=0, eos_id=1, pad_id=2, mask_id=3, vocab_size=VOCABULARY, max_length=12)
    config = ModelConfig(architecture="bert", max_length=12, num_layers=2, hidden_size=12, num_heads=2)
    ends = {"bos_id": 0, "eos_id": 1, "pad_id": 2}
    model = spread(build_model(config, vocab_size=VOCABULARY, **ends, seed=1, head=MaskedWord.head(TaskConfig())))
    with torch.random.fork_rng():
        torch.manual_seed(0)
        batch = task.collate([np.arange(4, 14), np.zeros(0, np.int64), np.arange(5, 9)])
    each = F.cross_entropy(forward_logits(model, batch).mT, batch.targets, reduction="none", ignore_index=IGNORED)
    expected = each.sum(1) / (batch.targets != IGNORED).sum(1).clamp_min(1)
    found = task.losses(model, batch)
    torch.testing.assert_close(found, expected)
    ours, theirs = (torch.autograd.grad(losses.sum(), [*model.parameters()]) for losses in (found, expected))
    torch.testing.assert_close(ours, theirs)
    words = torch.where(batch.targets == IGNORED, 0, each)[:, 1:]  # the score is of masked words alone
    assert task.sums(model, batch) == (pytest.approx(words.sum().item()), int((batch.targets[:, 1:] >= 0).sum()))
    assert not any(module._forward_pre_hooks for module in model.modules())
