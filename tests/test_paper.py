"""The points in ``sweeps/paper/published.csv`` are those of docs/fidelity.md and of the published arithmetic."""

from __future__ import annotations

import csv
import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAPER = ROOT / "sweeps" / "paper"
POINTS = list(csv.DictReader((PAPER / "published.csv").read_text(encoding="utf-8").splitlines()))


def of(prefix):
    return [row for row in POINTS if row["figure"].startswith(prefix)]


def test_perplexities_are_those_of_the_page():
    page = (ROOT / "docs" / "fidelity.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| ([\w-]+), ε = ([0-9.]+) \|(.*)$", page, re.M)
    printed = {(corpus, float(at), value) for corpus, at, cells in rows for value in re.findall(r"\d+\.\d\d", cells)}
    found = {(row["corpus"], float(row["x"]), f"{float(row['y']):.2f}") for row in of("2")}
    # what no unit protects has no ε: the page repeats it at each
    levels = {(corpus, value) for corpus, _, value in found if value in {"38.30", "27.13"}}
    assert found == {each for each in printed if (each[0], each[2]) not in levels or each[1] == 0.2}


@pytest.mark.parametrize("row", of("4"), ids=lambda row: f"{row['corpus']} {row['series']} {row['x']}")
def test_epsilon_against_rounds_goes_through_what_is_printed(row):
    corpora = runpy.run_path(str(PAPER / "epsilon_against_rounds.py"))["CORPORA"]
    (corpus,) = (each for each in corpora if each.name == row["corpus"])
    method = {"f_E+": "uedp", "f_E": "uedp_fe", "user-level": "user_dp"}[row["series"].split()[0]]
    category = re.search(r"\((.*)\)", row["series"])
    value = corpus.printed(method, int(row["x"]), category[1] if category else "all")
    assert value == pytest.approx(float(row["y"]), abs=0.01)
