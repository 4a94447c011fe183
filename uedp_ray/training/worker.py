"""One worker of a run, from an opened run directory to the exported model.

The worker of rank 0 is the round's driver: it sees the un-noised sum, charges the ledger, adds the noise once, steps the
server's optimizer, evaluates, checkpoints and exports. Every other worker only computes clipped sums over its own users.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import torch

from uedp_ray.config import RunConfig
from uedp_ray.models.build import build_model, save_model
from uedp_ray.models.parameters import FlatParameters
from uedp_ray.models.task import NextWord
from uedp_ray.models.trainable import select_trainable
from uedp_ray.plan import Plan, Weights, epsilons, owned_users
from uedp_ray.privacy.ledger import Ledger
from uedp_ray.privacy.noise import GaussianNoise
from uedp_ray.privacy.sampling import PoissonSampler
from uedp_ray.training.checkpoint import Position, load_checkpoint, save_checkpoint, write_atomically
from uedp_ray.training.evaluate import perplexity
from uedp_ray.training.local import LocalUpdate
from uedp_ray.training.reduce import Reducer
from uedp_ray.training.rounds import RoundState, run_rounds, server_optimizer, server_rate
from uedp_ray.training.rundir import Prepared, RunDir, sampling_key
from uedp_ray.training.statement import write_statement


def make_model(config: RunConfig, *, vocab_size: int, eos_id: int) -> torch.nn.Module:
    """The configured network, warm-started where asked, with its trainable part selected."""
    model = build_model(config.model, vocab_size=vocab_size, eos_id=eos_id, seed=config.training.seed)
    return select_trainable(model, config.model, seed=config.training.seed)


def run_worker(run: RunDir, *, rank: int, num_workers: int, reducer: Reducer, device: torch.device) -> None:
    """Runs the remaining rounds of ``run`` as worker ``rank`` and, on the driver, writes its results."""
    prepared = Prepared.open(run)
    config, plan, corpus = prepared.config, prepared.plan, prepared.corpus
    vocabulary = prepared.vocabulary
    task = NextWord(vocabulary.eos_id, vocabulary.pad_id, config.model.max_length)
    model = make_model(config, vocab_size=vocabulary.size, eos_id=vocabulary.eos_id).to(device)
    params = FlatParameters(model)
    parameters = params.get().to(device)
    state = RoundState(parameters, server_optimizer(parameters, config.training))
    weights = plan.weights(corpus)
    sampler = PoissonSampler(sampling_key(run))
    users = owned_users(corpus.user_hash, rank, num_workers)
    update = LocalUpdate(plan, model, params, task, prepared.tokens.sentence, device)

    def local_sum(parameters: torch.Tensor, round_index: int, attempt: int) -> torch.Tensor:
        selections = plan.select(
            corpus,
            users,
            sampler,
            round_index=round_index,
            attempt=attempt,
            sentence_weight=prepared.sentence_weight,
            weights=weights,
        )
        return update.sum_updates(parameters, selections, round_index)

    driver = None
    if reducer.is_driver:
        evaluation = prepared.evaluation
        sentences = [] if evaluation is None else [evaluation.sentence(i) for i in range(evaluation.num_sentences)]

        def evaluate() -> float | None:
            params.set(state.parameters)
            if not sentences:
                return None
            return perplexity(model, task, sentences, device=device, batch_tokens=config.training.batch_tokens)

        driver = RunDriver(run, plan, state, weights, evaluate)
        driver.resume()
    _share_state(state, reducer)
    run_rounds(
        state,
        num_rounds=config.training.num_rounds,
        rate=partial(server_rate, config.training),
        local_sum=local_sum,
        reducer=reducer,
        driver=driver,
        after_round=driver.after_round if driver else lambda state: None,
    )
    _write_diagnostics(run, rank, update)
    if driver:
        params.set(state.parameters)
        save_model(model, run.model)
        vocabulary.save(run.model)
        driver.finish()


def _share_state(state: RoundState, reducer: Reducer) -> None:
    """Everyone starts from the driver's checkpoint."""
    next_round = torch.tensor([state.next_round], device=state.parameters.device)
    state.next_round = int(reducer.from_driver(next_round).item())
    reducer.from_driver(state.parameters)


def _write_diagnostics(run: RunDir, rank: int, update: LocalUpdate) -> None:
    """Exact functions of private data stay in the private folder."""
    counts = {"non_finite_gradients": update.num_non_finite}
    write_atomically(run.private / f"diagnostics-{rank}.json", json.dumps(counts).encode())


