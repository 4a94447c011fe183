"""The link between Ray Tune and the study: hands out points, and records in the study what became of them.

Tune's own bridge to Optuna is not used: it reports trials that a scheduler stopped as complete, asks for a worker before a
point can be refused, and does not resume (measured with Ray 2.60).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from ray.tune.search import Searcher

from uedp_ray.errors import InputError
from uedp_ray.search.allowance import Allowance
from uedp_ray.search.study import Asked, Study
from uedp_ray.search.trial import CRASHED, DEVICE, DISK, DONE

_MOST_FAILURES = 5
"""Consecutive failures that are no point's fault after which the search gives up: the next trial would fail too."""
_MOST_REFUSALS = 500
"""Consecutive refusals after which the search gives up: hardly any point of the space meets the budget."""


class StudySearcher(Searcher):
    """A Tune searcher over a ``Study``.

    Args:
      study: an open study; trials that were started are handed out first.
      allowance: what each run may spend.
      left: points still to hand out.
      slots: trials that run at once. A trial whose device failed holds it until the search is over, so that no other trial
        is placed there; None if trials hold no device.
      count_refused: whether a refused point counts as one of them (points fixed beforehand), or is replaced by another.
      changed: called after every change, to show or write the state.
    """

    def __init__(
        self,
        study: Study,
        allowance: Allowance,
        *,
        left: int,
        count_refused: bool,
        changed: Callable[[], None],
        slots: int | None = None,
    ):
        super().__init__(metric=study.metric.name, mode=study.metric.goal)
        self._study, self._left, self._count_refused, self._changed = study, left, count_refused, changed
        self._allowance = allowance
        self._running: dict[str, Asked] = {}
        self._slots, self._held = slots, 0
        self._again: list[Asked] = []
        self._broken: dict[str, set[int]] = {}
        self._suspects: dict[int, str] = {}
        self._in_a_row = 0
        self.failure: Exception | None = None
        """Why the search gave up, if it did: Tune wraps what a searcher raises into errors of its own."""

    @property
    def unfinished(self) -> int:
        """How many trials were handed out and never reported back, because an interruption cut them off."""
        return len(self._running) + len(self._again)

    @property
    def over(self) -> bool:
        """Whether nothing is left to wait for but trials that hold a device."""
        return not self._running and (self.failure is not None or not (self._left or self._again))

    def close(self) -> None:
        """Records failures that no success followed in the study. Not called if the search gave up or was interrupted:
        then they stay open, and are tried again on ``--resume``."""
        for number, reason in self._suspects.items():
            self._study.fail(number, reason)
        if self._suspects:
            self._suspects = {}
            self._changed()

    @contextmanager
    def _giving_up(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self.failure = self.failure or error
            raise

    def suggest(self, trial_id: str) -> dict[str, Any] | str | None:
        with self._giving_up():
            return self._suggest(trial_id)

    def _suggest(self, trial_id: str) -> dict[str, Any] | str | None:
        if self._again and self.failure is None:
            self._study.resumed(self._again[0].number)
            return self._hand_out(trial_id, self._again.pop(0))
        refusals = 0
        while self._left > 0 and self.failure is None:
            asked = self._study.ask(self._allowance)
            if asked is None:
                break
            if not asked.reason or self._count_refused:
                self._left -= 1
            if not asked.reason:
                handed = self._hand_out(trial_id, asked)
                self._changed()
                return handed
            refusals += 1
            self._changed()
            if refusals >= _MOST_REFUSALS:
                remedy = f"{refusals} points in a row were refused, the last because {asked.reason}: narrow the space"
                self.failure = InputError("space", "refused", remedy)
        return Searcher.FINISHED if self.over else None  # a running trial may need another device, or decide the next

    def _hand_out(self, trial_id: str, asked: Asked) -> dict[str, Any]:
        self._running[trial_id] = asked
        return {"number": asked.number, "point": asked.point}

    def on_trial_result(self, trial_id: str, result: dict[str, Any]) -> None:
        if trial_id in self._running and result.get("outcome") == DEVICE:
            with self._giving_up():
                self._device_failed(self._running.pop(trial_id), result)

    def stops(self, trial_id: str, result: dict[str, Any]) -> bool:
        """Whether a report of a trial ends it early. Tune asks before it hands the report to ``on_trial_result``."""
        if trial_id not in self._running or "outcome" in result:
            return False
        with self._giving_up():
            stopped = self._study.report(self._running[trial_id].number, result["round"], result[self.metric])
            self._changed()
        return stopped

    def recovered(self, trial_id: str) -> None:
        """Notes that a trial's process died, and that Tune starts the trial once more."""
        if trial_id in self._running:
            with self._giving_up():
                self._study.resumed(self._running[trial_id].number)

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        asked = self._running.pop(trial_id, None)
        if asked is not None:
            with self._giving_up():
                self._tell(asked.number, result or {}, error)
                self._changed()

    def _tell(self, number: int, result: dict[str, Any], error: bool) -> None:
        outcome = result.get("outcome")
        if error:
            self._suspect(number, "its process died, and died again after a restart")
        elif outcome == CRASHED:
            self._suspect(number, result["reason"])
        elif outcome == DONE:
            self._in_a_row = 0
            self.close()
            noise = result["noise_multiplier"]
            self._study.finish(number, score=result[self.metric], epsilon=result["epsilon"], noise_multiplier=noise)
        elif outcome == DISK:  # not the point's fault: it stays open, for --resume
            reason = result["reason"]
            self.failure = OSError(
                reason if "--resume" in reason else f"{reason}; fix that and run again with --resume"
            )
        elif outcome is not None:
            self._study.fail(number, result["reason"], by_settings=True)
        else:
            self._study.stop(number)

    def _device_failed(self, asked: Asked, result: dict[str, Any]) -> None:
        """Tries the trial on another device, once. Trials that share a broken device all fail on it."""
        self._held += 1
        reason, where = result["reason"], result["where"]
        device = where if self._slots is not None else str(self._held)  # a group's trial runs apart from its devices
        known = device in self._broken
        self._broken.setdefault(device, set()).add(asked.number)
        if sum(asked.number in numbers for numbers in self._broken.values()) > 1:
            self._suspect(asked.number, reason)
        else:
            self._again.append(asked)
            if not known:
                self._count(f"{reason} ({where})")
        if self._slots is not None and self._held >= self._slots and self.failure is None:
            self._give_up(f"no device is left: {reason} ({where})")

    def _suspect(self, number: int, reason: str) -> None:
        """Records a failure that is the point's fault only if others do not fail the same way."""
        self._suspects[number] = reason
        self._study.leave_open(number)
        self._count(reason)

    def _count(self, reason: str) -> None:
        self._in_a_row += 1
        if self._in_a_row >= _MOST_FAILURES and self.failure is None:
            self._give_up(f"{self._in_a_row} trials in a row failed, the last because {reason}")

    def _give_up(self, reason: str) -> None:
        self.failure = RuntimeError(f"{reason}; fix that and run again with --resume: their points are tried again")

    def save(self, checkpoint_path: str) -> None:
        """Does nothing: the journal is the state."""

    def restore(self, checkpoint_path: str) -> None:
        """Does nothing: see ``save``."""

    def __getstate__(self) -> dict[str, Any]:  # Tune pickles its searcher, which cannot be used again anyway
        return {}
