"""Documentation and recipes agree with the code: settings, defaults, methods, links; every command in them is one."""

from __future__ import annotations

import dataclasses
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from typer.testing import CliRunner

import uedp_ray
from uedp_ray import config
from uedp_ray.cli import app
from uedp_ray.config import RunConfig, from_dict, limits, set_keys, to_dict
from uedp_ray.config.run import MAY_CHANGE
from uedp_ray.corpus.detectors import DETECTORS
from uedp_ray.corpus.readers import read_rows
from uedp_ray.methods import METHODS
from uedp_ray.privacy.statement import CHECKED
from uedp_ray.search import sweep_config as sweep_config
from uedp_ray.search.comparison import Comparison

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
REFERENCE = (ROOT / "docs" / "configuration.md").read_text()
SWEEPS = (ROOT / "docs" / "sweeps.md").read_text()
SECTIONS = dict(re.findall(r"^###? `(\w+)`([^#]*)", REFERENCE + SWEEPS, re.M))
SETTINGS = {
    c.__name__: c
    for module in (config, sweep_config)
    for c in vars(module).values()
    if dataclasses.is_dataclass(c) and c is not sweep_config.Metric
}
NAMED_DEFAULTS = {"empty": "", "none": None}


def commands() -> list[tuple[str, list[str]]]:
    """(page, words after ``uedp-ray``) of every command in a code block."""
    found = []
    for page in PAGES:
        for block in re.findall(r"^```\w*\n(.*?)^```", page.read_text(), re.M | re.S):
            for line in block.replace("\\\n", " ").splitlines():
                words = shlex.split(line, comments=True) if "uedp-ray " in line else []
                if "uedp-ray" in words:
                    found.append((page.name, words[words.index("uedp-ray") + 1 :]))
    return found


@pytest.mark.parametrize("cls", [c for name, c in SETTINGS.items() if name != "SweepConfig"], ids=lambda c: c.__name__)
def test_every_setting_is_in_the_reference_with_its_default_and_a_meaning(cls):
    rows = dict(re.findall(r"^\| `(\w+)` \| (.*?) \|", SECTIONS[cls.__name__], re.M))
    meanings = dict(re.findall(r"^\| `(\w+)` \| .*? \| (.*) \|$", SECTIONS[cls.__name__], re.M))
    assert list(rows) == [field.name for field in dataclasses.fields(cls)]
    assert all(meaning.strip() for meaning in meanings.values())
    for field in dataclasses.fields(cls):
        cell = rows[field.name]
        if field.default is dataclasses.MISSING and cell != "`{}`":
            continue  # a section of its own
        documented = NAMED_DEFAULTS[cell] if cell in NAMED_DEFAULTS else yaml.safe_load(cell.strip("`"))
        expected: Any = field.default_factory() if callable(field.default_factory) else field.default
        expected = list(expected) if isinstance(expected, tuple) else expected
        if isinstance(expected, float):
            documented = float(documented)  # YAML 1.1 reads 1e-5 as a string
        assert documented == expected, f"{cls.__name__}.{field.name}"


@pytest.mark.parametrize("cls", [c for name, c in SETTINGS.items() if name != "SweepConfig"], ids=lambda c: c.__name__)
def test_every_choice_is_in_the_reference(cls):
    """Whoever adds a name to a ``Literal`` says in the reference what it does."""
    rows = dict(re.findall(r"^\| `(\w+)` \| (.*) \|$", SECTIONS[cls.__name__], re.M))
    for name, choices in limits._choices(cls):
        missing = [each for each in limits._options(choices) if each is not None and f"`{each}`" not in rows[name]]
        assert not missing, f"{cls.__name__}.{name}"


def test_every_method_is_in_the_reference_with_its_settings():
    table = REFERENCE.split("| method |")[1].split("\n\n")[0]
    rows = dict(re.findall(r"^\| `(\w+)` \| (.*?) \|", table, re.M))
    assert list(rows) == list(METHODS)
    dropped = ("privacy.target_epsilon", "privacy.noise_multiplier")  # said once, below the table
    for name, method in METHODS.items():
        documented = dict(re.findall(r"`([a-z0-9_.]+): ([\w.-]+)`", rows[name]))
        expected = {key: value for key, value in method.settings.items() if not (key in dropped and value is None)}
        assert {
            key: yaml.safe_load(value) if value != "none" else value for key, value in documented.items()
        } == expected


def test_what_may_change_on_resume_is_in_the_reference():
    base = RunConfig(corpus=config.CorpusConfig(declared_num_users=10))
    other = {"name": "other", "device": "cpu", "aggregation": "sharded", "gradient_checkpointing": True}
    listed = re.findall(r"`([a-z_.]+)`", REFERENCE.split("These keys may differ:")[1].split(".\nA later")[0])
    assert set(listed) == {"name", *(f"training.{key}" for key in MAY_CHANGE)}
    for key in listed:
        value = other.get(key.removeprefix("training."), 7)
        assert from_dict(RunConfig, set_keys(to_dict(base), {key: value})).digest() == base.digest(), key


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    targets = re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", page.read_text())
    broken = [t for t in targets if "://" not in t and not (page.parent / t).exists()]
    assert not broken


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CONTRIBUTING.md"], ids=lambda page: page.name)
def test_modules_that_a_page_names_are_there(page):
    for name in re.findall(r"`((?:[a-z_]+/)*[a-z_]+\.py)`", page.read_text()):
        assert any((folder / name).exists() for folder in (ROOT, ROOT / "uedp_ray")), name


