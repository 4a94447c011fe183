"""The search space: which settings vary, over which values, under which conditions.

    >>> from uedp_ray.config import CorpusConfig, RunConfig
    >>> from uedp_ray.search.space import Space, settings_of
    >>> base = RunConfig(corpus=CorpusConfig(declared_num_users=1000))
    >>> tree = {
    ...     "method": {"choice": ["uedp", "user_dp"]},
    ...     "expected_cohort_size": {"log_uniform": [10, 1000], "points": 3},
    ...     "privacy.entity_sampling_prob": {"choice": [0.5], "when": {"method": "uedp"}},
    ... }
    >>> points = Space.parse(tree, base).grid()
    >>> for point in points:    # one is given to each of Optuna's trials by ``suggest``
    ...     print(list(point.values()))
    ['uedp', 10.0, 0.5]
    ['uedp', 100.0, 0.5]
    ['uedp', 1000.0, 0.5]
    ['user_dp', 10.0]
    ['user_dp', 100.0]
    ['user_dp', 1000.0]
    >>> settings_of(points[1], base)
    ('uedp', {'privacy.entity_sampling_prob': 0.5, 'privacy.user_sampling_prob': 0.1})

A key is a setting of ``RunConfig`` by its dotted name, ``method`` (see ``uedp_ray.methods``), or ``expected_cohort_size``,
which sets ``privacy.user_sampling_prob`` to its share of the declared users. A dimension is one of

    {uniform: [low, high]}   {log_uniform: [low, high]}   {integer: [low, high], step: 1}   {choice: [a, b, …]}

and may add ``points: n`` (values that a grid takes from a range, evenly spread on its scale) and ``when: {key: value or
values}``: then it exists only at points where the named, earlier dimensions have these values. A choice among lists, as of
``corpus.categories``, is written as lists or as comma-separated texts, and is a comma-separated text at a point.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import optuna

from uedp_ray import methods
from uedp_ray.config import PrivacyConfig, RunConfig, to_dict
from uedp_ray.errors import InputError
from uedp_ray.fields import LARGEST_WHOLE

Scalar = float | int | str | bool | None
Point = dict[str, Scalar]
_DEFAULTS = to_dict(RunConfig(privacy=PrivacyConfig(noise="none")))

COHORT = "expected_cohort_size"
MAX_POINTS = 10_000
"""Most points of a grid, or of any search: they are made, priced and kept together."""
_KINDS = ("uniform", "log_uniform", "integer", "choice")
_OPTIONS = {"uniform": {"points"}, "log_uniform": {"points"}, "integer": {"step"}, "choice": set[str]()}
_CHECKED = "public text is compared with the private text once, before the first trial"
_FIXED = {
    "name": "trials have names of their own",
    "corpus": "every trial reads the same text",
    "task": "trials are compared by its metric",
    "bounds.mode": "what is promised of the text holds for all trials",
    "vocabulary.public_text": _CHECKED,
    "pretrain.text": _CHECKED,
    "pretrain.max_words": _CHECKED,
    "privacy.delta": "the budget sets it",
    "privacy.unit": "the budget sets it",
    "privacy.noise": "search method: it sets the noise",
    "privacy.test_noise_seed": "trials have private keys",
    "training.seed": "use search.seeds_per_trial",
    "training.num_workers": "use resources.workers_per_trial",
}
_FREE = ("corpus.categories",)


def _alike(one: Any, other: Any) -> bool:
    numbers = {type(one), type(other)} <= {int, float}  # a truth value is no number
    return one == other and (numbers or type(one) is type(other))


@dataclass(frozen=True)
class Dimension:
    """One searched setting."""

    key: str
    kind: str
    values: tuple[Any, ...]
    """The low and high end, or the choices."""
    spec: Mapping[str, Any]
    """As written in the sweep file."""
    step: int = 1
    points: int | None = None
    when: Mapping[str, tuple[Scalar, ...]] = field(default_factory=dict)

    @property
    def is_choice(self) -> bool:
        return self.kind == "choice"

    @property
    def is_log(self) -> bool:
        return self.kind == "log_uniform"

    def at(self, share: float) -> float:
        """Returns the value at a share of the range, on its scale."""
        low, high = self.values
        return low * (high / low) ** share if self.is_log else low + share * (high - low)

    def contains(self, value: Any) -> bool:
        """Whether a point may have this value."""
        if self.is_choice:
            return any(_alike(value, each) for each in self.values)
        low, high = self.values
        if self.kind == "integer":
            return type(value) is int and low <= value <= high and (value - low) % self.step == 0
        return type(value) in (int, float) and low <= value <= high

    def spelled(self, value: Any) -> Any:
        """Returns a value that it ``contains`` as the sweep file has it: 10, where a run has 10.0."""
        return next(each for each in self.values if _alike(value, each)) if self.is_choice else value

    def active(self, point: Mapping[str, Any]) -> bool:
        """Whether the dimension exists at a point."""
        return all(key in point and point[key] in values for key, values in self.when.items())

    def suggest(self, trial: optuna.Trial) -> Scalar:
        if self.is_choice:
            return trial.suggest_categorical(self.key, self.values)
        low, high = self.values
        if self.kind == "integer":
            return trial.suggest_int(self.key, low, high, step=self.step)
        return trial.suggest_float(self.key, low, high, log=self.is_log)

    def grid(self) -> Sequence[Any]:
        """Returns the values that a grid takes. Raises: InputError for a range without ``points``."""
        if self.is_choice:
            return self.values
        if self.kind == "integer":
            return range(self.values[0], self.values[1] + 1, self.step)
        if self.points is None:
            raise InputError(f"space.{self.key}", dict(self.spec), "a grid needs points: n for a range, or a choice")
        count = min(self.points, MAX_POINTS + 1)  # more than that is refused
        return [self.at(i / max(self.points - 1, 1)) for i in range(count)]


class Space(dict[str, Dimension]):
    """Dimensions by key, in the order of the file."""

    @classmethod
    def parse(cls, tree: Mapping[str, Any], base: RunConfig) -> Space:
        """Reads the ``space`` of a sweep file. Raises: InputError for an unknown setting, or an empty or ill-typed range."""
        if not tree:
            raise InputError("space", {}, "name at least one setting to search")
        space = cls()
        defaults = to_dict(base)
        for key, spec in tree.items():
            _check_key(key, defaults)
            _check_used(key, base)
            dimension = _dimension(key, spec)
            for other in dimension.when:
                if other not in space:
                    raise InputError(f"space.{key}.when", other, "name a dimension that comes before this one")
            _check_values(dimension, base)
            space[key] = dimension
        for key, sets in ((COHORT, "privacy.user_sampling_prob"), ("training.passes", "training.num_rounds")):
            if {key, sets} <= set(space):
                raise InputError(f"space.{key}", dict(tree[key]), f"sets {sets}: search one of the two")
        return space

    def suggest(self, trial: optuna.Trial) -> Point:
        """Returns a point, chosen by the trial's sampler. Values that the trial already has are kept."""
        point: Point = {}
        for key, dimension in self.items():
            if dimension.active(point):
                point[key] = dimension.suggest(trial)
        return point

    def grid(self) -> list[Point]:
        """Returns every point, the last dimension varying fastest. Raises: InputError if there are too many to train."""

        def extend(point: Point, left: list[Dimension]) -> Iterator[Point]:
            if not left:
                yield point
            elif not left[0].active(point):
                yield from extend(point, left[1:])
            else:
                for value in left[0].grid():
                    yield from extend({**point, left[0].key: value}, left[1:])

        points = list(itertools.islice(extend({}, list(self.values())), MAX_POINTS + 1))
        if len(points) > MAX_POINTS:
            raise InputError("space", list(self), f"has a grid of more than {MAX_POINTS:,} points: leave some out")
        return points

    def point_of(self, run: RunConfig) -> Point | None:
        """Returns the point at which a run lies; None if it lies at none."""
        point = self.values_of(run)
        return point if all(self[key].contains(value) for key, value in point.items()) else None

    def values_of(self, run: RunConfig) -> Point:
        """Returns what a run has in every dimension that exists there, whether it is searched at that value or not."""
        values: Point = {}
        for key, dimension in self.items():
            if dimension.active(values):
                value = _value_of(key, run)
                values[key] = dimension.spelled(value) if dimension.contains(value) else value
        return values

    def at(self, values: Mapping[str, Scalar]) -> Point:
        """Returns the point with these values (of every dimension), without dimensions that do not exist there."""
        point: Point = {}
        for key, dimension in self.items():
            if dimension.active(point):
                point[key] = values[key]
        return point


