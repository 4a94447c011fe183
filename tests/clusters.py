"""A local Ray for tests."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import ray

from uedp_ray.interrupts import handlers_kept


@contextmanager
def local_cluster(**resources: int) -> Iterator[None]:
    """A cluster of this machine that believes to have these resources (``num_cpus``, ``num_gpus``)."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("RAY_ADDRESS", raising=False)
        with handlers_kept():
            ray.init(address="local", include_dashboard=False, log_to_driver=False, logging_level="error", **resources)
        yield
        ray.shutdown()
