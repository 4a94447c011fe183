"""The comparison: one table, one pre-training, every variant from it; resumed without repeating anything."""

from __future__ import annotations

import dataclasses
import itertools
import json
import shutil
import stat

import numpy as np
import pytest
import torch
import yaml

from tests.told import Told
from tests.training.runs import NUM_USERS, parameters, run_tree
from uedp_ray import export
from uedp_ray.answers import ledger_epsilon
from uedp_ray.config import SourceConfig
from uedp_ray.corpus.prepare import prepare
from uedp_ray.corpus.store import open_corpus
from uedp_ray.errors import InputError
from uedp_ray.search.compare import compare, finished_runs
from uedp_ray.search.comparison import Comparison
from uedp_ray.training import pretrain, worker
from uedp_ray.training.host import train
from uedp_ray.training.rundir import RunDir

VARIANTS = {
    "Private, epsilon 8": {"method": "uedp", "set": {"privacy.noise_multiplier": 1.0}},
    "not private": {"method": "noiseless"},
}
PRETRAIN = {"text": [{"format": "synthetic", "num_users": 8, "part": "public"}], "num_steps": 20, "batch_size": 8,
            "learning_rate": 0.02}  # fmt: skip

PRIVATE = SourceConfig(format="synthetic", num_users=NUM_USERS)


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
    stored = json.loads((out / "table.json").read_text())["rows"]
    assert stored == [{key: value for key, value in row.items() if key != "run_dir"} for row in table["rows"]]
    assert all(row["bits_per_byte"] > 0 and 0 <= row["unk_share"] < 1 for row in table["rows"])
    assert [row["name"] for row in table["rows"]] == ["untrained", "public-only", *VARIANTS]
    untrained, public, private, bare = table["rows"]
    assert public["perplexity"] < 0.8 * untrained["perplexity"]
    assert set(untrained["epsilon"].values()) == set(public["epsilon"].values()) == {0.0}
    assert private["epsilon"]["user-entity"] > 0
    assert bare["epsilon"] == {"user-entity": None, "user": None, "entity": None}
    assert [row["rounds"] for row in table["rows"]] == [0, 0, 3, 3]
    assert bare["perplexity"] < public["perplexity"]
    assert (private["private"], bare["private"]) == (True, False)
    assert stat.S_IMODE((out / "table.json").stat().st_mode) == 0o600, "it holds exact figures of a run without noise"


def test_a_variant_has_no_price_of_its_own(done, tmp_path):
    """Which of them is handed on depends on the results of all."""
    variant = done[0] / "private-epsilon-8"
    assert "Not the price of a chosen model: one variant of a comparison" in (variant / "privacy.md").read_text()
    with pytest.raises(InputError, match="is one variant of a comparison, whose choice has no price"):
        export(variant, tmp_path / "out")


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
    monkeypatch.setattr(pretrain, "pretrain_into", lambda *_, **__: pytest.fail("pre-trained again"))
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
    text = tmp_path / "out" / "corpora" / "text.json"
    text.rename(tmp_path / "text.json")
    with pytest.raises(InputError, match="is missing: put it back"):  # else variants might be of two texts
        compare(comparison, tmp_path / "out", workers=0, resume=True)
    (tmp_path / "text.json").rename(text)
    table = compare(comparison, tmp_path / "out", workers=0, resume=True)
    assert len(calls) == 3, "the first variant once, the second once more"
    assert len(table["rows"]) == 4


def test_a_variant_that_is_lost_is_not_trained_again(comparison, done, tmp_path):
    """Two models were released on the price of one."""
    out = tmp_path / "out"
    shutil.copytree(done[0], out)
    shutil.rmtree(next(path for path in out.iterdir() if (path / "ledger.jsonl").exists()))
    with pytest.raises(InputError, match="is missing, and what it released still counts: put it back"):
        compare(comparison, out, workers=0, resume=True)


def test_what_tells_of_trained_variants_is_not_done_without(comparison, done, tmp_path):
    """Emptied, or with ``started.json`` gone or shortened, a comparison trained again, or dropped rows at no price."""
    out, started = tmp_path / "out", tmp_path / "out" / "started.json"
    shutil.copytree(done[0], out)
    one, *_ = sorted(path.parent.name for path in out.glob("*/ledger.jsonl"))
    kept, known = started.read_bytes(), json.loads(started.read_text())
    for variants in (None, [], [name for name in known["variants"] if name != one]):
        started.unlink() if variants is None else started.write_text(json.dumps(known | {"variants": variants}))
        with pytest.raises(InputError, match=r"started\.json.*does not name .*, which was trained here: restore it"):
            compare(comparison, out, workers=0, resume=True)
    started.write_text(json.dumps(known | {"variants": ["../out"]}))
    with pytest.raises(InputError, match="the name of a folder here"):
        finished_runs(out)
    started.write_bytes(kept)
    for path in (out / one).iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    with pytest.raises(InputError, match=f"{one}.*is missing, and what it released still counts: put it back"):
        compare(comparison, out, workers=0, resume=True)


