"""Configuration: what is refused, with which remedy, and that nothing is lost on the way to YAML and back."""

from __future__ import annotations

import ast
import itertools
import math
import pickle
import re
from pathlib import Path

import pytest
import yaml

import uedp_ray
from uedp_ray import methods
from uedp_ray.config import BoundsConfig, RunConfig, dump_config, from_dict, load_config, to_dict
from uedp_ray.errors import InputError

GOOD = {"corpus": {"declared_num_users": 100}}


def config(**overrides):
    return methods.overlay(from_dict(RunConfig, GOOD), {k.replace("__", "."): v for k, v in overrides.items()})


def test_round_trip_through_yaml(tmp_path):
    whole = config(privacy__delta=1e-6, training__adam_betas=[0.8, 0.9], model__lora_targets=["c_attn"])
    dump_config(whole, tmp_path / "run.yaml")
    assert load_config(tmp_path / "run.yaml") == whole
    assert set(yaml.safe_load((tmp_path / "run.yaml").read_text())) == set(to_dict(whole)), "the file is complete"


def test_a_key_given_twice_is_refused(tmp_path):
    (tmp_path / "run.yaml").write_text("privacy: {target_epsilon: 8}\nname: x\nprivacy: {target_epsilon: 1}\n")
    with pytest.raises(InputError, match=r"line 3: key 'privacy' is given twice"):
        load_config(tmp_path / "run.yaml")


def test_overrides_read_yaml_values_including_exponents_without_a_point(tmp_path):
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(GOOD))
    loaded = load_config(
        tmp_path / "run.yaml",
        ["privacy.delta=1e-6", "privacy.target_epsilon=4", "training.num_rounds=7", "model.trainable=lora"],
    )
    assert (loaded.privacy.delta, loaded.training.num_rounds, loaded.model.trainable) == (1e-6, 7, "lora")


