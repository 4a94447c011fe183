"""The noise: its law, its seeds. Statistical tests state their false-alarm rate."""

from __future__ import annotations

import math
import threading

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


def test_noise_that_was_drawn_ahead_is_that_of_one_release(monkeypatch):
    """In blocks, of which fewer may wait than there are."""
    monkeypatch.setattr("uedp_ray.privacy.noise._BLOCK", 100)
    monkeypatch.setattr("uedp_ray.privacy.noise._AHEAD", 2)
    asked = {"std": 2.0, "round_index": 3}
    for noise in (GaussianNoise(test_seed=1), GaussianNoise()):
        noise.draw_ahead(1000, **asked)
        ahead, again = noise.sample(1000, **asked), noise.sample(1000, **asked)
        assert torch.equal(ahead, again) == (not noise.private), "taken twice"
    noise = GaussianNoise(test_seed=1)
    expected = noise.sample(1000, **asked)
    noise.draw_ahead(1000, std=2.0, round_index=2)  # of a round that was given up
    noise.draw_ahead(1000, **asked)
    assert torch.equal(noise.sample(1000, **asked), expected)
    noise.draw_ahead(999, **asked)
    assert torch.equal(noise.sample(1000, **asked), expected), "another vector's"
    assert noise._ahead is None


@pytest.mark.parametrize("then", ["taken", "forgotten", "asked for and not taken"])
def test_threads_that_draw_noise_end(then, monkeypatch):
    monkeypatch.setattr("uedp_ray.privacy.noise._BLOCK", 10)
    monkeypatch.setattr("uedp_ray.privacy.noise._AHEAD", 2)
    noise = GaussianNoise()
    for number in range(3):
        noise.draw_ahead(1000, std=1.0, round_index=number)
    if then == "taken":
        noise.sample(1000, std=1.0, round_index=2)
    elif then == "asked for and not taken":
        noise.blocks(1000, std=1.0, round_index=2)
    del noise  # as where a round ends in an error
    for thread in threading.enumerate():
        if thread.name == "noise":
            thread.join(10)
            assert not thread.is_alive()


def test_what_goes_wrong_in_the_thread_is_raised_where_noise_is_taken(monkeypatch):
    def broken(key, size, *, std):
        yield torch.zeros(1)
        raise MemoryError("no room")

    monkeypatch.setattr("uedp_ray.privacy.noise.keyed_blocks", broken)
    noise = GaussianNoise()
    noise.draw_ahead(5, std=1.0, round_index=0)
    with pytest.raises(MemoryError, match="no room"):
        noise.sample(5, std=1.0, round_index=0)
    with pytest.raises(ValueError, match="must be 0 or more"):
        noise.draw_ahead(5, std=-1.0, round_index=0)
