"""What ``epsilon`` and ``calibrate`` answer: one JSON document that says what it is of."""

from __future__ import annotations

import json

import pytest

from tests.training.runs import TREE, run_config
from uedp_ray.privacy.statement import show_epsilon
from uedp_ray.training.host import train

pytestmark = pytest.mark.whole


def test_export_and_the_epsilon_of_what_it_wrote(answer, command, refused, private_run, tmp_path):
    told = answer("export", private_run.out, "--out", tmp_path / "out")
    assert {"out", "epsilon", "epsilon_of_run", "rule"} <= told.keys()
    assert answer("epsilon", "--export", tmp_path / "out")["epsilon"] == told["epsilon"]
    refused("export", private_run.out, "--out", tmp_path / "out", parts=["--out", "is not empty"])
    last = command("export", private_run.out, "--out", tmp_path / "again")[1].splitlines()[-1]
    assert last == f"total ε {show_epsilon(told['epsilon'])} (user-entity, δ = 0.0001), training: {tmp_path / 'again'}"
    refused("epsilon", "--export", private_run.out, parts=["--export", f"uedp-ray export {private_run.out} --out DIR"])
    refused("epsilon", "--export", tmp_path, parts=["--export", "is not a folder that uedp-ray export wrote"])


@pytest.mark.parametrize("name", ["org\n\nepsilon: 0.001", "org\x1b]0;owned\x07", "", 3, "\u202eorg"])
def test_an_export_of_somebody_else_writes_no_lines_of_its_own(answer, refused, private_run, tmp_path, name):
    out = tmp_path / "out"
    answer("export", private_run.out, "--out", out)
    terms = json.loads((out / "selection.json").read_text())
    (out / "selection.json").write_text(json.dumps(terms | {"categories": [name]}))
    refused("epsilon", "--export", out, parts=["--export", "is not a folder that uedp-ray export wrote"])


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


@pytest.mark.parametrize("kind", ["entity", "extended"])
def test_a_part_of_the_unit_is_no_guarantee_of_it(answer, kind):
    found = answer("epsilon", *PARAMETERS, "--noise-multiplier", 2, "--kind", kind)
    assert found["guarantee"] is False
    assert "alone: no guarantee" in found["text"]
    assert answer("epsilon", *PARAMETERS, "--noise-multiplier", 2, "--kind", kind, "--unit", "user")["guarantee"]


def test_what_is_filled_costs_as_what_is_reweighted(answer):
    parameters = [*PARAMETERS, "--max-users", 1000, "--holder-bound"]
    filled = answer("calibrate", "--target-epsilon", 2.0, *parameters, "fill")
    assert filled == answer("calibrate", "--target-epsilon", 2.0, *parameters, "reweight")


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


@pytest.mark.parametrize("delta", [0, -1, 1, "nan", 1e-13])
def test_a_delta_that_bounds_nothing_is_refused_for_a_ledger_too(refused, private_run, delta):
    refused(
        "epsilon",
        "--ledger",
        private_run.out / "ledger.jsonl",
        "--delta",
        delta,
        parts=["--delta", "must lie in [1e-12, 1)"],
    )


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
