"""The Optuna study of a sweep, in ``study.journal``: asks for points, records their outcomes, and resumes.

    study = Study.open(sweep, Path("runs/s/study.journal"))
    asked = study.ask(allowance)                            # a point, judged; a refused one has ended already
    study.finish(asked.number, score=151.7, epsilon=7.9)

States in the journal: COMPLETE: trained to the end; PRUNED: refused by the budget (its constraint is above 0) or stopped
early; FAIL: diverged or crashed; RUNNING: started. A trial that a dead process left RUNNING keeps its number and its point
and is asked for again first, so that no point is trained twice. One process at a time drives a study: the caller holds a
lock on the sweep's folder.

An adaptive search has a *lag*, fixed before its first trial: a trial is chosen, and stopped early, by the results of those
that come at least ``lag`` places before it, and of no others. Which trial ends first may depend on the text it is trained
on; it decides nothing. So Optuna is told an outcome only once a trial is asked for that may depend on it. Until then the
outcome is in the trial's attribute ``ended``; the function ``outcome`` reads both.
"""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import optuna
from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler
from optuna.storages import JournalStorage
from optuna.trial import FrozenTrial, TrialState

from uedp_ray.errors import InputError
from uedp_ray.fields import list_of, number, one_of, record
from uedp_ray.search.allowance import Allowance
from uedp_ray.search.feasibility import judge
from uedp_ray.search.journal import Journal, mend
from uedp_ray.search.layout import trial_id
from uedp_ray.search.samplers import make_sampler, sampler_of
from uedp_ray.search.space import Point
from uedp_ray.search.stopping import falls_behind
from uedp_ray.search.sweep_config import SweepConfig
from uedp_ray.tasks.metric import Metric

NAME = "sweep"
REASON = "reason"
_ENDED, _LAG, _PLACED, _AGAIN, _WINNER = "ended", "lag", "placed", "again", "winner"
_TRAINED = (TrialState.COMPLETE, TrialState.PRUNED)
_OUTCOME = record(
    {
        "state": one_of("COMPLETE", "PRUNED", "FAIL"),
        "values": list_of(number(0.0), nothing=True),
        "seconds": number(),
    },
    nothing=True,
)
_TIMES = record({"started": number(), "seconds": number(nothing=True)}, nothing=True)
_UNBOUNDED = 1e9
"""Stands for an infinite constraint: Optuna compares sums of them."""


class Asked(NamedTuple):
    """A point; ``reason`` says why it is refused, and is empty if it is to be trained."""

    number: int
    point: Point
    reason: str


