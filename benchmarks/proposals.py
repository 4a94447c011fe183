"""Measures what a proposal of a search costs, and what the epsilon beside a round does; nothing is trained.

    python benchmarks/proposals.py [--rules public,composition] [--trials 10,100,1000] [--rounds 50,1000,5000]

Of a search with so many finished trials, which are made up, the CPU milliseconds of the next proposal, the mean of twenty:
*ask* (the sampler's, written to the journal), *judge* (whether the budget allows the point, with what noise), *write*
(folders and table), and *calibrate*, by the trial itself; then of the *end* of a trial. Rule ``public`` has a budget for
each run, rule ``composition`` one filter for all.

Of a run of T rounds, the CPU microseconds that its driver takes for one more of them beside training, evaluation and
checkpoints (admitted, charged, its epsilon told), the mean of twenty: among the first rounds, and the last ones. Where each
user adds noise of its own (``local``) no epsilon of a user is finite. In a run that lost rounds on public text
(``repeated``) the last ones are beyond the plan, so that each has an epsilon of its own.
"""

from __future__ import annotations

import argparse
import gc
import os
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

import torch
from optuna.samplers import RandomSampler

from uedp_ray import methods
from uedp_ray.plan import Plan, epsilons
from uedp_ray.privacy.events import charges
from uedp_ray.privacy.ledger import Ledger
from uedp_ray.reporting import SILENT
from uedp_ray.search import study as studies
from uedp_ray.search import sweep as sweeps
from uedp_ray.search.feasibility import Verdict, judge, random_points, run_config
from uedp_ray.search.layout import SweepDir
from uedp_ray.search.searcher import StudySearcher
from uedp_ray.search.selection_cost import allowance_of, fix_terms
from uedp_ray.search.sweep_config import SweepConfig, dump_sweep_config, load_sweep_config
from uedp_ray.search.sync import GatheredRows
from uedp_ray.storage.files import make_folder, write_json
from uedp_ray.tasks.metrics import metric_of
from uedp_ray.training.driver import RunDriver, Scored
from uedp_ray.training.optimizers import server_optimizer
from uedp_ray.training.prepared import draw_key
from uedp_ray.training.rounds import RoundState
from uedp_ray.training.rundir import RunDir, ledger_digest

RECIPE = Path(__file__).parents[1] / "sweeps" / "quickstart.yaml"
AT_ONCE = 4
PROPOSALS = SOME = 20


