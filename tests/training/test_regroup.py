"""Runs whose users are no persons: what they promise, of what, and what they refuse."""

from __future__ import annotations

import dataclasses
import stat

import dp_accounting
import numpy as np
import pytest
from dp_accounting.pld import PLDAccountant

from tests.search.sweeps import sweep_tree, write_sweep
from tests.told import Told
from tests.training.runs import NUM_USERS, crash, run_config
from uedp_ray import export, methods
from uedp_ray.answers import ledger_epsilon
from uedp_ray.corpus.store import open_corpus
from uedp_ray.errors import InputError
from uedp_ray.models.parameters import FlatParameters
from uedp_ray.plan import Plan, UserSelection
from uedp_ray.privacy.composition import of_profiles
from uedp_ray.privacy.events import Charges, epsilon_of_charges, epsilon_of_events, together
from uedp_ray.privacy.ledger import read_ledger
from uedp_ray.privacy.local import gaudp
from uedp_ray.privacy.mechanisms.poisson import RoundMechanism
from uedp_ray.privacy.profiles import replaced
from uedp_ray.search.planner import plan
from uedp_ray.search.sweep_config import load_sweep_config
from uedp_ray.training.host import tell_cautions, train
from uedp_ray.training.network import make_model
from uedp_ray.training.prepared import Prepared, make_task
from uedp_ray.training.rundir import RunDir
from uedp_ray.updates.base import local_update

DELTA, PERSONS = 1e-4, ("user-entity", "user", "entity")
DEALT = {"corpus.regroup": "iid", "corpus.declared_num_users": NUM_USERS}
DEALT |= {"privacy.sentence_clip_norm": 0.4, "privacy.l2_clip_norm": 1.0}

WORDS = {"corpus.transform.kind": "replace_words", "corpus.transform.vectors": "toy.txt"}


def records(corpora, **settings):
    return methods.apply(run_config(corpora), "record_dp", {"corpus.declared_num_users": 2000, **settings})


def dealt(corpora, **settings):
    return methods.apply(run_config(corpora), "user_dp", {**DEALT, **settings})


@pytest.fixture(scope="module")
def run(corpora, tmp_path_factory):
    out, said = tmp_path_factory.mktemp("records") / "run", []
    return RunDir(out), train(records(corpora), out, workers=0, reporter=Told(say=said.append)), said


def test_what_is_promised_is_one_record(run, corpora):
    out, result, said = run
    accountant = PLDAccountant(dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE)
    accountant.compose(dp_accounting.PoissonSampledDpEvent(0.3, dp_accounting.GaussianDpEvent(1.0)), 5)
    (promised,) = result["guarantees"]
    assert (promised["unit"], result["unit"], promised["sound"]) == ("record", "record", True)
    assert promised["epsilon"] == pytest.approx(accountant.get_epsilon(DELTA), rel=1e-2)
    assert "No person is hidden" in promised["note"]
    assert result["epsilon"] == dict.fromkeys(PERSONS)
    page = out.statement.read_text()
    assert page.splitlines()[2].startswith("**Of one record. No person is hidden")
    assert "one user:" not in page
    assert "--unit record" in page
    most = np.diff(open_corpus(corpora / "private").user_offsets).max()
    (line,) = [line for line in said if "one record is hidden" in line]
    assert f" {most}, each a record (private: read off the text)" in line
    tell_cautions(out.load_config(), result, Told(say=said.append))


def test_its_ledger_claims_nothing_of_a_person_to_this_version_or_an_earlier_one(run, corpora, tmp_path):
    events = read_ledger(run[0].ledger)
    assert events[0]["header"]["private"] is not True  # which is what an earlier version asks for
    for unit in PERSONS:
        answer = ledger_epsilon(run[0].ledger, delta=DELTA, unit=unit)
        assert not answer["guarantee"]
        assert answer["epsilon"] == float("inf")
        assert "--unit record" in answer["text"]
    answer = ledger_epsilon(run[0].ledger, delta=DELTA, unit="record")
    assert answer["guarantee"]
    assert answer["epsilon"] == pytest.approx(run[1]["guarantees"][0]["epsilon"])
    train(methods.apply(run_config(corpora), "user_dp"), tmp_path / "users", workers=0)
    other = read_ledger(tmp_path / "users" / "ledger.jsonl")
    assert epsilon_of_events(other, delta=DELTA, unit="user") < float("inf")
    for unit in (*PERSONS, "record"):
        assert epsilon_of_events([*events, *other], delta=DELTA, unit=unit) == float("inf")
    assert "has users" in ledger_epsilon(tmp_path / "users" / "ledger.jsonl", delta=DELTA, unit="record")["text"]


