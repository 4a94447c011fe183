"""Files to start from: each is read by its command as it is, and names what only the owner knows."""

from __future__ import annotations

import dataclasses
import math

import pytest
import yaml

from uedp_ray.config import RunConfig, from_dict, load_config
from uedp_ray.config.starter import Answers, starter
from uedp_ray.errors import InputError
from uedp_ray.search.comparison import Comparison
from uedp_ray.search.planner import plan
from uedp_ray.search.proxies import searched_bases
from uedp_ray.search.sweep_config import load_sweep_config

OWN = {"text": "notes.jsonl", "evaluation": "held-out.jsonl", "public": "public.txt", "users": 150}
READ = {"train": load_config, "sweep": load_sweep_config, "compare": Comparison.load}


@pytest.mark.slow
@pytest.mark.parametrize("kind", READ)
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"users": 50_000, "epsilon": 0.5},
        {"users": 2, "epsilon": 8.123456789012345},
        {"public": "", "model": "gpt2"},
        {"text": 'my "notes": $HOME/ñ #1.parquet', "evaluation": "other.txt"},
    ],
    ids=["plain", "many users", "few users", "pretrained", "odd names"],
)
def test_each_is_read_and_within_its_budget(tmp_path, kind, changes):
    answers = Answers(**OWN | changes)
    (tmp_path / "file.yaml").write_text(starter(kind, answers), encoding="utf-8")
    found = READ[kind](tmp_path / "file.yaml", [])
    run = found if isinstance(found, RunConfig) else found.base
    assert run.corpus.source.path == answers.text
    assert run.corpus.declared_num_users == answers.users
    names_users = answers.evaluation.endswith(".jsonl")
    assert run.corpus.evaluation_basis == ("held_out_users" if names_users else "public")
    assert run.words.kind == ("tokenizer" if answers.model else "public-subwords")
    assert run.privacy.delta * answers.users <= 0.1
    budget = run.privacy if kind != "sweep" else found.budget
    assert kind == "compare" or budget.target_epsilon == answers.epsilon, "to the last digit"
    assert run.training.passes == 10.0
    if kind != "compare" and (not changes or "users" in changes):  # the others differ in no figure
        planned = plan(found, trials=2)
        assert planned["target_epsilon"] == answers.epsilon
        assert not any(math.isinf(row["run_epsilon"]) for row in planned["rules"])
        assert not any("is likely to train a better model" in said for said in planned["warnings"])


@pytest.mark.slow
@pytest.mark.parametrize("users", [50, 100, 250, 500])
def test_plan_has_nothing_to_say_of_how_a_starter_draws(tmp_path, monkeypatch, users):
    for slow in ("_rules", "_binds", "_bounds"):
        monkeypatch.setattr(f"uedp_ray.search.planner.{slow}", lambda asked: [])
    (tmp_path / "run.yaml").write_text(starter("train", Answers(**OWN | {"users": users})), encoding="utf-8")
    config = load_config(tmp_path / "run.yaml")
    planned = plan(config, trials=2)
    assert not planned["warnings"]
    assert (planned["choice"]["rounds"], planned["choice"]["asked"]) == (config.training.num_rounds, True)
    assert config.training.num_rounds >= 10 * config.training.evaluate_every
    assert config.training.evaluate_every % config.training.checkpoint_every == 0
    assert config.corpus.declared_num_tokens == users * 15 * 15


def test_a_sweep_with_proxies_searches_on_them_cut_as_the_private_text_is(tmp_path):
    sizes = {"users": 900, "sentences_per_user": 12, "words_per_sentence": 18}
    answers = Answers(**OWN | sizes | {"proxies": ("plays.txt", "contracts.jsonl")})
    (tmp_path / "sweep.yaml").write_text(starter("sweep", answers), encoding="utf-8")
    sweep = load_sweep_config(tmp_path / "sweep.yaml")
    assert (sweep.search.rule, sweep.proxy_names) == ("public", ("proxy1", "proxy2"))
    assert sweep.first_points, "the first trial has the base's own settings"
    for base, path, kind in zip(searched_bases(sweep).values(), answers.proxies, ("text", "jsonl"), strict=True):
        source, held_out = base.corpus.source, base.corpus.evaluation
        assert (source.path, source.read_as, source.num_users, source.sentences_per_user) == (path, kind, 900, 12)
        assert source.min_words < 18 < source.max_words
        assert held_out == dataclasses.replace(source, num_users=180, skip_users=900, detector=held_out.detector)
        assert base.corpus.evaluation_basis == "public"