def settings_of(point: Mapping[str, Scalar], base: RunConfig) -> tuple[str | None, dict[str, Any]]:
    """Splits a point into (method, dotted settings). Raises: InputError for a cohort without declared users."""
    settings: dict[str, Any] = dict(point)
    method = settings.pop("method", None)
    if COHORT in settings:
        cohort, users = settings.pop(COHORT), base.corpus.declared_num_users
        if users is None:
            raise InputError("base.corpus.declared_num_users", None, f"{COHORT} is a share of the declared users")
        if type(cohort) not in (int, float) or not 0 < cohort < 1e18:
            raise InputError(COHORT, cohort, "must be a number above 0")
        settings["privacy.user_sampling_prob"] = min(1.0, cohort / users)
    return method, {key: setting(key, value) for key, value in settings.items()}


def share_of(point: Mapping[str, Scalar], base: RunConfig) -> float:
    """The probability with which a round of the run at a point draws a user: q_u. Times its rounds, passes over the text."""
    kept = {key: value for key, value in point.items() if value is not None}  # a trial may be killed before all are
    share = settings_of(kept, base)[1].get("privacy.user_sampling_prob", base.privacy.user_sampling_prob)
    return float(share)


def _value_of(key: str, run: RunConfig) -> Any:
    """Returns what a point says of a setting of ``run``; None of its method, which no setting keeps."""
    if key == "method":
        return None
    if key == COHORT:
        return run.privacy.user_sampling_prob * (run.corpus.declared_num_users or 0)
    value = operator.attrgetter(key)(run)
    return ",".join(map(str, value)) if isinstance(value, tuple) else value