def test_it_is_not_exported(run, tmp_path):
    with pytest.raises(InputError, match="hides one record, and no person"):
        export(run[0].root, tmp_path / "out")


def sum_of(prepared, chosen, without):
    """The un-noised sum of the chosen users' updates, where sentence ``without`` says nothing."""
    model = make_model(prepared.used, prepared.vocabulary)
    params, task = FlatParameters(model), make_task(prepared.config, prepared.vocabulary)

    def sentence(index):
        return np.zeros(0, np.int32) if index == without else prepared.tokens.sentence(index)

    update = local_update(prepared.plan, model, params, task, sentence, params.get().device)
    return update.sum_updates(params.get(), iter(chosen), 0).double() * prepared.plan.grid.step


def test_one_record_of_a_user_with_two_moves_the_sum_by_at_most_its_bound(run, corpora, tmp_path):
    train(dealt(corpora), tmp_path / "dealt", workers=0)
    assert stat.S_IMODE((tmp_path / "dealt").stat().st_mode) == 0o700, (
        "it hides no person, so it is as private as the text"
    )
    for where, bound in ((run[0], 1.0), (RunDir(tmp_path / "dealt"), 0.4)):
        prepared = Prepared.open(where)
        assert (prepared.sentence_weight == 1).all()
        offsets = prepared.corpus.user_offsets
        sizes = np.diff(offsets)
        chosen = [
            UserSelection(
                user, np.arange(offsets[user], offsets[user + 1]), np.ones(sizes[user], np.float32), sizes[user]
            )
            for user in range(6)
        ]

        whole = sum_of(prepared, chosen, None)
        moved = [float((whole - sum_of(prepared, chosen, index)).norm()) for index in (0, 1, 2)]
        assert 0.1 * bound < max(moved) <= bound


def test_sentences_stay_where_they_were_dealt_and_another_run_deals_them_otherwise(corpora, tmp_path):
    crash(dealt(corpora), tmp_path / "one", charges=2)
    before = Prepared.open(RunDir(tmp_path / "one"))
    result = train(dealt(corpora), tmp_path / "one", workers=0, resume=True)
    train(dealt(corpora), tmp_path / "two", workers=0)
    after, other = (Prepared.open(RunDir(tmp_path / name)) for name in ("one", "two"))
    assert after.corpus.digest == before.corpus.digest != other.corpus.digest
    np.testing.assert_array_equal(before.tokens.tokens, after.tokens.tokens)
    assert sorted(after.tokens.lengths) == sorted(other.tokens.lengths)
    assert not np.array_equal(after.tokens.tokens, other.tokens.tokens)
    assert [each["unit"] for each in result["guarantees"]] == ["record"]
    assert result["epsilon"] == dict.fromkeys(PERSONS)


def test_a_calibrated_run_meets_its_target(corpora, tmp_path):
    settings = {"privacy.target_epsilon": 2.0, "privacy.noise_multiplier": None}
    result = train(records(corpora, **settings), tmp_path / "run", workers=0)
    assert result["rounds"] == 5
    assert 1.9 < result["guarantees"][0]["epsilon"] <= 2.0


@pytest.mark.parametrize(("clip", "prob", "least"), [(0.05, 0.3, 2.9), (1.0, 0.3, 2.9), (0.05, 0.0, 0.0)])
def test_noise_of_dealt_records_is_the_least_that_meets_the_target(corpora, clip, prob, least):
    """Less than a user would need where the clip is small."""
    settings = {"privacy.noise_multiplier": None, "privacy.target_epsilon": 3.0}
    settings |= {"privacy.sentence_clip_norm": clip, "privacy.user_sampling_prob": prob}
    found = Plan.of(dealt(corpora, **settings))
    spent = epsilon_of_events([{"kind": "open", "header": found.header()}], delta=DELTA, unit="record")
    assert least <= spent <= 3.0


