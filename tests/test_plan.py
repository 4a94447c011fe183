"""The plan: sentence rules and draws, the published weights, noise once on the sum, what the ledger is told."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from scipy import stats

from tests.updates.tiny import TinyCorpus, tiny_config
from uedp_ray.calibration import vocabulary_holders
from uedp_ray.corpus.bounds import apply_bounds
from uedp_ray.errors import InputError
from uedp_ray.plan import Plan, epsilons
from uedp_ray.privacy.clipping import projection_margin
from uedp_ray.privacy.grid import SumGrid
from uedp_ray.privacy.noise import GaussianNoise
from uedp_ray.privacy.sampling import PoissonSampler

ALL_FULL = np.ones(10_000, dtype=np.float32)


def plan(**privacy):
    defaults = {"noise_multiplier": 1.0, "user_sampling_prob": 0.5, "test_noise_seed": 0}
    return Plan.of(tiny_config(privacy=defaults | privacy))


def select(plan, corpus, users=None, round_index=0, attempt=0, weights=None):
    users = np.arange(corpus.num_users) if users is None else users
    return list(
        plan.select(
            corpus,
            users,
            PoissonSampler(b"k" * 32),
            round_index=round_index,
            attempt=attempt,
            sentence_weight=ALL_FULL[: corpus.num_sentences],
            weights=weights,
        )
    )


@pytest.mark.parametrize("rule", ["all", "any"])
def test_global_draw_and_rule_decide_what_is_used(rule):
    chosen = plan(selection_rule=rule, entity_sampling_prob=0.5, extended_sampling_prob=0.3)
    corpus = TinyCorpus.random(3, num_users=60)
    for round_index in range(5):
        where = {"round_index": round_index, "attempt": 0}
        sampler = PoissonSampler(b"k" * 32)
        cohort = sampler.draw(0.5, corpus.num_users, kind="user", **where)
        entities = sampler.draw(0.5, corpus.num_entities, kind="entity", **where)
        used = {int(x) for s in select(chosen, corpus, round_index=round_index) for x in s.sentences}
        for user in range(corpus.num_users):
            first, last = corpus.user_offsets[user : user + 2]
            extended = sampler.draw(0.3, last - first, kind="extended", owner=user, **where)
            for slot, x in enumerate(range(first, last)):
                held = corpus.entity_ids[corpus.entity_offsets[x] : corpus.entity_offsets[x + 1]]
                wanted = extended[slot] if not len(held) else (all if rule == "all" else any)(entities[held])
                assert (x in used) == bool(wanted and cohort[user])


def test_per_user_draws_differ_between_users():
    chosen = plan(entity_draw="per_user", entity_sampling_prob=0.5, user_sampling_prob=1.0)
    corpus = TinyCorpus(  # everyone holds entity 0 in one sentence
        np.arange(2001), np.arange(2001), np.zeros(2000, np.int32), 1, [np.array([5])] * 2000
    )
    low, high = stats.binom.interval(1 - 1e-6, 2000, 0.5)
    assert low <= len(select(chosen, corpus)) <= high
    shared = plan(entity_draw="global", entity_sampling_prob=0.5, user_sampling_prob=1.0)
    assert {len(select(shared, corpus, round_index=t)) for t in range(12)} == {0, 2000}


def test_f_e_leaves_extended_entities_out_in_selection_and_in_accounting():
    chosen = plan(estimator="f_e", user_sampling_prob=1.0)
    corpus = TinyCorpus.random(0)
    counts = np.diff(corpus.entity_offsets)
    assert all((counts[s.sentences] > 0).all() for s in select(chosen, corpus))
    assert chosen.mechanism is not None
    assert chosen.mechanism.extended_sampling_prob == 0.0


@pytest.mark.parametrize("draw", ["global", "per_user"])
def test_every_round_and_every_attempt_draws_entities_and_plain_sentences_afresh(draw):
    chosen = plan(entity_draw=draw, user_sampling_prob=1.0, entity_sampling_prob=0.5, extended_sampling_prob=0.5)
    corpus = TinyCorpus.random(5, num_users=50, num_entities=30)
    plain = set(np.flatnonzero(np.diff(corpus.entity_offsets) == 0).tolist())
    drawn = [{x for s in select(chosen, corpus, *[np.arange(50), *where]) for x in s.sentences.tolist()}
             for where in ((0, 0), (1, 0), (0, 1))]  # fmt: skip
    for a, b in itertools.combinations(drawn, 2):
        assert a & plain != b & plain
        assert a - plain != b - plain


def test_a_replayed_round_draws_a_fresh_cohort():
    chosen, corpus = plan(), TinyCorpus.random(5, num_users=50)
    first, again = ({s.user for s in select(chosen, corpus, attempt=a)} for a in (0, 1))
    assert first != again


def test_sentences_held_are_counted_drawn_or_not():
    """Else an entity's absence would change how far rounding lowers the sentences that stay."""
    chosen, corpus = plan(user_sampling_prob=1.0, entity_sampling_prob=0.5), TinyCorpus.random(1, num_users=40)
    weight = np.random.default_rng(0).choice([0.0, 0.4, 1.0], corpus.num_sentences).astype(np.float32)
    where = {"round_index": 0, "attempt": 0, "sentence_weight": weight}
    found = list(chosen.select(corpus, np.arange(40), PoissonSampler(b"k" * 32), **where))
    within = np.bincount(corpus.user_of, weights=weight > 0, minlength=40)
    assert [each.num_held for each in found] == [within[each.user] for each in found]
    assert any(len(each.sentences) < each.num_held for each in found)
    assert [each.first for each in found] == [corpus.user_offsets[each.user] for each in found]


