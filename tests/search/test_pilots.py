"""Rule ``pilots``: cheap trials, one run by the settings of the best, and one epsilon for all of it."""

from __future__ import annotations

import json
import shutil

import pytest

from tests.search.sweeps import search_here, sweep_config, sweep_tree, write_sweep
from tests.told import Told
from uedp_ray import methods
from uedp_ray.analysis.frames import load_sweep
from uedp_ray.analysis.report import report
from uedp_ray.answers import export_epsilon
from uedp_ray.console import print_sweep
from uedp_ray.errors import InputError
from uedp_ray.privacy import best_of, sequence
from uedp_ray.privacy.selection import candidates_of
from uedp_ray.search.export import export
from uedp_ray.search.feasibility import budget_cautions
from uedp_ray.search.layout import SweepDir
from uedp_ray.search.pilots import final_allowance, read_pilots
from uedp_ray.search.planner import plan
from uedp_ray.search.selection_cost import allowance_of, announced, cost_of_selection, fix_terms
from uedp_ray.search.sweep import sweep
from uedp_ray.search.sweep_config import load_sweep_config

pytestmark = pytest.mark.slow

SEARCH = {"searcher": "random", "trials": 3, "selection": "pilots", "pilot_epsilon": 0.5}
BUDGET = {"covers": "answer"}


def pilots(corpora, tmp_path, **search):
    return sweep_config(corpora, tmp_path, search=SEARCH | search, budget=BUDGET)


@pytest.fixture(scope="module")
def searched(corpora, tmp_path_factory):
    folder = tmp_path_factory.mktemp("pilots")
    config = pilots(corpora, folder)
    return config, folder / "out", search_here(config, folder / "out")


def test_the_answer_with_its_pilots_stays_within_the_budget(searched):
    config, out, answer = searched
    total = answer["best"]["epsilon_with_choice"]
    assert 0.95 * 8 < total <= 8
    winner = json.loads((out / "winner" / "result.json").read_text())
    assert answer["best"]["epsilon"] == winner["epsilon"]
    assert answer["best"]["noise_multiplier"] == winner["noise_multiplier"], "of the run that is handed on"
    assert answer["best"]["perplexity"] == winner["perplexity"], "its own score, not the pilot's"
    assert 7 < winner["epsilon"]["user-entity"] < total
    for row in answer["trials"]:
        assert row["epsilon"] <= 0.5
    best = min(answer["trials"], key=lambda row: row["perplexity"])
    assert answer["best"]["trial"] == best["trial"]
    assert answer["best"]["params"] == {key: best[key] for key in config.space}


def test_the_total_is_that_of_every_pilot_and_of_the_dearest_run_that_may_follow(searched):
    config, out, answer = searched
    planned = {name: candidates_of(runs) for name, runs in read_pilots(config, SweepDir(out)).items()}
    assert (len(planned["pilots"]), len(planned["finals"])) == (3, 3)
    steps = [*([pilot] for pilot in planned["pilots"]), planned["finals"]]
    found = sequence.epsilon(steps, delta=config.budget.delta, unit="user-entity")
    assert answer["selection"]["epsilon"] == found
    assert found > answer["best"]["epsilon"]["user-entity"]


def test_what_each_run_may_spend_is_said_before_the_first(searched):
    config, out, _ = searched
    folder = SweepDir(out)
    assert allowance_of(config, folder).epsilon == 0.5
    assert 7 < final_allowance(config, folder).epsilon < 8
    said = announced(config, folder)
    assert "rule pilots" in said
    assert "each pilot alone is 0.500, and the run after them at most 7." in said


@pytest.mark.parametrize("rule", ["pilots", "selected_pilots", "composition"])
def test_pilots_that_choose_a_learning_rate_are_warned_of(corpora, tmp_path, rule):
    """On CoNLL-2003 in small, rates that were worst at 8 were best at 0.5."""
    tree = sweep_tree(corpora, search={"searcher": "random", "trials": 3, "selection": rule}, budget=BUDGET)
    tree["space"] = {"training.server_learning_rate": {"log_uniform": [0.004, 0.04]}}
    config = load_sweep_config(write_sweep(tree, tmp_path))
    tree["space"] = {"privacy.sentence_clip_norm": {"log_uniform": [0.2, 0.8]}}
    without = load_sweep_config(write_sweep(tree, tmp_path))
    for told in (budget_cautions, lambda sweep: plan(sweep)["warnings"]):
        warned = [
            any("choose a learning rate for more noise" in line for line in told(each)) for each in (config, without)
        ]
        assert warned == [rule != "composition", False]


