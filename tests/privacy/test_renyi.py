"""Renyi divergences against quadrature, closed forms, dp_accounting's sampled Gaussian, and the sharper accountant."""

from __future__ import annotations

import functools
import math

import numpy as np
import pytest
from dp_accounting.rdp.rdp_privacy_accountant import _compute_rdp_poisson_subsampled_gaussian
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special, stats

from tests.privacy.mechanisms import BASE, REFERENCE, change
from uedp_ray.errors import InputError
from uedp_ray.privacy import accounting, composition, renyi
from uedp_ray.privacy.mechanisms.poisson import RoundMechanism

NOTHING_CUT = 1e-200
NODES, WEIGHTS = np.polynomial.legendre.leggauss(48)  # of an interval of 2, on which the integrands are smooth
by_renyi = functools.partial(accounting.compose, accountant="renyi")


def by_quadrature(mechanism: RoundMechanism, unit: str, order: float) -> float:
    """The larger direction, from the theorem's table and Gauss and Legendre's quadrature."""
    z, q_u, q_e = mechanism.noise_multiplier, mechanism.user_sampling_prob, mechanism.entity_sampling_prob
    logs: list[list[float]] = [[], []]
    for n in range(mechanism.max_holders + 1):
        if mechanism.selection_rule == "any":
            moved = [(n, 1.0)]
        elif mechanism.entity_draw == "global":
            moved = [(0, 1 - q_e), (n, q_e)]
        else:
            moved = [(j, stats.binom.pmf(j, n, q_e)) for j in range(n + 1)]
        users = [(0, 1.0)] if unit == "entity" else [(0, 1 - q_u), (1, q_u)]
        pairs = [(b + j * mechanism.entity_clip, p * w) for b, p in users for j, w in moved if p * w > 0]
        u, p = np.array(pairs).T
        u = u / z
        for side, power in enumerate((order, 1 - order)):
            scale = (order**2 - order) / 2 * u.max() ** 2 if side == 0 else 0.0

            edges = np.arange(-20.0, order * u.max() + 21.0, 2.0)
            x = (edges[:-1, None] + 1.0 + NODES).ravel()
            logs_x = power * special.logsumexp(u * x[:, None] - u**2 / 2, b=p, axis=1) - x * x / 2 - scale
            value = np.tile(WEIGHTS, len(edges) - 1) @ np.exp(logs_x)
            weight = stats.binom.pmf(n, mechanism.max_holders, q_u) / math.sqrt(2 * math.pi)
            logs[side].append(scale + math.log(weight * value))
    return max(special.logsumexp(side) for side in logs) / (order - 1)


@pytest.mark.parametrize("unit", ["user-entity", "entity"])
@pytest.mark.parametrize(
    "fields",
    [
        {"max_holders": 3},
        {"max_holders": 4, "selection_rule": "any", "noise_multiplier": 0.8, "entity_clip": 0.7},
        {"max_holders": 4, "entity_draw": "per_user", "user_sampling_prob": 0.3, "entity_clip": 1.0},
        {"max_holders": 2, "user_sampling_prob": 0.9, "entity_sampling_prob": 1.0, "entity_clip": 2.0},
    ],
)
def test_one_round_by_quadrature(fields, unit):
    mechanism = change(**fields)
    rates, lost = renyi.rdp([(mechanism, 1)], lost=NOTHING_CUT, unit=unit)
    assert lost <= NOTHING_CUT
    for order in (1.05, 1.5, 2.25, 4.0, 9.0):
        exact = by_quadrature(mechanism, unit, order)
        assert exact * (1 - 1e-9) <= rates[renyi.ORDERS.index(order)] <= exact * (1 + 1e-6) + 1e-10


@pytest.mark.parametrize("order", [1.05, 3.0, 12.0])
@pytest.mark.parametrize("shifts", [[0.0, 3.0], [0.4, 1.5], [0.0, 0.1]])
def test_each_direction_by_a_fine_sum(shifts, order):
    u, log_p = np.array([shifts]), np.log([[0.3, 0.7]])
    x = np.linspace(-60, 80, 1_400_001)
    ratio = np.logaddexp(*(log_p[0, j] + u[0, j] * x - u[0, j] ** 2 / 2 for j in (0, 1)))
    for side, power in enumerate((order, 1 - order)):
        exact = special.logsumexp(power * ratio - x**2 / 2) + math.log(1e-4 / math.sqrt(2 * math.pi))
        value = renyi._log_moments(u, log_p, order, side)[0]
        assert exact <= value <= exact + 1e-10 * max(1.0, exact)


