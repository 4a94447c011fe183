"""How a trial ends, and what the search makes of it."""

from __future__ import annotations

import dataclasses
import errno
import math
import os
import re
import shutil
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from tests.search.sweeps import sweep_config
from uedp_ray.config import SourceConfig, dump_config, load_config
from uedp_ray.corpus import bounds
from uedp_ray.corpus.prepare import prepare
from uedp_ray.errors import InputError, TextError
from uedp_ray.reporting import SILENT
from uedp_ray.search import trial
from uedp_ray.search.feasibility import alone
from uedp_ray.search.finalize import trained
from uedp_ray.search.layout import SweepDir
from uedp_ray.search.searcher import StudySearcher
from uedp_ray.search.selection_cost import fix_terms
from uedp_ray.search.study import Study, outcome, started
from uedp_ray.search.sweep_config import dump_sweep_config, load_sweep_config
from uedp_ray.search.sync import prepared
from uedp_ray.search.trial import run_trial
from uedp_ray.search.tuning import _Restarts
from uedp_ray.storage.files import make_folder
from uedp_ray.training import worker
from uedp_ray.training.host import train
from uedp_ray.training.rundir import RunDir
from uedp_ray.updates import gradient

POINT = {"privacy.user_sampling_prob": 0.3, "training.num_rounds": 3, "training.server_learning_rate": 0.01}


@pytest.fixture
def folder(corpora, tmp_path):
    """A sweep directory as the host leaves it before the first trial."""
    out = SweepDir(tmp_path / "out")
    make_folder(out.private, private=True)
    sweep = sweep_config(corpora, tmp_path)
    dump_sweep_config(sweep, out.config)
    dump_config(prepared(sweep.base, out, out.corpora()), out.trial_base())
    fix_terms(sweep, out)
    return out


def run(folder):
    reports = []
    outcome = run_trial({"number": 3, "point": POINT}, root=str(folder.root), report=reports.append)
    assert outcome == reports[-1]["outcome"]
    return reports


def test_a_trial_reports_each_evaluation_and_last_its_outcome(folder):
    *rounds, last = run(folder)
    assert [row["round"] for row in rounds] == [0, 2]
    assert (last["outcome"], last["reason"]) == ("done", "")
    assert last["score"] > 1
    assert 7.9 < last["epsilon"] <= 8
    assert (folder.root / "trials" / "0003" / "result.json").exists()
    assert run(folder) == [last], "a finished trial is not run again"


@pytest.mark.parametrize("part", ["private", "held_out"])
def test_a_trial_is_of_the_text_that_those_before_it_were_of(folder, corpora, tmp_path, part):
    """No point is to blame where it is not: the search stops, and its points are tried again."""
    for name in ("private", "held_out"):
        shutil.copytree(corpora / name, tmp_path / "c" / name)
    sweep = sweep_config(tmp_path / "c", tmp_path)
    dump_sweep_config(sweep, folder.config)
    dump_config(prepared(sweep.base, folder, folder.corpora()), folder.trial_base())
    prepare(SourceConfig(format="synthetic", num_users=9, part=part, seed=1), tmp_path / "c" / part, num_shards=2)
    last = run(folder)[-1]
    assert last["outcome"] == "crashed"
    field = {"private": "source", "held_out": "evaluation"}[part]
    assert re.match(rf"corpus\.{field} = .*has changed since training on it began: put it back$", last["reason"])
    assert not (folder.trials / "0003" / "ledger.jsonl").exists()
    make_folder(folder.trials / "0000" / "private")
    with pytest.raises(InputError, match="has changed since training on it began: put it back"):
        prepared(sweep.base, folder, folder.private / "corpora")  # as a resume does
    folder.text().unlink()
    with pytest.raises(InputError, match="is missing: put it back"):
        prepared(sweep.base, folder, folder.private / "corpora")


