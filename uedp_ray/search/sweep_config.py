"""The configuration of a sweep: a base run, a space, a budget, a searcher and resources. Read from and written to YAML.

    sweep = load_sweep_config("sweeps/quickstart.yaml", ["search.trials=8"])
    dump_sweep_config(sweep, "runs/quickstart/sweep.yaml")

Every field is PUBLIC, as in ``uedp_ray.config``.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

import yaml

from uedp_ray import methods
from uedp_ray.config import (
    PrivacyConfig,
    RunConfig,
    check_rounds,
    from_dict,
    parse_overrides,
    read_yaml,
    set_keys,
    to_dict,
)
from uedp_ray.config.io import of_file, renamed, to_digest
from uedp_ray.config.limits import choice
from uedp_ray.corpus.categories import common
from uedp_ray.errors import InputError
from uedp_ray.privacy.selection import PILOTS, SECRET
from uedp_ray.privacy.statement import narrowed
from uedp_ray.search.samplers import sampler_of
from uedp_ray.search.sections import DEFAULT_TRIALS, BudgetConfig, ReferenceConfig, ResourceConfig, SearchConfig
from uedp_ray.search.space import Point, Space, setting, settings_of
from uedp_ray.storage.files import read_json, write_atomically
from uedp_ray.tasks.metric import Metric
from uedp_ray.tasks.metrics import metric_of

Tracker = Literal["mlflow", "wandb"]
PILOT_SHARE = 1 / 16
"""Of the budget, for a pilot."""
_PRIVATE_WORDS = "noisy-threshold"


class TrialRun(NamedTuple):
    """One of the runs of a trial."""

    proxy: str
    """The name of the public text it trains on; empty where there is one text."""
    seed: int
    """Its place among the runs on that text."""
    suffix: str
    """What the name of its folder adds to the trial's."""


