"""Runs whose text is transformed: what they train on, what they say, and what they refuse to mix."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml

from tests.conftest import Done
from tests.told import Told
from tests.training.runs import TEST_NOISE, crash, events, run_config
from uedp_ray import methods
from uedp_ray.config import as_yaml, load_config
from uedp_ray.corpus.store import open_corpus
from uedp_ray.corpus.synthetic import generate
from uedp_ray.corpus.vectors import WORD
from uedp_ray.corpus.vocabulary import Vocabulary
from uedp_ray.errors import InputError
from uedp_ray.models.saved import load_model
from uedp_ray.search.compare import compare
from uedp_ray.search.comparison import Comparison
from uedp_ray.training.checks import check_run, ignored
from uedp_ray.training.host import train
from uedp_ray.training.prepared import Prepared
from uedp_ray.training.run_vocabulary import make_vocabulary
from uedp_ray.training.rundir import RunDir

MASK = {"transform": {"kind": "mask"}}
NOISY = {"kind": "noisy-threshold", "noise_multiplier": 0.05, "threshold_delta": 1e-5, "max_words_per_user": 50}
NOISY |= {"public_text": []}


@pytest.mark.parametrize(("kind", "section"), [("plain", {}), ("masked", MASK)])
def test_words_and_tokens_are_those_of_the_transformed_text(corpora, tmp_path, kind, section):
    out = tmp_path / "run"
    train(run_config(corpora, corpus=section, vocabulary=NOISY), out, workers=0)
    vocabulary = Vocabulary.load(out / "vocabulary")
    trained = vocabulary.decode(np.unique(Prepared.open(RunDir(out)).tokens.tokens).tolist())
    for text in (trained, " ".join(vocabulary.tokenizer.get_vocab())):
        assert ("[person]" in text) == (kind == "masked")
    assert ("was transformed before training (`mask`)" in (out / "privacy.md").read_text()) == (kind == "masked")
    assert load_config(out / "config.yaml").corpus.transform.kind == ("mask" if kind == "masked" else "none")


def test_a_transform_changes_no_epsilon_and_no_bound(corpora, tmp_path):
    plain, masked = (
        train(run_config(corpora, corpus=section), tmp_path / str(len(section)), workers=0) for section in ({}, MASK)
    )
    assert plain["epsilon"] == masked["epsilon"]
    runs = [RunDir(tmp_path / str(number)) for number in (0, 1)]
    weights = [np.load(run.sentence_weight) for run in runs]
    np.testing.assert_array_equal(*weights)
    tokens = [Prepared.open(run).tokens for run in runs]
    assert tokens[0].num_sentences == tokens[1].num_sentences
    assert not np.array_equal(tokens[0].tokens, tokens[1].tokens)


def test_a_run_does_not_go_on_with_another_transform(corpora, tmp_path):
    config = run_config(corpora, corpus=MASK)
    crash(config, tmp_path / "run", charges=1)
    with pytest.raises(InputError):
        train(run_config(corpora), tmp_path / "run", workers=0, resume=True)
    assert train(config, tmp_path / "run", workers=0, resume=True)["private"]


def test_variants_of_a_comparison_may_differ_in_their_transform(corpora, tmp_path):
    pretraining = {"text": [{"format": "synthetic", "num_users": 8, "part": "public"}], "num_steps": 2}
    comparison = Comparison(
        run_config(corpora, pretrain=pretraining),
        {"plain": ("uedp", {}), "masked": ("uedp", {"corpus.transform.kind": "mask"})},
    )
    answer = compare(comparison, tmp_path / "out", workers=0)
    assert [row["retention"] for row in answer["rows"]] == [None, None, 1.0, 0.0]
    assert not any("retention" in row for row in json.loads((tmp_path / "out" / "table.json").read_text())["rows"])
    with (tmp_path / "out" / "table.csv").open() as file:  # every row has a guarantee, but none covers this figure
        assert {row["retention"] for row in csv.DictReader(file)} == {""}
    tokens = [Prepared.open(RunDir(tmp_path / "out" / name)).tokens.tokens for name in ("plain", "masked")]
    assert not np.array_equal(*tokens)
    setups = [json.loads((tmp_path / "out" / name / "private/setup.json").read_text()) for name in ("plain", "masked")]
    assert setups[0]["corpus_digest"] == setups[1]["corpus_digest"], "one prepared corpus serves both"
    words = Vocabulary.load(tmp_path / "out" / "pretrained" / "model")
    assert words.tokenizer.convert_ids_to_tokens(words.encode_batch(["[Person] [person], [loc]"])[0]) == (
        ["<unk>", "[person]", ",", "[loc]"]
    ), "a mask is one token of the vocabulary that all share, whatever the base does"


@pytest.mark.parametrize("kind", ["public-words", "public-subwords"])
def test_a_mask_is_one_token_of_a_vocabulary_made_of_public_text(corpora, kind):
    sections = {"vocabulary": {"kind": kind, "max_size": 300, "strip_punctuation": True, "lowercase": True}}
    plain = make_vocabulary(run_config(corpora, **sections))
    masking = run_config(corpora, **sections, corpus=MASK | {"categories": ["person", "protein"]})
    vocabulary = make_vocabulary(masking)
    tokens = vocabulary.tokenizer.convert_ids_to_tokens(vocabulary.encode_batch(["the [person][protein], [loc]"])[0])
    assert [token for token in tokens if "[" in token] == ["[person]", "[protein]"], "of the categories that are named"
    assert vocabulary.size == plain.size == 300
    assert "[person]" not in plain.tokenizer.get_vocab()
    unnamed = make_vocabulary(run_config(corpora, **sections, corpus={"transform": {"kind": "mask", "style": "token"}}))
    assert sorted(unnamed.tokenizer.get_added_vocab())[-1] == "[entity]"
    small = sections["vocabulary"] | {"max_size": 258 if kind == "public-subwords" else 5}
    with pytest.raises(
        InputError, match=r"vocabulary\.max_size = \d+: has no room for the 3 words that corpus\.transform"
    ):
        make_vocabulary(run_config(corpora, vocabulary=small, corpus=MASK | {"categories": ["person", "protein"]}))


def masked_by_hand(corpora):
    for _, sentences in open_corpus(corpora / "held_out").sentences():
        for sentence in sentences:
            text = sentence.text
            for each in sorted(sentence.mentions, key=lambda each: -each.start):
                text = f"{text[: each.start]}[{each.category}]{text[each.end :]}"
            yield text


@pytest.fixture(scope="module")
def masked_run(corpora, tmp_path_factory):
    out = tmp_path_factory.mktemp("masked") / "run"
    return Done(out, train(run_config(corpora, corpus=MASK, privacy=TEST_NOISE), out, workers=0))


def test_a_run_is_scored_on_transformed_text_beside_the_text_as_it_is(corpora, masked_run, tmp_path):
    """The model is the same, and so is its metric; the second score is the hand computation on text masked by hand."""
    out, plain, told = tmp_path / "run", masked_run.result, list[str]()
    section = {"transform": {"kind": "mask", "apply_to_evaluation": True}}
    config = run_config(corpora, corpus=section, privacy=TEST_NOISE)
    both = train(config, out, workers=0, reporter=Told(say=told.append))
    second = both["transformed_evaluation"]
    scores = ("perplexity", "bits_per_byte", "unk_share")
    assert [both[name] for name in scores] == [plain[name] for name in scores]
    assert set(second) == set(scores)
    model, words = load_model(out / "model"), Vocabulary.load(out / "vocabulary")
    total = count = 0.0
    for ids in words.encode_batch(list(masked_by_hand(corpora))):
        if len(ids):
            whole = [words.bos_id, *ids.tolist(), words.eos_id][:13]  # max_length = 12: what is beyond is not predicted
            inputs = torch.tensor([whole[:-1]])
            losses = model(inputs).logits[0].detach().double().log_softmax(-1)[range(len(whole) - 1), whole[1:]]
            total, count = total - float(losses.sum()), count + len(whole) - 1
    assert second["perplexity"] == pytest.approx(np.exp(total / count), rel=1e-4)
    assert json.loads((out / "result.json").read_text())["transformed_evaluation"] == second
    assert "transformed_evaluation" not in plain
    (line,) = {line for line in told if "still found" in line}
    assert line.endswith("(private: read off the text)")


def test_what_a_transform_left_of_the_mentions_is_private(private_run, masked_run):
    found = masked_run.result["retention"]
    assert found["all"] == 0.0
    assert set(found["by_category"].values()) == {0.0}
    assert private_run.result["retention"] == {"all": 1.0, "by_category": {}}
    public = [path for path in masked_run.out.rglob("*") if path.is_file() and "private" not in path.parts]
    assert len(public) > 5
    assert not [path.name for path in public if b"retention" in path.read_bytes()]


def test_transformed_text_without_a_word_to_score_is_refused_before_a_round_is_charged(corpora, tmp_path):
    section = {"transform": {"kind": "fragments", "share": 0.0, "apply_to_evaluation": True}}
    with pytest.raises(InputError, match=r"corpus\.evaluation"):
        train(run_config(corpora, corpus=section), tmp_path / "run", workers=0)
    assert not events(tmp_path / "run")


def test_de_identification_trains_ordinarily_on_masked_text(corpora, tmp_path):
    settings = {"training.num_rounds": 1, "training.server_learning_rate": 1e-3}
    config = methods.apply(run_config(corpora), "de_identification", settings)
    result = train(config, tmp_path / "run", workers=0)
    assert (result["private"], result["retention"]["all"]) == (False, 0.0)
    assert result["transformed_evaluation"]["perplexity"] != result["perplexity"]


@pytest.fixture
def words(tmp_path):
    """The transform section of a run whose words are replaced, by made-up vectors of words of public text."""
    public = sorted({word for each in generate(40, seed=3, part="public") for word in WORD.findall(each.text.lower())})
    points = np.random.default_rng(0).normal(size=(len(public), 4))
    file = tmp_path / "toy.txt"
    file.write_text("".join(f"{word} {' '.join(map(str, at))}\n" for word, at in zip(public, points, strict=True)))
    return {"kind": "replace_words", "vectors": str(file), "num_neighbours": 5, "draw": "user"}


def test_a_run_whose_words_are_replaced_states_what_that_guarantees(corpora, tmp_path, words):
    told: list[str] = []
    config = run_config(corpora, corpus={"transform": words})
    result = train(config, tmp_path / "run", workers=0, reporter=Told(say=told.append))
    central, local = (
        next(each for each in result["guarantees"] if each["trust"] == trust) for trust in ("central", "local")
    )
    assert central["unit"] == "user-entity"
    assert (local["unit"], local["epsilon"], local["sound"], local["accountant"]) == ("word", 1.0, True, "pure")
    assert "A word is drawn once for a user" in local["note"]
    (line,) = (line for line in told if "draws of epsilon" in line)
    assert line.endswith("(private: read off the text)")
    statement = (tmp_path / "run" / "privacy.md").read_text()
    assert "was transformed before training (`replace_words`)" in statement
    assert "draws of epsilon" not in statement + json.dumps(result)


def test_noise_of_a_known_seed_guarantees_no_words_either(corpora, tmp_path, words):
    config = run_config(corpora, corpus={"transform": words}, privacy=TEST_NOISE, training={"num_rounds": 1})
    result = train(config, tmp_path / "run", workers=0)
    assert [each["unit"] for each in result["guarantees"]] == ["none"]


def test_a_run_does_not_go_on_with_other_vectors(corpora, tmp_path, words):
    config = run_config(corpora, corpus={"transform": words})
    crash(config, tmp_path / "run", charges=1)
    file = Path(words["vectors"])
    before = file.read_text()
    for wrong in (before.replace(" 0.", " 1.", 1), None):
        file.unlink() if wrong is None else file.write_text(wrong)
        with pytest.raises(
            InputError, match=r"corpus\.transform\.vectors = .*toy\.txt': has changed since the run began"
        ):
            train(config, tmp_path / "run", workers=0, resume=True)
    file.write_text(before)
    assert train(config, tmp_path / "run", workers=0, resume=True)["private"]


def test_vectors_that_are_missing_are_told_before_text_is_read_and_settings_in_vain_are_named(corpora, words):
    with pytest.raises(InputError, match=r"corpus\.transform\.vectors = 'none\.txt': cannot be read"):
        check_run(run_config(corpora, corpus={"transform": words | {"vectors": "none.txt"}}))
    section = words | {"mechanism": "vickrey", "mapping": "aggressive"}
    assert [note for note in ignored(run_config(corpora, corpus={"transform": section})) if "transform" in note] == [
        "corpus.transform.num_neighbours is ignored: corpus.transform.mechanism is vickrey",
        "corpus.transform.mapping is ignored: corpus.transform.mechanism is vickrey",
    ]
    config = run_config(corpora, corpus={"transform": {"kind": "mask", "epsilon": 2.0}})
    assert "corpus.transform.epsilon is ignored: corpus.transform.kind is mask" in list(ignored(config))
    shown = yaml.safe_load(as_yaml(run_config(corpora, corpus={"transform": {"kind": "mask"}})))
    assert shown["corpus"]["transform"] == {"kind": "mask", "apply_to_evaluation": False, "style": "category"}
