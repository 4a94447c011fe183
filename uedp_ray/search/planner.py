"""What a budget buys, before any text is read: by each rule for the choice, and by each way to draw the rounds.

    answer = plan(load_sweep_config("sweeps/quickstart.yaml"))
    answer["rules"][0], answer["mechanisms"][0], answer["warnings"]

Two questions decide how good a model under a budget can be. *How many runs share it?* ``rules`` gives what each run has left
under every rule. *How is the text drawn?* One pass over the text may be one round of everybody or twenty of a twentieth:
``mechanisms`` compares ways to draw at equal passes, which is equal work. The figure to compare is the noise in the average
of all rounds, z / (q_u U sqrt(T)) clip norms in every coordinate. Inputs are public.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from uedp_ray import methods
from uedp_ray.calibration import noise_of, planned_charges, planned_releases, with_target
from uedp_ray.config import PrivacyConfig, RunConfig
from uedp_ray.config.starter import LEAST_COHORT
from uedp_ray.errors import InputError
from uedp_ray.plan import cautions_of
from uedp_ray.privacy import sequence
from uedp_ray.privacy.events import epsilon_of_charges
from uedp_ray.privacy.odometer import Odometer
from uedp_ray.privacy.selection import PROFILES, epsilon_of_choosing
from uedp_ray.privacy.statement import show_epsilon
from uedp_ray.reporting import SILENT, Reporter
from uedp_ray.search.allowance import charging, filter_for, largest
from uedp_ray.search.feasibility import rate_by_pilots, runs_of
from uedp_ray.search.pilots import likely_rest
from uedp_ray.search.pool import parts_of, whole_run
from uedp_ray.search.sections import DEFAULT_TRIALS
from uedp_ray.search.space import MAX_POINTS
from uedp_ray.search.sweep_config import PILOT_SHARE, SweepConfig
from uedp_ray.units import KINDS

_SHARES = (0.05, 0.1, 0.25, 0.5, 1.0)
"""Values of q_u to compare, beside the file's own."""
_TIMES = (1, 4)
"""Numbers of passes to compare, in those of the file."""
_WORTH = 1.75
"""Many small rounds were seen to train better than few large ones at equal passes, up to this much more noise
(docs/sweeps.md, "What a budget buys")."""
_MOST_SHARED = 1.5
"""Noise, in that of one run, beyond which sharing the budget costs more than most searches gain."""
_MOST_EPSILON = 1000.0
_LESS = 0.7
"""By how much a sampling probability is lowered to see what that saves."""


@dataclass(frozen=True)
class _Asked:
    """One run and the budget that a search for its settings has in all."""

    run: RunConfig
    """With the whole budget as its target."""
    trials: int
    seeds: int
    law: str
    rule: str | None
    """The file's own, if what it leaves each run is what the rules' rows say."""
    adaptive: bool
    pilot_epsilon: float

    @property
    def privacy(self) -> PrivacyConfig:
        return self.run.privacy

    @property
    def target(self) -> float:
        assert self.privacy.target_epsilon is not None  # as ``_asked`` makes it
        return self.privacy.target_epsilon

    @property
    def runs(self) -> int:
        return self.trials * self.seeds

    def at(self, epsilon: float) -> RunConfig:
        """The run at an epsilon of its own."""
        return methods.overlay(self.run, {"privacy.target_epsilon": epsilon})

    def selected(self, run: RunConfig, law: str) -> float:
        """What ``repeat_and_select`` costs, all candidates being like this run."""
        return self._drawn("repeat_and_select", run, law, by=PROFILES)

    def _drawn(self, rule: str, run: RunConfig, law: str, **of: Any) -> float:
        """What a rule of a secret number of trials costs, all that may be drawn being like this run."""
        settings: dict[str, Any] = {"searcher": "random", "early_stopping": False, "mean": float(self.trials)}
        settings |= {"law": law, "delta": self.privacy.delta, "unit": self.privacy.unit}
        return epsilon_of_choosing(rule, candidates=[parts_of(run, self.seeds)], **settings, **of)

    def after_pilots(self, run: RunConfig) -> float:
        """What pilots cost together with this run, all being alike but for their noise."""
        privacy, pilot = self.privacy, parts_of(self.at(self.pilot_epsilon), 1)
        return sequence.epsilon([*[[pilot]] * self.runs, [parts_of(run, 1)]], delta=privacy.delta, unit=privacy.unit)

    def after_selected(self, run: RunConfig) -> float:
        """What a choice among a secret number of pilots costs together with this run, all alike but for their noise."""
        return self._drawn("selected_pilots", self.at(self.pilot_epsilon), self.law, finals=[parts_of(run, 1)])

    def composed(self, run: RunConfig) -> float:
        """What as many runs like this one cost together."""
        one = whole_run(run)
        rounds = tuple((mechanism, count * self.runs) for mechanism, count in one.rounds)
        every = one._replace(rounds=rounds, releases=one.releases * self.runs)
        return epsilon_of_charges(every, delta=self.privacy.delta, unit=self.privacy.unit)