class Study:
    """See the module. Raises: InputError from ``open`` for a damaged journal."""

    def __init__(self, sweep: SweepConfig, study: optuna.Study):
        self._sweep, self._study = sweep, study
        began = [trial for trial in self.trials if trial.state != TrialState.WAITING and not refused(trial)]
        self._order = [trial.number for trial in began]
        """Trials to train, in order: a trial's place in the search."""
        self._begun = [trial.number for trial in began if outcome(trial) == TrialState.RUNNING]
        self._asked: dict[int, optuna.Trial] = {}
        self._unplaced: list[int] = []
        self._told = 0
        """How many of the first in order had ended when it was last looked: Optuna knows of them."""
        self._unknown: set[int] = set()

    @classmethod
    def open(cls, sweep: SweepConfig, path: Path) -> Study:
        """Creates the journal ``path``, or continues it."""
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        mend(path)
        multi, metric = sampler_of(sweep.search.searcher).minimizes_epsilon, sweep.metric
        try:
            study = optuna.create_study(
                storage=JournalStorage(Journal(str(path))),
                study_name=NAME,
                directions=[metric.direction, "minimize"][: 1 + multi],
                load_if_exists=True,
            )
            if not study.get_trials(deepcopy=False):
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
                    study.set_metric_names([metric.name, "epsilon"][: 1 + multi])
            _check(sweep, study)
            return cls(sweep, study)
        except OSError:
            raise
        except Exception as error:  # Optuna replays whatever the file says, and can fail in any way
            remedy = f"is damaged ({type(error).__name__}): restore a copy, or start again in another folder"
            raise InputError("study.journal", str(path), remedy) from None

    @property
    def metric(self) -> Metric:
        return self._sweep.metric

    @property
    def trials(self) -> Sequence[FrozenTrial]:
        """Every trial, in order of number."""
        return self._study.get_trials(deepcopy=False)

    @property
    def began(self) -> bool:
        """Whether any trial that the budget did not refuse was ever started."""
        return bool(self._order)

    def fix_lag(self, at_once: int) -> int:
        """Fixes the lag of an adaptive search for ``at_once`` trials at a time: a little more, so that one slow trial delays
        few others. An earlier call's lag stays, whatever the cluster is now: the order of decisions may not change."""
        if _LAG not in self._study.user_attrs:
            self._study.set_user_attr(_LAG, 2 * at_once - 1)
        return self._lag

    @property
    def _lag(self) -> int:
        return int(self._study.user_attrs.get(_LAG, 1))

    def ended(self, *, count_refused: bool) -> int:
        """Counts trials that ended in any way and, if asked for, those that were refused."""
        return sum(outcome(trial).is_finished() and (count_refused or not refused(trial)) for trial in self.trials)

    def plan(self, points: Sequence[Point]) -> None:
        """Fixes which points are asked for, in order; those of an earlier call are not repeated."""
        for point in points[len(self.trials) :]:
            self._study.enqueue_trial(point)

    def ask(self, allowance: Allowance) -> Asked | None:
        """Returns the next point; trials that were started and did not end come first. A refused one is recorded at once.

        None while an adaptive search waits for a trial by whose result the next one is chosen.
        """
        place, trials = self._order.index(self._begun[0]) if self._begun else len(self._order), self.trials
        if self._sweep.search.adaptive:
            known = [trials[elder] for elder in self._known(place)[self._told :]]
            if any(outcome(elder) == TrialState.RUNNING and elder.number not in self._unknown for elder in known):
                return None
            self._tell(known)
            self._told += sum(1 for _ in itertools.takewhile(lambda elder: outcome(elder).is_finished(), known))
        began = self._begun.pop(0) if self._begun else None
        self._study.sampler = _sampler(self._sweep, len(trials) if began is None else began)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Clip non-finite values")  # worst scores, as meant
            trial = self._study.ask() if began is None else optuna.Trial(self._study, trials[began]._trial_id)
            point = self._sweep.parsed_space.suggest(trial)
        verdict = judge(self._sweep, point, allowance)
        if "epsilon" not in trial.constraints:
            trial.set_constraint("epsilon", min(verdict.excess, _UNBOUNDED))
        if verdict.config is None:
            trial.set_user_attr(REASON, verdict.reason)
            self._study.tell(trial, state=TrialState.PRUNED)
            self._order = [number for number in self._order if number != trial.number]
        else:
            self._asked[trial.number] = trial
            self._unplaced.append(trial.number)
            if began is None:
                self._order.append(trial.number)
            else:
                self.resumed(trial.number)
        return Asked(trial.number, point, verdict.reason)

    def place(self, begin: Callable[[int], None]) -> None:
        """Makes the folders of trials that were asked for, before they start, and records that: see ``placed``."""
        trials = self.trials if self._unplaced else ()
        while self._unplaced:
            if _PLACED not in trials[asked := self._unplaced[0]].user_attrs:
                begin(asked)
                self._asked[asked].set_user_attr(_PLACED, True)
            del self._unplaced[0]

    @property
    def placed(self) -> list[int]:
        """Trials that have not ended and had folders: any folder missing now was lost."""
        running = (trial for trial in self.trials if outcome(trial) == TrialState.RUNNING)
        return [trial.number for trial in running if _PLACED in trial.user_attrs]

    def report(self, number: int, step: int, score: float) -> bool:
        """Records an intermediate score, by round; the first for a round counts. Returns whether it stops the trial early,
        which then has ended. Not kept for two objectives."""
        if len(self._study.directions) > 1:
            return False
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # a trial that was killed reports a round again
            self._asked[number].report(score, step)
        search = self._sweep.search
        if search.early_stopping == "none":
            return False
        trials = self.trials
        known = [trials[elder] for elder in self._known(self._order.index(number))]
        own, *compared = (
            {step: self._sweep.metric.cost(value) for step, value in each.intermediate_values.items()}
            for each in (trials[number], *(elder for elder in known if outcome(elder) in _TRAINED))
        )
        if not falls_behind(search.early_stopping, search.grace_rounds, own, compared):
            return False
        self.stop(number)
        return True

    def finish(self, number: int, *, score: float, epsilon: float, noise_multiplier: float | None = None) -> None:
        """Records that a trial was trained to its end; epsilon, noise and folders for those who read it by Optuna."""
        values = [score] if len(self._study.directions) == 1 else [score, epsilon]
        folders = [f"trials/{trial_id(number)}{suffix}" for suffix in self._sweep.suffixes]
        told = {
            "epsilon": epsilon,
            "noise_multiplier": noise_multiplier,
            "trial": trial_id(number),
            "run_dirs": folders,
        }
        self._end(number, TrialState.COMPLETE, values, told=told)

    def stop(self, number: int) -> None:
        """Records that a trial was stopped early: it is not complete, and its last score is not its value."""
        self._end(number, TrialState.PRUNED)

    def fail(self, number: int, reason: str, *, by_settings: bool = False) -> None:
        """Records that a trial failed for good; ``by_settings``: that it diverged, say, which the searcher learns from as
        from the worst score: it would go on asking for such points."""
        self._asked[number].set_user_attr(REASON, reason)
        self._end(number, TrialState.FAIL, by_settings=by_settings)

    def resumed(self, number: int) -> None:
        """Records when a trial that was started is started once more; of several times, the last."""
        start = self.trials[number].datetime_start
        assert start is not None
        self._asked[number].set_user_attr(_AGAIN, _passed(start))

    @contextmanager
    def training_winner(self, workers: int = 1) -> Iterator[None]:
        """Records when the training of a winner starts first, when it ends, and how many workers trained it last."""
        began = self.trials[0].datetime_start
        assert began is not None
        times = self._study.user_attrs.get(_WINNER) or {"started": _passed(began), "seconds": None}
        times |= {"workers": workers}
        self._study.set_user_attr(_WINNER, times)
        yield
        self._study.set_user_attr(_WINNER, times | {"seconds": _passed(began) - times["started"]})

    @property
    def winner_trained(self) -> dict[str, float | None] | None:
        """``started``, in seconds since the search began, ``seconds``, None until it ends, and ``workers``, of which an
        earlier version knew nothing. None if there was no such training."""
        return self._study.user_attrs.get(_WINNER)

    def leave_open(self, number: int) -> None:
        """Marks a trial whose outcome is not known, and will not be soon: others do not wait for it."""
        self._unknown.add(number)

    def close(self) -> None:
        """Tells Optuna every outcome that it has not been told."""
        self._tell(self.trials)

    def _end(
        self,
        number: int,
        state: TrialState,
        values: list[float] | None = None,
        *,
        by_settings: bool = False,
        told: Mapping[str, Any] | None = None,
    ) -> None:
        trial = self.trials[number]
        if outcome(trial).is_finished():
            return
        assert trial.datetime_start is not None
        ended = {
            "state": state.name,
            "values": values,
            "seconds": _passed(trial.datetime_start),
            "by_settings": by_settings,
        }
        for name, value in {**(told or {}), _ENDED: ended}.items():
            self._asked[number].set_user_attr(name, value)
        if not self._sweep.search.adaptive:
            self._tell([self.trials[number]])

    def _known(self, place: int) -> list[int]:
        """Returns the trials whose results decide on the trial at a place of the search."""
        return self._order[: max(0, place - self._lag + 1)]

    def _tell(self, trials: Iterable[FrozenTrial]) -> None:
        for trial in trials:
            ended = trial.user_attrs.get(_ENDED)
            if ended and trial.state == TrialState.RUNNING:
                values, state = ended["values"], TrialState[ended["state"]]
                if ended.get("by_settings") and self._sweep.search.adaptive:
                    values, state = self._worst, TrialState.COMPLETE
                self._study.tell(trial.number, values, state=state)

    @property
    def _worst(self) -> list[float]:
        return [self.metric.worst, math.inf][: len(self._study.directions)]


