"""The command line: one JSON document on stdout, exit codes, and bad input answered in one line with its remedy.

One file above 400 lines: every command keeps the same promises, and is called through the same three fixtures.
"""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from importlib.metadata import version
from pathlib import Path

import pyarrow as pa
import pytest
import yaml

import uedp_ray
from tests.search.sweeps import sweep_tree, write_sweep
from tests.training.runs import TREE, crash, events, run_config, run_tree
from uedp_ray import interrupts
from uedp_ray.analysis.style import score_text
from uedp_ray.errors import InputError
from uedp_ray.search.layout import corpora_at
from uedp_ray.training.host import train

pytestmark = pytest.mark.whole


@pytest.fixture
def answer(command):
    """Runs a command with ``--json`` that must succeed; returns the document."""

    def run(*arguments):
        code, out, err = command(*arguments, "--json")
        assert code == 0, err
        return json.loads(out)

    return run


@pytest.fixture
def refused(command):
    """Runs a command that must be refused: exit code 2, nothing on stdout, one line that holds every given part."""

    def run(*arguments, parts):
        code, out, err = command(*arguments)
        assert code == 2, (code, err)
        assert out == ""
        last = err.strip().splitlines()[-1]
        assert last.startswith("error: ")
        for part in parts:
            assert part in last
        return last

    return run


def written(folder, tree, name="run.yaml"):
    path = folder / name
    path.write_text(yaml.safe_dump(tree, sort_keys=False))
    return path


@pytest.fixture
def run_file(tmp_path, corpora):
    return written(tmp_path, run_tree(corpora, training={"num_rounds": 2, "device": "cpu"}))


def test_export_and_the_epsilon_of_what_it_wrote(answer, refused, private_run, tmp_path):
    told = answer("export", private_run.out, "--out", tmp_path / "out")
    assert {"out", "epsilon", "epsilon_of_run", "rule"} <= told.keys()
    assert answer("epsilon", "--export", tmp_path / "out")["epsilon"] == told["epsilon"]
    refused("export", private_run.out, "--out", tmp_path / "out", parts=["--out", "is not empty"])
    refused("epsilon", "--export", private_run.out, parts=["--export", "is not a folder that uedp-ray export wrote"])


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


PARAMETERS = ("--q-u", 0.05, "--q-e", 0.5, "--rounds", 20, "--max-holders", 3, "--entity-clip", 0.1)


@pytest.mark.parametrize(("method", "unit"), [("uedp", "user-entity"), ("uedp_fe", "user-entity"), ("user_dp", "user")])
def test_the_unit_of_a_published_figure_is_its_methods(answer, method, unit):
    asked = ("--accountant", "published", "--method", method, "--noise-multiplier", 2.0, *PARAMETERS)
    assert answer("epsilon", *asked)["unit"] == unit


@pytest.mark.parametrize("accountant", ["pld", "renyi", "published"])
@pytest.mark.parametrize("unit", ["user-entity", "user", "entity"])
def test_epsilon(answer, unit, accountant):
    asked = ("--unit", unit, "--accountant", accountant)
    found = answer("epsilon", *asked, "--noise-multiplier", 2.0, *PARAMETERS)
    assert {"epsilon", "delta", "accountant", "unit", "relation", "guarantee"} <= found.keys()
    claimed = "user-entity" if accountant == "published" else unit  # of --method uedp
    assert (found["accountant"], found["unit"], found["guarantee"]) == (accountant, claimed, accountant != "published")
    assert found["epsilon"] > 0