@pytest.mark.parametrize(
    ("overrides", "field", "remedy"),
    [
        ({"privacy__colour": 1}, "privacy.colour", "unknown key; known: .*target_epsilon"),
        ({"privacy__epsilon": 3}, "privacy.epsilon", r"unknown key: did you mean target_epsilon\? Known: "),
        ({"privacy__clip-norm": 3}, "privacy.clip-norm", "did you mean l2_clip_norm or sentence_clip_norm"),
        ({"training__num_round": 3}, "training.num_round", r"did you mean num_rounds\?"),
        ({"privacy__user_sampling_prob": 1.5}, "privacy.user_sampling_prob", r"\[0, 1\]"),
        ({"privacy__user_sampling_prob": 1e-30}, "privacy.user_sampling_prob", "draws nobody: give 0, or 1e-12"),
        ({"privacy__entity_sampling_prob": -0.1}, "privacy.entity_sampling_prob", r"\[0, 1\]"),
        ({"privacy__noise_multiplier": 1.0}, "privacy.target_epsilon", "exactly one"),
        ({"privacy__target_epsilon": None}, "privacy.target_epsilon", "exactly one"),
        ({"privacy__target_epsilon": 0}, "privacy.target_epsilon", "above 0"),
        ({"privacy__delta": 0}, "privacy.delta", "strictly between"),
        ({"privacy__noise": "none"}, "privacy.noise", "drop target_epsilon"),
        ({"privacy__clip": False}, "privacy.clip", "protects nothing"),
        ({"privacy__noise": "published"}, "privacy.noise_multiplier", "give z"),
        ({"privacy__normalizer": "published"}, "privacy.normalizer", "private data"),
        ({"corpus__declared_num_users": None}, "corpus.declared_num_users", "declare"),
        ({"corpus__declared_num_users": 2**62}, "corpus.declared_num_users", "10,000,000,000 or fewer"),
        ({"bounds__mode": "none"}, "bounds.mode", "declared or enforced"),
        ({"privacy__sentence_clip_norm": None}, "privacy.sentence_clip_norm", "reweight"),
        ({"training__local_update": "local_sgd"}, "bounds.holder_bound", "truncate"),
        (
            {"training__local_update": "local_sgd", "bounds": {"holder_bound": "truncate", "entity_bound": "truncate"}},
            "privacy.sentence_clip_norm",
            "local_sgd cannot use it .*: set it to null",  # it has a default: there may be none to drop
        ),
        ({"training__num_rounds": 0}, "training.num_rounds", "1 or more"),
        ({"training__num_rounds": "ten"}, "training.num_rounds", "expected a whole number"),
        ({"corpus__declared_num_users": "1,000"}, "corpus.declared_num_users", "in digits alone, such as 1000"),
        ({"model__tie_embeddings": "no!"}, "model.tie_embeddings", "expected true or false"),
        ({"name": 2024}, "name", "expected text: put it in quotes"),
        ({"training__server_optimizer": "no such optimizer"}, "training.server_optimizer", "adam"),
        ({"model__hidden_size": 10}, "model.hidden_size", "divisible"),
        ({"model__architecture": "pretrained"}, "model.path", "model folder"),
        ({"vocabulary__kind": "noisy-threshold"}, "vocabulary.noise_multiplier", "above 0"),
        (
            {"vocabulary": {"kind": "noisy-threshold", "noise_multiplier": 1.0, "threshold_delta": 1e-5}},
            "vocabulary.threshold_delta",
            "part of privacy.delta",
        ),
        (
            {
                "corpus__source": {"path": "notes", "format": "text"},
                "pretrain__text": [{"path": "./notes", "format": "text"}],
            },
            "pretrain.text",
            "private text itself",
        ),
        ({"training__adam_betas": [0.9]}, "training.adam_betas", "2 values"),
        ({"training__adam_betas": [0.9, 1.0]}, "training.adam_betas", "below 1"),
        ({"training__seed": 10**20}, "training.seed", "below"),
        ({"privacy__test_noise_seed": -1}, "privacy.test_noise_seed", "0 or more"),
        ({"corpus__source": {"format": "conll"}}, "corpus.source.path", "file or folder"),
        ({"corpus__source": {"format": "csv", "path": "x"}}, "corpus.source.format", "conll"),
        ({"corpus__source": {"format": "synthetic", "seed": -1}}, "corpus.source.seed", "0 or more"),
        ({"pretrain__text": [{"format": "synthetic", "part": "x"}]}, "pretrain.text[0].part", "held_out"),
        ({"bounds__max_holders": 101}, "bounds.max_holders", "declared_num_users = 100"),
        ({"model__lora_alpha": 0}, "model.lora_alpha", "above 0"),
        ({"privacy__delta": float("nan")}, "privacy.delta", "finite number"),
        ({"training__server_learning_rate": 10**400}, "training.server_learning_rate", "expected a number"),
        ({"training__num_rounds": 10**5000}, "training.num_rounds", "below"),
        ({"model__warm_start": "a\0b"}, "model.warm_start", "printable"),
        ({"model__warm_start": "a\ud800b"}, "model.warm_start", "printable"),
        ({"name": "../../etc"}, "name", "under runs/"),
        ({"corpus": None}, "corpus", "mapping"),
        ({"model__lora_targets": "c_attn"}, "model.lora_targets", "list"),
    ],
)
def test_bad_settings_name_the_field_and_the_remedy(overrides, field, remedy):
    with pytest.raises(InputError, match=remedy) as caught:
        config(**overrides)
    assert field in caught.value.field


def test_bad_files(tmp_path):
    with pytest.raises(InputError, match="no such file"):
        load_config(tmp_path / "none.yaml")
    (tmp_path / "bad.yaml").write_text("a: [")
    with pytest.raises(InputError, match="not YAML"):
        load_config(tmp_path / "bad.yaml")
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(GOOD))
    with pytest.raises(InputError, match=r"key\.subkey=value"):
        load_config(tmp_path / "run.yaml", ["privacy.delta"])
    with pytest.raises(InputError, match="not YAML"):
        load_config(tmp_path / "run.yaml", ["privacy.delta=["])


def test_the_errors_are_one_line_however_large_the_value_is():
    deep: list = []
    for _ in range(100_000):
        deep = [deep]
    values = ["x\ny" * 10**6, 10**5000, deep, {"k" * 10**6: [[[[["v"]]]]]}, b"\0" * 10**6, {1: 2, "a": 3}, "\ud800"]
    for value in values:
        line = str(InputError("a.b\n" * 1000, value, "use\r4"))
        assert line.isprintable()
        assert len(line) < 1000
        line.encode()


