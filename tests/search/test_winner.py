"""Rule public: the winner is trained on the private text once, whatever became of its folder and of the result."""

from __future__ import annotations

import json
import shutil

import pytest

from tests.search.sweeps import finalize_here, search_here, sweep_config
from tests.search.test_export import RULES, SPACE
from tests.search.test_preflight import nodes_of
from tests.told import Told
from tests.training.test_export import files
from uedp_ray.config import from_dict
from uedp_ray.errors import InputError
from uedp_ray.search import sweep as searching
from uedp_ray.search.layout import SweepDir
from uedp_ray.search.preflight import Report
from uedp_ray.search.remote import workers_of_winner
from uedp_ray.search.sections import ResourceConfig
from uedp_ray.search.sweep import _refuse_second_winner, sweep
from uedp_ray.training.rundir import RunDir


def test_a_second_winner_is_never_trained_on_the_private_text(corpora, tmp_path):
    config = sweep_config(corpora, tmp_path, space=SPACE, search=RULES["public"])
    first, other = ({"privacy.user_sampling_prob": 0.3, "training.server_learning_rate": rate} for rate in (0.01, 0.02))
    out = tmp_path / "out"
    answer = search_here(config, out, [first])
    before = files(out / "winner"), (out / "result.json").read_bytes()
    assert search_here(config, out, [first]) == answer
    shutil.rmtree(out / "trials")
    with pytest.raises(
        InputError, match=r"winner was trained on the private text already, .* second release"
    ) as caught:
        search_here(config, out, [other])
    assert caught.value.field == "--resume"
    assert (files(out / "winner"), (out / "result.json").read_bytes()) == before


@pytest.mark.parametrize("gone", ["winner", "winner/ledger.jsonl", "winner and study.journal"])
def test_a_winner_whose_ledger_is_gone_is_not_trained_again(corpora, tmp_path, gone):
    """Both would have been released, and one of them charged."""
    config = sweep_config(corpora, tmp_path, space=SPACE, search=RULES["public"])
    out, points = tmp_path / "out", [{"privacy.user_sampling_prob": 0.3, "training.server_learning_rate": 0.01}]
    search_here(config, out, points)
    for name in gone.split(" and "):
        path = out / name
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    before = files(out)
    for start in (lambda: sweep(config, out, resume=True), lambda: finalize_here(config, out, points)):
        with pytest.raises(InputError, match=r"winner = .*its ledger is missing, .*put winner/ back, or search in"):
            start()
    assert files(out) == before


def test_a_sweep_that_chose_nothing_may_train_its_first_winner(corpora, tmp_path):
    config, out = sweep_config(corpora, tmp_path, space=SPACE, search=RULES["public"]), tmp_path / "out"
    search_here(config, out)
    shutil.rmtree(out / "winner")
    result = json.loads((out / "result.json").read_text())
    (out / "result.json").write_text(json.dumps(result | {"best": None}))
    terms = json.loads((out / "selection.json").read_text())
    assert terms.pop("winner") == "begun"
    (out / "selection.json").write_text(json.dumps(terms))
    _refuse_second_winner(config, SweepDir(out))
    (out / "result.json").unlink()
    _refuse_second_winner(config, SweepDir(out))


@pytest.mark.parametrize(
    ("sizes", "resources", "seconds", "workers"),
    [
        ([(8, 0)], {}, 300.0, 8),
        ([(8, 0)], {}, 299.0, 1),  # a group takes a quarter of a minute to start
        ([(8, 0)], {"max_concurrent": 3}, 300.0, 3),
        ([(8, 0)], {"cpus_per_worker": 3}, 300.0, 2),
        ([(8, 0)], {"workers_per_trial": 2}, 300.0, 2),
        ([(8, 1)], {}, 300.0, 1),
        ([(8, 0), (8, 0)], {}, 300.0, 1),  # sums would leave the machine
        ([(8, 0), (8, 0)], {"workers_of_winner": 4}, 1.0, 4),
        ([(8, 0)], {"workers_of_winner": 1}, 300.0, 1),
        ([(8, 0)], {"workers_of_winner": "trial"}, 300.0, 1),
    ],
)
def test_a_winner_that_takes_long_is_trained_by_the_cores_that_its_trials_had(
    corpora, tmp_path, sizes, resources, seconds, workers
):
    config = sweep_config(
        corpora, tmp_path, resources={"max_concurrent": None, "workers_of_winner": "auto"} | resources
    )
    assert ResourceConfig().workers_of_winner == "trial"
    assert workers_of_winner(config, nodes_of(*sizes), seconds) == workers


def test_the_number_of_workers_of_a_winner_is_checked_before_the_search(corpora, tmp_path, monkeypatch):
    with pytest.raises(InputError, match=r"resources.workers_of_winner = 0"):
        sweep_config(corpora, tmp_path, resources={"workers_of_winner": 0})
    with pytest.raises(InputError, match=r"resources.gpus_per_worker = 0.5"):
        sweep_config(corpora, tmp_path, resources={"workers_of_winner": 2, "gpus_per_worker": 0.5})
    config = sweep_config(corpora, tmp_path, search=RULES["public"], resources={"workers_of_winner": 5})
    monkeypatch.setattr(searching, "check_cluster", lambda **of: Report(1, 4, ()))
    with pytest.raises(InputError, match=r"resources.workers_of_winner = 5: the cluster has room for 4: ask for fewer"):
        searching._check_room(config, SweepDir(tmp_path), 1, nodes_of((4, 0)), Told())


@pytest.mark.slow
@pytest.mark.usefixtures("local_ray")
def test_several_workers_train_the_winner_and_the_result_says_so(corpora, tmp_path):
    resources, said = {"workers_of_winner": 2}, list[str]()
    config = sweep_config(corpora, tmp_path, space=SPACE, search=RULES["public"], resources=resources)
    answer = sweep(config, tmp_path / "out", reporter=Told(say=said.append))
    assert answer["winner_trained"]["workers"] == 2
    assert any(line.endswith("on private text, by 2 workers") for line in said)
    run = RunDir(tmp_path / "out" / "winner")
    assert run.diagnostics(0).exists()
    assert run.diagnostics(1).exists()
    assert answer["best"]["epsilon_with_choice"] == answer["best"]["epsilon"]["user-entity"] <= 8


def test_a_word_that_is_none_of_a_settings_is_told_which_there_are():
    for key, value, says in (
        ("workers_of_winner", "all", "in digits alone, such as 1000, or trial or auto"),
        ("max_concurrent", "none", "in digits alone, such as 1000, or null"),
        ("gpus_per_worker", "some", "expected a number, or auto"),
    ):
        with pytest.raises(InputError, match=says):
            from_dict(ResourceConfig, {key: value})
