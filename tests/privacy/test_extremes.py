"""At the ends of every scale: an answer or one clear error, within seconds; and epsilon falls as noise grows."""

from __future__ import annotations

import functools
import math

import numpy as np
import pytest
from scipy import optimize, special

from tests.privacy.mechanisms import change
from uedp_ray.answers import parameter_epsilon
from uedp_ray.errors import InputError
from uedp_ray.privacy import accounting, composition
from uedp_ray.privacy.accounting import calibrate, compose, epsilon
from uedp_ray.privacy.cautions import cautions, weakness
from uedp_ray.privacy.events import epsilon_of_events
from uedp_ray.privacy.mechanisms.poisson import RoundMechanism
from uedp_ray.privacy.published import published_epsilon


@pytest.mark.parametrize("unit", ["user-entity", "user", "entity"])
@pytest.mark.parametrize(("prob", "clip"), [(0.05, 2.0), (0.5, 1.0)])
def test_epsilon_falls_as_noise_grows_where_it_is_large(unit, prob, clip):
    """At epsilon about 745 exp(-loss) leaves the floating-point range: infinity was found between finite neighbours."""
    base = change(user_sampling_prob=prob, max_holders=4, entity_clip=clip)
    call = {"rounds": 10, "delta": 1e-5, "unit": unit, "kind": "entity"}
    middle = calibrate(base, target_epsilon=750.0, **call)
    noises = middle * np.exp(np.linspace(-0.1, 0.1, 25))
    values = [epsilon(change(base, noise_multiplier=float(z)), **call) for z in noises]
    assert values == sorted(values, reverse=True)
    assert math.inf > values[0] > 850 > 650 > values[-1]


@pytest.mark.parametrize("target", [50.0, 690.0, 740.0, 760.0, 1100.0, 5000.0])
def test_large_epsilons_are_those_of_one_gaussian(target):
    """q_u = 1, users alone: T rounds are one Gaussian mechanism, whose epsilon has a closed form."""
    mu = (math.sqrt(2 * target) - 4.0) if target > 20 else 1.0

    def delta_at(eps):
        log_second = eps + special.log_ndtr(-eps / mu - mu / 2)
        return special.ndtr(-eps / mu + mu / 2) - math.exp(min(0.0, log_second))

    exact = optimize.brentq(lambda eps: delta_at(eps) - 1e-5, 1.0, 4 * target)
    mechanism = change(user_sampling_prob=1.0, max_holders=0, noise_multiplier=2.0 / mu)
    found = epsilon(mechanism, rounds=4, delta=1e-5, unit="user")
    assert exact <= found <= 1.003 * exact


EXTREMES = [
    {"rounds": 10**9},
    {"rounds": 10**10, "noise_multiplier": 1e5},
    {"rounds": 10**9, "noise_multiplier": 1e-300},
    {"rounds": 10**9, "noise_multiplier": 1e300},
    {"rounds": 250_000, "delta": 1e-12},
    {"rounds": 3000, "delta": 1e-12},
    {"max_holders": 10**9},
    {"max_holders": 10**9, "noise_multiplier": 1e9},
    {"max_holders": 5, "holder_bound": "reweight", "max_users": 10**9},
    {"noise_multiplier": 1e-300},
    {"noise_multiplier": 5e-324},
    {"noise_multiplier": 1e300},
    {"user_sampling_prob": 0.0},
    {"user_sampling_prob": 1.0},
    {"user_sampling_prob": 5e-324},
    {"user_sampling_prob": 1.0 - 2**-53},
    {"entity_sampling_prob": 5e-324},
    {"entity_clip": 1e300},
    {"entity_clip": 5e-324},
    {"entity_clip": 5e-324, "holder_bound": "reweight", "max_users": 60},
    {"user_sampling_prob": 5e-324, "holder_bound": "reweight", "max_users": 60},
    {"user_sampling_prob": 0.0, "holder_bound": "reweight", "max_users": 60},
    {"entity_sampling_prob": 5e-324, "holder_bound": "reweight", "max_users": 60, "entity_draw": "per_user"},
    {"delta": 1.0 - 2**-53},
]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("extreme", EXTREMES, ids=str)
def test_extreme_numbers_have_an_answer(extreme):
    call = {"rounds": 50, "delta": 1e-5} | {k: v for k, v in extreme.items() if k in ("rounds", "delta")}
    mechanism = change(**{k: v for k, v in extreme.items() if k not in call})
    found = parameter_epsilon(mechanism, **call)
    assert found["epsilon"] >= 0.0
    assert found["guarantee"] == math.isfinite(found["epsilon"])


