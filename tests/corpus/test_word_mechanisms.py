"""Word mechanisms: exact laws where there are any, and no draw that betrays more than epsilon.

Tests of draws compare an upper and a lower confidence bound (Clopper-Pearson), each of which fails with probability 1e-6; in
about 500 comparisons, one fails by chance in 1 of 1,000 changes of code. Seeds are fixed.
"""

from __future__ import annotations

import itertools
import math
import os
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import beta

from uedp_ray.config import TransformConfig
from uedp_ray.config.choices import PROVED_WORD_MECHANISMS
from uedp_ray.corpus.vectors import Vectors, read_vectors
from uedp_ray.corpus.word_mechanisms import ByLaw, SanText, Vickrey, mechanism_of
from uedp_ray.errors import InputError

LINE = (0.0, 0.7, 1.0, 1.8, 3.0)
PLANE = ((0.0, 0.0), (0.6, 0.2), (0.2, 1.1), (1.0, 1.0), (-0.5, 0.4))
DRAWS = 1_000_000
CHANCE = 1e-6


def vectors(points):
    table = np.array(points, float).reshape(len(points), -1)
    return Vectors(tuple("abcdefghijklmnopqrstuvwxyz"[: len(table)]), table)


def mechanism(points, name, **settings):
    config = TransformConfig(kind="replace_words", vectors="toy", mechanism=name, **settings)
    return mechanism_of(config, vectors(points))


def law(found, word):
    outputs, probabilities = found.law(word)
    return dict(zip(outputs.tolist(), probabilities.tolist(), strict=True))


def counts(found, word, *, draws=DRAWS, seed=0):
    drawn = found.sample(np.full(draws, word), np.random.default_rng([seed, word]))
    return np.bincount(drawn, minlength=len(found.vectors.words))


def low(count, draws=DRAWS):
    return 0.0 if count == 0 else float(beta.ppf(CHANCE, count, draws - count + 1))


def high(count, draws=DRAWS):
    return 1.0 if count == draws else float(beta.ppf(1 - CHANCE, count + 1, draws - count))


def betrayed(found, words):
    """By pair of words: the largest log-odds of an output that its draws leave no doubt of."""
    counted = {word: counts(found, word) for word in words}
    worst = {}
    for one, other in itertools.permutations(words, 2):
        ratios = [low(a) / high(b) for a, b in zip(counted[one], counted[other], strict=True)]
        worst[one, other] = math.log(max(ratios))
    return worst


def test_what_a_class_does_not_state_itself_it_does_not_promise():
    """A sharper law promised what SanText does, and a mechanism that said nothing of epsilon that of the file."""

    class Sharper(SanText):
        def law(self, word):
            outputs, weights = super().law(word)
            return outputs, weights**100

    class Says(ByLaw):
        unit = "word"

        def law(self, word):
            return np.array([word]), np.ones(1)

    config = TransformConfig(kind="replace_words", vectors="toy", epsilon=2.0)
    heir, said = Sharper(config, vectors(LINE)), Says(config, vectors(LINE))
    assert (heir.unit, heir.epsilon, heir.hidden_among().max()) == ("", math.inf, 1)
    assert (said.unit, said.epsilon) == ("word", math.inf)
    assert [mechanism(LINE, name, epsilon=2.0).epsilon for name in PROVED_WORD_MECHANISMS - {"random"}] == [2.0] * 4
    assert mechanism(LINE, "random", epsilon=2.0).epsilon == 0.0


def test_custext_draws_by_the_exponential_mechanism():
    found = mechanism(LINE, "custext", num_neighbours=3, mapping="aggressive", epsilon=2.0)
    scores = {0: 1.0, 1: 1 - 0.7 / 1.0, 2: 0.0}  # of distances 0, 0.7 and 1.0
    whole = sum(math.exp(2.0 * score / 2) for score in scores.values())
    assert law(found, 0) == pytest.approx({word: math.exp(score) / whole for word, score in scores.items()})


def test_custext_by_angle_scores_the_cosine():
    points = ((1.0, 0.0), (2.0, 0.0), (3.0, 3.0), (0.0, 1.0), (-1.0, 0.1))
    found = mechanism(points, "custext", num_neighbours=4, mapping="aggressive", distance="cosine", epsilon=1.0)
    weights = [math.exp(0.5), math.exp(0.5), math.exp(0.5 * math.sqrt(0.5)), 1.0]  # cosines 1, 1, 0.707, 0
    assert law(found, 0) == pytest.approx({word: weight / sum(weights) for word, weight in enumerate(weights)})


