"""Documentation and recipes agree with the code: every setting is documented, every link leads somewhere."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from uedp_ray import config
from uedp_ray.training.compare import Comparison

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def test_every_setting_is_in_the_reference():
    text = (ROOT / "docs" / "configuration.md").read_text()
    classes = [c for c in vars(config).values() if dataclasses.is_dataclass(c)]
    missing = [f"{c.__name__}.{f.name}" for c in classes for f in dataclasses.fields(c) if f"`{f.name}`" not in text]
    assert not missing


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    targets = re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", page.read_text())
    broken = [t for t in targets if "://" not in t and not (page.parent / t).exists()]
    assert not broken


@pytest.mark.parametrize("recipe", sorted((ROOT / "sweeps").glob("*.yaml")), ids=lambda recipe: recipe.name)
def test_recipes_load(recipe, monkeypatch):
    monkeypatch.setenv("UEDP_DATA", "/data")
    comparison = Comparison.load(recipe, [])
    assert comparison.variants
