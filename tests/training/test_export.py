"""What is handed on: the total first, figures that can be computed again, and not one byte of its owner's house."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import safetensors.torch
import torch
import yaml
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.training.runs import TEST_NOISE, TREE, run_config, run_tree
from tests.training.test_privacy_page import table
from uedp_ray import export
from uedp_ray.answers import export_epsilon, ledger_epsilon
from uedp_ray.config import RunConfig as Config
from uedp_ray.config import from_dict, load_config
from uedp_ray.errors import InputError
from uedp_ray.models.saved import load_model
from uedp_ray.privacy.cautions import weakness
from uedp_ray.privacy.ledger import read_ledger
from uedp_ray.redact import DATE, published
from uedp_ray.storage.base import Storage
from uedp_ray.storage.locks import folder_locked
from uedp_ray.tasks.metrics import PERPLEXITY
from uedp_ray.training.host import train
from uedp_ray.training.predict import predict
from uedp_ray.training.pretrain import pretrain

FILES = {
    "README.md",
    "config.yaml",
    "ledger.jsonl",
    "privacy.md",
    "selection.json",
    "model/config.json",
    "model/generation_config.json",
    "model/model.safetensors",
    "model/tokenizer.json",
    "model/tokenizer_config.json",
    "model/trained_on_private_text",
}
PLANTED = ("qxfolder", "qxuser", "qxword", "qxentity", "qxlist", "qxheld", "qxpublic")


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def traces(folder: Path, *words: str) -> list[tuple[str, str]]:
    """(file, word) for every word in a name or in the content."""
    found = files(folder)
    return [(name, word) for name, content in found.items() for word in words
            if word in name or word.encode() in content.lower()]  # fmt: skip


def test_the_folder_holds_what_is_listed_and_opens_with_transformers(private_run, exported):
    out, _ = exported
    assert set(files(out)) == FILES
    model, tokenizer = AutoModelForCausalLM.from_pretrained(out / "model"), AutoTokenizer.from_pretrained(out / "model")
    ids = torch.tensor([tokenizer("the park")["input_ids"]])
    theirs = load_model(private_run.out / "model")
    assert torch.equal(model.eval()(ids).logits, theirs(ids).logits)
    assert predict(out, ["the"]) == predict(private_run.out, ["the"])


@pytest.mark.parametrize("part_of", [None, "sweep"])
def test_a_promise_of_words_is_handed_on_without_the_file_of_their_vectors(corpora, tmp_path, part_of):
    """Export ended with "cannot be read", since what is handed on names no file; and of a sweep, whose trials each make
    their own draws, one run's epsilon was all that was said."""
    vectors = tmp_path / "vectors.txt"
    vectors.write_text("".join(f"{word} {place}.0 1.0\n" for place, word in enumerate(("the", "a", "of", "and"))))
    transform = {"kind": "replace_words", "mechanism": "random", "vectors": str(vectors)}
    tree = run_tree(corpora, training={"num_rounds": 1})
    tree["corpus"]["transform"] = transform
    config = from_dict(Config, tree)
    train(config, tmp_path / "run", workers=0, part_of=part_of)
    anew = "It is of this run alone: each run makes its own draws, which cost it again"
    told = (tmp_path / "run" / "privacy.md").read_text()
    assert ("ε = 0.000 of one word, at δ = 0.0" in told, anew in told) == (True, part_of is not None)
    if part_of is None:
        export(tmp_path / "run", tmp_path / "out")
        page = (tmp_path / "out" / "privacy.md").read_text()
        assert "ε = 0.000 of one word, at δ = 0.0" in page
        assert str(tmp_path) not in page


