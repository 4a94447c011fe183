"""One worker of a run, from an opened run directory to the exported model.

The worker of rank 0 is also the driver of the rounds. Every worker computes clipped sums over its share of a round's users,
scores its share of the evaluation text and, where aggregation is sharded, adds noise to its part of the sum and steps it.
"""

from __future__ import annotations

import json
import math
from contextlib import nullcontext
from functools import partial
from typing import Any, cast

import torch

from uedp_ray.errors import InputError
from uedp_ray.models.isolation import ALONE
from uedp_ray.models.parameters import FlatParameters
from uedp_ray.models.saved import check_saveable, longest_input, save_model
from uedp_ray.plan import Plan, Weights
from uedp_ray.privacy.noise import MOST_AHEAD
from uedp_ray.privacy.sampling import PoissonSampler
from uedp_ray.reporting import SILENT, Reporter
from uedp_ray.storage.files import replacing, write_atomically
from uedp_ray.tasks.metrics import metric_of
from uedp_ray.training.balance import Balance, DrawingTeam, are_alike, loads_of
from uedp_ray.training.calls import Calls
from uedp_ray.training.driver import RunDriver, Scored
from uedp_ray.training.epochs import Sentences, Source, run_epochs
from uedp_ray.training.evaluate import score
from uedp_ray.training.guard import TRAINED_HERE
from uedp_ray.training.network import make_model
from uedp_ray.training.optimizers import kept_by, server_optimizer
from uedp_ray.training.prepared import Prepared, make_task
from uedp_ray.training.reduce import PartsReducer, Reducer, is_drivers
from uedp_ray.training.representation import private_vectors
from uedp_ray.training.rounds import RoundState, run_rounds, server_rate
from uedp_ray.training.rundir import RunDir, sampling_key
from uedp_ray.training.sharding import Shard, is_sharded
from uedp_ray.updates.base import LocalUpdate, exact_arithmetic, local_update


def run_worker(
    run: RunDir,
    *,
    rank: int,
    num_workers: int,
    reducer: Reducer,
    device: torch.device,
    reporter: Reporter = SILENT,
) -> None:
    """Runs the remaining rounds of ``run`` as worker ``rank`` and, on the driver, writes its results.

    ``reporter`` gets, on the driver, each row of ``rounds.parquet`` as it is evaluated.
    """
    with ALONE, run.driving() if reducer.is_driver else nullcontext():
        if reducer.is_driver and not run.storage.owned:
            run.own()
        _run(run, rank, num_workers, reducer, device, reporter)


def _check_same(
    run: RunDir, prepared: Prepared, weights: Weights | None, reducer: Reducer, device: torch.device
) -> None:
    """Raises: InputError on a worker that would draw, clip, add up, noise or divide by other numbers than the driver, as one
    does that opened another folder: the driver alone looks at the ledger, and charges for its own."""
    plan, denominator, setup = prepared.plan, None if weights is None else weights.denominator, run.load_setup()
    text = [setup.get(name) for name in ("sentence_weight", "vocabulary", "starts", "draw_block", "corpus_digest")]
    known = plan.header(), plan.noise_std, plan.grid, denominator, text, sampling_key(run, prepared.config)
    if not is_drivers(reducer, known, device):
        remedy = "is not the driver's: its noise, bounds, settings, text or key differ. Give every worker the same copy"
        raise InputError("run", str(run.setup), remedy)