def test_what_is_left_out_bounds_nothing_and_the_answer_says_what_it_is_of(answer, refused):
    """An epsilon of numbers that nobody gave was called an upper bound: at K = 5, q_e = 0.5 and beta_e = 0.2."""
    given = ("--q-u", 0.05, "--noise-multiplier", 2, "--rounds", 50)
    found = answer("epsilon", *given)
    assert (found["epsilon"], found["guarantee"]) == (None, False)
    assert "none are declared or enforced" in found["text"]
    for name in given[::2]:  # there is no value on the safe side: 0.783 was "an upper bound" of nothing but a unit
        place = given.index(name)
        refused("epsilon", "--unit", "user", *given[:place], *given[place + 2 :], parts=[name, "is missing"])
    drawn, rounds = given[:2], given[4:]
    refused("calibrate", "--target-epsilon", 8, *drawn, *rounds, parts=["--max-holders", "declare or enforce"])
    refused("calibrate", "--target-epsilon", 8, *drawn, parts=["--rounds", "is missing"])
    bounded = answer("epsilon", *given, "--max-holders", 5)
    assert bounded["guarantee"]
    least = answer("epsilon", *given, "--max-holders", 5, "--entity-clip", 0.2, "--q-e", 0.5)
    assert least["epsilon"] < bounded["epsilon"], "a default is on the safe side of what may be true"
    drawn_all = [("--rule", "all", "--entity-draw", draw) for draw in ("global", "per-user")]
    for choices in (*drawn_all, ("--entity-draw", "per-user"), ("--extended-clip", 0.1), ("--q-s", 0.5)):
        chosen = answer("epsilon", *given, "--max-holders", 5, "--entity-clip", 0.2, "--q-e", 0.5, *choices)
        assert chosen["epsilon"] <= least["epsilon"] * (1 + 1e-6), choices
    for each in (
        "max_holders 5",
        "entity_clip 0.2",
        "entity_sampling_prob 0.5",
        "user_sampling_prob 0.05",
        "rounds 50",
    ):
        assert each in least["text"]
    assert answer("epsilon", "--unit", "user", *given)["guarantee"]


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


def test_ctrl_c_says_how_to_go_on(command, run_file, tmp_path, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("uedp_ray.training.worker.run_rounds", interrupted)
    code, _, err = command("train", run_file, "--workers", "0", "--out", tmp_path / "run")
    assert code == 130
    assert err.endswith(f"uedp-ray train {run_file} --workers 0 --out {tmp_path / 'run'} --resume\n")


def test_a_burst_of_ctrl_c_is_answered_once(command, run_file, tmp_path, monkeypatch):
    burst, told = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP], []

    def interrupted(*_, **__):
        raise KeyboardInterrupt

    def ignored_late():
        if burst:
            signal.raise_signal(burst.pop())
        interrupts.ignore()

    def interrupted_while_told(*words, **_):
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGTERM)
        told.append(words)

    monkeypatch.setattr("uedp_ray.training.host.train", interrupted)
    monkeypatch.setattr("uedp_ray.cli.ignore", ignored_late)
    monkeypatch.setattr("uedp_ray.cli.err.print", interrupted_while_told)
    code, _, _ = command("train", run_file, "--out", tmp_path / "run")
    assert (code, len(told), burst) == (130, 1, [])


@pytest.mark.parametrize("kind", ["entity", "extended"])
def test_a_part_of_the_unit_is_no_guarantee_of_it(answer, kind):
    found = answer("epsilon", *PARAMETERS, "--noise-multiplier", 2, "--kind", kind)
    assert found["guarantee"] is False
    assert "alone: no guarantee" in found["text"]
    assert answer("epsilon", *PARAMETERS, "--noise-multiplier", 2, "--kind", kind, "--unit", "user")["guarantee"]


def test_calibrate_never_overshoots(answer):
    found = answer("calibrate", "--target-epsilon", 2.0, *PARAMETERS)
    assert {"noise_multiplier", "epsilon"} <= found.keys()
    assert 1.98 < found["epsilon"] <= 2.0
    again = answer("epsilon", "--noise-multiplier", found["noise_multiplier"], *PARAMETERS)
    assert again["epsilon"] == found["epsilon"]


@pytest.mark.parametrize("unit", ["user-entity", "user", "entity"])
def test_epsilon_of_a_ledger_is_that_of_the_run(answer, private_run, unit):
    ledger = (
        "epsilon",
        "--ledger",
        private_run.out / "ledger.jsonl",
        "--delta",
        TREE["privacy"]["delta"],
        "--unit",
        unit,
    )
    found = answer(*ledger)
    assert found["epsilon"] == pytest.approx(private_run.result["epsilon"][unit], rel=1e-12)
    assert found["rounds"] == 5
    looser = answer(*ledger, "--accountant", "renyi")
    assert found["epsilon"] <= looser["epsilon"] <= 1.5 * found["epsilon"]
    assert (found["accountant"], looser["accountant"]) == ("pld", "renyi")