def setting(key: str, value: Scalar) -> Any:
    """Returns a point's ``value`` as ``RunConfig`` takes it: if the setting is a list, split at commas."""
    section, _, leaf = key.partition(".")
    default = _DEFAULTS.get(section, {}).get(leaf)
    if not isinstance(default, list) or not isinstance(value, str):
        return value
    items = [item.strip() for item in value.split(",")] if value.strip() else []
    return [_number(item) for item in items] if any(isinstance(each, float) for each in default) else items


def _number(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:  # for ``RunConfig`` to refuse
        return text


def _check_key(key: str, defaults: dict[str, Any]) -> None:
    if key in ("method", COHORT):
        return
    for fixed, remedy in _FIXED.items():
        if key in _FREE:
            break
        if key == fixed or key.startswith(f"{fixed}."):
            raise InputError(f"space.{key}", key, f"cannot be searched: {remedy}")
    section, _, leaf = key.partition(".")
    known = defaults.get(section)
    if not isinstance(known, dict) or leaf not in known:
        near = [f"{section}.{name}" for name in known] if isinstance(known, dict) else [*defaults, "method", COHORT]
        raise InputError(f"space.{key}", key, f"unknown setting; known: {', '.join(near)}")


def _check_used(key: str, base: RunConfig) -> None:
    """Refuses what no trial would use: a public model brings its own vocabulary, and is trained only if there is text.

    Also refuses bounds that a trial would check against the private text: which trials fail would reveal something of it,
    uncharged.
    """
    section = key.partition(".")[0]
    if section == "bounds" and base.bounds.mode == "declared":
        remedy = "cannot be searched: declared bounds are promises about the text; set base.bounds.mode: enforced"
    elif section == "bounds" and base.bounds.mode == "none":
        remedy = "has no effect: base.bounds.mode is none"
    elif section == "pretrain" and not base.pretrain.text:
        remedy = "has no effect: base.pretrain.text names no public text to train on"
    elif section == "vocabulary" and base.model.warm_start and not base.pretrain.text:
        remedy = "has no effect: base.model.warm_start brings its vocabulary"
    elif key == "training.num_rounds" and base.training.passes is not None:
        remedy = "has no effect: base.training.passes sets it; search that, or leave it out"
    elif key == "model.warm_start" and base.pretrain.text:
        remedy = "has no effect: every trial starts from the model trained on base.pretrain.text"
    else:
        return
    raise InputError(f"space.{key}", key, remedy)


def _dimension(key: str, spec: Any) -> Dimension:
    field = f"space.{key}"
    kinds = [kind for kind in _KINDS if isinstance(spec, Mapping) and kind in spec]
    if len(kinds) != 1:
        raise InputError(field, spec, f"write one of {', '.join(f'{kind}: […]' for kind in _KINDS)}")
    kind = kinds[0]
    unknown = sorted(set(spec) - {kind, "when"} - _OPTIONS[kind])
    if unknown:
        raise InputError(f"{field}.{unknown[0]}", spec[unknown[0]], f"unknown key for {kind}")
    values = spec[kind]
    if not isinstance(values, list) or not values:
        raise InputError(field, values, "expected a non-empty list")
    if kind == "choice":
        if all(isinstance(value, list) for value in values):
            values = [_joined(field, value) for value in values]
        if len({repr(value) for value in values}) < len(values):
            raise InputError(field, values, "a choice is given twice")
        if any(isinstance(value, list | dict) for value in values):
            raise InputError(field, values, "choices must all be single values, or all be lists")
    else:
        values = _range(field, kind, values)
    for option in ("step", "points"):
        if option in spec and (type(spec[option]) is not int or spec[option] < 1):
            raise InputError(f"{field}.{option}", spec[option], "must be a whole number above 0")
    step = spec.get("step", 1)
    if kind == "integer":  # the last step may fall short of the end
        values = [values[0], values[0] + (values[1] - values[0]) // step * step]
    return Dimension(key, kind, tuple(values), spec, step, spec.get("points"), _conditions(field, spec.get("when", {})))


def _joined(field: str, value: list[Any]) -> str:
    if any(isinstance(item, list | dict) or "," in str(item) for item in value):
        raise InputError(field, value, "a list among choices must hold single values, without commas")
    return ",".join(map(str, value))


def _range(field: str, kind: str, values: list[Any]) -> list[Any]:
    number = int if kind == "integer" else float
    try:
        low, high = (number(value) for value in values)
    except (TypeError, ValueError, OverflowError):
        raise InputError(field, values, f"expected two {'whole ' if number is int else ''}numbers") from None
    if number is int and [low, high] != values:
        raise InputError(field, values, "expected two whole numbers")
    if number is int and max(abs(low), abs(high)) > LARGEST_WHOLE:
        raise InputError(field, "a larger one", f"expected whole numbers of {LARGEST_WHOLE:g} at most")
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise InputError(field, values, "an empty range: the first number must be below the second")
    if kind == "log_uniform" and low <= 0:
        raise InputError(field, values, "a logarithmic range must start above 0")
    return [low, high]


def _conditions(field: str, tree: Any) -> dict[str, tuple[Scalar, ...]]:
    if not isinstance(tree, Mapping):
        raise InputError(f"{field}.when", tree, "expected a mapping of earlier settings to values")
    return {str(key): tuple(value) if isinstance(value, list) else (value,) for key, value in tree.items()}


def _check_values(dimension: Dimension, base: RunConfig) -> None:
    """Refuses a value that its own setting cannot take. What only a combination forbids is refused point by point."""
    key = dimension.key
    for value in dimension.values:
        try:
            if key == "method":
                methods.apply(base, str(value))
            elif key == COHORT:
                settings_of({key: value}, base)
            else:
                methods.overlay(base, {key: setting(key, value)})
        except InputError as error:
            if (
                error.field.partition("[")[0] == key
                or key == COHORT
                or (key == "method" and value not in methods.METHODS)
            ):
                raise InputError(f"space.{key}", value, error.remedy) from None
