"""What a record is promised against the server: closed forms, sums over draws, and the figures that were printed."""

from __future__ import annotations

import math

import dp_accounting
import numpy as np
import pytest
from dp_accounting.pld.privacy_loss_distribution import from_gaussian_mechanism
from dp_accounting.rdp import RdpAccountant
from scipy import stats

from tests.updates.tiny import tiny_config
from uedp_ray.errors import InputError
from uedp_ray.plan import Plan
from uedp_ray.privacy.accounting import epsilon
from uedp_ray.privacy.events import charges, epsilon_of_events
from uedp_ray.privacy.local import (
    dpnr,
    dpnr_as_published,
    gaudp,
    gaudp_as_published,
    gaudp_laplace,
    gaudp_noise_as_published,
    local_dp_sgd,
    mu_as_published,
    of_clients,
)
from uedp_ray.privacy.mechanisms import UnsupportedEvent
from uedp_ray.privacy.mechanisms.local_round import LocalRound
from uedp_ray.privacy.mechanisms.poisson import RoundMechanism
from uedp_ray.privacy.published import published_epsilon
from uedp_ray.units import UNITS

TF_ORDERS = [1.25, 1.5, 1.75, 2.0, 2.25, 2.5, 3.0, 3.5, 4.0, 4.5, *range(5, 64), 128, 256, 512]
RECORDS = 14_987
THESIS = {"SST-2": 67_349, "IMDB": 25_000, "AG": 120_000, "QNLI": 104_743}


def gaussian_delta(epsilon: float, mu: float) -> float:
    """Of N(mu, 1) against N(0, 1) (Balle and Wang 2018, theorem 8)."""
    normal = stats.norm
    return normal.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon + normal.logcdf(-mu / 2 - epsilon / mu))


def of_thesis(corpus, noise=None):
    size = THESIS[corpus]
    asked = {"sampling_prob": 32 / size, "steps": size, "delta": 1 / size}
    noise = gaudp_noise_as_published(target_epsilon=1.0, **asked) if noise is None else noise
    return asked | {"clip_norm": 1.0, "noise_std": noise}


def classic(prob, steps):
    accountant = RdpAccountant(TF_ORDERS)
    accountant.compose(dp_accounting.PoissonSampledDpEvent(prob, dp_accounting.GaussianDpEvent(1.0)), steps)
    return float(np.min(accountant._rdp + math.log(1e5) / (np.array(TF_ORDERS) - 1)))


@pytest.mark.parametrize(
    ("clients", "batch", "printed"),
    [
        *((n, 32, value) for n, value in {2: 1.715, 5: 2.636, 10: 3.820, 15: 4.778, 20: 5.597}.items()),
        *((n, 1, value) for n, value in {2: 0.740, 5: 0.866, 10: 0.982, 15: 1.082, 20: 1.191}.items()),
    ],
)
def test_clients_of_jana_and_biemann(clients, batch, printed):
    """As TF Privacy converts, and below it what a library's own composition gives, in the larger direction."""
    size = RECORDS / clients
    prob, steps = batch / size, int(10 * size / batch)
    assert classic(prob, steps) == pytest.approx(printed, abs=2e-3)
    one = LocalRound(noise_multiplier=1.0, sampling_prob=prob, steps=steps)
    found = local_dp_sgd(one, rounds=1, delta=1e-5)
    if batch > 1:  # its grid would have to be finer for rarer draws
        exact = from_gaussian_mechanism(1.0, sampling_prob=prob, value_discretization_interval=1e-3).self_compose(steps)
        assert exact.get_epsilon_for_delta(1e-5) == pytest.approx(found.epsilon, rel=0.01)
    assert found.epsilon < printed
    assert (found.unit, found.trust, found.sound) == ("record", "local", True)


def test_the_command_for_published_figures_gives_those_of_clients_too():
    settings = {"method": "user_dp", "noise_multiplier": 1.0, "delta": 1e-5, "max_order": 64}
    value = published_epsilon(user_sampling_prob=64 / RECORDS, rounds=2341, **settings)
    assert value == pytest.approx(1.715, abs=1e-3)