@pytest.mark.parametrize(("epsilon", "kept", "weight"), [(1, 0.0282, 1.16), (5, 0.0992, 2.26), (10, 0.3031, 6.96)])
def test_the_share_of_words_kept_is_that_of_the_thesis_for_neighbours_of_its_mean_weight(epsilon, kept, weight):
    """K = 50: the word itself, one that is farthest, and 48 at the distance whose weight gives the measured mean."""
    score = 2 * math.log((49 * weight - 1) / 48) / epsilon
    points = [0.0, *[(1 - score)] * 48, 1.0]
    words = Vectors(tuple(map(str, points)), np.array(points)[:, None])
    config = TransformConfig(kind="replace_words", vectors="toy", num_neighbours=50, epsilon=epsilon)
    assert law(mechanism_of(config, words), 0)[0] == pytest.approx(kept, rel=0.005)


def test_the_share_of_words_kept_on_real_vectors_is_near_that_of_the_thesis():
    """Its table: 2.82, 9.92 and 30.31 %, of other vectors (counter-fitted) and the words of SST-2; these are within 15 %."""
    file = Path(os.environ.get("UEDP_DATA", "none"), "glove", "glove.twitter.27B.25d.12k.txt")
    if not file.exists():
        pytest.skip("UEDP_DATA names no folder with these vectors")
    words = read_vectors(file)
    for epsilon, kept in ((1.0, 0.0282), (5.0, 0.0992), (10.0, 0.3031)):
        config = TransformConfig(kind="replace_words", vectors="glove", distance="cosine", epsilon=epsilon)
        found = mechanism_of(config, words)
        shares = [law(found, word)[word] for word in range(0, len(words.words), 40)]
        assert np.mean(shares) == pytest.approx(kept, rel=0.15)


def test_one_neighbour_is_the_word_itself_even_among_words_of_its_vector():
    points = ((0.0, 0.0), (0.0, 0.0), (0.0, 0.0), (1.0, 0.0))
    for mapping in ("aggressive", "balanced", "conservative"):
        found = mechanism(points, "custext", num_neighbours=1, mapping=mapping)
        assert [law(found, word) for word in range(4)] == [{word: 1.0} for word in range(4)]
        assert found.hidden_among().tolist() == [1, 1, 1, 1]


def test_a_small_epsilon_is_uniform():
    for name, outputs in (("custext", 3), ("santext", 5), ("random", 5)):
        found = mechanism(LINE, name, num_neighbours=3, epsilon=1e-9)
        assert law(found, 2) == pytest.approx(dict.fromkeys(law(found, 2), 1 / outputs))
        assert len(law(found, 2)) == outputs


def test_a_large_epsilon_overflows_nothing():
    for name in ("custext", "santext"):
        assert law(mechanism(LINE, name, num_neighbours=3, epsilon=1e6), 2)[2] == 1.0


def sets(found):
    return [set(law(found, word)) for word in range(len(found.vectors.words))]


def test_mappings():
    """On the line: 0 and 0.7 and 1.0 are near each other, 1.8 is near 1.0, and 3.0 near 1.8."""
    one, two, three = (
        mechanism(LINE, "custext", num_neighbours=3, mapping=mapping)
        for mapping in ("aggressive", "balanced", "conservative")
    )
    assert sets(one) == [{0, 1, 2}, {0, 1, 2}, {1, 2, 3}, {1, 2, 3}, {2, 3, 4}]
    assert one.hidden_among().tolist() == [2, 2, 2, 2, 1]
    assert sets(two) == [{0, 1, 2}] * 3 + [{1, 2, 3}, {2, 3, 4}]
    assert two.hidden_among().tolist() == [3, 3, 3, 1, 1]
    assert sets(three) == [{0, 1, 2}] * 3 + [{3, 4}] * 2
    assert three.hidden_among().tolist() == [3, 3, 3, 2, 2]


def test_conservative_groups_are_apart_and_hold_every_word():
    points = np.random.default_rng(0).normal(size=(26, 3))
    found = sets(mechanism(points, "custext", num_neighbours=4, mapping="conservative"))
    assert all(word in group for word, group in enumerate(found))
    assert all(one == other or not one & other for one, other in itertools.combinations(found, 2))
    assert {len(group) for group in found} == {4, 2}


def test_santext_falls_with_the_distance():
    found = law(mechanism(LINE, "santext", epsilon=2.0), 1)
    whole = sum(math.exp(-abs(0.7 - place)) for place in LINE)
    assert found == pytest.approx({word: math.exp(-abs(0.7 - place)) / whole for word, place in enumerate(LINE)})


@pytest.mark.parametrize("name", ["custext", "santext", "random"])
def test_draws_follow_the_law(name):
    found = mechanism(LINE, name, num_neighbours=3, epsilon=2.0)
    counted = counts(found, 2)
    for word in range(len(LINE)):
        assert low(counted[word]) <= law(found, 2).get(word, 0.0) <= high(counted[word])