def test_a_trial_that_was_stopped_is_not_trained_on_by_itself(folder):
    """The sweep's price, which was computed, would not hold it."""

    def stopped(row):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_trial({"number": 3, "point": POINT}, root=str(folder.root), report=stopped)
    (trial,) = folder.runs(3)
    ledger = (trial / "ledger.jsonl").read_bytes()
    with pytest.raises(InputError, match=r"--out = '.*0003': is one run of a sweep, .*continue the sweep"):
        train(load_config(trial / "config.yaml"), trial, workers=0, resume=True)
    assert (trial / "ledger.jsonl").read_bytes() == ledger
    assert run(folder)[-1]["outcome"] == "done"


def test_trials_on_public_text_may_protect_different_categories_of_one_corpus(folder, corpora, tmp_path, monkeypatch):
    monkeypatch.setattr(trial, "drop_ended", lambda run: None)
    search = {"selection": "public", "public": {"corpus.source": {"format": "synthetic", "num_users": 20}}}
    space = {"corpus.categories": {"choice": [["person"], ["person", "org"], []]}}
    sweep = sweep_config(corpora, tmp_path, space=space, search=search)
    dump_sweep_config(sweep, folder.config)
    folder.terms.unlink()
    fix_terms(sweep, folder)
    weights, stated = [], []
    for number, point in enumerate(load_sweep_config(folder.config).parsed_space.grid()):
        reports = []
        run_trial({"number": number, "point": point}, root=str(folder.root), report=reports.append)
        assert reports[-1]["outcome"] == "done", reports[-1]["reason"]
        (run,) = folder.runs(number)
        weights.append(np.load(RunDir(run).sentence_weight).tobytes())
        stated.append((run / "privacy.md").read_text().split("categories: ")[1].split("\n")[0])
    assert len(set(weights)) == 3, "bounds are those of the graph that is left"
    assert stated == ["person.", "org, person.", "all found."]


@pytest.mark.parametrize(
    ("error", "outcome", "reason"),
    [
        (InputError("model.path", "x", "name a model"), "failed", "model.path = 'x': name a model"),
        (torch.OutOfMemoryError("CUDA out of memory"), "failed", "the GPU ran out of memory: lower it"),
        (torch.AcceleratorError("CUDA error: an illegal memory access"), "device", "the GPU failed .CUDA error: an"),
        (InputError("--out", "x", "another process is at work in this folder"), "crashed", "another process"),
        (InputError("ulimit -n", 8, "too many open files"), "crashed", "ulimit -n"),
        (InputError("corpus.source", "x", "has changed since the run began"), "crashed", "has changed"),
        (
            TextError("bounds.max_holders", 3, "17 entities have"),
            "crashed",
            "^bounds.max_holders is refused .* stays private$",
        ),
        (ValueError("Ann met Ben in Oslo"), "crashed", r"ValueError in \w+.py, line \d+"),
        (OSError(errno.ENOSPC, "No space left on device"), "disk", "No space left"),
        (OSError(errno.EIO, "Input/output error"), "disk", "Input/output error"),
        (OSError(errno.EACCES, "Permission denied"), "crashed", "Permission denied"),
    ],
)
def test_what_goes_wrong_is_an_outcome_and_says_nothing_private(folder, monkeypatch, error, outcome, reason):
    def broken(*_, **__):
        raise error

    monkeypatch.setattr(worker, "run_rounds", broken)
    last = run(folder)[-1]
    assert last["outcome"] == outcome
    assert math.isinf(last["score"])
    assert re.search(reason, last["reason"])
    assert "Oslo" not in last["reason"]


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
def test_a_disk_that_fails_ends_the_search_and_the_trial_is_begun_again_later(
    folder, corpora, tmp_path, monkeypatch, number
):
    sweep = sweep_config(corpora, tmp_path)
    searcher = StudySearcher(
        Study.open(sweep, folder.journal), alone(sweep), left=3, count_refused=False, changed=lambda: None
    )
    handed = searcher.suggest("a")

    def full(descriptor):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", full)
    reports = []
    run_trial(handed, root=str(folder.root), report=reports.append)
    searcher.on_trial_complete("a", reports[-1])
    assert isinstance(searcher.failure, OSError)
    assert str(searcher.failure).count("--resume") == 1
    assert searcher.suggest("b") == StudySearcher.FINISHED
    monkeypatch.undo()
    again = StudySearcher(
        Study.open(sweep, folder.journal), alone(sweep), left=3, count_refused=False, changed=lambda: None
    )
    assert again.suggest("a") == handed
    assert run_trial(handed, root=str(folder.root), report=reports.append) == "done"
    assert reports[-1]["outcome"] == "done"