@dataclass(frozen=True, kw_only=True)
class SweepConfig:
    """A whole sweep. ``base`` already contains the budget: a trial is ``base`` with a point of ``space`` applied over it."""

    base: RunConfig
    """What all trials share."""
    space: Mapping[str, Any]
    """What they differ in: ``space.Space``."""
    budget: BudgetConfig = field(default_factory=BudgetConfig)
    """What may be spent."""
    search: SearchConfig = field(default_factory=SearchConfig)
    """How it is searched, and by which rule it is paid for."""
    resources: ResourceConfig = field(default_factory=ResourceConfig)
    """What a trial runs on."""
    references: ReferenceConfig = field(default_factory=ReferenceConfig)
    """Lines to compare with."""
    trackers: tuple[str, ...] = ()
    """Any of ``mlflow`` and ``wandb``; TensorBoard's files are always written."""

    def __post_init__(self) -> None:
        for tracker in self.trackers:
            choice("trackers", tracker, Tracker)
        if self.base.corpus.evaluation is None:
            raise InputError("base.corpus.evaluation", None, "name text to compare trials on")
        if (rule := self.base.corpus.regroup) != "users":
            remedy = "prices promises to users, and under it none is made: use train or compare, or users"
            raise InputError("base.corpus.regroup", rule, f"a sweep {remedy}")
        if self.resources.workers_per_trial > 1 and self.search.stops_early:
            remedy = "a Ray Train group is not stopped early: use none, or trials of one worker"
            raise InputError("search.early_stopping", self.search.early_stopping, remedy)
        if self.common_categories == ():
            remedy = "no category is in every choice, so no entity is protected by all trials: keep one in each, or use"
            values = list(self.parsed_space["corpus.categories"].values)
            raise InputError("space.corpus.categories", values, f"{remedy} rule public or compare")
        self._check_noise()
        self._check_pilots()
        self._check_vocabulary()

    def _check_pilots(self) -> None:
        """Refuses pilots that leave nothing to solve for the run that follows them."""
        if self.search.rule not in PILOTS:
            return
        if self.budget.covers != "answer":
            raise InputError(
                "budget.covers", self.budget.covers, f"rule {self.search.rule} divides one budget: use answer"
            )
        if self.budget.noise != "calibrated":
            raise InputError(
                "budget.noise",
                self.budget.noise,
                f"rule {self.search.rule} solves the noise of each run: use calibrated",
            )
        if self.pilot_epsilon >= self.budget.target_epsilon:
            remedy = (
                f"must be less than budget.target_epsilon = {self.budget.target_epsilon:g}, of which pilots take a part"
            )
            raise InputError("search.pilot_epsilon", self.search.pilot_epsilon, remedy)

    def _check_vocabulary(self) -> None:
        """Refuses a vocabulary from private text if its price cannot be fixed before the first trial."""
        if not self._private_words:
            return
        space, search = self.parsed_space, self.search
        remedy = ""
        if self.base.pretrain.text:
            remedy = "the model trained on base.pretrain.text brings its vocabulary: use public-words"
        elif search.rule in SECRET | PILOTS:
            remedy = f"{search.rule} does not cover a vocabulary from private text: use public-words, or composition"
        if remedy:
            part = "space" if _PRIVATE_WORDS in self.choices("vocabulary.kind") else "base"
            raise InputError(f"{part}.vocabulary.kind", _PRIVATE_WORDS, remedy)
        for key in ("vocabulary.kind", "vocabulary.threshold_delta", "model.warm_start"):  # which may bring one instead
            if key in space and search.rule == "composition" and search.adaptive:
                remedy = (
                    "an adaptive search sets aside, before its first trial, what vocabularies from private text take of "
                    "delta: set it in base, or use grid or random with selection composition"
                )
                raise InputError(f"space.{key}", space[key].spec, remedy)

    @property
    def _private_words(self) -> bool:
        """Whether a trial may make a vocabulary from the text that it is trained on."""
        return _PRIVATE_WORDS in self._in_a_trial("vocabulary.kind", self.base.vocabulary.kind)

    def _in_a_trial(self, key: str, base: Any) -> list[Any]:
        """Returns what a choice setting may be in a trial: ``base`` too if it is not searched, or not at every point."""
        searched = self.parsed_space.get(key)
        return self.choices(key) if searched and not searched.when else [*self.choices(key), base]

    def choices(self, key: str) -> list[Any]:
        """Returns the searched values of a choice setting, as ``RunConfig`` takes them; empty if it is not searched."""
        searched = self.parsed_space.get(key)
        return [] if searched is None else [setting(key, value) for value in searched.values]

    def _check_noise(self) -> None:
        free, space = self.budget.noise == "free", self.parsed_space
        noise, target = space.get("privacy.noise_multiplier"), space.get("privacy.target_epsilon")
        if noise and not free:
            remedy = "is solved from the budget: leave it out, or set budget.noise to free"
            raise InputError("space.privacy.noise_multiplier", noise.spec, remedy)
        if target and free:
            remedy = "nothing is solved with free noise: search privacy.noise_multiplier"
            raise InputError("space.privacy.target_epsilon", target.spec, remedy)
        if target and self.shares_budget:
            remedy = (
                "is solved, as the budget covers the whole answer: leave it out, or set budget.covers to each_trial"
            )
            raise InputError("space.privacy.target_epsilon", target.spec, remedy)
        if target and any(value > self.budget.target_epsilon for value in target.values):
            remedy = f"stay within budget.target_epsilon = {self.budget.target_epsilon:g}"
            raise InputError("space.privacy.target_epsilon", target.spec, remedy)
        if sampler_of(self.search.searcher).minimizes_epsilon and not (noise or target):
            remedy = (
                "trades the score for epsilon: with budget.noise free put privacy.noise_multiplier into the space, with "
                "budget.covers each_trial privacy.target_epsilon; or use tpe"
            )
            raise InputError("search.searcher", self.search.searcher, remedy)
        if free and not sampler_of(self.search.searcher).may_be_refused:
            raise InputError(
                "search.searcher", self.search.searcher, "does not learn which points are refused: use calibrated noise"
            )

    @functools.cached_property
    def parsed_space(self) -> Space:
        return Space.parse(self.space, self.base)

    @property
    def first_points(self) -> list[Point]:
        """The base's own point, which is tried first: a search has to beat no search. Empty if the base lies at none."""
        point = self.parsed_space.point_of(self.base)
        return [] if point is None else [point]

    def at_base(self, rows: Iterable[Mapping[str, Any]]) -> Mapping[str, Any] | None:
        """Returns the first row of a trial at the base's own point that was trained to its end (``search.no_search``)."""
        done = [row for row in rows if row["state"] == "done"]
        at_it = (row for point in self.first_points for row in done if all(row.get(key) == point[key] for key in point))
        return next(at_it, None)

    @property
    def shares_budget(self) -> bool:
        """Whether the private runs share one budget, so that none of them has all of it."""
        return self.budget.covers == "answer" and self.search.rule != "public"

    @functools.cached_property
    def common_categories(self) -> tuple[str, ...] | None:
        """Where trials differ in the categories they protect and are priced together: those that all of them protect.

        The price composes releases for one pair of a user and an entity, in every trial the same.
        """
        if "corpus.categories" not in self.parsed_space or self.search.rule == "public" or self.budget.unit == "user":
            return None
        return common(self._in_a_trial("corpus.categories", self.base.corpus.categories))

    @property
    def unit(self) -> str:
        """What the price of the search protects, in words."""
        return narrowed(self.budget.unit, self.common_categories)

    @property
    def metric(self) -> Metric:
        """What trials are compared by."""
        return metric_of(self.base)

    @property
    def starts_public(self) -> bool:
        """Whether trials start from a public model: one that is named, or that the search makes of ``pretrain.text``."""
        made = bool(self.base.pretrain.text) and self.base.words.kind != "noisy-threshold"
        return self.base.starts_public or made

    @property
    def device(self) -> str:
        """``training.device`` of all trials; ``auto`` where it is searched and some may use a GPU."""
        device = self.base.training.device
        return "auto" if device == "cpu" and "training.device" in self.space else device

    @property
    def proxy_names(self) -> tuple[str, ...]:
        """The names of the texts on which every trial trains; a single one may have none."""
        return tuple(self.search.proxies) or ("",)

    @property
    def score_columns(self) -> dict[str, str]:
        """The column of the score on each text that has a name."""
        return {proxy: self.metric.on(proxy) for proxy in self.proxy_names if proxy}

    @functools.cached_property
    def runs_of_trial(self) -> tuple[TrialRun, ...]:
        """The runs of every trial: one for each seed on each text."""
        seeds = range(self.search.seeds_per_trial)
        return tuple(
            TrialRun(proxy, seed, f"-{proxy}" * bool(proxy) + f"-{seed}" * (len(seeds) > 1))
            for proxy in self.proxy_names
            for seed in seeds
        )

    @property
    def suffixes(self) -> tuple[str, ...]:
        return tuple(run.suffix for run in self.runs_of_trial)

    @property
    def pilot_epsilon(self) -> float:
        """What a pilot costs by itself."""
        return self.search.pilot_epsilon or PILOT_SHARE * self.budget.target_epsilon

    @property
    def num_trials(self) -> int:
        """Trials to train; their mean number under ``repeat_and_select``."""
        if self.search.searcher == "grid":
            return len(self.parsed_space.grid())
        return self.search.trials or DEFAULT_TRIALS

    def digest(self) -> str:
        """SHA-256 of what may not change on resume: all but name, resources, trackers, and sometimes the number of trials.

        Anyone who adds trials has seen results. Where that is not charged for, the number of trials stays as it was; so it
        does where one budget covers them all, and where they make vocabularies from private text, for which no more of delta
        was set aside.
        """
        tree = to_digest(self)
        del tree["resources"], tree["trackers"], tree["base"]["name"]
        charged = self.search.rule == "composition" and self.search.adaptive and not self._private_words
        charged &= self.budget.covers == "each_trial"
        if self.search.rule == "public" or charged:
            del tree["search"]["trials"]
        return hashlib.sha256(json.dumps(tree, sort_keys=True).encode()).hexdigest()


