"""Perplexity: exp of the mean over words and sentence ends, however it is batched."""

from __future__ import annotations

import bz2
import itertools
import math
from functools import partial

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from tests.told import Told
from tests.training.groups import group, train_in_group
from tests.training.runs import run_config
from tests.updates.tiny import CPU, VOCABULARY, tiny_config
from uedp_ray.config import VocabularyConfig
from uedp_ray.corpus.textsize import text_size
from uedp_ray.corpus.tokens import encode_texts
from uedp_ray.corpus.vocabulary import Vocabulary, build_vocabulary
from uedp_ray.errors import InputError
from uedp_ray.models.build import build_model
from uedp_ray.tasks.loss import perplexity as mean_perplexity
from uedp_ray.tasks.metrics import PERPLEXITY
from uedp_ray.tasks.next_word import NextWord
from uedp_ray.training import worker
from uedp_ray.training.evaluate import batches, score
from uedp_ray.training.host import train

END, PAD, UNKNOWN = 0, 1, 2
TASK = NextWord(END, END, PAD, 10)


@pytest.fixture(scope="module")
def model():
    model = build_model(tiny_config().model, vocab_size=VOCABULARY, bos_id=END, eos_id=END, seed=3)
    with torch.no_grad():
        model.get_input_embeddings().weight.mul_(20)  # far from uniform, so that every token counts differently
    return model


def sentences(count=40, unknown=0.2):
    rng = np.random.default_rng(0)
    made = [rng.integers(3, VOCABULARY, rng.integers(0, 9)) for _ in range(count)]
    return [np.where(rng.random(len(s)) < unknown, UNKNOWN, s).astype(np.int32) for s in made]


def by_hand(model, chosen):
    total, count = 0.0, 0
    for words in chosen:
        if not len(words):
            continue  # a sentence without words predicts nothing
        sequence = torch.tensor([[END, *words.tolist(), END]])
        with torch.no_grad():
            logp = model(sequence[:, :-1]).logits[0].double().log_softmax(-1)
        total -= sum(float(logp[t, word]) for t, word in enumerate(sequence[0, 1:].tolist()))
        count += len(words) + 1
    return math.exp(total / count)


def perplexity(model, chosen, **how):
    return mean_perplexity(*score(model, TASK, chosen, device=CPU, **how))


@pytest.mark.parametrize("batch_tokens", [1, 50, 10_000])
def test_it_is_the_hand_computation_whatever_the_batches(model, batch_tokens):
    chosen = sentences()
    assert any(UNKNOWN in s for s in chosen)
    assert any(not len(s) for s in chosen)
    found = perplexity(model, chosen, batch_tokens=batch_tokens)
    assert found == pytest.approx(by_hand(model, chosen), rel=1e-5)


def test_unknown_words_and_sentence_ends_count(model):
    words = np.array([5, UNKNOWN, 7], dtype=np.int32)
    with_unknown = perplexity(model, [words])
    assert with_unknown == pytest.approx(by_hand(model, [words]), rel=1e-5)
    assert with_unknown != pytest.approx(by_hand(model, [words[[0, 2]]]), rel=1e-2)


def test_a_uniform_model_has_the_perplexity_of_its_vocabulary(model):
    uniform = build_model(tiny_config().model, vocab_size=VOCABULARY, bos_id=END, eos_id=END, seed=3)
    with torch.no_grad():
        for parameter in uniform.parameters():
            parameter.zero_()
    assert perplexity(uniform, sentences()) == pytest.approx(VOCABULARY, rel=1e-6)


def test_dropout_is_off_while_evaluating_and_the_mode_comes_back():
    config = tiny_config(model={"dropout_output": 0.9, "dropout_embedding": 0.9})
    model = build_model(config.model, vocab_size=VOCABULARY, bos_id=END, eos_id=END, seed=3).train()
    first, second = (perplexity(model, sentences()) for _ in range(2))
    assert first == second
    assert model.training


def test_batches_hold_every_sentence_once_within_the_limit():
    lengths = np.random.default_rng(1).integers(0, 30, 200)
    packed = list(batches(lengths, 100))
    assert sorted(np.concatenate(packed).tolist()) == list(range(200))
    assert all(len(b) * lengths[b].max() <= 100 for b in packed if len(b) > 1)
    assert len(packed) < 100