@pytest.mark.parametrize("page", ["README.md", "docs/accounting.md", "docs/threat-model.md"])
def test_the_relation_leaves_out_the_checks_before_the_first_round_in_the_same_words(page):
    assert CHECKED.rstrip(".") in " ".join((ROOT / page).read_text().split())


def test_every_command_parses():
    known = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    assert len(commands()) > 20
    for page, words in commands():
        try:
            known[words[0]].make_context(words[0], words[1:])
        except Exception as error:  # a click usage error, whatever its kind
            pytest.fail(f"{page}: uedp-ray {shlex.join(words)}: {error}")


def test_accounting_commands_run():
    """No data is needed for them, so they can be run as written."""
    for page, words in commands():
        if words[0] in ("epsilon", "calibrate") and "--ledger" not in words:
            result = CliRunner().invoke(app, words)
            assert result.exit_code == 0, (page, words, result.output)


def test_figures_of_the_pages_are_what_the_accountant_says():
    """Each stands in a page, with what it is of."""
    readme = (ROOT / "README.md").read_text()
    code = re.search(r"one_round = (RoundMechanism\(.*?\n\))\nepsilon\((.*?)\)  # ([\d.]+)", readme, re.S)
    assert code is not None
    names = {"RoundMechanism": uedp_ray.RoundMechanism, "epsilon": uedp_ray.epsilon}
    found = eval(f"epsilon({code[2]})", names, {"one_round": eval(code[1], names)})
    assert f"{found:.2f}" == code[3]
    page = (ROOT / "docs" / "pitfalls.md").read_text()
    assert "z = 1, q_u = 0.05, q_e = 1, K = 5, β_e = 0.2 (also of a sentence without entities), 100 rounds" in page
    for holders, said in ((5, "ε = 8.15."), (50, "ε is 50.9, not 8.15")):
        one = {"noise_multiplier": 1.0, "user_sampling_prob": 0.05, "entity_clip": 0.2, "extended_clip": 0.2}
        mechanism = uedp_ray.RoundMechanism(**one, max_holders=holders)
        assert f"{uedp_ray.epsilon(mechanism, rounds=100, delta=1e-5):.3g}" in said
        assert said in page


def test_every_detector_is_in_the_reference():
    rows = (ROOT / "docs" / "configuration.md").read_text()
    assert all(f"`{spec}`" in rows for spec in DETECTORS.values())


def test_what_the_package_offers_is_what_it_says_whatever_was_imported_before():
    """``from uedp_ray import sweep`` was the package of that name, and not to be called."""
    for name in uedp_ray.__all__:
        for _ in range(2):  # the first import of a module makes it an attribute of its package
            assert callable(getattr(uedp_ray, name)), name
        found = getattr(uedp_ray, name)
        assert found.__name__ == name


def test_the_run_file_of_the_readme_loads(tmp_path):
    (tmp_path / "run.yaml").write_text(re.search(r"```yaml\n(.*?)```", (ROOT / "README.md").read_text(), re.S)[1])
    assert config.load_config(tmp_path / "run.yaml").privacy.target_epsilon == 8


def test_the_conversion_of_a_csv_file_runs_as_written(tmp_path, monkeypatch):
    page = (ROOT / "docs" / "your-own-text.md").read_text()
    code = next(block for block in re.findall(r"```python\n(.*?)```", page, re.S) if "csv" in block)
    monkeypatch.chdir(tmp_path)
    Path("notes.csv").write_text('\ufeffday,author,message\n1,ann,"Zoë said ""no"",\nand left"\n', encoding="utf-8")
    exec(compile(code, "your-own-text.md", "exec"), {})
    (row,) = read_rows(config.SourceConfig(path="notes.jsonl", format="jsonl"))
    assert (row.user, row.text) == ("ann", 'Zoë said "no", and left')


def test_the_run_file_for_labelled_text_loads(tmp_path):
    (tmp_path / "run.yaml").write_text(re.search(r"```yaml\n(.*?)```", (ROOT / "docs/tasks.md").read_text(), re.S)[1])
    assert config.load_config(tmp_path / "run.yaml").task.kind == "classify"


def test_the_first_sweep_file_of_its_page_loads(tmp_path):
    (tmp_path / "sweep.yaml").write_text(
        re.search(r"```yaml\n(.*?)```", (ROOT / "docs/sweeps.md").read_text(), re.S)[1]
    )
    assert sweep_config.load_sweep_config(tmp_path / "sweep.yaml").search.rule == "composition"


@pytest.mark.parametrize("recipe", sorted((ROOT / "sweeps").rglob("*.yaml")), ids=lambda recipe: recipe.name)
def test_recipes_load_at_every_scale(recipe, monkeypatch):
    monkeypatch.setenv("UEDP_DATA", "/data")
    monkeypatch.chdir(ROOT)
    tree = config.read_yaml(recipe)
    if "variants" in tree:
        assert Comparison.load(recipe, []).variants
        for scale in tree.get("scales", {}):
            assert Comparison.load(recipe, [f"scale={scale}"]).variants
    else:
        assert sweep_config.load_sweep_config(recipe).num_trials > 1