def test_the_first_row_is_the_total_and_the_files_give_it_again(private_run, exported):
    out, answer = exported
    epsilon = private_run.result["epsilon"]["user-entity"]
    assert answer == {
        "out": str(out),
        "epsilon": pytest.approx(epsilon),
        "epsilon_of_run": pytest.approx(epsilon),
        "rule": "none",
        "delta": 1e-4,
        "settled_by_results": False,
        "unit": "user-entity",
        "cautions": weakness(epsilon) + PERPLEXITY.cautions(private_run.result),
    }
    text = (out / "privacy.md").read_text()
    rows = [line for line in text.splitlines() if line.startswith("| ")][1:]
    assert [row.split("|")[1].strip() for row in rows] == [
        "**TOTAL**, training",
        "this run alone: user-entity",
        "this run alone: user",
        "this run alone: entity",
    ]
    total = table(text)["**TOTAL**, training"]
    assert 0 <= float(total[1]) - epsilon < 0.001
    assert "chosen by its results among others, tried by hand or otherwise, that choice is not included" in text
    found = export_epsilon(out)
    assert (found["epsilon"], found["rule"], found["guarantee"]) == (answer["epsilon"], "none", True)
    assert read_ledger(out / "ledger.jsonl") == read_ledger(private_run.out / "ledger.jsonl")


def test_every_file_has_one_date_and_is_readable_by_all(exported):
    out, _ = exported
    for path in [out, *out.rglob("*")]:
        assert path.stat().st_mtime == DATE, path
        assert path.stat().st_mode & 0o777 == (0o755 if path.is_dir() else 0o644)


def rows(path: Path, user: str, word: str, entity: str) -> dict[str, str]:
    """A jsonl file of twelve users that says each of the words."""
    with path.open("w") as file:
        for number in range(12):
            entities = [{"category": "person", "text": f"{entity}{number}"}]
            row = {
                "user": f"{user}{number}",
                "text": f"the {word} met {entity}{number} in the park",
                "entities": entities,
            }
            file.write(json.dumps(row) + "\n")
    return {"format": "jsonl", "path": str(path)}


@pytest.fixture(scope="module")
def planted(tmp_path_factory):
    """A finished run with a word of its own in every place that an owner may name, and in the text."""
    folder = tmp_path_factory.mktemp("house") / "qxfolder"
    folder.mkdir()
    (folder / "qxlist.txt").write_text("park\tlocation\n")
    (folder / "qxpublic.txt").write_text("the nurse met the teacher in the park\n" * 60)
    tree = run_tree(folder, training={"num_rounds": 2, "checkpoint_every": 1}, name="ours")
    public = [{"format": "text", "path": str(folder / "qxpublic.txt")}]
    tree["vocabulary"] = {"public_text": public, "max_size": 50}
    tree["pretrain"] = {"text": public, "num_steps": 2, "batch_size": 2}
    private = rows(folder / "qxprivate.jsonl", "qxuser", "qxword", "qxentity")
    tree["corpus"]["source"] = private | {"detector": ["annotated", f"list:{folder / 'qxlist.txt'}"]}
    tree["corpus"]["evaluation"] = rows(folder / "qxheld.jsonl", "qxhelduser", "qxheld", "other")
    pretrain(from_dict(Config, tree), folder / "warm")
    tree["model"]["warm_start"] = str(folder / "warm" / "model")
    train(from_dict(Config, tree), folder / "run", workers=0)
    return folder / "run"


def test_no_name_of_the_house_and_no_word_of_the_text_is_in_any_exported_byte(planted, tmp_path):
    export(planted, tmp_path / "out")
    assert traces(tmp_path / "out", *PLANTED, str(planted), "tokens_per_second", "seconds") == []
    assert traces(planted, "qxuser", "qxfolder"), "they were there to be found"
    config = load_config(tmp_path / "out" / "config.yaml")
    assert (config.corpus.source.path, config.model.warm_start) == ("not-published-private-text", "not-published")
    assert config.corpus.source.detector == ("annotated", "list:not-published")
    assert config.privacy == load_config(planted / "config.yaml").privacy


def test_the_settings_name_none_that_their_format_has_no_use_for(private_run, exported):
    """Of a prepared corpus they said num_users: 200, the default of generated text."""
    text = (exported[0] / "config.yaml").read_text()
    corpus, words = (yaml.safe_load(text)[name] for name in ("corpus", "vocabulary"))
    for source in (corpus["source"], corpus["evaluation"]):
        assert source["format"] == "prepared"
        assert not source.keys() & {
            "num_users",
            "read_as",
            "sentences_per_user",
            "min_words",
            "skip_users",
            "part",
            "seed",
        }
    (public,) = words["public_text"]
    assert (public["num_users"], public["part"], "read_as" in public) == (20, "public", False)
    config = published(load_config(private_run.out / "config.yaml"))
    assert load_config(exported[0] / "config.yaml") == config, "and are all of them"