def laid_over(config: RunConfig, sweep: SweepConfig, point: Point) -> RunConfig:
    """Returns a config with a point's method and settings. Raises: InputError if they contradict each other."""
    method, settings = settings_of(point, sweep.base)
    if method is None:
        return methods.overlay(config, settings)
    return methods.apply(config, method, {"privacy.unit": sweep.budget.unit, **settings})


def load_sweep_config(path: str | Path, overrides: Iterable[str] = ()) -> SweepConfig:
    """Reads a sweep file and applies ``a.b=value`` overrides, such as ``search.trials=8``.

    Raises: InputError for unknown keys, bad values, and a base that contradicts the budget.
    """
    settings = parse_overrides(overrides)
    tree = set_keys(read_yaml(path), settings)
    for name in ("base", "space"):
        if not isinstance(tree.get(name), dict):
            run = ": this is a run file, for uedp-ray train" if "corpus" in tree else ""
            raise InputError(name, tree.get(name), f"a sweep file needs the mapping {name}{run}")
    with of_file(path, settings):
        check_rounds(tree["base"].get("training"), settings, "base.training")
        budget = from_dict(BudgetConfig, tree.get("budget", {}), "budget.")
        tree["base"]["privacy"] = _with_budget(tree["base"].get("privacy", {}), budget)
        return from_dict(SweepConfig, tree)


def load_kept(path: Path, terms: Path) -> SweepConfig:
    """Reads the sweep that a folder holds; the budget of one that an earlier version began covers each trial.

    Raises: as ``load_sweep_config``; InputError if its terms are damaged.
    """
    earlier = terms.exists() and "covers" not in read_json(terms, {}, "restore the sweep's copy")
    return load_sweep_config(path, ["budget.covers=each_trial"] if earlier else [])


def _with_budget(privacy: Any, budget: BudgetConfig) -> dict[str, Any]:
    """Returns the base's privacy section with the budget in it. Raises: InputError if the two contradict each other."""
    if not isinstance(privacy, dict):
        raise InputError("base.privacy", privacy, "expected a mapping of keys")
    privacy = renamed(PrivacyConfig, privacy, "base.privacy.")
    stated: dict[str, Any] = {"delta": budget.delta, "unit": budget.unit}
    if budget.noise == "calibrated":
        stated |= {"target_epsilon": budget.target_epsilon, "noise_multiplier": None}
    else:
        stated |= {"target_epsilon": None, "noise_multiplier": privacy.get("noise_multiplier", 1.0)}
    for name, value in stated.items():
        given = privacy.get(name)
        if given is not None and str(given) != str(value) and not _same_number(given, value):
            raise InputError(f"base.privacy.{name}", given, "the sweep's budget sets this: leave it out of the base")
    return {**privacy, **stated}


def _same_number(given: Any, value: Any) -> bool:
    try:
        return float(given) == float(value)
    except (TypeError, ValueError):
        return False


def dump_sweep_config(sweep: SweepConfig, path: str | Path) -> None:
    """Writes the complete, resolved sweep as YAML, whole or not at all."""
    write_atomically(Path(path), yaml.safe_dump(to_dict(sweep), sort_keys=False, allow_unicode=True).encode())