def test_sentences_of_weight_zero_are_left_out():
    chosen, corpus = plan(user_sampling_prob=1.0), TinyCorpus.random(1)
    weight = np.zeros(corpus.num_sentences, dtype=np.float32)
    weight[4] = 0.25
    got = list(
        chosen.select(
            corpus, np.arange(12), PoissonSampler(b"k" * 32), round_index=0, attempt=0, sentence_weight=weight
        )
    )
    assert [(s.sentences.tolist(), s.weights.tolist()) for s in got] == [([4], [0.25])]


def test_published_weights_count_a_sentence_once_per_drawn_entity():
    config = tiny_config(
        privacy={
            "noise_multiplier": 2.0,
            "noise": "published",
            "normalizer": "published",
            "selection_rule": "any",
            "user_sampling_prob": 1.0,
            "entity_sampling_prob": 1.0,
            "sentence_clip_norm": None,
            "user_weight_cap": 4,
            "entity_weight_cap": 2,
        },
        bounds={"mode": "none"},
    )
    corpus = TinyCorpus(  # user 0: {a, b}, {a}; user 1: none; user 2: {a}
        np.array([0, 2, 3, 4]), np.array([0, 2, 3, 3, 4]), np.array([0, 1, 0, 0], np.int32), 2, [np.array([5])] * 4
    )
    published = Plan.of(config, corpus)
    weights = published.weights(corpus)
    assert weights is not None
    assert weights.user.tolist() == [0.5, 0.25, 0.25]
    assert weights.entity.tolist() == [1.0, 0.5]
    assert weights.denominator == pytest.approx(1.0 * 1.0 * (1.0 * 1.5 + 1.0 * 1.0))
    chosen = select(published, corpus, weights=weights)
    assert [s.weights.tolist() for s in chosen] == [[1.5, 1.0], [1.0], [1.0]]
    assert [s.weight for s in chosen] == [0.5, 0.25, 0.25]
    assert published.noise_std == pytest.approx(2.0 * (1.0 * 3 + 1) * 0.5)  # Eq. 6 before the division: max(w_u) = 2/4
    assert not published.private


def test_the_patents_noise_counts_every_user():
    settings = {"noise": "published", "noise_multiplier": 2.0, "user_sampling_prob": 0.25, "sentence_clip_norm": None}
    for cohort, factor in (("expected", 0.25 * 40 + 1), ("all", 40 + 1)):
        config = tiny_config(privacy={**settings, "published_cohort": cohort}, bounds={"mode": "none"})
        assert Plan.of(config, TinyCorpus.random(1, num_users=40)).noise_std == pytest.approx(2.0 * factor)


