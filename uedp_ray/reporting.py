"""Progress reports of long work to its caller.

Example:

    class Rounds(Reporter):
        def round(self, row):
            print(row["round"], row["perplexity"])

    train(config, "runs/mine", workers=0, reporter=Rounds())
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Reporter:
    """Receives progress and ignores it: a subclass overrides the methods that it needs.

    It never receives private text; figures that are read off private text say so.
    """

    def say(self, line: str) -> None:
        """One line for people."""

    def prepared(self, stage: str, done: int, total: int | None) -> None:
        """``stage`` is ``read`` (``done`` counts sentences) or ``detect`` (shards, of ``total``)."""

    def step(self, step: int, steps: int, loss: float) -> None:
        """Steps of pre-training so far, and the mean loss of those since the report before."""

    def answered(self, done: int, total: int) -> None:
        """Texts of a file that a model has answered so far."""

    def round(self, row: dict[str, Any]) -> None:
        """The content of ``progress.json``, as rounds go by."""

    def evaluated(self, row: dict[str, Any]) -> None:
        """A row of ``rounds.parquet``, if the run is in this process (``workers`` 0)."""

    def trials(self, status: dict[str, Any]) -> None:
        """How many trials are in which state, and the best so far, after every change."""


SILENT = Reporter()


class Forwarder(Reporter):
    """Forwards steps and rounds as (method, arguments), to be called on a reporter elsewhere."""

    def __init__(self, send: Callable[[tuple[str, tuple[Any, ...]]], None]):
        self._send = send

    def step(self, step: int, steps: int, loss: float) -> None:
        self._send(("step", (step, steps, loss)))

    def round(self, row: dict[str, Any]) -> None:
        self._send(("round", (row,)))
