"""Rule public: the winner is trained on the private text once, whatever became of its folder and of the result."""

from __future__ import annotations

import json
import shutil

import pytest

from tests.search.sweeps import finalize_here, search_here, sweep_config
from tests.search.test_export import RULES, SPACE
from tests.training.test_export import files
from uedp_ray.errors import InputError
from uedp_ray.search.layout import SweepDir
from uedp_ray.search.sweep import _refuse_second_winner, sweep


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
