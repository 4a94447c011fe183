"""The noise: its law, its seeds. Statistical tests state their false-alarm rate."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import stats

from uedp_ray.privacy.noise import GaussianNoise

FALSE_ALARM = 1e-6


def assert_normal(sample: np.ndarray, std: float) -> None:
    n = sample.size
    low, high = stats.chi2.interval(1 - FALSE_ALARM, n)
    assert low <= (sample**2).sum() / std**2 <= high
    assert abs(sample.mean()) <= stats.norm.isf(FALSE_ALARM / 2) * std / math.sqrt(n)
    assert stats.kstest(sample / std, "norm").pvalue > FALSE_ALARM


def test_private_noise_has_the_stated_std_and_is_gaussian():
    assert_normal(GaussianNoise().sample(200_000, std=3.5, round_index=0).numpy(), 3.5)


def test_private_noise_is_fresh_every_time():
    noise = GaussianNoise()
    assert noise.private
    assert not torch.equal(noise.sample(8, std=1.0, round_index=0), noise.sample(8, std=1.0, round_index=0))


def test_private_noise_takes_128_bits_from_the_operating_system(monkeypatch):
    asked = []
    monkeypatch.setattr("secrets.randbits", lambda bits: asked.append(bits) or 5)
    GaussianNoise().sample(4, std=1.0, round_index=0)
    assert asked == [128]


def test_test_noise_is_fixed_by_seed_and_round_and_says_so():
    noise = GaussianNoise(test_seed=1)
    assert not noise.private
    again = GaussianNoise(test_seed=1)
    assert torch.equal(noise.sample(8, std=1.0, round_index=3), again.sample(8, std=1.0, round_index=3))
    assert not torch.equal(noise.sample(8, std=1.0, round_index=3), noise.sample(8, std=1.0, round_index=4))
    other = GaussianNoise(test_seed=2)
    assert not torch.equal(noise.sample(8, std=1.0, round_index=3), other.sample(8, std=1.0, round_index=3))


def test_a_long_vector_is_the_same_stream_in_parts(monkeypatch):
    whole = GaussianNoise(test_seed=1).sample(1000, std=2.0, round_index=0)
    monkeypatch.setattr("uedp_ray.privacy.noise._BLOCK", 300)
    found = list(GaussianNoise(test_seed=1).blocks(1000, std=2.0, round_index=0))
    assert [len(block) for block in found] == [300, 300, 300, 100]
    assert torch.equal(torch.cat(found), whole)


def test_negative_or_nan_std_is_refused():
    for std in (-1.0, float("nan")):
        with pytest.raises(ValueError, match="std"):
            GaussianNoise().sample(3, std=std, round_index=0)
