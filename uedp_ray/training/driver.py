"""The driver of a run, on the worker of rank 0: budget, ledger, noise, evaluation, checkpoints, progress, results.

It sees the un-noised sum of a round, of which workers see parts. Everything it writes outside the ledger follows from
released values.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import torch

from uedp_ray.corpus.textsize import TextSize
from uedp_ray.errors import InputError
from uedp_ray.interrupts import deferred
from uedp_ray.plan import Plan, Weights, epsilons, units_of
from uedp_ray.privacy.events import charges
from uedp_ray.privacy.noise import GaussianNoise
from uedp_ray.privacy.statement import covers
from uedp_ray.reporting import SILENT, Reporter
from uedp_ray.storage.files import write_atomically, write_json
from uedp_ray.storage.tables import read_bounded, refusing_damage
from uedp_ray.tasks.metrics import metric_of
from uedp_ray.training.checkpoint import Position, check_room_for, load_checkpoint, save_checkpoint
from uedp_ray.training.guarantees import guarantees
from uedp_ray.training.optimizers import kept_by
from uedp_ray.training.privacy_page import write_statement
from uedp_ray.training.rounds import RoundState
from uedp_ray.training.rundir import COMMIT, RunDir
from uedp_ray.units import UNITS


class Scored(NamedTuple):
    """A model's scores (``Task.scores``), all None without evaluation text, and those of parts of the text."""

    scores: Mapping[str, float | None]
    by_category: Mapping[str, Mapping[str, float]]
    transformed: Mapping[str, float | None] | None = None
    """The scores on the evaluation text as transformed, if they are asked for."""


