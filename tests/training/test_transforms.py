"""Runs on transformed text: what they train on, what other text is compared with, and what a resume finds."""

from __future__ import annotations

import json
import shutil

import pytest

from tests.training.runs import TEST_NOISE, crash, events, parameters, run_config
from uedp_ray.corpus.store import open_corpus
from uedp_ray.errors import InputError
from uedp_ray.training.host import train
from uedp_ray.training.prepared import Prepared
from uedp_ray.training.rundir import RunDir

FRAGMENTS = {"kind": "fragments", "words": 3, "share": 0.5}


def config_of(corpora, transform=FRAGMENTS, **sections):
    config = run_config(corpora, **sections)
    tree = {**vars(config.corpus), "transform": type(config.corpus.transform)(**transform)}
    return type(config)(**{**vars(config), "corpus": type(config.corpus)(**tree)})


def test_a_run_trains_on_what_the_transform_makes_and_is_charged_as_ever(corpora, tmp_path):
    result = train(config_of(corpora), tmp_path / "run", workers=0)
    plain = train(run_config(corpora), tmp_path / "plain", workers=0)
    assert result["private"]
    assert result["epsilon"] == plain["epsilon"]
    found = Prepared.open(RunDir(tmp_path / "run"))
    assert found.corpus.transformed
    assert max(found.corpus.sentence_words) == 3
    assert found.corpus.statistics["tokens"] < open_corpus(corpora / "private").statistics["tokens"]
    assert not open_corpus(corpora / "private").transformed
    assert "fragments" in (tmp_path / "run" / "privacy.md").read_text()
    assert "transform" not in (tmp_path / "plain" / "privacy.md").read_text()


def test_a_resume_trains_on_the_same_pieces(corpora, tmp_path):
    config = config_of(corpora, privacy=TEST_NOISE)
    train(config, tmp_path / "whole", workers=0)
    crash(config, tmp_path / "run", charges=4)
    before = open_corpus(tmp_path / "run" / "private" / "transformed").digest
    train(config, tmp_path / "run", workers=0, resume=True)
    assert open_corpus(tmp_path / "run" / "private" / "transformed").digest == before
    assert parameters(tmp_path / "run").equal(parameters(tmp_path / "whole"))


@pytest.mark.parametrize("setup_too", [False, True])
def test_pieces_that_are_gone_are_not_drawn_again_once_something_was_charged(corpora, tmp_path, setup_too):
    config = config_of(corpora)
    crash(config, tmp_path / "run", charges=2)
    kept = shutil.move(tmp_path / "run" / "private" / "transformed", tmp_path / "kept")
    if setup_too:
        (tmp_path / "run" / "private" / "setup.json").unlink()
    with pytest.raises(InputError, match=r"transformed"):
        train(config, tmp_path / "run", workers=0, resume=True)
    assert len(events(tmp_path / "run")) == 2
    shutil.move(kept, tmp_path / "run" / "private" / "transformed")
    assert train(config, tmp_path / "run", workers=0, resume=True)["private"]


def test_a_setup_that_says_nothing_of_the_transform_is_refused(corpora, tmp_path):
    config = config_of(corpora)
    crash(config, tmp_path / "run", charges=2)
    path = tmp_path / "run" / "private" / "setup.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"transformed": None}))
    with pytest.raises(InputError, match=r"is damaged \(transformed\)"):
        train(config, tmp_path / "run", workers=0, resume=True)


def test_other_text_is_compared_with_the_text_as_it_is(corpora, tmp_path):
    """Cut into three words, the private text would be recognised nowhere."""
    config = config_of(corpora)
    words = type(config.vocabulary)(public_text=(config.corpus.source,), max_size=250)
    with pytest.raises(InputError, match="is the private text itself"):
        type(config)(**{**vars(config), "vocabulary": words})
    shutil.copytree(corpora / "private", tmp_path / "copy")
    source = type(config.corpus.source)(path=str(tmp_path / "copy"))
    words = type(config.vocabulary)(public_text=(source,), max_size=250)
    with pytest.raises(InputError, match=r"vocabulary.public_text"):
        train(type(config)(**{**vars(config), "vocabulary": words}), tmp_path / "run", workers=0)
    evaluated = type(config.corpus)(**{**vars(config.corpus), "evaluation": source})
    with pytest.raises(InputError, match=r"corpus.evaluation"):
        train(type(config)(**{**vars(config), "corpus": evaluated}), tmp_path / "other", workers=0)


def test_nothing_left_is_no_error(corpora, tmp_path):
    """A refusal would tell of the text: how much there was to draw from."""
    config = config_of(corpora, {**FRAGMENTS, "share": 1e-9})
    assert train(config, tmp_path / "run", workers=0)["rounds"] == 5


def test_declared_bounds_are_of_the_text_as_it_is(corpora):
    with pytest.raises(InputError, match=r"bounds.mode = 'declared'.*use enforced"):
        config_of(corpora, bounds={"mode": "declared", "max_holders": 30})


def test_the_digest_of_a_run_without_one_is_what_it_was(corpora):
    config = run_config(corpora)
    settings = config_of(corpora, {"kind": "none", "words": 9})
    assert settings.digest() == config.digest() != config_of(corpora).digest()