@pytest.fixture
def search(folder, corpora, tmp_path):
    """search(…): a searcher over a fresh look at one study, as a start of the sweep has it."""

    def start(left=24, slots=2):
        sweep = sweep_config(corpora, tmp_path)
        study = Study.open(sweep, folder.journal)
        study.fix_lag(4)
        settings = {"left": left, "count_refused": False, "changed": lambda: None, "slots": slots}
        return StudySearcher(study, alone(sweep), **settings), study

    return start


def states(study):
    return [outcome(trial).name for trial in study.trials]


LOST = {"outcome": "device", "reason": "the GPU failed", "where": "node 10.0.0.1, GPU 0"}
CRASH = {"outcome": "crashed", "reason": "KeyError in plan.py, line 3"}
GOOD = {"outcome": "done", "perplexity": 5.0, "epsilon": 1.0, "noise_multiplier": 2.0}


def test_a_trial_whose_gpu_fails_is_tried_on_another_which_the_first_is_kept_from(search):
    searcher, study = search(left=3)
    lost, well = searcher.suggest("a"), searcher.suggest("b")
    searcher.on_trial_result("a", LOST)  # "a" goes on holding its GPU
    searcher.on_trial_complete("b", GOOD)
    assert searcher.suggest("c") == lost
    searcher.on_trial_complete("c", GOOD)
    assert searcher.suggest("d")["number"] == 2
    assert searcher.suggest("e") is None, "what runs may need another device yet"
    searcher.on_trial_complete("d", GOOD)
    assert searcher.over
    assert searcher.suggest("f") == StudySearcher.FINISHED
    assert (states(study), searcher.failure, searcher.unfinished) == (["COMPLETE"] * 3, None, 0)
    assert well["number"] == 1
    assert [once_more(trial) for trial in study.trials] == [True, False, False]


def once_more(trial):
    """Whether a trial was started once more."""
    return started(trial, trial)[1] is not None


def test_a_trial_whose_process_died_was_started_once_more(search):
    """Tune starts it again by itself, and asks for no point."""
    searcher, study = search(left=2)
    searcher.suggest("a")
    searcher.suggest("b")
    _Restarts(searcher).on_trial_recover(1, [], SimpleNamespace(trial_id="b"))
    assert [once_more(trial) for trial in study.trials] == [False, True]


def test_without_a_device_left_the_search_stops_and_no_point_is_burnt(search):
    searcher, study = search()
    handed = [searcher.suggest("a"), searcher.suggest("b")]
    for name in ("a", "b"):
        searcher.on_trial_result(name, LOST)
    assert searcher.over
    assert re.search(
        r"no device is left: the GPU failed \(node 10.0.0.1, GPU 0\); fix that .* --resume", str(searcher.failure)
    )
    assert states(study) == ["RUNNING"] * 2
    again, _ = search()
    assert [again.suggest("a"), again.suggest("b")] == handed


def test_a_point_that_breaks_two_gpus_has_failed(search):
    searcher, study = search(slots=4)
    searcher.suggest("a")
    searcher.on_trial_result("a", LOST)
    searcher.suggest("b")
    searcher.on_trial_result("b", {**LOST, "where": "node 10.0.0.1, GPU 1"})
    searcher.suggest("c")
    searcher.on_trial_complete("c", GOOD)
    assert states(study) == ["FAIL", "COMPLETE"]
    assert study.trials[0].user_attrs["reason"] == "the GPU failed"


def test_trials_that_share_a_broken_gpu_tell_of_one_failure(search, monkeypatch):
    monkeypatch.setattr("uedp_ray.search.searcher._MOST_FAILURES", 2)
    searcher, study = search(left=3, slots=6)
    for name in "abc":
        searcher.suggest(name)
        searcher.on_trial_result(name, LOST)
    again = searcher.suggest("d")
    searcher.on_trial_result("d", LOST)
    assert searcher.failure is None
    for name in "efg":
        searcher.suggest(name)
        searcher.on_trial_complete(name, GOOD)
    assert again["number"] == 0, "it has not met another device yet"
    assert (states(study), searcher.failure) == (["COMPLETE"] * 3, None)