def test_more_rounds_than_are_composed_numerically_cost_more():
    mechanism = change(noise_multiplier=300.0)
    counts = (1000, 199_999, 200_001, 10**7, 10**9)
    values = [epsilon(mechanism, rounds=count, delta=1e-5) for count in counts]
    assert values == sorted(values)
    assert values[2] < 1.2 * values[1]
    assert calibrate(mechanism, target_epsilon=8.0, rounds=10**9, delta=1e-5) > 1000


def test_no_noise_is_solved_for_a_delta_that_promises_nothing():
    """It would take minutes: next to none is left, and the fewer there is, the finer the grid."""
    with pytest.raises(InputError, match=r"delta = 0\.99: must be at most 0\.9 to solve for noise"):
        calibrate(change(holder_bound="reweight", max_users=60), target_epsilon=8.0, rounds=6, delta=0.99)


@pytest.mark.parametrize("call", [{"max_order": 100_000}, {"max_order": 0}, {"rounds": 10**30}, {"rounds": -1},
                                  {"noise_multiplier": 1e-300}, {"noise_multiplier": 1e300}])  # fmt: skip
def test_published_figures_beyond_computing_are_refused(call):
    with pytest.raises(InputError, match=next(iter(call))):
        published_epsilon(**{"noise_multiplier": 2.0, "user_sampling_prob": 0.05, "rounds": 5, "delta": 1e-5} | call)


def test_a_delta_and_a_noise_that_are_of_no_use_are_told():
    small = change(user_sampling_prob=0.1, noise_multiplier=5.0, extended_clip=0.2)
    assert cautions(small, delta=1e-5, num_users=1000) == []
    [delta] = cautions(small, delta=1e-3, num_users=1000)
    assert "not below 1 / 1000 declared users" in delta
    [noise] = cautions(change(small, noise_multiplier=1e5), delta=1e-5, num_users=1000)
    assert "1e+03 times" in noise
    assert len(cautions(change(small, user_sampling_prob=0.0), delta=1.0, num_users=1000)) == 2
    told = parameter_epsilon(change(small, max_users=1000), rounds=5, delta=1e-3)["cautions"]
    assert told == [delta]


def test_an_epsilon_that_promises_little_is_cautioned():
    assert weakness(10.0) == weakness(0.0) == weakness(math.inf) == []
    assert "odds of a guess about the protected unit by a factor of 59,875" in weakness(math.nextafter(11.0, 10.0))[0]
    assert "epsilon = 27.442 is above 10" in weakness(27.4413)[0]
    assert weakness(27.4413)[0].endswith("a factor of 10^12.0"), "it bounds too: 10^11.918"
    assert weakness(1234.5631)[0].startswith("epsilon = 1234.564 ")
    assert weakness(1e300)[0].endswith("or more")
    assert weakness(1.7e308)
    weak, strong = (change(noise_multiplier=z, extended_clip=0.2) for z in (0.3, 30.0))
    assert parameter_epsilon(strong, rounds=5, delta=1e-5)["cautions"] == []
    assert "weak guarantee" in parameter_epsilon(weak, rounds=500, delta=1e-5)["cautions"][0]
    figure = {"rounds": 5, "delta": 1e-5, "accountant": "published"}
    assert parameter_epsilon(change(noise_multiplier=1e-3), **figure)["cautions"] == []


@pytest.mark.parametrize("noise_multiplier", [7e-154, 1e-160, 1e-20])
@pytest.mark.parametrize("accountant", ["pld", "renyi"])
def test_hardly_any_noise_is_no_error(noise_multiplier, accountant):
    mechanism = change(user_sampling_prob=1.0, noise_multiplier=noise_multiplier)
    assert parameter_epsilon(mechanism, rounds=1, delta=1e-5, unit="user", accountant=accountant)["epsilon"] > 1e9
    vocabulary = {"kind": "vocabulary", "noise_multiplier": noise_multiplier, "max_holders": 0, "threshold_delta": 0.0}
    assert epsilon_of_events([vocabulary], delta=1e-5, unit="user", accountant=accountant) > 1e9