def _run(run: RunDir, rank: int, num_workers: int, reducer: Reducer, device: torch.device, reporter: Reporter) -> None:
    exact_arithmetic(device)
    prepared = Prepared.open(run)
    config, plan, corpus = prepared.config, prepared.plan, prepared.corpus
    vocabulary = prepared.vocabulary
    task = make_task(config, vocabulary)
    model = make_model(prepared.used, vocabulary).to(device)
    check_saveable(model)  # before a round is charged for it
    params = FlatParameters(model)
    parameters = params.get().to(device)
    state = RoundState(parameters, server_optimizer(parameters, config.training))
    weights = plan.weights(corpus)
    team = None
    if num_workers > 1:
        _check_same(run, prepared, weights, reducer, device)
        team = DrawingTeam(rank=rank, num_workers=num_workers, reducer=reducer, device=device)
    sampler = PoissonSampler(sampling_key(run, config), block=prepared.draw_block, team=team)
    update = local_update(plan, model, params, task, prepared.tokens.sentence, device)
    ordinary = config.training.loop == "epochs"
    shared = num_workers > 1 and not ordinary  # of epochs the others have no part
    sharded = shared and is_sharded(config.training, num_params=params.num, num_workers=num_workers)
    texts = prepared.to_score() if reducer.is_driver or shared else []
    loads = loads_of(corpus.user_offsets, prepared.tokens.offsets, prepared.sentence_weight) if shared else None
    if not ordinary:
        part = 1 / num_workers if sharded else float(reducer.is_driver)
        beside = _held_beside(plan, params.num, part, device)
        update.probe()
        del beside
    if shared and not are_alike(reducer, device, num_workers, update.tried_out):
        loads = None
    balance = Balance(loads=loads, rank=rank, num_workers=num_workers, sampler=sampler, reducer=reducer, device=device)

    def local_sum(parameters: torch.Tensor, round_index: int, attempt: int) -> torch.Tensor:
        selections = plan.select(
            corpus,
            None,
            sampler,
            round_index=round_index,
            attempt=attempt,
            sentence_weight=prepared.sentence_weight,
            weights=weights,
            share=partial(balance.share, round_index=round_index, attempt=attempt),
        )
        return LocalUpdate.sum_updates(update, parameters, selections, round_index)  # whatever hides it in the object

    calls = Calls(reducer, device)

    def summed() -> list[tuple[float, ...]]:
        params.set(state.parameters)
        how: dict[str, Any] = {
            "batch_tokens": config.training.batch_tokens,
            "bf16": config.training.precision == "bf16",
        }
        if shared:
            how |= {"rank": rank, "num_workers": num_workers, "reducer": reducer}
        with update.isolated():  # otherwise state from this text would stay in the network and affect later rounds
            return [score(model, task, said, device=device, **how) for said, _ in texts]

    sums_of_texts = calls.add(summed) if shared else summed

    def evaluate() -> Scored:
        if not texts:
            return Scored(dict.fromkeys(metric_of(config).names), {})
        sums = sums_of_texts()
        scores = [task.scores(found, size) for found, (_, size) in zip(sums, texts, strict=True)]
        return Scored(scores[0], task.by_category(sums[0]), *scores[1:])

    driver, shard = None, None
    if shared:
        _share_state(state, reducer)  # the first scores are of these, wherever they come from
    if reducer.is_driver:
        driver = RunDriver(run, plan, state, weights, evaluate, reporter, prepared.public_source)
        if config.corpus.source.format == "synthetic":
            driver.num_tokens = int(corpus.sentence_words.sum())  # nobody declared them
        driver.resume()
    if shared:
        calls.number(_READY)
    _share_state(state, reducer)
    if shared and calls.number(int(sharded)):  # all as the driver does: sums would be of something else
        shard = Shard(plan, weights, cast(PartsReducer, reducer), state.parameters)
        state.optimizer = shard.optimizer(state.optimizer, stepped=state.next_round > 0)
        kept = calls.add(partial(shard.kept, state.optimizer))
        if driver:
            driver.kept = kept
    try:
        if not ordinary:
            run_rounds(
                state,
                num_rounds=config.training.num_rounds,
                rate=partial(server_rate, config.training),
                local_sum=local_sum,
                reducer=reducer,
                driver=driver,
                number=calls.number,
                shard=shard,
                after_round=driver.after_round if driver else lambda state: None,
            )
        elif driver:  # the other workers have nothing to do
            source: Source = Sentences(task, prepared.tokens)
            if config.representation.kind != "none":
                source = private_vectors(run, prepared, model, task, update.isolated)
            run_epochs(state, config.training, source=source, model=model, params=params, task=task, driver=driver)
    except KeyboardInterrupt:  # in the command's own process: Ray ends its workers without one
        if driver and shard is None:
            driver.interrupted()
        raise
    _write_diagnostics(run, rank, update)
    if shared:
        if driver:
            driver.conclude()
        calls.number(_READY)
    if driver:
        params.set(state.parameters)
        with replacing(run.model) as new:
            save_model(model, new)
            vocabulary.save(new, longest=longest_input(model))
            (new / TRAINED_HERE).touch()
        driver.finish()


_READY = 0
"""Sent when the driver needs the others no more, for now."""


def _held_beside(plan: Plan, num_params: int, part: float, device: torch.device) -> list[torch.Tensor]:
    """As much as a round holds while updates are computed, which know nothing of it: the parameters that it starts from, its
    sum and, of the ``part`` that this worker steps, what the optimizer keeps and noise that is drawn ahead.

    Taken while an update is tried out. A round that needed more than was there would end by who was drawn.
    """
    stepped = math.ceil(num_params * part)
    vectors = (4 + 8) * num_params + 4 * stepped * sum(kept_by(plan.config.training).values())
    noise = 8 * min(stepped, MOST_AHEAD) if plan.noise_std > 0 and plan.grid is not None else 0
    taken = partial(torch.ones, dtype=torch.uint8)  # zeros take no page
    return [taken(vectors, device=device), taken(noise)]


def _share_state(state: RoundState, reducer: Reducer) -> None:
    """Makes every worker start from the driver's checkpoint."""
    next_round = torch.tensor([state.next_round], device=state.parameters.device)
    state.next_round = int(reducer.from_driver(next_round).item())
    reducer.from_driver(state.parameters)


def _write_diagnostics(run: RunDir, rank: int, update: LocalUpdate) -> None:
    """Writes exact functions of private data, which stay in the private folder."""
    counts = {"non_finite_gradients": update.num_non_finite}
    write_atomically(run.diagnostics(rank), json.dumps(counts).encode(), private=True)