@pytest.mark.parametrize("name", ["custext", "santext", "random"])
def test_draws_of_53_bits_are_as_near_to_the_law_as_the_accounting_says(name):
    """The largest number below 1, and where it falls: what is rarer than 2^-53 is never drawn, and the rest hardly moves."""
    far = mechanism([0.0, 4.6], name, epsilon=20.0)
    never = counts(far, 0)[1] == 0
    rare = law(far, 0)[1]
    assert never == (rare < 2**-53) == (name == "santext")
    wide = mechanism(np.random.default_rng(0).normal(size=(26, 3)), name, epsilon=20.0)
    outputs, probabilities = wide.law(3)
    exact = [Fraction(each) for each in probabilities.tolist()]
    ends = [0.0, *np.cumsum(probabilities).tolist()]
    drawn = [math.ceil(Fraction(end) / Fraction(ends[-1]) * 2**53) for end in ends]  # of 2^53 equal uniform numbers
    moved = sum(
        abs(Fraction(last - first, 2**53) - each / sum(exact))
        for first, last, each in zip(drawn, drawn[1:], exact, strict=False)
    )
    assert moved / 2 <= len(outputs) * Fraction(1, 2**52)


def test_no_word_of_a_group_is_told_from_another_by_more_than_epsilon():
    found = mechanism(PLANE, "custext", num_neighbours=5, epsilon=1.5)
    worst = betrayed(found, range(5))
    assert max(worst.values()) <= 1.5
    assert max(worst.values()) > 0.6, "or it would prove nothing"
    assert max(betrayed(mechanism(PLANE, "random"), range(3)).values()) <= 0.0


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("santext", {}),
        ("fbdd", {}),
        ("vickrey", {"selection": 0.5}),
        ("vickrey", {"neighbour_weights": (0.5, 1.0, 2.0)}),
    ],
)
def test_no_two_words_are_told_apart_by_more_than_epsilon_times_their_distance(name, settings):
    epsilon = 2.0
    for points in (PLANE, LINE):
        worst = betrayed(mechanism(points, name, epsilon=epsilon, **settings), range(3))
        place = np.array(points).reshape(5, -1)
        shares = [found / (epsilon * math.dist(place[a], place[b])) for (a, b), found in worst.items()]
        assert max(shares) <= 1
        assert max(shares) > 0.35, "or it would prove nothing"


def test_noise_that_follows_the_spread_tells_words_apart_by_their_mahalanobis_distance():
    points = np.array(PLANE) * [3.0, 0.3]
    covariance = np.cov(points.T)
    shape = 0.8 * covariance / (np.trace(covariance) / 2) + 0.2 * np.eye(2)
    worst = betrayed(mechanism(points, "vickrey", epsilon=2.0, selection=0.25, mahalanobis=0.8), range(4))
    apart = {pair: points[pair[0]] - points[pair[1]] for pair in worst}
    shares = [worst[pair] / (2 * math.sqrt(gap @ np.linalg.inv(shape) @ gap)) for pair, gap in apart.items()]
    assert max(shares) <= 1
    assert max(shares) > 0.5, "or it would prove nothing"


def choice(point, t, among):
    """By Xu et al. 2021, Algorithm 1, on the line: the two nearest of some words, and their probabilities."""
    a, b = sorted(among, key=lambda word: abs(LINE[word] - point))[:2]
    first, second = t * abs(LINE[a] - point), (1 - t) * abs(LINE[b] - point)
    return {a: second / (first + second), b: first / (first + second)}


def exact(word, t, *, epsilon=2.0, printed=False):
    """Probabilities of every output of a word, integrated; ``printed``: with the search among the other words only."""
    among = [each for each in range(5) if not (printed and each == word)]
    breaks = sorted({*LINE, *((one + other) / 2 for one, other in itertools.combinations(LINE, 2))})
    edges = [min(LINE) - 15, *breaks, max(LINE) + 15]

    def share(output):
        def density(point):
            chance = choice(point, t, among).get(output, 0.0)
            return chance * epsilon / 2 * math.exp(-epsilon * abs(point - LINE[word]))

        return sum(quad(density, *edge, epsabs=1e-12)[0] for edge in itertools.pairwise(edges))

    return [share(output) for output in range(5)]


@pytest.mark.parametrize("t", [0.0, 0.25, 0.5, 0.75, 1.0])
def test_vickrey_on_the_line_keeps_the_bound_and_draws_as_integrated(t):
    laws = [exact(word, t) for word in range(5)]
    for one, other in itertools.permutations(range(5), 2):
        bound = math.exp(2.0 * abs(LINE[one] - LINE[other]))
        assert all(laws[one][each] <= bound * laws[other][each] + 1e-9 for each in range(5))
    counted = counts(mechanism(LINE, "vickrey", epsilon=2.0, selection=t), 1, draws=200_000)
    for word in range(5):
        assert low(counted[word], 200_000) <= laws[1][word] + 1e-9
        assert laws[1][word] - 1e-9 <= high(counted[word], 200_000)