@dataclass
class RunDriver:
    """A ``rounds.Driver`` over a run directory."""

    run: RunDir
    plan: Plan
    state: RoundState
    weights: Weights | None
    evaluate: Callable[[], Scored]
    """Scores the current parameters on the evaluation text."""
    reporter: Reporter = SILENT
    public_source: bool = False
    """Whether the text is public, so that rounds that a crash lost are trained again beyond the budget."""
    kept: Callable[[], Mapping[str, torch.Tensor]] | None = None
    """What the optimizers of all workers keep, where each steps a part; None: the driver does everything."""
    num_tokens: int | None = None
    """Of a text that was made up; how many others have is private."""
    rows: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        config = self.plan.config
        self._training, self._metric = config.training, metric_of(config)
        self._digest = config.digest()
        self._ledger = self.run.open_ledger(config)
        self.plan.check_header(self._ledger.header, self.run.setup)
        self._charged = charges(self._ledger.events)
        self._noise = GaussianNoise(config.privacy.test_noise_seed)
        self._started, self._first, self._evaluating = time.monotonic(), 0, 0.0
        self._left = 0
        self._scored: Scored | None = None
        self._unsaved = 0
        """Rounds since the last checkpoint, or since this start."""
        self._stepped: int | None = 0
        """Up to which round the state was stepped and paid for; None amid a release, when it is that of no round."""

    def resume(self) -> None:
        """Loads the last complete checkpoint, if any, and computes how many rounds the budget still allows."""
        self.run.storage.get(self.run.checkpoint, commit=COMMIT)
        self.rows = self._known_rows()
        if not self.rows:  # lost or damaged: the first row scores the initial parameters, which ``state`` still holds
            self._record()
        position = load_checkpoint(
            self.run.checkpoint,
            self.state,
            config_digest=self._digest,
            num_rounds=self._training.num_rounds,
            kept=kept_by(self._training),
        )
        if position is not None:
            self._ledger.require_position(position.ledger_seq, position.ledger_digest)
        known, self.rows = self.rows, [row for row in self.rows if row["round"] <= self.state.next_round]
        if len(self.rows) < len(known):
            if position is None:
                self._keep_model()
            self._write_rows()  # they say how far the model got that this start may leave
            self.run.storage.put(self.run.rounds)
        self._first = self.state.next_round
        self._left = self._affordable()
        if position is None and self._charged.num_rounds >= self._training.checkpoint_every:
            self.reporter.say(
                f"caution: {self._charged.num_rounds} rounds were charged, and checkpoint/ is missing: training starts "
                f"over, with what is left of the budget ({self._left} of {self._training.num_rounds} rounds)"
            )
        if position is not None and self._diverged():
            self._refuse_divergence()

    def _keep_model(self) -> None:
        """Raises: InputError if there is a model of the rounds in ``rounds.parquet``, which a new start would replace."""
        self.run.storage.get(self.run.model)
        if self.run.model.exists():
            where = self.run.storage.address(self.run.checkpoint)
            remedy = "is missing, and training from scratch would replace the model that was paid for"
            raise InputError("checkpoint", where, f"{remedy}: put the checkpoint back, or train in another folder")

    def _known_rows(self) -> list[dict[str, Any]]:
        """The rows of ``rounds.parquet``; none if it cannot be read."""
        names = {"round", *self._metric.names, "noise_std", *(f"epsilon_{unit}" for unit in UNITS)}
        try:
            with refusing_damage(InputError("rounds.parquet", str(self.run.rounds), "is damaged: delete it")):
                most = self._training.num_rounds + 1
                table = read_bounded(self.run.rounds, "delete it", most_rows=most) if self.run.rounds.exists() else None
                rows = table.to_pylist() if table is not None and set(table.column_names) == names else []
        except InputError:
            rows = []
        return rows if rows and rows[0]["round"] == 0 and all(map(self._is_row, rows)) else []

    def _affordable(self) -> int:
        """How many more rounds may run. In total, no more are charged than were planned: a crashed round that was already
        charged takes one away, unless there is nobody to protect.
        """
        remaining = self._training.num_rounds - self.state.next_round
        if not self.plan.noised or self.public_source:
            return remaining
        charged = self._charged
        planned = self._training.num_rounds if charged.plan is None else charged.plan.rounds
        foreseen = () if charged.plan is None else charged.plan.releases
        if not charged.rounds and charged.releases != foreseen:  # as a crash between charging and keeping one leaves it
            affordable = self.plan.affordable(charged)
            if affordable < planned:
                planned = affordable
                self._ledger.append("plan", rounds=planned)
                self.run.storage.append(self.run.ledger)
                self._charged = charges(self._ledger.events)
        return max(0, min(remaining, planned - charged.num_rounds))

    def admit(self, round_index: int) -> int | None:
        if self._left <= 0:
            return None
        if self._unsaved == 0:  # where disks are full, every start would charge rounds that no checkpoint keeps
            check_room_for(
                self.run.checkpoint,
                self.state,
                num_kept=len(kept_by(self._training)),
                num_events=self._training.checkpoint_every,
            )
        if self.plan.noise_std > 0 and self.plan.grid is not None and self.kept is None:
            self._noise.draw_ahead(self.state.parameters.numel(), std=self.plan.noise_std, round_index=round_index)
        self._left -= 1
        self._unsaved += 1
        # A replayed round draws a fresh sample, unless the run is a test whose replays must be identical.
        return self._ledger.attempts(round_index) if self.plan.noised else 0

    def charge(self, round_index: int, attempt: int) -> None:
        event = self._ledger.append(**self.plan.event(round_index=round_index, attempt=attempt))
        self._charged = self._charged.with_round(event)
        self.run.storage.append(self.run.ledger)
        self.run.know(event["seq"] + 1)
        self._stepped = round_index + 1

    def amid_round(self) -> None:
        """From here until the charge, the state is that of no round: an interrupt saves nothing."""
        self._stepped = None

    def release(self, total: torch.Tensor, round_index: int) -> torch.Tensor:
        self.amid_round()
        denominator = None if self.weights is None else self.weights.denominator
        return self.plan.release(total, self._noise, round_index=round_index, denominator=denominator)

    def interrupted(self) -> None:
        """Saves the rounds since the last checkpoint, which were charged; unless the release of another was cut short."""
        if self._stepped is None or not self._unsaved:
            return
        with deferred():
            self.reporter.say("interrupted: saving the rounds since the last checkpoint")
            self.state.next_round = max(self.state.next_round, self._stepped)
            self._save()

    def after_round(self, state: RoundState) -> None:
        last = state.next_round == self._training.num_rounds or self._left == 0
        if last or state.next_round % self._training.evaluate_every == 0:
            self._record()
        diverged = self._diverged()
        if last or diverged or state.next_round % self._training.checkpoint_every == 0:
            self._save()  # also on divergence: no round is replayed because of what it released
        if diverged:
            self._refuse_divergence()
        self._tell()

    def _diverged(self) -> bool:
        found = self.rows[-1][self._metric.name]
        finite = found is None or math.isfinite(found)
        return not (finite and bool(torch.isfinite(self.state.parameters).all()))

    def _refuse_divergence(self) -> None:
        """Raises InputError, rather than spend the budget on a useless model."""
        found = f"not finite after round {self.state.next_round}"
        remedy = f"training diverged, parameters or {self._metric.title} are {found}: lower it, and start a new run"
        raise InputError("training.server_learning_rate", self._training.server_learning_rate, remedy)

    def _record(self) -> None:
        began = time.monotonic()
        self._scored = self.evaluate()
        self._evaluating += time.monotonic() - began
        self.rows.append(
            {
                "round": self.state.next_round,
                **self._scored.scores,
                "noise_std": self.plan.noise_std,
                **{f"epsilon_{name}": value for name, value in self.spent().items()},
            }
        )
        self.reporter.evaluated(self.rows[-1])

    def spent(self) -> dict[str, float]:
        return epsilons(self.plan, self._charged)

    def _save(self) -> None:
        self._write_rows()  # before the checkpoint: on resume, later rows are dropped, but missing ones would stay lost
        seq, digest = self._ledger.position
        position = Position(self.state.next_round, self._digest, seq, digest)
        save_checkpoint(self.run.checkpoint, self.state, position, None if self.kept is None else self.kept())
        self.run.storage.put(self.run.rounds)
        self.run.storage.put(self.run.checkpoint, commit=COMMIT)
        self._unsaved = 0  # not before: an interrupt may have come amid this one

    def _write_rows(self) -> None:
        buffer = pa.BufferOutputStream()
        pq.write_table(pa.Table.from_pylist(self.rows), buffer)
        write_atomically(self.run.rounds, buffer.getvalue().to_pybytes())

    def _seconds_a_round(self) -> float:
        return (time.monotonic() - self._started) / max(1, self.state.next_round - self._first)

    def _tokens_per_second(self) -> float | None:
        """Speed of training, private since rounds take longer the more was drawn. None if this start trained nothing."""
        tokens = self.num_tokens or self.plan.config.corpus.declared_num_tokens
        rounds = self.state.next_round - self._first
        if tokens is None or not rounds:
            return None
        seconds = time.monotonic() - self._started - self._evaluating
        return rounds * tokens * self.plan.config.share_of_users / max(seconds, 1e-9)

    def _tell(self) -> None:
        """Writes what the live line shows; nothing in it but the time taken depends on who was drawn.

        Its epsilon is, from the first round on, that of the planned end: what is paid even if the run is stopped here.
        """
        latest, unit = self.rows[-1], self.plan.config.unit
        progress = {
            "round": self.state.next_round,
            "num_rounds": self._training.num_rounds,
            "rounds_per_second": 1 / self._seconds_a_round(),
            "epsilon": epsilons(self.plan, self._charged, [unit])[unit],
            **{name: latest[name] for name in self._metric.names},
            "evaluated": latest["round"],
            "seconds_left": self._seconds_a_round()
            * min(self._left, self._training.num_rounds - self.state.next_round),
        }
        write_json(self.run.progress, progress)

    def conclude(self) -> None:
        """Scores the final parameters, if it was not done yet: the last that all workers are needed for."""
        if self.rows[-1]["round"] != self.state.next_round:  # replays took the budget before this round was evaluated
            self._record()
            self._write_rows()
        elif not self.run.rounds.exists():  # nothing was left to train
            self._write_rows()
        # An earlier start may have scored the last round: its row tells of one text's scores alone.
        self._scored = self._scored or self.evaluate()

    def finish(self) -> None:
        """Writes ``privacy.md`` and, last, ``result.json``, which marks the run as finished."""
        self.conclude()
        scored = self._scored
        assert scored is not None
        config, metric = self.plan.config, self._metric
        spent = epsilons(self.plan, self._charged, units_of(config))
        setup = self.run.load_setup()
        size = setup["evaluation_size"]
        result = {
            metric.name: self.rows[-1][metric.name],
            **{each.initial: self.rows[0][each.name] for each in metric.metrics},
            **{score.name: self.rows[-1][score.name] for score in metric.beside},
            **({"by_category": scored.by_category} if scored.by_category else {}),
            **metric.yardstick_of(None if size is None else TextSize(**size)),
            **({} if scored.transformed is None else {"transformed_evaluation": scored.transformed}),
            "epsilon": self.spent(),
            "delta": config.privacy.delta,
            "unit": config.unit,
            "noise_multiplier": None if self.plan.mechanism is None else self.plan.mechanism.noise_multiplier,
            "rounds": self.state.next_round,
            "planned_rounds": self._training.num_rounds,
            "private": self.plan.private,
            "covers": covers(self._ledger.header),
            "guarantees": [each.to_dict() for each in guarantees(self.plan, spent, charged=self._charged)],
        }
        write_statement(
            self.run.statement,
            self.plan,
            self._ledger.events,
            spent,
            rounds=self.state.next_round,
            numbered=setup.get("numbered"),
            detectors=setup["detectors"],
            categories=setup["categories"],
            compared=setup["compared"],
        )
        speed = {"tokens_per_second": self._tokens_per_second(), "retention": setup.get("retention")}
        write_json(self.run.speed, speed, private=True)
        write_json(self.run.result, result)
        run, storage = self.run, self.run.storage
        storage.publish(run.config, run.ledger, run.rounds, run.vocabulary, run.model, run.statement)
        storage.put(run.rounds, run.statement, run.speed, run.result)
        storage.publish(run.result)

    def _is_row(self, row: Mapping[str, Any]) -> bool:
        """Whether ``_record`` could have made the row: a round, and numbers, of which only scores may be missing."""
        scores = self._metric.names
        numbers = {name: value for name, value in row.items() if not (name in scores and value is None)}
        return type(row["round"]) is int and all(type(value) in (int, float) for value in numbers.values())