def outcome(trial: FrozenTrial) -> TrialState:
    """Returns what became of a trial, whether or not Optuna knows it yet."""
    return TrialState[trial.user_attrs[_ENDED]["state"]] if _ENDED in trial.user_attrs else trial.state


def seconds(trial: FrozenTrial) -> float | None:
    """Returns the seconds from a trial's first start to its end."""
    ended = trial.user_attrs.get(_ENDED)
    return None if ended is None else float(ended["seconds"])


def started(trial: FrozenTrial, first: FrozenTrial) -> tuple[float | None, float | None]:
    """Returns when a trial was first started, and when it was last started once more, in seconds since the search began.

    None for a trial that was refused, and for one that was started once. ``first``: the first trial that was asked for.
    """
    if trial.datetime_start is None or first.datetime_start is None or refused(trial):
        return None, None
    since, again = (trial.datetime_start - first.datetime_start).total_seconds(), trial.user_attrs.get(_AGAIN)
    return since, None if again is None else since + again


def _passed(since: datetime) -> float:
    return (datetime.now() - since).total_seconds()


def refused(trial: FrozenTrial) -> bool:
    """Whether the budget refused the trial's point."""
    return trial.state == TrialState.PRUNED and any(excess > 0 for excess in trial.constraints.values())


def _check(sweep: SweepConfig, study: optuna.Study) -> None:
    """Raises: some exception for what Optuna accepts from a journal as it is, and our code could not handle."""
    objectives = len(study.directions)
    number(1, whole=True)(study.user_attrs.get(_LAG, 1), _LAG)
    _TIMES(study.user_attrs.get(_WINNER), _WINNER)
    for trial in study.get_trials(deepcopy=False):
        if not trial.params.keys() <= sweep.parsed_space.keys():
            raise ValueError(trial.number)
        for step, value in trial.intermediate_values.items():
            if type(step) is not int or not isinstance(value, float | int):
                raise ValueError(trial.number)
        ended = trial.user_attrs.get(_ENDED)
        _OUTCOME(ended, _ENDED)
        number(nothing=True)(trial.user_attrs.get(_AGAIN), _AGAIN)
        if ended and ended["state"] == "COMPLETE" and len(ended["values"]) != objectives:
            raise ValueError(trial.number)


def _sampler(sweep: SweepConfig, trial_number: int) -> BaseSampler:
    """Makes a sampler for one trial: what an earlier trial left in a sampler, such as its random state, is lost in a kill.

    So is what an earlier setting of the same trial left, if the kill comes between the two: each setting has its own, too.
    """
    sampler = _seeded_sampler(sweep, trial_number)

    def sample_independent(study: optuna.Study, trial: FrozenTrial, name: str, distribution: BaseDistribution) -> Any:
        own = _seeded_sampler(sweep, trial_number, *name.encode())
        return own.sample_independent(study, trial, name, distribution)

    sampler.sample_independent = sample_independent  # type: ignore[method-assign, assignment]
    return sampler


def _seeded_sampler(sweep: SweepConfig, *address: int) -> BaseSampler:
    seed = int(np.random.SeedSequence([sweep.search.seed, *address]).generate_state(1)[0])
    return make_sampler(sweep.search.searcher, sweep.num_trials, seed)
