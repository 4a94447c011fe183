"""A sweep that somebody else wrote leads nowhere outside its folder, costs little, and is refused in one line."""

from __future__ import annotations

import json
import math
import shutil
import sys
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.analysis.sweeps import read_result
from uedp_ray.analysis import files
from uedp_ray.analysis.figures import joint_pareto
from uedp_ray.analysis.frames import load_sweep
from uedp_ray.analysis.report import report
from uedp_ray.config import SourceConfig, dump_config, load_config
from uedp_ray.errors import InputError

pytestmark = pytest.mark.whole

PERPLEXITIES = ("perplexity", "initial_perplexity")
NOT_NEGATIVE = ("perplexity_std", "bits_per_byte", "unk_share", "noise_multiplier", "epsilon", "epsilon_user")
COUNTS = ("number", "seeds", "rounds", "charged")


@pytest.fixture
def copy(small, tmp_path) -> Path:
    (tmp_path / "secret").mkdir()
    for name in ("config.yaml", "privacy.md", "ledger.jsonl", "rounds.parquet"):
        (tmp_path / "secret" / name).write_text("the owner's secret")
    return shutil.copytree(small, tmp_path / "sweep")


def refused(folder: Path, *parts: str) -> str:
    """The line with which the report refuses it; nothing was written."""
    with pytest.raises(InputError) as error:
        report([folder])
    message = str(error.value)
    assert "\n" not in message
    assert len(message) < 400
    assert "the owner's secret" not in message
    for part in parts:
        assert part in message
    assert not (folder / "report.html").exists()
    return message


def edit(folder: Path, *keys: str, to: object) -> None:
    """Sets a value of result.json; ``to`` may be any JSON text."""
    tree = node = read_result(folder)
    for key in keys[:-1]:
        node = node[key]
    node[keys[-1]] = "@@"
    text = to if isinstance(to, str) and to.startswith(("@", "1e", "-", "9", "NaN", "[[")) else json.dumps(to)
    (folder / "result.json").write_text(json.dumps(tree).replace('"@@"', text.removeprefix("@")))


@pytest.mark.parametrize(
    "name",
    ["../secret", "/etc", "trials/../../secret", "trials/..", "trials", "", "private", "trials/a/b", "$HOME", 7, None],
)
def test_the_chosen_run_lies_in_the_folder(copy, name):
    edit(copy, "best", "run_dir", to=name)
    refused(copy, "is not a run of a sweep")


@pytest.mark.parametrize("name", ["../secret", "/etc", "trials/../../secret"])
def test_so_do_those_of_the_table(copy, name):
    table = pq.read_table(copy / "trials.parquet").to_pylist()
    table[0]["run_dirs"] = [name]
    pq.write_table(pa.Table.from_pylist(table), copy / "trials.parquet")
    refused(copy, "is not a run of a sweep")


@pytest.mark.parametrize("value", [3, 0.5, [7], "trials/0000"], ids=str)
def test_the_runs_of_a_trial_are_a_list_of_names(copy, value):
    table = pq.read_table(copy / "trials.parquet")
    place = table.column_names.index("run_dirs")
    pq.write_table(table.set_column(place, "run_dirs", pa.array([value] * len(table))), copy / "trials.parquet")
    refused(copy, "expected lists of text")


def test_a_run_or_a_file_that_is_a_symbolic_link_to_elsewhere_is_not_read(copy):
    best = copy / read_result(copy)["best"]["run_dir"]
    for name in ("config.yaml", "privacy.md", "ledger.jsonl"):
        kept = (best / name).read_bytes()
        (best / name).unlink()
        (best / name).symlink_to(copy.parent / "secret" / name)
        refused(copy, "leads out of the sweep's folder")
        (best / name).unlink()
        (best / name).write_bytes(kept)
    shutil.rmtree(best)
    best.symlink_to(copy.parent / "secret")
    refused(copy, "leads out of the sweep's folder")


@pytest.mark.parametrize("name", ["sweep.yaml", "trials.parquet", "result.json"])
def test_nor_is_a_link_in_the_place_of_a_file_of_the_sweep(copy, name):
    (copy / name).rename(copy.parent / name)
    (copy / name).symlink_to(copy.parent / name)
    refused(copy, "leads out of the sweep's folder")


def test_the_page_replaces_a_link_and_figures_follow_none(copy):
    victim = copy.parent / "secret" / "privacy.md"
    (copy / "report.html").symlink_to(victim)
    (copy / "figures").symlink_to(copy.parent / "secret")
    with pytest.raises(InputError, match="leads out of the sweep's folder"):
        report([copy])
    assert victim.read_text() == "the owner's secret"
    assert not (copy / "report.html").is_symlink()
    assert not list((copy.parent / "secret").glob("*.svg"))


