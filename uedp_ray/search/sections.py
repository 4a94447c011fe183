"""The sections of a sweep file besides its base and its space: budget, search, resources, references.

Every field is PUBLIC, as in ``uedp_ray.config``.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from uedp_ray.config import RunConfig
from uedp_ray.config.choices import ADDED
from uedp_ray.config.limits import at_least, check_choices, positive
from uedp_ray.errors import InputError
from uedp_ray.privacy import selection
from uedp_ray.privacy.laws import Law
from uedp_ray.privacy.selection import Rule, Searcher
from uedp_ray.search.samplers import make_sampler, sampler_of
from uedp_ray.search.space import MAX_POINTS
from uedp_ray.search.stopping import EarlyStopping
from uedp_ray.units import Unit

Selection = Literal["default", Rule]
MAX_SEEDS = 1_000
DEFAULT_TRIALS = 32
_SECTIONS = {section.name for section in dataclasses.fields(RunConfig)}
_PROXY_NAME = r"[a-z][a-z0-9_]{0,31}|"


@dataclass(frozen=True, kw_only=True)
class BudgetConfig:
    """What may be spent, and on what."""

    target_epsilon: float = 8.0
    """epsilon of ``unit`` at ``delta``."""
    covers: Literal["answer", "each_trial"] = "answer"
    """``answer``: the target bounds all that the rule lets one hand on, the choice included, and what each run may spend is
    solved from it. ``each_trial``: it bounds each run alone; choosing costs more, and is reported."""
    delta: float = 1e-5
    """Of the whole, too."""
    unit: Unit = "user-entity"
    """Whose epsilon is bounded."""
    noise: Literal["calibrated", "free"] = "calibrated"
    """``calibrated``: each trial's noise multiplier is solved from the budget. ``free``: the base or the space gives it, and
    points beyond what a run may spend are refused."""

    def __post_init__(self) -> None:
        check_choices(self, "budget")
        positive("budget.target_epsilon", self.target_epsilon)
        if not 0.0 < self.delta < 1.0:
            raise InputError("budget.delta", self.delta, "must lie strictly between 0 and 1")


@dataclass(frozen=True, kw_only=True)
class SearchConfig:
    """How points of the space are chosen, and by which rule the choice of the best is paid for."""

    searcher: Searcher = "tpe"
    """How points are chosen: an entry of ``samplers.SAMPLERS``."""
    trials: int | None = None
    """Points to train (none: 32); of a secret number the mean. ``grid`` trains all of its points."""
    seeds_per_trial: int = 1
    """Runs of every point; they differ in initial parameters, samples and noise."""
    early_stopping: EarlyStopping = "none"
    """``asha`` or ``median``: trials that fall behind are stopped."""
    grace_rounds: int = 5
    """Rounds before which nothing is stopped early."""
    selection: Selection = "default"
    """``default``: ``public`` where ``public`` names text; else ``repeat_and_select`` for ``random`` without early stopping,
    and ``composition``."""
    law: Law = "geometric"
    """``repeat_and_select`` and ``selected_pilots`` only: the law of the secret number of trials."""
    pool_size: int = 64
    """``repeat_and_select`` and ``selected_pilots`` only: points drawn from the space beforehand, among which trials are
    drawn."""
    pilot_epsilon: float | None = field(default=None, metadata=ADDED)
    """``pilots`` and ``selected_pilots`` only: epsilon of each trial by itself (none: a sixteenth of the budget). The run by
    the best one's settings takes the rest."""
    public: Mapping[str, Any] = field(default_factory=dict)
    """Rule ``public`` only: settings applied over the base while searching, such as public text as ``corpus.source``; or
    several proxies, each with a name and such settings, on all of which every trial trains."""
    seed: int = 0
    """The searcher's seed. Samples and noise of the trials have their own, private keys."""

    def __post_init__(self) -> None:
        check_choices(self, "search")
        at_least("search.trials", self.trials, 1, most=MAX_POINTS, optional=True)
        at_least("search.seeds_per_trial", self.seeds_per_trial, 1, most=MAX_SEEDS)
        at_least("search.grace_rounds", self.grace_rounds, 1)
        at_least("search.pool_size", self.pool_size, 1, most=MAX_POINTS)
        at_least("search.seed", self.seed, 0)
        positive("search.pilot_epsilon", self.pilot_epsilon, optional=True)
        make_sampler(self.searcher, self.trials or 1, seed=0)
        if self.searcher == "grid" and self.trials is not None:
            raise InputError("search.trials", self.trials, "a grid trains every point of its space: leave it out")
        if self.stops_early and not sampler_of(self.searcher).may_stop_early:
            raise InputError(
                "search.early_stopping", self.early_stopping, f"{self.searcher} needs whole trials: use none"
            )
        if self.stops_early and self.seeds_per_trial > 1:
            raise InputError(
                "search.early_stopping", self.early_stopping, "needs one seed per trial: use none, or 1 seed"
            )
        if self.stops_early and len(self.proxies) > 1:
            raise InputError("search.early_stopping", self.early_stopping, "needs one text to search on: use none")
        selection.check_rule(self.rule, searcher=self.searcher, early_stopping=self.stops_early)
        if bool(self.public) != (self.rule == "public"):
            remedy = "give it for rule public, and for that rule only: it names the public text that trials use"
            raise InputError("search.public", dict(self.public), remedy)
        for name, settings in self.proxies.items():
            if not re.fullmatch(_PROXY_NAME, name) or not isinstance(settings, Mapping) or not settings:
                remedy = (
                    "give settings of a run, such as corpus.source; or proxies, each a name (a-z, 0-9, _) with such"
                )
                raise InputError(f"search.public.{name}", settings, remedy)

    @property
    def stops_early(self) -> bool:
        return self.early_stopping != "none"

    @property
    def as_priced(self) -> Mapping[str, Any]:
        """The searcher and the early stopping that are charged for: random search where all trials are of another searcher's
        start-up, so that their points are fixed beforehand; one trial depends on no other. Public text charges nothing, and
        its trials may become more."""
        trials = self.trials or DEFAULT_TRIALS
        at_random = 1 if self.stops_early else max(1, sampler_of(self.searcher).start_up(trials))
        if self.rule == "public" or trials > at_random:
            return {"searcher": self.searcher, "early_stopping": self.stops_early}
        return {"searcher": "random", "early_stopping": False}

    @property
    def rule(self) -> str:
        """The rule by which the choice is paid for."""
        if self.selection != "default":
            return self.selection
        if self.public:
            return "public"
        return selection.default_rule(self.searcher, early_stopping=self.stops_early)

    @property
    def proxies(self) -> Mapping[str, Mapping[str, Any]]:
        """Rule ``public``: the settings of each text to search on, by name; that of a single one may be empty."""
        named = self.public and not any(str(key).partition(".")[0] in _SECTIONS for key in self.public)
        return self.public if named else {"": self.public} if self.public else {}

    @property
    def adaptive(self) -> bool:
        """Whether a trial may depend on the results of others."""
        return selection.is_adaptive(**self.as_priced)


