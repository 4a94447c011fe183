"""Each file of a finished run or sweep emptied, cut, garbled or swapped: the next command says which, or mends it."""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.crashes.commands import Sweep
from tests.training.runs import TREE, run_config
from uedp_ray.answers import ledger_epsilon
from uedp_ray.corpus.store import open_corpus
from uedp_ray.errors import InputError
from uedp_ray.search.export import export
from uedp_ray.training.host import train
from uedp_ray.training.predict import predict

SOUND = {
    "empty": lambda data: b"",
    "cut": lambda data: data[: len(data) // 2],
    "garbled": lambda data: b"\x00\xff{" + data[9:],
}
KINDS = [*SOUND, "of another kind"]
SOUND["one bit of an array's header"] = lambda data: data.replace(b")", b"(", 1)
OTHER = b'{"tensors": "../../private/sampling.key", "next_round": -1, "points": 7, "rule": [], "format_version": 1}'
ENDLESS = {"a pipe": os.mkfifo, "40 GB": lambda path: path.touch() or os.truncate(path, 40 << 30)}
"""What is never read to its end, or not within memory."""


def damage(path: Path, kind: str) -> None:
    if kind in ENDLESS:
        path.unlink(missing_ok=True)
        ENDLESS[kind](path)
        return
    path.write_bytes(OTHER if kind == "of another kind" else SOUND[kind](path.read_bytes()))


RUN = [
    *("config.yaml", "ledger.jsonl", "rounds.parquet", "checkpoint/state.json", "checkpoint/round-000004.safetensors"),
    *("private/sampling.key", "private/setup.json", "private/sentence_weight.npy", "vocabulary/tokenizer.json"),
    *(f"private/corpus/index/{name}.npy" for name in ("user_offsets", "entity_ids", "sentence_words")),
    *("private/corpus/corpus.json", "private/corpus/shards/part-00000.parquet", "private/tokens/*/tokens.npy"),
]
MENDED = {"rounds.parquet", "private/tokens/*/tokens.npy"}
"""What a resume makes anew."""
UNREAD = {"private/corpus/shards/part-00000.parquet"}
BESIDE = [
    *("progress.json", "privacy.md", "model/config.json", "model/model.safetensors", "model/tokenizer.json"),
    *(f"private/{name}" for name in ("speed.json", "tokens/*/offsets.npy", "tokens/*/cut.npy")),
]
"""What a resume writes, and no more than looks at before."""


@pytest.fixture(scope="module")
def broken_off(corpora, tmp_path_factory):
    """A run of which everything but the results is there, and whose corpus is its own; its config and result."""
    folder = tmp_path_factory.mktemp("broken-off")
    config = run_config(
        corpora,
        corpus={"source": {"format": "synthetic", "num_users": 30}, "declared_num_users": 30},
        training={**TREE["training"], "num_rounds": 4},
    )
    result = train(config, folder / "run", workers=0)
    (folder / "run" / "result.json").unlink()
    return folder / "run", config, result


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        *((name, kind) for name in RUN for kind in KINDS),
        *((name, kind) for name in [*RUN, *BESIDE, "private/config.yaml"] for kind in ENDLESS),
        *((name, "one bit of an array's header") for name in [*RUN, *BESIDE] if name.endswith(".npy")),
    ],
)
def test_a_damaged_file_of_a_run_is_named_or_made_anew(broken_off, tmp_path, name, kind):
    out, config = tmp_path / "run", broken_off[1]
    shutil.copytree(broken_off[0], out)
    for path in list(out.glob(name)) or [out / name]:
        damage(path, kind)

    def resume():
        before = {path: path.read_bytes() for path in out.glob("checkpoint/*") if kind not in ENDLESS}
        if name in MENDED | UNREAD or name in BESIDE:
            result = train(config, out, workers=0, resume=True)
            rows = pq.read_table(out / "rounds.parquet").to_pylist()
            assert (rows[0]["round"], rows[-1]["round"]) == (0, 4)
            assert rows[0]["perplexity"] == result["initial_perplexity"] == broken_off[2]["initial_perplexity"]
            return
        with pytest.raises(InputError) as raised:
            train(config, out, workers=0, resume=True)
        assert "\n" not in str(raised.value)
        assert {path: path.read_bytes() for path in before} == before, "what was released stays"

    bounded(resume, tmp_path / "child")