def test_variants_protect_the_categories_they_name(corpora, tmp_path):
    """One prepared corpus serves all; each model is bitwise the one of a corpus prepared with those categories alone."""
    privacy = {"test_noise_seed": 7, "entity_sampling_prob": 0.5}
    base = run_tree(
        corpora, privacy=privacy, pretrain=PRETRAIN | {"num_steps": 0}, training={"num_rounds": 2, "device": "cpu"}
    )
    chosen = {"everything": [], "persons": ["per"], "organisations": ["org"]}
    variants = {name: {"method": "uedp", "set": {"corpus.categories": names}} for name, names in chosen.items()}
    comparison = Comparison.load(written(tmp_path, {"base": base, "variants": variants}), [])
    compare(comparison, tmp_path / "out", workers=0)
    models = {name: parameters(tmp_path / "out" / name) for name in chosen}
    assert not any(torch.equal(models[one], models[other]) for one, other in itertools.combinations(models, 2))
    config = RunDir(tmp_path / "out" / "persons").load_config()
    prepare(dataclasses.replace(PRIVATE, categories=("person",)), tmp_path / "persons", num_shards=2)
    corpus = dataclasses.replace(config.corpus, categories=(), source=SourceConfig(path=str(tmp_path / "persons")))
    train(dataclasses.replace(config, corpus=corpus), tmp_path / "apart", workers=0)
    assert torch.equal(parameters(tmp_path / "apart"), models["persons"])
    lines = [(tmp_path / part / "privacy.md").read_text() for part in ("apart", "out/persons", "out/everything")]
    assert [text.split("categories: ")[1].split("\n")[0] for text in lines] == ["person.", "person.", "all found."]


def test_a_category_that_the_corpus_does_not_have_is_refused_before_any_training(corpora, tmp_path, monkeypatch):
    monkeypatch.setattr(pretrain, "pretrain_into", lambda *_, **__: pytest.fail("pre-trained first"))
    variants = {"ibans": {"method": "uedp", "set": {"corpus.categories": ["iban"]}}}
    text = [{"format": "synthetic", "num_users": 8, "part": "public"}]
    base = run_tree(corpora, pretrain={"text": text, "num_steps": 2})
    base["corpus"]["source"] = {"format": "synthetic", "num_users": 9}
    comparison, told = Comparison.load(written(tmp_path, {"base": base, "variants": variants}), []), []
    with pytest.raises(InputError, match=r"corpus\.categories = 'iban'"):
        compare(comparison, tmp_path / "out", workers=0, reporter=Told(say=told.append))
    assert f"{tmp_path / 'out' / 'corpora'} holds a copy of the private text" in told[-1]


@pytest.mark.parametrize("noise", ["calibrated", "none"])
@pytest.mark.parametrize(("part", "field"), [("private", "pretrain.text"), ("held_out", "corpus.evaluation")])
def test_public_text_is_compared_with_the_others_before_it_is_trained_on(
    corpora, tmp_path, monkeypatch, part, field, noise
):
    """Whether the base or a variant alone is to be private."""
    monkeypatch.setattr(pretrain, "pretrain_into", lambda *_, **__: pytest.fail("pre-trained first"))
    base = run_tree(corpora, pretrain={"text": [{"format": "synthetic", "num_users": 8, "part": part}], "num_steps": 2})
    base["privacy"] |= {"noise": noise, "noise_multiplier": None if noise == "none" else 1.0}
    noised = {"privacy.noise": "calibrated", "privacy.noise_multiplier": 1.0}
    variants = {"not private": {"method": "noiseless"}, "private": {"method": "uedp", "set": noised}}
    comparison = Comparison.load(written(tmp_path, {"base": base, "variants": variants}), [])
    with pytest.raises(InputError, match="of its running text with") as caught:
        compare(comparison, tmp_path / "out", workers=0)
    assert caught.value.field == field