def plan(
    file: RunConfig | SweepConfig,
    *,
    trials: int | None = None,
    tokens_per_second: float | None = None,
    reporter: Reporter = SILENT,
) -> dict[str, Any]:
    """Returns ``rules``, ``mechanisms``, ``choice``, ``binds``, ``bounds``, ``warnings``, all of the file's base, and the
    ``expected_seconds`` of its ``runs`` one after another.

    Args:
      trials: how many a search trains; by default the sweep's number, 32 for a run.
      tokens_per_second: as a finished run printed it, for the expected time.

    Raises: InputError for a file without a budget, and for one that no noise can meet.
    """
    if trials is not None and trials > MAX_POINTS:
        raise InputError("trials", trials, f"must be at most {MAX_POINTS:,}")
    asked = _asked(file, trials)
    if asked.target > _MOST_EPSILON:
        raise InputError("target_epsilon", asked.target, f"promises nothing: plan for {_MOST_EPSILON:g} or less")
    reporter.say("pricing the choice by every rule (some seconds each)")
    rules = list(_rules(asked))
    reporter.say("solving the noise of ways to draw")
    mechanisms = list(_mechanisms(asked.run, tokens_per_second))
    own = [row for row in mechanisms if row["times"] == 1]
    choice, (drawn,) = _choice(own), [row for row in own if row["asked"]]
    runs = runs_of(file, asked.trials) if isinstance(file, SweepConfig) else 1
    return {
        "target_epsilon": asked.target,
        "delta": asked.privacy.delta,
        "unit": asked.privacy.unit,
        "trials": asked.trials,
        "rules": rules,
        "mechanisms": mechanisms,
        "choice": choice,
        "binds": _binds(asked.run),
        "bounds": _bounds(asked.run),
        "runs": runs,
        "expected_seconds": drawn["expected_seconds"] and drawn["expected_seconds"] * runs,
        "warnings": [
            *_beyond(file, asked),
            *(rate_by_pilots(file) if isinstance(file, SweepConfig) else []),
            *_warnings(asked, rules, drawn, choice),
        ],
    }


def chosen(file: RunConfig | SweepConfig, planned: dict[str, Any]) -> RunConfig | SweepConfig:
    """Returns the file with the way to draw that ``plan`` chose for it; what a sweep searches stays in its space.

    The noise of a run is solved for the epsilon that was planned, also if the file gave it: at other draws it has another.
    """
    settings = _drawn(planned["choice"]["user_sampling_prob"], planned["choice"]["rounds"])
    if isinstance(file, RunConfig):
        return with_target(methods.overlay(file, settings), planned["target_epsilon"])
    return dataclasses.replace(file, base=methods.overlay(file.base, settings))


def _drawn(share: float, rounds: int) -> dict[str, Any]:
    return {"privacy.user_sampling_prob": share, "training.num_rounds": rounds, "training.passes": None}


def _asked(file: RunConfig | SweepConfig, trials: int | None) -> _Asked:
    base = (file.base if isinstance(file, SweepConfig) else file).privacy
    if base.test_noise_seed is not None:
        raise InputError(
            "privacy.test_noise_seed", base.test_noise_seed, "is for tests, and claims no epsilon: drop it"
        )
    if base.user_sampling_prob == 0.0:
        raise InputError("privacy.user_sampling_prob", 0.0, "draws nobody: there is nothing to plan")
    if isinstance(file, SweepConfig):
        search, budget = file.search, file.budget
        if trials is not None and search.searcher != "grid":
            search = dataclasses.replace(search, trials=trials)
        run, rule = with_target(file.base, budget.target_epsilon), search.rule
        kept = file.shares_budget or rule == "public"
        trials = trials or file.num_trials
        of_search = search.seeds_per_trial, search.law, rule if kept else None, search.adaptive, file.pilot_epsilon
        return _Asked(run, trials, *of_search)
    privacy = file.privacy
    if (rule := file.corpus.regroup) != "users":
        raise InputError("corpus.regroup", rule, "hides records, which no search is priced for: plan for users")
    if privacy.noise != "calibrated":
        raise InputError("privacy.noise", privacy.noise, "claims no epsilon, so that there is nothing to plan")
    target = privacy.target_epsilon
    if target is None:
        target = epsilon_of_charges(whole_run(file), delta=privacy.delta, unit=privacy.unit)
        if math.isinf(target):
            raise InputError("privacy.noise_multiplier", privacy.noise_multiplier, "bounds nothing here: raise it")
    return _Asked(
        with_target(file, target), trials or DEFAULT_TRIALS, 1, "geometric", None, False, PILOT_SHARE * target
    )


