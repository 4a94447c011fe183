"""Text that changes under a run: followed before anything was charged for it, said and left alone afterwards."""

from __future__ import annotations

import json
import shutil
from unittest import mock

import pytest

from tests.told import Told
from tests.training.runs import Crash, crash, run_config
from uedp_ray.config import SourceConfig, to_dict
from uedp_ray.corpus.prepare import prepare
from uedp_ray.corpus.store import open_corpus
from uedp_ray.errors import InputError
from uedp_ray.search.compare import compare
from uedp_ray.search.comparison import Comparison
from uedp_ray.storage.open import open_storage
from uedp_ray.training.driver import RunDriver
from uedp_ray.training.host import train
from uedp_ray.training.rundir import RunDir
from uedp_ray.training.texts import prepare_corpora


@pytest.fixture
def notes(tmp_path):
    """(config, write) of a run whose text lies in files; write(NAME, users, words) makes one."""

    def write(name, users, words="the patient was in the hospital today"):
        rows = [json.dumps({"user": user, "text": f"{words} {user} {n}"}) for user in users for n in range(3)]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(rows))

    write("notes", [f"u{n}" for n in range(12)])
    write("held-out", ["v0", "v1"], "a nurse has seen the doctor")
    source, evaluation = (
        {"format": "jsonl", "path": str(tmp_path / f"{name}.jsonl")} for name in ("notes", "held-out")
    )
    return run_config(tmp_path, corpus={"source": source, "evaluation": evaluation, "declared_num_users": 12}), write


def trained_users(out):
    return open_corpus(open_storage(out).root / "private" / "corpus").num_users


@pytest.mark.parametrize("place", ["a folder", "a URL"])
@pytest.mark.parametrize("ended", ["refused", "before the setup", "before a round"])
def test_text_that_changed_before_anything_was_charged_is_read_again(notes, node, url, tmp_path, ended, place):
    config, write = notes
    out = url if place == "a URL" else tmp_path / "run"
    if ended == "refused":
        write("held-out", ["u1", "v1"])
        with pytest.raises(InputError, match="some of its users are in"):
            train(config, out, workers=0)
        write("held-out", ["v0", "v1"], "a nurse has seen the doctor")
    elif ended == "before the setup":
        with mock.patch("uedp_ray.training.setup.size_of", side_effect=Crash), pytest.raises(Crash):
            train(config, out, workers=0)
    else:
        with mock.patch.object(RunDriver, "admit", side_effect=Crash), pytest.raises(Crash):
            train(config, out, workers=0)
    assert trained_users(out) == 12
    write("notes", [f"u{n}" for n in range(11)])
    train(config, out, workers=0, resume=True)
    assert trained_users(out) == 11


@pytest.mark.parametrize("fixed", [False, True])
def test_a_copy_that_several_runs_share_follows_the_text_until_one_was_trained(notes, tmp_path, fixed):
    config, write = notes
    prepare_corpora(config, tmp_path / "corpora", fixed=False)
    made = (tmp_path / "corpora" / "evaluation" / "corpus.json").stat().st_mtime_ns
    write("notes", [f"u{n}" for n in range(11)])
    prepare_corpora(config, tmp_path / "corpora", fixed=fixed)
    assert open_corpus(tmp_path / "corpora" / "private").num_users == (12 if fixed else 11)
    assert (tmp_path / "corpora" / "evaluation" / "corpus.json").stat().st_mtime_ns == made, "its text is as it was"


def test_text_that_changed_after_a_round_was_charged_is_said_and_the_copy_stays(notes, tmp_path):
    config, write = notes
    crash(config, tmp_path / "run", charges=2)
    said = []
    write("notes", [f"u{n}" for n in range(11)])
    train(config, tmp_path / "run", workers=0, resume=True, reporter=Told(say=said.append))
    assert trained_users(tmp_path / "run") == 12
    assert [line for line in said if "the text has changed" in line] != []


def test_a_setup_made_anew_after_a_charge_is_of_the_text_that_was_charged_for(notes, tmp_path):
    config, write = notes
    run = RunDir(tmp_path / "run")
    crash(config, run.root, charges=2)
    write("notes", [f"u{n}" for n in range(11)])
    run.setup.unlink()
    shutil.rmtree(run.private / "corpus")
    with pytest.raises(InputError, match=r"corpus.source = .*put it back, and delete .*private/corpus"):
        train(config, run.root, workers=0, resume=True)
    write("notes", [f"u{n}" for n in range(12)])
    shutil.rmtree(run.private / "corpus")
    with mock.patch.object(RunDriver, "admit", side_effect=Crash), pytest.raises(Crash):
        train(config, run.root, workers=0, resume=True)
    write("notes", [f"u{n}" for n in range(11)])
    run.setup.unlink()
    train(config, run.root, workers=0, resume=True)
    assert trained_users(run.root) == 12


