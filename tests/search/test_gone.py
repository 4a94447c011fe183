"""A sweep of which parts are gone, by whatever hand: what was trained stays charged, and is never trained anew for less."""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
from contextlib import ExitStack
from unittest import mock

import pytest
import yaml

from tests.crashes.commands import Sweep, SweepPublic
from uedp_ray.corpus.store import open_corpus
from uedp_ray.errors import InputError
from uedp_ray.search import finalize, shared
from uedp_ray.search import sweep as sweep_module
from uedp_ray.search.export import export

pytestmark = pytest.mark.whole


class Searched(Sweep):
    """A sweep in this process, without Ray, whose --resume is the test's to say."""

    resume = False

    def __init__(self, base, search):
        super().__init__(base)
        self.search = search

    def tree(self):
        tree = super().tree() | {"search": self.search}
        if self.search["searcher"] != "grid":
            tree["space"] = {"training.server_learning_rate": {"log_uniform": [0.001, 0.1]}}
        return tree

    def begun(self):
        return self.resume


RULES = {
    "grid": {"searcher": "grid"},
    "adaptive": {"searcher": "tpe", "trials": 2},
    "repeat_and_select": {"searcher": "random", "trials": 2, "pool_size": 4, "law": "geometric"},
}
POISSON = {"searcher": "random", "trials": 1, "pool_size": 3, "law": "poisson"}


@pytest.fixture(scope="module", params=RULES)
def searched(request, tmp_path_factory):
    command = Searched(tmp_path_factory.mktemp("searched"), RULES[request.param])
    command.set_up()
    assert command.call() == 0
    copy = tmp_path_factory.mktemp("copy") / "out"
    shutil.copytree(command.out, copy)
    return command, copy


def whole(searched):
    """The command, with its sweep as it ended."""
    command, copy = searched
    shutil.rmtree(command.out)
    shutil.copytree(copy, command.out)
    return command


@pytest.mark.parametrize("resume", [False, True])
@pytest.mark.parametrize(
    "gone",
    [
        ["trials"],
        ["trials", "study.journal"],
        ["trials", "study.journal", "trials.parquet"],
        ["trials", "selection.json"],
        ["trials", "result.json"],
        ["private/pool.json"],
    ],
    ids=" and ".join,
)
def test_nothing_is_searched_anew_for_less(searched, capsys, gone, resume):
    command = whole(searched)
    there = [command.out / name for name in gone if (command.out / name).exists()]
    for path in there:
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    command.resume, released = resume, len(command.releases())
    capsys.readouterr()
    if not there:
        pytest.skip("an adaptive search has no pool")
    assert command.call() == 2
    told = capsys.readouterr().err
    assert told.count("error: ") == 1
    assert re.search("is (gone|missing)" if resume else "--resume|is missing", told)
    assert len(command.releases()) == released


@pytest.mark.parametrize("table", [True, False])
@pytest.mark.parametrize("cut", [1, 2])
def test_a_trial_whose_ledger_lost_its_end_is_not_priced_for_less(searched, tmp_path, capsys, cut, table):
    """Not by a kill, as lines are synced: by a copy that broke off, or an old one put back. Whichever trial it is of."""
    command = whole(searched)
    command.resume = True
    if not table:
        (command.out / "trials.parquet").unlink()
    before, trials = (command.out / "result.json").read_bytes(), sorted((command.out / "trials").iterdir())
    for ledger in (run / "ledger.jsonl" for run in trials):
        complete = ledger.read_bytes()
        ledger.write_bytes(b"".join(complete.splitlines(keepends=True)[:-cut]))
        capsys.readouterr()
        assert command.call() == 2
        assert "put the whole ledger back" in capsys.readouterr().err
        with pytest.raises(InputError, match="put the whole ledger back"):
            export(command.out, tmp_path / "handed-on")
        ledger.write_bytes(complete)
        assert (command.out / "result.json").read_bytes() == before


def test_another_sweep_does_not_take_its_place(searched, capsys):
    command = whole(searched)
    shutil.rmtree(command.out / "trials")
    tree = command.tree()
    tree["base"]["model"]["hidden_size"] = 32
    file = command.file.read_text()
    command.file.write_text(yaml.safe_dump(tree))
    command.resume = True
    try:
        assert command.call() == 2
    finally:
        command.file.write_text(file)
    assert "is from another sweep file" in capsys.readouterr().err


