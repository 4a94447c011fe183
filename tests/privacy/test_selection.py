"""The three rules against dp_accounting, the specification's example, and exact small mechanisms."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from dp_accounting import dp_event
from dp_accounting.rdp import RdpAccountant

from uedp_ray.errors import InputError
from uedp_ray.privacy import accounting, laws, renyi, selection
from uedp_ray.privacy.events import Charges, UnsupportedEvent, charges, epsilon_of_events
from uedp_ray.privacy.laws import draw_trials
from uedp_ray.privacy.mechanisms.poisson import RoundMechanism
from uedp_ray.privacy.odometer import Odometer
from uedp_ray.privacy.selection import (
    check_own,
    check_rule,
    check_trial,
    default_rule,
    epsilon_of_choosing,
    is_adaptive,
)

ROUND = RoundMechanism(noise_multiplier=1.0, user_sampling_prob=0.02, max_holders=0, extended_clip=0.0)
ENTITY = RoundMechanism(noise_multiplier=2.0, user_sampling_prob=0.05, max_holders=5, entity_clip=0.2)
SHAPES = {"logarithmic": 0.0, "geometric": 1.0, "poisson": math.inf}
RANDOM = {"searcher": "random", "early_stopping": False}
GRID = {"searcher": "grid", "early_stopping": False}


def ledger(mechanism: RoundMechanism, rounds: int) -> list[dict[str, object]]:
    event = {"kind": "round", "private": True, "mechanism": mechanism.to_dict()}
    return [{"kind": "open", "header": {"private": True}}, *[event] * rounds]


def test_a_run_that_stopped_is_charged_to_its_own_planned_end_where_that_is_beyond_the_searchs():
    plan = {"rounds": 50, "mechanism": ROUND.to_dict(), "releases": []}
    one = [{"kind": "open", "header": {"private": True, "plan": plan}}, *ledger(ROUND, 5)[1:]]
    planned = [Charges(((ROUND, 10),))]
    found = epsilon_of_choosing("composition", **GRID, planned=planned, ledgers=[one], delta=1e-5)
    assert found == accounting.epsilon(ROUND, rounds=50, delta=1e-5)


@pytest.mark.parametrize("searcher", ["random", "tpe"])
def test_a_rule_without_a_theorem_has_no_price(monkeypatch, searcher):
    monkeypatch.setattr(selection, "RULES", (*selection.RULES, "median"))
    call = {"searcher": searcher, "early_stopping": False, "candidates": [[(ROUND, 500)]], "mean": 8.0, "delta": 1e-5}
    with pytest.raises(TypeError, match="median has no price"):
        epsilon_of_choosing("median", **call)
    with pytest.raises(TypeError, match="median has no price"):
        selection.accountant_of("median", odometer=None)


def test_the_example_of_the_specification():
    assert accounting.epsilon(ROUND, rounds=500, delta=1e-5) == pytest.approx(2.78, abs=0.01)
    for law, expected in (("logarithmic", 5.66), ("geometric", 6.71)):
        call = {**RANDOM, "candidates": [[(ROUND, 500)]], "mean": 32, "law": law, "delta": 1e-5, "by": "renyi"}
        assert epsilon_of_choosing("repeat_and_select", **call) == pytest.approx(expected, abs=0.005)
    # The figure 20.5 for 32 trials composed is Renyi's; losses composed numerically are sharper.
    assert accounting.epsilon(ROUND, rounds=32 * 500, delta=1e-5, accountant="renyi") == pytest.approx(20.5, abs=0.05)
    trials = [ledger(ROUND, 500)] * 32
    planned = [charges(each[1:]) for each in trials]
    composed = epsilon_of_choosing("composition", **GRID, planned=planned, ledgers=trials, delta=1e-5)
    assert composed == pytest.approx(19.11, rel=0.01)
    odometer = Odometer(planned=((ROUND, 500),), runs=32, delta=1e-5)
    adaptive = {"searcher": "tpe", "early_stopping": False, "odometer": odometer, "delta": 1e-5}
    assert epsilon_of_choosing("composition", **adaptive, ledgers=trials) == pytest.approx(20.91, abs=0.01)
    assert epsilon_of_choosing("composition", **adaptive, ledgers=trials[:16]) == pytest.approx(14.11, abs=0.01)
    assert epsilon_of_choosing("public", **GRID, delta=1e-5) == 0.0


@pytest.mark.parametrize("law", laws.LAWS)
@pytest.mark.parametrize("mean", [1, 2.5, 32, 1000])
def test_selected_is_the_librarys(law, mean):
    one = dp_event.SelfComposedDpEvent(dp_event.PoissonSampledDpEvent(0.02, dp_event.GaussianDpEvent(1.0)), 500)
    alone, best = RdpAccountant(renyi.ORDERS), RdpAccountant(renyi.ORDERS)
    alone.compose(one)
    best.compose(dp_event.RepeatAndSelectDpEvent(one, mean, SHAPES[law]))
    np.testing.assert_allclose(selection.selected(alone.rdp, mean=mean, law=law), best.rdp, rtol=1e-7)
    if mean == 32:
        call = {**RANDOM, "candidates": [[(ROUND, 500)]], "mean": 32, "law": law, "by": "renyi"}
        ours = epsilon_of_choosing("repeat_and_select", **call, delta=1e-5)
        assert ours == pytest.approx(best.get_epsilon(1e-5), rel=3e-3)


@pytest.mark.parametrize("law", laws.LAWS)
@pytest.mark.parametrize(("p", "q"), [(0.5, 0.4), (0.1, 0.2), (0.03, 0.01)])
def test_best_of_coin_flips_is_within_the_bound(law, p, q):
    """The best of K coins is heads unless all are tails, which has the probability generating function of K at 1 - p."""

    def renyi_of(a: float, b: float) -> np.ndarray:
        orders = np.array(renyi.ORDERS)
        found = []
        for x, y in ((a, b), (b, a)):
            heads, tails = (orders * math.log(p) + (1 - orders) * math.log(q) for p, q in ((x, y), (1 - x, 1 - y)))
            found.append(np.logaddexp(heads, tails) / (orders - 1))
        return np.maximum(*found)

    def all_tails(x: float, mean: float) -> float:
        if law == "poisson":
            return math.exp(mean * (x - 1))
        gamma = laws.halting(mean, law)
        return (
            gamma * x / (1 - (1 - gamma) * x) if law == "geometric" else math.log(1 - (1 - gamma) * x) / math.log(gamma)
        )

    for mean in (1.5, 8.0, 32.0):
        bound = selection.selected(renyi_of(p, q), mean=mean, law=law)
        assert (renyi_of(1 - all_tails(1 - p, mean), 1 - all_tails(1 - q, mean)) <= bound).all()


@pytest.mark.parametrize("law", laws.LAWS)
def test_trials_are_drawn_from_the_law_that_is_charged(law):
    mean, size = 4.0, 20_000
    draws = np.array([draw_trials(mean=mean, law=law) for _ in range(size)])
    gamma = None if law == "poisson" else laws.halting(mean, law)
    first, variance = {
        "poisson": (lambda: mean * math.exp(-mean), lambda: mean),
        "geometric": (lambda: gamma, lambda: (1 - gamma) / gamma**2),
        "logarithmic": (lambda: (1 - gamma) / -math.log(gamma), lambda: mean / gamma - mean**2),
    }[law]
    assert abs(draws.mean() - mean) < 6 * math.sqrt(variance() / size)
    share = first()
    assert abs((draws == 1).mean() - share) < 6 * math.sqrt(share * (1 - share) / size)
    assert draws.min() == (0 if law == "poisson" else 1)
    assert draws.max() > 8


def test_nothing_is_truncated_and_mean_one_is_one_trial():
    assert max(draw_trials(mean=32, law="logarithmic") for _ in range(3000)) > 320  # probability 1 - 1e-28
    assert {draw_trials(mean=1, law=law) for law in ("logarithmic", "geometric") for _ in range(50)} == {1}
    assert len({draw_trials(mean=1e6, law="geometric") for _ in range(20)}) > 15


def test_a_fixed_search_is_charged_to_its_planned_end():
    other = dataclasses.replace(ENTITY, noise_multiplier=1.5)
    full = [ledger(ENTITY, 10), ledger(other, 4), ledger(ENTITY, 10)]
    planned = [charges(each[1:]) for each in full]
    whole = [(ENTITY, 20), (other, 4)]
    for unit in ({}, {"unit": "user"}, {"unit": "entity", "kind": "entity"}):
        call = {**GRID, "delta": 1e-5, "planned": planned, **unit}
        for ledgers in (
            full,
            [ledger(ENTITY, 10), ledger(other, 1), []],
        ):  # stopped: whether results said so is unknown
            assert epsilon_of_choosing("composition", ledgers=ledgers, **call) == accounting.compose(
                whole, delta=1e-5, **unit
            )
        replayed = [ledger(ENTITY, 12), ledger(other, 4), ledger(ENTITY, 9)]
        assert epsilon_of_choosing("composition", ledgers=replayed, **call) == accounting.compose(
            [(ENTITY, 22), (other, 4)], delta=1e-5, **unit
        )
    call = {**GRID, "delta": 1e-5, "planned": planned}
    exposed = [*full[:2], [*full[2], {"kind": "unprotected"}]]
    assert epsilon_of_choosing("composition", ledgers=exposed, **call) == math.inf
    words = {"kind": "vocabulary", "noise_multiplier": 20.0, "max_holders": 5, "threshold_delta": 1e-6}
    one = [
        {**GRID, "delta": 1e-5, "planned": [charges([words, *full[0][1:]])], "ledgers": [each]}
        for each in ([], [words])
    ]
    assert {epsilon_of_choosing("composition", **call) for call in one} == {
        epsilon_of_events([words, *full[0][1:]], delta=1e-5)
    }
    for ledgers in ((), full[:2], [*full, []]):
        with pytest.raises(InputError, match="ledgers"):
            epsilon_of_choosing("composition", ledgers=ledgers, **call)


@pytest.mark.parametrize("search", [{"searcher": name, "early_stopping": False} for name in ("tpe", "nsga2", "gp")])
def test_an_adaptive_search_is_charged_by_an_odometer_only(search):
    ledgers = [ledger(ENTITY, 10), ledger(dataclasses.replace(ENTITY, noise_multiplier=1.5), 4)]
    odometer = Odometer(planned=((ENTITY, 10),), runs=2, delta=1e-5)
    for adaptive in (search, {**RANDOM, "early_stopping": True}, {**GRID, "early_stopping": True}):
        call = {"ledgers": ledgers, "planned": ledgers, "delta": 1e-5, **adaptive}
        with pytest.raises(InputError, match="odometer"):
            epsilon_of_choosing("composition", **call)
        assert epsilon_of_choosing("composition", odometer=odometer, **call) == odometer.epsilon(ledgers)
        for fields in ({"delta": 1e-6}, {"unit": "user"}, {"kind": "entity"}):
            with pytest.raises(InputError, match="odometer"):
                epsilon_of_choosing("composition", odometer=odometer, **{**call, **fields})
        for name in ("searcher", "early_stopping"):
            with pytest.raises(TypeError, match=name):
                epsilon_of_choosing("composition", **{key: call[key] for key in call if key != name})
        with pytest.raises(InputError, match="use composition"):
            epsilon_of_choosing("repeat_and_select", candidates=[[(ENTITY, 10)]], mean=2, **call)


def test_one_bound_for_all_candidates():
    call = {**RANDOM, "mean": 8, "law": "logarithmic", "delta": 1e-5, "by": "renyi"}
    quiet, loud = [(ENTITY, 20)], [(dataclasses.replace(ENTITY, noise_multiplier=1.2), 20)]
    each = [epsilon_of_choosing("repeat_and_select", candidates=[c], **call) for c in (quiet, loud)]
    assert each[0] < each[1]
    assert epsilon_of_choosing("repeat_and_select", candidates=[quiet, loud], **call) == pytest.approx(each[1])
    assert accounting.compose(loud, delta=1e-5) < each[1] < accounting.compose([(loud[0][0], 160)], delta=1e-5)
    two_curves = [[(ENTITY, 60)], [(dataclasses.replace(ENTITY, user_sampling_prob=0.01, noise_multiplier=0.7), 20)]]
    apart = [epsilon_of_choosing("repeat_and_select", candidates=[c], **call) for c in two_curves]
    assert epsilon_of_choosing("repeat_and_select", candidates=two_curves, **call) > max(apart)  # curves cross


def test_mass_that_trials_leave_out_is_charged_to_delta():
    heavy = dataclasses.replace(ENTITY, max_holders=200)
    bound = {"mean": 32, "delta": 1e-5, "unit": "user-entity", "kind": "entity"}
    rates, lost = selection.common_bound([[(heavy, 50)]], **bound)
    assert 0 < 32 * lost <= renyi.SHARE * 1e-5
    call = {**RANDOM, "candidates": [[(heavy, 50)]], "mean": 32, "law": "geometric", "by": "renyi"}
    found = epsilon_of_choosing("repeat_and_select", **call, delta=1e-5, kind="entity")
    assert found == renyi.to_epsilon(selection.selected(rates, mean=32, law="geometric"), 1e-5 - 32 * lost)


def test_a_trial_must_stay_within_the_candidate_that_was_drawn_for_it():
    other = dataclasses.replace(ENTITY, noise_multiplier=4.0)
    candidate = [(ENTITY, 5), (other, 20)]
    for events in (
        ledger(ENTITY, 5),
        ledger(ENTITY, 3),
        ledger(other, 20),
        [*ledger(ENTITY, 5), *ledger(other, 20)[1:]],
    ):
        check_own(events, candidate)
    check_own(
        ledger(dataclasses.replace(ENTITY, noise_multiplier=2.0 + 1e-12), 5), candidate
    )  # another machine's last digit
    less = dataclasses.replace(ENTITY, noise_multiplier=2.0 - 1e-12)
    more = dataclasses.replace(ENTITY, entity_clip=0.3)
    for events in (ledger(ENTITY, 6), ledger(less, 1), ledger(more, 1), ledger(ROUND, 1)):
        with pytest.raises(InputError, match="spent more than its candidate may"):
            check_own(events, candidate)
    quieter = dataclasses.replace(ENTITY, noise_multiplier=3.0)
    with pytest.raises(InputError, match="spent more than its candidate may"):
        check_own([*ledger(ENTITY, 5), *ledger(quieter, 5)], candidate)  # each fits, and both do not
    for event in ({"kind": "vocabulary"}, {"kind": "unprotected"}, {"kind": "open", "header": {"private": False}}):
        with pytest.raises(UnsupportedEvent):
            check_own([event], candidate)


def test_trials_must_stay_within_the_bound():
    call = {"mean": 8, "delta": 1e-5}
    candidates = [[(ENTITY, 5)], [(dataclasses.replace(ENTITY, noise_multiplier=4.0), 20)]]
    check_trial(ledger(ENTITY, 5), candidates, **call)
    check_trial(ledger(ENTITY, 3), candidates, **call)  # a trial that was cut short
    with pytest.raises(InputError, match="rounds = 6"):  # one round was replayed
        check_trial(ledger(ENTITY, 6), candidates, **call)
    for event in ({"kind": "vocabulary"}, {"kind": "unprotected"}, {"kind": "open", "header": {"private": False}}):
        with pytest.raises(UnsupportedEvent):
            check_trial([event], candidates, **call)


@pytest.mark.parametrize("holder_bound", ["truncate", "reweight"])
def test_a_trial_that_broke_off_stayed_within_the_bound_at_whatever_round(holder_bound):
    """Shares of delta are rounded to powers of two: taken of its own few rounds, they were larger than the candidate's."""
    users = {"max_users": 150} if holder_bound == "reweight" else {}
    one = dataclasses.replace(ENTITY, max_holders=5, user_sampling_prob=0.2, holder_bound=holder_bound, **users)
    candidates = [[(one, 20)], [(dataclasses.replace(one, noise_multiplier=9.0), 37)]]
    for rounds in range(21):
        check_trial(ledger(one, rounds), candidates, mean=4, delta=1e-5)
    with pytest.raises(InputError, match="rounds = 21"):
        check_trial(ledger(one, 21), candidates, mean=4, delta=1e-5)