@pytest.mark.parametrize("t", [0.0, 0.5, 1.0])
def test_vickrey_as_printed_guarantees_nothing(t):
    """The search among the other words: a word that never becomes itself, and that others become, has infinite odds."""
    assert exact(2, t, printed=True)[2] == 0.0 < 0.01 < exact(1, t, printed=True)[2]

    class Printed(Vickrey):
        word = 0

        def _nearest(self, points, count):
            near, far = super()._nearest(points, 3)
            others = np.argsort(near == self.word, axis=1, kind="stable")[:, :count]
            return np.take_along_axis(near, others, axis=1), np.take_along_axis(far, others, axis=1)

    config = TransformConfig(kind="replace_words", vectors="toy", mechanism="vickrey", epsilon=2.0, selection=t)
    found = Printed(config, vectors(LINE))
    itself, others = [setattr(found, "word", word) or counts(found, word, draws=100_000)[2] for word in (2, 1)]
    assert (itself, low(others, 100_000) > 0.01) == (0, True)


def test_vickrey_at_0_is_the_nearest_word_and_at_1_never():
    words = np.arange(5).repeat(2000)
    nearest = mechanism(PLANE, "fbdd").sample(words, np.random.default_rng(1))
    same, other = (mechanism(PLANE, "vickrey", selection=t).sample(words, np.random.default_rng(1)) for t in (0.0, 1.0))
    assert np.array_equal(nearest, same)
    assert not (nearest == other).any()


def test_two_words_of_one_vector_are_chosen_between_without_a_warning():
    with np.errstate(all="raise"):
        found = mechanism((0.0, 0.0, 5.0), "vickrey", epsilon=1e300, selection=0.25)
        counted = counts(found, 0, draws=10_000)
    assert counted[2] == 0
    assert 0.7 < counted.max() / 10_000 < 0.8, "1 - t"


@pytest.mark.parametrize("t", [0.0, 0.5])
def test_the_channel_is_estimated_as_integrated(t, monkeypatch):
    monkeypatch.setattr("uedp_ray.corpus.word_mechanisms._POINTS", 4000)
    found = mechanism(LINE, "vickrey", epsilon=2.0, selection=t).channel(np.arange(5), np.random.default_rng(0))
    assert found == pytest.approx(np.array([exact(word, t) for word in range(5)]), abs=0.015)
    squeezed = mechanism(np.array(PLANE) * [3, 0.3], "vickrey", epsilon=2.0, selection=t, mahalanobis=0.8)
    found = squeezed.channel(np.arange(5), np.random.default_rng(0))
    drawn = np.array([counts(squeezed, word, draws=100_000) / 100_000 for word in range(5)])
    assert found == pytest.approx(drawn, abs=0.02)


def test_noise_in_parts_is_the_same_noise(monkeypatch):
    found = mechanism(PLANE, "fbdd")
    monkeypatch.setattr("uedp_ray.corpus.word_mechanisms._CELLS", 7)
    counted = counts(found, 0, draws=4000)
    monkeypatch.undo()
    whole = counts(found, 0)
    for word in range(5):
        assert low(counted[word], 4000) <= high(whole[word])
        assert low(whole[word]) <= high(counted[word], 4000)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"", "Empty"),
        (b"a 1 2\nb 1\n", "Expected 3 columns, got 2"),
        (b"a 1 2\nb x 1\n", "write a word and its coordinates"),
        (b"a 1 2\nb inf 1\n", "not a number below 1e\\+09"),
        (b"a 1 2\nb -1e200 1\n", "not a number below 1e\\+09"),
        (b"a 1 2\n12 3 4\n, 5 6\n", "holds no two words"),
        (b"\xff 1 2\n", "not UTF-8"),
        (None, "cannot be read"),
    ],
)
def test_vectors_that_cannot_be_read(tmp_path, text, message):
    file = tmp_path / "vectors.txt"
    if text is not None:
        file.write_bytes(text)
    with pytest.raises(InputError, match=message) as told:
        read_vectors(file, "corpus.transform.vectors")
    assert (told.value.field, told.value.value) == ("corpus.transform.vectors", str(file))


def test_vectors_of_word2vec_and_with_blanks_in_words(tmp_path):
    file = tmp_path / "vectors.txt"
    file.write_text("4 2\nOslo 1 2 \n. . 1 2 \nnull 3 4 \nOslo 5 6 \n")
    found = read_vectors(file)
    assert (found.words, found.table.tolist()) == (("Oslo", "null"), [[1.0, 2.0], [3.0, 4.0]])
    assert (found.find("Oslo"), found.find("oslo"), found.find("NULL")) == (0, None, 1)