def test_a_setup_made_anew_after_a_charge_takes_no_other_prepared_corpus(tmp_path):
    prepare(SourceConfig(format="synthetic", num_users=8), tmp_path / "text", num_shards=2)
    source = {"path": str(tmp_path / "text"), "format": "prepared"}
    held_out = {"format": "synthetic", "num_users": 3, "part": "held_out"}
    config = run_config(tmp_path, corpus={"source": source, "evaluation": held_out, "declared_num_users": 9})
    crash(config, tmp_path / "run", charges=1)
    (tmp_path / "run" / "private" / "setup.json").unlink()
    prepare(SourceConfig(format="synthetic", num_users=8, seed=1), tmp_path / "text", num_shards=2)
    with pytest.raises(InputError, match=r"corpus\.source = .*has changed since training on it began: put it back$"):
        train(config, tmp_path / "run", workers=0, resume=True)
    (tmp_path / "run" / "private" / "text.json").unlink()
    with pytest.raises(InputError, match=r"text\.json = .*is missing: put it back"):
        train(config, tmp_path / "run", workers=0, resume=True)


@pytest.mark.parametrize("part", ["private", "held_out"])
def test_a_corpus_prepared_again_before_anything_was_charged_is_taken(tmp_path, part):
    texts = {"private": tmp_path / "private", "held_out": tmp_path / "held_out"}
    for name, folder in texts.items():
        prepare(SourceConfig(format="synthetic", num_users=8, part=name), folder, num_shards=2)
    source, evaluation = ({"path": str(folder), "format": "prepared"} for folder in texts.values())
    corpus = {"source": source, "evaluation": evaluation, "declared_num_users": 9}
    config, run = run_config(tmp_path, corpus=corpus), RunDir(tmp_path / "run")
    with mock.patch.object(RunDriver, "admit", side_effect=Crash), pytest.raises(Crash):
        train(config, run.root, workers=0)
    assert run.setup.exists()
    prepare(SourceConfig(format="synthetic", num_users=9, part=part), texts[part], num_shards=2)
    train(config, run.root, workers=0, resume=True)
    digests = [open_corpus(folder).digest for folder in texts.values()]
    assert [run.load_setup()[f"{name}_digest"] for name in ("corpus", "evaluation")] == digests


def test_a_comparison_follows_its_text_until_a_round_is_charged(notes, tmp_path):
    config, write = notes
    base = run_config(
        tmp_path,
        corpus=to_dict(config.corpus),
        pretrain={"text": [{"format": "synthetic", "num_users": 8, "part": "public"}], "num_steps": 2},
    )
    comparison = Comparison(base, {"one": ("uedp", {})})
    with mock.patch.object(RunDriver, "admit", side_effect=Crash), pytest.raises(Crash):
        compare(comparison, tmp_path / "out", workers=0)
    write("notes", [f"u{n}" for n in range(11)])
    compare(comparison, tmp_path / "out", workers=0, resume=True)
    assert open_corpus(tmp_path / "out" / "corpora" / "private").num_users == 11


@pytest.mark.parametrize("part", ["private", "held_out"])
def test_variants_of_a_comparison_are_of_one_text(tmp_path, part):
    def prepared(name, seed=0):
        source = SourceConfig(format="synthetic", num_users=8, part=name, seed=seed)
        prepare(source, tmp_path / name, num_shards=2)
        return {"path": str(tmp_path / name), "format": "prepared"}

    corpus = {"source": prepared("private"), "evaluation": prepared("held_out"), "declared_num_users": 9}
    pretraining = {"text": [{"format": "synthetic", "num_users": 8, "part": "public"}], "num_steps": 2}
    base = run_config(tmp_path, corpus=corpus, pretrain=pretraining)
    comparison = Comparison(base, {"one": ("uedp", {}), "other": ("uedp", {"training.seed": 1})})
    real = train

    def trained(config, *arguments, **settings):
        result = real(config, *arguments, **settings)
        prepared(part, seed=1)
        return result

    field = {"private": "source", "held_out": "evaluation"}[part]
    with (
        mock.patch("uedp_ray.search.compare.train", trained),
        pytest.raises(InputError, match=rf"corpus\.{field} = .*has changed since training on it began"),
    ):
        compare(comparison, tmp_path / "out", workers=0)
    with pytest.raises(InputError, match=rf"corpus\.{field} = .*has changed since training on it began"):
        compare(comparison, tmp_path / "out", workers=0, resume=True)


def test_words_are_counted_again_where_the_text_changed_before_anything_was_charged(corpora, tmp_path):
    """Public text was compared with the private text when its words were counted, and the words outlived the text."""
    texts = {name: tmp_path / f"{name}.jsonl" for name in ("private", "public")}
    for name, path in texts.items():
        rows = [
            {"user": f"{name}{n}", "text": f"{name} words of the user {name}{n} again and again"} for n in range(12)
        ]
        path.write_text("\n".join(map(json.dumps, rows)))
    prepare(SourceConfig(path=str(texts["private"]), format="jsonl"), tmp_path / "prepared")
    public = {"public_text": [{"format": "jsonl", "path": str(texts["public"])}]}
    source = {"source": {"path": str(tmp_path / "prepared")}, "declared_num_users": 12}
    config, out = run_config(corpora, corpus=source, vocabulary=public), tmp_path / "run"
    with mock.patch("uedp_ray.training.setup.size_of", side_effect=Crash), pytest.raises(Crash):
        train(config, out, workers=0)
    assert (out / "vocabulary").exists()
    prepare(SourceConfig(path=str(texts["public"]), format="jsonl"), tmp_path / "prepared")
    with pytest.raises(InputError, match=r"vocabulary.public_text .* of its running text with corpus.source"):
        train(config, out, workers=0, resume=True)
