"""Runs whose text is transformed: what they train on, what they say, and what they refuse to mix."""

from __future__ import annotations

import json

import numpy as np
import pytest

from tests.training.runs import crash, run_config
from uedp_ray.config import load_config
from uedp_ray.corpus.vocabulary import Vocabulary
from uedp_ray.errors import InputError
from uedp_ray.training.compare import Comparison, compare
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