def test_a_batch_is_as_full_as_it_may_be():
    assert [len(places) for places in batches([1024] * 8, 4096)] == [4, 4]
    packed = list(batches(lengths := np.random.default_rng(1).integers(1, 30, 200), 100))
    for batch, following in itertools.pairwise(packed):
        assert (len(batch) + 1) * lengths[following[0]] > 100


def test_it_runs_in_bfloat16_if_asked(model):
    seen = []
    watched = model.lm_head.register_forward_hook(lambda _, inputs, output: seen.append(output.dtype))
    exact, rounded = perplexity(model, sentences()), perplexity(model, sentences(), bf16=True)
    watched.remove()
    assert seen == [torch.float32, torch.bfloat16]
    assert exact != rounded == pytest.approx(exact, rel=0.1)


@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_a_run_is_scored_as_it_is_trained(corpora, tmp_path, monkeypatch, precision):
    asked = []
    monkeypatch.setattr(
        worker, "score", lambda *args, bf16, **how: asked.append(bf16) or score(*args, bf16=bf16, **how)
    )
    training = {"precision": precision, "num_rounds": 1, "local_update": "local_sgd", "device": "cpu"}
    bounds = {"entity_bound": "truncate", "holder_bound": "truncate"}
    privacy = {"sentence_clip_norm": None}
    train(run_config(corpora, training=training, bounds=bounds, privacy=privacy), tmp_path / "run", workers=0)
    assert asked == [precision == "bf16"] * 2


def shared(batch_tokens, rank, reducer):
    """What a worker finds, and how many batches it read."""
    model, passed = build_model(tiny_config().model, vocab_size=VOCABULARY, bos_id=END, eos_id=END, seed=3), []
    model.register_forward_pre_hook(lambda *_: passed.append(1))
    how = {"rank": rank, "num_workers": reducer.num_workers, "reducer": reducer}
    return score(model, TASK, sentences(), device=CPU, batch_tokens=batch_tokens, **how), len(passed)


@pytest.mark.parametrize(("batch_tokens", "num_workers"), [(40, 3), (40, 2), (10_000, 3)])
def test_workers_who_share_the_text_have_the_score_of_one_to_the_bit(batch_tokens, num_workers):
    model, passed = build_model(tiny_config().model, vocab_size=VOCABULARY, bos_id=END, eos_id=END, seed=3), []
    model.register_forward_pre_hook(lambda *_: passed.append(1))
    alone = score(model, TASK, sentences(), device=CPU, batch_tokens=batch_tokens)
    found = group(partial(shared, batch_tokens), num_workers)
    assert found[0][0] == alone
    read = [count for _, count in found]
    assert sum(read) == len(passed), "each batch once"
    assert max(read) - min(read) <= 1


def nothing(rank, reducer):
    model = build_model(tiny_config().model, vocab_size=VOCABULARY, bos_id=END, eos_id=END, seed=3)
    how = {"rank": rank, "num_workers": reducer.num_workers, "reducer": reducer}
    return score(model, TASK, [], device=CPU, **how)


def test_workers_who_share_no_text_end_as_one_does():
    found = group(nothing, 2)
    assert "corpus.evaluation" in found[0]
    assert "holds no word to predict" in found[0]


@pytest.mark.slow
def test_a_run_has_the_rows_of_one_process_whoever_scores(fixed, uninterrupted, tmp_path):
    assert train_in_group(fixed, tmp_path / "run", 3) == [None] * 3
    ours, theirs = (pq.read_table(out / "rounds.parquet").to_pylist() for out in (tmp_path / "run", uninterrupted[0]))
    assert ours == theirs


@pytest.mark.parametrize("empty", [[], [np.zeros(0, np.int32)]])
def test_nothing_to_predict_is_the_users_error(model, empty):
    with pytest.raises(InputError, match=r"corpus\.evaluation"):
        score(model, TASK, empty, device=CPU)


def words_of(texts):
    return build_vocabulary(VocabularyConfig(max_size=100), public_text=lambda: iter(texts))


