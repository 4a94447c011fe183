"""Checks of a sweep before any text is read and any trial starts; see ``training.checks``."""

from __future__ import annotations

from collections.abc import Mapping

from uedp_ray import methods
from uedp_ray.config import RunConfig
from uedp_ray.errors import InputError, within
from uedp_ray.models.architecture import shaping
from uedp_ray.reporting import Reporter
from uedp_ray.search.feasibility import alone, run_config
from uedp_ray.search.proxies import naming
from uedp_ray.search.sweep_config import SweepConfig
from uedp_ray.training.checks import check_comparable, check_device, check_model, check_pretraining, check_unshared
from uedp_ray.training.paths import for_use


def check_sweep(config: SweepConfig, bases: Mapping[str, RunConfig], reporter: Reporter) -> None:
    """Raises: InputError for what the base, a base that trials train (``searched_bases``) or a value of the space lacks.

    Values that are ruled out only in combination are refused with their point, during the search.
    """
    with within("base"):
        check_comparable(config.base, reporter)
    for proxy, searched in bases.items():
        if config.search.proxies:
            with naming(proxy):
                check_comparable(searched)
        if searched.pretrain.text:
            with within("base"):
                check_pretraining(searched)
        if config.references.noiseless is not None:
            with within("references.noiseless"):
                check_unshared(searched, methods.apply(searched, "noiseless", config.references.noiseless))
    names = shaping()
    searched_shape = [key for key in config.parsed_space if key.removeprefix("model.") in names]
    for key, dimension in config.parsed_space.items():
        for value in dimension.values if key.startswith(("model.", "vocabulary.", "training.device")) else ():
            try:
                tried = run_config(config, {key: value}, alone(config))
            except InputError:
                continue  # not valid by itself; the points that hold it say why
            try:
                check_device(tried)
                check_model(
                    for_use(tried), start=searched_shape in ([], [key])
                )  # with several, some point may have what fits
            except InputError as error:
                raise InputError(f"space.{key}", value, f"{error.field} = {error.value}: {error.remedy}") from None