@pytest.mark.parametrize(
    ("keys", "value", "part"),
    [
        (("best", "bits_per_byte"), "x", "best.bits_per_byte"),
        (("best", "perplexity"), "1e999", "best.perplexity"),
        (("best", "perplexity"), "-1", "best.perplexity"),
        (("best", "perplexity"), 0.5, "best.perplexity"),
        (("best", "perplexity"), "NaN", "best.perplexity"),
        (("best", "perplexity"), "9" * 400, "best.perplexity"),
        (("best", "perplexity"), "9" * 5000, "not JSON"),
        (("best", "epsilon"), "[[" * 5000 + "]]" * 5000, "not JSON"),
        (("best", "epsilon"), {"user": 1}, "the key user-entity"),
        (("best", "epsilon_with_choice"), 0.5, "is below the"),
        (("best", "seeds"), True, "best.seeds"),
        (("best", "params"), {"os.system": 1}, "settings that were searched"),
        (("best", "params"), {"training.num_rounds": "9" * 300}, "a value that was searched"),
        (("best", "trial"), "<b>", "the name of a trial"),
        (("best", "tied"), {"0000": 1}, "best.tied"),
        (("selection", "rule"), "free", "selection.rule"),
        (("selection", "delta"), 1e-3, "selection.delta"),
        (("selection", "text"), ["free"], "selection.text"),
        (("references",), [{"name": "<b>", "perplexity": 3, "epsilon": 0}], "references[0].name"),
        (("references",), [{"name": "noiseless", "perplexity": 0, "epsilon": 0}], "references[0].perplexity"),
        (("counts",), [], "counts"),
        (("counts", "done"), 0.5, "counts.done"),
        (("best",), 3, "best"),
    ],
    ids=lambda value: str(value)[:12],
)
def test_a_result_with_what_no_sweep_writes(copy, keys, value, part):
    edit(copy, *keys, to=value)
    refused(copy, part)


def test_a_sweep_of_an_earlier_version_is_reported_or_sent_back_to_it(copy):
    best = read_result(copy)["best"]
    edit(copy, "best", to={key: best[key] for key in best if key not in ("initial_perplexity", "run_dir")})
    refused(copy, "the key run_dir: if an earlier version made the sweep, report and export it with that version")
    edit(copy, "best", to={key: best[key] for key in best if key != "initial_perplexity"})
    assert load_sweep(copy).best["initial_perplexity"] is None
    later = "initial_bits_per_byte"
    edit(copy, "best", to={key: value for key, value in best.items() if key != later})
    table = pq.read_table(copy / "trials.parquet")
    pq.write_table(table.drop_columns(later), copy / "trials.parquet")
    assert load_sweep(copy).best[later] is None
    assert load_sweep(copy).trials[later].isna().all()
    report([copy])
    assert (copy / "report.html").exists()


@pytest.mark.parametrize("content", [b"", b"[1]", b"null", b"{", b"\xff\xfe", b"{}"])
def test_a_result_that_is_none(copy, content):
    (copy / "result.json").write_bytes(content)
    refused(copy, "result.json")


@pytest.mark.parametrize(
    ("column", "value", "part"),
    [
        ("perplexity", "95", "another type"),
        *((name, -1.0, f"trials.parquet: {name} = '-1.0': expected a number from 1") for name in PERPLEXITIES),
        *((name, value, "expected a number from 1") for name in PERPLEXITIES for value in (0.0, 5e-324)),
        *((name, -1.0, f"trials.parquet: {name} = '-1.0': expected a number from 0") for name in NOT_NEGATIVE),
        *((name, -1, f"trials.parquet: {name} = '-1': expected a number from 0") for name in COUNTS),
        ("seeds", "two", "another type"),
        ("state", "<script>", "is not a state"),
        ("trial", "../0000", "is not the name of a trial"),
        ("training.num_rounds", 10**9, "was not searched"),
        ("model.trainable", "<script>", "was not searched"),
        ("privacy.user_sampling_prob", -1.0, "was not searched"),
    ],
)
def test_a_table_with_what_no_sweep_writes(copy, column, value, part):
    rows = [{**row, column: value} for row in pq.read_table(copy / "trials.parquet").to_pylist()]
    pq.write_table(pa.Table.from_pylist(rows), copy / "trials.parquet")
    refused(copy, part, column)


def _curve(folder: Path, column: str, value: object, *, last: bool = False) -> None:
    """Sets a column of the chosen run's rounds.parquet, or its last value only."""
    path = folder / read_result(folder)["best"]["run_dir"] / "rounds.parquet"
    rows = pq.read_table(path).to_pylist()
    for row in rows[-1:] if last else rows:
        row[column] = value
    pq.write_table(pa.Table.from_pylist(rows), path)


@pytest.mark.parametrize("last", [False, True], ids=["all", "last"])
@pytest.mark.parametrize(
    ("column", "value", "part"),
    [
        *(("perplexity", value, "expected a number from 1") for value in (0.0, -1.0, 5e-324, 0.5, -math.inf)),
        *(("round", value, "expected a number from 0") for value in (-1, -(2**63))),
        ("round", None, "another type"),
    ],
)
def test_rounds_with_what_no_run_writes(copy, column, value, part, last):
    _curve(copy, column, value, last=last)
    refused(copy, part, "rounds.parquet", column if value is not None else "")


