"""Noised vectors: the noise that a target needs, and how far one sentence can move what is noised."""

from __future__ import annotations

import numpy as np
import pytest

from uedp_ray.config import RepresentationConfig
from uedp_ray.privacy.guarantee import Guarantee, central, nothing
from uedp_ray.privacy.local import hockey_stick
from uedp_ray.privacy.representation import NoisedVectors


def noised(kind="gaussian", target=1.0, *, dimension=6, epochs=1, delta=1e-5, batch_size=32, words=False, **settings):
    config = RepresentationConfig(kind=kind, target_epsilon=target, **settings)
    sizes = {"dimension": dimension, "epochs": epochs, "batch_size": batch_size}
    return NoisedVectors(config, delta=delta, words_are_tokens=words, **sizes)


def test_the_noise_is_what_the_target_needs_by_arithmetic_of_its_own():
    gaussian = noised(target=1.5, clip_norm=0.5)
    mu = 2 * 0.5 / gaussian.scale
    assert hockey_stick(1.5, mu) == pytest.approx(1e-5, rel=0.02)
    assert hockey_stick(1.5, mu) <= 1e-5
    assert noised("laplace", 3.0, dimension=768).scale == pytest.approx(768 / 3.0)
    (record, word) = noised("laplace", 38.4, dimension=768, word_dropout=0.5, words=True).guarantees()
    assert (record.epsilon, round(word.epsilon, 3)) == (pytest.approx(38.4), 37.707)
    assert noised("laplace", 38.4, dimension=768, word_dropout=0.5).guarantees() == [record], "unless words are tokens"
    assert noised("laplace", 3.0, epochs=4, drawn="each_epoch").scale == pytest.approx(4 * 6 / 3.0)
    more = noised(target=1.5, clip_norm=0.5, epochs=4, drawn="each_epoch")
    assert more.scale == pytest.approx(2 * gaussian.scale, rel=0.01), "four Gaussian releases are one of half the noise"
    thesis = noised("gaussian_published", 1.0, epochs=32, num_records=67_349, delta=1 / 67_349)
    assert round(thesis.scale, 3) == 0.748
    assert [(each.sound, round(each.epsilon, 2)) for each in thesis.guarantees()] == [(False, 1.0)]


@pytest.mark.parametrize("kind", ["gaussian", "laplace"])
def test_no_vector_moves_what_is_noised_by_more_than_is_charged(kind):
    """Differences of two releases with the same draws, over vectors of all sizes, as against the sensitivity."""
    mechanism, generator = noised(kind, clip_norm=0.5), np.random.default_rng(0)
    worst = 0.0
    for size in (0.0, 1e-6, 0.3, 1.0, 1e6, np.nan, np.inf):
        for _ in range(40):
            one, other = size * generator.normal(size=6), -generator.normal(size=6)
            sent = [mechanism.release(vector, np.random.default_rng(1)) for vector in (one, other)]
            worst = max(worst, float(np.linalg.norm(sent[0] - sent[1], 2 if kind == "gaussian" else 1)))
    most = 2 * 0.5 if kind == "gaussian" else 6.0
    assert 0.5 * most < worst <= most + 12 * mechanism.scale * 2.0**-20


def test_what_was_published_is_no_guarantee_and_has_the_noise_that_was_printed():
    coordinate = noised("laplace_published", 0.05, dimension=768)
    (stated,) = coordinate.guarantees()
    assert coordinate.scale == pytest.approx(1 / 0.05)
    assert (stated.epsilon, stated.sound) == (pytest.approx(0.05), False)
    assert stated.told == "ε = 0.050 of one record, not a guarantee"


def test_a_vector_of_another_size_than_was_charged_is_not_released():
    with pytest.raises(RuntimeError, match="charged as one of 6"):
        noised().release(np.zeros(7), np.random.default_rng(0))


def test_guarantees_of_units_that_nothing_bounds_are_not_stated():
    found = central({"user": 1.0, "entity": float("inf")}, delta=1e-5, relation="zero_out")
    assert [(each.unit, each.told) for each in found] == [("user", "ε = 1.000 of one user")]
    assert nothing(delta=1e-5).to_dict()["epsilon"] is None
    metric = Guarantee(
        unit="word-metric", epsilon=2.0, delta=0.0, relation="replacement", trust="local", accountant="pure"
    )
    assert metric.told == "ε = 2.000 of one word, times the distance between two words, not a guarantee"