def _rules(asked: _Asked) -> Iterator[dict[str, Any]]:
    """Yields, for each rule, what every run costs by itself, and its noise."""
    alone = noise_of(asked.run)

    def row(rule: str, how: str, own: bool, solve: Callable[[], tuple[float, float]]) -> dict[str, Any]:
        found: dict[str, Any] = {"rule": rule, "how": how, "asked": own}
        try:
            epsilon, noise = solve()
        except InputError as error:
            return found | {"run_epsilon": None, "noise_multiplier": None, "noise_ratio": None, "why": error.remedy}
        return found | {"run_epsilon": epsilon, "noise_multiplier": noise, "noise_ratio": noise / alone, "why": ""}

    def shared(cost: Callable[[RunConfig], float], guess: float | None = None) -> tuple[float, float]:
        epsilon = largest(lambda each: cost(asked.at(each)), asked.target, guess)
        return epsilon, noise_of(asked.at(epsilon))

    def refuse_others() -> None:
        if planned_releases(asked.run):
            raise InputError(
                "vocabulary.kind", asked.run.vocabulary.kind, "does not cover a vocabulary of private text"
            )

    def pilots() -> tuple[float, float]:
        refuse_others()
        return shared(asked.after_pilots, likely_rest(asked.target, math.sqrt(2 * asked.runs) * asked.pilot_epsilon))

    def selected_pilots() -> tuple[float, float]:
        refuse_others()
        return shared(asked.after_selected)

    def selected(law: str) -> tuple[float, float]:
        refuse_others()
        return shared(lambda run: asked.selected(run, law))

    def adaptive() -> tuple[float, float]:
        privacy, share = asked.privacy, filter_for(asked.run, asked.runs)
        noise = share.planned[0][0].noise_multiplier  # the least, for which the filter was made
        own = epsilon_of_charges(planned_charges(asked.run, noise), delta=privacy.delta, unit=privacy.unit)
        return own, noise

    def whole() -> tuple[float, float]:
        return asked.target, alone

    yield row("none", "the base, once", False, whole)
    yield row("public", "trials on public text, then one run", asked.rule == "public", whole)
    each = f"{asked.runs} pilots at {asked.pilot_epsilon:g} each, then one run"
    yield row("pilots", each, asked.rule == "pilots", pilots)
    drawn = f"secret pilots at {asked.pilot_epsilon:g} each, mean {asked.trials}, then one run"
    yield row("selected_pilots", drawn, asked.rule == "selected_pilots", selected_pilots)
    for law in sorted({"geometric", "logarithmic", asked.law}):
        own = asked.rule == "repeat_and_select" and asked.law == law
        how = f"a secret number of trials, mean {asked.trials}, {law}"
        yield row("repeat_and_select", how, own, lambda law=law: selected(law))  # type: ignore[misc]
    composed = asked.rule == "composition"
    yield row(
        "composition",
        f"{asked.runs} runs, fixed beforehand",
        composed and not asked.adaptive,
        lambda: shared(asked.composed),
    )
    yield row("composition", f"{asked.runs} runs, chosen by results", composed and asked.adaptive, adaptive)


def _mechanisms(run: RunConfig, tokens_per_second: float | None) -> Iterator[dict[str, Any]]:
    """Yields ways to draw at equal passes over the text, the file's own among them, if some noise meets the budget."""
    asked, rounds = run.privacy.user_sampling_prob, run.training.num_rounds
    users, tokens = run.corpus.declared_num_users or 1, run.corpus.declared_num_tokens
    for times in _TIMES:
        for share in sorted({*_SHARES, asked}):
            count = max(1, round(times * rounds * asked / share))
            drawn = methods.overlay(run, _drawn(share, count))
            try:
                noise = noise_of(drawn)
            except InputError:
                continue
            passes = share * count
            timed = tokens is not None and tokens_per_second is not None
            yield {
                "user_sampling_prob": share,
                "expected_cohort": share * users,
                "rounds": count,
                "passes": passes,
                "times": times,
                "noise_multiplier": noise,
                "noise_of_average": noise / (share * users * math.sqrt(count)),
                "expected_seconds": passes * tokens / tokens_per_second if timed else None,  # type: ignore[operator]
                "asked": times == 1 and share == asked,
            }