def test_the_smallest_client_has_the_worst_promise_and_more_epochs_cost_more():
    settings = {"batch_size": 8, "noise_multiplier": 1.0, "delta": 1e-5}
    alone = {size: of_clients([size], epochs=2, **settings).epsilon for size in (80, 100, 400)}
    assert of_clients([400, 80, 100], epochs=2, **settings).epsilon == alone[80] == max(alone.values())
    assert of_clients([80], epochs=3, **settings).epsilon > alone[80]


def test_rounds_of_the_same_sentences_compose():
    one = LocalRound(noise_multiplier=1.0, sampling_prob=0.05, steps=20)
    ten, at_once = (local_dp_sgd(one, rounds=10, delta=1e-5), LocalRound(**one.to_dict() | {"steps": 200}))
    assert ten.epsilon == local_dp_sgd(at_once, rounds=1, delta=1e-5).epsilon
    assert "Charged for 200 steps" in ten.note


def test_noise_too_small_to_compute_with_promises_nothing():
    found = local_dp_sgd(LocalRound(noise_multiplier=1e-6, sampling_prob=0.5, steps=2), rounds=3, delta=1e-5)
    assert (found.epsilon, found.told) == (None, "no guarantee")


def test_users_and_entities_have_no_bound_and_their_rounds_are_counted():
    one = LocalRound(noise_multiplier=100.0, sampling_prob=0.01, steps=1)
    events = [{**one.to_event(), "round": number, "attempt": 0} for number in range(3)]
    assert all(math.isinf(epsilon_of_events(events, delta=1e-5, unit=unit)) for unit in UNITS)
    charged = charges(events[:1])
    for event in events[1:]:
        charged = charged.with_round(event)
    assert charged == charges(events)
    assert charged.num_rounds == 3


@pytest.mark.parametrize(
    "changed", [{"noise_multiplier": 0.0}, {"sampling_prob": 1.5}, {"steps": -1}, {"steps": 2.0}, {"steps": None}]
)
def test_bad_events(changed):
    one = LocalRound(noise_multiplier=1.0, sampling_prob=0.1, steps=10)
    with pytest.raises(InputError, match=next(iter(changed))):
        charges([one.to_event() | changed])
    with pytest.raises(UnsupportedEvent):
        charges([one.to_event() | {"kind": "local_rounds"}])


@pytest.mark.parametrize(
    ("corpus", "mu", "noise", "printed_noise", "with_2c", "with_c"),
    [
        ("SST-2", 0.2746, 0.748, 0.75, 20.6, 1.05),
        ("IMDB", 0.2933, 0.940, 0.94, 10.2, 1.03),
        ("AG", 0.2652, 0.671, 0.67, 30.2, 1.10),
        ("QNLI", 0.2673, 0.687, 0.68, 29.1, 1.12),
    ],
)
def test_gaudp_of_the_thesis(corpus, mu, noise, printed_noise, with_2c, with_c):
    """Its noise is that of the central limit at sensitivity C. The digest's figures: Poisson, add or remove, as printed."""
    asked = of_thesis(corpus)
    assert mu_as_published(1.0, asked["delta"]) == pytest.approx(mu, abs=5e-5)
    assert asked["noise_std"] == pytest.approx(noise, abs=5e-4)
    published = gaudp_as_published(**asked)
    assert published.epsilon == pytest.approx(1.0, abs=1e-6)
    assert not published.sound
    settings = {"rounds": asked["steps"], "delta": asked["delta"], "unit": "user"}
    for sensitivity, digest, within in ((2.0, with_2c, 0.1), (1.0, with_c, 0.01)):
        step = RoundMechanism(noise_multiplier=printed_noise / sensitivity, user_sampling_prob=asked["sampling_prob"])
        assert epsilon(step, **settings) == pytest.approx(digest, abs=within)
    shuffled, seen = (gaudp(**asked | {"noise_std": printed_noise}, shuffled=each) for each in (True, False))
    assert with_2c < shuffled.epsilon < 1.2 * with_2c, "replacement costs a little more than adding"
    assert seen.epsilon > 5 * shuffled.epsilon
    assert shuffled.sound
    assert seen.sound


