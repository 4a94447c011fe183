"""What there would be without a search stands beside what was found, and no run of less is taken for it."""

from __future__ import annotations

import dataclasses
import re

import pytest

from tests.search.sweeps import search_here, sweep_tree, write_sweep
from uedp_ray.analysis.frames import load_sweep
from uedp_ray.analysis.headline import headline
from uedp_ray.analysis.style import number
from uedp_ray.analysis.summary import summary
from uedp_ray.analysis.table import trial_table
from uedp_ray.calibration import noise_of, with_target
from uedp_ray.console import print_sweep
from uedp_ray.methods import overlay
from uedp_ray.privacy.statement import show_epsilon
from uedp_ray.search.no_search import no_search
from uedp_ray.search.planner import plan
from uedp_ray.search.sweep_config import load_sweep_config

RATE = "training.server_learning_rate"
ONE = {"corpus.source": {"format": "synthetic", "num_users": 20, "part": "proxy"}}
ONE |= {"corpus.evaluation": {"format": "synthetic", "num_users": 6, "part": "proxy", "seed": 2}}


def config_of(corpora, folder, **sections):
    """A sweep whose base lies in its space, at 3 rounds."""
    tree = sweep_tree(corpora, **sections)
    tree["base"]["training"] = {**tree["base"]["training"], "num_rounds": 3, "server_learning_rate": 0.02}
    folder.mkdir(parents=True, exist_ok=True)
    return load_sweep_config(write_sweep(tree, folder))


@pytest.fixture(scope="module")
def shared(corpora, tmp_path_factory):
    """Two runs that share a budget of 8."""
    folder = tmp_path_factory.mktemp("shared")
    search = {"searcher": "random", "trials": 2, "selection": "composition"}
    config = config_of(corpora, folder, budget={"covers": "answer"}, search=search)
    return config, folder / "out", search_here(config, folder / "out")


def at_whole(config):
    return noise_of(with_target(config, 8.0))


def test_of_runs_that_share_a_budget_none_is_what_no_search_gives(shared):
    """The base's trial, at its share of the budget, was told as "no search"."""
    config, _, answer = shared
    row = answer["no_search"]
    assert (answer["base_trial"], row["trial"], row["perplexity"]) == ("0000", None, None)
    assert row["noise_multiplier"] == pytest.approx(at_whole(config.base))
    assert row["epsilon"] == pytest.approx(8.0, rel=1e-3)
    assert row["params"][RATE] == 0.02
    assert (row["rounds"], row["passes"]) == (3, pytest.approx(0.9))
    assert "not trained beside the search, as it would cost the whole budget." in row["text"]
    assert "Trial 0000 has these settings at its share of the budget, with perplexity" in row["text"]


def test_what_the_search_cost_is_told_in_noise_at_the_same_settings(shared):
    _, _, answer = shared
    best, row = answer["best"], answer["no_search"]
    config = load_sweep(shared[1]).config(best["trial"])
    whole = at_whole(config)
    assert row["chosen_noise_ratio"] == pytest.approx(best["noise_multiplier"] / whole)
    assert row["chosen_noise_ratio"] > 1.1
    assert (
        f"noise multiplier {best['noise_multiplier']:.3f}, {row['chosen_noise_ratio']:.2f} times the {whole:.3f} of"
        in row["text"]
    )


def test_it_is_a_row_of_the_console_and_of_the_report(shared, capsys):
    _, out, answer = shared
    print_sweep(answer)
    told = capsys.readouterr().out
    assert re.search(r"^no search +- +- +- +8\.000 +0\.9 +0\.3 +3 +0\.02 *$", told, re.M)
    assert f"No search: {answer['no_search']['text']}" in told
    loaded = load_sweep(out)
    assert loaded.no_search == answer["no_search"]
    assert dict(summary(loaded))["No search"].lower() == answer["no_search"]["text"].lower()
    table = trial_table(loaded)
    row = dict(zip((column.title for column in table.columns), (cell.text for cell in table.no_search), strict=True))
    assert (row["trial"], row["state"], row["perplexity"], row["passes"]) == ("no search", "–", "–", "0.9")
    assert row["notes"] == "the base's own settings, once with the whole budget"
    assert row["z"] == number(answer["no_search"]["noise_multiplier"])
    notes = {cells[0].text: cells[-1].text for _, cells in table.rows}
    assert "the base's own settings" in notes["0000"]
    assert "no search" not in notes["0000"]
    assert "over the base's own settings at their share of the budget" in dict(headline(loaded))["Gained"]


def test_where_every_trial_has_the_whole_budget_the_bases_is_no_search(corpora, tmp_path):
    search = {"searcher": "grid", "trials": None}
    config = config_of(corpora, tmp_path, search=search, space={RATE: {"choice": [0.01, 0.02]}})
    row = (answer := search_here(config, tmp_path / "out"))["no_search"]
    own = answer["trials"][1]
    assert (row["trial"], row["perplexity"]) == ("0001", own["perplexity"])
    assert row["noise_multiplier"] == pytest.approx(own["noise_multiplier"])
    assert "trial 0001 was this run, with perplexity" in row["text"]
    assert "the noise of the whole budget, too: what its choice costs is in the total ε." in row["text"]
    assert load_sweep(tmp_path / "out").no_search == row
    short = [own | {"rounds": 2}]
    assert no_search(config, short, None)["trial"] is None, "a run that a crash shortened is another one"
    cheaper = [own | {"epsilon": 4.0}]
    assert no_search(config, cheaper, None)["trial"] is None