def test_the_run_itself_keeps_speed_and_place_out_of_its_result_and_names_no_file_in_its_statement(planted):
    result = (planted / "result.json").read_text()
    assert "tokens_per_second" not in result
    assert "qxfolder" not in result
    assert "qx" not in (planted / "privacy.md").read_text()
    assert json.loads((planted / "private" / "speed.json").read_text())["tokens_per_second"] > 0


def test_a_path_in_the_tokenizer_or_in_the_weights_is_not_exported(planted, tmp_path):
    run = shutil.copytree(planted, tmp_path / "qxcopy")
    settings = json.loads((run / "model" / "tokenizer_config.json").read_text())
    settings |= {"name_or_path": "/qxfolder/a/b", "tokenizer_file": "/qxfolder/tokenizer.json"}
    (run / "model" / "tokenizer_config.json").write_text(json.dumps(settings))
    save_file(
        load_file(run / "model" / "model.safetensors"), run / "model" / "model.safetensors", {"from": "/qxfolder"}
    )
    (run / "model" / "notes.txt").write_text("qxfolder")
    export(run, tmp_path / "out")
    assert traces(tmp_path / "out", "qxfolder") == []
    with safe_open(tmp_path / "out" / "model" / "model.safetensors", "pt") as file:
        assert file.metadata() == {"format": "pt"}


def test_a_path_that_slips_through_all_this_ends_the_export(planted, tmp_path):
    run = shutil.copytree(planted, tmp_path / "qxcopy")
    settings = json.loads((run / "model" / "generation_config.json").read_text())
    (run / "model" / "generation_config.json").write_text(json.dumps(settings | {"made": f"{run}/x"}))
    with pytest.raises(InputError, match=r"model/generation_config.json': holds a path of this machine"):
        export(run, tmp_path / "out")
    assert os.listdir(tmp_path) == ["qxcopy"], "nothing half-made is left"


@pytest.mark.parametrize(
    ("privacy", "bounds", "reason"),
    [
        ({**TREE["privacy"], **TEST_NOISE}, {}, "NOT PRIVATE (test noise)"),
        ({"noise": "none", "noise_multiplier": None}, {}, "NOT PRIVATE (noise: none)"),
        (
            {"noise": "published", "noise_multiplier": 1.0, "normalizer": "published", "sentence_clip_norm": None},
            {"mode": "none"},
            "NOT PRIVATE (noise: published)",
        ),
    ],
    ids=["test-noise", "no-noise", "published"],
)
def test_what_has_no_guarantee_is_not_exported(corpora, tmp_path, privacy, bounds, reason):
    train(run_config(corpora, privacy=privacy, bounds=bounds, training={"num_rounds": 1}), tmp_path / "r", workers=0)
    with pytest.raises(InputError, match=re.escape(reason)):
        export(tmp_path / "r", tmp_path / "out")
    assert not (tmp_path / "out").exists()


EARLIER = {
    "a setup of an earlier version": ("private/setup.json", "sentence_weight"),
    "a result of an earlier version": ("result.json", "covers"),
}


def damaged(run: Path, what: str) -> None:
    if what == "no result":
        (run / "result.json").unlink()
    elif what == "a copy":
        shutil.rmtree(run / "private")
    elif what == "no setup":
        (run / "private" / "setup.json").unlink()
    elif what in EARLIER:
        name, key = EARLIER[what]
        tree = json.loads((run / name).read_text())
        del tree[key]
        (run / name).write_text(json.dumps(tree))
    elif what == "no result, in a run of an earlier version":
        damaged(run, "a setup of an earlier version")
        damaged(run, "no result")
    elif what == "no model":
        shutil.rmtree(run / "model")
    elif what == "half a character":
        path = run / "model" / "tokenizer_config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"x": "\ud800"}))
    elif what == "no weights":
        (run / "model" / "model.safetensors").unlink()
    elif what == "not all weights":
        weights = safetensors.torch.load_file(run / "model" / "model.safetensors")
        weights.pop(min(weights))
        safetensors.torch.save_file(weights, run / "model" / "model.safetensors", {"format": "pt"})
    else:
        if "older" in what:
            (run / "private" / "charged").unlink()
        lines = (run / "ledger.jsonl").read_text().splitlines(keepends=True)
        (run / "ledger.jsonl").write_text("".join(lines[:3]))


