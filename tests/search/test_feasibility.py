"""What the budget refuses, before any worker starts."""

from __future__ import annotations

import math

import pytest

from tests.search.sweeps import sweep_config
from uedp_ray import methods
from uedp_ray.calibration import planned_charges
from uedp_ray.errors import InputError
from uedp_ray.plan import Plan
from uedp_ray.privacy.accounting import epsilon
from uedp_ray.privacy.statement import show_epsilon
from uedp_ray.search.feasibility import alone, budget_cautions, check_reachable, judge

FREE = {"noise": "free"}
NOISE = {"privacy.noise_multiplier": {"uniform": [0.3, 0.6]}, "training.num_rounds": {"integer": [10, 30]}}


def free_sweep(corpora, tmp_path, **budget):
    return sweep_config(corpora, tmp_path, space=NOISE, budget={**FREE, **budget})


def reachable(sweep):
    check_reachable(sweep, alone(sweep))


def judged(sweep, point):
    return judge(sweep, point, alone(sweep))


def test_a_free_point_is_refused_exactly_where_its_epsilon_exceeds_the_budget(corpora, tmp_path):
    point = {"privacy.noise_multiplier": 0.5, "training.num_rounds": 12}
    config = judged(free_sweep(corpora, tmp_path, target_epsilon=1e3), point).config
    assert config is not None
    mechanism = Plan.of(config).mechanism
    assert mechanism is not None
    true = epsilon(mechanism, rounds=12, delta=1e-4)
    for target, allowed in ((true * 1.001, True), (true * 0.999, False)):
        verdict = judged(free_sweep(corpora, tmp_path, target_epsilon=target), point)
        assert (verdict.config is not None) == allowed
        assert verdict.excess == pytest.approx(true - target)
        assert allowed or show_epsilon(true) in verdict.reason


@pytest.mark.parametrize("method", ["noiseless", "clip_only", "local_dp_fedavg", "published", "user_dp"])
def test_what_has_no_epsilon_in_the_unit_is_refused_with_a_reason(corpora, tmp_path, method):
    sweep = sweep_config(corpora, tmp_path, space={"method": {"choice": ["uedp", method]}})
    verdict = judged(sweep, {"method": method})
    assert verdict.config is None
    assert verdict.reason
    assert math.isinf(verdict.excess)
    assert judged(sweep, {"method": "uedp"}).config is not None


def test_every_method_is_held_to_the_unit_of_the_budget(corpora, tmp_path):
    sweep = sweep_config(corpora, tmp_path, space={"method": {"choice": ["uedp", "user_dp"]}}, budget={"unit": "user"})
    for method in ("uedp", "user_dp"):
        config = judged(sweep, {"method": method}).config
        assert config is not None
        assert (config.privacy.unit, config.privacy.target_epsilon) == ("user", 8.0)


def test_a_calibrated_point_may_ask_for_less_than_the_budget(corpora, tmp_path):
    sweep = sweep_config(corpora, tmp_path, space={"privacy.target_epsilon": {"uniform": [1.0, 8.0]}})
    config = judged(sweep, {"privacy.target_epsilon": 2.0}).config
    assert config is not None
    assert config.privacy.target_epsilon == 2.0


def test_a_budget_no_point_meets_names_the_smallest_epsilon_and_the_knob_that_binds(corpora, tmp_path):
    sweep = free_sweep(corpora, tmp_path)
    least = judged(sweep, {"privacy.noise_multiplier": 0.6, "training.num_rounds": 10}).excess + 8
    with pytest.raises(InputError) as caught:
        reachable(sweep)
    message = str(caught.value)
    assert caught.value.field == "budget.target_epsilon"
    assert f"smallest epsilon (user-entity) is {math.ceil(least * 1000) / 1000:.3f}" in message
    assert "privacy.noise_multiplier = 0.6 (searched) binds most: at 1.2" in message
    reachable(free_sweep(corpora, tmp_path, target_epsilon=least * 1.01))


def test_a_space_without_any_private_point_says_why(corpora, tmp_path):
    sweep = sweep_config(corpora, tmp_path, space={"method": {"choice": ["noiseless", "user_dp"]}})
    with pytest.raises(InputError, match=r"can meet it; the first says: .*(protected only within bounds|no guarantee)"):
        reachable(sweep)


def test_a_budget_under_which_nothing_is_learnt_is_told(corpora, tmp_path):
    assert budget_cautions(sweep_config(corpora, tmp_path)) == []
    poor = sweep_config(corpora, tmp_path, budget={"target_epsilon": 1e-4, "delta": 1e-4, "unit": "user"})
    [noise] = budget_cautions(poor)
    assert "nothing can be learnt" in noise


def test_a_billion_rounds_are_judged_like_any_number(corpora, tmp_path):
    verdict = judged(free_sweep(corpora, tmp_path), {"privacy.noise_multiplier": 0.5, "training.num_rounds": 10**9})
    assert verdict.config is None
    assert verdict.excess > 1e6
    many = methods.overlay(sweep_config(corpora, tmp_path).base, {"training.num_rounds": 10**9})
    assert planned_charges(many, 0.5).num_rounds == Plan.of(many).header()["plan"]["rounds"] == 10**9
