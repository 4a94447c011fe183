"""The Optuna study of a sweep, in ``study.journal``: asks for points, is told what became of them, and resumes.

    study = Study.open(sweep, Path("runs/s/study.journal"))
    asked = study.ask()                                     # a point, judged; one that is refused has ended already
    study.finish(asked.number, perplexity=151.7, epsilon=7.9)

States in the journal: COMPLETE: trained to the end; PRUNED: refused by the budget (its constraint is above 0) or stopped
early; FAIL: diverged or crashed; RUNNING: begun. A trial that a dead process left RUNNING keeps its number and its point
and is asked for again first, so that no point is trained twice. One process at a time drives a study: the caller holds a
lock on the sweep's folder.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import optuna
from optuna.samplers import BaseSampler, GPSampler, NSGAIISampler, RandomSampler, TPESampler
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FrozenTrial, TrialState

from uedp_ray.errors import InputError
from uedp_ray.files import check_regular
from uedp_ray.sweep.candidates import judge
from uedp_ray.sweep.config import SweepConfig
from uedp_ray.sweep.space import Point

NAME = "sweep"
_MOST_BYTES = 1 << 30
"""Of a journal: a trial takes some kB."""
REASON = "reason"
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
        self._begun = [trial._trial_id for trial in self.trials if trial.state == TrialState.RUNNING]
        self._asked: dict[int, optuna.Trial] = {}

    @classmethod
    def open(cls, sweep: SweepConfig, path: Path) -> Study:
        """Creates the journal ``path``, or goes on with it."""
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        _mend(path)
        multi = sweep.search.searcher == "nsga2"
        try:
            study = optuna.create_study(
                storage=JournalStorage(JournalFileBackend(str(path))),
                study_name=NAME,
                directions=["minimize"] * (2 if multi else 1),
                load_if_exists=True,
            )
            if not study.get_trials(deepcopy=False):
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
                    study.set_metric_names(["perplexity", "epsilon"][: 1 + multi])
            # A seed that a resumed sweep repeated would repeat its points.
            study.sampler = _sampler(sweep, sweep.search.seed + len(study.get_trials(deepcopy=False)))
            return cls(sweep, study)
        except OSError:
            raise
        except Exception as error:  # Optuna replays whatever the file says, and trips in as many ways
            remedy = f"is damaged ({type(error).__name__}): restore a copy, or start again in another folder"
            raise InputError("study.journal", str(path), remedy) from None

    @property
    def trials(self) -> Sequence[FrozenTrial]:
        """Every trial, in order of number."""
        return self._study.get_trials(deepcopy=False)

    def ended(self, *, count_refused: bool) -> int:
        """Trials that were trained to whatever end, and, if asked for, those that were refused."""
        return sum(trial.state.is_finished() and (count_refused or not refused(trial)) for trial in self.trials)

    def plan(self, points: Sequence[Point]) -> None:
        """Fixes which points are asked for, in order; those of an earlier call are not repeated."""
        for point in points[len(self.trials) :]:
            self._study.enqueue_trial(point)

    def ask(self) -> Asked:
        """The next point: first those that were begun and not ended. A refused one is told at once."""
        trial = optuna.Trial(self._study, self._begun.pop(0)) if self._begun else self._study.ask()
        point = self._sweep.parsed_space.suggest(trial)
        verdict = judge(self._sweep, point)
        if "epsilon" not in trial.constraints:
            trial.set_constraint("epsilon", min(verdict.excess, _UNBOUNDED))
        if verdict.config is None:
            trial.set_user_attr(REASON, verdict.reason)
            self._study.tell(trial, state=TrialState.PRUNED)
        else:
            self._asked[trial.number] = trial
        return Asked(trial.number, point, verdict.reason)

    def report(self, number: int, step: int, perplexity: float) -> None:
        """An intermediate perplexity, by round; the first told counts. Not kept for two objectives."""
        if len(self._study.directions) == 1:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)  # a trial that was killed tells a round again
                self._asked[number].report(perplexity, step)

    def finish(self, number: int, *, perplexity: float, epsilon: float) -> None:
        """A trial was trained to its end."""
        values = [perplexity] if len(self._study.directions) == 1 else [perplexity, epsilon]
        self._study.tell(number, values)

    def stop(self, number: int) -> None:
        """A trial was stopped early: it is not complete, and its last perplexity is not its value."""
        self._study.tell(number, state=TrialState.PRUNED)

    def fail(self, number: int, reason: str) -> None:
        """A trial diverged or crashed for good."""
        self._asked[number].set_user_attr(REASON, reason)
        self._study.tell(number, state=TrialState.FAIL)


def refused(trial: FrozenTrial) -> bool:
    """Whether the budget refused the trial's point."""
    return trial.state == TrialState.PRUNED and any(excess > 0 for excess in trial.constraints.values())


def _sampler(sweep: SweepConfig, seed: int) -> BaseSampler:
    name = sweep.search.searcher
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        if name == "tpe":
            return TPESampler(seed=seed, multivariate=True, group=True)
        if name == "nsga2":  # a generation must fit into the trials several times to be of use
            return NSGAIISampler(seed=seed, population_size=max(4, min(50, sweep.num_trials // 4)))
        if name == "gp":
            return GPSampler(seed=seed, warn_independent_sampling=False)
        return RandomSampler(seed=seed)


def _mend(path: Path) -> None:
    """Cuts off a last line that a kill left torn, which the next one would be glued to, and a dead process's lock."""
    for lock in path.parent.glob(f"{path.name}.lock*"):
        lock.unlink()
    if path.exists():
        check_regular(path, "restore a copy, or start again in another folder", most=_MOST_BYTES)
        content = path.read_bytes()
        whole = content.rfind(b"\n") + 1
        if whole < len(content):
            with path.open("r+b") as file:
                file.truncate(whole)
                os.fsync(file.fileno())
