"""Methods say of themselves what their runs guarantee, and are listed with it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import get_args

import pytest

from uedp_ray.calibration import planned_charges
from uedp_ray.config import CorpusConfig, PrivacyConfig, RunConfig, TaskConfig, choices
from uedp_ray.methods import METHODS, Method, apply
from uedp_ray.plan import Plan, epsilons, units_of
from uedp_ray.search.compared import own
from uedp_ray.search.comparison import Comparison
from uedp_ray.training.guarantees import guarantees

BASE = RunConfig(corpus=CorpusConfig(declared_num_users=1000), privacy=PrivacyConfig(noise_multiplier=1.0))
OF_SENTENCES = TaskConfig(kind="classify", labels=("a", "b"))
LEFT_TO_ITS_USER = {"published": {"privacy.noise_multiplier": 2.0}}
LEFT_TO_ITS_USER["gaudp_as_published"] = {"representation.num_records": 1000}


@pytest.mark.parametrize("name", METHODS)
def test_a_run_of_a_method_guarantees_what_the_method_states(name):
    stated = METHODS[name]
    of_sentences = "representation.kind" in stated.settings
    base = RunConfig(corpus=BASE.corpus, privacy=BASE.privacy, task=OF_SENTENCES if of_sentences else TaskConfig())
    config = apply(base, name, {"training.num_rounds": 2, **LEFT_TO_ITS_USER.get(name, {})})
    spent = {}
    if config.privacy.noise == "calibrated":
        spent = epsilons(Plan.of(config), planned_charges(config, 1.0), units_of(config))
    promised = [each.to_dict() for each in guarantees(Plan.of(config), spent)]
    found = own(promised, config.privacy.unit)
    assert (found["unit"], found["trust"], found["sound"]) == (stated.unit, stated.trust, stated.sound)
    assert not (stated.published and found["sound"])


def test_what_a_method_leaves_out_promises_nothing():
    bare = Method({}, "settings under a name")
    assert (bare.unit, bare.trust, bare.sound) == ("none", "central", False)
    assert not Method({}, "noise of a paper", unit="record", published=True).sound


def test_methods_are_listed_with_what_they_protect(command):
    code, out, _ = command("methods", "--json")
    rows = {row["method"]: row for row in json.loads(out)["methods"]}
    assert (code, list(rows)) == (0, list(METHODS))
    code, out, _ = command("methods")
    assert code == 0
    for name, row in rows.items():
        promise = "as published: not a guarantee" if row["published"] else "sound" if row["sound"] else "no guarantee"
        (line,) = (line.split(maxsplit=3) for line in out.splitlines() if line.split()[:1] == [name])
        assert line[1:3] == [row["unit"], row["trust"]]
        assert line[3].startswith(f"{promise}  ")
        assert row["summary"] in line[3]


LABELLED = ("dpnr", "gaudp")
"""How the names of methods begin that need a label of each sentence."""


@pytest.mark.parametrize(("recipe", "leaves"), [("methods", ()), ("conll2003-methods", LABELLED)])
def test_the_recipes_of_all_methods_leave_none_out(recipe, leaves, monkeypatch):
    monkeypatch.setenv("UEDP_DATA", "/data")
    compared = Comparison.load(Path(__file__).parents[1] / "sweeps" / f"{recipe}.yaml", [])
    runs = [(row.method, row.config(compared.base)) for row in compared.rows]
    transforms = [config.corpus.transform for _, config in runs]
    assert {method for method, _ in runs} == {name for name in METHODS if not name.startswith(leaves)}
    assert {config.corpus.regroup for _, config in runs} == {*get_args(choices.Regrouping)}
    assert {each.kind for each in transforms} == {*get_args(choices.TransformKind)} - {"plant"}  # which is for audits
    assert {each.style for each in transforms if each.kind == "mask"} == {*get_args(choices.MaskStyle)}
    words = {each.mechanism for each in transforms if each.kind == "replace_words"}
    assert words == {*get_args(choices.WordMechanism)}
