"""What no run made, among or in the place of what a run makes: not deleted, waited for, written through or published."""

from __future__ import annotations

import copy
import os
import shutil

import pytest

from tests.told import Told
from tests.training.runs import NUM_USERS, TREE, crash, events, run_config, run_tree
from uedp_ray import export
from uedp_ray.config import RunConfig, dump_config, from_dict
from uedp_ray.errors import InputError
from uedp_ray.training.host import train


@pytest.fixture
def refused(corpora, tmp_path):
    """A run folder whose first start was refused once its text was read."""
    tree = run_tree(corpora)
    tree["corpus"]["declared_num_users"] = 5
    with pytest.raises(InputError, match="declare a round bound that could be known without it"):
        train(from_dict(RunConfig, tree), tmp_path / "run", workers=0)
    return tmp_path / "run"


@pytest.mark.parametrize("name", ["result.json", "ledger.jsonl", "privacy.md"])
def test_a_name_of_the_run_folder_is_none_of_private(corpora, refused, name):
    (refused / "private" / name).write_text("all there is")
    with pytest.raises(InputError, match=f"'{name}', which no run makes: move it"):
        train(run_config(corpora), refused, workers=0)
    assert (refused / "private" / name).read_text() == "all there is"


def test_what_was_put_into_private_after_a_refused_start_stays(corpora, refused):
    """``private/`` invites it: the only copy of the text was deleted by the next start."""
    (refused / "private" / "notes.jsonl").write_text("all there is")
    for resume in (False, True):
        with pytest.raises(InputError, match=r"'notes\.jsonl', which no run makes: move it"):
            train(run_config(corpora), refused, workers=0, resume=resume)
        assert (refused / "private" / "notes.jsonl").read_text() == "all there is"
    (refused / "private" / "notes.jsonl").unlink()
    assert train(run_config(corpora), refused, workers=0)["rounds"] == 5


@pytest.fixture
def unpaid(tmp_path, monkeypatch):
    """A run folder of a start that read its text itself, and ended before it charged anything."""
    source = {"format": "synthetic", "num_users": NUM_USERS}
    tree = copy.deepcopy(TREE)
    tree["corpus"] |= {"source": source, "evaluation": {**source, "num_users": 5, "part": "held_out"}}

    def stop(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("uedp_ray.training.setup.starts_of", stop)
        with pytest.raises(KeyboardInterrupt):
            train(from_dict(RunConfig, tree), tmp_path / "run", workers=0)
    tree["training"]["num_rounds"] = 3
    return tmp_path / "run", from_dict(RunConfig, tree)


def test_what_was_put_among_a_starts_files_stays(unpaid):
    out, other = unpaid
    made = {path for path in out.rglob("*") if path.is_dir()}
    assert len(made) >= 10, "corpora, tokens and a vocabulary: else nothing is tested"
    for folder in sorted(made):
        for name in ("notes.jsonl", "notes.parquet", "deep/notes.npy"):
            mine = folder / name
            mine.parent.mkdir(exist_ok=True)
            mine.write_text("all there is")
            with pytest.raises(InputError, match=r"notes\.|deep|holds no run"):
                train(other, out, workers=0)
            assert mine.read_text() == "all there is"
            mine.unlink()
            if mine.parent != folder:
                mine.parent.rmdir()
    assert train(other, out, workers=0)["rounds"] == 3


@pytest.mark.parametrize(
    "name", ["rounds.parquet", "privacy.md", "private/speed.json", "private/text.json", "progress.json", "ledger.jsonl"]
)
def test_a_folder_under_the_name_of_a_file_stays(corpora, refused, name):
    (refused / name).unlink(missing_ok=True)
    (refused / name).mkdir()
    (refused / name / "mine").write_text("all there is")
    with pytest.raises(InputError, match="is a folder where a file belongs: move it elsewhere"):
        train(run_config(corpora), refused, workers=0)
    assert (refused / name / "mine").read_text() == "all there is"


def test_what_was_put_beside_the_model_stays(corpora, tmp_path):
    """A resume writes ``model/`` anew where a kill came before the result."""
    config, out = run_config(corpora), tmp_path / "run"
    train(config, out, workers=0)
    (out / "result.json").unlink()
    (out / "model" / "README.md").write_text("all there is")
    with pytest.raises(InputError, match=r"is about to be rebuilt without its 'README\.md': move that elsewhere"):
        train(config, out, workers=0, resume=True)
    (out / "model" / "README.md").unlink()
    assert train(config, out, workers=0, resume=True)["rounds"] == 5


@pytest.mark.parametrize("left", ["private/.corpus.lock", "private/.evaluation.lock", "private/error-my run-0.json"])
def test_what_a_killed_start_left_is_ours(corpora, refused, left):
    (refused / left).touch()
    assert train(run_config(corpora), refused, workers=0)["rounds"] == 5
    assert not (refused / left).exists() or left.endswith(".lock")


@pytest.mark.parametrize("inside", [("config.yaml",), ("config.yaml", "notes.jsonl", "corpus/mine.txt")])
def test_a_folder_of_the_users_own_is_refused_and_stays(corpora, tmp_path, inside):
    config, out = run_config(corpora), tmp_path / "exp"
    for name in inside:
        (out / "private" / name).parent.mkdir(parents=True, exist_ok=True)
        (out / "private" / name).write_text("name: mine\nprivacy: {target_epsilon: 8}\n")
    for own in (False, True):
        if own:
            dump_config(config, out / "config.yaml")
        before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file() and path.name != "driver.lock"}
        for rounds in (5, 2):
            changed = run_config(corpora, training={**TREE["training"], "num_rounds": rounds})
            with pytest.raises(InputError, match="holds no run: name another folder"):
                train(changed, out, workers=0)
        assert {path: path.read_bytes() for path in before} == before