def test_the_errors_are_one_line_and_survive_pickling():
    error = InputError("a.b", 3, "use 4")
    again = pickle.loads(pickle.dumps(error))
    assert str(again) == str(error) == "a.b = 3: use 4"


def test_digest_covers_what_matters_and_not_the_machine():
    base = config()
    assert config(privacy__delta=1e-6).digest() != base.digest()
    assert config(training__seed=5).digest() != base.digest()
    for key, value in {"training__num_workers": 4, "training__device": "cpu", "name": "other"}.items():
        assert config(**{key: value}).digest() == base.digest()


def test_passes_set_the_rounds_whatever_changes_later():
    quarter = config(training__passes=10.0, privacy__user_sampling_prob=0.25)
    assert quarter.training.num_rounds == 40
    assert from_dict(RunConfig, to_dict(quarter)) == quarter
    assert methods.overlay(quarter, {"privacy.user_sampling_prob": 1.0}).training.num_rounds == 10
    assert methods.overlay(quarter, {"training.passes": 0.01}).training.num_rounds == 1
    assert methods.overlay(quarter, {"training.passes": None}).training.num_rounds == 40
    assert methods.overlay(quarter, {"training.passes": None, "training.num_rounds": 7}).training.num_rounds == 7
    with pytest.raises(InputError, match=r"training\.num_rounds = 7: training\.passes = 10 decides them: give passes"):
        methods.overlay(quarter, {"training.num_rounds": 7})  # a reference of 5 epochs had the base's 6, without a word
    for passes, share in ((0.0, 0.5), (math.nan, 0.5), (math.inf, 0.5), (1e6, 1e-12), (1.0, 0.0)):
        with pytest.raises(InputError, match=r"training\.passes"):
            config(training__passes=passes, privacy__user_sampling_prob=share)


OF_EARLIER_VERSIONS = "b5f4200f4dd624b0fa15f050532624e1ccdd4d45313f0c37e7e80040160cb239"
"""Never to change: runs and sweeps that earlier versions began could not go on. A new setting has ``metadata=ADDED``."""


def test_what_an_earlier_version_called_otherwise_is_read_and_has_the_digest_that_it_had():
    tree = to_dict(config(privacy__unit="user"))
    tree["privacy"]["protect"] = tree["privacy"].pop("unit")
    earlier = from_dict(RunConfig, tree)
    assert earlier == config(privacy__unit="user")
    assert earlier.digest() == OF_EARLIER_VERSIONS
    with pytest.raises(InputError, match=r"privacy\.protect = .user.: is now called unit, which is also given"):
        from_dict(RunConfig, {"privacy": {"protect": "user", "unit": "user"}})


def test_a_key_that_is_no_setting_is_named_with_its_file(tmp_path):
    tree, path = to_dict(config()), tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(tree))
    with pytest.raises(InputError, match=r"corpus\.transform\.word = 3: unknown key") as told:
        load_config(path, ["corpus.transform.word=3"])
    assert str(path) not in str(told.value)
    path.write_text(yaml.safe_dump(tree | {"corpus": tree["corpus"] | {"transform": {"word": 4}}}))
    with pytest.raises(InputError, match=rf"transform\.word = 4: unknown key.* \(in {re.escape(str(path))}\)$"):
        load_config(path)


def test_entity_clip_norm_is_m_sentences_or_the_diameter():
    small = config(privacy__sentence_clip_norm=0.1, bounds__max_sentences_per_entity=3)
    assert small.entity_clip_norm == pytest.approx(0.3)
    assert small.extended_clip_norm == pytest.approx(0.1)
    large = config(privacy__sentence_clip_norm=None, bounds__holder_bound="truncate", bounds__entity_bound="truncate")
    assert large.entity_clip_norm == large.extended_clip_norm == 2.0


