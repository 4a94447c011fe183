from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from uedp_ray.analysis.epsilon import epsilon_over_holders, epsilon_over_rounds
from uedp_ray.analysis.style import NothingToShow
from uedp_ray.privacy.accounting import epsilon
from uedp_ray.privacy.events import epsilon_of_events
from uedp_ray.privacy.mechanisms.poisson import RoundMechanism
from uedp_ray.privacy.published import published_epsilon

MECHANISM = RoundMechanism(
    noise_multiplier=2.0,
    user_sampling_prob=0.05,
    entity_sampling_prob=0.5,
    max_holders=2,
    entity_clip=0.2,
    extended_clip=0.2,
)
VOCABULARY = {"kind": "vocabulary", "noise_multiplier": 20.0, "threshold_delta": 1e-6, "max_holders": 2}


def curves(axes) -> dict[str, tuple[list[float], list[float]]]:
    return {each.get_label(): (np.array(each.get_xdata()).tolist(), list(each.get_ydata())) for each in axes.lines}


def test_each_unit_has_its_own_axis_and_the_accountants_values():
    figure = epsilon_over_rounds(MECHANISM, rounds=20, delta=1e-5, target_epsilon=1.0)
    for axes, unit in zip(figure.axes, ("user-entity", "user", "entity"), strict=True):
        rounds, values = curves(axes)["sound accountant: an upper bound"]
        expected = [epsilon(MECHANISM, rounds=count, delta=1e-5, unit=unit) for count in rounds]
        assert values == expected
        assert curves(axes)["this run"][0] == [20]
        assert axes.get_title().startswith(f"unit: {unit.replace('-', ' and ')}\nthis run alone: ε = ")
        assert axes.get_title().endswith("zero-out, δ = 1e-05")
    assert len({axes.get_ylim() for axes in figure.axes}) == 3
    assert "the budget" in curves(figure.axes[0])
    assert "the budget" not in curves(figure.axes[1])


@pytest.mark.parametrize(("unit", "panel", "method"), [("user-entity", 0, "uedp_fe"), ("user", 1, "user_dp")])
def test_published_is_dashed_labelled_and_beside_the_unit_it_claims(unit, panel, method):
    figure = epsilon_over_rounds(MECHANISM, rounds=20, delta=1e-5, unit=unit)
    label = "published: as published, not a guarantee"
    assert [label in curves(axes) for axes in figure.axes] == [index == panel for index in range(3)]
    rounds, values = curves(figure.axes[panel])[label]
    settings = {"noise_multiplier": 2.0, "user_sampling_prob": 0.05, "entity_sampling_prob": 0.5}
    assert values[-1] == published_epsilon(method=method, rounds=rounds[-1], delta=1e-5, **settings)
    (drawn,) = (each for each in figure.axes[panel].lines if each.get_label() == label)
    assert drawn.get_linestyle() == "--"


def test_a_unit_without_bounds_says_so():
    figure = epsilon_over_rounds(dataclasses.replace(MECHANISM, max_holders=None), rounds=5, delta=1e-5, unit="user")
    entity = figure.axes[2]
    assert "ε = no guarantee" in entity.get_title()
    assert not curves(entity)


def test_holders_raise_epsilon_at_the_same_noise():
    figure = epsilon_over_holders(MECHANISM, rounds=20, delta=1e-5)
    for axes, unit in zip(figure.axes, ("user-entity", "entity"), strict=True):
        holders, values = curves(axes)["same noise, other K"]
        assert {1, 2, 10, 100} == set(holders) & {1, 2, 10, 100, 1000}
        assert values == sorted(values)
        assert values[0] < values[-1]
        assert values[holders.index(2)] == epsilon(MECHANISM, rounds=20, delta=1e-5, unit=unit)
        (held_by,), (value,) = curves(axes)["this run"]
        assert (held_by, value) == (2, values[holders.index(2)])


def test_no_more_holders_are_shown_than_users_were_declared():
    mechanism = dataclasses.replace(MECHANISM, max_users=7, holder_bound="reweight")
    figure = epsilon_over_holders(mechanism, rounds=5, delta=1e-5)
    assert curves(figure.axes[0])["same noise, other K"][0] == [1, 2, 3, 5]


@pytest.mark.parametrize("holders", [None, 0])
def test_without_bounded_entities_there_is_no_figure_of_holders(holders):
    with pytest.raises(NothingToShow):
        epsilon_over_holders(dataclasses.replace(MECHANISM, max_holders=holders), rounds=5, delta=1e-5)


def test_a_private_vocabulary_is_charged_with_its_own_holders():
    event = {"kind": "round", "mechanism": MECHANISM.to_dict(), "private": True}
    expected = epsilon_of_events([VOCABULARY, *[event] * 5], delta=1e-5, unit="entity")
    figure = epsilon_over_rounds(MECHANISM, rounds=5, delta=1e-5, others=[VOCABULARY])
    assert curves(figure.axes[2])["this run"][1] == [expected]
    holders, values = curves(epsilon_over_holders(MECHANISM, rounds=5, delta=1e-5, others=[VOCABULARY]).axes[1])[
        "same noise, other K"
    ]
    ten = {**event, "mechanism": {**event["mechanism"], "max_holders": 10}}
    changed = epsilon_of_events([{**VOCABULARY, "max_holders": 10}, *[ten] * 5], delta=1e-5, unit="entity")
    assert values[holders.index(10)] == changed