def test_a_vocabulary_that_was_released_is_not_forgotten(corpora, tmp_path, monkeypatch):
    words = {"kind": "noisy-threshold", "noise_multiplier": 0.02, "threshold_delta": 5e-5, "max_words_per_user": 5}
    config, out = run_config(corpora, vocabulary=words), tmp_path / "run"

    def stop(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("uedp_ray.training.setup._tokenise", stop)
        with pytest.raises(KeyboardInterrupt):
            train(config, out, workers=0)
    assert len(events(out, "vocabulary")) == 1
    whole = (out / "ledger.jsonl").read_bytes()
    (out / "ledger.jsonl").write_bytes(whole.splitlines(keepends=True)[0])
    with pytest.raises(InputError, match="has 1 lines, of 2 that were charged"):
        train(config, out, workers=0, resume=True)
    (out / "ledger.jsonl").unlink()
    other = run_config(corpora, vocabulary=words, training={**TREE["training"], "num_rounds": 3})
    for asked, resume in ((config, True), (config, False), (other, False)):
        with pytest.raises(InputError):
            train(asked, out, workers=0, resume=resume)
        assert (out / "vocabulary").exists(), "it was released, and nothing says so any more"
    (out / "ledger.jsonl").write_bytes(whole)
    train(config, out, workers=0, resume=True)
    assert len(events(out, "vocabulary")) == 1


def test_another_config_takes_the_place_of_a_run_with_words_that_cost_nothing(corpora, tmp_path, monkeypatch):
    """Of both folders called ``vocabulary`` one alone could be set aside."""
    with monkeypatch.context() as patched:
        patched.setattr("uedp_ray.training.setup._tokenise", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            train(run_config(corpora), tmp_path / "run", workers=0)
    (tmp_path / "run" / "private" / "vocabulary").mkdir()
    other = run_config(corpora, training={**TREE["training"], "num_rounds": 3})
    assert train(other, tmp_path / "run", workers=0)["rounds"] == 3


@pytest.mark.parametrize("name", ["private/charged", "checkpoint", "model", "vocabulary"])
@pytest.mark.parametrize("kind", ["pipe", "link", "dead link"])
def test_nothing_is_charged_where_something_else_is_in_the_place_of_ours(corpora, tmp_path, name, kind):
    config, out = run_config(corpora), tmp_path / "run"
    crash(config, out, charges=3)
    path, outside = out / name, tmp_path / "outside"
    if path.is_dir():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to(outside)
        if kind == "link":
            outside.write_text("abc")
    charged = (out / "ledger.jsonl").read_bytes()
    with pytest.raises(InputError, match=r"is not a (regular file|folder): restore the run's copy"):
        train(config, out, workers=0, resume=True)
    assert (out / "ledger.jsonl").read_bytes() == charged
    assert not outside.exists() or outside.read_text() == "abc"


def test_a_link_in_the_place_of_private_leads_nowhere(corpora, tmp_path):
    """A stranger's run made the folder that it led to owner-only, and replaced files there."""
    config, out, elsewhere = run_config(corpora), tmp_path / "run", tmp_path / "elsewhere"
    crash(config, out, charges=3)
    shutil.move(out / "private", elsewhere)
    elsewhere.chmod(0o755)
    (out / "private").symlink_to(elsewhere)
    before = {path.name: path.stat().st_mtime_ns for path in elsewhere.iterdir()}
    with pytest.raises(InputError, match=r"private = .* is a link"):
        train(config, out, workers=0, resume=True)
    assert elsewhere.stat().st_mode & 0o777 == 0o755
    assert {path.name: path.stat().st_mtime_ns for path in elsewhere.iterdir()} == before


def test_a_copy_of_a_checkpoint_is_kept(corpora, tmp_path):
    config, out = run_config(corpora), tmp_path / "run"
    crash(config, out, charges=3)
    (out / "checkpoint" / "round-000002-keep.safetensors").write_text("mine")
    train(config, out, workers=0, resume=True)
    assert (out / "checkpoint" / "round-000002-keep.safetensors").read_text() == "mine"
    assert len(list((out / "checkpoint").iterdir())) == 3, "it, the last checkpoint, and which that is"


def test_a_checkpoint_that_is_gone_is_said_before_the_rest_is_spent(corpora, tmp_path):
    config, out = run_config(corpora), tmp_path / "run"
    crash(config, out, charges=3)
    shutil.rmtree(out / "checkpoint")
    said = []
    train(config, out, workers=0, resume=True, reporter=Told(say=said.append))
    assert any("3 rounds were charged, and checkpoint/ is missing: training starts over" in line for line in said)


def test_what_a_link_leads_to_is_not_published(private_run, tmp_path):
    run = shutil.copytree(private_run.out, tmp_path / "run")
    secret = tmp_path / "id_rsa"
    secret.write_text("a key")
    (run / "model" / "chat_template.jinja").symlink_to(secret)
    with pytest.raises(InputError, match="is a link"):
        export(run, tmp_path / "out")
    assert not (tmp_path / "out").exists()