def handed_on(searched, folder, rule):
    """Exports the answer of a sweep, whose total is recomputed from what is there."""
    _, out, answer = searched
    exported, again = export(out, folder), export_epsilon(folder)
    assert (exported["epsilon"], exported["rule"]) == (answer["best"]["epsilon_with_choice"], rule)
    assert (again["epsilon"], again["guarantee"]) == (pytest.approx(exported["epsilon"]), True)
    return folder


def test_the_export_holds_every_ledger_and_its_total_is_recomputed(searched, tmp_path):
    _, out, answer = searched
    total = answer["best"]["epsilon_with_choice"]
    assert len(list((handed_on(searched, tmp_path / "handed-on", "pilots") / "ledgers").iterdir())) == 4
    assert export(out / "trials" / "0001", tmp_path / "a-pilot")["epsilon"] == total, "a pilot costs as much"
    assert export_epsilon(tmp_path / "a-pilot")["epsilon"] == pytest.approx(total)
    shutil.copytree(out / "winner", tmp_path / "copied")
    with pytest.raises(InputError, match="one run of a sweep"):
        export(tmp_path / "copied", tmp_path / "cheaper")


@pytest.mark.parametrize("name", ["trials/0000", "winner"])
def test_a_run_that_spent_more_than_planned_has_no_total(searched, tmp_path, name):
    config, out, answer = searched
    shutil.copytree(out, tmp_path / "out")
    folder = SweepDir(tmp_path / "out")
    pool = json.loads(folder.pool.read_text())
    rounds = pool["pilots" if name.startswith("trials") else "finals"]
    for parts in rounds[:1] if name.startswith("trials") else rounds:
        parts[0]["rounds"] = 1  # the ledger holds more
    folder.pool.write_text(json.dumps(pool))
    priced = cost_of_selection(config, folder, answer["trials"])
    assert priced["epsilon"] == float("inf")
    assert priced["releasable"].startswith("nothing")
    assert "spent more than" in priced["text"]
    with pytest.raises(InputError, match="cannot be priced"):
        export(tmp_path / "out", tmp_path / "handed-on")


def test_page_and_table_say_which_run_is_handed_on(searched, capsys):
    _, out, answer = searched
    page = report([out]).read_text()
    assert "the model trained anew on the private text by its settings has perplexity" in page
    assert "in total: the chosen run and its choice, by rule pilots" in page
    assert f"the last one, by the settings of trial {answer['best']['trial']}, alone" in page, (
        "and not the pilot itself"
    )
    assert load_sweep(out).best_run == out / "winner"
    print_sweep(answer)
    shown = capsys.readouterr().out
    assert f"Best: the settings of trial {answer['best']['trial']} on the private text" in shown
    assert "All pilots and the run by the settings of the best of them together cost epsilon = 7." in shown


ONE_RATE = {"training.server_learning_rate": {"choice": [0.01]}}
GRID = {"searcher": "grid", "trials": None, "selection": "pilots"}


def test_a_run_that_another_accountant_finds_a_trace_dearer_than_all_is_handed_on_at_its_own(corpora, tmp_path):
    tree = sweep_tree(corpora, search=GRID | {"pilot_epsilon": 0.13258951547775238}, budget=BUDGET | {"delta": 1e-5})
    tree["space"] = ONE_RATE
    privacy = {"user_sampling_prob": 0.6773000101607484, "sentence_clip_norm": 0.5032009892535635, "l2_clip_norm": 1.0}
    limits = {"max_sentences_per_entity": 1, "max_holders": 3, "entity_bound": "truncate", "holder_bound": "truncate"}
    tree["base"] |= {"privacy": privacy, "bounds": {"mode": "enforced", **limits}}
    tree["base"]["training"] |= {"num_rounds": 5}
    answer = search_here(load_sweep_config(write_sweep(tree, tmp_path)), tmp_path / "out")
    best, choosing = answer["best"], answer["selection"]["epsilon"]
    assert best["epsilon_with_choice"] == best["epsilon"]["user-entity"] > choosing, (
        "found at these settings, by search"
    )
    assert export(tmp_path / "out", tmp_path / "handed-on")["epsilon"] == best["epsilon_with_choice"]
    assert export_epsilon(tmp_path / "handed-on")["epsilon"] == pytest.approx(best["epsilon_with_choice"])
    assert load_sweep(tmp_path / "out").best_run == tmp_path / "out" / "winner"