def delta_of_opposite_vectors(asked, at):
    """Exact, of (C, 0, ...) against (-C, 0, ...), sent whenever drawn, to a server that sees when: they are 2C apart."""
    uses = np.arange(1, 200)
    chances = stats.binom.pmf(uses, asked["steps"], asked["sampling_prob"])
    mus = 2 * asked["clip_norm"] / asked["noise_std"] * np.sqrt(uses)
    return float(chances @ [gaussian_delta(at, mu) for mu in mus])


@pytest.mark.parametrize("corpus", THESIS)
def test_the_printed_form_of_gaudp_fails_on_two_opposite_vectors(corpus):
    asked = of_thesis(corpus)
    assert delta_of_opposite_vectors(asked, at=1.0) > 0.99, "told apart almost surely, where delta was to be 1/N"
    value = gaudp(**asked).epsilon
    assert (
        delta_of_opposite_vectors(asked, at=value) <= asked["delta"] < delta_of_opposite_vectors(asked, at=0.98 * value)
    )


def test_the_printed_form_fails_for_a_single_use_too():
    asked = {"clip_norm": 1.0, "noise_std": 4.0, "sampling_prob": 1.0, "steps": 1, "delta": 1e-5}
    assert gaussian_delta(gaudp_as_published(**asked).epsilon, 2.0 / 4.0) > 100 * asked["delta"]
    for shuffled in (False, True):
        value = gaudp(**asked, shuffled=shuffled).epsilon
        assert gaussian_delta(value, 0.5) <= 1e-5 < gaussian_delta(0.99 * value, 0.5)


def test_a_shuffled_subset_of_two_steps_against_enumeration():
    """N = 2, one of them drawn for each of two steps: the pair (p N(2C) + (1 - p) N(0)) and its mirror, on a fine grid."""
    share, noise, delta, points = 0.5, 2.0, 1e-4, 2001
    line = np.linspace(-14.0, 18.0, points)
    width = line[1] - line[0]
    here, moved = (stats.norm.pdf(line, mean, noise) * width for mean in (0.0, 2.0))
    value = gaudp(clip_norm=1.0, noise_std=noise, sampling_prob=share, steps=2, delta=delta, shuffled=True).epsilon
    mixed = share * moved + (1 - share) * here
    worst = 0.0
    for one, other in ((mixed, here), (here, mixed)):
        for again, against in ((mixed, here), (here, mixed)):  # an adversary may see another direction in each step
            excess = np.outer(one, again) - math.exp(value) * np.outer(other, against)
            worst = max(worst, float(excess[excess > 0].sum()))
    assert 0.5 * delta < worst <= delta


def test_amplification_is_to_be_declared():
    asked = {"clip_norm": 0.5, "noise_std": 3.0, "sampling_prob": 0.01, "steps": 100, "delta": 1e-5}
    seen, shuffled = (gaudp(**asked, shuffled=each).epsilon for each in (False, True))
    assert shuffled < 0.5 * seen
    scaled = gaudp(**asked | {"clip_norm": 5.0, "noise_std": 30.0}).epsilon
    assert scaled == seen
    assert gaudp(**asked | {"sampling_prob": 1.0}).epsilon > 3 * seen, "each step, by default"


def test_laplace_noise_on_opposite_vectors():
    """The log ratio of densities at a vertex of the ball, seen from the opposite one."""
    there, here, scale = np.array([0.5, 0.0, 0.0]), np.array([-0.5, 0.0, 0.0]), 0.8
    loss = stats.laplace.logpdf(there, there, scale).sum() - stats.laplace.logpdf(there, here, scale).sum()
    found = gaudp_laplace(clip_norm=0.5, scale=scale, steps=3)
    assert found.epsilon == pytest.approx(3 * loss)
    assert found.delta == 0.0