@dataclass
class RunDriver:
    """Rank 0's duties: budget, ledger, noise, evaluation, checkpoints, progress."""

    run: RunDir
    plan: Plan
    state: RoundState
    weights: Weights | None
    evaluate: Any
    rows: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        config = self.plan.config
        self._training = config.training
        self._digest = config.digest()
        self._ledger = Ledger.open(self.run.ledger, config_digest=self._digest)
        self._noise = GaussianNoise(config.privacy.test_noise_seed)
        self._started, self._first = time.monotonic(), 0
        self._left = 0

    def resume(self) -> None:
        """Loads the last whole checkpoint, if any, and sees how many rounds the budget still has."""
        position = load_checkpoint(
            self.run.checkpoint, self.state, config_digest=self._digest, accountant=self.plan.config.privacy.protect
        )
        if position is not None:
            self._ledger.require_position(position.ledger_seq, position.ledger_digest)
            if self.run.rounds.exists():
                rows = pq.read_table(self.run.rounds).to_pylist()
                self.rows = [row for row in rows if row["round"] <= self.state.next_round]
        self._first = self.state.next_round
        self._left = self._affordable()
        if not self.rows:
            self._record()

    def _affordable(self) -> int:
        """How many more rounds fit the target; a crashed round that was charged already takes one away."""
        remaining = self._training.num_rounds - self.state.next_round
        target = self.plan.config.privacy.target_epsilon
        if target is None or not self.plan.private:
            return remaining
        planned = self.plan.event(round_index=0, attempt=0)
        unit = self.plan.config.privacy.protect

        def fits(count: int) -> bool:
            return epsilons(self.plan, [*self._ledger.events, *[planned] * count], [unit])[unit] <= target

        low, high = 0, remaining
        if fits(high):
            return high
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if fits(middle) else (low, middle)
        return low

    def admit(self, round_index: int) -> int | None:
        if self._left <= 0:
            return None
        self._left -= 1
        # A replayed round draws a fresh sample, unless the run is a test whose replays must be the same.
        return self._ledger.attempts(round_index) if self.plan.private else 0

    def charge(self, round_index: int, attempt: int) -> None:
        self._ledger.append(**self.plan.event(round_index=round_index, attempt=attempt))

    def release(self, total: torch.Tensor, round_index: int) -> torch.Tensor:
        denominator = None if self.weights is None else self.weights.denominator
        return self.plan.release(total, self._noise, round_index=round_index, denominator=denominator)

    def after_round(self, state: RoundState) -> None:
        last = state.next_round == self._training.num_rounds or self._left == 0
        if last or state.next_round % self._training.evaluate_every == 0:
            self._record()
        if last or state.next_round % self._training.checkpoint_every == 0:
            self._save()
        self._tell()

    def _record(self) -> None:
        self.rows.append(
            {
                "round": self.state.next_round,
                "perplexity": self.evaluate(),
                "noise_std": self.plan.noise_std,
                **{f"epsilon_{name}": value for name, value in self.spent().items()},
            }
        )

    def spent(self) -> dict[str, float]:
        return epsilons(self.plan, self._ledger.events)

    def _save(self) -> None:
        self._write_rows()  # before the checkpoint: rows beyond it are dropped on resume, missing ones would stay lost
        seq, digest = self._ledger.position
        accountant = self.plan.config.privacy.protect
        save_checkpoint(
            self.run.checkpoint, self.state, Position(self.state.next_round, self._digest, accountant, seq, digest)
        )

    def _write_rows(self) -> None:
        buffer = pa.BufferOutputStream()
        pq.write_table(pa.Table.from_pylist(self.rows), buffer)
        write_atomically(self.run.rounds, buffer.getvalue().to_pybytes())

    def _seconds_a_round(self) -> float:
        return (time.monotonic() - self._started) / max(1, self.state.next_round - self._first)

    def _tell(self) -> None:
        """What the live line shows; nothing in it depends on who was drawn but the time taken."""
        latest, unit = self.rows[-1], self.plan.config.privacy.protect
        progress = {
            "round": self.state.next_round,
            "num_rounds": self._training.num_rounds,
            "rounds_per_second": 1 / self._seconds_a_round(),
            "epsilon": epsilons(self.plan, self._ledger.events, [unit])[unit],
            "perplexity": latest["perplexity"],
            "seconds_left": self._seconds_a_round()
            * min(self._left, self._training.num_rounds - self.state.next_round),
        }
        write_atomically(self.run.progress, json.dumps(progress).encode())

    def finish(self) -> None:
        """Writes ``privacy.md`` and, last, ``result.json``: it marks a run that is finished."""
        if self.rows[-1]["round"] != self.state.next_round:  # replays took the budget before this round was evaluated
            self._record()
            self._write_rows()
        spent, config = self.spent(), self.plan.config
        tokens = config.corpus.declared_num_tokens
        trained = self.state.next_round > self._first and tokens is not None
        result = {
            "perplexity": self.rows[-1]["perplexity"],
            "initial_perplexity": self.rows[0]["perplexity"],
            "epsilon": {name: value if value != float("inf") else None for name, value in spent.items()},
            "delta": config.privacy.delta,
            "unit": config.privacy.protect,
            "noise_multiplier": None if self.plan.mechanism is None else self.plan.mechanism.noise_multiplier,
            "rounds": self.state.next_round,
            "tokens_per_second": tokens * config.privacy.user_sampling_prob / self._seconds_a_round()
            if trained and tokens is not None
            else None,
            "run_dir": str(self.run.root),
            "private": self.plan.private,
        }
        setup = json.loads(self.run.setup.read_text())
        write_statement(
            self.run.statement,
            self.plan,
            self._ledger.events,
            spent,
            detectors=setup["detectors"],
            categories=setup["categories"],
        )
        self.run.write_json(self.run.result, result)
