"""privacy.md says what a reader needs in order to check a run, and says NOT PRIVATE where nothing holds."""

from __future__ import annotations

import dataclasses
import re
import stat

import pytest

from tests.training.runs import TEST_NOISE, TREE, run_config
from tests.updates.tiny import tiny_config
from uedp_ray.answers import ledger_epsilon
from uedp_ray.config import load_config
from uedp_ray.config.choices import KEEPING_USERS_APART
from uedp_ray.plan import Plan, epsilons
from uedp_ray.privacy.ledger import read_ledger
from uedp_ray.privacy.statement import CHECKED, show_delta, show_epsilon
from uedp_ray.training.host import train
from uedp_ray.training.privacy_page import statement


def table(text):
    """Accountant -> the cells of its row."""
    rows = [re.split(r"\s*\|\s*", line.strip("| \n")) for line in text.splitlines() if line.startswith("| ")]
    return {row[0]: row[1:] for row in rows}


def test_it_states_unit_relation_delta_and_epsilon_of_every_unit(private_run):
    text = (private_run.out / "privacy.md").read_text()
    rows = table(text)
    for name, value in private_run.result["epsilon"].items():
        unit, shown, delta, guarantee = rows[name]
        assert 0 <= float(shown) - value < 0.001, "rounded up: what is printed bounds too"
        assert (delta, guarantee) == ("0.0001", "yes")
        assert unit.startswith({"user-entity": "one user (all", "user": "one user:", "entity": "one entity:"}[name])
    assert set(rows) == {"figure", *private_run.result["epsilon"]}, "no figure that bounds nothing stands beside these"
    for expected in (
        "zero-out (fixed graph)",
        CHECKED,
        "Poisson",
        "users 0.3",
        "rule `all`",
        "global draw",
        "standard deviation 1 ",
        "noise multiplier 1)",
        "user's update 1;",
        "sentence's gradient 0.1",
        "users that hold one entity: at most 3",
        "detector missed",
        "Rounds: 5 of 5 planned.",
        "text of users whom its owner declares to be outside the protected set. That text is not protected",
        "## Not covered",
        "what a round released lies on a grid that the data do\n  not change",
        "the noise itself is taken as exactly Gaussian",
    ):
        assert expected in text, expected
    assert "NOT PRIVATE" not in text


def test_the_ledger_alone_gives_the_same_figures(private_run, tmp_path):
    ledger = tmp_path / "copied.jsonl"
    ledger.write_bytes((private_run.out / "ledger.jsonl").read_bytes())
    for name, value in private_run.result["epsilon"].items():
        answer = ledger_epsilon(ledger, delta=1e-4, unit=name)
        assert answer["epsilon"] == pytest.approx(value, rel=1e-12)
        assert (answer["rounds"], answer["guarantee"]) == (5, True)


def test_the_command_it_names_uses_the_runs_own_delta(private_run):
    text = (private_run.out / "privacy.md").read_text()
    assert "epsilon --ledger ledger.jsonl --delta 0.0001" in text