def test_a_ledger_tells_whether_bounds_were_declared_or_enforced(answer, corpora, private_run, tmp_path):
    bounds = {"mode": "declared", "max_holders": 30, "max_sentences_per_entity": 60, "max_sentences_per_user": None}
    train(run_config(corpora, bounds=bounds, training={"num_rounds": 1}), tmp_path / "run", workers=0)
    for run, relation in ((tmp_path / "run", "zero_out (declared)"), (private_run.out, "zero_out (fixed-graph)")):
        found = answer("epsilon", "--ledger", run / "ledger.jsonl")
        assert (found["relation"], found["guarantee"]) == (relation, True)


def test_an_epsilon_that_is_infinite_is_null_in_json(answer, corpora, tmp_path):
    config = run_config(corpora, privacy={"noise": "none", "noise_multiplier": None}, training={"num_rounds": 1})
    train(config, tmp_path / "run", workers=0)
    found = answer("epsilon", "--ledger", tmp_path / "run" / "ledger.jsonl")
    assert (found["epsilon"], found["guarantee"]) == (None, False)


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


@pytest.mark.parametrize("limit", [7, 8, 9])
def test_too_few_file_descriptors_name_the_limit_and_leave_nothing(tmp_path, limit):
    (tmp_path / "rows.jsonl").write_text('{"user": "u", "text": "a b"}')
    command = f"ulimit -n {limit}; exec {sys.executable} -m uedp_ray prepare rows.jsonl --format jsonl --out out"
    done = subprocess.run(["bash", "-c", command], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 2, done.stderr
    assert done.stderr.splitlines()[-1].startswith(f"error: ulimit -n = {limit}: too many open files")
    assert [path.name for path in tmp_path.iterdir()] == ["rows.jsonl"]


@pytest.mark.parametrize("started", [0, 1])
def test_where_no_thread_can_be_started_no_file_is_blamed(refused, run_file, tmp_path, monkeypatch, started):
    """A tokenizer whose pool of threads cannot be made fails as a damaged one does."""
    start, left = threading.Thread.start, [started]

    def limited(thread):
        left[0] -= 1
        if left[0] < 0:
            raise RuntimeError("can't start new thread")
        start(thread)

    def read(self, texts):
        monkeypatch.setattr("threading.Thread.start", limited)
        raise InputError("tokenizer.json", "run/vocabulary", "it has no tokens for some text")

    monkeypatch.setattr("uedp_ray.corpus.vocabulary.Vocabulary.encode_batch", read)
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    before = threading.active_count()
    refused("train", run_file, "--workers", 0, "--out", tmp_path / "run", parts=["ulimit -u = ", "cannot start enough"])
    assert threading.active_count() == before


@pytest.mark.parametrize("error", [MemoryError(), pa.ArrowMemoryError("malloc of size 64 failed")])
def test_a_lack_of_memory_before_the_first_round_is_told_in_one_line(command, run_file, tmp_path, monkeypatch, error):
    def short(*_, **__):
        raise error

    monkeypatch.setattr("uedp_ray.training.setup.apply_bounds", short)
    code, out, err = command("train", run_file, "--workers", 0, "--out", tmp_path / "run")
    assert (code, out) == (1, "")
    assert re.search("^failed: this machine ran out of memory: .*\n$", err, re.MULTILINE), err


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


@pytest.mark.parametrize(
    ("settings", "parts"),
    [
        (["privacy.sigma=3"], ["privacy.sigma", "3", "unknown key", "noise_multiplier"]),
        (["privacy.user_sampling_prob=1.5"], ["privacy.user_sampling_prob", "1.5", "[0, 1]"]),
        (["privacy.entity_sampling_prob=-0.1"], ["privacy.entity_sampling_prob", "-0.1", "[0, 1]"]),
        (["privacy.target_epsilon=3"], ["target_epsilon", "noise_multiplier", "(3.0, 1.0)", "exactly one"]),
        (["privacy.noise_multiplier=null"], ["target_epsilon", "noise_multiplier", "(None, None)", "exactly one"]),
        (["training.num_rounds=0"], ["training.num_rounds", "0", "1 or more"]),
        (["training.num_rounds=many"], ["training.num_rounds", "many", "int"]),
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


@pytest.fixture
def crashed(corpora, tmp_path):
    """A run stopped in round 3 of 5, and its run file."""
    crash(run_config(corpora), tmp_path / "crashed", charges=4)
    return tmp_path / "crashed", written(tmp_path, run_tree(corpora), "crashed.yaml")


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


def test_a_full_disk_under_the_ledger_releases_nothing(command, run_file, tmp_path, monkeypatch):
    out, calls, fsync = tmp_path / "out", [], os.fsync

    def full(descriptor):
        ledger = out / "ledger.jsonl"
        if ledger.exists() and os.path.samestat(os.fstat(descriptor), ledger.stat()):
            calls.append(descriptor)
            if len(calls) == 1:  # the opening event was renamed into place: this is the charge of round 0
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        fsync(descriptor)

    flags = ("--workers", 0, "--out", out, "--json")
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        code, stdout, err = command("train", run_file, *flags)
    assert (code, stdout) == (1, "")
    last = err.strip().splitlines()[-1]
    assert last.startswith("failed: ")
    for part in ("No space left", "ledger.jsonl", "not released"):
        assert part in last
    assert events(out) == []
    assert not (out / "checkpoint").exists()
    assert not (out / "model").exists()
    assert command("train", run_file, *flags, "--resume")[0] == 0


def test_a_full_disk_under_a_checkpoint_says_how_to_go_on(command, run_file, tmp_path, monkeypatch):
    out, replace = tmp_path / "out", os.replace

    def full(source, target):
        if str(target).endswith("state.json"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        replace(source, target)

    flags = ("--workers", 0, "--out", out, "--json")
    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", full)
        code, stdout, err = command("train", run_file, *flags)
    assert (code, stdout) == (1, "")
    assert "state.json" in err.splitlines()[-1]
    assert "--resume" in err.splitlines()[-1]
    code, stdout, err = command("train", run_file, *flags, "--resume")
    assert (code, json.loads(stdout)["rounds"]) == (1, 0), "both of two are charged, and neither was kept"
    assert "ended after 0 of 2 rounds" in err


def test_a_run_that_does_not_exist_predicts_nothing(refused, tmp_path):
    refused("predict", tmp_path, "--text", "the", parts=["RUN", str(tmp_path), "finished run"])


@pytest.mark.slow
def test_sweep_and_report(answer, command, tmp_path, corpora):
    path, out = write_sweep(sweep_tree(corpora), tmp_path), tmp_path / "out"
    found = answer("sweep", path, "--trials", 1, "--out", out)
    assert set(found) >= {"best", "pareto", "trials", "selection", "sweep_dir"}
    assert set(found["selection"]) >= {"rule", "epsilon"}
    page = answer("report", out)["html"]
    assert page == str(out / "report.html")
    assert score_text(found["best"]["perplexity"]) in (out / "report.html").read_text()
    code, told, error = command("sweep", path, "--trials", 2, "--out", out, "--resume")
    assert code == 0
    assert "Price of choosing (composition)" in told
    assert "2 done" in told
    assert re.search(r"trials: 2 done of 2; best so far \d+: perplexity \S+ \(\S+ bits/byte\)", error)


@pytest.mark.slow
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


def test_a_bad_sweep_is_refused(refused, tmp_path, corpora):
    tree = sweep_tree(corpora, space={"privacy.sigma": {"uniform": [0, 1]}})
    refused("sweep", write_sweep(tree, tmp_path), parts=["space.privacy.sigma", "unknown setting"])
    refused("report", tmp_path, parts=[str(tmp_path), "sweep"])


def test_unknown_flags_and_commands_exit_with_2(command):
    assert command("train", "--epsilon", 3)[0] == 2
    assert command("fly")[0] == 2


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