def test_a_figure_without_entities_says_that_it_protects_none():
    mechanism = change(max_holders=0, noise_multiplier=5.0)
    assert "protects none" in parameter_epsilon(mechanism, rounds=5, delta=1e-5)["cautions"][0]
    for less in ({"unit": "user"}, {"kind": "extended"}):
        assert parameter_epsilon(mechanism, rounds=5, delta=1e-5, **less)["cautions"] == []
    unmoved = change(max_holders=3, noise_multiplier=5.0, entity_clip=0.0, extended_clip=0.1)
    for kind, told in (("both", 1), ("entity", 1), ("extended", 0)):
        assert len(parameter_epsilon(unmoved, rounds=5, delta=1e-5, kind=kind)["cautions"]) == told
    alone = change(max_holders=3, noise_multiplier=5.0, entity_clip=0.1, extended_clip=0.0)
    for kind, told in (("both", 1), ("entity", 0), ("extended", 1)):
        assert len(parameter_epsilon(alone, rounds=5, delta=1e-5, kind=kind)["cautions"]) == told
    assert parameter_epsilon(unmoved, rounds=5, delta=1e-5, unit="user")["cautions"] == []


@pytest.mark.parametrize(
    "harmless", [{"user_sampling_prob": 0.0}, {"user_sampling_prob": 1e-12}, {"noise_multiplier": 1e18}], ids=str
)
@pytest.mark.parametrize("unit", ["user-entity", "user"])
def test_rounds_that_lose_hardly_anything_add_hardly_anything(harmless, unit):
    base, call = change(), {"delta": 1e-5, "unit": unit}
    alone = compose([(base, 50)], **call)
    assert compose([(base, 50), (change(base, **harmless), 50)], **call) == pytest.approx(alone, rel=1e-4)


@pytest.mark.parametrize("clip", ["entity_clip", "extended_clip"])
def test_a_whole_number_beyond_any_integer_of_the_machine_is_a_number(clip):
    values = [epsilon(change(**{clip: large}), rounds=5, delta=1e-5) for large in (10**30, 1e30)]
    assert values[0] == values[1] > 100


@pytest.mark.parametrize(
    ("z", "q_u", "rounds", "delta"),
    [
        (0.5391858820968851, 1.7245439786419283e-09, 3, 2.16201553589653e-12),
        (0.5285593877266728, 9.789432039006569e-08, 12, 1.088829046634781e-12),
    ],
)
def test_rounding_in_the_convolution_is_paid_for_where_hardly_anything_is_drawn(z, q_u, rounds, delta, monkeypatch):
    """Nearly all mass is at a loss of zero, and its rounding is as large as what lies beyond epsilon."""
    ones, composed = [], []
    pmf, epsilon_at = composition._pmf, composition._epsilon_at
    monkeypatch.setattr(composition, "_pmf", lambda *given: ones.append(pmf(*given)) or ones[-1])
    monkeypatch.setattr(composition, "_epsilon_at", lambda *given: composed.append(epsilon_at(*given)) or composed[-1])
    accounting._epsilon.cache_clear()
    bounds = {"entity_sampling_prob": 1.0, "max_holders": 0, "entity_clip": 0.3, "extended_clip": 0.3}
    mechanism = RoundMechanism(noise_multiplier=z, user_sampling_prob=q_u, **bounds)
    epsilon(mechanism, rounds=rounds, delta=delta, unit="user", kind="entity")
    checked = 0
    for one, eps in zip(ones, composed, strict=True):
        one = one.to_dense_pmf()
        if len(one._probs) * rounds > 20_000:
            continue
        probs = functools.reduce(np.convolve, [np.array(one._probs, np.longdouble)] * rounds)
        losses = (one._lower_loss * rounds + np.arange(len(probs))) * one._discretization
        beyond = losses > eps
        lost = -math.expm1(rounds * math.log1p(-one._infinity_mass))
        assert lost + (probs[beyond] * -np.expm1(np.longdouble(eps) - losses[beyond])).sum() <= delta
        checked += 1
    assert checked > 1
