"""What the storage at a URL has of a run."""

from __future__ import annotations

from uedp_ray.privacy.ledger import read_ledger
from uedp_ray.storage.mirror import Mirror
from uedp_ray.storage.open import open_storage


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