def _choice(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Returns the way to draw with the most rounds whose noise is near the least, among ways of about equal passes.

    Where there are too few users for that, the one with the largest cohort.
    """
    least = min(row["noise_of_average"] for row in rows)
    near = [row for row in rows if row["noise_of_average"] <= _WORTH * least]
    large = [row for row in near if row["expected_cohort"] >= LEAST_COHORT]
    if not large:
        return max(near, key=lambda row: row["expected_cohort"])
    return max(large, key=lambda row: row["rounds"])


def _binds(run: RunConfig) -> dict[str, Any]:
    """Returns epsilon by what is removed, the larger of which is the run's, and the noise where less is drawn."""
    privacy, whole = run.privacy, whole_run(run)
    by_kind: dict[str, float] = {}
    if privacy.unit != "user":
        settings: dict[str, Any] = {"delta": privacy.delta, "unit": privacy.unit}
        by_kind = {kind: epsilon_of_charges(whole, kind=kind, **settings) for kind in KINDS}
    lowered = {}
    for name, lower in (("q_e", (_LESS, 1.0)), ("q_s", (1.0, _LESS)), ("both", (_LESS, _LESS))):
        less = {
            "privacy.entity_sampling_prob": privacy.entity_sampling_prob * lower[0],
            "privacy.extended_sampling_prob": privacy.extended_sampling_prob * lower[1],
        }
        lowered[name] = noise_of(methods.overlay(run, less))
    return {"epsilon": by_kind, "lowered_by": _LESS, "noise_multiplier": lowered}


def _bounds(run: RunConfig) -> list[dict[str, Any]]:
    """Returns the noise at other bounds on entities, the file's own among them, and that without protected entities."""
    found = []
    if run.privacy.unit == "user-entity":
        found.append(
            {"protects": "users alone", "noise_multiplier": noise_of(methods.overlay(run, {"privacy.unit": "user"}))}
        )
    if run.bounds.mode == "none" or run.privacy.unit == "user":
        return found
    holders, of_user = run.bounds.max_holders, run.bounds.max_sentences_per_entity
    others = [("max_holders", bound) for bound in sorted({1, 2, 5, holders, 2 * holders})]
    for name, bound in [*others, *(("max_sentences_per_entity", times * of_user) for times in (2, 4, 8))]:
        try:
            noise = noise_of(methods.overlay(run, {f"bounds.{name}": bound}))
        except InputError:  # more than the declared users
            continue
        found.append({"protects": f"{run.privacy.unit}, {name} {bound}", "noise_multiplier": noise})
    return found


def _beyond(file: RunConfig | SweepConfig, asked: _Asked) -> list[str]:
    """Says what the answer of a sweep costs whose budget covers each trial alone."""
    if isinstance(file, RunConfig) or file.budget.covers == "answer" or file.search.rule == "public":
        return []
    if file.search.rule == "repeat_and_select":
        total = asked.selected(asked.run, asked.law)
    elif asked.adaptive:
        odometer = Odometer(planned=tuple(parts_of(asked.run, 1)), **charging(asked.run, asked.runs))
        total = odometer.epsilon([whole_run(asked.run)] * asked.runs)
    else:
        total = asked.composed(asked.run)
    shown, about = show_epsilon(total, "infinitely much"), "about " if asked.adaptive else ""
    return [
        f"budget.covers is each_trial: every run has the whole budget to itself, and the answer, with the choice, will cost "
        f"{about}{shown}; the rules above are those of covers: answer"
    ]


def _warnings(asked: _Asked, rules: list[dict[str, Any]], own: dict[str, Any], choice: dict[str, Any]) -> list[str]:
    found = cautions_of(asked.run)
    for row in rules:
        if row["asked"] and row["why"]:
            found.append(f"rule {row['rule']} cannot keep this budget: {row['why']}")
        elif row["asked"] and row["noise_ratio"] > _MOST_SHARED:
            found.append(
                f"rule {row['rule']} leaves each run epsilon = {show_epsilon(row['run_epsilon'])}, with "
                f"{row['noise_ratio']:.1f} times the noise of one run at the whole budget: search on public text (rule "
                "public), or train fewer trials"
            )
    privacy = asked.privacy
    if privacy.unit != "user" and (privacy.entity_sampling_prob < 1.0) != (privacy.extended_sampling_prob < 1.0):
        low, high = ("entity", "extended") if privacy.entity_sampling_prob < 1.0 else ("extended", "entity")
        found.append(
            f"privacy.{low}_sampling_prob below 1 leaves out text, and saves little while privacy.{high}_sampling_prob "
            "is 1: epsilon is the larger of both kinds; lower both, or none"
        )
    ratio = choice["noise_of_average"] / own["noise_of_average"]
    if choice["rounds"] >= 2 * own["rounds"] or ratio < 1 / _WORTH:
        what = f"user_sampling_prob {choice['user_sampling_prob']:g} in {choice['rounds']} rounds reads as much text"
        likely = "is likely to train a better model" if choice["rounds"] > own["rounds"] else "adds less noise"
        found.append(
            f"{what} and {likely}: {choice['rounds']} steps for {own['rounds']}, at {ratio:.2f} times the noise"
        )
    return found