@pytest.mark.parametrize("value", ["95", True, datetime(9999, 1, 1), [95.0]], ids=str)
@pytest.mark.parametrize("column", ["round", "perplexity"])
def test_rounds_of_another_type(copy, column, value):
    _curve(copy, column, value)
    refused(copy, "another type", f"rounds.parquet: {column}")


def test_a_column_that_is_there_twice(copy):
    run = copy / read_result(copy)["best"]["run_dir"]
    for path, name in ((run / "rounds.parquet", "perplexity"), (copy / "trials.parquet", "epsilon")):
        kept = path.read_bytes()
        table = pq.read_table(path)
        pq.write_table(table.append_column(name, table.column(name)), path)
        refused(copy, f"lacks the column {name}, or has it twice")
        path.write_bytes(kept)


@pytest.mark.parametrize(
    ("column", "value"), [("perplexity", None), ("perplexity", math.nan), ("run_dirs", None), ("run_dirs", [])]
)
def test_a_trial_that_is_done_without_what_it_made(copy, column, value):
    rows = [{**row, column: value} for row in pq.read_table(copy / "trials.parquet").to_pylist()]
    pq.write_table(pa.Table.from_pylist(rows), copy / "trials.parquet")
    refused(copy, f"trials.parquet: {column}", "is done")
    (copy / "result.json").unlink()
    refused(copy, f"trials.parquet: {column}", "is done")


@pytest.mark.parametrize("last", [False, True], ids=["all", "last"])
@pytest.mark.parametrize("value", [1.0, 1.7e308, math.inf, None])
def test_rounds_of_a_run_that_diverged_or_was_not_evaluated_make_a_page(copy, value, last):
    _curve(copy, "perplexity", value, last=last)
    report([copy])


@pytest.mark.parametrize("every", [False, True], ids=["best", "all"])
@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("perplexity", 1.0),
        ("perplexity", 1e304),
        ("perplexity", 1.7e308),
        ("perplexity", math.inf),
        ("perplexity_std", 1.7e308),
        ("epsilon", 1.7e308),
    ],
)
def test_a_table_of_runs_that_diverged_makes_a_page(copy, column, value, every):
    best = read_result(copy)["best"]["trial"]
    rows = pq.read_table(copy / "trials.parquet").to_pylist()
    for row in rows:
        if row["state"] == "done" and (every or row["trial"] == best):
            row[column] = value
    pq.write_table(pa.Table.from_pylist(rows), copy / "trials.parquet")
    report([copy])
    joint_pareto([load_sweep(copy)] * 2)


def test_references_that_diverged_make_a_page(copy):
    edit(copy, "references", to=[{"name": "noiseless", "perplexity": 1e300, "epsilon": None}])
    report([copy])


def test_a_table_that_unpacks_to_more_than_it_may(copy, monkeypatch):
    monkeypatch.setattr(files, "MAX_BYTES", 10 * 2**20)
    long = pa.array(["x" * 2**16] * 2000).dictionary_encode()
    pq.write_table(pa.table({"trial": long}), copy / "trials.parquet", compression="zstd")
    assert (copy / "trials.parquet").stat().st_size < 20_000
    refused(copy, "unpacks to more than")


def test_what_is_no_table_and_what_is_too_large(copy, monkeypatch):
    (copy / "trials.parquet").write_bytes(b"PAR1PAR1")
    refused(copy, "is not a readable Parquet file")
    monkeypatch.setattr(files, "MAX_BYTES", 1000)
    with pytest.raises(InputError, match="is larger than 1000 bytes"):
        files.read_text(copy, "result.json")


def test_perplexities_at_the_end_of_all_numbers_and_formulas_in_names_make_a_page(copy, tmp_path):
    rows = pq.read_table(copy / "trials.parquet").to_pylist()
    done = [row for row in rows if row["state"] == "done"]
    done[-1]["perplexity"], done[-2]["perplexity"] = sys.float_info.max, 1.0
    pq.write_table(pa.Table.from_pylist(rows), copy / "trials.parquet")
    named = copy.rename(tmp_path / r"$\frac{<script>x")
    assert "<script>x" not in report([named]).read_text()


def test_no_path_of_the_owner_is_on_the_page(copy):
    run = copy / read_result(copy)["best"]["run_dir"]
    config = load_config(run / "config.yaml")
    source = SourceConfig(format="jsonl", path="/home/ann/secret.jsonl", detector=("list:/home/ann/names.txt",))
    dump_config(replace(config, corpus=replace(config.corpus, source=source)), run / "config.yaml")
    assert "/home/ann" not in report([copy]).read_text()


def test_a_copy_at_another_place_still_reads(copy):
    assert load_sweep(copy).best_run == copy / read_result(copy)["best"]["run_dir"]


def test_rounds_that_are_missing_are_not_drawn(copy):
    """A copy without a trial's ``rounds.parquet`` ended in a traceback."""
    for path in (copy / "trials").glob("*/rounds.parquet"):
        path.unlink()
    assert "No finished trial has recorded perplexity" in report([copy]).read_text()


def test_a_folder_in_the_place_of_a_figure_is_told_before_the_page_is_written(copy):
    (copy / "figures" / "learning.svg").mkdir(parents=True)
    refused(copy, "figures", "is a folder")
