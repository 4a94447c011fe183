"""What a resume refuses or makes again: other settings, and files that are lost, damaged or of another run."""

from __future__ import annotations

import json
import shutil
import stat
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.told import Told
from tests.training import runs
from tests.training.runs import crash, events, parameters, run_config
from uedp_ray.config import SourceConfig
from uedp_ray.corpus.prepare import prepare
from uedp_ray.errors import InputError
from uedp_ray.training.host import train


def test_another_config_is_refused_and_both_are_named(crashed, corpora):
    other = run_config(corpora, privacy={**runs.TREE["privacy"], "noise_multiplier": 0.5})
    with pytest.raises(InputError) as raised:
        train(other, crashed, workers=0, resume=True)
    assert run_config(corpora).digest()[:12] in str(raised.value)
    assert other.digest()[:12] in str(raised.value)
    assert len(events(crashed)) == 4


def test_machine_settings_may_change_on_resume(crashed, corpora):
    config = run_config(corpora, training={**runs.TREE["training"], "checkpoint_every": 3, "evaluate_every": 1})
    assert train(config, crashed, workers=0, resume=True)["rounds"] == 3


def test_without_resume_a_run_is_never_touched(crashed, corpora):
    before = parameters(crashed)
    with pytest.raises(InputError, match="--resume"):
        train(run_config(corpora), crashed, workers=0)
    assert torch.equal(parameters(crashed), before)


def test_a_folder_that_is_no_run_is_refused(corpora, tmp_path):
    (tmp_path / "thesis.tex").write_text("ten years of work")
    for resume in (False, True):
        with pytest.raises(InputError, match="holds no run"):
            train(run_config(corpora), tmp_path, workers=0, resume=resume)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


@pytest.mark.parametrize(
    ("tamper", "message"),
    [
        (lambda ledger: ledger.unlink(), "is missing"),
        (lambda ledger: cut(ledger, 2), "restore the complete ledger"),
        (lambda ledger: ledger.write_text(ledger.read_text().replace('"round":1', '"round":9')), "line 3"),
    ],
    ids=["deleted", "cut", "changed"],
)
def test_a_ledger_behind_the_checkpoint_is_refused(crashed, corpora, tamper, message):
    tamper(crashed / "ledger.jsonl")
    with pytest.raises(InputError, match=message):
        train(run_config(corpora), crashed, workers=0, resume=True)
    assert not (crashed / "result.json").exists()


def test_an_older_copy_of_all_that_is_charged_under_a_newer_checkpoint_is_refused(corpora, tmp_path):
    """As a backup of the ledger and of private/ would be: nothing in them says that more was charged."""
    out, config = tmp_path / "run", run_config(corpora)
    crash(config, out, charges=2)
    shutil.copytree(out / "private", tmp_path / "private")
    shutil.copy(out / "ledger.jsonl", tmp_path / "ledger.jsonl")
    crash(config, out, charges=3, resume=True)
    assert (out / "checkpoint").exists()
    shutil.rmtree(out / "private")
    shutil.move(tmp_path / "private", out / "private")
    shutil.move(tmp_path / "ledger.jsonl", out / "ledger.jsonl")
    with pytest.raises(InputError, match=r"checkpoint\.ledger_position"):
        train(config, out, workers=0, resume=True)


def cut(ledger: Path, keep: int) -> None:
    ledger.write_text("".join(ledger.read_text().splitlines(keepends=True)[:keep]))


@pytest.mark.parametrize("lost", ["end", "ledger and setup"])
def test_rounds_that_were_paid_are_not_forgotten_before_the_first_checkpoint(corpora, tmp_path, lost):
    """Another config took the place of a run whose ledger had lost its end, and a new key that of its own."""
    out = tmp_path / "run"
    config = run_config(corpora, training={**runs.TREE["training"], "checkpoint_every": 5})
    crash(config, out, charges=3)
    assert not (out / "checkpoint").exists()
    kept = {path: path.read_bytes() for path in (out / "ledger.jsonl", out / "private" / "setup.json")}
    key = (out / "private" / "sampling.key").read_bytes()
    if lost == "end":
        cut(out / "ledger.jsonl", 1)
    else:
        for path in kept:
            path.unlink()
    other = run_config(corpora, training={**runs.TREE["training"], "num_rounds": 4})
    for asked, resume in ((config, True), (other, False), (other, True), (config, False)):
        with pytest.raises(InputError):
            train(asked, out, workers=0, resume=resume)
    assert (out / "private" / "sampling.key").read_bytes() == key
    for path, content in kept.items():
        path.write_bytes(content)
    assert train(config, out, workers=0, resume=True)["rounds"] == 2