def test_pilots_of_which_none_can_be_trained_are_refused(corpora, tmp_path):
    tree = sweep_tree(corpora, search=GRID | {"pilot_epsilon": 0.008}, budget=BUDGET | {"delta": 1e-5})
    tree["space"] = ONE_RATE
    tree["base"]["bounds"] |= {"max_sentences_per_entity": 1, "max_holders": 5, "holder_bound": "truncate"}
    tree["base"]["privacy"] = {"user_sampling_prob": 0.7, "sentence_clip_norm": 0.4}
    with pytest.raises(InputError, match=r"search\.pilot_epsilon = 0\.008: no point of the space meets it"):
        fix_terms(load_sweep_config(write_sweep(tree, tmp_path)), SweepDir(tmp_path / "out"))


def test_a_pilot_whose_own_noise_is_too_little_for_the_rest_is_refused_beforehand(corpora, tmp_path, monkeypatch):
    loud = methods.Method({"privacy.target_epsilon": None, "privacy.noise_multiplier": 3.0}, "")
    monkeypatch.setattr(methods, "METHODS", {**methods.METHODS, "loud": loud, "quiet": methods.Method({}, "")})
    tree = sweep_tree(corpora, search=GRID | {"pilot_epsilon": 1.2}, budget=BUDGET | {"target_epsilon": 1.9})
    tree["space"] = {"method": {"choice": ["loud", "quiet"]}}
    with pytest.raises(InputError, match=r"search\.pilot_epsilon = 1\.2: leaves 0\.\d+ for the run after the pilots"):
        fix_terms(load_sweep_config(write_sweep(tree, tmp_path)), SweepDir(tmp_path / "out"))


@pytest.mark.usefixtures("here")
def test_a_search_by_pilots_ends_resumes_and_trains_one_winner(corpora, tmp_path):
    config = pilots(corpora, tmp_path, trials=2)
    answer = sweep(config, tmp_path / "out")
    ledger = (tmp_path / "out" / "winner" / "ledger.jsonl").read_bytes()
    assert sweep(config, tmp_path / "out", resume=True) == answer
    assert (tmp_path / "out" / "winner" / "ledger.jsonl").read_bytes() == ledger
    more = load_sweep_config(tmp_path / "sweep.yaml", ["search.trials=3"])
    with pytest.raises(InputError, match="2 trials, which its price is of"):
        sweep(more, tmp_path / "out", resume=True)
    shutil.rmtree(tmp_path / "out" / "winner")
    with pytest.raises(InputError, match="put winner/ back"):
        sweep(config, tmp_path / "out", resume=True)


SECRET = {"selection": "selected_pilots", "trials": 2, "pool_size": 3, "pilot_epsilon": 1.0}


@pytest.fixture(scope="module")
def drawn(corpora, tmp_path_factory):
    """A secret number of pilots."""
    folder = tmp_path_factory.mktemp("drawn")
    config = pilots(corpora, folder, **SECRET)
    return config, folder / "out", search_here(config, folder / "out")


def test_a_secret_number_of_pilots_costs_what_choosing_and_the_dearest_run_after_them_cost(drawn):
    config, out, answer = drawn
    pool, terms = (json.loads(path.read_text()) for path in (SweepDir(out).pool, SweepDir(out).terms))
    assert len(answer["trials"]) == len(pool["draws"]) >= 1
    assert all(row["epsilon"] <= 1.0 for row in answer["trials"])
    candidates, finals = candidates_of(pool["candidates"]), candidates_of(pool["finals"])
    assert len(candidates) == len(finals) == 3
    best = best_of.Best(candidates, terms["mean"], terms["law"])
    found = sequence.epsilon([finals], delta=config.budget.delta, unit="user-entity", best=best)
    assert answer["selection"]["epsilon"] == answer["best"]["epsilon_with_choice"] == found
    assert 0.95 * 8 < found <= 8
    own = answer["best"]["epsilon"]["user-entity"]
    assert 7 < own == json.loads((out / "winner" / "result.json").read_text())["epsilon"]["user-entity"] < found


def test_of_secret_pilots_the_run_after_them_alone_is_handed_on(drawn, tmp_path):
    _, out, _ = drawn
    exported = handed_on(drawn, tmp_path / "handed-on", "selected_pilots")
    assert not (exported / "ledgers").exists()
    assert "draws" not in (exported / "selection.json").read_text(), "their number is secret"
    with pytest.raises(InputError, match="pays for the winner alone"):
        export(out / "trials" / "0000", tmp_path / "a-pilot")
    with pytest.raises(InputError, match="rule selected_pilots pays for the winner alone"):
        report([out], publish=True)
    assert "This page itself is private" in report([out]).read_text()


