"""Runs whose text is transformed: what they train on, what they say, and what they refuse to mix."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import yaml

from tests.told import Told
from tests.training.runs import crash, run_config
from uedp_ray.config import as_yaml, load_config
from uedp_ray.corpus.synthetic import generate
from uedp_ray.corpus.vectors import WORD
from uedp_ray.corpus.vocabulary import Vocabulary
from uedp_ray.errors import InputError
from uedp_ray.search.compare import compare
from uedp_ray.search.comparison import Comparison
from uedp_ray.training.checks import check_run, ignored
from uedp_ray.training.host import train
from uedp_ray.training.prepared import Prepared
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
    compare(comparison, tmp_path / "out", workers=0)
    tokens = [Prepared.open(RunDir(tmp_path / "out" / name)).tokens.tokens for name in ("plain", "masked")]
    assert not np.array_equal(*tokens)
    setups = [json.loads((tmp_path / "out" / name / "private/setup.json").read_text()) for name in ("plain", "masked")]
    assert setups[0]["corpus_digest"] == setups[1]["corpus_digest"], "one prepared corpus serves both"


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
    assert shown["corpus"]["transform"] == {"kind": "mask"}