def bounded(action: Callable[[], object], output: Path) -> None:
    """Does it in a process that has neither much time nor much memory."""
    child = os.fork()
    if child == 0:
        code = 70
        try:
            resource.setrlimit(resource.RLIMIT_DATA, (8 << 30, 8 << 30))
            action()
            code = 0
        except BaseException:
            output.write_text(traceback.format_exc())
        finally:
            os._exit(code)
    give_up = time.monotonic() + 20
    while not (ended := os.waitpid(child, os.WNOHANG))[0]:
        if time.monotonic() > give_up:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            pytest.fail("it hangs")
        time.sleep(0.005)
    assert ended[1] == 0, output.read_text()


@pytest.mark.parametrize("kind", ENDLESS)
@pytest.mark.parametrize(
    "name",
    [
        *("ledger.jsonl", "rounds.parquet", "result.json", "config.yaml", "private/setup.json"),
        *("model/config.json", "model/model.safetensors", "model/tokenizer.json", "model/tokenizer_config.json"),
    ],
)
def test_what_cannot_be_read_to_its_end_of_a_finished_run_is_refused(private_run, corpora, tmp_path, name, kind):
    out = tmp_path / "run"
    shutil.copytree(private_run.out, out)
    damage(out / name, kind)
    reads = {
        "export": lambda: export(out, tmp_path / "handed-on"),
        "predict": lambda: predict(out, ["the"]),
        "resume": lambda: train(run_config(corpora), out, workers=0, resume=True),
        "epsilon": lambda: ledger_epsilon(out / "ledger.jsonl", delta=1e-5),
    }

    def read() -> None:
        refused = set()
        for command, action in reads.items():
            try:
                action()
            except InputError:
                refused.add(command)
        assert ("export" in refused) == (name != "rounds.parquet")
        assert ("predict" in refused) == name.startswith("model")

    bounded(read, tmp_path / "child")


def _odd(path: Path, change: Callable[[list[dict[str, Any]]], object]) -> None:
    rows = pq.read_table(path).to_pylist()
    change(rows)
    pq.write_table(pa.Table.from_pylist(rows), path)


def _vast(path: Path) -> None:
    """A small file of many rows, in pages that repeat one value."""
    schema = pq.read_schema(path)
    many = pa.table([pa.array(np.zeros(3_000_000)).cast(field.type) for field in schema], schema=schema)
    pq.write_table(many, path, compression="zstd")


@pytest.mark.parametrize(
    "damaged",
    [
        lambda path: _odd(path, lambda rows: rows[-1].update(round=None)),
        lambda path: _odd(path, lambda rows: [row.update(perplexity="x") for row in rows]),
        lambda path: _odd(path, lambda rows: [row.update(perplexity=[1.0]) for row in rows]),
        lambda path: _odd(path, lambda rows: [row.update(noise_std=None) for row in rows]),
        _vast,
    ],
    ids=["no round", "text", "lists", "no noise", "vast"],
)
def test_odd_rows_of_a_run_are_made_anew(broken_off, tmp_path, damaged):
    out = tmp_path / "run"
    shutil.copytree(broken_off[0], out)
    damaged(out / "rounds.parquet")

    def resume() -> None:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        result = train(broken_off[1], out, workers=0, resume=True)
        rows = pq.read_table(out / "rounds.parquet").to_pylist()
        assert (rows[0]["round"], rows[-1]["round"]) == (0, 4)
        assert rows[0]["perplexity"] == result["initial_perplexity"] == broken_off[2]["initial_perplexity"]
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200 << 10, "KiB"

    bounded(resume, tmp_path / "child")


