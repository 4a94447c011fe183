"""Commands that end well: one JSON document on stdout, exit code 0."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import subprocess
import sys
from importlib.metadata import version

import pytest

import uedp_ray
from tests.cli.files import written
from tests.corpus.reading import spacy_model
from tests.search.sweeps import sweep_tree, write_sweep
from tests.training.runs import run_tree
from uedp_ray.cli import planning
from uedp_ray.config import load_config
from uedp_ray.search.sweep_config import load_sweep_config

pytestmark = pytest.mark.whole


def test_prepare(answer, tmp_path):
    found = answer("prepare", "", "--format", "synthetic", "--num-users", 6, "--out", tmp_path / "corpus")
    wanted = {"users", "sentences", "tokens", "vocabulary", "entities", "sensitive_sentences", "max_holders"}
    assert wanted <= found.keys()
    assert found["users"] == 6
    assert 0 < found["sensitive_sentences"]["all"] < found["sentences"]
    assert found["sensitive_sentences"]["person"] > 0
    assert (tmp_path / "corpus" / "corpus.json").exists()


def test_prepare_unites_categories_and_divides_long_rows(answer, tmp_path):
    categories = ("per", "org", "loc")
    row = {"user": "u", "text": "w " * 12, "label": 1, "entities": []}
    row["text"] += " ".join(categories)
    row["entities"] = [{"category": name, "text": name} for name in categories]
    (tmp_path / "rows.jsonl").write_text(json.dumps(row))
    flags = ["--categories", "per", "--categories", "org,misc", "--max-words", 5, "--out", tmp_path / "corpus"]
    found = answer("prepare", tmp_path / "rows.jsonl", "--format", "jsonl", *flags)
    assert found["mentions"] == {"person": 1, "org": 1}
    assert (found["sentences"], found["divided_for_max_words"]["share_of_words"]) == (3, 1.0)


def test_that_nobody_looked_for_names_is_said(command, run_file, tmp_path):
    rows = [{"user": f"u{n % 30}", "text": f"write to u{n}@example.com or to Ann"} for n in range(60)]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    source = {"format": "jsonl", "path": str(tmp_path / "rows.jsonl"), "detector": ["annotated", "regex"]}
    flags = [f"--detector={name}" for name in source["detector"]]
    caution = "caution: no name of a person, a company or a place was found, only email: such names are not protected"
    prepare = ("prepare", source["path"], "--format=jsonl", *flags)
    assert caution in command(*prepare, "--out", tmp_path / "corpus")[2]
    assert "caution" not in command(*prepare, "--categories=email", "--out", tmp_path / "other")[2]
    change = f"--set=corpus.source={json.dumps(source)}"
    assert caution in command("train", run_file, change, "--out", tmp_path / "run", "--workers", 0)[2]


def test_what_the_usual_bounds_drop_is_said_when_a_text_is_prepared(command, tmp_path):
    """A stranger learnt it from ``train``, hours later: all his mails began with the same name."""
    entities = [{"text": "Ann", "category": "person"}]
    rows = [{"user": f"u{n % 9}", "text": "Dear Ann , we left", "entities": entities} for n in range(90)]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    prepare = ("prepare", tmp_path / "rows.jsonl", "--format=jsonl", "--out", tmp_path / "corpus")
    told = command(*prepare)[2]
    assert re.search(
        r"with the bounds that init writes, \d\d% of the words are dropped by bounds: max_sent.*private", told
    )


GERMAN = "Gestern haben wir mit der Ärztin über das gesprochen, was sie bei einem von ihnen nicht mehr finden konnte"
DUTCH = "Gisteren hebben wij met de arts gesproken over wat zij bij een van hen niet meer heeft kunnen vinden"
ENGLISH = "Yesterday we spoke with the doctor about what she could not find any more in one of them"


@pytest.mark.parametrize(
    ("text", "language"), [(GERMAN, "de"), (DUTCH, "nl"), (ENGLISH, ""), ("aspirin 20 mg, ibuprofen 5 mg", "")]
)
def test_that_a_pipeline_is_for_another_language_is_said(command, tmp_path, text, language):
    """It found next to nothing, and all said nothing."""
    rows = [{"user": f"u{n}", "text": text} for n in range(60)]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    detector = f"--detector={spacy_model(tmp_path / 'model', PERSON='ann')}"
    prepare = ("prepare", tmp_path / "rows.jsonl", "--format=jsonl", detector, "--out", tmp_path / "corpus")
    code, _, err = command(*prepare)
    said = [line for line in err.splitlines() if line.startswith("caution: the text reads like language ")]
    assert (code, len(said)) == (0, bool(language))
    assert not said or f"language {language}, and spacy:" in said[0]


def test_that_a_user_has_two_spellings_is_said(command, tmp_path):
    rows = [{"user": name, "text": "the nurse left the park"} for name in ("Ann", "ann ")]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    prepare = ("prepare", tmp_path / "rows.jsonl", "--format=jsonl", "--out", tmp_path / "corpus")
    assert "caution: 1 user id differs from another only in case or white space" in command(*prepare)[2]


def test_train_resume_and_predict(answer, command, run_file, tmp_path):
    out = tmp_path / "out"
    found = answer("train", run_file, "--workers", 0, "--out", out, "--set", "training.num_rounds=3")
    assert {"perplexity", "epsilon", "rounds", "tokens_per_second", "run_dir"} <= found.keys()
    assert set(found["epsilon"]) == {"user-entity", "user", "entity"}
    assert (found["rounds"], found["run_dir"]) == (3, str(out.resolve()))
    predicted = answer("predict", out, "--text", "please call", "--text", "the", "--top", 2)["predictions"]
    assert [len(each["next"]) for each in predicted] == [2, 2]
    code, out_text, err = command("train", run_file, "--workers", 0, "--out", tmp_path / "second")
    assert code == 0
    assert "perplexity: " in out_text
    assert re.search(r"round 2/2 .* perplexity \S+ \(\S+ bits/byte\) ", err), (
        "sparse progress where there is no terminal"
    )


def test_pretrain(answer, tmp_path, corpora):
    text = [{"format": "synthetic", "num_users": 5, "part": "public"}]
    path = written(tmp_path, run_tree(corpora, pretrain={"text": text, "num_steps": 3, "batch_size": 4}))
    found = answer("pretrain", path, "--out", tmp_path / "out")
    assert found["perplexity"] > 1
    assert (tmp_path / "out" / "model" / "model.safetensors").exists()
    assert found["checkpoint"] == str((tmp_path / "out" / "model").resolve())


def test_compare(answer, command, tmp_path, corpora):
    text = [{"format": "synthetic", "num_users": 5, "part": "public"}]
    base = run_tree(
        corpora, pretrain={"text": text, "num_steps": 3}, training={"num_rounds": 1, "device": "cpu"}, name="base"
    )
    variants = {"private": {"method": "uedp"}, "bare": {"method": "noiseless"}}
    path = written(tmp_path, {"base": base, "variants": variants}, "compare.yaml")
    found = answer("compare", path, "--workers", 0, "--out", tmp_path / "out")
    assert [row["name"] for row in found["rows"]] == ["untrained", "public-only", "private", "bare"]
    code, out, _ = command("compare", path, "--workers", 0, "--out", tmp_path / "out", "--resume")
    assert code == 0
    assert "untrained" in out
    assert "guarantee" in out


ROWS = {
    "one-word users": [("u1", "hello", None), ("u2", "stop", None), ("u3", "go on", None)],
    "no sensitive sentence": [(f"u{i % 4}", "the dog ran home", None) for i in range(12)],
    "only sensitive sentences": [(f"u{i % 4}", f"Ann{i} ran home", f"Ann{i}") for i in range(12)],
}


@pytest.mark.parametrize("case", ROWS)
def test_odd_corpora_train(answer, run_file, tmp_path, case):
    rows = [
        {"user": u, "text": t, "entities": [{"category": "person", "text": e}] if e else []} for u, t, e in ROWS[case]
    ]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    prepared = answer("prepare", tmp_path / "rows.jsonl", "--format", "jsonl", "--out", tmp_path / "corpus")
    assert prepared["sensitive_sentences"]["all"] == sum(e is not None for *_, e in ROWS[case])
    source = f"corpus.source.path={tmp_path / 'corpus'}"
    settings = ["--set", source, "--set", "privacy.user_sampling_prob=0.9"]
    found = answer("train", run_file, "--workers", 0, "--out", tmp_path / "out", *settings)
    assert found["rounds"] == 2
    assert all(value > 0 for value in found["epsilon"].values())


@pytest.mark.usefixtures("here")
def test_sweep_and_report(answer, command, tmp_path, corpora):
    path, out = write_sweep(sweep_tree(corpora), tmp_path), tmp_path / "out"
    found = answer("sweep", path, "--trials", 2, "--out", out)
    assert set(found) >= {"best", "pareto", "trials", "selection", "sweep_dir"}
    assert set(found["selection"]) >= {"rule", "epsilon"}
    page = answer("report", out)["html"]
    assert page == str(out / "report.html")
    assert f"perplexity {found['best']['perplexity']:.1f}" in (out / "report.html").read_text()
    code, told, error = command("sweep", path, "--trials", 3, "--out", out, "--resume")
    assert code == 0
    assert "Price of choosing (composition)" in told
    assert "3 done" in told
    assert re.search(r"trials: 3 done of 3; best so far \d+: perplexity \S+ \(\S+ bits/byte\)", error)


def test_the_package_says_its_version_and_its_names(command):
    assert command("--version") == (0, f"uedp-ray {version('uedp-ray')}\n", "")
    assert uedp_ray.__version__ == version("uedp-ray")
    assert {*uedp_ray.__all__, "__version__"} <= {*dir(uedp_ray)}


def test_help_names_every_command(command):
    code, out, _ = command("--help")
    assert (code, out) == command("-h")[:2]
    assert command("train", "-h") == command("train", "--help")
    assert code == 0
    for name in ("epsilon", "calibrate", "prepare", "pretrain", "train", "compare", "sweep", "report", "predict"):
        assert name in out


@pytest.mark.parametrize(("typed", "completed"), [("uedp-ray exp", "export"), ("uedp-ray plan --tr", "--trials")])
def test_a_shell_completes_commands_and_options(typed, completed):
    asked = {"_UEDP_RAY_COMPLETE": "complete_bash", "COMP_WORDS": typed, "COMP_CWORD": str(typed.count(" "))}
    console_script = "import sys, uedp_ray.__main__ as script; sys.argv[0] = 'uedp-ray'; script.main()"
    done = subprocess.run(
        [sys.executable, "-c", console_script], env=os.environ | asked, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout.split()) == (0, [completed])


@pytest.mark.parametrize("kind", ["train", "sweep", "compare"])
def test_init_writes_a_file_once_and_whole_or_not_at_all(answer, refused, tmp_path, monkeypatch, kind):
    monkeypatch.chdir(tmp_path)
    own = ["--text", "notes.jsonl", "--evaluation", "held-out.jsonl", "--public", "public.txt", "--users", 150]
    path = answer("init", *own, "--kind", kind)["path"]
    assert path == ("run.yaml" if kind == "train" else f"{kind}.yaml")
    refused("init", *own, "--kind", kind, parts=["--out", "exists"])
    refused("init", *own, "--epsilon", 0, "--kind", kind, "--out", "other.yaml", parts=["--epsilon"])
    refused("init", *own[:2], "--out", "other.yaml", parts=["--evaluation", "give it"])
    refused("init", "--text", "notes.csv", "--out", "other.yaml", parts=["--text = 'notes.csv': does not exist"])
    refused("init", "--text", "book.txt", "--out", "other.yaml", parts=["--text = 'book.txt': names no users"])
    refused("init", *own, "--kind", "run", "--out", "other.yaml", parts=["--kind", "train, sweep, compare"])
    refused("init", *own, "--out", "no/such/folder.yaml", parts=["--out", "create it first"])
    monkeypatch.setattr("os.access", lambda *_: False)  # as on a read-only disk, for root too
    refused("init", *own, "--out", "other.yaml", parts=["--out = 'other.yaml': . cannot be written to"])
    assert [file.name for file in tmp_path.iterdir()] == [path]


def test_init_says_which_of_its_files_are_not_there(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "held-out.jsonl").touch()
    own = ["--text", "nots.jsonl", "--evaluation", "held-out.jsonl", "--public", "public.txt", "--users", 150]
    code, _, err = command("init", *own)
    assert code == 0
    assert [line for line in err.splitlines() if "caution" in line] == [
        f"caution: --{flag} = {name}: there is no such file here"
        for flag, name in (("text", "nots.jsonl"), ("public", "public.txt"))
    ]


def test_users_of_a_prepared_corpus_far_fewer_or_more_than_declared_are_told(command, refused, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "book.txt").write_text("They met in the park .\nIt rained .\n")
    (tmp_path / "notes.jsonl").write_text("".join(f'{{"user": "u{n}", "text": "It rained ."}}\n' for n in range(20)))
    for name, kind in (("book.txt", "text"), ("notes.jsonl", "jsonl")):
        code, _, err = command("prepare", name, "--format", kind, "--out", kind)
        assert code == 0, err
        assert ("the whole text is one user's" in err) == (kind == "text")
    own = ["--evaluation", "held-out.jsonl", "--public", "public.txt", "--users"]
    less, more = "less than a tenth of", "more than"
    for text, users, told in (
        ("text", 11, less),
        ("text", 10, ""),
        ("jsonl", 20, ""),
        ("jsonl", 201, less),
        ("jsonl", 19, more),
    ):
        code, _, err = command("init", "--text", text, *own, users, "--out", f"{text}-{users}.yaml")
        assert code == 0, err
        cautions = [line for line in err.splitlines() if line.startswith("caution: --text")]
        assert len(cautions) == bool(told)
        for line in cautions:
            assert f" = {text}: holds {told} --users = {users} users (private: read off the text)" in line
    refused(
        "init", "--text", text, *own, 150, "--epsilon", 0, parts=["--epsilon = 0.0: must be a finite number above 0"]
    )


def test_init_counts_the_sentences_of_what_to_search_on(command, refused, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    line = "They met in the park near the old mill and stayed until it was dark .\n"  # as many words as are asked for
    own = ["--text", "notes.jsonl", "--evaluation", "held-out.jsonl", "--public", "public.txt", "--users", 50]
    own += ["--kind", "sweep", "--proxy", "plays.txt"]
    (tmp_path / "plays.txt").write_text(line * 899)
    short = "--proxy = 'plays.txt': has 899 sentences of 10 to 22 words, short ones joined; "
    needed = "50 users of 15, and 10 to evaluate on, take 900: name more text, or --sentences-per-user 14"
    said = refused("init", *own, parts=[short + needed])
    assert len(said) < 300
    assert not (tmp_path / "sweep.yaml").exists()
    (tmp_path / "plays.txt").write_text(line * 59)
    assert refused("init", *own, parts=["has 59 sentences"]).endswith("take 900: name more text")
    (tmp_path / "plays.txt").write_text(line * 900)
    code, _, err = command("init", *own)
    assert code == 0, err


MODEL = {
    "no weights": ("config.json", "tokenizer.json", "tokenizer_config.json"),
    "no tokenizer": ("config.json", "model.safetensors"),
    "config.json": ("tokenizer.json", "tokenizer_config.json"),
}


@pytest.mark.parametrize("lacking", MODEL)
def test_init_and_plan_look_at_the_folder_of_a_model(command, refused, pretrained, tmp_path, monkeypatch, lacking):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model").mkdir()
    for name in MODEL[lacking]:
        shutil.copy(pretrained.out / "model" / name, tmp_path / "model")
    own = ["--text", "notes.jsonl", "--evaluation", "held-out.jsonl", "--users", 150]
    for kind in ("train", "sweep", "compare"):
        refused("init", *own, "--model", "model", "--kind", kind, parts=["--model = 'model'", lacking])
        assert not list(tmp_path.glob("*.yaml"))
    shutil.rmtree(tmp_path / "model")
    for kind in ("run", "sweep"):
        assert command("init", *own, "--model", "model", "--kind", kind.replace("run", "train"))[0] == 0, "elsewhere"
        (tmp_path / "model").mkdir()
        for name in MODEL[lacking]:
            shutil.copy(pretrained.out / "model" / name, tmp_path / "model")
        refused("plan", f"{kind}.yaml", parts=["model.path = 'model'", lacking])
        shutil.rmtree(tmp_path / "model")


def test_init_lets_a_model_read_no_more_than_it_can(answer, pretrained, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    longest = json.loads((pretrained.out / "model" / "config.json").read_text())["n_positions"]
    own = ["--text", "notes.jsonl", "--evaluation", "held-out.jsonl", "--users", 150]
    answer("init", *own, "--model", pretrained.out / "model")
    assert load_config("run.yaml").model.max_length == longest < 64
    answer("init", *own, "--model", "gpt2", "--out", "other.yaml")
    assert load_config("other.yaml").model.max_length == 64, "not here: it is checked where the model is"


def test_init_asks_for_what_to_search_on(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "stdin", io.StringIO("plays.txt\nbooks.txt\n\n"))
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    own = ["--text", "notes.jsonl", "--evaluation", "held-out.jsonl", "--public", "public.txt", "--users", 150]
    code, _, err = command("init", *own, "--kind", "sweep")
    assert code == 0, err
    assert list(load_sweep_config(tmp_path / "sweep.yaml").search.proxies) == ["proxy1", "proxy2"]


def test_a_file_that_appears_in_the_meantime_stays(refused, tmp_path, monkeypatch, corpora):
    load = planning._load

    def meanwhile(path, settings):
        (tmp_path / "mine.yaml").write_text("mine")
        return load(path, settings)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(planning, "_load", meanwhile)
    own = ["--text", "notes.jsonl", "--evaluation", "held-out.jsonl", "--public", "public.txt", "--users", 150]
    refused("init", *own, "--out", "mine.yaml", parts=["--out", "exists"])
    (tmp_path / "mine.yaml").unlink()
    refused("plan", written(tmp_path, run_tree(corpora)), "--write", "mine.yaml", parts=["--write", "exists"])
    assert (tmp_path / "mine.yaml").read_text() == "mine"


def test_rounds_that_the_passes_of_a_file_decide_are_not_set(command, refused, run_file, corpora, tmp_path):
    tree = run_tree(corpora) | {"training": {"passes": 2.0}}
    file, key = written(tmp_path, tree), "training.num_rounds"
    refused(
        "train", file, "--out", tmp_path / "run", "--set", f"{key}=3", parts=[key, "add --set training.passes=null"]
    )
    loaded = load_config(file, [f"{key}=3", "training.passes=null"])
    assert loaded.training.num_rounds == 3
    sweep = write_sweep(
        sweep_tree(corpora, base=tree, space={"privacy.sentence_clip_norm": {"choice": [0.2]}}), tmp_path
    )
    key = f"base.{key}"
    refused("sweep", sweep, "--out", tmp_path / "s", "--set", f"{key}=3", parts=[key, "base.training.passes=null"])


def test_init_and_plan_touch_no_file_of_the_users(answer, refused, tmp_path, monkeypatch, corpora):
    monkeypatch.chdir(tmp_path)
    for name in (".run.yaml.new", "run.yaml.new"):
        (tmp_path / name).write_text("mine")
    (tmp_path / "other.yaml").symlink_to("nowhere")
    own = ["--text", "notes.jsonl", "--evaluation", "held-out.jsonl", "--public", "public.txt", "--users", 150]
    answer("init", *own)
    refused("init", *own, "--out", "other.yaml", parts=["--out", "exists"])
    refused("plan", "run.yaml", "--write", "other.yaml", parts=["--write", "exists"])
    refused("plan", "run.yaml", "--write", "no/such/folder.yaml", parts=["--write", "create it first"])
    assert {file.name for file in tmp_path.iterdir()} == {".run.yaml.new", "run.yaml.new", "other.yaml", "run.yaml"}
    assert (tmp_path / ".run.yaml.new").read_text() == "mine"