def test_the_ledger_of_another_config_is_refused(crashed, corpora, uninterrupted):
    shutil.copy(uninterrupted[0] / "ledger.jsonl", crashed / "ledger.jsonl")
    with pytest.raises(InputError, match="config"):
        train(run_config(corpora), crashed, workers=0, resume=True)


def test_the_ledger_of_another_run_of_the_same_config_is_refused(crashed, corpora, private_run):
    shutil.copy(private_run.out / "ledger.jsonl", crashed / "ledger.jsonl")
    with pytest.raises(InputError, match="ledger"):
        train(run_config(corpora), crashed, workers=0, resume=True)


def test_a_corpus_that_changed_meanwhile_is_refused(tmp_path, corpora):
    folder = tmp_path / "corpora"
    shutil.copytree(corpora, folder)
    crash(run_config(folder), tmp_path / "run", charges=1)
    prepare(SourceConfig(format="synthetic", num_users=30, seed=8), folder / "private", num_shards=2)
    with pytest.raises(InputError, match=r"corpus\.source"):
        train(run_config(folder), tmp_path / "run", workers=0, resume=True)
    assert np.load(tmp_path / "run" / "private" / "sentence_weight.npy").size


def test_what_was_left_beside_a_result_goes_on_the_next_start(private_run, corpora, tmp_path):
    """Where Ray itself was killed, its files and the speeds in ``progress.json`` stay."""
    run = Path(shutil.copytree(private_run.out, tmp_path / "run"))
    (run / "private" / "ray").mkdir()
    (run / "progress.json").write_text("{}")
    train(run_config(corpora), run, workers=0, resume=True)
    assert not (run / "private" / "ray").exists()
    assert not (run / "progress.json").exists()


@pytest.mark.parametrize("file", [False, True])
def test_a_model_that_was_paid_for_is_not_trained_over(private_run, corpora, tmp_path, file):
    """Without a checkpoint training starts over; of a finished run with nothing, which took the place of the model."""
    run = shutil.copytree(private_run.out, tmp_path / "run")
    before = {path.name: path.read_bytes() for path in (run / "model").iterdir()}
    (run / "result.json").unlink()
    kept = shutil.move(run / "checkpoint", tmp_path / "checkpoint")
    if file:
        (run / "checkpoint").touch()
        with pytest.raises(InputError, match=r"checkpoint = .* is no"):
            train(run_config(corpora), run, workers=0, resume=True)
        (run / "checkpoint").unlink()
    with pytest.raises(
        InputError, match=r"checkpoint = .* is missing, and training from scratch would replace the model"
    ):
        train(run_config(corpora), run, workers=0, resume=True)
    assert {path.name: path.read_bytes() for path in (run / "model").iterdir()} == before
    shutil.move(kept, run / "checkpoint")
    train(run_config(corpora), run, workers=0, resume=True)
    assert {path.name: path.read_bytes() for path in (run / "model").iterdir()} == before


def test_a_ledger_of_which_nothing_tells_whether_it_was_cut_is_refused(corpora, tmp_path):
    """Rounds that were cut off it would be repeated on the samples of before."""
    config, out = run_config(corpora), tmp_path / "run"
    crash(config, out, charges=4)
    (out / "private" / "charged").unlink()
    lines = (out / "ledger.jsonl").read_bytes().splitlines(keepends=True)
    (out / "ledger.jsonl").write_bytes(b"".join(lines[:-1]))
    with pytest.raises(
        InputError, match=r"charged = .* is missing.*if an earlier version made the run, which kept none"
    ):
        train(config, out, workers=0, resume=True)
    assert (out / "ledger.jsonl").read_bytes() == b"".join(lines[:-1])