@pytest.mark.parametrize(("prob", "noise"), [(0.02, 1.0), (0.05, 2.0), (0.3, 0.5), (0.001, 0.6)])
def test_users_alone_are_the_sampled_gaussian(prob, noise):
    mechanism = change(user_sampling_prob=prob, noise_multiplier=noise)
    rates, lost = renyi.rdp([(mechanism, 1)], lost=1e-9, unit="user")
    assert lost == 0.0
    library = _compute_rdp_poisson_subsampled_gaussian(prob, noise, renyi.ORDERS)
    whole = np.array([float(order).is_integer() for order in renyi.ORDERS])
    np.testing.assert_allclose(rates[whole], library[whole], rtol=1e-6)
    assert (rates[whole] >= library[whole] * (1 - 1e-12)).all()
    assert (rates <= library * (1 + 1e-6)).all()  # its series for fractional orders drops signs


def test_without_sampling_it_is_the_gaussian():
    mechanism = change(user_sampling_prob=1.0, selection_rule="any", max_holders=4, entity_clip=0.5)
    rates, _ = renyi.rdp([(mechanism, 7)], lost=1e-9)
    np.testing.assert_allclose(rates, 7 * np.array(renyi.ORDERS) * 3.0**2 / (2 * 2.0**2), rtol=1e-9)


@pytest.mark.parametrize("rule_draw", [("all", "global"), ("any", "global"), ("all", "per_user")])
@pytest.mark.parametrize(
    ("z", "q_u", "q_e", "holders", "clip", "rounds"),
    [*(row[:6] for row in REFERENCE), (2.0, 0.05, 0.5, 50, 0.2, 50)],
)
def test_above_and_close_to_the_sharper_accountant(z, q_u, q_e, holders, clip, rounds, rule_draw):
    mechanism = RoundMechanism(
        noise_multiplier=z,
        user_sampling_prob=q_u,
        entity_sampling_prob=q_e,
        max_holders=holders,
        entity_clip=clip,
        selection_rule=rule_draw[0],
        entity_draw=rule_draw[1],
    )
    sharp = accounting.epsilon(mechanism, rounds=rounds, delta=1e-5, kind="entity")
    assert sharp <= by_renyi([(mechanism, rounds)], delta=1e-5, kind="entity") <= 1.2 * sharp


@pytest.mark.slow
@settings(max_examples=12, derandomize=True)
@given(
    st.floats(0.4, 6.0),
    st.floats(0.001, 1.0),
    st.floats(0.0, 1.0),
    st.integers(0, 60),
    st.floats(0.0, 2.0),
    st.integers(1, 300),
    st.sampled_from([("all", "global"), ("any", "global"), ("all", "per_user")]),
    st.sampled_from(["user-entity", "entity"]),
)
def test_never_below_the_sharper_accountant(z, q_u, q_e, holders, clip, rounds, rule_draw, unit):
    mechanism = RoundMechanism(
        noise_multiplier=z,
        user_sampling_prob=q_u,
        entity_sampling_prob=q_e,
        extended_sampling_prob=q_e,
        max_holders=holders,
        entity_clip=clip,
        extended_clip=clip,
        selection_rule=rule_draw[0],
        entity_draw=rule_draw[1],
    )
    call = {"delta": 1e-5, "unit": unit}
    sharp = accounting.epsilon(mechanism, rounds=rounds, **call)
    assert by_renyi([(mechanism, rounds)], **call) >= sharp * 0.999 - 1e-3  # that one may be 0.1 % too high


def test_both_is_the_larger_kind_and_parts_add():
    mechanism = change(extended_clip=1.5, max_holders=1)
    kinds = {k: by_renyi([(mechanism, 50)], delta=1e-5, kind=k) for k in ("entity", "extended", "both")}
    assert kinds["both"] == kinds["extended"] > kinds["entity"]
    other = change(noise_multiplier=1.0)
    sums = [renyi.rdp([(m, c)], lost=NOTHING_CUT)[0] for m, c in ((BASE, 3), (other, 4))]
    np.testing.assert_allclose(renyi.rdp([(BASE, 3), (other, 4)], lost=NOTHING_CUT)[0], sum(sums))


