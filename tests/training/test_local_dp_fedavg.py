"""Federated averaging in which each user noises its own steps: a sentence is hidden from the server, and nobody else is."""

from __future__ import annotations

import pytest

from tests.training.runs import NUM_USERS, TEST_NOISE, crash, events, run_config
from uedp_ray import export, methods
from uedp_ray.answers import ledger_epsilon
from uedp_ray.errors import InputError
from uedp_ray.privacy.local import local_dp_sgd
from uedp_ray.privacy.mechanisms.local_round import LocalRound
from uedp_ray.training.host import train
from uedp_ray.units import UNITS

SETTINGS = {"training.num_rounds": 3, "training.checkpoint_every": 2, "training.local_sampling_prob": 0.5}
SETTINGS |= {"training.local_learning_rate": 0.3, "training.local_batch_size": 2}
FEW = {
    "bounds.mode": "enforced",
    "bounds.max_sentences_per_user": 2,
    "bounds.max_holders": NUM_USERS,
    "bounds.holder_bound": "truncate",
    "bounds.entity_bound": "truncate",
}
"""Of each user."""
ROUND = LocalRound(noise_multiplier=1.0, sampling_prob=0.5, steps=2)


def config_of(corpora, **settings):
    return methods.apply(run_config(corpora), "local_dp_fedavg", {**SETTINGS, **FEW, **settings})


@pytest.fixture(scope="module")
def done(corpora, tmp_path_factory):
    out = tmp_path_factory.mktemp("local") / "run"
    return out, train(config_of(corpora), out, workers=0)


def test_it_promises_one_sentence_against_the_server_and_nothing_of_users_and_entities(done):
    out, result = done
    assert result["private"] is False
    assert set(result["epsilon"].values()) == {None}
    (found,) = result["guarantees"]
    assert found == local_dp_sgd(ROUND, rounds=3, delta=1e-4).to_dict()
    assert (found["unit"], found["trust"], found["sound"]) == ("record", "local", True)
    assert [event["noise_multiplier"] for event in events(out, "local_round")] == [1.0] * 3
    assert not events(out)
    for unit in UNITS:
        answer = ledger_epsilon(out / "ledger.jsonl", delta=1e-4, unit=unit)
        assert (answer["epsilon"], answer["guarantee"], answer["rounds"]) == (float("inf"), False, 3)
    with pytest.raises(InputError, match="NOT PRIVATE"):
        export(out, out.parent / "export")


def test_the_statement_says_both(done):
    text = (done[0] / "privacy.md").read_text()
    assert "**NOT PRIVATE for users and entities" in text
    assert f"ε = {done[1]['guarantees'][0]['epsilon']:.2f}"[:-1] in text
    assert "trust: local" in text
    assert "Releases charged, by kind: local_round 3." in text
    assert text.count("| none |") == 3


def test_a_round_that_is_played_again_is_noised_anew_and_takes_the_budget_of_another(corpora, done, tmp_path):
    """The figure follows from public settings, and does not tell how much anybody has."""
    config, out = config_of(corpora), tmp_path / "run"
    crash(config, out, charges=2)
    result = train(config, out, workers=0, resume=True)
    charged = events(out, "local_round")
    assert [(event["round"], event["attempt"]) for event in charged] == [(0, 0), (1, 0), (0, 1)]
    assert (result["rounds"], result["planned_rounds"]) == (1, 3)
    assert result["guarantees"] == done[1]["guarantees"], "of as many rounds as were planned, though one was played"
    assert "repeated after a crash, and so charged again: 1" in (out / "privacy.md").read_text()


@pytest.mark.slow
def test_a_test_seed_promises_nothing_and_more_noise_leaves_nothing_to_learn(corpora, tmp_path):
    """As Jana and Biemann saw their networks collapse. At z = 1 the same steps learn."""
    seeded = {f"privacy.{name}": value for name, value in TEST_NOISE.items()}
    found = []
    for noise in (1.0, 10.0):
        config = config_of(corpora, **seeded, **{"training.local_noise_multiplier": noise})
        result = train(config, tmp_path / f"{noise}", workers=0)
        assert [each["unit"] for each in result["guarantees"]] == ["none"]
        found.append(result["perplexity"] / result["initial_perplexity"])
    assert found[0] < 0.8
    assert found[1] > 1.2
    text = (tmp_path / "1.0" / "privacy.md").read_text()
    assert "**NOT PRIVATE: sampling and noise come from a fixed test seed." in text
