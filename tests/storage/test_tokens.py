"""Tokens of a run at a URL: made once, and fetched by whatever node a worker is on."""

from __future__ import annotations

import shutil

import numpy as np
import pytest

from tests.training.runs import run_config
from uedp_ray.corpus import tokens
from uedp_ray.storage.files import write_json
from uedp_ray.storage.open import open_storage
from uedp_ray.training.prepared import Prepared
from uedp_ray.training.rundir import RunDir
from uedp_ray.training.setup import prepare_run

pytestmark = pytest.mark.usefixtures("node")


@pytest.fixture
def made(corpora, url):
    return prepare_run(run_config(corpora), url, resume=False)


def elsewhere(url, node):
    """The run as a worker on another node finds it."""
    node("b")
    storage = open_storage(url)
    run = RunDir(storage.root, storage)
    run.fetch()
    return run


def refuse(*_):
    raise AssertionError("tokenised again")


def arrays(prepared):
    return [(store.tokens.tolist(), store.offsets.tolist()) for store in (prepared.tokens, prepared.evaluation)]


def test_a_worker_on_another_node_tokenises_nothing(made, url, node, monkeypatch):
    expected = arrays(Prepared.open(made))
    monkeypatch.setattr(tokens, "encoded", refuse)
    run = elsewhere(url, node)
    assert run.root != made.root
    assert arrays(Prepared.open(run)) == expected
    assert arrays(Prepared.open(run)) == expected, "a second worker finds them there"
    assert all(path.stat().st_mode & 0o077 == 0 for path in run.tokens.rglob("*") if path.is_dir())


def test_damaged_ones_are_made_anew(made, url, node):
    expected = arrays(Prepared.open(made))
    run = elsewhere(url, node)
    path = Prepared.open(run).tokens.path / "tokens.npy"
    content = np.load(path)
    content[0] += 1
    path.unlink()
    np.save(path, content)
    assert arrays(Prepared.open(run)) == expected


@pytest.mark.parametrize("stores", [None, [".."], ["../corpus", 3], "all"])
def test_names_of_anything_else_are_not_looked_for(made, url, node, stores):
    """``None``: as an earlier version left it. What is not stored would be deleted here."""
    expected = arrays(Prepared.open(made))
    run = elsewhere(url, node)
    setup = run.load_setup()
    del setup["stores"]
    write_json(run.setup, setup if stores is None else setup | {"stores": stores}, private=True)
    assert arrays(Prepared.open(run)) == expected
    assert run.corpus.exists() == made.corpus.exists()


def test_a_start_on_another_node_goes_on(made, corpora, url, node, monkeypatch):
    node("c")
    monkeypatch.setattr(tokens, "encoded", refuse)
    Prepared.open(prepare_run(run_config(corpora), url, resume=True))


def test_tokens_that_several_runs_share_are_not_stored_with_each(corpora, url, tmp_path):
    shared = tmp_path / "shared"
    run = prepare_run(run_config(corpora), url, resume=False, tokens=shared)
    assert run.load_setup()["stores"] == []
    assert not any(key.startswith("private") and "tokens" in key for key in run.storage._objects.list("private"))
    shutil.rmtree(shared)
    Prepared.open(run)


def test_a_run_in_a_folder_stores_nothing(corpora, tmp_path):
    run = prepare_run(run_config(corpora), tmp_path / "run", resume=False)
    assert run.load_setup()["stores"] == []
    assert not list(run.tokens.rglob(".whole*"))
