"""Bad input is answered in one line with its remedy, exit code 2, and leaves nothing behind."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.files import written
from tests.search.sweeps import sweep_tree, write_sweep
from tests.training.runs import TREE, crash, run_config, run_tree
from uedp_ray.search.layout import corpora_at

pytestmark = pytest.mark.whole


PREPARE = ("prepare", "", "--format", "synthetic", "--num-users", 5)
APART = "holds a run, a comparison or a sweep: name a folder outside"


def test_nothing_is_written_into_a_run_or_a_comparison(command, refused, private_run, run_file, tmp_path):
    """What lies there under a name is taken for the run's own: a corpus put there would be its private text."""
    (tmp_path / "link").symlink_to(private_run.out)
    for folder in (Path(private_run.out), tmp_path / "link"):
        refused(*PREPARE, "--out", folder / "private" / "corpus", parts=["--out", APART])
        refused("train", run_file, "--out", folder / "model", "--resume", parts=["--out", APART])
        refused("pretrain", run_file, "--out", folder / "again", parts=["--out", APART])
        refused("export", folder, "--out", folder / "handed-on", parts=["--out", APART])
        refused("export", folder, "--out", folder, parts=["--out", "is the folder to be exported: name a new one"])
        refused("report", tmp_path, "--out", folder / "page.html", parts=["--out", APART])
    prepared = tmp_path / "prepared"
    assert command(*PREPARE, "--out", prepared)[0] == 0
    refused("train", run_file, "--out", prepared / "shards" / "run", parts=["--out", "is a prepared corpus: name a"])
    assert not {"again", "handed-on", "page.html"} & {path.name for path in Path(private_run.out).iterdir()}
    text, *corpora = corpora_at(tmp_path / "compared" / "corpora")
    for corpus in corpora:
        assert command(*PREPARE, "--out", corpus)[0] == 0, "nobody's yet"
    text.write_text("{}")
    refused(*PREPARE, "--out", corpora[0], parts=["--out", APART])


def test_only_train_and_sweep_keep_things_at_a_url(refused, run_file, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for line in (PREPARE, ("pretrain", run_file), ("export", "runs"), ("report", "runs")):
        refused(*line, "--out", "s3://bucket/out.html", parts=["--out", "only train and sweep can write to a URL"])
    assert not Path("s3:").exists()


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (("epsilon", "--q-x", "1"), "--q-x"),
        (("train",), "config"),
        (("frain",), "frain"),
        (("epsilon", "--rounds", "ten"), "--rounds"),
        (("train", "run.yaml", "--workers", "-1"), "--workers"),
    ],
)
def test_a_wrong_command_line_is_answered_in_one_line(command, arguments, part):
    code, out, err = command(*arguments)
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert part in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("settings", "parts"),
    [
        (["privacy.sigma=3"], ["privacy.sigma", "3", "unknown key", "noise_multiplier"]),
        (["privacy.user_sampling_prob=1.5"], ["privacy.user_sampling_prob", "1.5", "[0, 1]"]),
        (["privacy.entity_sampling_prob=-0.1"], ["privacy.entity_sampling_prob", "-0.1", "[0, 1]"]),
        (["privacy.target_epsilon=3"], ["target_epsilon", "noise_multiplier", "(3.0, 1.0)", "exactly one"]),
        (["privacy.noise_multiplier=null"], ["target_epsilon", "noise_multiplier", "(None, None)", "exactly one"]),
        (["training.num_rounds=0"], ["training.num_rounds", "0", "1 or more"]),
        (["training.num_rounds=many"], ["training.num_rounds", "many", "a whole number"]),
        (["corpus.declared_num_users=null"], ["corpus.declared_num_users", "None", "declare"]),
        (["corpus.declared_num_users=5"], ["declared_num_users", "5"]),
        (["corpus.source.path=/nowhere"], ["path", "/nowhere", "uedp-ray prepare"]),
        (["privacy.delta=0"], ["privacy.delta", "0", "between 0 and 1"]),
        (["no_equals_sign"], ["--set", "no_equals_sign", "key.subkey=value"]),
        (["model.warm_start=/nowhere"], ["/nowhere"]),
        (["model.max_length=100000000"], ["model.max_length", "100000000", "1048576 or less"]),
        (["model.hidden_size=1000000000000"], ["model.hidden_size", "65536 or less"]),
        (["model.num_layers=1000000000"], ["model.num_layers", "1000 or less"]),
        (["training.device=cuda"], ["training.device", "cuda", "cpu"]),
    ],
    ids=lambda value: value[0] if isinstance(value, list) and "=" in value[0] else "",
)
def test_a_bad_setting_is_refused(refused, run_file, tmp_path, settings, parts):
    flags = [flag for setting in settings for flag in ("--set", setting)]
    refused("train", run_file, "--workers", 0, "--out", tmp_path / "out", "--json", *flags, parts=parts)
    assert not (tmp_path / "out" / "result.json").exists()


