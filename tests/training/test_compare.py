"""The comparison: one table, one pre-training, every variant from it; resumed without repeating anything."""

from __future__ import annotations

import dataclasses
import json

import pytest
import yaml

from tests.training.runs import run_tree
from uedp_ray.errors import InputError
from uedp_ray.training import groundwork, worker
from uedp_ray.training.compare import Comparison, compare

VARIANTS = {
    "Private, epsilon 8": {"method": "uedp", "set": {"privacy.noise_multiplier": 1.0}},
    "not private": {"method": "noiseless"},
}
PRETRAIN = {"text": [{"format": "synthetic", "num_users": 8, "part": "public"}], "num_steps": 20, "batch_size": 8,
            "learning_rate": 0.02}  # fmt: skip


def written(folder, tree):
    path = folder / "compare.yaml"
    path.write_text(yaml.safe_dump(tree, sort_keys=False))
    return path


@pytest.fixture(scope="module")
def comparison(corpora, tmp_path_factory):
    base = run_tree(corpora, pretrain=PRETRAIN, training={"num_rounds": 3, "device": "cpu"})
    path = written(tmp_path_factory.mktemp("comparison"), {"base": base, "variants": VARIANTS})
    return Comparison.load(path, ["privacy.user_sampling_prob=0.5"])


@pytest.fixture(scope="module")
def done(comparison, tmp_path_factory):
    out = tmp_path_factory.mktemp("compared") / "out"
    return out, compare(comparison, out, workers=0)


def test_a_row_each_for_untrained_public_only_and_every_variant(done):
    out, table = done
    assert json.loads((out / "table.json").read_text()) == table
    assert [row["name"] for row in table["rows"]] == ["untrained", "public-only", *VARIANTS]
    untrained, public, private, bare = table["rows"]
    assert public["perplexity"] < 0.8 * untrained["perplexity"]
    assert set(untrained["epsilon"].values()) == set(public["epsilon"].values()) == {0.0}
    assert private["epsilon"]["user-entity"] > 0
    assert bare["epsilon"] == {"user-entity": None, "user": None, "entity": None}
    assert [row["rounds"] for row in table["rows"]] == [0, 0, 3, 3]
    assert bare["perplexity"] < public["perplexity"]
    assert (private["private"], bare["private"]) == (True, False)


def test_every_variant_starts_from_the_one_public_model(done):
    out, table = done
    for name in ("private-epsilon-8", "not-private"):
        result = json.loads((out / name / "result.json").read_text())
        assert result["initial_perplexity"] == pytest.approx(table["rows"][1]["perplexity"], rel=1e-5)
        config = yaml.safe_load((out / name / "config.yaml").read_text())
        assert config["privacy"]["user_sampling_prob"] == 0.5, "overrides apply to every variant"
        assert config["model"]["warm_start"] == str((out / "pretrained" / "model").resolve())


def test_resuming_repeats_no_finished_variant(comparison, done, monkeypatch):
    out, table = done
    monkeypatch.setattr(groundwork, "pretrain_into", lambda *_, **__: pytest.fail("pre-trained again"))
    monkeypatch.setattr(worker, "run_rounds", lambda *_, **__: pytest.fail("rounds run again"))
    assert compare(comparison, out, workers=0, resume=True) == table
    with pytest.raises(InputError, match="--resume"):
        compare(comparison, out, workers=0)


def test_resuming_under_other_settings_is_refused(comparison, done):
    out, _ = done
    settings = {"privacy.noise_multiplier": 2.0}
    changed = Comparison(comparison.base, {**comparison.variants, "Private, epsilon 8": ("uedp", settings)})
    with pytest.raises(InputError, match="is not this one"):
        compare(changed, out, workers=0, resume=True)


def test_resuming_from_another_base_is_refused(comparison, done):
    """Corpora are prepared once: under another base they would be the wrong ones, and no variant could tell."""
    out, _ = done
    corpus = dataclasses.replace(comparison.base.corpus, evaluation=comparison.base.corpus.source)
    changed = Comparison(dataclasses.replace(comparison.base, corpus=corpus), comparison.variants)
    with pytest.raises(InputError, match="base has changed"):
        compare(changed, out, workers=0, resume=True)


def test_a_comparison_that_stopped_runs_what_is_missing(comparison, tmp_path, monkeypatch):
    run_rounds, calls = worker.run_rounds, []

    def failing(state, **settings):
        calls.append(settings["num_rounds"])
        if len(calls) == 2:
            raise KeyboardInterrupt
        return run_rounds(state, **settings)

    monkeypatch.setattr(worker, "run_rounds", failing)
    with pytest.raises(KeyboardInterrupt):
        compare(comparison, tmp_path / "out", workers=0)
    table = compare(comparison, tmp_path / "out", workers=0, resume=True)
    assert len(calls) == 3, "the first variant once, the second once more"
    assert len(table["rows"]) == 4


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"variant": {}}, "two keys base and variants"),
        ({"variants": {"a": {"set": {}}}}, "variants.a"),
        ({"variants": {"a": {"method": "magic"}}}, "magic"),
        ({"variants": {"a": {"method": "uedp", "set": {"privacy.epsilon": 8}}}}, "unknown key"),
        ({"variants": {"a b": {"method": "uedp"}, "A-B": {"method": "uedp"}}}, "a-b"),
        ({"variants": {"Pretrained": {"method": "uedp"}}}, "taken"),
        ({"variants": {8: {"method": "uedp", "set": {"privacy.epsilon": 8}}}}, "unknown key"),
        ({"variants": ["uedp"]}, "variants"),
        ({"variants": {"a": "uedp"}}, "variants.a"),
    ],
)
def test_a_bad_file_is_refused_before_any_work(corpora, tmp_path, change, message):
    path = written(tmp_path, {"base": run_tree(corpora), "variants": VARIANTS, **change})
    with pytest.raises(InputError, match=message):
        Comparison.load(path, [])


def test_a_file_that_is_not_yaml_is_refused(tmp_path):
    (tmp_path / "compare.yaml").write_text("base: [")
    with pytest.raises(InputError, match="not YAML"):
        Comparison.load(tmp_path / "compare.yaml", [])