def test_defaults_and_refusals():
    assert default_rule(**RANDOM) == "repeat_and_select"
    assert default_rule("random", early_stopping=True) == "composition"
    assert not is_adaptive(**RANDOM)
    assert not is_adaptive(**GRID)
    for searcher in selection.SEARCHERS:
        assert is_adaptive(searcher, early_stopping=True)
    for searcher in ("grid", "tpe", "nsga2", "gp"):
        assert is_adaptive(searcher, early_stopping=False) == (searcher != "grid")
        assert default_rule(searcher, early_stopping=False) == "composition"
        with pytest.raises(InputError, match="use composition"):
            check_rule("repeat_and_select", searcher=searcher, early_stopping=False)
        for rule in ("composition", "public"):
            check_rule(rule, searcher=searcher, early_stopping=True)
    check_rule("repeat_and_select", **RANDOM)
    with pytest.raises(InputError, match="early stopping"):
        check_rule("repeat_and_select", searcher="random", early_stopping=True)
    with pytest.raises(InputError, match="searcher"):
        default_rule("sobol", early_stopping=True)
    with pytest.raises(InputError, match="selection"):
        check_rule("free", **RANDOM)


@pytest.mark.parametrize(
    "fields",
    [{"mean": 0.5}, {"mean": math.nan}, {"mean": True}, {"law": "uniform"}, {"candidates": []}, {"delta": 0.0}],
)
def test_bad_input(fields):
    call = {**RANDOM, "candidates": [[(ROUND, 5)]], "mean": 2.0, "law": "geometric", "delta": 1e-5} | fields
    with pytest.raises(InputError, match=next(iter(fields))):
        epsilon_of_choosing("repeat_and_select", **call)
    with pytest.raises(InputError, match="selection"):
        epsilon_of_choosing("free", **call)


@pytest.mark.parametrize("rounds", [[50_000, -49_999], [True], [1.0], [1] * 65])
def test_candidates_that_no_sweep_wrote_are_refused(rounds):
    mechanism = RoundMechanism(noise_multiplier=2.0, user_sampling_prob=0.1).to_dict()
    with pytest.raises(InputError, match=r"rounds|more mechanisms than any run"):
        selection.candidates_of([[{"mechanism": mechanism, "rounds": each} for each in rounds]])