def test_cut_labels_are_charged():
    mechanism = change(max_holders=100, entity_clip=0.5)
    uncut, none = renyi.rdp([(mechanism, 50)], lost=NOTHING_CUT)
    cut, lost = renyi.rdp([(mechanism, 50)], lost=1e-7)
    assert none <= NOTHING_CUT < 1e-9 < lost <= 1e-7
    assert (cut <= uncut).all()
    assert uncut[-1] > 1.5 * cut[-1]  # rare labels rule the high orders
    assert renyi.to_epsilon(cut, 1e-5 - lost) == by_renyi([(mechanism, 50)], delta=1e-5, kind="entity")
    assert renyi.to_epsilon(cut, 0.0) == math.inf


def test_bound_without_quadrature_is_above_it(monkeypatch):
    shifts, log_p = np.array([[0.0, 0.5, 3.0]]), np.log([[0.7, 0.2, 0.1]])
    for order in (1.05, 3.0, 40.0):
        fine = [renyi._log_moments(shifts, log_p, order, side)[0] for side in (0, 1)]
        with monkeypatch.context() as patch:
            patch.setattr(renyi, "_MAX_NODES", 0)
            rough = [renyi._log_moments(shifts, log_p, order, side)[0] for side in (0, 1)]
        assert fine[0] <= rough[0] <= fine[0] + (order - 1) * math.log(10) + 1e-9  # at most log 1/p above
        assert fine[1] <= rough[1]


@pytest.mark.slow
@pytest.mark.parametrize("draw", ["global", "per_user"])
def test_reweighting_holds_for_every_number_of_holders(draw):
    mechanism = change(noise_multiplier=0.5, user_sampling_prob=0.01, max_holders=2, entity_clip=1.5, entity_draw=draw)
    free = change(mechanism, holder_bound="reweight", max_users=100)
    rates, lost = renyi.rdp([(free, 10)], lost=1e-9)
    assert lost <= 1e-9
    for holders in (2, 3, 4, 7, 20, 100):
        one = change(mechanism, max_holders=holders, entity_clip=1.5 * 2 / holders)
        assert (renyi.rdp([(one, 10)], lost=1e-9)[0] <= rates * (1 + 1e-9)).all()
    sharp = accounting.epsilon(free, rounds=10, delta=1e-5)
    assert sharp <= by_renyi([(free, 10)], delta=1e-5) <= 2 * sharp
    if draw == "global":  # what K holders who always use the entity cost, and hardly more
        always = change(mechanism, entity_sampling_prob=1.0)
        assert (rates <= renyi.rdp([(always, 10)], lost=1e-9)[0] * 1.05).all()


def test_unbounded_nothing_and_bad_input():
    unbounded = change(max_holders=None)
    assert by_renyi([(unbounded, 1)], delta=1e-5) == math.inf
    assert by_renyi([(unbounded, 1)], delta=1e-5, unit="user") < 1
    assert by_renyi([], delta=1e-5) == by_renyi([(BASE, 0)], delta=1e-5) == 0.0
    for fields in ({"delta": 0.0}, {"delta": 1e-5, "kind": "none"}, {"delta": 1e-5, "unit": "published"}):
        with pytest.raises(InputError):
            by_renyi([(BASE, 1)], **fields)
    with pytest.raises(InputError, match="rounds"):
        by_renyi([(BASE, -1)], delta=1e-5)
    with pytest.raises(InputError, match="lost"):
        renyi.rdp([(BASE, 1)], lost=0.0)


@pytest.mark.parametrize(
    ("z", "q_u", "least", "most"), [(2.0, 0.01, 1.01, 1.13), (10.0, 0.001, 1.01, 1.13), (1.0, 1e-4, 2.0, 3.0)]
)
def test_at_many_rounds_it_is_as_far_above_composition_as_the_page_says(z, q_u, least, most):
    """At the most rounds that are still composed: beyond them it takes their place."""
    mechanism, rounds = change(noise_multiplier=z, user_sampling_prob=q_u), composition.MAX_ROUNDS
    composed = accounting.epsilon(mechanism, rounds=rounds, delta=1e-5, unit="user")
    assert least < by_renyi([(mechanism, rounds)], delta=1e-5, unit="user") / composed < most