def test_the_noise_is_added_once_to_the_sum_and_then_divided_by_a_public_number():
    chosen = plan(noise_multiplier=3.0, l2_clip_norm=0.5, sentence_clip_norm=0.1, test_noise_seed=None)
    assert chosen.private
    assert chosen.noise_std == pytest.approx(1.5)
    total = torch.full((100_000,), int(8.0 / chosen.grid.step))
    released = chosen.release(total, GaussianNoise(), round_index=0) * chosen.expected_cohort
    low, high = stats.chi2.interval(1 - 1e-6, 100_000)
    assert low <= float(((released - 8.0) ** 2).sum()) / 1.5**2 <= high
    assert chosen.expected_cohort == 0.5 * 12
    coarse = released / (chosen.grid.step * 2**chosen.grid.shift)
    assert chosen.grid.shift > 0
    assert torch.equal(coarse, coarse.round()), "what leaves a round lies on the coarse grid"


def test_noise_that_a_seed_fixes_does_not_release_what_claims_to_be_private():
    private, seeded = plan(test_noise_seed=None), plan()
    for chosen, noise in ((private, GaussianNoise()), (seeded, GaussianNoise(0))):
        chosen.release(chosen.zeros(3, torch.device("cpu")), noise, round_index=0)
    with pytest.raises(ValueError, match="a test seed fixes this noise"):
        private.release(private.zeros(3, torch.device("cpu")), GaussianNoise(0), round_index=0)


PRIVACY = {
    "noise_multiplier": 3.0,
    "user_sampling_prob": 0.25,
    "entity_sampling_prob": 0.5,
    "extended_sampling_prob": 0.75,
    "selection_rule": "any",
    "entity_draw": "per_user",
    "l2_clip_norm": 0.5,
    "sentence_clip_norm": 0.1,
}


@pytest.mark.parametrize(
    ("privacy", "bounds", "changed"),
    [
        ({}, {}, {}),
        ({"selection_rule": "all", "entity_draw": "global"}, {}, {"selection_rule": "all", "entity_draw": "global"}),
        ({"estimator": "f_e"}, {}, {"extended_sampling_prob": 0.0}),
        ({}, {"holder_bound": "truncate"}, {"holder_bound": "truncate"}),
        ({}, {"holder_bound": "fill"}, {"holder_bound": "reweight"}),  # which covers all weights
        ({}, {"mode": "declared"}, {"holder_bound": "truncate"}),
        ({"unit": "user"}, {"mode": "none"}, {"max_holders": None, "holder_bound": "truncate"}),
        (
            {"sentence_clip_norm": None},
            {"holder_bound": "truncate", "entity_bound": "truncate"},
            {"entity_clip": 2.0, "extended_clip": 2.0, "holder_bound": "truncate"},
        ),
    ],
)
def test_the_accountant_is_told_what_is_done(privacy, bounds, changed):
    bounds = {"max_holders": 4, "max_sentences_per_entity": 2, "holder_bound": "reweight"} | bounds
    told = Plan.of(tiny_config(privacy=PRIVACY | privacy, bounds=bounds)).mechanism
    assert told is not None
    everything = {key: value for key, value in PRIVACY.items() if "clip" not in key} | {
        "max_holders": 4,
        "entity_clip": 2 * 0.1 / 0.5,
        "extended_clip": 0.1 / 0.5,
        "holder_bound": "reweight",
        "max_users": 12,
    }
    assert told.to_dict() == pytest.approx(everything | changed)


@pytest.mark.parametrize(
    ("bounds", "holders"),
    [
        ({"mode": "none"}, 0),
        ({"holder_bound": "reweight"}, 4),
        ({"holder_bound": "fill"}, 8),
        ({"mode": "declared"}, 4),
    ],
)
def test_a_private_vocabulary_reckons_with_all_who_may_count_a_word(bounds, holders):
    """Filling lets a sentence weigh 1 as long as an entity's sum to K m: of that many users, one sentence each."""
    privacy = {"unit": "user"} if bounds.get("mode") == "none" else {}
    config = tiny_config(bounds={"max_holders": 4, "max_sentences_per_entity": 2, **bounds}, privacy=privacy)
    assert vocabulary_holders(config) == holders