def test_where_none_was_drawn_none_is_drawn_again(tmp_path, capsys, monkeypatch):
    """A Poisson number of trials may be 0. To draw until it is not is another law, and a dearer one."""
    command = Searched(tmp_path, POISSON)
    command.set_up()
    drawn = iter([0, 1])
    monkeypatch.setattr("uedp_ray.search.pool.draw_trials", lambda **_: next(drawn))
    command.call()
    pool = (command.out / "private" / "pool.json").read_bytes()
    assert json.loads(pool)["draws"] == []
    for command.resume, code in ((False, 2), (True, 0)):
        capsys.readouterr()
        assert command.call() == code
        assert (command.out / "private" / "pool.json").read_bytes() == pool
        assert command.releases() == []


def test_a_kill_before_the_first_trial_draws_no_other_pool(tmp_path, monkeypatch):
    command = Searched(tmp_path, POISSON)
    command.set_up()
    monkeypatch.setattr("uedp_ray.search.sweep._search", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    assert command.call() != 0
    pool = (command.out / "private" / "pool.json").read_bytes()
    assert command.call() != 0
    assert (command.out / "private" / "pool.json").read_bytes() == pool


class CutOff(Searched):
    """Ends amid the trial ``at``; under rule public, when its winner is trained."""

    at = 1

    def __init__(self, base, rule):
        super().__init__(base, SweepPublic(base).tree()["search"] if rule == "public" else RULES[rule])

    def tree(self):
        tree = super().tree()
        tree["base"]["training"]["evaluate_every"] = 1
        tree["base"].pop("pretrain")
        return tree

    def _trial(self, folder, trial, stops):
        if trial["number"] == self.at and "public" not in self.search:
            stops = mock.Mock(side_effect=KeyboardInterrupt)
        return super()._trial(folder, trial, stops)

    def begin(self):
        self.set_up()
        with mock.patch.object(finalize, "_best", side_effect=KeyboardInterrupt):
            assert self.call() == 130

    def searches(self):
        """Whether a start searches; else it is refused."""
        with mock.patch.object(sweep_module, "_search", side_effect=KeyboardInterrupt):
            code = self.call()
        assert code in (2, 130)
        return code == 130


NEEDED = {"trials", "study.journal", "selection.json"}
TELLING = {"trials", "study.journal", "trials.parquet", "tensorboard", "private/tokens"}
"""What is there only once something was trained."""
OF_WINNER = {"winner", "selection.json"}
"""The same of rule public, whose terms say that a winner was begun."""


@pytest.mark.parametrize("rule", ["adaptive", pytest.param("public", marks=pytest.mark.slow)])
def test_a_sweep_begins_anew_only_where_nothing_tells_of_it(tmp_path, rule):
    command, kept, wrong = CutOff(tmp_path / "cut-off", rule), tmp_path / "kept", []
    command.begin()
    (command.out / "tensorboard" / "search-0123" / "0000").mkdir(parents=True)  # which Tune makes
    shutil.copytree(command.out, kept)
    needed, telling = (NEEDED | OF_WINNER, TELLING | OF_WINNER) if rule == "public" else (NEEDED, TELLING)
    parts = sorted(needed | telling)
    for there in map(set, itertools.chain(*(itertools.combinations(parts, n) for n in range(len(parts) + 1)))):
        for command.resume in (False, True):
            shutil.rmtree(command.out)
            shutil.copytree(kept, command.out)
            for path in (command.out / name for name in parts if name not in there):
                shutil.rmtree(path) if path.is_dir() else path.unlink()
            if command.searches() != (not there & telling or (command.resume and needed <= there)):
                wrong.append((sorted(there), command.resume))
    assert not wrong


def test_the_first_trial_is_not_trained_anew_where_all_trials_are_gone(tmp_path):
    command = CutOff(tmp_path, "adaptive")
    command.at, command.resume = 0, True
    with mock.patch.object(command, "resume", False):
        command.begin()
    assert command.searches()
    shutil.rmtree(command.out / "trials")
    assert not command.searches()


@pytest.mark.parametrize("left", [False, True], ids=["gone", "empty"])
def test_a_trial_that_was_cut_off_is_not_trained_anew_where_its_folder_is(tmp_path, capsys, left):
    command = CutOff(tmp_path, "adaptive")
    command.begin()
    command.resume, released = True, len(command.releases())
    assert command.searches()
    shutil.rmtree(command.out / "trials" / "0001")
    if left:
        (command.out / "trials" / "0001").mkdir()
    capsys.readouterr()
    assert command.call() == 2
    assert "trials/0001/private': is missing" in capsys.readouterr().err
    assert len(command.releases()) == released


class CutOffAtUrl(CutOff):
    """The URL is of a folder that is as ``out`` is elsewhere; ``node`` has this node's copies."""

    def arguments(self):
        return ["sweep", str(self.file), "--out", f"file://{self.out}"]

    def played(self):
        played = ExitStack()
        played.enter_context(super().played())
        played.enter_context(mock.patch.dict(os.environ, UEDP_RAY_WORK=str(self.base / "node")))
        return played


@pytest.mark.parametrize("before", [False, True], ids=["amid its rounds", "before its first"])
def test_nor_where_the_objects_of_its_url_are_gone(tmp_path, capsys, before):
    command = CutOffAtUrl(tmp_path, "adaptive")
    with mock.patch("uedp_ray.search.trial.run_trial", side_effect=KeyboardInterrupt) if before else ExitStack():
        command.begin()
    command.resume = True
    assert command.searches()
    run = command.out / "trials" / ("0000" if before else "0001")
    shutil.rmtree(run)
    capsys.readouterr()
    assert command.call() == 2
    assert f"trials/{run.name}/private': is missing" in capsys.readouterr().err
    assert not run.exists()


def test_what_is_left_of_it_beside_its_file_tells_too(tmp_path):
    command = CutOff(tmp_path, "adaptive")
    command.begin()
    for path in command.out.iterdir():
        if path.name != "private":
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    assert not command.searches()
    shutil.rmtree(command.out / "private" / "tokens")
    assert command.searches()


def test_another_sweep_in_its_place_trains_its_own_winner(tmp_path):
    """The text of the winner is prepared before the first trial."""
    command = CutOff(tmp_path, "public")
    command.set_up()
    with mock.patch.object(command, "_tune", side_effect=KeyboardInterrupt):
        assert command.call() == 130
    tree = command.tree()
    tree["base"]["corpus"]["source"] |= {"num_users": 14}
    tree["base"]["corpus"] |= {"declared_num_users": 14}
    command.file.write_text(yaml.safe_dump(tree))
    assert command.call() == 0
    assert open_corpus(command.out / "private" / "winner" / "private").num_users == 14


def test_what_was_put_among_the_files_of_a_sweep_that_trained_nothing_stays(tmp_path, capsys):
    command = Searched(tmp_path, RULES["grid"])
    command.set_up()
    with mock.patch.object(shared, "pretrained", side_effect=KeyboardInterrupt):
        assert command.call() == 130
    for folder in ("private/corpora", "private/corpora/private/shards", "private/corpora/evaluation"):
        mine = command.out / folder / "mine.jsonl"
        mine.write_text("all there is")
        assert command.call_other() == 2
        assert "mine.jsonl', which no sweep makes: move it out of the folder" in capsys.readouterr().err
        assert mine.read_text() == "all there is"
        mine.unlink()
    assert command.call_other() == 0


def test_what_was_put_beside_a_winner_stays(tmp_path, capsys):
    command = Searched(tmp_path, RULES["repeat_and_select"])
    command.set_up()
    assert command.call() == 0
    (command.out / "winner" / "model" / "mine").write_text("all there is")
    command.resume = True
    assert command.call() == 0
    told = capsys.readouterr().err
    assert (command.out / "winner.withdrawn-1" / "model" / "mine").read_text() == "all there is"
    assert not (command.out / "winner").exists()
    assert "the winner is not exported: " in told
    assert "'model/mine': move that elsewhere; what an earlier start exported is now winner.withdrawn-1" in told
    assert command.call() == 0
    assert (command.out / "winner" / "privacy.md").exists()
