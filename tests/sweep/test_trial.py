"""How a trial ends, and what the search makes of it."""

from __future__ import annotations

import errno
import math
import os
import re

import pytest

from tests.sweep.sweeps import sweep_config
from uedp_ray.config import dump_config
from uedp_ray.errors import InputError
from uedp_ray.files import make_folder
from uedp_ray.sweep import feed as feed_module
from uedp_ray.sweep.config import dump_sweep_config
from uedp_ray.sweep.feed import Feed
from uedp_ray.sweep.layout import SweepDir
from uedp_ray.sweep.study import Study
from uedp_ray.sweep.trial import run_trial
from uedp_ray.training import worker

POINT = {"privacy.user_sampling_prob": 0.3, "training.num_rounds": 3, "training.server_learning_rate": 0.01}


@pytest.fixture
def folder(corpora, tmp_path):
    """A sweep directory as the host leaves it before the first trial."""
    out = SweepDir(tmp_path / "out")
    make_folder(out.private, private=True)
    sweep = sweep_config(corpora, tmp_path)
    dump_sweep_config(sweep, out.config)
    dump_config(sweep.base, out.trial_base)
    return out


def run(folder):
    reports = []
    run_trial({"number": 3, "point": POINT}, root=str(folder.root), report=reports.append)
    return reports


def test_a_trial_reports_each_evaluation_and_last_its_outcome(folder):
    *rounds, last = run(folder)
    assert [row["round"] for row in rounds] == [0, 2]
    assert (last["outcome"], last["reason"]) == ("done", "")
    assert last["perplexity"] > 1
    assert 7.9 < last["epsilon"] <= 8
    assert (folder.root / "trials" / "0003" / "result.json").exists()
    assert run(folder) == [last], "a finished trial is not run again"


@pytest.mark.parametrize(
    ("error", "outcome", "reason"),
    [
        (InputError("model.path", "x", "name a model"), "failed", "model.path = 'x': name a model"),
        (ValueError("Ann met Ben in Oslo"), "failed", r"ValueError in \w+.py, line \d+"),
        (OSError(errno.ENOSPC, "No space left on device"), "no space", "No space left"),
        (OSError(errno.EACCES, "Permission denied"), "failed", "Permission denied"),
    ],
)
def test_what_goes_wrong_is_an_outcome_and_says_nothing_private(folder, monkeypatch, error, outcome, reason):
    def broken(*_, **__):
        raise error

    monkeypatch.setattr(worker, "run_rounds", broken)
    last = run(folder)[-1]
    assert last["outcome"] == outcome
    assert math.isinf(last["perplexity"])
    assert re.search(reason, last["reason"])
    assert "Oslo" not in last["reason"]


def test_a_full_disk_ends_the_search_and_the_trial_is_begun_again_later(folder, corpora, tmp_path, monkeypatch):
    sweep = sweep_config(corpora, tmp_path)
    feed = Feed(Study.open(sweep, folder.journal), left=3, count_refused=False, changed=lambda: None)
    handed = feed.suggest("a")

    def full(descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    reports = []
    run_trial(handed, root=str(folder.root), report=reports.append)
    feed.on_trial_complete("a", reports[-1])
    assert isinstance(feed.failure, OSError)
    assert "--resume" in str(feed.failure)
    assert feed.suggest("b") == Feed.FINISHED
    monkeypatch.undo()
    again = Feed(Study.open(sweep, folder.journal), left=3, count_refused=False, changed=lambda: None)
    assert again.suggest("a") == handed
    assert run_trial(handed, root=str(folder.root), report=reports.append) is None
    assert reports[-1]["outcome"] == "done"


def test_a_process_that_keeps_dying_is_a_failed_trial(folder, corpora, tmp_path):
    study = Study.open(sweep_config(corpora, tmp_path), folder.journal)
    feed = Feed(study, left=2, count_refused=False, changed=lambda: None)
    feed.suggest("a")
    feed.on_trial_complete("a", None, error=True)
    assert study.trials[0].state.name == "FAIL"
    assert "died" in study.trials[0].user_attrs["reason"]
    assert feed.suggest("b") != Feed.FINISHED
    assert feed.unfinished == 1
    assert feed.suggest("c") == Feed.FINISHED


def test_a_space_that_is_nearly_always_refused_gives_up(folder, corpora, tmp_path, monkeypatch):
    monkeypatch.setattr(feed_module, "_MOST_REFUSALS", 5)
    space = {"privacy.noise_multiplier": {"log_uniform": [0.2, 0.5]}}
    sweep = sweep_config(corpora, tmp_path, space=space, budget={"noise": "free", "target_epsilon": 0.5})
    feed = Feed(Study.open(sweep, folder.journal), left=2, count_refused=False, changed=lambda: None)
    assert feed.suggest("a") == Feed.FINISHED
    assert isinstance(feed.failure, InputError)
    assert "5 points in a row were refused" in str(feed.failure)