@pytest.mark.parametrize(
    ("privacy", "bounds", "claim"),
    [
        ({**TREE["privacy"], **TEST_NOISE}, {}, "NOT PRIVATE: sampling and noise come from a fixed test seed"),
        ({"noise": "none", "noise_multiplier": None}, {}, "NOT PRIVATE: no noise was added"),
        (
            {"noise": "published", "noise_multiplier": 1.0, "normalizer": "published", "sentence_clip_norm": None},
            {"mode": "none"},
            "As published, not a guarantee",
        ),
    ],
    ids=["test-noise", "no-noise", "published"],
)
def test_runs_that_claim_nothing_say_so(corpora, tmp_path, privacy, bounds, claim):
    config = run_config(corpora, privacy=privacy, bounds=bounds, training={"num_rounds": 2})
    result = train(config, tmp_path / "run", workers=0)
    text = (tmp_path / "run" / "privacy.md").read_text()
    assert text.index(claim) < text.index("| figure"), "before any figure"
    assert result["epsilon"] == {"user-entity": None, "user": None, "entity": None}
    assert result["private"] is False
    rows = table(text)
    for name in result["epsilon"]:
        assert rows[name][1::2] == ["no guarantee", "none"]
    answer = ledger_epsilon(tmp_path / "run" / "ledger.jsonl", delta=1e-4)
    assert answer["guarantee"] is False
    without = privacy["noise"] == "none" if "noise" in privacy else False
    for words in (
        "The guarantee",
        "is stated here",
        "amplification",
        "protected sentence by sentence",
        "both directions",
    ):
        assert not (without and words in text), "there is none"
    assert ("no noise" in answer["text"], answer["sampling"]) == (without, "none" if without else "poisson")
    assert stat.S_IMODE((tmp_path / "run").stat().st_mode) == 0o700, "its model is as private as the text"


def test_replays_are_stated(private_run):
    assert "repeated" not in (private_run.out / "privacy.md").read_text()  # test_resume.py has the other half


def test_what_ended_early_what_was_scored_and_where_files_lie_are_said_as_they_are(private_run):
    config = load_config(private_run.out / "config.yaml")
    ledger = read_ledger(private_run.out / "ledger.jsonl")
    planned = dataclasses.replace(config, training=dataclasses.replace(config.training, num_rounds=9))
    text = statement(
        Plan.of(planned), ledger, {}, rounds=5, detectors=["list:/home/ann/names.txt", "spacy:/home/ann/m", "spacy:en"]
    )
    assert "Rounds: 5 of 9 planned. **It ended before its plan**: what was" in text
    assert "found by: list:not-published, spacy:not-published, spacy:en;" in text
    assert "names no users: one user is a document." in statement(Plan.of(planned), ledger, {}, numbered="a document")
    assert "names no users" not in text
    unscored = dataclasses.replace(config, corpus=dataclasses.replace(config.corpus, evaluation=None))
    assert "No perplexity is computed." in statement(Plan.of(unscored), ledger, {})
    public = dataclasses.replace(config, corpus=dataclasses.replace(config.corpus, evaluation_basis="public"))
    compared = {"users": True, "text": False}
    assert "computed on text that its owner declares public." in statement(
        Plan.of(public), ledger, {}, compared=compared
    )


def test_declared_bounds_are_called_declared(corpora, tmp_path):
    bounds = {"mode": "declared", "max_holders": 30, "max_sentences_per_entity": 30}
    privacy = {**TREE["privacy"], "sentence_clip_norm": 0.01}
    train(run_config(corpora, bounds=bounds, privacy=privacy, training={"num_rounds": 1}), tmp_path / "r", workers=0)
    text = (tmp_path / "r" / "privacy.md").read_text()
    assert "zero-out (bounds declared)" in text
    assert "Contribution bounds, declared" in text


def test_small_epsilons_are_shown_to_three_places_and_infinity_as_none():
    assert show_epsilon(1.23456) == "1.235"
    assert show_epsilon(float("inf")) == show_epsilon(None) == "no guarantee"
    assert int(show_epsilon(1e308)) >= 1e308


def test_delta_is_not_rounded_to_one_at_which_epsilon_is_more(private_run):
    assert [show_delta(delta) for delta in (1e-5, 1e-4, 0.5)] == ["1e-05", "0.0001", "0.5"]
    found = ledger_epsilon(private_run.out / "ledger.jsonl", delta=1.23456499e-5)
    assert "at delta = 1.23456499e-05 (" in found["text"]