@pytest.mark.parametrize(
    ("make", "settings", "field"),
    [
        (records, {"privacy.unit": "user-entity"}, "privacy.unit"),
        (records, {"bounds.mode": "enforced"}, "bounds.mode"),
        (
            records,
            {
                "privacy.noise": "none",
                "privacy.noise_multiplier": None,
                "privacy.sentence_clip_norm": 1.0,
                "training.local_update": "local_dp_sgd",
                "training.local_noise_multiplier": 1.0,
            },
            "training.local_update",
        ),
        *((each, WORDS | {"corpus.transform.draw": "user"}, "corpus.transform.draw") for each in (records, dealt)),
        (dealt, WORDS | {"corpus.transform.scope": "entities"}, "corpus.transform.draw"),  # where it is the default
        (dealt, {"privacy.sentence_clip_norm": None}, "privacy.sentence_clip_norm"),
        (dealt, {"privacy.sentence_clip_norm": 1.1}, "privacy.sentence_clip_norm"),
        (dealt, {"training.local_update": "local_sgd"}, "privacy.sentence_clip_norm"),
        (
            dealt,
            {
                "vocabulary.kind": "noisy-threshold",
                "vocabulary.noise_multiplier": 1,
                "vocabulary.threshold_delta": 1e-6,
            },
            "vocabulary.kind",
        ),
    ],
)
def test_what_would_promise_anything_else_is_refused(corpora, make, settings, field):
    with pytest.raises(InputError, match="one record is protected") as caught:
        make(corpora, **settings)
    assert caught.value.field == field


def test_more_records_than_declared_are_refused(corpora, tmp_path):
    with pytest.raises(InputError, match=r"corpus\.declared_num_users"):
        train(records(corpora, **{"corpus.declared_num_users": NUM_USERS}), tmp_path / "run", workers=0)


def test_searches_are_of_users(corpora, tmp_path):
    settings = ["base.corpus.regroup=records", "budget.unit=user", "base.bounds.mode=none"]
    with pytest.raises(InputError, match=r"base\.corpus\.regroup = .records.: a sweep prices promises to users"):
        load_sweep_config(write_sweep(sweep_tree(corpora), tmp_path), settings)
    with pytest.raises(InputError, match=r"corpus\.regroup = .records.: hides records"):
        plan(records(corpora))


def test_a_record_that_was_dealt_out_costs_more_than_a_user_over_rounds(corpora):
    """Both of its worlds have such a record: neither direction of a user's removal bounds several rounds of it."""
    one = RoundMechanism(noise_multiplier=1.0, user_sampling_prob=0.05, extended_clip=1.0)

    def of(rounds, **who):
        charged = Charges(((one, rounds),), (), of_records=True, **who)
        return epsilon_of_charges(charged, delta=1e-5, unit="record")

    assert of(1, dealt=True) == pytest.approx(of(1), rel=1e-3)
    assert of(200, dealt=True) == pytest.approx(5.4136, rel=1e-3)
    assert of(200, dealt=True) > 1.1 * of(200)
    unbounded = Charges(((dataclasses.replace(one, extended_clip=2.0), 200),), (), of_records=True, dealt=True)
    twice = of_profiles([(replaced(2.0, 1.0, share=0.05), 200)], 1e-5)
    assert epsilon_of_charges(unbounded, delta=1e-5, unit="record") == pytest.approx(twice), "no run of ours writes it"
    thesis = gaudp(clip_norm=0.5, noise_std=1.0, sampling_prob=0.05, steps=200, delta=1e-5, shuffled=True)
    assert of(200, dealt=True) == pytest.approx(thesis.epsilon), "the same pair, of another mechanism"
    assert of(200, dealt=True) <= epsilon_of_charges(
        together([Charges(((one, 200),), (), of_records=True), Charges((), (), of_records=True, dealt=True)]),
        delta=1e-5,
        unit="record",
    ), "beside one that was dealt out, every record is charged as one"
    asked = dealt(corpora, **{"privacy.noise_multiplier": None, "privacy.target_epsilon": 3.0})
    plan = Plan.of(asked)
    spent = epsilon_of_charges(
        Charges(((plan.mechanism, asked.training.num_rounds),), (), of_records=True, dealt=True),
        delta=DELTA,
        unit="record",
    )
    assert 2.9 < spent <= 3.0
    assert plan.header()["private"] == "dealt record"
