"""Runs at a URL that are cut off, and what the storage has of them."""

from __future__ import annotations

import pytest

from tests.training import runs
from tests.training.runs import Crash
from uedp_ray.privacy.ledger import read_ledger
from uedp_ray.training.host import train
from uedp_ray.training.storage import Mirror, open_storage


def crash(config, out, where, nth, *, after=False, resume=False):
    with pytest.MonkeyPatch.context() as patch:
        runs.die(where, nth, after, kill=runs.crash_now, set_attribute=patch.setattr)
        with pytest.raises(Crash):
            train(config, out, workers=0, resume=resume)


def kept_events(url):
    """The rounds that the storage has charged, as a new start would see them."""
    mirror = open_storage(url)
    path = mirror.root.parent / "looked-at.jsonl"
    mirror.root.parent.mkdir(parents=True, exist_ok=True)
    seen = Mirror(mirror._objects.url, mirror._work)
    seen._name = lambda _: "ledger.jsonl"
    return [event for event in read_ledger(path) if event["kind"] == "round"] if seen.restore(path) else []


def charged(url):
    return [(event["round"], event["attempt"]) for event in kept_events(url)]
