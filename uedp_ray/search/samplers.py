"""How each searcher chooses points, and what else it can do. One entry per name in ``privacy.selection.Searcher``.

    >>> from uedp_ray.search.samplers import sampler_of
    >>> found = sampler_of("tpe")
    >>> type(found.make(32, 0)).__name__    # Optuna's, for a search of 32 trials, with seed 0
    'TPESampler'
    >>> found.may_stop_early, found.may_be_refused, found.minimizes_epsilon
    (True, True, False)

A searcher is adaptive, and charged as such, unless ``privacy.selection.is_adaptive`` names it as not, or the whole search
is no longer than the searcher's start-up, in which nothing is chosen by results.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass

from optuna.exceptions import ExperimentalWarning
from optuna.samplers import BaseSampler, GPSampler, NSGAIISampler, RandomSampler, TPESampler

from uedp_ray.components import in_table
from uedp_ray.errors import InputError


@dataclass(frozen=True)
class Sampler:
    """A searcher's sampler, and what else it can do: nothing that is not stated here."""

    make: Callable[[int, int], BaseSampler]
    """(number of trials, seed) -> a sampler, the same for the same two. It is made anew for each trial, with a seed of that
    trial's, and learns from the trials before it in the study alone: one that walks along a sequence of its own does not."""
    minimizes_epsilon: bool = False
    """Whether epsilon is a second objective, beside the score."""
    may_stop_early: bool = False
    """Whether it learns from trials that were stopped early, or from no trials."""
    may_be_refused: bool = False
    """Whether it learns which points the budget refuses, or from no points."""
    start_up: Callable[[int], int] = lambda trials: 0
    """number of trials -> how many of them, the first ones, are drawn at random whatever the results are."""


def _start_up(trials: int) -> int:
    """How many of a search's trials are drawn at random before results decide: a third, and no more than Optuna's own ten,
    of which a search of eight would never have left the start."""
    return max(1, min(10, trials // 3))


def _generation(trials: int) -> int:
    """Trials in a generation, the first of which is random: it must fit into the search several times to be of use."""
    return max(4, min(50, trials // 4))


_BY_CHANCE = Sampler(lambda trials, seed: RandomSampler(seed=seed), may_stop_early=True, may_be_refused=True)

SAMPLERS = {
    "random": _BY_CHANCE,
    "grid": _BY_CHANCE,  # its points are listed beforehand
    "tpe": Sampler(
        lambda trials, seed: TPESampler(seed=seed, multivariate=True, group=True, n_startup_trials=_start_up(trials)),
        may_stop_early=True,
        may_be_refused=True,
        start_up=_start_up,
    ),
    "nsga2": Sampler(
        lambda trials, seed: NSGAIISampler(seed=seed, population_size=_generation(trials)),
        minimizes_epsilon=True,
        may_be_refused=True,
        start_up=_generation,
    ),
    "gp": Sampler(
        lambda trials, seed: GPSampler(seed=seed, warn_independent_sampling=False, n_startup_trials=_start_up(trials)),
        start_up=_start_up,
    ),
}


def sampler_of(searcher: str) -> Sampler:
    """The entry of ``search.searcher``. Raises: TypeError for one that is listed and has none."""
    return in_table(SAMPLERS, searcher, "SAMPLERS of uedp_ray.search.samplers")


def make_sampler(searcher: str, trials: int, seed: int) -> BaseSampler:
    """Raises: InputError where the library that it needs is missing: before a trial, though it may not sample the first."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ExperimentalWarning)
            return sampler_of(searcher).make(trials, seed)
    except ImportError as error:
        raise InputError("search.searcher", searcher, f"{error}: install that, or choose another") from error