@pytest.mark.parametrize("name", ["candidates", "finals"])
def test_secret_pilots_that_spent_more_than_planned_have_no_total(drawn, tmp_path, name):
    config, out, answer = drawn
    shutil.copytree(out, tmp_path / "out")
    folder = SweepDir(tmp_path / "out")
    pool = json.loads(folder.pool.read_text())
    for parts in pool[name]:
        parts[0]["rounds"] = 1  # the ledger holds more
    folder.pool.write_text(json.dumps(pool))
    priced = cost_of_selection(config, folder, answer["trials"])
    assert priced["epsilon"] == float("inf")
    assert "spent more than" in priced["text"]
    with pytest.raises(InputError, match="cannot be priced"):
        export(tmp_path / "out", tmp_path / "handed-on")


@pytest.mark.parametrize("missing", ["candidates", "finals"])
def test_an_export_that_leaves_out_what_might_have_been_drawn_has_no_smaller_price(drawn, tmp_path, missing):
    _, out, _ = drawn
    export(out, tmp_path / "handed-on")
    path = tmp_path / "handed-on" / "selection.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {missing: []}))
    with pytest.raises(InputError):
        export_epsilon(tmp_path / "handed-on")


@pytest.mark.parametrize("changed", [{"mean": 1.0}, {"candidates": [[]]}, {"delta": 0.01}, {"rule": "public"}])
def test_an_export_whose_terms_were_changed_has_no_smaller_price(drawn, tmp_path, changed):
    """Nothing is signed: whoever changes the figure too is believed. One that was changed by accident is not."""
    _, out, _ = drawn
    total = export(out, tmp_path / "handed-on")["epsilon"]
    path = tmp_path / "handed-on" / "selection.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changed))
    answer = export_epsilon(tmp_path / "handed-on")
    assert answer["epsilon"] == total
    assert "less than it states: was it changed?" in answer["text"]


@pytest.mark.usefixtures("here")
def test_a_search_by_secret_pilots_ends_and_resumes_and_is_the_owners(corpora, tmp_path):
    pilots(corpora, tmp_path, **SECRET)
    config, told = load_sweep_config(tmp_path / "sweep.yaml", ["trackers=[mlflow]"]), []
    answer = sweep(config, tmp_path / "out", reporter=Told(say=told.append))
    assert "caution: mlflow will hold every trial, which rule selected_pilots keeps secret" in " ".join(told)
    assert sweep(config, tmp_path / "out", resume=True) == answer
    assert (tmp_path / "out").stat().st_mode & 0o077 == 0
    assert answer["selection"]["text"].endswith("the choice among a random, secret number of them.")


@pytest.mark.parametrize(
    ("search", "budget", "said"),
    [
        ({"selection": "selected_pilots", "searcher": "grid", "trials": None}, BUDGET, "independent draws"),
        ({"selection": "selected_pilots"}, {"covers": "each_trial"}, "rule selected_pilots divides one budget"),
        ({"searcher": "tpe"}, BUDGET, r"search\.selection|selection.*pilots are fixed beforehand"),
        ({"early_stopping": "median"}, BUDGET, "early stopping compares trials, and pilots"),
        ({}, {"covers": "each_trial"}, r"budget\.covers = 'each_trial'"),
        ({"pilot_epsilon": 8.0}, BUDGET, r"search\.pilot_epsilon = 8\.0: must be less than"),
        ({"pilot_epsilon": 0.0}, BUDGET, r"search\.pilot_epsilon"),
        ({}, {"covers": "answer", "noise": "free"}, r"budget\.noise = 'free'"),
    ],
)
def test_what_the_theorem_does_not_cover_is_refused(corpora, tmp_path, search, budget, said):
    with pytest.raises(InputError, match=said):
        sweep_config(corpora, tmp_path, search=SEARCH | search, budget=budget)


def test_pilots_that_leave_nothing_are_refused_before_any_trains(corpora, tmp_path):
    config = pilots(corpora, tmp_path, trials=12, pilot_epsilon=6.0)
    folder = SweepDir(tmp_path / "out")
    folder.private.mkdir(parents=True)
    with pytest.raises(InputError, match="12 pilots of epsilon = 6 alone cost"):
        fix_terms(config, folder)
    assert not folder.terms.exists()
