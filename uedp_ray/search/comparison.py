"""A comparison file: a base run, variants of it, and what all of them are repeated over.

    base: {corpus: …, model: …, privacy: …}
    variants:
      private: {method: uedp}
      users alone: {method: user_dp}
      non-private: {method: noiseless}
    grid: {privacy.target_epsilon: [1, 2, 4, 8]}
    seeds: 3
    published: {csv: published.csv, figure: "2a"}
    scales:
      small: {base: {training.num_rounds: 10}, grid: {privacy.target_epsilon: [2, 8]}, seeds: 1}

Every variant is trained at every point of the grid, and at each with every seed. Settings of the grid are laid over the
base, and those of a method and its variant over both: a variant that sets one by itself, or whose runs do not use it, has
one row for all its values (above, ``non-private`` has no epsilon). All of it is PUBLIC.

``--set scale=small`` lays such a scale over the file: its settings over those of the base, its variants over those of the
same names, all else in place of what the file has.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from uedp_ray import methods
from uedp_ray.config import RunConfig, check_rounds, from_dict, parse_overrides, read_yaml, set_keys
from uedp_ray.config.io import of_file
from uedp_ray.config.limits import at_least
from uedp_ray.errors import InputError, within
from uedp_ray.search.published import EPSILON, AsPublished, Published
from uedp_ray.search.sections import MAX_SEEDS
from uedp_ray.search.told import told
from uedp_ray.training.checks import check_unshared, unused

_SCALED = {"base", "variants", "grid", "seeds", "published"}
_KEYS = {*_SCALED, "scales"}
_OF_VARIANT = {"method", "set", "as_published"}
_MOST_RUNS = 300
MADE = frozenset(
    {"", "base.yaml", "started.json", "table.json", "table.csv", "report.html", "corpora", "pretrained", "tensorboard",
     "figures"}
)  # fmt: skip
"""Names in the folder of a comparison that no run may have."""


@dataclass(frozen=True)
class Row:
    """One variant at one point of the grid."""

    variant: str
    method: str
    point: Mapping[str, Any]
    """Settings of the grid that its runs use."""
    laid: Mapping[str, Any]
    """Settings of the variant itself."""
    as_published: AsPublished | None = None
    """How the published arithmetic is to price it, too."""

    @property
    def name(self) -> str:
        settings = ", ".join(f"{key.rsplit('.')[-1]} = {told(value)}" for key, value in self.point.items())
        return f"{self.variant} ({settings})" if settings else self.variant

    def config(self, base: RunConfig) -> RunConfig:
        """The run over a base. Raises: InputError for settings that do not go together."""
        return methods.apply(methods.overlay(base, self.point), self.method, self.laid)

    def folders(self, seeds: int) -> list[str]:
        """The names of its run directories, by seed."""
        slug = re.sub(r"[^a-z0-9]+", "-", self.name.lower()).strip("-")
        return [slug + (f"-seed{seed}" if seed else "") for seed in range(seeds)]


@dataclass(frozen=True)
class Comparison:
    """A base run and its variants, each (method, settings). See the module."""

    base: RunConfig
    variants: Mapping[str, tuple[str, Mapping[str, Any]]]
    grid: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    """Values by dotted key."""
    seeds: int = 1
    """Runs of every row; they differ in initial parameters, samples and noise, and each is charged."""
    published: Published | None = None
    """Points of others, to be drawn beside ours."""
    as_published: Mapping[str, AsPublished] = field(default_factory=dict)
    """By variant, how the published arithmetic is to price it, too."""

    @classmethod
    def load(cls, path: Path, overrides: list[str]) -> Comparison:
        """Reads a comparison file; ``overrides`` (a.b=value) apply to the base, ``scale`` names one of its scales."""
        tree = read_yaml(path)
        mappings = {"base", "variants"}
        if not mappings <= set(tree) <= _KEYS or not all(isinstance(tree[key], dict) for key in mappings):
            remedy = (
                "a comparison file has the two keys base and variants, both mappings; grid, seeds, published, scales "
                "if need be"
            )
            raise InputError("config", str(path), remedy)
        settings = parse_overrides(overrides)
        if "scale" in settings:
            scale = _scale(tree.get("scales"), settings.pop("scale"))
            settings = {**scale.get("base", {}), **settings}
            tree |= {**scale, "base": tree["base"], "variants": {**tree["variants"], **scale.get("variants", {})}}
        with of_file(path, {f"base.{key}": value for key, value in settings.items()}):
            tree["base"] = set_keys(tree["base"], settings)
            check_rounds(tree["base"].get("training"), settings)
            base = from_dict(RunConfig, tree["base"], "base.")
        variants, as_published = {}, {}
        for name, variant in ((str(key), value) for key, value in tree["variants"].items()):
            if not isinstance(variant, dict) or "method" not in variant or set(variant) - _OF_VARIANT:
                raise InputError(f"variants.{name}", variant, "a variant has the keys method, set and as_published")
            if not isinstance(variant.get("set", {}), dict):
                raise InputError(f"variants.{name}.set", variant["set"], "expected a mapping of settings")
            variants[name] = (variant["method"], variant.get("set", {}))
            if "as_published" in variant:
                as_published[name] = from_dict(AsPublished, variant["as_published"], f"variants.{name}.as_published.")
        seeds = tree.get("seeds", 1)
        if not isinstance(seeds, int) or isinstance(seeds, bool):
            raise InputError("seeds", seeds, "expected a whole number")
        at_least("seeds", seeds, 1, most=MAX_SEEDS)
        published = Published.load(tree["published"], path.parent) if "published" in tree else None
        found = cls(base, variants, _checked(tree.get("grid", {})), seeds, published, as_published)
        found.check()
        return found

    def check(self) -> None:
        """Raises: InputError for rows that could not be trained side by side, before hours of work."""
        if self.published is not None and self.published.against not in (EPSILON, *self.grid):
            remedy = f"expected {EPSILON}, or a key of the grid: nothing of ours is drawn against it"
            raise InputError("published.against", self.published.against, remedy)
        for point in _points(self.grid):
            with within("grid"):
                check_unshared(self.base, methods.overlay(self.base, point))
        taken = set(MADE)
        for row in self.rows:
            with within(f"variants.{row.variant}"):
                config = row.config(self.base)
                check_unshared(self.base, config)
                if row.as_published is not None:
                    row.as_published.check(config)
            for folder in row.folders(self.seeds):
                if folder in taken:
                    raise InputError("variants", row.name, f"its folder {folder!r} is taken: choose another name")
                taken.add(folder)
        if (count := len(taken) - len(MADE)) > _MOST_RUNS:
            raise InputError("grid", f"{count} runs", f"compare at most {_MOST_RUNS}: fewer values or seeds")

    @functools.cached_property
    def rows(self) -> tuple[Row, ...]:
        """The rows in order. Raises: InputError for a variant that is no run."""
        found: dict[tuple[str, str], Row] = {}
        for name, (method, laid) in self.variants.items():
            for point in _points(self.grid):
                with within(f"variants.{name}"):
                    whole = Row(name, method, point, laid).config(self.base)
                set_itself = [*methods.METHODS[method].settings, *laid]
                spare = {key for key in point if any(f"{key}.".startswith(f"{each}.") for each in set_itself)}
                used = {key: value for key, value in point.items() if key not in spare | unused(whole)}
                found.setdefault((name, repr(used)), Row(name, method, used, laid, self.as_published.get(name)))
        return tuple(found.values())

    @property
    def notes(self) -> list[str]:
        """What of the grid is not taken up, and may have been meant to be."""
        taken, found = {key for row in self.rows for key in row.point}, list[str]()
        for key, (name, (method, laid)) in itertools.product(self.grid, self.variants.items()):
            whole = next((each for each in laid if key.startswith(f"{each}.")), None)
            if whole is not None and key not in unused(Row(name, method, {}, laid).config(self.base)):
                of_it = f"variants.{name} sets all of {whole}, and so has one row for all values of grid.{key}"
                found.append(f"{of_it}: give its settings one by one ({whole}.kind and so on) for a row each")
                taken.add(key)
        return [*found, *(f"grid.{key} changes no row: no variant uses it" for key in self.grid if key not in taken)]

    def runs(self, base: RunConfig) -> Iterator[tuple[str, RunConfig]]:
        """The folder and the run of every seed of every row, over a base."""
        return itertools.chain.from_iterable(self.runs_of(row, base) for row in self.rows)

    def runs_of(self, row: Row, base: RunConfig) -> Iterator[tuple[str, RunConfig]]:
        """The folder and the run of every seed of a row, over a base."""
        config = row.config(base)
        for seed, folder in enumerate(row.folders(self.seeds)):
            training = dataclasses.replace(config.training, seed=config.training.seed + seed)
            yield folder, dataclasses.replace(config, name=folder, training=training)


def _scale(scales: Any, name: Any) -> dict[str, Any]:
    known = {str(key): value for key, value in scales.items()} if isinstance(scales, dict) else {}
    if str(name) not in known:
        remedy = f"expected one of the file's scales: {', '.join(known)}" if known else "the file has no scales"
        raise InputError("scale", name, remedy)
    scale = known[str(name)]
    if not isinstance(scale, dict) or not set(scale) <= _SCALED:
        raise InputError(f"scales.{name}", scale, f"expected a mapping with some of {', '.join(sorted(_SCALED))}")
    for key in ("base", "variants"):
        if not isinstance(scale.get(key, {}), dict):
            raise InputError(f"scales.{name}.{key}", scale[key], "expected a mapping")
    return scale


def _checked(grid: Any) -> dict[str, list[Any]]:
    if not isinstance(grid, dict):
        raise InputError("grid", grid, "expected settings, each with a list of values")
    for key, values in grid.items():
        if not isinstance(values, list) or not values or len(set(map(repr, values))) < len(values):
            raise InputError(f"grid.{key}", values, "expected a list of values, each once")
    if (count := math.prod(map(len, grid.values()))) > _MOST_RUNS:
        raise InputError("grid", f"{count} points", f"compare at most {_MOST_RUNS}: fewer values")
    return grid


def _points(grid: Mapping[str, Sequence[Any]]) -> Iterator[dict[str, Any]]:
    for values in itertools.product(*grid.values()):
        yield dict(zip(grid, values, strict=True))
