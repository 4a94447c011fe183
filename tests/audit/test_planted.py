"""Whole runs with canaries: what is remembered, and that nothing of it comes from what only the run knows."""

from __future__ import annotations

import json
import stat

import pytest
import yaml

from tests.told import Told
from tests.training.runs import run_config, run_tree
from uedp_ray.audit.planted import audit
from uedp_ray.errors import InputError
from uedp_ray.search.compare import compare
from uedp_ray.search.comparison import Comparison
from uedp_ray.training.host import train

PLANTED = {"kind": "plant", "sharer_probs": [0.0, 1.0], "planting_probs": [1.0], "canary_words": 8}
ORDINARY = {"loop": "epochs", "num_rounds": 3, "server_optimizer": "adamw", "server_learning_rate": 0.02}
OPEN = {"privacy": {"noise": "none", "clip": False, "noise_multiplier": None}, "bounds": {"mode": "none"}}


def planted(corpora, **sections):
    transform = PLANTED | {"canaries_per_cell": 2}
    return run_config(corpora, corpus={"transform": transform}, **sections)


def cells_of(out):
    """The rows of a printed table."""
    return [[cell.strip() for cell in line.split("│")[1:-1]] for line in out.splitlines() if line.startswith("│")]


@pytest.fixture(scope="module")
def remembering(corpora, tmp_path_factory):
    """A run whose users all say nothing but two canaries, without privacy."""
    out = tmp_path_factory.mktemp("remembering") / "run"
    train(planted(corpora, training=ORDINARY, model={"hidden_size": 16}, **OPEN), out, workers=0)
    return out


def test_what_was_planted_is_remembered_and_what_was_not_is_not(remembering):
    told = Told()
    found = audit(remembering, reporter=told)
    never, always = found["cells"]
    assert [cell["expected_sharers"] for cell in found["cells"]] == [0.0, 30.0]
    assert [(cell["sharer_prob"], cell["planting_prob"], cell["canaries"]) for cell in found["cells"]] == [
        (0.0, 1.0, 2),
        (1.0, 1.0, 2),
    ]
    assert (always["random_sampling"], always["beam_search"], always["median_exposure"]) == (2, 2, 9.0)
    assert (never["random_sampling"], never["beam_search"]) == (0, 0)
    assert found["candidates"] == 8**3
    assert found["total"]["random_sampling"] == sum(row["rank"] == 1 for row in found["canaries"]) == 2


def test_a_run_without_a_guarantee_keeps_its_figures_to_its_owner(remembering):
    found = audit(remembering)
    path = remembering / "audit.json"
    assert json.loads(path.read_text()) == found
    assert found["private"] is False
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_private_run_shows_them_costs_what_it_did_and_reads_nothing_secret(corpora, tmp_path):
    result = train(planted(corpora), tmp_path / "run", workers=0)
    plain = train(run_config(corpora), tmp_path / "plain", workers=0)
    assert result["private"]
    assert result["epsilon"] == plain["epsilon"]
    assert [each["unit"] for each in result["guarantees"]] == [each["unit"] for each in plain["guarantees"]]
    found = audit(tmp_path / "run")
    path = tmp_path / "run" / "audit.json"
    assert found["private"]
    assert stat.S_IMODE(path.stat().st_mode) & stat.S_IROTH
    (tmp_path / "run" / "private").rename(tmp_path / "elsewhere")
    assert audit(tmp_path / "run") == found
    with pytest.raises(InputError, match="no canaries planted: train it with"):
        audit(tmp_path / "plain")


def test_what_cannot_be_audited_is_refused(corpora, remembering, tmp_path):
    with pytest.raises(InputError, match="holds no finished run"):
        audit(tmp_path)
    with pytest.raises(InputError, match="beam_width = 4: the best 5"):
        audit(remembering, beam_width=4)


def test_the_command_tells_one_run_by_cell_and_a_comparison_by_run(command, corpora, remembering, tmp_path):
    measured = audit(remembering)
    never, total = (f"{each['median_exposure']:.1f}" for each in (measured["cells"][0], measured["total"]))
    code, out, _ = command("audit", remembering)
    assert code == 0
    assert cells_of(out) == [
        ["0", "1", "0", "2", "0", "0", never],
        ["1", "1", "30", "2", "2", "2", "9.0"],
        ["all", "", "", "4", "2", "2", total],
    ]
    assert "the most likely of |R| = 2^9." in out
    assert "so as private as the text: tiny." in out
    pretraining = {"text": [{"format": "synthetic", "num_users": 20, "part": "public"}], "num_steps": 1}
    tree = run_tree(corpora, pretrain=pretraining, training={"num_rounds": 1})
    tree["corpus"]["transform"] = PLANTED | {"canaries_per_cell": 1}
    variants = {
        "users": {"method": "user_dp"},
        "dealt out": {"method": "clip_only", "set": {"corpus.regroup": "iid", "privacy.unit": "user"}},
        "records": {"method": "record_dp", "set": {"corpus.declared_num_users": 1000}},
        "as it is": {"method": "clip_only", "set": {"corpus.transform.kind": "none"}},
    }
    file = tmp_path / "compare.yaml"
    file.write_text(yaml.safe_dump({"base": tree, "variants": variants}))
    compare(Comparison.load(file, []), tmp_path / "out", workers=0)
    code, out, _ = command("audit", tmp_path / "out")
    assert code == 0
    scores = {
        each: json.loads((tmp_path / "out" / each / "result.json").read_text())
        for each in ("dealt-out", "records", "users")
    }
    assert [cells[:3] for cells in cells_of(out)] == [
        [each, f"{result['perplexity']:.3g}", "2"] for each, result in scores.items()
    ]
    assert "so as private as the text: dealt-out, records." in out, "who hides one record hides no user"
    assert stat.S_IMODE((tmp_path / "out" / "records" / "audit.json").stat().st_mode) == 0o600
    assert (tmp_path / "out" / "users" / "audit.json").exists()
    assert not (tmp_path / "out" / "as-it-is" / "audit.json").exists()