def test_a_variant_refused_before_its_first_round_says_where_copies_of_the_text_stay(corpora, tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise InputError("model.warm_start", "warm", "its shapes differ")

    monkeypatch.setattr(worker, "make_model", refuse)
    base = run_tree(corpora, pretrain=PRETRAIN | {"num_steps": 0})
    base["corpus"]["source"] = {"format": "synthetic", "num_users": 9}
    comparison, told = Comparison.load(written(tmp_path, {"base": base, "variants": VARIANTS}), []), []
    with pytest.raises(InputError, match="its shapes differ"):
        compare(comparison, tmp_path / "out", workers=0, reporter=Told(say=told.append))
    folders = [line.split()[1] for line in told if "holds a copy of the private text" in line]
    assert folders == [str(tmp_path / "out" / name) for name in ("private-epsilon-8/private", "corpora")]


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
        ({"variants": {"a": {"method": ["uedp"]}}}, "variants.a.method"),
        ({"variants": {"a": {"method": "uedp", "set": [1]}}}, "variants.a.set"),
        (
            {"variants": {"a": {"method": "uedp", "set": {"corpus.source.categories": ["person"]}}}},
            "variants.a.set.corpus.source = .*shared with the base",
        ),
        (
            {
                "variants": {
                    "a": {
                        "method": "uedp",
                        "set": {"corpus": {"source": {"format": "synthetic"}, "declared_num_users": 9}},
                    }
                }
            },
            "variants.a.set.corpus.source",
        ),
        (
            {"variants": {"a": {"method": "uedp", "set": {"corpus.evaluation": None}}}},
            "variants.a.set.corpus.evaluation",
        ),
        ({"variants": {"a": {"method": "uedp", "set": {"vocabulary.max_size": 99}}}}, "variants.a.set.vocabulary"),
        ({"variants": {"a": {"method": "uedp", "set": {"pretrain.num_steps": 9}}}}, "variants.a.set.pretrain"),
        ({"variants": {"a": {"method": "uedp", "set": {"model.hidden_size": 16}}}}, "variants.a.set.model.hidden_size"),
        ({"variants": {"a": {"method": "uedp", "set": {"model.max_length": 9}}}}, "variants.a.set.model.max_length"),
        ({"variants": {"a": {"method": "uedp", "set": {"name": "b"}}}}, "variants.a.set.name"),
    ],
)
def test_a_bad_file_is_refused_before_any_work(corpora, tmp_path, change, message):
    path = written(tmp_path, {"base": run_tree(corpora, pretrain=PRETRAIN), "variants": VARIANTS, **change})
    with pytest.raises(InputError, match=message):
        Comparison.load(path, [])


def test_a_variant_without_a_gpu_is_refused_before_any_text_is_read(corpora, tmp_path):
    settings = {"training.device": "cuda"}
    tree = {"base": run_tree(corpora, pretrain=PRETRAIN), "variants": {"a": {"method": "uedp", "set": settings}}}
    with pytest.raises(InputError, match=r"variants\.a\.training\.device = 'cuda': no GPU is visible"):
        compare(Comparison.load(written(tmp_path, tree), []), tmp_path / "out", workers=0)
    assert not list((tmp_path / "out").glob("*"))


def test_the_same_setting_again_and_one_of_its_own_are_no_fault(corpora, tmp_path):
    own = {"vocabulary.max_size": run_tree(corpora)["vocabulary"]["max_size"], "corpus.declared_num_users": 50}
    path = written(tmp_path, {"base": run_tree(corpora), "variants": {"a": {"method": "uedp", "set": own}}})
    assert list(Comparison.load(path, []).variants) == ["a"]


def test_a_file_that_is_not_yaml_is_refused(tmp_path):
    (tmp_path / "compare.yaml").write_text("base: [")
    with pytest.raises(InputError, match="not YAML"):
        Comparison.load(tmp_path / "compare.yaml", [])


def test_algorithm_1_as_printed_runs_and_claims_nothing(corpora, tmp_path):
    pretrain = {**PRETRAIN, "num_steps": 1}
    base = run_tree(corpora, pretrain=pretrain, training={"num_rounds": 2, "device": "cpu"})
    caps = {"privacy.user_weight_cap": 1000, "privacy.entity_weight_cap": 3}
    path = written(tmp_path, {"base": base, "variants": {"As printed": {"method": "published_literal", "set": caps}}})
    row = compare(Comparison.load(path, []), tmp_path / "out", workers=0)["rows"][-1]
    assert (row["name"], row["rounds"], row["private"]) == ("As printed", 2, False)
    assert set(row["epsilon"].values()) == {None}
    run = RunDir(tmp_path / "out" / "as-printed")
    config, offsets = run.load_config(), open_corpus(corpora / "private").user_offsets
    assert (config.privacy.normalizer, config.training.local_update) == ("published", "local_sgd")
    largest = np.diff(offsets).max() / 1000  # Eq. 6: z (q_u |U| + 1) max(w_u)
    assert row["noise_multiplier"] == pytest.approx(2.5 * (0.05 * (len(offsets) - 1) + 1) * largest)
    assert "As published, not a guarantee" in run.statement.read_text()
    assert ledger_epsilon(run.ledger, delta=1e-5)["guarantee"] is False