@pytest.mark.parametrize(
    ("setting", "is_done"),
    [
        ("privacy.selection_rule", lambda chosen: select(chosen, TinyCorpus.random(0))),
        ("privacy.entity_draw", lambda chosen: select(chosen, TinyCorpus.random(0))),
        ("privacy.normalizer", lambda chosen: chosen.weights(TinyCorpus.random(0))),
        ("privacy.estimator", lambda chosen: select(chosen, TinyCorpus.random(0))),
        ("bounds.mode", lambda chosen: apply_bounds(TinyCorpus.random(0), chosen.config.bounds, None)),
        ("bounds.holder_bound", lambda chosen: apply_bounds(TinyCorpus.random(0), chosen.config.bounds, None)),
        ("bounds.entity_bound", lambda chosen: apply_bounds(TinyCorpus.random(0), chosen.config.bounds, None)),
    ],
)
def test_a_value_that_is_new_to_a_setting_is_neither_done_nor_accounted_for_as_an_old_one(setting, is_done):
    chosen, (section, name) = plan(), setting.split(".")
    object.__setattr__(getattr(chosen.config, section), name, "new")
    with pytest.raises(AssertionError, match="'new'"):
        is_done(chosen)
    if name not in ("normalizer", "entity_bound"):  # of which the accountant is told nothing
        with pytest.raises((AssertionError, InputError), match="'new'"):
            Plan.of(chosen.config)
    if section == "bounds" and name != "entity_bound":
        with pytest.raises(AssertionError, match="'new'"):
            _ = chosen.least_share


def test_calibration_meets_the_target_and_the_event_says_what_was_added():
    chosen = plan(noise_multiplier=None, target_epsilon=3.0, test_noise_seed=None)
    event = chosen.event(round_index=4, attempt=1)
    assert event["mechanism"]["noise_multiplier"] * 1.0 == pytest.approx(chosen.noise_std)
    assert (event["kind"], event["round"], event["attempt"], event["private"]) == ("round", 4, 1, True)


@pytest.mark.parametrize(
    ("privacy", "private"),
    [
        ({"test_noise_seed": None}, True),
        ({"test_noise_seed": 0}, False),
        ({"test_noise_seed": None, "noise": "published"}, False),
    ],
)
def test_header_and_events_each_say_whether_the_noise_protects(privacy, private):
    chosen = plan(**privacy)
    assert chosen.header()["private"] is private
    assert chosen.event(round_index=0, attempt=0)["private"] is private


def test_without_noise_the_ledger_is_told_so():
    config = tiny_config(privacy={"noise": "none", "noise_multiplier": None, "clip": False}, bounds={"mode": "none"})
    bare = Plan.of(config)
    assert bare.event(round_index=0, attempt=0)["kind"] == "unprotected"
    assert bare.header()["private"] is False
    assert torch.equal(
        bare.release(torch.ones(3).double(), GaussianNoise(), round_index=0),
        torch.ones(3).double() / bare.expected_cohort,
    )
    total = bare.zeros(1, torch.device("cpu"))
    assert bare.add_user(total, torch.tensor([1e30], dtype=torch.float64), 0.5)
    assert total.tolist() == [0.5e30]


def test_clipping_follows_the_config():
    chosen = plan(sentence_clip_norm=0.5)
    norms, weights = torch.tensor([0.25, 1.0, math.nan], dtype=torch.float64), np.array([1.0, 0.5, 1.0])
    factors = chosen.sentence_factors(norms, weights, chosen.sentence_clip(1000))
    assert factors.tolist() == pytest.approx([1.0, 0.25, 0.0], abs=1e-5)
    total = chosen.zeros(4, norms.device)
    assert chosen.add_user(total, torch.full((4,), 3.0, dtype=torch.float64))
    assert not chosen.add_user(total, torch.full((4,), math.inf, dtype=torch.float64))
    assert 1 - 1e-5 < torch.linalg.vector_norm(total.double() * chosen.grid.step) <= 1.0