@pytest.mark.parametrize("max_length", [4, 50])
def test_bits_per_byte_is_the_length_of_a_code_for_the_text(model, max_length):
    """Counted by hand: unknown words spelled out at 8 bits a byte, an end for each sentence that fits, nothing cut."""
    vocabulary = words_of(["the nurse called him", "the  über nurse"])
    texts = ["The  nurse saw Łódź twice", "über", "", "the nurse"]
    size = text_size(texts, vocabulary, max_length)
    sentences = encode_texts(texts, vocabulary, max_length)
    task = NextWord(END, END, PAD, max_length)
    sums = score(model, task, sentences, device=CPU)
    found = mean_perplexity(*sums)
    if max_length == 4:  # four words, and no end that the text does not have
        kept, spelled = ["The  nurse saw Łódź", "über", "the nurse"], ["saw", "Łódź"]
        assert (size.tokens, size.cut, size.ends) == (7, 1, 2)
    else:
        kept, spelled = ["The  nurse saw Łódź twice", "über", "the nurse"], ["saw", "Łódź", "twice"]
        assert (size.tokens, size.cut, size.ends) == (8, 0, 3)
    num_bytes = sum(len(text.encode()) for text in kept) + size.ends
    predicted = sum(len(s) for s in sentences) + size.ends
    total_bits = math.log2(found) * predicted + sum(8 * len(w.encode()) for w in spelled)
    scores = task.scores(sums, size)
    assert scores["bits_per_byte"] == pytest.approx(total_bits / num_bytes, rel=1e-9)
    assert scores["unk_share"] == len(spelled) / size.tokens
    assert scores["perplexity"] == found
    scored = "".join(text + "\n" * (max_length == 50 or text != kept[0]) for text in kept)
    assert len(scored.encode()) == num_bytes
    packed = bz2.compress(scored.encode())
    assert size.bzip2_bits_per_byte == 8 * len(packed) / num_bytes


def test_bits_per_byte_compares_vocabularies_where_perplexity_does_not():
    """Models that know nothing: the one with fewer words has the better perplexity, and pays for it by spelling."""
    text = ["the nurse called him in the park", "a doctor left the town"]
    large, small = words_of(text), words_of(["the"])
    by_size = {}
    for name, vocabulary in (("large", large), ("small", small)):
        by_size[name] = TASK.scores((math.log(vocabulary.size), 1), text_size(text, vocabulary, 20))
    assert by_size["small"]["perplexity"] < by_size["large"]["perplexity"]
    assert by_size["small"]["bits_per_byte"] > by_size["large"]["bits_per_byte"]


@pytest.mark.parametrize(("bits", "told"), [(2.9, False), (3.0, True), (3.1, True), (None, False)])
def test_a_model_that_is_no_better_than_bzip2_is_named(bits, told):
    found = PERPLEXITY.worthless({"bits_per_byte": bits, "bzip2_bits_per_byte": 3.0})
    assert bool(found) == told
    assert not told or found.startswith(
        "bzip2 takes 3.000 bits/byte of the same text, and knows no language: a model of 3."
    )
    assert not PERPLEXITY.worthless({"bits_per_byte": 9.0, "bzip2_bits_per_byte": None})  # an earlier version's


def test_a_byte_level_tokenizer_knows_every_word(real_models):
    vocabulary = Vocabulary.load(real_models / "gpt2_tokenizer")
    text = "Łódź is   in Poland"
    size = text_size([text], vocabulary, 50)
    assert (size.unk_share, size.num_bytes) == (0.0, len(text.encode()) + 1)
    places = vocabulary.offsets(text)
    cut = text_size([text], vocabulary, 4)
    assert (cut.tokens, cut.num_bytes) == (4, len(text[: places[3][1]].encode()))


@pytest.mark.parametrize(
    ("text", "max_length", "warned"),
    [
        ("the nurse called him", 20, []),
        ("the nurse called him", 2, ["50% of the evaluation text lies beyond model.max_length"]),
    ],
)
def test_much_text_that_is_cut_is_said(text, max_length, warned):
    said = []
    text_size([text], words_of(["the nurse called him"]), max_length).warn(Told(say=said.append))
    assert len(said) == len(warned)
    assert all(warning in line for warning, line in zip(warned, said, strict=True))