@dataclass(frozen=True, kw_only=True)
class ResourceConfig:
    """The resources of one trial. As many trials run at once as fit."""

    workers_per_trial: int = 1
    """1 trains inside the trial's own process; more form a Ray Train group."""
    cpus_per_worker: int = 1
    """CPUs that Ray sets aside for each worker."""
    gpus_per_worker: float | Literal["auto"] = "auto"
    """``auto`` divides the GPUs of the cluster among the trials that run at once. 0 trains on CPUs; a part of 1 lets several
    trials of one worker share a GPU."""
    workers_of_winner: int | Literal["trial", "auto"] = "trial"
    """Workers that train the winner, where the search ends by training one. ``trial``: those of a trial. ``auto``: but where
    that took minutes, on one machine without GPUs, as many as trials run at once there."""
    max_concurrent: int | None = None
    """Most trials at once; none: as many as fit."""

    def __post_init__(self) -> None:
        for name in ("workers_per_trial", "cpus_per_worker"):
            at_least(f"resources.{name}", getattr(self, name), 1)
        winner = self.workers_of_winner
        if winner != "trial" and winner != "auto":
            at_least("resources.workers_of_winner", winner, 1)
        at_least("resources.max_concurrent", self.max_concurrent, 1, optional=True)
        gpus = self.gpus_per_worker
        several = self.workers_per_trial > 1 or winner not in ("trial", "auto", 1)
        if gpus != "auto" and not (0 <= gpus < math.inf and (gpus == int(gpus) or (gpus < 1 and not several))):
            remedy = "give auto, 0, a whole number, or a part of 1 for trials of one worker"
            raise InputError("resources.gpus_per_worker", gpus, remedy)


@dataclass(frozen=True, kw_only=True)
class ReferenceConfig:
    """Lines to compare with. The public model is scored if there is one: that costs nothing."""

    noiseless: Mapping[str, Any] | None = None
    """Settings applied over the base for one run WITHOUT privacy on the same text; none: no such run."""