def test_a_sentence_clip_lost_in_the_rounding_of_sums_is_refused():
    chosen = plan(sentence_clip_norm=1e-8)
    assert 0.999e-8 < chosen.sentence_clip(1000) < 1e-8
    with pytest.raises(InputError, match="sentence_clip_norm"):
        chosen.sentence_clip(10**9)


def test_calibration_pays_for_a_noisy_vocabulary_too():
    sections = {
        "privacy": {"target_epsilon": 4.0, "noise_multiplier": None, "test_noise_seed": None},
        "vocabulary": {"kind": "noisy-threshold", "noise_multiplier": 60.0, "threshold_delta": 1e-6},
    }
    config = tiny_config(**sections)
    chosen, plain = Plan.of(config), Plan.of(tiny_config(privacy=sections["privacy"]))
    assert chosen.noise_std > 1.01 * plain.noise_std
    vocabulary = {"kind": "vocabulary", "noise_multiplier": 60.0, "max_holders": 5, "threshold_delta": 1e-6}
    rounds = [chosen.event(round_index=t, attempt=0) for t in range(config.training.num_rounds)]
    spent = epsilons(chosen, [vocabulary, *rounds])["user-entity"]
    assert 3.9 < spent <= 4.0
    begun = epsilons(chosen, [{"kind": "open", "header": chosen.header()}])
    assert begun["user-entity"] == pytest.approx(spent), "broken off at once, it is charged for its words too"
    warm = tiny_config(**sections, model={"warm_start": "pretrained/model"})
    assert Plan.of(warm).mechanism == plain.mechanism, "the warm start brings its vocabulary"
    assert Plan.of(warm).header()["plan"]["releases"] == []
    sections["vocabulary"]["noise_multiplier"] = 1.0
    with pytest.raises(InputError, match="vocabulary alone"):
        Plan.of(tiny_config(**sections))


def test_a_run_that_an_earlier_version_planned_goes_on(tmp_path):
    words = {"kind": "noisy-threshold", "noise_multiplier": 60.0, "threshold_delta": 1e-6}
    chosen = Plan.of(tiny_config(privacy={"test_noise_seed": None}, vocabulary=words))
    header = chosen.header()
    [release] = header["plan"].pop("releases")
    earlier = {key: value for key, value in release.items() if key != "kind"} | {"max_words_per_user": 50}
    chosen.check_header(header | {"plan": header["plan"] | {"vocabulary": earlier}}, tmp_path)
    for other in (None, earlier | {"noise_multiplier": 61.0}):
        with pytest.raises(InputError, match="restore the run's copy"):
            chosen.check_header(header | {"plan": header["plan"] | {"vocabulary": other}}, tmp_path)


def test_rounding_stays_within_what_reweighted_sentences_may_move():
    """A holder of an entity with H holders moves by K/H of the clip; rounding moves it as far as any other."""
    users, size = 10_000, 1_000_000
    chosen = Plan.of(
        tiny_config(
            privacy={"noise_multiplier": 1.0, "sentence_clip_norm": 0.01},
            bounds={"mode": "enforced", "holder_bound": "reweight", "entity_bound": "truncate", "max_holders": 2},
            corpus={"declared_num_users": users},
        )
    )
    margin = projection_margin(1.0, size, chosen.grid.step)
    assert margin > 0.0
    for holders in (2, 100, users):
        weight = 2 / holders
        assert weight * chosen.sentence_clip(size) + margin <= weight * 0.01


@pytest.mark.parametrize("name", ["l2_clip_norm", "sentence_clip_norm", "noise_multiplier"])
@pytest.mark.parametrize("value", [1e-170, 1e300])
def test_numbers_whose_products_are_none_are_refused(name, value):
    """Squares of norms underflow below 1e-162, and a noise of infinite deviation is no noise once it is cut off."""
    with pytest.raises(InputError, match=rf"privacy\.{name} = .*between 1e-20 and 1e20"):
        plan(**{name: value})
    with pytest.raises(ValueError, match="sums need numbers"):
        SumGrid.of(bound=1.0, num_vectors=3, noise_std=math.inf)
