"""Making a run directory ready: keys, paths, and what the corpus says of itself."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.training.runs import run_config
from uedp_ray.errors import InputError
from uedp_ray.privacy.ledger import Ledger
from uedp_ray.training.host import train
from uedp_ray.training.rundir import prepare_run


def test_a_run_whose_ledger_is_gone_draws_with_a_new_key(corpora, tmp_path):
    """With the old key it would draw the same secret samples again, and nothing would charge for them."""
    config = run_config(corpora)
    run = prepare_run(config, tmp_path / "run", resume=False)
    before = run.key.read_text()
    assert prepare_run(config, tmp_path / "run", resume=True).key.read_text() == before
    run.ledger.unlink()
    run.setup.unlink()
    shutil.rmtree(run.vocabulary)
    assert prepare_run(config, tmp_path / "run", resume=True).key.read_text() != before


def test_a_folder_in_which_setting_up_failed_takes_a_mended_config(corpora, tmp_path):
    strict = {"mode": "declared", "max_holders": 1}
    with pytest.raises(InputError, match="max_sentences_per_entity"):
        prepare_run(run_config(corpora, bounds=strict), tmp_path / "run", resume=False)
    mended = run_config(corpora)
    run = prepare_run(mended, tmp_path / "run", resume=False)
    assert run.load_config().digest() == mended.digest()
    with pytest.raises(InputError, match="holds a run already"):
        prepare_run(mended, tmp_path / "run", resume=False)


@pytest.mark.parametrize(
    ("privacy", "caution"),
    [
        ({"target_epsilon": 5.0, "delta": 0.04}, "1 / 30 declared users"),
        ({"target_epsilon": 1e-4}, "nothing can be learnt"),
    ],
)
def test_settings_that_are_of_no_use_are_told_before_any_text_is_read(corpora, tmp_path, privacy, caution):
    said = []
    config = run_config(corpora, privacy={**privacy, "noise_multiplier": None})
    prepare_run(config, tmp_path / "run", resume=False, say=said.append)
    assert said[0].startswith("caution: ")
    assert caution in said[0]
    assert said[1] == "reading the corpus"


def test_relative_paths_are_named_from_the_root_for_workers_elsewhere(corpora, pretrained, tmp_path, monkeypatch):
    monkeypatch.chdir(Path(pretrained.out))
    config = run_config(corpora, model={"warm_start": "model"})
    run = prepare_run(config, tmp_path / "run", resume=False)
    assert run.load_config().model.warm_start == str((Path(pretrained.out) / "model").resolve())
    prepare_run(config, tmp_path / "run", resume=True)  # the same run, named the same way


def test_what_name_stands_for_is_used_and_not_published(corpora, pretrained, tmp_path, monkeypatch):
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "model").symlink_to(Path(pretrained.out) / "model")
    shutil.copytree(corpora, tmp_path / "two" / "corpora")
    (tmp_path / "one" / "corpora").symlink_to(corpora)
    monkeypatch.setenv("UEDP_HERE", str(tmp_path / "one"))
    corpus = {"source": {"path": "$UEDP_HERE/corpora/private"}, "evaluation": {"path": "${UEDP_HERE}/corpora/held_out"}}
    config = run_config(corpora, corpus=corpus, model={"warm_start": "$UEDP_HERE/model"}, training={"num_rounds": 1})
    run = prepare_run(config, tmp_path / "run", resume=False)
    monkeypatch.setenv("UEDP_HERE", str(tmp_path / "two"))  # another machine, with the same text elsewhere
    train(run.load_config(), tmp_path / "run", workers=0, resume=True)
    assert "path: $UEDP_HERE/corpora/private" in run.config.read_text()
    published = [path for path in run.root.rglob("*") if path.is_file() and run.private not in path.parents]
    private = [str(tmp_path / "one").encode(), str(corpora).encode()]
    assert not [path for path in published for text in private if text in path.read_bytes()]
    monkeypatch.delenv("UEDP_HERE")
    with pytest.raises(InputError, match=r"corpus.evaluation.path = .*UEDP_HERE is not set"):
        train(run.load_config(), tmp_path / "run", workers=0, resume=True)


def test_the_statement_names_the_detectors_the_corpus_was_prepared_with(private_run):
    text = (private_run.out / "privacy.md").read_text()
    assert "Entities found by: annotated; categories: all found." in text


def test_there_must_be_a_run_to_resume(corpora, tmp_path):
    with pytest.raises(InputError, match="holds no run to resume"):
        prepare_run(run_config(corpora), tmp_path / "tpyo", resume=True)
    assert not (tmp_path / "tpyo").exists()


def test_a_start_that_fails_after_the_ledger_is_opened_can_be_mended(corpora, tmp_path):
    absent = run_config(corpora, model={"warm_start": str(tmp_path / "absent")})
    with pytest.raises(InputError, match=r"model\.warm_start"):
        prepare_run(absent, tmp_path / "run", resume=False)
    mended = run_config(corpora)
    run = prepare_run(mended, tmp_path / "run", resume=False)
    assert Ledger.open(run.ledger, config_digest=mended.digest()).header["private"] is True


def test_a_run_that_charged_anything_is_never_cleared(private_run, corpora):
    with pytest.raises(InputError, match="holds a run already"):
        prepare_run(run_config(corpora, training={"num_rounds": 9}), private_run.out, resume=False)
    assert (private_run.out / "result.json").exists()


def test_a_model_trained_on_private_text_is_no_public_start(private_run, corpora, tmp_path):
    config = run_config(corpora, model={"warm_start": str(private_run.out / "model")})
    with pytest.raises(InputError, match="was trained on private text"):
        prepare_run(config, tmp_path / "run", resume=False)