@pytest.mark.parametrize(
    ("kind", "changes", "remedy"),
    [
        ("train", {}, "belongs to a sweep"),
        ("sweep", {"proxies": ("public.txt",)}, "named for something else"),
        ("sweep", {"proxies": ("x/../public.txt",)}, "named for something else"),
        ("sweep", {"proxies": ("plays.txt", "books.txt", "./plays.txt")}, "named twice"),
        ("sweep", {"proxies": ("plays.pdf",)}, "does not exist: name a file of"),
        ("sweep", {"proxies": ("no\udcff.txt",)}, "printable UTF-8"),
    ],
)
def test_what_is_no_proxy_is_refused(kind, changes, remedy):
    with pytest.raises(InputError, match=remedy) as caught:
        starter(kind, Answers(**OWN | {"proxies": ("plays.txt",)} | changes))
    assert caught.value.field == "proxy"


@pytest.mark.parametrize("flag", ["evaluation", "public", "proxies"])
def test_a_copy_of_the_private_text_is_refused_where_both_are_here(tmp_path, flag):
    """It was accepted, and the command that the file is for refused it after it had read both."""
    for name, text in (("notes", "a"), ("copy", "a"), ("other", "b")):
        (tmp_path / f"{name}.jsonl").write_text(f'{{"user": "u", "text": "{text}"}}')
    own, copy, other = (str(tmp_path / f"{name}.jsonl") for name in ("notes", "copy", "other"))
    asked = {"text": own, flag: (copy,) if flag == "proxies" else copy}
    with pytest.raises(InputError, match=r"private text|or a copy of it") as caught:
        starter("sweep", Answers(**OWN | asked))
    assert caught.value.value == copy
    assert starter("sweep", Answers(**OWN | asked | {flag: (other,) if flag == "proxies" else other}))


def test_the_file_says_how_its_lengths_go_together():
    """96 tokens stood beside sentences of up to 128 words, without a word on what becomes of the rest."""
    written = starter("train", Answers(**OWN))
    assert "beyond some 48 words the rest of a sentence is not used" in written, written
    assert "max_length: 96" in written


def test_a_prepared_folder_is_named_as_one(tmp_path):
    (tmp_path / "corpora").mkdir()
    tree = yaml.safe_load(starter("train", Answers(**OWN | {"text": str(tmp_path / "corpora")})))
    assert from_dict(RunConfig, tree).corpus.source.format == "prepared"


@pytest.mark.parametrize(
    ("changes", "field", "remedy"),
    [
        ({"text": "notes.csv"}, "text", "does not exist: name a file of .*or a prepared folder"),
        ({"text": __file__}, "text", "is not a file of .*convert it"),
        ({"text": "notes.txt"}, "text", "names no users"),
        ({"evaluation": "missing/folder"}, "evaluation", "does not exist"),
        ({"users": 0}, "users", "1 or more"),
        ({"users": 10**400}, "users", "or fewer"),
        ({"epsilon": 0.0}, "epsilon", "above 0"),
        ({"epsilon": math.inf}, "epsilon", "finite"),
        ({"text": "no\udcfftes.jsonl"}, "text", "printable UTF-8"),
        ({"model": "a\nb"}, "model", "printable UTF-8"),
        ({"public": ""}, "public", "or a pretrained model"),
        ({"model": "gpt2"}, "public", "one of two: public text, .* or a pretrained model"),
        ({"evaluation": "./notes.jsonl"}, "evaluation", "is the private text"),
        ({"public": "x/../notes.jsonl"}, "public", "is the private text"),
        ({"public": "x/../held-out.jsonl"}, "evaluation", "is the public text"),
    ],
)
def test_what_cannot_be_a_file_is_refused(changes, field, remedy):
    with pytest.raises(InputError, match=remedy) as caught:
        starter("train", Answers(**OWN | changes))
    assert caught.value.field == field