@pytest.mark.parametrize(
    ("settings", "parts"),
    [
        (["max_length=1048576", "hidden_size=2048"], ["model.max_length", "the table of positions would take 24 GiB"]),
        (["hidden_size=65536"], ["model.hidden_size", "one layer would take 576 GiB", "this machine's 16"]),
        (["hidden_size=8192", "num_layers=100"], ["model.num_layers", "all layers would take 900 GiB"]),
    ],
)
def test_a_network_beyond_this_machine_is_refused(refused, run_file, tmp_path, monkeypatch, settings, parts):
    monkeypatch.setattr("os.sysconf", {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": 1 << 22}.__getitem__)
    flags = [flag for setting in settings for flag in ("--set", f"model.{setting}")]
    refused("train", run_file, "--workers", 0, "--out", tmp_path / "out", *flags, parts=parts)


@pytest.mark.parametrize(("content", "part"), [(None, "no such file"), ("a: [", "not YAML"), ("- 1", "mapping")])
def test_a_bad_run_file_is_refused(refused, tmp_path, content, part):
    path = tmp_path / "run.yaml"
    if content is not None:
        path.write_text(content)
    refused("train", path, parts=["config", str(path), part])


CONLL = "-DOCSTART- -X- -X- O\n\nAda NNP B-NP B-PER\nleft VBD B-VP O\n\nnobody\n"


@pytest.mark.parametrize(
    ("name", "content", "flags", "parts"),
    [
        ("a.conll", CONLL, ["--format", "conll"], ["a.conll", "6", "token and an entity tag"]),
        ("b.jsonl", '{"user": "u", "text": "a b"}\n{"user": "", "text": "Zanzibar"}\n', ["--format", "jsonl"],
         ["b.jsonl", "2", "user is missing or empty"]),
        ("c.jsonl", '{"user": "u", "text": "a b"}\n', ["--format", "jsonl", "--detector", "spacy:en_none_sm"],
         ["detector", "spacy:en_none_sm", "python -m spacy download en_none_sm"]),
        ("d.jsonl", '{"user": "u", "text": "a b"}\n', ["--format", "jsonl", "--detector", "list:LIST"],
         ["detector", "list:", "match"]),
        ("e.jsonl", "", ["--format", "jsonl"], ["SOURCE", "no sentence"]),
        ("f.jsonl", '{"user": "u", "text": "a b"}\n', ["--format", "word"], ["format", "word", "jsonl"]),
    ],
    ids=["conll-line", "empty-user", "no-spacy-model", "list-matches-nothing", "empty", "format"],
)  # fmt: skip
def test_bad_text_is_refused(refused, tmp_path, name, content, flags, parts):
    (tmp_path / name).write_text(content)
    (tmp_path / "names.txt").write_text("Zebulon Zwick\n")
    flags = [flag.replace("LIST", str(tmp_path / "names.txt")) for flag in flags]
    line = refused("prepare", tmp_path / name, "--out", tmp_path / "out", *flags, parts=parts)
    assert "Zanzibar" not in line, "an error holds no private text"
    assert "Zwick" not in line
    assert not (tmp_path / "out").exists()


@pytest.fixture
def crashed(corpora, tmp_path):
    """A run stopped in round 3 of 5, and its run file."""
    crash(run_config(corpora), tmp_path / "crashed", charges=4)
    return tmp_path / "crashed", written(tmp_path, run_tree(corpora), "crashed.yaml")


@pytest.mark.parametrize("name", ["pretrain", "train", "compare", "sweep", "plan"])
def test_a_file_that_is_not_there_is_told_before_torch_is_imported(tmp_path, name):
    """Which takes seconds."""
    told = "import sys, uedp_ray.cli as cli; cli._answered(); print([*{'torch', 'ray'} & sys.modules.keys()])"
    arguments = [sys.executable, "-c", told, name, str(tmp_path / "none.yaml"), "--out", str(tmp_path / "out")]
    ended = subprocess.run(arguments[: None if name != "plan" else -2], capture_output=True, text=True, check=True)
    assert ended.stdout == "[]\n"
    assert "none.yaml: no such file" in " ".join(ended.stderr.replace("'", "").split())


def test_another_config_cannot_resume_a_run(refused, crashed, corpora):
    out, path = crashed
    wanted = run_config(corpora, privacy={**TREE["privacy"], "noise_multiplier": 9.0}).digest()[:12]
    refused(
        "train", path, "--workers", 0, "--out", out, "--resume", "--set", "privacy.noise_multiplier=9.0",
        parts=["--resume", run_config(corpora).digest()[:12], wanted, "config.yaml"],
    )  # fmt: skip
    refused("train", path, "--workers", 0, "--out", out, parts=["--out", "--resume"])


def test_a_foreign_checkpoint_or_ledger_is_refused(refused, command, crashed):
    out, path = crashed
    resume = ("train", path, "--workers", 0, "--out", out, "--resume")
    state = out / "checkpoint" / "state.json"
    mine = state.read_text()
    digest = json.loads(mine)["config_digest"]
    state.write_text(mine.replace(digest, "f" * 64))
    refused(*resume, parts=["checkpoint config_digest", "f" * 12, digest[:12]])
    state.write_text(mine)
    ledger = out / "ledger.jsonl"
    ledger.rename(out / "mine")
    refused(*resume, parts=["ledger", "is missing"])
    shutil.copy(out / "mine", ledger)
    (out / "mine").unlink()
    code, _, error = command(*resume)
    assert (code, "ended after 3 of 5 rounds" in error) == (1, True), "of five that are charged, two were played again"


def test_a_run_that_does_not_exist_predicts_nothing(refused, tmp_path):
    refused("predict", tmp_path, "--text", "the", parts=["RUN", str(tmp_path), "finished run"])


def test_a_bad_sweep_is_refused(refused, tmp_path, corpora):
    tree = sweep_tree(corpora, space={"privacy.sigma": {"uniform": [0, 1]}})
    refused("sweep", write_sweep(tree, tmp_path), parts=["space.privacy.sigma", "unknown setting"])
    refused("report", tmp_path, parts=[str(tmp_path), "sweep"])


def test_unknown_flags_and_commands_exit_with_2(command):
    assert command("train", "--epsilon", 3)[0] == 2
    assert command("fly")[0] == 2


@pytest.mark.slow
@pytest.mark.usefixtures("here")
def test_a_sweep_of_which_nothing_came_fails_and_nobody_adds_a_run_to_it(command, refused, run_file, tmp_path, corpora):
    tree = sweep_tree(corpora, space={"training.server_learning_rate": {"choice": [1e30]}})
    tree["search"] = {"searcher": "grid"}
    path, out = write_sweep(tree, tmp_path), tmp_path / "out"
    code, told, error = command("sweep", path, "--out", out)
    assert code == 1
    assert "No trial was trained to its end" in told
    assert "May be published: nothing" in told
    assert "no trial was trained to its end: the reasons are in trials.parquet" in error
    for run in ("0000", "stranger"):
        refused("train", run_file, "--out", out / "trials" / run, "--resume", parts=["--out", APART])
