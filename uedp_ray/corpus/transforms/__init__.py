"""Transforms of the private corpus: one file each, applied after entities are found and before text becomes tokens.

    transform_of(TransformConfig(kind="none"))      # None

``corpus.transform.kind`` names a module of this room with a ``TRANSFORM``; ``none`` leaves the corpus as it is.
"""

from __future__ import annotations

from importlib import import_module

from uedp_ray.config import TransformConfig
from uedp_ray.corpus.transforms.base import Transform


def transform_of(config: TransformConfig) -> Transform | None:
    """The transform that the config names; None for ``none``."""
    if config.kind == "none":
        return None
    found: type[Transform] = import_module(f"uedp_ray.corpus.transforms.{config.kind}").TRANSFORM
    return found(config)