@pytest.mark.parametrize(
    ("what", "remedy"),
    [
        ("no result", "holds no finished run"),
        ("a copy", "has no private/, so it is a copy"),
        ("no setup", "private/setup.json is missing: run again with --resume to rebuild it"),
        ("a setup of an earlier version", r"setup\.json'?: lacks sentence_weight: an earlier version made this run"),
        (
            "a result of an earlier version",
            r"result\.json.*is damaged .*covers.*delete it, and run again with --resume",
        ),
        ("no result, in a run of an earlier version", "holds no finished run: an earlier version made this run"),
        ("no model", "holds no model"),
        ("half a character", "tokenizer_config.json.*is damaged: restore the run's copy"),
        ("no weights", "no model can be read here .weights are missing.: restore the model's own files"),
        ("not all weights", "no model can be read here .weights are missing.: restore the model's own files"),
        ("a ledger without its end", "has 3 lines, of 6 that were charged"),
        ("a ledger without its end, in an older run", "restore the whole ledger"),
    ],
)
def test_what_is_not_whole_is_refused(private_run, tmp_path, what, remedy):
    run = shutil.copytree(private_run.out, tmp_path / "run")
    damaged(run, what)
    with pytest.raises(InputError, match=remedy):
        export(run, tmp_path / "out")


def test_other_folders_are_refused_and_nothing_is_overwritten(private_run, exported, tmp_path, monkeypatch):
    with pytest.raises(InputError, match="holds no run or sweep"):
        export(tmp_path / "nowhere", tmp_path / "out")
    with pytest.raises(InputError, match="is not empty"):
        export(private_run.out, exported[0])
    with pytest.raises(InputError, match="is a sweep or a run itself"):
        export_epsilon(private_run.out)
    held = folder_locked(tmp_path / "held", wait=0, busy=InputError("", "", "mine"))
    with held, pytest.raises(InputError, match="another process is at work in this folder"):
        export(private_run.out, tmp_path / "held")
    monkeypatch.setattr("uedp_ray.storage.base._FOLDER_WAIT", 0.0)
    with (
        Storage(private_run.out).exclusive(),
        pytest.raises(InputError, match=r"^path = '.*another process is at work"),
    ):
        export(private_run.out, tmp_path / "out")


def test_a_run_on_a_read_only_file_system_is_exported(private_run, tmp_path, monkeypatch):
    """As far as one process can play it: root may write anywhere else."""
    (run := tmp_path / "mounted" / "run").parent.mkdir()
    shutil.copytree(private_run.out, run)
    monkeypatch.setattr("uedp_ray.storage.locks.os.statvfs", lambda path: SimpleNamespace(f_flag=os.ST_RDONLY))
    export(run, tmp_path / "out")
    assert list(run.parent.iterdir()) == [run], "no lock was made"


def test_a_run_of_a_sweep_says_so_wherever_it_is_copied_and_has_no_price_of_its_own(corpora, tmp_path):
    run = tmp_path / "run"
    result = train(run_config(corpora, training={"num_rounds": 1}), run, workers=0, part_of="sweep")
    assert "one run of a sweep, by itself" in result["covers"]
    text = (run / "privacy.md").read_text()
    assert text.index("Not the price of a chosen model") < text.index("| figure")
    assert {name for name in table(text) if "alone" in name} == {
        f"this run alone: {unit}" for unit in ("user-entity", "user", "entity")
    }
    assert {row[3] for name, row in table(text).items() if "alone" in name} == {"of one run, not of its choice"}
    said = ledger_epsilon(run / "ledger.jsonl", delta=1e-5)
    assert "Not the price of a chosen model: one run of a sweep, by itself" in said["text"]
    assert "(of one run, not of its choice: no guarantee)" in said["text"]
    assert "`uedp-ray epsilon --export DIR`" in said["text"]
    assert said["guarantee"] is False
    assert said["epsilon"] < float("inf")
    with pytest.raises(InputError, match="is one run of a sweep, whose total it costs"):
        export(run, tmp_path / "out")
