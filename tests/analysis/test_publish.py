"""Pages to publish: what stands on them is paid for, and no path and no error message is among it."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.analysis.page import Page
from tests.analysis.sweeps import read_result, write_sweep
from uedp_ray.analysis.frames import load_sweep
from uedp_ray.analysis.publish import publishable
from uedp_ray.analysis.report import report
from uedp_ray.analysis.summary import ranges
from uedp_ray.errors import InputError
from uedp_ray.redact import DATE

pytestmark = pytest.mark.whole


def test_a_page_to_publish_is_without_the_noiseless_line_and_of_what_is_paid_for(small, private, tmp_path):
    sweep = shutil.copytree(small, tmp_path / "sweep")
    found = report([sweep], publish=True)
    for file in (found, *(sweep / "figures").glob("*.svg")):
        assert file.stat().st_mtime == DATE, "its own would say when the sweep ended"
        assert "noiseless" not in file.read_text().replace("noiseless: {}", "")
    with pytest.raises(InputError, match=r"--publish = .*pays for the winner alone"):
        report([private], tmp_path / "page.html", publish=True)
    with pytest.raises(InputError, match=r"--publish = .*is not finished"):
        report([write_sweep(tmp_path / "s", finished=False)], publish=True)


@pytest.fixture(scope="module")
def of_paths(tmp_path_factory) -> Path:
    """A sweep over folders, named in full and from where it ran, and a name of a hub; two others differ in their text."""
    folder = tmp_path_factory.mktemp("qxhome")
    for name in ("qxone", "qxthree", "qxstart"):
        (folder / name).mkdir()
    paths = ["qxone", "hub/words", str(folder / "qxtwo"), "qxthree"]
    space = {
        "vocabulary.kind": {"choice": ["tokenizer"]},
        "vocabulary.path": {"choice": paths},
        "model.warm_start": {"choice": ["", "qxstart", str(folder / "qxstart")]},
        "model.trainable": {"choice": ["full", "lora"], "when": {"vocabulary.path": [*paths[::-1]]}},
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        write_sweep(folder / "sweep", space=space)
    table = pq.read_table(folder / "sweep" / "trials.parquet")
    rows = [row | {"reason": row["reason"] and f"{folder}/qxrun: 4711 users"} for row in table.to_pylist()]
    assert any(row["reason"] for row in rows)
    pq.write_table(pa.Table.from_pylist(rows, schema=table.schema), folder / "sweep" / "trials.parquet")
    return folder / "sweep"


def test_no_path_and_no_error_message_is_in_a_page_to_publish(of_paths, tmp_path):
    owners = report([of_paths], tmp_path / "owners.html").read_text()
    assert "qxtwo" in owners
    assert "4711 users" in owners
    assert "Notes quote error messages" in owners
    path = report([of_paths], publish=True)
    for file in (path, *(of_paths / "figures").glob("*.svg")):
        text = file.read_text()
        assert [name for name in ("qx", "4711 users", str(of_paths.parent)) if name in text] == [], file
    found, text = Page(path), path.read_text()
    assert "Notes quote error messages" not in text
    assert "why a trial was refused" not in text
    header = next(row for row in found.rows if row and row[0] == "trial" and "notes" in row)
    rows = [dict(zip(header, row, strict=True)) for row in found.rows if re.fullmatch(r"\d{4}", row[0])]
    table = pq.read_table(of_paths / "trials.parquet").to_pylist()
    shown = {"qxone": "path 1", "hub/words": "hub/words", f"{of_paths.parent}/qxtwo": "path 2", "qxthree": "path 3"}
    paths = {row["trial"]: shown[row["vocabulary.path"]] for row in table}
    assert {row["trial"]: row["path"] for row in rows} == paths
    assert {row["path"] for row in rows} == set(shown.values())
    assert {row["warm_start"] for row in rows} == {"", "path 1", "path 2"}
    assert {row["notes"] for row in rows if row["state"] == "failed"} == {""}
    figure = (of_paths / "figures" / "parallel.svg").read_text()
    assert all(f">{name}<" in figure for name in ("path 1", "path 2", "path 3", "hub/words"))
    best = load_sweep(of_paths).best["params"]
    chosen = {row[0]: row[1:] for row in found.rows if row and row[0] in best}
    assert chosen["vocabulary.path"] == [shown[best["vocabulary.path"]], "one of path 1, hub/words, path 2, path 3"]
    conditional = publishable(load_sweep(of_paths)).space["model.trainable"]
    assert ranges(conditional).endswith("only where vocabulary.path is path 3 or path 2 or hub/words or path 1")


def test_a_name_that_no_finished_run_took_from_a_hub_is_a_path(of_paths, tmp_path):
    copy = shutil.copytree(of_paths, tmp_path / "copy")
    table = pq.read_table(copy / "trials.parquet")
    rows = [row | {"state": "failed"} if row["vocabulary.path"] == "hub/words" else row for row in table.to_pylist()]
    pq.write_table(pa.Table.from_pylist(rows, schema=table.schema), copy / "trials.parquet")
    (copy / "result.json").write_text(json.dumps(read_result(copy) | {"trials": rows}))
    assert "hub/words" not in report([copy], publish=True).read_text()


def test_several_sweeps_to_publish_do_not_say_in_which_paths_they_differ(tmp_path):
    paths = [
        write_sweep(
            tmp_path / name, trials=2, fixed={"corpus.evaluation": {"format": "text", "path": f"/qx/{name}.txt"}}
        )
        for name in ("one", "two")
    ]
    assert "/qx/two.txt" in report(paths, tmp_path / "owners.html").read_text()
    text = report(paths, tmp_path / "page.html", publish=True).read_text()
    assert "No common axis: evaluation text of two differs from that of one." in text
    assert "/qx/" not in text
