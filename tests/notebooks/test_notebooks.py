"""The notebooks are committed executed, small and without a trace of a machine, and they run on a sweep made here."""

from __future__ import annotations

import itertools
import json
import re
import shlex
import shutil
from pathlib import Path
from typing import Any

import nbclient
import nbformat
import pytest

from tests.crashes.commands import Sweep
from tests.search.sweeps import PRETRAIN, sweep_config, sweep_tree
from uedp_ray.privacy.ledger import read_ledger
from uedp_ray.search.sweep import sweep
from uedp_ray.search.sweep_config import load_sweep_config

pytestmark = pytest.mark.whole

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
MAX_BYTES = 300_000
ABSOLUTE_PATH = re.compile(r"(?<![\w.<:/])/[\w.+-]+/[\w.+/-]*")


def each(paths: list[Path]) -> Any:
    return pytest.mark.parametrize("path", paths, ids=lambda path: path.stem)


def outputs(notebook: Any) -> list[Any]:
    return [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]


def pictures(notebook: Any) -> int:
    return sum("image/png" in output.get("data", {}) for output in outputs(notebook))


def check_clean(notebook: Any) -> None:
    """Nothing failed or warned, and no text names a folder of the machine."""
    found = outputs(notebook)
    assert not [output for output in found if output.output_type == "error" or output.get("name") == "stderr"]
    shown = [{**output, "data": {**output.get("data", {}), "image/png": None}} for output in found]
    text = json.dumps([shown, [cell.source for cell in notebook.cells]], ensure_ascii=False)
    assert not ABSOLUTE_PATH.findall(text.replace("\\n", "\n"))


def test_there_are_four():
    assert [path.name[0] for path in NOTEBOOKS] == ["1", "2", "3", "4"]


@each(NOTEBOOKS)
def test_it_is_committed_executed_small_and_clean(path):
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    assert pictures(notebook) or path.name.startswith("4")
    check_clean(notebook)
    assert path.stat().st_size < MAX_BYTES
    assert set(notebook.metadata) <= {"kernelspec", "language_info"}
    assert notebook.metadata.kernelspec.name == "python3"
    assert not [cell for cell in notebook.cells if cell.metadata]  # times are kept there


def test_the_command_of_the_second_sweep_is_right():
    text = (ROOT / "notebooks" / "README.md").read_text()
    command = next(block for block in re.findall(r"```\n(.*?)```", text, re.S) if block.startswith("uedp-ray sweep"))
    words = shlex.split(command.replace("\\\n", " "))
    settings = [value for flag, value in itertools.pairwise(words) if flag == "--set"]
    found = load_sweep_config(ROOT / words[2], settings)
    assert {key.split(".")[1] for key in found.space} == {
        "entity_sampling_prob",
        "max_holders",
        "sentence_clip_norm",
        "l2_clip_norm",
    }


@pytest.fixture(scope="module")
def folder(corpora, tmp_path_factory) -> Path:
    """Laid out as the project: ``notebooks/`` and, under ``runs/``, two sweeps, the second a copy of the first."""
    folder = tmp_path_factory.mktemp("project")
    base = {**sweep_tree(corpora)["base"], "pretrain": PRETRAIN}
    with Sweep(folder / "here").played():  # what notebooks read is the same, in a tenth of the time
        sweep(sweep_config(corpora, folder, base=base), folder / "runs" / "quickstart")
    shutil.copytree(folder / "runs" / "quickstart", folder / "runs" / "quickstart-bounds")
    shutil.copytree(ROOT / "notebooks", folder / "notebooks")
    return folder


def execute(path: Path, folder: Path, patch: pytest.MonkeyPatch) -> Any:
    """Runs a copy of the notebook with nothing but its defaults; the kernel keeps its files in ``folder``."""
    for name in ("UEDP_SWEEP", "UEDP_OTHER_SWEEP", "UEDP_EXPORT"):
        patch.delenv(name, raising=False)
    for name in ("IPYTHONDIR", "JUPYTER_RUNTIME_DIR"):
        patch.setenv(name, str(folder / name))
    notebook = nbformat.read(folder / "notebooks" / path.name, as_version=4)
    client = nbclient.NotebookClient(
        notebook,
        timeout=500,
        kernel_name="python3",
        record_timing=False,
        resources={"metadata": {"path": str(folder / "notebooks")}},
    )
    client.execute()
    check_clean(notebook)
    return notebook


@pytest.mark.slow
@each(NOTEBOOKS[:3])
def test_it_runs(path, folder, monkeypatch):
    assert pictures(execute(path, folder, monkeypatch)) >= 4


@pytest.mark.slow
def test_the_first_runs_without_a_second_sweep(folder, monkeypatch, tmp_path):
    alone = tmp_path / "project"
    shutil.copytree(folder / "notebooks", alone / "notebooks")
    (alone / "runs").mkdir()
    (alone / "runs" / "quickstart").symlink_to(folder / "runs" / "quickstart")
    notebook = execute(NOTEBOOKS[0], alone, monkeypatch)
    assert "There is no second sweep" in json.dumps(outputs(notebook))


@pytest.mark.slow
def test_the_fourth_exports_what_may_be_published_and_nothing_else(folder, monkeypatch):
    execute(NOTEBOOKS[3], folder, monkeypatch)
    exported = folder / "runs" / "exported"
    names = {str(path.relative_to(exported)) for path in exported.rglob("*") if path.is_file()}
    assert {name for name in names if not name.startswith(("model/", "ledgers/"))} == {
        "README.md",
        "config.yaml",
        "ledger.jsonl",
        "privacy.md",
        "selection.json",
    }
    assert {"model/config.json", "model/model.safetensors"} < names
    for trial in ("0000", "0001", "0002"):
        theirs = folder / "runs" / "quickstart" / "trials" / trial / "ledger.jsonl"
        assert read_ledger(exported / "ledgers" / f"{trial}.jsonl") == read_ledger(theirs)
    for path in exported.rglob("*.*"):
        if path.suffix != ".safetensors" and path.is_file():
            assert str(folder) not in path.read_text()
            assert not re.search(r"tokens_per_second|sampling\.key", path.read_text())
