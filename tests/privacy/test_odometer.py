"""The odometer against the library's curves, an adversary who chooses noise and when to stop, and the sharper accountant."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math

import numpy as np
import pytest
from dp_accounting import dp_event
from dp_accounting.rdp import RdpAccountant, compute_epsilon
from scipy import optimize, special, stats

from tests.privacy.mechanisms import BASE, change
from uedp_ray.errors import InputError
from uedp_ray.privacy import accounting, odometer, renyi
from uedp_ray.privacy.events import Charges, UnsupportedEvent, epsilon_of_events
from uedp_ray.privacy.mechanisms.poisson import RoundMechanism
from uedp_ray.privacy.odometer import Odometer, to_epsilon

ROUND = RoundMechanism(noise_multiplier=1.0, user_sampling_prob=0.02, max_holders=0, extended_clip=0.0)
ORDERS = np.array(odometer.ORDERS)


def ledger(*parts: tuple[RoundMechanism, int], vocabularies: int = 0) -> list[dict[str, object]]:
    vocabulary = {"kind": "vocabulary", "noise_multiplier": 20.0, "max_holders": 3, "threshold_delta": 1e-7}
    rounds = [{"kind": "round", "private": True, "mechanism": m.to_dict()} for m, count in parts for _ in range(count)]
    return [{"kind": "open", "header": {"private": True}}, *[vocabulary] * vocabularies, *rounds]


def plan(mechanism: RoundMechanism = BASE, rounds: int = 20, runs: int = 8, **fields: object) -> Odometer:
    return Odometer(planned=((mechanism, rounds),), runs=runs, **{"delta": 1e-5, **fields})


def test_is_the_mixture_of_the_librarys_curves():
    noises = np.linspace(0.9, 1.4, 6)
    library, every = RdpAccountant(odometer.ORDERS), RdpAccountant()
    ledgers = []
    for noise in noises:
        sampled = dp_event.PoissonSampledDpEvent(0.02, dp_event.GaussianDpEvent(noise))
        for each in (library, every):
            each.compose(sampled, 300)
        ledgers.append(ledger((change(ROUND, noise_multiplier=float(noise)), 300)))
    for mean_noise, off in ((1.1, 1.04), (0.5, 1.3), (3.0, 1.3)):
        planned = RdpAccountant(odometer.ORDERS)
        planned.compose(dp_event.PoissonSampledDpEvent(0.02, dp_event.GaussianDpEvent(mean_noise)), 6 * 300)
        delta = 1e-5 * (1 - renyi.SHARE)
        best = np.argmin([compute_epsilon([a], [r], delta)[0] for a, r in zip(ORDERS, planned.rdp, strict=True)])
        weights = 1 / (1 + np.abs(np.arange(len(ORDERS)) - best)) ** 2.0
        found = plan(change(ROUND, noise_multiplier=mean_noise), 300, 6, unit="user").epsilon(ledgers)

        losses = np.arange(0.0, 2 * found, 1e-3)
        terms = weights / weights.sum() * np.exp((ORDERS - 1) * np.minimum(losses[:, None] - library.rdp, 50))
        right = delta * terms.sum(1)
        by_library = np.max(losses[right < 1] + np.log1p(-right[right < 1]))
        assert by_library * (1 - 1e-4) < found < by_library * (1 + 1e-6)  # its series for fractional orders drops signs
        assert every.get_epsilon(1e-5) < found < off * every.get_epsilon(1e-5)


def test_one_order_is_the_usual_conversion():
    for index, rate in ((5, 3.0), (12, 0.7), (20, 0.02)):
        weights = np.full(len(ORDERS), -np.inf)
        weights[index] = 0.0
        usual, _ = compute_epsilon(ORDERS[[index]], np.array([rate]), 1e-6)
        assert to_epsilon(np.full(len(ORDERS), rate), weights, 1e-6) == pytest.approx(usual, rel=1e-9)


def loss_beyond(epsilon_T: np.ndarray, rho_T: np.ndarray, seed: int, paths: int = 100_000) -> float:
    """The mean of (1 - exp(epsilon - loss))+ that an adaptive adversary reaches; at most delta if epsilon is true.

    A Gaussian release of sensitivity 1 and noise z adds a loss of law N(rho, 2 rho), rho = 1 / (2 z^2), and rho times the
    order to the Renyi divergence. The adversary asks for little noise far from its goal, for much close to it, and stops
    once the loss is so far beyond epsilon that it gains 0.4.
    """
    generator = np.random.default_rng(seed)
    loss, place = np.zeros(paths), np.full(paths, -1)
    gain = np.zeros(paths)
    going = np.arange(paths)
    while going.size:
        at = place[going]
        short = np.where(at < 0, 0.0, epsilon_T[at] - loss[going])
        goal = np.minimum(at + np.where(short < 0.5 * np.sqrt(2 * rho_T[at]), 1, 3), len(rho_T) - 1)
        rho = rho_T[goal] - np.where(at < 0, 0.0, rho_T[at])
        loss[going] += rho + np.sqrt(2 * rho) * generator.standard_normal(going.size)
        place[going] = goal
        gain[going] = -np.expm1(np.minimum(epsilon_T[goal] - loss[going], 0.0))
        going = going[(gain[going] < 0.4) & (goal < len(rho_T) - 1)]
    return float(gain.mean())


def test_an_adaptive_adversary_stays_within_delta():
    """A sum of losses made afterwards does not stand it, nor does Renyi's without weights. 100,000 paths: by Chernoff's
    bound a mean of gains of at most 0.05 is seen above 0.0545 with probability 1e-9."""
    delta, rho_T = 0.05, np.geomspace(0.02, 200.0, 120)
    releases = [RoundMechanism(noise_multiplier=float((2 * rho) ** -0.5), user_sampling_prob=1.0) for rho in rho_T]

    def gaussian(rho: float) -> float:
        mu = math.sqrt(2 * rho)

        def excess(x: float) -> float:
            return stats.norm.cdf(mu / 2 - x / mu) - math.exp(x + stats.norm.logcdf(-mu / 2 - x / mu)) - delta

        return optimize.brentq(excess, 0, rho + 12 * mu) if excess(0) > 0 else 0.0

    afterwards = np.array([gaussian(rho) for rho in rho_T])
    assert afterwards[60] == pytest.approx(
        accounting.epsilon(releases[60], rounds=1, delta=delta, unit="user"), rel=2e-3
    )
    without_weights = np.array([renyi.to_epsilon(rho * np.array(renyi.ORDERS), delta) for rho in rho_T])
    assert loss_beyond(afterwards, rho_T, seed=1) > 4 * delta
    assert loss_beyond(without_weights, rho_T, seed=2) > 2 * delta
    for seed, place in enumerate((60, 0, -1)):  # as expected, and 100 times off either way
        meter = plan(releases[place], 1, 1, delta=delta, unit="user", kind="entity")
        epsilon_T = np.array([meter.epsilon([ledger((release, 1))]) for release in releases])
        assert (np.diff(epsilon_T) >= 0).all()
        assert (epsilon_T >= without_weights * (1 - 1e-9)).all()
        reached = loss_beyond(epsilon_T, rho_T, seed=seed)
        assert reached < 0.0545
        assert place != 60 or reached > 0.75 * delta  # little is given away
    two = meter.epsilon([ledger((releases[40], 1), (releases[50], 1))])  # rounds add up as the adversary's do
    sum_of_both = change(releases[0], noise_multiplier=float((2 * (rho_T[40] + rho_T[50])) ** -0.5))
    assert two == pytest.approx(meter.epsilon([ledger((sum_of_both, 1))]), rel=1e-9)


@pytest.mark.parametrize("unit", [{"unit": "user-entity"}, {"unit": "user"}, {"unit": "entity"}])
def test_never_below_what_fixed_runs_cost(unit):
    generator = np.random.default_rng(3)
    for _ in range(4):
        runs = [
            change(
                noise_multiplier=float(generator.uniform(0.6, 4)),
                user_sampling_prob=float(generator.uniform(0.01, 0.3)),
                max_holders=int(generator.integers(1, 40)),
                extended_clip=float(generator.uniform(0, 2)),
            )
            for _ in range(4)
        ]
        ledgers = [ledger((mechanism, int(generator.integers(1, 60)))) for mechanism in runs]
        found = plan(**unit).epsilon(ledgers)
        assert found >= epsilon_of_events(itertools.chain(*(each[1:] for each in ledgers)), delta=1e-5, **unit) * 0.999
        for each in ledgers:
            assert found >= plan(**unit).epsilon([each]) >= epsilon_of_events(each[1:], delta=1e-5, **unit) * 0.999


def test_plans_that_are_far_off_cost_little_more():
    ledgers = [ledger((BASE, 20))] * 8
    right = plan().epsilon(ledgers)
    assert right < 1.03 * accounting.epsilon(BASE, rounds=160, delta=1e-5, accountant="renyi")
    for runs in (1, 80):
        assert right <= plan(runs=runs).epsilon(ledgers) < 1.25 * right


def test_rounds_replays_and_stopped_runs():
    meter = plan()
    whole = [ledger((BASE, 20))] * 5
    stopped = meter.epsilon([*whole, ledger((BASE, 7))])
    replayed = meter.epsilon([*whole, ledger((BASE, 8))])
    assert meter.epsilon(whole) < stopped < replayed < meter.epsilon([*whole, ledger((BASE, 20))])
    assert meter.epsilon([*whole, [], ledger(), ledger((BASE, 0))]) == meter.epsilon(whole)
    assert meter.epsilon([]) == meter.epsilon([ledger()]) == 0.0
    assert math.isfinite(meter.epsilon([ledger((BASE, 2000))] * 3))  # 37 times the plan


@pytest.mark.parametrize("noise_multiplier", [1e-7, 1e-9, 1e-12])
def test_what_is_beyond_all_rounding_is_a_number_or_infinite(noise_multiplier):
    tiny = dataclasses.replace(BASE, noise_multiplier=noise_multiplier, user_sampling_prob=1.0)
    assert Odometer(planned=((tiny, 10),), runs=2, delta=1e-5).epsilon([ledger((tiny, 10))]) > 1e12


def test_what_is_not_covered_is_infinite_or_refused():
    meter = plan()
    unbounded, none = change(max_holders=None), {"kind": "unprotected"}
    public = [{"kind": "open", "header": {"private": False}}]
    for events in ([none], public, [{**ledger((BASE, 1))[1], "private": False}], ledger((unbounded, 1))):
        assert meter.epsilon([ledger((BASE, 3)), events]) == math.inf
    assert plan(unit="user").epsilon([ledger((unbounded, 1))]) < math.inf
    assert plan(unbounded).epsilon([ledger((BASE, 20))] * 8) < math.inf  # plans are not charged
    with pytest.raises(UnsupportedEvent, match="histogram"):
        meter.epsilon([[{"kind": "histogram"}]])


@pytest.mark.parametrize("runs", [9, 15, 36])
def test_what_was_set_aside_is_enough_however_its_sum_is_rounded(runs):
    """Vocabularies of three noises were summed by noise, an ulp above what was put aside for all of them together."""
    share = 1e-8
    meter = plan(change(max_holders=3), runs=runs, threshold_delta=runs * share)
    events = [
        [
            {**event, "threshold_delta": share, "noise_multiplier": 20.0 + number % 3}
            for event in ledger(vocabularies=1)[1:]
        ]
        for number in range(runs)
    ]
    assert math.isfinite(meter.epsilon(events))
    assert math.isinf(meter.epsilon([*events, events[0]]))


@pytest.mark.parametrize(
    ("unit", "kind", "moved"), [("user", "both", 1), ("entity", "both", 3), ("user-entity", "extended", 2)]
)
def test_vocabularies(unit, kind, moved):
    unit = {"unit": unit, "kind": kind}
    meter = plan(change(max_holders=3), threshold_delta=2e-7, **unit)
    gaussian = RoundMechanism(noise_multiplier=20.0 / moved, user_sampling_prob=1.0)
    weights = odometer._log_weights(meter, "extended" if kind == "extended" else "entity")
    rates, _ = renyi.rdp([(gaussian, 2)], lost=1e-9, unit="user", orders=odometer.ORDERS)
    expected = to_epsilon(rates, weights, 1e-5 * (1 - renyi.SHARE) - 2e-7)
    ledgers = [ledger(vocabularies=1), ledger(vocabularies=1)]
    assert meter.epsilon(ledgers) == pytest.approx(expected, rel=1e-9)
    assert meter.epsilon([*ledgers, ledger(vocabularies=1)]) == math.inf  # more than was put aside
    assert meter.epsilon([ledger((BASE, 5), vocabularies=1)]) > meter.epsilon([ledger((BASE, 5))])
    assert plan(**unit).epsilon(ledgers) == math.inf


def test_labels_that_are_cut_stay_within_their_share(monkeypatch):
    meter = plan(runs=3, rounds=5)
    whole = [list(meter._limits(number, 0, 5 * 127)) for number in range(3 * 127)]
    limits = np.array([[share for share, many in run for _ in range(many)] for run in whole])
    assert limits.shape == (3 * 127, 5 * 127)
    for start in (0, 4, 5, 14, 15, 16, 100):  # wherever a mechanism's rounds begin
        found = [share for share, many in meter._limits(0, start, 37) for _ in range(many)]
        assert found == limits[0, start : start + 37].tolist()
    assert 0.98 * renyi.SHARE < limits.sum() / meter.delta <= renyi.SHARE
    assert limits[:3, :5].sum() == pytest.approx(renyi.SHARE * meter.delta / 4)

    endless = Charges(((BASE, 10**10),))
    assert meter.epsilon([endless]) > meter.epsilon([Charges(((BASE, 10**6),))]), "in no time, however many it says"

    cuts, real = [], renyi.rdp

    def counted(parts, **fields):
        found = real(parts, **fields)
        cuts.append(found[1])
        return found

    monkeypatch.setattr(renyi, "rdp", counted)
    for draw in ("global", "per_user"):
        heavy = change(max_holders=60, entity_draw=draw, extended_clip=0.0)
        meter = plan(heavy, 5, 3, kind="entity")
        odometer._log_weights(meter, "entity")
        cuts.clear()
        assert meter.epsilon([ledger((heavy, 12))] * 10) < math.inf
        assert 1e-4 * renyi.SHARE * 1e-5 < sum(cuts) <= renyi.SHARE * 1e-5
    monkeypatch.setattr(renyi, "rdp", lambda parts, **fields: (real(parts, **fields)[0], 3 * fields["lost"]))
    assert meter.epsilon([ledger((heavy, 1))]) == math.inf


def test_it_can_be_written_down():
    meter = plan(threshold_delta=1e-6, unit="entity", kind="extended")
    assert Odometer.from_dict(json.loads(json.dumps(meter.to_dict()))) == meter
    earlier = {"accountant" if name == "unit" else name: value for name, value in meter.to_dict().items()}
    assert Odometer.from_dict(earlier) == meter
    for name in meter.to_dict().keys() - {"target", "order"}:  # a filter's
        assert Odometer.from_dict({**meter.to_dict(), name: plan(ROUND, 3, 9, delta=1e-4).to_dict()[name]}) != meter


@pytest.mark.parametrize(
    "fields",
    [{"runs": 0}, {"runs": 1.5}, {"rounds": 0}, {"rounds": -1}, {"delta": 0.0}, {"kind": "none"}]
    + [{"threshold_delta": value} for value in (-1e-9, 9.95e-6, math.nan)],
)
def test_bad_input(fields):
    with pytest.raises(InputError, match=next(iter(fields)).replace("rounds", "planned|rounds")):
        plan(**fields)


def test_a_figure_that_results_settled_holds_for_what_is_released_at_it_and_no_more():
    """Five runs of one round; the search stops after the first if its noised value is above 2.33 deviations. What
    docs/accounting.md says of reading such figures."""
    std, delta = 2.0, 1e-5
    mechanism = RoundMechanism(noise_multiplier=std, user_sampling_prob=1.0, max_holders=0, extended_clip=0.0)
    fixed = Odometer(planned=((mechanism, 1),), runs=5, delta=delta, unit="user")
    stopped, whole = (fixed.epsilon([Charges(((mechanism, 1),))] * runs) for runs in (1, 5))
    y, step = np.linspace(-14 * std, 16 * std, 400_001, retstep=True)
    in_d, in_d_prime = stats.norm.pdf(y, 1.0, std), stats.norm.pdf(y, 0.0, std)
    stops = y > 2.33 * std

    def above(epsilon, events, one=in_d, other=in_d_prime, sign=1.0):
        """sup over events of P - exp(epsilon) Q among those that stop after the first run, go on, or both."""
        found = 0.0
        if "stop" in events:
            found += np.maximum(one - np.exp(epsilon) * other, 0.0)[stops].sum() * step
        if "go on" in events:  # four more rounds: one of four times the information
            shift, left = np.sqrt(4.0) / std, (epsilon - sign * (y - 0.5) / std**2)[~stops]
            cut = left / shift + shift / 2
            rest = stats.norm.sf(cut - shift) - np.exp(left) * stats.norm.sf(cut)
            found += (one[~stops] * rest).sum() * step
        return found

    def both_ways(epsilon, events):
        return max(above(epsilon, events), above(epsilon, events, in_d_prime, in_d, -1.0))

    assert (round(stopped, 2), round(whole, 2)) == (2.49, 5.48)
    assert both_ways(stopped, {"stop"}) <= delta
    assert both_ways(whole, {"stop", "go on"}) == pytest.approx(1.34e-6, rel=0.02)
    assert both_ways(stopped, {"stop", "go on"}) == pytest.approx(0.0155, rel=0.01), (
        "it is no epsilon of the search as a whole"
    )


@pytest.mark.parametrize("order", [1.05, 2.0, 17.0, 1024.0])
def test_one_order_converts_as_a_mixture_with_all_weight_on_it(order, monkeypatch):
    """To the bit: the noise of a filter's runs, which it is asked for at every proposal, follows from it."""
    other, summed = np.nextafter(order, 2 * order), []
    found = special.logsumexp
    monkeypatch.setattr(special, "logsumexp", lambda *terms: summed.append(terms) or found(*terms))
    for rate in (1e-9, 0.3, 12.0, 5e3):
        summed.clear()
        alone = to_epsilon(np.array([rate]), np.zeros(1), 1e-6, (order,))
        assert len(summed) == 1, "there is nothing to sum while the point is looked for"
        assert alone == to_epsilon(np.array([rate, rate]), np.array([0.0, -np.inf]), 1e-6, (order, other))
