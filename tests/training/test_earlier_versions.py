"""Runs that an earlier version made: they are called that, and nothing of them is to be deleted."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.training.runs import content, crash, run_config, run_tree
from uedp_ray.answers import ledger_epsilon
from uedp_ray.config import SourceConfig
from uedp_ray.corpus.store import open_corpus
from uedp_ray.errors import InputError
from uedp_ray.storage.files import write_json
from uedp_ray.training.host import train
from uedp_ray.training.texts import prepared_source


def of_an_earlier_version(corpus: Path) -> None:
    manifest = json.loads((corpus / "corpus.json").read_text())
    write_json(corpus / "corpus.json", manifest | {"format_version": 2})


@pytest.mark.parametrize("own_copy", [True, False])
@pytest.mark.parametrize("setup", ["as it was", "damaged", "deleted"])
def test_a_run_of_an_earlier_version_is_no_damaged_one_of_which_a_part_is_to_go(corpora, tmp_path, setup, own_copy):
    """What was deleted as told could not be made again, and the run was stuck with every version."""
    out = tmp_path / "run"
    shutil.copytree(corpora, tmp_path / "corpora")
    sources = {"source": {"format": "synthetic", "num_users": 9}} if own_copy else {}
    config = run_config(tmp_path / "corpora", corpus={**run_tree(tmp_path / "corpora")["corpus"], **sources})
    crash(config, out, charges=3)
    of_an_earlier_version(out / "private" / "corpus" if own_copy else tmp_path / "corpora" / "private")
    path = out / "private" / "setup.json"
    tree = json.loads(path.read_text())
    del tree["sentence_weight"], tree["compared"]
    path.write_text(json.dumps(tree) if setup == "as it was" else "{")
    if setup == "deleted":
        path.unlink()
    before = content(out)
    with pytest.raises(InputError, match=r"an earlier version made this run, .*: use that version") as raised:
        train(config, out, workers=0, resume=True)
    assert "delete" not in str(raised.value)
    assert ("is damaged" in str(raised.value)) == (setup == "damaged")
    assert content(out) == before
    assert ledger_epsilon(out / "ledger.jsonl", unit="user", delta=1e-4)["epsilon"] > 0, "as the message says"


def test_a_copy_of_text_that_an_earlier_version_made_is_made_again_until_something_was_trained_on_it(tmp_path):
    source, copy = SourceConfig(format="synthetic", num_users=3), tmp_path / "corpus"
    digest = open_corpus(prepared_source(source, copy)).digest
    of_an_earlier_version(copy)
    with pytest.raises(InputError, match="an earlier version made this run"):
        prepared_source(source, copy, fixed=True)
    assert open_corpus(prepared_source(source, copy)).digest == digest