def test_tokens_are_written_where_the_run_keeps_them_whatever_its_setup_says(corpora, tmp_path):
    """A folder anywhere was made the owner's alone, and tokens of the private text were put into it."""
    config, out, victim = run_config(corpora), tmp_path / "run", tmp_path / "victim"
    crash(config, out, charges=3)
    victim.mkdir(mode=0o755)
    setup = json.loads((out / "private" / "setup.json").read_text())
    (out / "private" / "setup.json").write_text(json.dumps(setup | {"tokens": str(victim)}))
    train(config, out, workers=0, resume=True)
    assert stat.S_IMODE(victim.stat().st_mode) == 0o755
    assert list(victim.iterdir()) == []


@pytest.mark.parametrize("starts", ["x", 5, {"a": 1}, {"model.none": {}}, {"a": {"b": "c"}}, ["model"]])
def test_a_setup_whose_starts_are_damaged_is_named(corpora, tmp_path, starts):
    config, out = run_config(corpora), tmp_path / "run"
    crash(config, out, charges=1)
    setup = json.loads((out / "private" / "setup.json").read_text())
    (out / "private" / "setup.json").write_text(json.dumps(setup | {"starts": starts}))
    with pytest.raises(InputError, match=r"setup\.json = .* is damaged \(starts\)"):
        train(config, out, workers=0, resume=True)


@pytest.mark.parametrize("name", ["vocabulary", "private/config.yaml"])
def test_what_is_missing_is_named_with_a_remedy_or_made_again(corpora, tmp_path, name):
    config, out = run_config(corpora), tmp_path / "run"
    crash(config, out, charges=3)
    kept = shutil.move(out / name, tmp_path / "kept")
    if name == "vocabulary":
        with pytest.raises(InputError, match=r"vocabulary = .* is missing: restore the run's copy"):
            train(config, out, workers=0, resume=True)
        shutil.move(kept, out / name)
    assert train(config, out, workers=0, resume=True)["private"]


def test_a_finished_run_without_its_weights_says_how_to_have_them_again(private_run, corpora, tmp_path):
    """They are the largest file of a run, and the first to be deleted; no round is played or charged again."""
    run = shutil.copytree(private_run.out, tmp_path / "run")
    (run / "model" / "model.safetensors").unlink()
    said = []
    train(run_config(corpora), run, workers=0, resume=True, reporter=Told(say=said.append))
    assert sum("delete result.json, and run again with --resume" in line for line in said) == 1
    ledger = (run / "ledger.jsonl").read_bytes()
    (run / "result.json").unlink()
    said.clear()
    train(run_config(corpora), run, workers=0, resume=True, reporter=Told(say=said.append))
    assert torch.equal(parameters(run), parameters(private_run.out))
    assert (run / "ledger.jsonl").read_bytes() == ledger
    train(run_config(corpora), run, workers=0, resume=True, reporter=Told(say=said.append))
    assert not any("result.json" in line for line in said)


def test_a_ledger_that_lost_its_last_lines_is_refused(crashed, corpora, private_run, tmp_path):
    """Also those behind the checkpoint: what they charge was released, and its round would be released again."""
    lines = (crashed / "ledger.jsonl").read_text().splitlines(keepends=True)
    (crashed / "ledger.jsonl").write_text("".join(lines[:-1]))
    with pytest.raises(InputError, match=r"ledger.jsonl.*restore the complete ledger"):
        train(run_config(corpora), crashed, workers=0, resume=True)
    (crashed / "ledger.jsonl").write_text("".join(lines))
    assert train(run_config(corpora), crashed, workers=0, resume=True)["rounds"] == 3


@pytest.mark.parametrize("file", ["tokenizer.json", "tokenizer_config.json"])
def test_a_vocabulary_that_changed_between_starts_is_refused(crashed, corpora, file):
    """The rounds to come would train on other tokens, and the scores be of a vocabulary that is gone."""
    path = crashed / "vocabulary" / file
    whole = path.read_text()
    path.write_text(whole.replace("e", "a", 1) if file == "tokenizer.json" else whole + "\n")
    with pytest.raises(InputError, match=r"vocabulary.*has changed since the run began: put it back"):
        train(run_config(corpora), crashed, workers=0, resume=True)
    path.write_text(whole)
    train(run_config(corpora), crashed, workers=0, resume=True)
