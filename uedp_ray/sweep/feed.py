"""Between Ray Tune and the study: hands points out, and tells the study what became of them.

Ours, because Tune's own bridge to Optuna reports trials that a scheduler stopped as complete, asks for a worker before a
point can be refused, and does not resume (measured with Ray 2.60).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from ray.tune.search import Searcher

from uedp_ray.errors import InputError
from uedp_ray.sweep.study import Asked, Study
from uedp_ray.sweep.trial import DONE, NO_SPACE

_MOST_REFUSALS = 500
"""Refusals in a row after which the search gives up: the space hardly meets the budget."""


class Feed(Searcher):
    """A Tune searcher over a ``Study``.

    Args:
      study: opened; trials that were begun are handed out first.
      left: points still to hand out.
      count_refused: whether a refused point is one of them (points fixed beforehand), or is made up for by another.
      changed: called after every change, for whoever shows or writes the state.
    """

    def __init__(self, study: Study, *, left: int, count_refused: bool, changed: Callable[[], None]):
        super().__init__(metric="perplexity", mode="min")
        self._study, self._left, self._count_refused, self._changed = study, left, count_refused, changed
        self._running: dict[str, Asked] = {}
        self.failure: Exception | None = None
        """Why the search gave up, if it did: Tune wraps what a searcher raises into errors of its own."""

    @property
    def unfinished(self) -> int:
        """Trials handed out of which nothing was heard: those that an interruption cut off."""
        return len(self._running)

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
        refusals = 0
        while self._left > 0 and self.failure is None:
            asked = self._study.ask()
            if not asked.reason or self._count_refused:
                self._left -= 1
            if not asked.reason:
                self._running[trial_id] = asked
                self._changed()
                return {"number": asked.number, "point": asked.point}
            refusals += 1
            self._changed()
            if refusals >= _MOST_REFUSALS:
                remedy = f"{refusals} points in a row were refused, the last because {asked.reason}: narrow the space"
                self.failure = InputError("space", "refused", remedy)
        return Searcher.FINISHED

    def on_trial_result(self, trial_id: str, result: dict[str, Any]) -> None:
        if trial_id in self._running and "outcome" not in result:
            with self._giving_up():
                self._study.report(self._running[trial_id].number, result["round"], result["perplexity"])
                self._changed()

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        asked = self._running.pop(trial_id, None)
        if asked is not None:
            with self._giving_up():
                self._tell(asked.number, result or {}, error)
                self._changed()

    def _tell(self, number: int, result: dict[str, Any], error: bool) -> None:
        outcome = result.get("outcome")
        if error:
            self._study.fail(number, "its process died, and died again when it was started anew")
        elif outcome == DONE:
            self._study.finish(number, perplexity=result["perplexity"], epsilon=result["epsilon"])
        elif outcome == NO_SPACE:  # no fault of the point: it stays begun, for --resume
            self.failure = OSError(f"{result['reason']}; free space and run again with --resume")
        elif outcome is not None:
            self._study.fail(number, result["reason"])
        else:
            self._study.stop(number)

    def save(self, checkpoint_path: str) -> None:
        """Nothing: the journal is the state."""

    def restore(self, checkpoint_path: str) -> None:
        """Nothing: see ``save``."""

    def __getstate__(self) -> dict[str, Any]:  # Tune pickles its searcher, which cannot be used again anyway
        return {}
