"""Whole sweeps on Ray Tune: the table, the price, the refusals, and going on after anything was killed."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shutil
from datetime import timedelta

import pytest

from tests.search.sweeps import PRETRAIN, journal, journal_states, sweep_config, sweep_tree, table
from tests.told import Told
from tests.training.runs import events
from tests.training.test_export import files
from uedp_ray import export
from uedp_ray.console import print_sweep
from uedp_ray.errors import InputError
from uedp_ray.privacy.events import epsilon_of_events
from uedp_ray.search import sweep as sweep_module
from uedp_ray.search.results import progress
from uedp_ray.search.sweep import sweep
from uedp_ray.search.sweep_config import load_sweep_config

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("local_ray")]

GRID = {
    "training.server_learning_rate": {"choice": [0.02, 1e30]},
    "privacy.noise_multiplier": {"choice": [0.3, 3.0]},
}


@pytest.fixture(scope="module")
def grid(corpora, tmp_path_factory):
    """A refused, a diverging and an ordinary point, with a run without privacy beside them."""
    folder = tmp_path_factory.mktemp("grid")
    config = sweep_config(
        corpora,
        folder,
        base={**sweep_tree(corpora)["base"], "pretrain": PRETRAIN},
        space=GRID,
        budget={"noise": "free"},
        search={"searcher": "grid", "trials": None},
        references={"noiseless": {"training.num_rounds": 2}},
    )
    seen = []
    return folder / "out", config, sweep(config, folder / "out", reporter=Told(trials=seen.append)), seen


def test_points_are_refused_without_a_run_and_diverging_ones_fail_without_ending_the_search(grid):
    out, _, answer, _ = grid
    rows = {(row["training.server_learning_rate"], row["privacy.noise_multiplier"]): row for row in answer["trials"]}
    assert {point: row["state"] for point, row in rows.items()} == {
        (0.02, 0.3): "refused",
        (1e30, 0.3): "refused",
        (0.02, 3.0): "done",
        (1e30, 3.0): "failed",
    }
    assert "the budget is 8" in rows[0.02, 0.3]["reason"]
    assert "not finite" in rows[1e30, 3.0]["reason"]
    assert sorted(path.name for path in (out / "trials").iterdir()) == ["0001", "0003"]
    assert journal_states(out) == ["PRUNED", "COMPLETE", "PRUNED", "FAIL"]
    assert answer["counts"] == {"asked": 4, "done": 1, "stopped": 0, "failed": 1, "refused": 2, "running": 0}


def test_the_table_on_disk_is_the_answer(grid):
    out, _, answer, _ = grid
    rows = table(out)
    assert [row["trial"] for row in rows] == ["0000", "0001", "0002", "0003"]
    for row, told in zip(rows, answer["trials"], strict=True):
        assert {key: told[key] for key in row} == row | {key: None for key in row if told[key] is None}
    stored = json.loads((out / "result.json").read_text())
    assert answer.keys() - stored.keys() == {"sweep_dir", "export", "cautions"}
    assert stored["trials"] == answer["trials"]
    assert stored["best"] == answer["best"] | {"run_dir": "trials/0001"}
    assert [row["started"] is None for row in rows] == [row["state"] == "refused" for row in rows]
    assert 0 <= rows[1]["started"] < rows[3]["started"]
    assert [row["resumed"] for row in rows] == [None] * 4
    assert answer["winner_trained"] is None, "it is one of the trials"
    assert answer["best"]["trial"] == "0001"
    assert answer["best"]["run_dir"] == str(out / "trials" / "0001")
    assert answer["sweep_dir"] == str(out)


def test_the_journal_says_by_itself_what_a_trial_cost_and_where_it_lies(grid):
    out, _, answer, _ = grid
    (told,) = [trial.user_attrs for trial in journal(out) if trial.state.name == "COMPLETE"]
    row = answer["trials"][1]
    assert (told["epsilon"], told["noise_multiplier"]) == pytest.approx((row["epsilon"], row["noise_multiplier"]))
    assert told["run_dirs"] == row["run_dirs"] == ["trials/0001"]


def test_the_price_is_that_of_all_planned_runs_failed_trials_in_full(grid):
    out, _, answer, _ = grid
    done, failed = (events(out / "trials" / name) for name in ("0001", "0003"))
    assert len(failed) < len(done)
    together = epsilon_of_events([*done, *done], delta=1e-4)
    selection = answer["selection"]
    assert (selection["rule"], selection["unit"], selection["delta"]) == ("composition", "user-entity", 1e-4)
    assert selection["epsilon"] == pytest.approx(together)
    assert answer["best"]["epsilon_with_choice"] == selection["epsilon"] > answer["best"]["epsilon"]["user-entity"]


def test_a_link_in_the_place_of_private_leads_nowhere(grid, tmp_path):
    out, elsewhere = shutil.copytree(grid[0], tmp_path / "sweep"), tmp_path / "elsewhere"
    shutil.move(out / "private", elsewhere)
    (out / "private").symlink_to(elsewhere)
    before = sorted(path.name for path in elsewhere.iterdir())
    with pytest.raises(InputError, match=r"private = .* is a link"):
        sweep(load_sweep_config(out / "sweep.yaml"), out, resume=True)
    assert sorted(path.name for path in elsewhere.iterdir()) == before


@pytest.mark.parametrize("total", [None, 8.0])
def test_what_to_hand_on_is_named_where_an_epsilon_bounds_it(grid, capsys, total):
    """The export that was named is refused where none does."""
    _, _, answer, _ = grid
    best = answer["best"] | {"epsilon_with_choice": total}
    print_sweep(answer | {"best": best})
    assert ("What to hand on" in capsys.readouterr().out) == (total is not None)


def test_references_are_the_public_model_and_the_run_without_privacy(grid, capsys):
    out, _, answer, _ = grid
    print_sweep(answer)
    assert "noiseless: trained without privacy, so its figures are private" in capsys.readouterr().out
    print_sweep(answer | {"base_trial": "0001"})
    assert re.search(r"^0001 \(base\) ", capsys.readouterr().out, re.M)
    public, noiseless = answer["references"]
    assert (public["name"], public["epsilon"]) == ("public-only", 0.0)
    assert (noiseless["name"], noiseless["epsilon"]) == ("noiseless", None)
    initial = json.loads((out / "references" / "noiseless" / "result.json").read_text())["initial_perplexity"]
    assert initial == pytest.approx(public["perplexity"], rel=1e-5), "every run starts from the public model"


def test_progress_counts_trials_and_names_the_best_with_its_epsilon(grid):
    _, _, answer, seen = grid
    assert seen[-1]["wanted"] == 4
    assert {key: seen[-1][key] for key in answer["counts"]} == answer["counts"]
    assert seen[-1]["best"]["epsilon"] == answer["best"]["epsilon"]["user-entity"]
    assert any(0 < status["trained"] < status["whole"] for status in seen)
    assert (seen[-1]["trained"], seen[-1]["under_way"]) == (pytest.approx(seen[-1]["whole"]), 0)


def test_progress_is_told_in_passes_as_some_trials_take_more_than_others(grid):
    _, config, answer, _ = grid
    share, done = config.base.privacy.user_sampling_prob, answer["trials"][1]
    rows = [
        done | {"rounds": 10, "planned_rounds": 10, "passes": 10 * share},
        done | {"state": "stopped", "rounds": 5, "planned_rounds": 20, "passes": 5 * share},
        done | {"state": "running", "rounds": 20, "planned_rounds": 60, "passes": 20 * share},
    ]
    told = progress(rows, 5, config, count_refused=True)
    assert told["trained"] == pytest.approx((10 + 5 + 20) * share)
    assert told["under_way"] == pytest.approx(60 / 2 * share), "those before trained half of what they planned"
    assert told["whole"] == pytest.approx((10 + 5 + 30 + 2 * 15) * share), "two are not asked for yet"
    assert told["then_winner"] is False
    seeds = dataclasses.replace(config, search=dataclasses.replace(config.search, seeds_per_trial=2))
    assert progress(rows, 5, seeds, count_refused=True)["trained"] == pytest.approx((10 + 5 + 20 / 2) * share)
    ahead = [*rows[:2], rows[2] | {"rounds": 50, "passes": 50 * share}]
    assert progress(ahead, 5, config, count_refused=True)["under_way"] == pytest.approx(50 * share), "beyond the others"
    refused = done | {"state": "refused", "rounds": None, "planned_rounds": None}
    whole = [progress([*rows, refused], 5, config, count_refused=each)["whole"] for each in (True, False)]
    assert whole == pytest.approx([60 * share, 75 * share]), "another takes its place, unless points are fixed"


def test_a_finished_sweep_resumes_to_the_same_answer_and_nothing_else_takes_its_place(grid, corpora, tmp_path):
    out, config, answer, _ = grid
    before = (out / "trials" / "0001" / "ledger.jsonl").read_bytes()
    assert sweep(config, out, resume=True) == answer
    assert (out / "trials" / "0001" / "ledger.jsonl").read_bytes() == before
    with pytest.raises(InputError, match="already holds a sweep: add --resume"):
        sweep(config, out)
    other = sweep_config(corpora, tmp_path, budget={"target_epsilon": 3})
    with pytest.raises(InputError, match="from another sweep file: resume with"):
        sweep(other, out, resume=True)
    with pytest.raises(InputError, match="no sweep to resume"):
        sweep(config, tmp_path / "nothing", resume=True)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("mine")
    with pytest.raises(InputError, match="not empty"):
        sweep(config, tmp_path / "mine")


@pytest.mark.usefixtures("here")
def test_an_adaptive_search_grows_and_is_charged_by_its_odometer(corpora, tmp_path):
    config = sweep_config(corpora, tmp_path, search={"trials": 2, "seeds_per_trial": 2})
    small = sweep(config, tmp_path / "out")
    assert [row["seeds"] for row in small["trials"]] == [2, 2]
    assert sorted(path.name for path in (tmp_path / "out" / "trials").iterdir()) == [
        "0000-0",
        "0000-1",
        "0001-0",
        "0001-1",
    ]
    assert small["selection"]["accountant"] == "Renyi odometer over all ledgers"
    assert all(row["perplexity_std"] > 0 for row in small["trials"])
    assert small["best"]["tied"] is not None
    more = sweep_config(corpora, tmp_path, search={"trials": 3, "seeds_per_trial": 2})
    large = sweep(more, tmp_path / "out", resume=True)
    assert [row["trial"] for row in large["trials"]] == ["0000", "0001", "0002"]
    assert large["trials"][:2] == [row | {"tied_with_best": t["tied_with_best"], "pareto": t["pareto"]}
                                   for row, t in zip(small["trials"], large["trials"], strict=False)]  # fmt: skip
    assert large["selection"]["epsilon"] > small["selection"]["epsilon"] > 8


@pytest.mark.usefixtures("here")
def test_random_search_pays_for_the_winner_alone_and_keeps_the_rest_private(corpora, tmp_path, monkeypatch):
    config = sweep_config(corpora, tmp_path, search={"searcher": "random", "trials": 2, "pool_size": 3})
    masks, umask = set(), os.umask(0o022)
    os.umask(umask)

    def noted(*arguments, **settings):
        masks.add(os.umask(0o077))
        return tune_trials(*arguments, **settings)

    tune_trials = sweep_module.tune_trials
    monkeypatch.setattr(sweep_module, "tune_trials", noted)
    answer = sweep(config, tmp_path / "out")
    pool = json.loads((tmp_path / "out" / "private" / "pool.json").read_text())
    assert len(pool["points"]) == 3
    assert len(answer["trials"]) == len(pool["draws"]), "the number of trials is the one that was drawn"
    searched = list(pool["points"][0])
    drawn = [pool["points"][index] for index in pool["draws"]]
    assert [{key: row[key] for key in searched} for row in answer["trials"]] == drawn
    assert answer["selection"]["rule"] == "repeat_and_select"
    assert (tmp_path / "out").stat().st_mode & 0o777 == 0o700
    assert masks == {0o077}, "Ray keeps results of every trial in its own folder"
    assert os.umask(umask) == umask
    assert answer["best"]["epsilon"]["user-entity"] < answer["selection"]["epsilon"]
    assert "the winner alone" in answer["selection"]["releasable"]
    winner = tmp_path / "out" / "winner"
    assert answer["best"]["run_dir"] == str(winner)
    assert not (winner / "private").exists()
    trial = answer["best"]["trial"]
    number = f'"{trial}"', f"/{trial}", f"name: '{trial}'"
    for file in ("config.yaml", "README.md", "privacy.md", "ledger.jsonl", "selection.json"):
        text = (winner / file).read_text()
        assert not any(mark in text for mark in number), "the winner's number says how many there were at least"


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("searcher", ["tpe", "random"])
def test_rule_public_searches_on_public_text_and_trains_the_winner_once(corpora, tmp_path, capsys, searcher):
    public = {"corpus.source": {"format": "synthetic", "num_users": 20, "part": "public"}}
    search = {"searcher": searcher, "selection": "public", "public": public}
    config = sweep_config(corpora, tmp_path, search=search | {"trials": 2})
    answer = sweep(config, tmp_path / "out")
    assert answer["selection"]["epsilon"] == 0
    assert answer["best"]["run_dir"] == str(tmp_path / "out" / "winner")
    winner = json.loads((tmp_path / "out" / "winner" / "result.json").read_text())
    assert answer["best"]["epsilon"] == winner["epsilon"]
    assert answer["best"]["epsilon_with_choice"] == winner["epsilon"]["user-entity"] <= 8
    sources = [json.loads((tmp_path / "out" / part / "private" / "setup.json").read_text())["corpus_digest"]
               for part in ("trials/0000", "trials/0001", "winner")]  # fmt: skip
    assert sources[0] == sources[1] != sources[2]
    print_sweep(answer)
    shown = capsys.readouterr().out
    assert "Perplexity on the search's text" in shown
    assert f"(from {winner['initial_perplexity']:.1f}, " in shown
    kept = files(tmp_path / "out" / "winner")
    assert answer["winner_trained"]["started"] >= max(row["started"] + row["seconds"] for row in answer["trials"])
    assert answer["winner_trained"]["seconds"] > 0
    assert sweep(config, tmp_path / "out", resume=True) == answer
    more = sweep_config(corpora, tmp_path, search=search | {"trials": 3})
    with pytest.raises(InputError, match=r"search.trials = 3: the winner was trained on the private text already"):
        sweep(more, tmp_path / "out", resume=True)
    assert [run.name for run in sorted((tmp_path / "out" / "trials").iterdir())] == ["0000", "0001"]
    fewer = sweep_config(corpora, tmp_path, search=search | {"trials": 1})
    assert sweep(fewer, tmp_path / "out", resume=True) == answer
    assert files(tmp_path / "out" / "winner") == kept
    assert export(tmp_path / "out", tmp_path / "handed-on")["epsilon"] == answer["best"]["epsilon_with_choice"]


def test_more_workers_than_the_cluster_has_are_refused_before_anything_is_trained(corpora, tmp_path):
    config = sweep_config(corpora, tmp_path, resources={"workers_per_trial": 9})
    with pytest.raises(InputError, match=r"resources\.workers_per_trial"):
        sweep(config, tmp_path / "out")
    assert not (tmp_path / "out" / "trials").exists()


@pytest.mark.parametrize("searcher", ["random", "grid"])
def test_early_stopping_tells_the_study_what_was_stopped(corpora, tmp_path, searcher, request):
    if searcher == "grid":
        request.getfixturevalue("here")
    base = sweep_tree(corpora)["base"]
    base["training"] |= {"num_rounds": 8, "evaluate_every": 1}
    space = {"training.server_learning_rate": {"log_uniform": [1e-4, 1.0], "points": 8}}
    search = {"searcher": searcher, "trials": 8 if searcher == "random" else None}
    search |= {"early_stopping": "asha", "grace_rounds": 1}
    config = sweep_config(corpora, tmp_path, base=base, space=space, search=search, resources={"max_concurrent": 2})
    answer = sweep(config, tmp_path / "out")
    stopped = [row for row in answer["trials"] if row["state"] == "stopped"]
    assert stopped
    assert answer["counts"]["done"] + len(stopped) == 8
    if searcher == "grid":
        assert [row["training.server_learning_rate"] for row in answer["trials"]] == [
            point["training.server_learning_rate"] for point in config.parsed_space.grid()
        ]
    assert all(row["charged"] < 8 and row["perplexity"] for row in stopped)
    assert all(7.9 < row["epsilon"] <= 8 for row in stopped), "epsilon of a stopped run is that of its planned rounds"
    assert journal_states(tmp_path / "out").count("PRUNED") == len(stopped)
    assert answer["selection"]["rule"] == "composition"


@pytest.mark.slow
def test_a_trial_waits_for_those_that_decide_on_it_however_fast_others_are(corpora, tmp_path):
    space = {"training.num_rounds": {"choice": [100, 2, 3, 4, 5]}}
    search = {"searcher": "grid", "trials": None, "early_stopping": "median", "grace_rounds": 1000}
    config = sweep_config(corpora, tmp_path, space=space, search=search, resources={"max_concurrent": 2})
    said = []
    answer = sweep(config, tmp_path / "out", reporter=Told(say=said.append))
    assert answer["counts"]["done"] == 5
    assert any("2 at once, each chosen by the results of those 3 or more before it" in line for line in said)
    begun = [trial.datetime_start for trial in journal(tmp_path / "out")]
    slow_one_ended = begun[0] + timedelta(seconds=answer["trials"][0]["seconds"])
    assert max(begun[:3]) < slow_one_ended <= begun[3]


def test_what_failed_to_start_may_be_mended_and_tried_again(corpora, tmp_path, request):
    out = tmp_path / "out"
    with pytest.raises(InputError, match="workers_per_trial"):
        sweep(sweep_config(corpora, tmp_path, resources={"workers_per_trial": 9}), out)
    base = sweep_tree(corpora)["base"]
    base["corpus"] = {**base["corpus"], "source": {"path": "nowhere"}}
    missing = sweep_config(corpora, tmp_path, base=base)
    with pytest.raises(InputError, match="nowhere"):
        sweep(missing, out)
    request.getfixturevalue("here")
    answer = sweep(sweep_config(corpora, tmp_path, search={"trials": 1}), out)
    assert answer["counts"]["done"] == 1