def of_rounds(config, charged, *, vocabularies=1):
    """The statement of a run that was charged for so many rounds, the last of them as often as it takes."""
    plan = Plan.of(config)
    header = plan.header()
    events = [{"kind": "open", "header": header}]
    events += header["plan"]["releases"] * vocabularies
    last = config.training.num_rounds - 1
    events += [plan.event(round_index=min(i, last), attempt=max(0, i - last)) for i in range(charged)]
    return statement(plan, events, epsilons(plan, events), rounds=config.training.num_rounds)


def test_epsilon_is_said_to_be_of_the_rounds_that_it_is_of():
    config = tiny_config(privacy={"test_noise_seed": None}, training={"num_rounds": 20})
    assert "- ε is that of the 20 rounds planned before the first, however many of them were played.\n" in of_rounds(
        config, 20
    )
    assert "however many of them were played, and of 3 that were charged beyond them: 23 in all." in of_rounds(
        config, 23
    )


def test_no_bound_is_stated_that_nothing_enforces():
    privacy = {"unit": "user", "test_noise_seed": None}
    unbounded = of_rounds(tiny_config(bounds={"mode": "none"}, privacy=privacy), 3)
    assert "a sentence's gradient" in unbounded
    assert "one entity moves" not in unbounded
    assert "one entity moves" in of_rounds(tiny_config(privacy=privacy), 3)


def test_code_of_others_is_named_as_an_assumption(monkeypatch):
    """The page of a run with an update that somebody else wrote was that of one with ours."""
    config = tiny_config(privacy={"test_noise_seed": None})
    assert "Assumed" not in of_rounds(config, 3)
    assert "| yes |" in of_rounds(config, 3)
    monkeypatch.setattr("uedp_ray.training.guarantees.KEEPING_USERS_APART", frozenset({"next_word"}))
    page = of_rounds(config, 3)
    assert "**Assumed, not proved, of `training.local_update: gradient`: that it keeps nothing" in page
    assert "a sentence's loss, and its gradient, are its own" in page
    assert "| if what is assumed below holds |" in page
    assert "| yes |" not in page
    monkeypatch.setattr("uedp_ray.training.guarantees.KEEPING_USERS_APART", frozenset())
    assert "of `training.local_update: gradient` and `task.kind: next_word`: " in of_rounds(config, 3)
    monkeypatch.setattr("uedp_ray.training.guarantees.PROVED_ARCHITECTURES", frozenset())
    assert "`task.kind: next_word` and `model.architecture: gpt2`: that it keeps nothing" in of_rounds(config, 3)
    updates, tasks = {"gradient", "local_sgd", "local_dp_sgd"}, {"next_word", "classify", "tag_words", "tag_entities"}
    assert updates | tasks == KEEPING_USERS_APART, "docs/accounting.md, Proof, 2"


def test_a_transform_of_others_is_named_as_an_assumption(monkeypatch):
    """The page of a run whose text somebody else's code had made was that of one with ours."""
    for transform, named in (
        ({"kind": "mask"}, "kind: mask"),
        ({"kind": "replace_words", "vectors": "toy"}, "mechanism: custext"),
    ):
        config = tiny_config(privacy={"test_noise_seed": None}, corpus={"transform": transform})
        monkeypatch.setattr("uedp_ray.training.privacy_page.guarantees", lambda *_: [])
        assert "Assumed" not in of_rounds(config, 3)
        proved = {"kind": "PROVED_TRANSFORMS", "mechanism": "PROVED_WORD_MECHANISMS"}[named.partition(":")[0]]
        monkeypatch.setattr(f"uedp_ray.training.guarantees.{proved}", frozenset())
        page = of_rounds(config, 3)
        assert (
            f"**Assumed, not proved, of `corpus.transform.{named}`: that what becomes of a sentence follows from"
            in page
        )
        assert "if what is assumed below holds" in page
        monkeypatch.undo()


def test_sentences_without_entities_are_said_to_be_drawn_as_they_are():
    found = of_rounds(tiny_config(privacy={"estimator": "f_e", "test_noise_seed": None}), 3)
    assert "sentences without entities 0;" in found
