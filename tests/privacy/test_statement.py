"""What is shown of an epsilon, and the terms it is stated in."""

# Over 400 lines: one accountant against many independent sources, sharing their helpers.

from __future__ import annotations

import math

from tests.privacy.mechanisms import BASE
from uedp_ray.privacy.statement import show_epsilon, state


def test_what_is_shown_is_never_less():
    shown = [show_epsilon(value) for value in (2.0, 2.0001, 2.0009999, 0.0, 1e-9)]
    assert shown == ["2.000", "2.001", "2.001", "0.000", "0.001"]
    assert (show_epsilon(math.inf), show_epsilon(None, "∞")) == ("no guarantee", "∞")


def test_statement():
    call = {"delta": 1e-5, "unit": "user-entity", "declared": False}
    sound = state(BASE, epsilon=2.0, **call)
    assert sound.guarantee
    assert sound.relation == "zero_out (fixed-graph)"
    for word in ("user and entity", "1e-05", "pld", "all", "poisson", "zero_out"):
        assert word in sound.text
    assert not state(BASE, epsilon=math.inf, **call).guarantee
    assert not state(BASE, epsilon=2.0, **call, private=False).guarantee
    settled = state(BASE, epsilon=2.0, **call, settled=True, note=" So it is read.")
    assert not settled.guarantee
    assert "(settled by results, to be read as said below)" in settled.text
    published = state(BASE, epsilon=0.5, delta=1e-5, unit="user", accountant="published", declared=True)
    assert not published.guarantee
    assert "not a guarantee" in published.text