@pytest.mark.parametrize("method", sorted(methods.METHODS))
def test_every_method_applies(method):
    settings = {
        "published": {"privacy.noise_multiplier": 2.0},
        "gaudp_as_published": {"representation.num_records": 1000},
    }
    of_sentences = (
        {"task__kind": "classify", "task__labels": ["a", "b"]} if method.startswith(("dpnr", "gaudp")) else {}
    )
    applied = methods.apply(config(**of_sentences), method, settings.get(method))
    assert from_dict(RunConfig, to_dict(applied)) == applied


def test_unknown_method():
    with pytest.raises(InputError, match="uedp_fe"):
        methods.apply(config(), "magic")


def test_bounds_are_positive():
    with pytest.raises(InputError, match="max_holders"):
        BoundsConfig(max_holders=0)


def test_a_setting_is_kept_as_written(monkeypatch, tmp_path):
    monkeypatch.setenv("UEDP_DATA", "/home/ann/secret-project")
    whole = config(corpus__source={"format": "conll", "path": "$UEDP_DATA/eng.train"})
    dump_config(whole, tmp_path / "run.yaml")
    assert load_config(tmp_path / "run.yaml").corpus.source.path == "$UEDP_DATA/eng.train"
    assert "secret-project" not in (tmp_path / "run.yaml").read_text()
    digest = whole.digest()
    monkeypatch.setenv("UEDP_DATA", "/mnt/elsewhere")
    assert load_config(tmp_path / "run.yaml").digest() == digest, "another machine may have the text elsewhere"


def test_a_pretrained_model_keeps_the_tokenizer_it_came_with_unless_told_otherwise():
    own = config(model={"architecture": "pretrained", "path": "some/model"})
    assert (own.words.kind, own.words.path) == ("tokenizer", "some/model")
    assert config().words.kind == "public-words"
    for kind in ("public-words", "public-subwords"):
        words = {"model": {"architecture": "pretrained", "path": "some/model"}, "vocabulary__kind": kind}
        with pytest.raises(InputError, match=rf"vocabulary.kind = '{kind}'.*vocabulary.replace_embeddings: true"):
            config(**words)
        assert config(**words, vocabulary__replace_embeddings=True).words.kind == kind
    with pytest.raises(InputError, match=r"vocabulary.replace_embeddings = True: is for a pretrained model"):
        config(vocabulary__replace_embeddings=True)
    assert methods.overlay(config(), {"model": {"architecture": "pretrained", "path": "m"}}).words.path == "m"


@pytest.mark.parametrize("path", ["config/sections.py", "config/texts.py", "config/run.py", "search/sweep_config.py"])
def test_every_setting_has_a_docstring(path):
    """As the modules say; the reference is built from them."""
    for section in ast.parse((Path(uedp_ray.__file__).parent / path).read_text()).body:
        body = section.body if isinstance(section, ast.ClassDef) else []
        for field, after in itertools.pairwise([*body, ast.Pass()]):
            if isinstance(field, ast.AnnAssign):
                said = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
                assert said, f"{section.name}.{field.target.id}"


@pytest.mark.parametrize(
    ("section", "key", "name"),
    [
        ("privacy", "unit", "user-entity"),
        ("corpus", "evaluation_basis", "held_out_users"),
        ("model", "architecture", "awd_lstm"),
        ("vocabulary", "kind", "public-words"),
    ],
)
def test_a_choice_may_be_written_with_dashes_or_underscores(section, key, name):
    for spelled in (name.replace("-", "_"), name.replace("_", "-")):
        tree = {"privacy": {"target_epsilon": 8}, **GOOD}
        found = from_dict(RunConfig, {**tree, section: {**tree.get(section, {}), key: spelled}})
        assert getattr(getattr(found, section), key) == name


def test_public_text_alone_is_no_public_start():
    """A run starts from what it names. A sweep makes a model of the text first, and names it in each trial."""
    tree = {"corpus": {"declared_num_users": 9}, "pretrain": {"text": [{"format": "text", "path": "public.txt"}]}}
    tree["privacy"] = {"noise_multiplier": 1.0}
    base = from_dict(RunConfig, tree)
    named = from_dict(RunConfig, tree | {"model": {"warm_start": "public/model"}})
    assert (base.starts_public, named.starts_public) == (False, True)