@pytest.mark.parametrize(("dropout", "of_word"), [(0.0, 38.4), (0.5, 37.707), (0.9, 36.097)])
def test_dpnr(dropout, of_word):
    record, word = dpnr(dimension=768, coordinate_epsilon=0.05, word_dropout=dropout)
    assert (record.unit, record.epsilon) == ("record", pytest.approx(38.4))
    assert (word.unit, word.epsilon) == ("word", pytest.approx(of_word, abs=5e-4))
    again = dpnr(dimension=768, coordinate_epsilon=0.05, word_dropout=dropout, uses=7)
    of_all = math.log((1 - dropout) * math.exp(7 * 38.4) + dropout)  # a word is dropped from all draws, or from none
    assert [each.epsilon for each in again] == pytest.approx([7 * record.epsilon, of_all])
    printed = dpnr_as_published(coordinate_epsilon=0.05, word_dropout=dropout)
    assert printed.epsilon == pytest.approx(math.log((1 - dropout) * math.exp(0.05) + dropout))
    assert "not a guarantee" in printed.told


@pytest.mark.parametrize("dropout", [0.0, 0.3, 0.9])
def test_dpnr_of_one_coordinate_is_exact(dropout):
    """r = 0 or 1 by a word; a dropped word gives 0.5. The largest log ratio of the two densities, over the line."""
    line = np.linspace(-30, 30, 20_001)
    density = {mean: stats.laplace.pdf(line, mean, 1 / 0.7) for mean in (0.0, 0.5, 1.0)}
    one, other = ((1 - dropout) * density[mean] + dropout * density[0.5] for mean in (0.0, 1.0))
    loss = np.abs(np.log(one / other)).max()
    found = dpnr(dimension=1, coordinate_epsilon=0.7, word_dropout=dropout)[1].epsilon
    assert loss <= found + 1e-12
    if not dropout:
        assert loss == pytest.approx(found)


def test_dpnr_of_two_draws_of_a_word_that_is_dropped_once_is_exact():
    """Vectors 0 and 1 by a word, and that of a dropped word anywhere between: the joint densities of two draws."""
    line, dropout, worst = np.linspace(-8, 8, 801), 0.4, 0.0
    for between in (0.0, 0.3, 0.5, 1.0):
        density = {mean: stats.laplace.pdf(line, mean, 1 / 0.7) for mean in (0.0, between, 1.0)}
        joint = {mean: np.outer(each, each) for mean, each in density.items()}
        one, other = ((1 - dropout) * joint[mean] + dropout * joint[between] for mean in (0.0, 1.0))
        worst = max(worst, float(np.abs(np.log(one / other)).max()))
    settings = {"dimension": 1, "coordinate_epsilon": 0.7, "word_dropout": dropout}
    assert 2 * dpnr(**settings)[1].epsilon < worst <= dpnr(**settings, uses=2)[1].epsilon + 1e-12


def test_everything_dropped_and_large_epsilons():
    assert dpnr(dimension=768, coordinate_epsilon=0.05, word_dropout=1.0)[1].epsilon == 0.0
    assert dpnr(dimension=10**6, coordinate_epsilon=1.0, word_dropout=0.5)[1].epsilon == pytest.approx(
        1e6 - math.log(2)
    )


@pytest.mark.parametrize(
    "changed", [{"clip_norm": 0.0}, {"noise_std": math.nan}, {"sampling_prob": -0.1}, {"steps": 1.0}]
)
def test_bad_calls(changed):
    asked = {"clip_norm": 1.0, "noise_std": 1.0, "sampling_prob": 0.1, "steps": 1, "delta": 1e-5}
    for call in (gaudp, gaudp_as_published):
        with pytest.raises(InputError, match=next(iter(changed))):
            call(**asked | changed)


@pytest.mark.parametrize("shards", [1, 4, 64])
def test_noise_of_shards_counts_by_the_root_of_their_number(shards):
    """P shards that each add std sigma are charged as sigma sqrt(P): sigma is to be z / sqrt(P). Here only the driver adds
    any, so what is charged does not know how many workers there are."""
    config = tiny_config(training={"num_workers": shards}, privacy={"test_noise_seed": None, "noise_multiplier": 2.0})
    charged = Plan.of(config).event(round_index=0, attempt=0)["mechanism"]["noise_multiplier"]
    drawn = np.random.default_rng(0).normal(0.0, charged / math.sqrt(shards), (shards, 20_000)).sum(0)
    value = epsilon(RoundMechanism(noise_multiplier=charged, user_sampling_prob=1.0), rounds=1, delta=1e-5, unit="user")
    assert gaussian_delta(value, 1.0 / drawn.std()) == pytest.approx(1e-5, rel=0.2)