def test_a_base_outside_the_space_has_its_row(corpora, tmp_path):
    """It had none: a grid without it said nothing of the base."""
    search = {"searcher": "grid", "trials": None}
    config = config_of(corpora, tmp_path, search=search, space={RATE: {"choice": [0.01, 0.05]}})
    row = no_search(config, [], None)
    assert config.first_points == []
    assert (row["trial"], row["params"], row["chosen_noise_ratio"]) == (None, {RATE: 0.02}, None)
    assert "no trial that ended was this run." in row["text"]


def test_on_public_text_the_bases_trial_is_no_search(corpora, tmp_path):
    search = {"searcher": "random", "trials": 1, "selection": "public", "public": ONE}
    config = config_of(corpora, tmp_path, budget={"covers": "answer"}, search=search)
    answer = search_here(config, tmp_path / "out")
    row = answer["no_search"]
    assert (row["trial"], row["perplexity"]) == ("0000", answer["trials"][0]["perplexity"])
    assert (
        "on the search's text, and none did better. The chosen run has the noise of the whole budget, too."
        in row["text"]
    )


@pytest.mark.parametrize("covers", ["answer", "each_trial"])
def test_where_trials_are_secret_it_follows_from_the_sweeps_file_alone(corpora, tmp_path, covers):
    search = {"searcher": "random", "trials": 3, "selection": "repeat_and_select"}
    config = config_of(corpora, tmp_path, budget={"covers": covers}, search=search)
    point = config.first_points[0] | {
        "state": "done",
        "trial": "0000",
        "rounds": 3,
        "epsilon": 8.0,
        "epsilon_with": 1.0,
    }
    scores = dict.fromkeys((*config.metric.names, config.metric.spread), 50.0)
    rows = [point | scores]
    assert config.at_base(rows), "the test is one of a trial at the base"
    assert no_search(config, rows, None) == no_search(config, [], None)


def test_a_base_that_no_noise_can_protect_has_no_figures_of_it(corpora, tmp_path):
    words = {"kind": "noisy-threshold", "noise_multiplier": 0.01, "threshold_delta": 1e-6}  # which alone cost more
    config = config_of(corpora, tmp_path)
    config = dataclasses.replace(config, base=overlay(config.base, {f"vocabulary.{k}": v for k, v in words.items()}))
    row = no_search(config, [], None)
    assert (row["noise_multiplier"], row["epsilon"]) == (None, None)
    assert "(which no noise keeps within ε = 8)" in row["text"]


def test_noise_that_is_searched_is_shown_as_the_budget_needs_it_and_is_no_price_of_the_search(corpora, tmp_path):
    """The row had the base's noise beside the budget's epsilon, and the chosen run's own noise as what the search took."""
    space = {RATE: {"choice": [0.01, 0.02]}, "privacy.noise_multiplier": {"uniform": [1.0, 9.0]}}
    config = config_of(corpora, tmp_path, budget={"noise": "free", "covers": "answer"}, space=space)
    best = {"trial": "0000", "noise_multiplier": 9.0, "params": {RATE: 0.01, "privacy.noise_multiplier": 9.0}}
    row = no_search(config, [], best)
    assert row["params"]["privacy.noise_multiplier"] == row["noise_multiplier"] == pytest.approx(at_whole(config.base))
    assert row["chosen_noise_ratio"] is None
    assert "The chosen run" not in row["text"]


@pytest.mark.slow
def test_the_planner_has_the_same_row(corpora, tmp_path):
    config = config_of(corpora, tmp_path, budget={"covers": "answer"})
    (row,) = (row for row in plan(config)["rules"] if row["rule"] == "none")
    assert row["noise_multiplier"] == pytest.approx(no_search(config, [], None)["noise_multiplier"])


def test_passes_are_shown_of_every_trial(shared, capsys):
    """They were a column only where they are searched."""
    _, out, answer = shared
    print_sweep(answer)
    told = capsys.readouterr().out
    assert [row["passes"] for row in answer["trials"]] == pytest.approx(load_sweep(out).trials["passes"].tolist())
    for row in answer["trials"]:
        share, cost = row["privacy.user_sampling_prob"], re.escape(show_epsilon(row["epsilon"]))
        assert row["passes"] == pytest.approx(row["rounds"] * share)
        assert re.search(rf"^{row['trial']}.* {cost} +{row['passes']:.3g} +{share:.3g} ", told, re.M)
    searched = answer["best"]["params"] | {"training.passes": 1.0}
    print_sweep(answer | {"best": answer["best"] | {"params": searched}})
    heading = capsys.readouterr().out.partition("───")[0]
    assert heading.count("passes") == 1
