"""What stands in ``cluster/`` agrees with the package, and says what it costs to get wrong."""

from __future__ import annotations

import re
import shlex
import subprocess
import tomllib
from pathlib import Path

import pytest
import typer
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from uedp_ray.cli import app

ROOT = Path(__file__).parents[2]
CLUSTER = ROOT / "cluster"
FILES = sorted(path for path in CLUSTER.iterdir() if path.is_file())
RUNNABLE = [path for path in FILES if path.name not in ("Containerfile", "kuberay-storage.yaml")]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PINS = {
    canonicalize_name(name): version
    for name, version in re.findall(r"^([\w.-]+)==(.+)$", (ROOT / "constraints.txt").read_text(), re.M)
}


def header(path: Path) -> str:
    """The comment at the top, without its marks."""
    lines = [line for line in path.read_text().splitlines() if not line.startswith(("#!", "#SBATCH"))]
    top = lines[: next(k for k, line in enumerate(lines) if not line.startswith("#"))]
    return "\n".join(line.removeprefix("#").removeprefix(" ") for line in top)


def commands(text: str) -> list[list[str]]:
    """Words after ``uedp-ray`` of every command on a file or a variable that holds one."""
    found = re.findall(r"uedp-ray ((?:train|sweep) \"?\$?[\w/.]+(?:\.yaml|\").*)", text)
    return [shlex.split(re.sub(r"\s*(\[.*|&|\"\$\{.*|\$\(.*)$", "", line), comments=True) for line in found]


def parse(words: list[str]) -> dict[str, object]:
    """The options of a ``uedp-ray`` command. Raises a usage error for one that does not exist."""
    known = typer.main.get_command(app).commands[words[0]]  # type: ignore[attr-defined]
    return known.make_context(words[0], words[1:]).params


def test_all_of_it_is_there():
    names = {path.name for path in FILES}
    assert names >= {"aws.yaml", "gcp.yaml", "kuberay-raycluster.yaml", "kuberay-rayjob.yaml", "kuberay-storage.yaml"}
    assert names >= {"Containerfile", "local.sh", "slurm.sh"}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_a_comment_at_the_top_says_how_to_use_it_and_what_it_costs_to_get_wrong(path):
    use, cost = header(path).split("What it costs to get wrong:")
    assert re.search(rf"^  .*\b{re.escape(path.name)}", use, re.M), "a command that uses the file"
    cost = " ".join(cost.split())
    assert "private text" in cost.lower()
    if path in RUNNABLE:
        assert "Authentication." in cost
        assert "token" in cost
        assert "Shared storage." in cost
        assert "ledger" in cost
        assert "charged again" in cost


@pytest.mark.parametrize("path", RUNNABLE, ids=lambda path: path.name)
def test_its_commands_are_commands(path):
    found = commands(path.read_text())
    assert found
    for words in found:
        options = parse(words)
        if words[0] == "sweep":
            assert options["address"]
            assert options["out"]
            assert any(setting.startswith("resources.gpus_per_worker=") for setting in options["settings"])


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_what_must_be_replaced_is_explained(path):
    top = header(path)
    body = path.read_text()[len(top) :]
    for name in set(re.findall(r"REPLACE_\w+", body)):
        assert re.search(rf"\b{name}\b", top), name


@pytest.mark.parametrize("path", [p for p in FILES if p.suffix == ".sh"], ids=lambda path: path.name)
def test_scripts_are_shell(path):
    subprocess.run(["bash", "-n", path], check=True)
    assert path.stat().st_mode & 0o100


def test_the_tested_versions_satisfy_the_package():
    for text in PROJECT["dependencies"]:
        requirement = Requirement(text)
        assert requirement.specifier.contains(PINS[canonicalize_name(requirement.name)]), text


def test_images_and_manifests_name_the_tested_versions():
    containerfile = (CLUSTER / "Containerfile").read_text()
    python = re.search(r"^FROM \S+/python:([\d.]+)", containerfile, re.M)[1]
    assert SpecifierSet(PROJECT["requires-python"]).contains(python)
    assert "--constraint constraints.txt" in containerfile
    copied = [word for line in re.findall(r"^COPY (.*)$", containerfile, re.M) for word in line.split()[:-1]]
    assert all((ROOT / word).exists() for word in copied)
    assert "." not in copied, "private text in the folder would go in"
    for path in FILES:
        tags = re.findall(r"registry\.example\.com/[\w-]+:([\w.]*\w)", path.read_text())
        assert set(tags) <= {PROJECT["version"]}, path.name
        assert set(re.findall(r"rayVersion: (\S+)", path.read_text())) <= {PINS["ray"]}, path.name


@pytest.mark.parametrize("name", ["aws", "gcp"])
def test_nodes_get_this_package_and_nothing_private(name):
    config = yaml.safe_load((CLUSTER / f"{name}.yaml").read_text())
    mounts = {remote: Path(local) for remote, local in config["file_mounts"].items()}
    code = {remote: local for remote, local in mounts.items() if not str(local).startswith("~")}
    assert all((ROOT / local).exists() and local != Path() for local in code.values())
    assert set(mounts) - set(code) == {"/home/ubuntu/.ray/auth_token"}
    (install,) = [line for line in config["setup_commands"] if "uedp_ray/constraints.txt" in line]
    needed = {"pyproject.toml", "constraints.txt", PROJECT["readme"], "uedp_ray"}
    assert {str(local) for local in code.values()} == needed
    assert "-c ~/uedp_ray/constraints.txt ~/uedp_ray" in install