def test_what_is_read_of_a_finished_run_is_checked(private_run, corpora, tmp_path):
    shutil.copytree(private_run.out, tmp_path / "run")
    for kind in KINDS:
        damage(tmp_path / "run" / "result.json", kind)
        with pytest.raises(InputError, match=r"result\.json.*delete it"):
            train(run_config(corpora), tmp_path / "run", workers=0, resume=True)
    (tmp_path / "run" / "result.json").unlink()
    again = train(run_config(corpora), tmp_path / "run", workers=0, resume=True)
    assert again["perplexity"] == private_run.result["perplexity"]


ODD_VALUES = ["x", -1, [1], {}, 10**400, float("nan")]
FIELDS = {
    "result.json": ["perplexity", "epsilon", "epsilon.user-entity", "rounds", "planned_rounds", "unk_share", "private"],
    "private/setup.json": [
        "detectors",
        "categories",
        "compared",
        "evaluation_size",
        "mechanism",
        "corpus",
        "evaluation",
    ],
}


@pytest.mark.parametrize("name", FIELDS)
def test_a_field_of_another_type_is_named_before_anything_is_charged(private_run, corpora, tmp_path, name):
    out = tmp_path / "run"
    shutil.copytree(private_run.out, out)
    whole, ledger = json.loads((out / name).read_text()), (out / "ledger.jsonl").read_bytes()
    if name != "result.json":
        (out / "result.json").unlink()
    for field in FIELDS[name]:
        for odd in ODD_VALUES:
            tree = json.loads(json.dumps(whole))
            inner, last = (tree["epsilon"], field[8:]) if field.startswith("epsilon.") else (tree, field)
            inner[last] = odd
            (out / name).write_text(json.dumps(tree))
            with pytest.raises(InputError) as raised:
                train(run_config(corpora), out, workers=0, resume=True)
            assert "\n" not in str(raised.value)
            assert (out / "ledger.jsonl").read_bytes() == ledger


def test_of_offsets_none_leaves_its_array(corpora, tmp_path):
    shutil.copytree(corpora / "private", tmp_path / "corpus")
    for name in ("user_offsets", "shard_users", "entity_offsets", "entity_ids"):
        path = tmp_path / "corpus" / "index" / f"{name}.npy"
        whole = np.load(path)
        for wrong in (whole[:-1], np.where(whole == whole.max(), 2**30, whole), whole - 1, whole.astype(np.float64)):
            np.save(path, wrong.astype(wrong.dtype))
            with pytest.raises(InputError, match=f"{name.split('_')[0]}.*run prepare again"):
                open_corpus(tmp_path / "corpus")
        np.save(path, whole)
    open_corpus(tmp_path / "corpus")


SWEEP = ["study.journal", "selection.json", "private/base.yaml", "private/pool.json", "sweep.yaml"]


@pytest.fixture(scope="module")
def searched(tmp_path_factory):
    """A finished sweep, and a copy of it: its files name its own paths."""
    command = Sweep(tmp_path_factory.mktemp("searched"))
    command.set_up()
    assert command.call() == 0
    copy = tmp_path_factory.mktemp("copy") / "out"
    shutil.copytree(command.out, copy)
    return command, copy


@pytest.mark.parametrize("kind", [*KINDS, *ENDLESS])
@pytest.mark.parametrize("name", SWEEP)
def test_a_damaged_file_of_a_sweep_is_named(searched, capsys, tmp_path, name, kind):
    command, copy = searched
    shutil.rmtree(command.out)
    shutil.copytree(copy, command.out)
    damage(command.out / name, kind)

    def resume() -> None:
        capsys.readouterr()
        code = command.call()
        told = capsys.readouterr()
        if (name, kind) == ("study.journal", "cut"):  # trials of which it knows no end are resumed, and have ended
            assert code == 0, told.err
            assert json.loads(told.out)["selection"] == json.loads((copy / "result.json").read_text())["selection"]
        elif name == "private/base.yaml":  # nothing is left to train from it
            assert code == 0, told.err
        else:
            assert code == 2, told.err
            assert told.err.count("error: ") == 1
            assert "Traceback" not in told.err

    bounded(resume, tmp_path / "child")
    for ledger in copy.rglob("ledger.jsonl"):
        assert (command.out / ledger.relative_to(copy)).read_bytes() == ledger.read_bytes()


