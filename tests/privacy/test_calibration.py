"""The least noise that meets a target: never too little, and no more than needed."""

# Over 400 lines: one accountant against many independent sources, sharing their helpers.

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.privacy.mechanisms import BASE, change
from uedp_ray.errors import InputError
from uedp_ray.privacy.accounting import calibrate, epsilon

CALL = {"rounds": 50, "delta": 1e-5}


@settings(max_examples=8)
@given(st.floats(0.05, 20), st.integers(1, 400), st.floats(1e-9, 1e-4), st.floats(0.001, 0.3), st.integers(0, 12))
def test_calibration_never_overshoots(target, rounds, delta, q_u, holders):
    mechanism = change(user_sampling_prob=q_u, max_holders=holders)
    call = {"rounds": rounds, "delta": delta, "kind": "entity"}
    z = calibrate(mechanism, target_epsilon=target, **call)
    assert epsilon(change(mechanism, noise_multiplier=z), **call) <= target
    # a further grid would say the same: the true epsilon lies below, and less noise would not do
    assert epsilon(change(mechanism, noise_multiplier=z * 0.995), **call) > target * 0.999


def test_calibration_pays_for_whatever_weights_the_holders_have():
    """A solution for K holders that count in full is only where the search begins."""
    fields = {"user_sampling_prob": 0.5, "entity_sampling_prob": 0.9, "max_holders": 5, "entity_clip": 0.4}
    weighed = change(**fields, holder_bound="reweight", max_users=1000)
    call = {"rounds": 20, "delta": 1e-5, "kind": "entity"}
    whole = calibrate(change(**fields), target_epsilon=2.0, **call)
    z = calibrate(weighed, target_epsilon=2.0, **call)
    assert epsilon(change(weighed, noise_multiplier=whole), **call) > 2.0
    assert epsilon(change(weighed, noise_multiplier=z), **call) <= 2.0


def test_calibration_limits():
    loose = calibrate(BASE, target_epsilon=1e9, **CALL)
    assert loose < 0.05
    assert epsilon(change(noise_multiplier=loose), **CALL) <= 1e9
    assert calibrate(change(user_sampling_prob=0.0), target_epsilon=1.0, **CALL) == pytest.approx(1e-3)
    with pytest.raises(InputError, match="target_epsilon"):
        calibrate(BASE, target_epsilon=0.0, **CALL)
    with pytest.raises(InputError, match="no noise reaches"):
        calibrate(BASE, target_epsilon=1e-7, rounds=10_000, delta=1e-9)
    with pytest.raises(InputError, match="max_holders"):
        calibrate(change(max_holders=None), target_epsilon=1.0, **CALL)
    with pytest.raises(InputError, match="sentence_clip_norm"):
        calibrate(change(entity_clip=2.0, holder_bound="reweight", max_users=100), target_epsilon=1.0, **CALL)
