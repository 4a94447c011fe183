"""Progress of long work: on a terminal live, elsewhere a line now and then."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

from rich.console import Group
from rich.live import Live
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn
from rich.table import Table

from uedp_ray.console import STATES, Lines, err, measured
from uedp_ray.privacy.statement import show_epsilon
from uedp_ray.tasks.metrics import metric_in

_SILENCE = 60.0
"""Seconds after which a reader of a log wonders whether anything happens."""


class Screen(Lines):
    """Lines, and a live bar on a terminal; elsewhere a line at every fifth of the way, and after each minute without one."""

    def __init__(self, bar: Progress):
        super().__init__()
        self._bar, self._task = bar, bar.add_task("starting", total=None)
        self._printed, self._last = (0, ""), 0.0
        self._began = (0, 0.0)  # the first step, and when it ended

    def prepared(self, stage: str, done: int, total: int | None) -> None:
        self._show(done, total, f"preparing: {stage} {done}{f'/{total}' if total else ''}")

    def answered(self, done: int, total: int) -> None:
        self._show(done, total, f"answered {done}/{total} texts")

    def step(self, step: int, steps: int, loss: float) -> None:
        if step <= self._began[0] or not self._began[0]:
            self._began = step, time.monotonic()
        pace = (time.monotonic() - self._began[1]) / max(1, step - self._began[0])
        left = f"  {pace * (steps - step):.0f} s left" if pace else ""
        self._show(step, steps, f"pre-training step {step}/{steps}  loss {loss:.3f}{left}")

    def round(self, row: dict[str, Any]) -> None:
        """Shows round, rounds per second, epsilon of this run at its planned end, the last scores and time left."""
        spent, evaluated = row["epsilon"], row["evaluated"]
        of = "" if evaluated == row["round"] else f" after round {evaluated}" if evaluated else " before training"
        parts = [
            f"round {row['round']}/{row['num_rounds']}",
            f"{row['rounds_per_second']:.2f} rounds/s",
            "no guarantee" if spent is None else f"ε {show_epsilon(spent)} of this run",
            "" if row[metric_in(row).name] is None else measured(row, 1) + of,
            f"{row['seconds_left']:.0f} s left",
        ]
        self._show(row["round"], row["num_rounds"], "  ".join(part for part in parts if part))

    def _show(self, done: int, total: int | None, text: str) -> None:
        self._bar.update(self._task, completed=done, total=total, description=text)
        fifth, now = (done * 5 // total if total else 0, text.split()[0]), time.monotonic()
        self._last = self._last or now
        if not err.is_terminal and ((fifth != self._printed and fifth[0]) or now - self._last > _SILENCE):
            self._printed, self._last = fifth, now
            err.print(text, markup=False, highlight=False, soft_wrap=True)


_ENOUGH = 0.1
"""How much of the trials that run is to be trained before the time left is told: at first, most of it went to starting."""


class SweepScreen(Screen):
    """A ``Screen`` with a live table of trials on a terminal; elsewhere a line as trials end or the time left is known."""

    def __init__(self, bar: Progress, live: Live | None):
        super().__init__(bar)
        self._live, self._ended, self._timed, self._told = live, -1, False, 0.0
        # What had been trained when this start began, in passes, and until when: what starting takes is no measure.
        self._first: tuple[float, float] | None = None

    def trials(self, status: dict[str, Any]) -> None:
        count, now, trained = status["asked"] - status["running"], time.monotonic(), status["trained"]
        if self._first is None or trained == self._first[0]:
            self._first = trained, now
        new, togo = trained - self._first[0], status["whole"] - trained
        known = new > _ENOUGH * status["under_way"] and togo > 0
        then = ", then the winner" if status["then_winner"] else ""
        left = _left((now - self._first[1]) / new * togo) + then if known else ""
        if self._live is not None:
            self._live.update(Group(_status_table(status, left), self._bar))
        elif status["asked"] and (count != self._ended or (known and not self._timed) or now - self._told > _SILENCE):
            self._ended, self._timed, self._told = count, self._timed or known, now
            line = "; ".join(part for part in (_status_line(status), left) if part)
            err.print(line, markup=False, highlight=False, soft_wrap=True)


@contextmanager
def screen() -> Iterator[Screen]:
    bar = _bar()
    with bar if err.is_terminal else nullcontext():
        yield Screen(bar)


@contextmanager
def sweep_screen() -> Iterator[SweepScreen]:
    bar = _bar()
    with Live(bar, console=err, transient=True) if err.is_terminal else nullcontext() as live:
        yield SweepScreen(bar, live)


def _bar() -> Progress:
    return Progress(TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), console=err, transient=True)


def _left(seconds: float) -> str:
    return f"about {seconds:.0f} s left" if seconds < 120 else f"about {seconds / 60:.0f} min left"


def _status_table(status: dict[str, Any], left: str) -> Table:
    title = f"{status['done'] + status['stopped'] + status['failed']} of {status['wanted']} trials"
    table = Table(title=f"{title}, {left}" if left else title)
    cells = {name: str(status[name]) for name in STATES} | _best_cells(status["best"])
    for name in cells:
        table.add_column(name, justify="right")
    table.add_row(*cells.values())
    return table


def _status_line(status: dict[str, Any]) -> str:
    best = status["best"]
    counts = ", ".join(f"{status[state]} {state}" for state in STATES if status[state])
    if best is None:
        return f"trials: {counts} of {status['wanted']}"
    alone = show_epsilon(best["epsilon"], "∞")
    worse = f", worse than before training ({metric_in(best).before(best)})" if metric_in(best).harmed(best) else ""
    found = f"best so far {best['trial']}: {measured(best, 1)}{worse}, ε of that run alone {alone}"
    return f"trials: {counts} of {status['wanted']}; {found}"


def _best_cells(best: dict[str, Any] | None) -> dict[str, str]:
    """Returns the cells of the best trial by heading."""
    if best is None:
        return {"best so far": "-"}
    scores = {score.title: score.show(best[score.name]) for score in metric_in(best).scores}
    return {"best so far": best["trial"], **scores, "ε of it alone": show_epsilon(best["epsilon"], "∞")}
