"""A sweep of which parts are gone, by whatever hand: what was trained stays charged, and is never trained anew for less."""

from __future__ import annotations

import json
import re
import shutil

import pytest
import yaml

from tests.crashes.commands import Sweep


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
    assert re.search("is (gone|missing)" if resume else "--resume|is gone", told)
    assert len(command.releases()) == released


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
    assert "is of another sweep file" in capsys.readouterr().err


def test_where_none_was_drawn_none_is_drawn_again(tmp_path, capsys, monkeypatch):
    """A Poisson number of trials may be 0. To draw until it is not is another law, and a dearer one."""
    command = Searched(tmp_path, POISSON)
    command.set_up()
    drawn = iter([0, 1])
    monkeypatch.setattr("uedp_ray.sweep.price.draw_trials", lambda **_: next(drawn))
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
    monkeypatch.setattr("uedp_ray.sweep.host._search", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    assert command.call() != 0
    pool = (command.out / "private" / "pool.json").read_bytes()
    assert command.call() != 0
    assert (command.out / "private" / "pool.json").read_bytes() == pool