def test_a_trial_of_several_workers_is_tried_twice_wherever_its_devices_are(search):
    searcher, study = search(left=2, slots=None)
    for name in "ab":
        assert searcher.suggest(name)["number"] == 0
        searcher.on_trial_result(name, LOST)
        searcher.on_trial_complete(name, LOST)
    searcher.suggest("c")
    searcher.on_trial_complete("c", GOOD)
    assert states(study) == ["FAIL", "COMPLETE"]


def test_failures_in_a_row_that_no_point_is_to_blame_for_stop_the_search(search, monkeypatch):
    monkeypatch.setattr("uedp_ray.search.searcher._MOST_FAILURES", 3)
    searcher, study = search()
    ends = [CRASH, CRASH, GOOD, CRASH, {"outcome": "failed", "reason": "it diverged"}, None, CRASH]
    for number, end in enumerate(ends):
        assert searcher.suggest(str(number))["number"] == number
        searcher.on_trial_complete(str(number), end, error=end is None)
    assert states(study) == ["FAIL", "FAIL", "COMPLETE", "RUNNING", "FAIL", "RUNNING", "RUNNING"]
    assert "3 trials in a row failed, the last because KeyError in plan.py, line 3; fix that" in str(searcher.failure)
    assert searcher.suggest("x") == StudySearcher.FINISHED
    again, _ = search()
    assert [again.suggest(name)["number"] for name in "abc"] == [3, 5, 6]


def test_failures_at_the_end_of_a_search_are_told_when_it_closes(search):
    searcher, study = search(left=2)
    searcher.suggest("a")
    searcher.suggest("b")
    searcher.on_trial_complete("a", GOOD)
    searcher.on_trial_complete("b", None, error=True)
    assert searcher.over
    searcher.close()
    assert states(study) == ["COMPLETE", "FAIL"]
    assert "died" in study.trials[1].user_attrs["reason"]


def test_a_space_that_is_nearly_always_refused_gives_up(folder, corpora, tmp_path, monkeypatch):
    monkeypatch.setattr("uedp_ray.search.searcher._MOST_REFUSALS", 5)
    space = {"privacy.noise_multiplier": {"log_uniform": [0.2, 0.5]}}
    sweep = sweep_config(corpora, tmp_path, space=space, budget={"noise": "free", "target_epsilon": 0.5})
    searcher = StudySearcher(
        Study.open(sweep, folder.journal), alone(sweep), left=2, count_refused=False, changed=lambda: None
    )
    assert searcher.suggest("a") == StudySearcher.FINISHED
    assert isinstance(searcher.failure, InputError)
    assert "5 points in a row were refused" in str(searcher.failure)


def test_a_network_is_tried_out_once_a_sweep_and_bounds_are_applied_once_a_process(folder, monkeypatch):
    tried, agreeing_rows = [], gradient.agreeing_rows
    bounded, apply_bounds = [], bounds.apply_bounds
    monkeypatch.setattr(bounds, "apply_bounds", lambda *of: (bounded.append(of), apply_bounds(*of))[1])
    monkeypatch.setattr(bounds, "_KEPT", {})

    def counted(run, params, model, length, *args, **named):
        tried.append(length)
        return agreeing_rows(run, params, model, length, *args, **named)

    monkeypatch.setattr(gradient, "agreeing_rows", counted)

    def in_another_process(of):
        gradient._PROBED.clear()
        of()
        return len(tried)

    first = in_another_process(lambda: run(folder))
    assert first
    again = {"number": 4, "point": POINT | {"training.server_learning_rate": 0.02}}
    assert in_another_process(lambda: run_trial(again, root=str(folder.root), report=lambda row: None)) == first
    winner = dataclasses.replace(load_config(folder.runs(3)[0] / "config.yaml"), name="winner")
    assert in_another_process(lambda: trained(winner, folder, folder.winner, None, SILENT)) == first
    assert len(bounded) == 1
