"""Filling in as many steps as links fill, each of which looks only at what still rises."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from uedp_ray.corpus import filling
from uedp_ray.corpus.filling import UNIT, filled


def test_steps_look_at_what_still_rises(monkeypatch: pytest.MonkeyPatch) -> None:
    """Link l has l sentences of its own, and shares one with the next: the last fills first, then the one before it."""
    sizes, renumbered = list[int](), filling._renumbered
    monkeypatch.setattr(filling, "_renumbered", lambda numbers, size: sizes.append(size) or renumbered(numbers, size))
    own_I = np.repeat(np.arange(100), np.arange(1, 101))
    link_I = np.concatenate([own_I, np.arange(99), np.arange(1, 100)])
    holds_I = np.concatenate([np.arange(len(own_I)), *[len(own_I) + np.arange(99)] * 2])
    linked, spare = len(own_I) + 99, 50_000  # and sentences without a link
    units = filled(holds_I, link_I, capacities=np.full(100, UNIT), open_N=np.ones(linked + spare, bool))
    of_link = np.bincount(link_I, weights=units[holds_I])
    assert ((of_link <= UNIT) & (of_link > UNIT - 150)).all(), "but for rounding all are full"
    assert set(units[linked:].tolist()) == {UNIT}
    of_sentences, of_links = sizes[::2], sizes[1::2]
    assert of_sentences[:2] == [linked + spare, linked], "those without a link are left behind at once"
    assert all(after <= 0.6 * before for before, after in itertools.pairwise(of_sentences[1:]))
    assert of_links[-1] < 20