@pytest.mark.parametrize(
    "content",
    [
        {"references": 7},
        {"references": [{"name": "noiseless"}]},
        {"trials": [7]},
        {"trials": [{"trial": "0", "number": 0, "state": "done", "run_dirs": ["../x"], "perplexity": 1}]},
        {"trials": [{"trial": "0000", "state": "done", "run_dirs": ["trials/0000"], "perplexity": 1}]},
    ],
)
def test_an_odd_result_of_a_sweep_is_made_anew(searched, command, tmp_path, content):
    searching, copy = searched
    shutil.rmtree(searching.out)
    shutil.copytree(copy, searching.out)
    (searching.out / "result.json").write_text(json.dumps(content))
    code, _, told = command("export", searching.out, "--out", tmp_path / "handed-on")
    assert (code, told.count("error: ")) == (2, 1), told
    assert searching.call() == 0
    whole, made = (json.loads((each / "result.json").read_text()) for each in (copy, searching.out))
    assert (made["references"], made["best"]) == (whole["references"], whole["best"])


@pytest.mark.parametrize(
    ("field", "odd"),
    [("odometer", "x"), ("odometer", {"planned": [{"mechanism": [1], "rounds": 4}]}), ("delta", "x"), ("rule", [])],
)
def test_odd_terms_of_a_price_are_named(searched, command, tmp_path, field, odd):
    searching, copy = searched
    shutil.rmtree(searching.out)
    shutil.copytree(copy, searching.out)
    terms = searching.out / "selection.json"
    terms.write_text(json.dumps(json.loads(terms.read_text()) | {field: odd}))
    code, _, told = command("export", searching.out, "--out", tmp_path / "handed-on")
    assert (code, told.count("error: "), told.count("\n")) == (2, 1, 1), told
    assert "selection.json" in told


@pytest.mark.parametrize(
    "content",
    ["{", '{"perplexity": 1e999, "bits_per_byte": 1, "unk_share": 0, "initial_perplexity": 9, "rounds": 4}', None],
)
def test_an_ended_trial_without_its_result_is_named(searched, capsys, content):
    searching, copy = searched
    shutil.rmtree(searching.out)
    shutil.copytree(copy, searching.out)
    path = searching.out / "trials" / "0000"
    if content is None:
        shutil.rmtree(path)
    else:
        (path / "result.json").write_text(content)
    capsys.readouterr()
    assert searching.call() == 2
    told = capsys.readouterr().err
    assert (told.count("error: "), told.count("Traceback")) == (1, 0)
    assert "0000" in told.splitlines()[-1]


@pytest.mark.slow
def test_a_sample_of_the_crash_matrix(tmp_path):
    """The whole of it is in docs/reliability.md."""
    if shutil.which("cc") is None:
        pytest.skip("no C compiler")
    matrices = [
        *("--points", "4"),
        *("--and", "--points", "3", "--at", "ledger.jsonl", "--only", "train, private"),
        *("--and", "--points", "2", "--at", "sweep.yaml", "--only", "sweep"),
        *("--and", "--points", "2", "--at", "private/owners", "--only", "train at a URL"),
        *("--and", "--points", "2", "--errors", "--only", "train"),
        *("--and", "--points", "1", "--errors", "--once", "--at", "study.journal", "--only", "sweep, adaptive"),
        *("--and", "--points", "2", "--other", "--only", "train", "--only", "train, private"),
    ]
    command = [sys.executable, "-m", "tests.crashes", *matrices]
    done = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[2])
    assert done.returncode == 0, done.stderr[-1000:] + done.stdout[-6000:]
