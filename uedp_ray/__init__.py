"""User-entity differential privacy for language models: train, account, sweep.

from uedp_ray import RunConfig, calibrate, epsilon, train
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from uedp_ray.errors import InputError

if TYPE_CHECKING:
    from uedp_ray.analysis.frames import load_sweep
    from uedp_ray.config import RunConfig, load_config
    from uedp_ray.privacy.accounting import calibrate, epsilon
    from uedp_ray.privacy.mechanisms.poisson import RoundMechanism
    from uedp_ray.search.compare import compare
    from uedp_ray.search.export import export
    from uedp_ray.search.sweep import sweep
    from uedp_ray.search.sweep_config import load_sweep_config
    from uedp_ray.training.host import train
    from uedp_ray.training.pretrain import pretrain

    __version__: str

_HOMES = {
    "RunConfig": "config",
    "load_config": "config",
    "RoundMechanism": "privacy.mechanisms.poisson",
    "calibrate": "privacy.accounting",
    "compare": "search.compare",
    "epsilon": "privacy.accounting",
    "export": "search.export",
    "load_sweep": "analysis.frames",
    "load_sweep_config": "search.sweep_config",
    "pretrain": "training.pretrain",
    "sweep": "search.sweep",
    "train": "training.host",
}
__all__ = [
    "InputError",
    "RoundMechanism",
    "RunConfig",
    "calibrate",
    "compare",
    "epsilon",
    "export",
    "load_config",
    "load_sweep",
    "load_sweep_config",
    "pretrain",
    "sweep",
    "train",
]


def __getattr__(name: str) -> Any:
    """Imports on first use: reading a config or computing an epsilon should not load torch, transformers and Ray."""
    if name == "__version__":
        from importlib import metadata

        try:
            return metadata.version("uedp-ray")
        except metadata.PackageNotFoundError:  # run from the source tree, not installed
            return "unknown"
    if name not in _HOMES:
        raise AttributeError(f"module 'uedp_ray' has no attribute {name!r}")
    return getattr(import_module(f"uedp_ray.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, "__version__"})