class Taken(Counter[str]):
    """CPU seconds by what they were spent on."""

    @contextmanager
    def on(self, name: str) -> Iterator[None]:
        began = time.process_time()
        yield
        self[name] += time.process_time() - began

    def timed(self, name: str, what: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            with self.on(name):
                return what(*arguments, **named)

        return call


def begun(rule: str, root: Path) -> tuple[SweepConfig, SweepDir]:
    """A sweep whose terms are fixed."""
    changes = [] if rule == "public" else [f"search.selection={rule}", "search.public={}", "base.pretrain.text=[]"]
    config = load_sweep_config(RECIPE, ["search.trials=1000", "references.noiseless=null", *changes])
    folder = SweepDir(root)
    make_folder(folder.private, private=True)
    make_folder(folder.trials)
    dump_sweep_config(config, folder.config)
    fix_terms(config, folder)
    return config, folder


def add_trials(study: studies.Study, config: SweepConfig, folder: SweepDir, count: int) -> None:
    """Finishes trials at random points until there are so many, all with the ledger of one run."""
    allowance = allowance_of(config, folder)
    run = run_config(config, next(random_points(config)), allowance)
    plan, name = Plan.of(run), config.metric.name
    epsilon = epsilons(plan, charges([{"kind": "open", "header": plan.header()}]))[config.budget.unit]
    sampler = mock.patch.object(studies, "_sampler", lambda _, number: RandomSampler(seed=number))
    with sampler, mock.patch.object(studies, "judge", return_value=Verdict(run, "", 0.0)):
        while len(study.trials) < count:
            number = study.ask(allowance).number
            ledger = Ledger.create(make_folder_of(folder, number) / "ledger.jsonl", plan.header())
            for index in range(2):
                ledger.append(**plan.event(round_index=index, attempt=0))
            score = 100.0 + (7919 * number) % 1000 / 10
            known = dict.fromkeys((*config.metric.names, *config.metric.references), score)
            write_json(folder.runs(number)[0] / "result.json", known | {name: score, "rounds": 2})
            study.finish(number, score=score, epsilon=epsilon)
    study.close()


def make_folder_of(folder: SweepDir, number: int) -> Path:
    (run,) = folder.runs(number)
    make_folder(run / "private", private=True)
    return run


def proposals(rule: str, counts: list[int], profile: str | None) -> None:
    with tempfile.TemporaryDirectory() as work:
        config, folder = begun(rule, Path(work) / "sweep")
        allowance, taken = allowance_of(config, folder), Taken()
        study = studies.Study.open(config, folder.journal)
        study.fix_lag(AT_ONCE)
        for count in counts:
            add_trials(study, config, folder, count)
            study = studies.Study.open(config, folder.journal)
            changed = sweeps._on_change(study, GatheredRows(config, folder), config, folder, 10**4, SILENT)
            changed()
            searcher = StudySearcher(study, allowance, left=10**4, count_refused=False, changed=lambda: None)
            gc.collect()  # what was left by making the trials up
            taken = Taken()
            judging = taken.timed("judge", judge)
            profiler = None
            if profile and count == counts[-1]:
                import cProfile

                profiler = cProfile.Profile(time.process_time)
            for index in range(PROPOSALS):
                if profiler:
                    profiler.enable()
                with taken.on("ask"), mock.patch.object(studies, "judge", judging):
                    handed = searcher.suggest(str(index))
                assert isinstance(handed, dict)
                with taken.on("write"):
                    changed()
                with taken.on("calibrate"):
                    run = run_config(config, handed["point"], allowance_of(config, folder))
                    plan = Plan.of(run)
                ledger = Ledger.create(make_folder_of(folder, handed["number"]) / "ledger.jsonl", plan.header())
                for step in range(run.training.num_rounds):
                    ledger.append(**plan.event(round_index=step, attempt=0))
                known = dict.fromkeys((*config.metric.names, *config.metric.references), 99.0)
                write_json(
                    folder.runs(handed["number"])[0] / "result.json", known | {"rounds": run.training.num_rounds}
                )
                with taken.on("end"):
                    study.finish(handed["number"], score=99.0, epsilon=8.0)
                    changed()
                if profiler:
                    profiler.disable()
            if profiler:
                profiler.dump_stats(f"{profile}.{rule}")
            taken["ask"] -= taken["judge"]
            parts = ("ask", "judge", "write", "calibrate")
            shown = ", ".join(f"{name} {1000 * taken[name] / PROPOSALS:.1f}" for name in parts)
            whole = sum(taken[name] for name in parts)
            end = 1000 * taken["end"] / PROPOSALS
            print(
                f"{rule:12s} {count:6d} trials: {1000 * whole / PROPOSALS:6.1f} ms a proposal ({shown}); end {end:.1f}"
            )


RUNS = ("noised", "local", "repeated")


def rounds(kind: str, count: int) -> None:
    """Prints what a round costs the driver beside its training, among the first and among the last of so many."""
    base = load_sweep_config(RECIPE).base
    settings = {
        "training.passes": None,
        "training.num_rounds": count,
        "pretrain.text": [],
        "training.evaluate_every": count,
    }
    local = "local_dp_fedavg" if kind == "local" else "uedp"
    plan = Plan.of(methods.apply(base, local, settings | {"training.server_schedule": "constant"}))
    with tempfile.TemporaryDirectory() as work:
        run = RunDir(Path(work))
        make_folder(run.private, private=True)
        draw_key(run)
        header = plan.header() | {"config_digest": ledger_digest(run, plan.config)}
        ledger = Ledger.create(run.ledger, header)
        for _ in range(2 * SOME if kind == "repeated" else 0):
            ledger.append(**plan.event(round_index=0, attempt=0))
        parameters = torch.zeros(2)
        state = RoundState(parameters, server_optimizer(parameters, plan.config.training))
        unscored = Scored(dict.fromkeys(metric_of(plan.config).names), {})
        run.know(1)
        driver = RunDriver(run, plan, state, None, lambda: unscored, public_source=kind == "repeated")
        driver._left = count
        driver._record()
        taken = []
        for index in range(count):
            began = time.process_time()
            attempt = driver.admit(index)
            assert attempt is not None
            driver.charge(index, attempt)
            state.next_round = index + 1
            driver._tell()
            taken.append(time.process_time() - began)
    first, last = (1e6 * sum(some) / SOME for some in (taken[SOME : 2 * SOME], taken[-SOME:]))
    print(
        f"{kind:12s} {count:6d} rounds: {first:8.0f} us beside one of the first, {last:8.0f} us beside one of the last"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rules", default="public,composition")
    parser.add_argument("--trials", default="10,100,1000")
    parser.add_argument("--rounds", default="50,1000,5000")
    parser.add_argument("--profile")
    asked = parser.parse_args()
    for rule in filter(None, asked.rules.split(",")):
        proposals(rule, [int(count) for count in asked.trials.split(",")], asked.profile)
    for count in map(int, filter(None, asked.rounds.split(","))):
        for kind in RUNS:
            rounds(kind, count)


if __name__ == "__main__":
    main()
