"""Rule public: whatever ended the start that began the winner, no second one is trained on the private text uncharged."""

from __future__ import annotations

import os
import shutil
from contextlib import ExitStack
from unittest import mock

import pytest
import yaml

from tests.crashes.commands import SweepPublic
from uedp_ray.config import SourceConfig
from uedp_ray.corpus.prepare import prepare
from uedp_ray.search import finalize
from uedp_ray.storage.open import open_storage
from uedp_ray.training.driver import RunDriver

pytestmark = pytest.mark.whole


class Public(SweepPublic):
    def tree(self):
        tree = super().tree() | {"references": {"noiseless": {}}}
        tree["base"].pop("pretrain")
        return tree

    def winner(self):
        """Rounds of winners that were released, and those that are charged."""
        return sum(record[0] == "winner" for record in self.releases()), len(self.charged(self.out / "winner"))


class PublicAtUrl(Public):
    """Every start is on another node."""

    def __init__(self, base):
        super().__init__(base)
        self.url, self.node = f"file://{self.out}", self.work / "node"

    def arguments(self):
        return ["sweep", str(self.file), "--out", self.url]

    def begun(self):
        return open_storage(self.url).exists()

    def played(self):
        shutil.rmtree(self.node, ignore_errors=True)
        both = ExitStack()
        both.enter_context(super().played())
        both.enter_context(mock.patch.dict(os.environ, UEDP_RAY_WORK=str(self.node)))
        return both

    def charged(self, run):
        with mock.patch.dict(os.environ, UEDP_RAY_WORK=str(self.base / "looks")):
            mirror = open_storage(f"{self.url}/{run.name}")
            mirror.restore(mirror.root / "ledger.jsonl")
            return super().charged(mirror.root)


@pytest.fixture(params=[Public, PublicAtUrl])
def public(request, tmp_path):
    command = request.param(tmp_path)
    command.set_up()
    return command


def ended_at(command, where):
    """A start that ends there."""
    with mock.patch.object(finalize, where, side_effect=KeyboardInterrupt):
        assert command.call() == 130


def cut_off(config, storage, **how):
    """Training that ends after the first round of the winner."""
    ends = {"side_effect": KeyboardInterrupt} if storage.root.name == "winner" else {"autospec": True}
    after = mock.patch.object(RunDriver, "after_round", **ends) if "side_effect" in ends else ExitStack()
    with after:
        return TRAIN(config, storage, **how)


TRAIN = finalize.train


@pytest.mark.parametrize("ended", ["train", "_best"])
def test_a_winner_that_is_lost_before_the_sweep_ends_is_not_trained_again(public, capsys, ended):
    with mock.patch.object(finalize, ended, side_effect=cut_off if ended == "train" else KeyboardInterrupt):
        assert public.call() == 130
    released, charged = public.winner()
    assert released == charged > 0
    shutil.rmtree(public.out / "winner")
    capsys.readouterr()
    assert public.call() == 2
    told = capsys.readouterr().err
    assert (told.count("error: "), "its ledger is missing, but what it pays for still counts" in told) == (1, True), (
        told
    )
    assert public.winner() == (released, 0)


@pytest.mark.parametrize("ended", ["_begin_winner", "write_json", "keep_terms", "_train"])
def test_a_start_that_ended_before_the_first_charge_goes_on(public, ended):
    public.file.write_text(public.file.read_text().replace("noiseless: {}", "noiseless: null"))
    with mock.patch.object(finalize, ended, side_effect=KeyboardInterrupt):
        assert public.call() == 130
    assert public.winner() == (0, 0)
    assert public.call() == 0
    assert public.winner() == (2, 2)


def test_the_winner_is_of_the_text_that_what_was_searched_on_is_not(public, capsys):
    """The search on other text cost nothing. On this one it would have: whoever swaps them is refused."""
    tree, text = yaml.safe_load(public.file.read_text()), public.base / "text"
    prepare(SourceConfig(format="synthetic", num_users=14), text)
    tree["base"]["corpus"]["source"] = {"path": str(text)}
    tree["references"] = {}
    public.file.write_text(yaml.safe_dump(tree))
    ended_at(public, "_winner")
    prepare(SourceConfig(**tree["search"]["public"]["corpus.source"]), text)
    capsys.readouterr()
    assert public.call() == 2
    assert "has changed since training on it began: put it back" in capsys.readouterr().err
    assert public.winner() == (0, 0)
    prepare(SourceConfig(format="synthetic", num_users=14), text)
    assert public.call() == 0
    assert public.winner() == (2, 2)
