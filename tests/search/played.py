"""Runs of a sweep that are played: real ledgers, checkpoints and budgets, of a model of two numbers and no text."""

from __future__ import annotations

import functools
import shutil
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal, cast
from unittest import mock

import torch

from uedp_ray.config import RunConfig
from uedp_ray.errors import InputError
from uedp_ray.plan import Plan
from uedp_ray.storage.files import make_folder
from uedp_ray.tasks.metrics import metric_of
from uedp_ray.training.driver import RunDriver, Scored
from uedp_ray.training.optimizers import server_optimizer
from uedp_ray.training.prepared import draw_key
from uedp_ray.training.reduce import LocalReducer
from uedp_ray.training.rounds import RoundState, run_rounds
from uedp_ray.training.rundir import RunDir
from uedp_ray.training.setup import _open_ledger
from uedp_ray.units import UNITS

Cut = Literal["killed", "torn", "lost", "interrupted"]
"""How a start ends: killed as a round was charged and before anything kept it; amid the next line of the ledger; and the
checkpoint is lost as well; or by Ctrl-C, which keeps the round."""


class _Killed(BaseException):
    pass


plan_of = functools.lru_cache(maxsize=4096)(Plan.of)


def play(
    config: RunConfig,
    out: Path,
    cuts: Sequence[tuple[int, Cut]],
    end: Literal["done", "failed", "cut"],
    *,
    part_of: str | None = "sweep",
) -> bool:
    """Plays a run that is cut off after so many rounds of each start, and then ends, diverges or is left as it is.

    Returns whether it ended.
    """
    for charges, cut in cuts:
        if _start(config, out, part_of, charges=charges, interrupted=cut == "interrupted"):
            return True  # before it could be cut off
        if cut == "torn":
            with RunDir(out).ledger.open("ab") as file:
                file.write(b'{"attempt":1')
        if cut == "lost":
            shutil.rmtree(RunDir(out).checkpoint, ignore_errors=True)
    if end == "cut":
        return False
    return _start(config, out, part_of, diverges=end == "failed")


def _start(
    config: RunConfig,
    out: Path,
    part_of: str | None,
    *,
    charges: int | None = None,
    interrupted: bool = False,
    diverges: bool = False,
) -> bool:
    run, plan = RunDir(out), plan_of(config)
    make_folder(run.private, private=True)
    begun = run.ledger.exists()
    if not begun:
        draw_key(run)
    ledger = _open_ledger(run, cast("Any", SimpleNamespace(config=config, part_of=part_of)), plan)
    for release in plan.header()["plan"]["releases"] if not begun else ():
        run.know(ledger.append(**release)["seq"] + 1)
    parameters = torch.zeros(2)
    state = RoundState(parameters, server_optimizer(parameters, config.training))
    unscored = Scored(dict.fromkeys(metric_of(config).names), {})
    driver = RunDriver(run, plan, state, None, lambda: unscored)
    charge, left = driver.charge, [charges]

    def charging(round_index: int, attempt: int) -> None:
        charge(round_index, attempt)
        if left[0] is not None:
            left[0] -= 1
        if left[0] == 0:
            raise KeyboardInterrupt if interrupted else _Killed
        if diverges:
            parameters.fill_(torch.inf)

    driver.charge = charging  # type: ignore[method-assign]
    # the epsilon beside each score, which no price is made of, and which takes longer than all the rest
    with mock.patch("uedp_ray.training.driver.epsilons", return_value=dict.fromkeys(UNITS, 0.0)), suppress(_Killed):
        try:
            driver.resume()
            run_rounds(
                state,
                num_rounds=config.training.num_rounds,
                local_sum=lambda *_: plan.zeros(2, torch.device("cpu")),
                reducer=LocalReducer(),
                driver=driver,
                after_round=driver.after_round,
            )
            return True
        except KeyboardInterrupt:
            driver.interrupted()
        except InputError as error:
            if "diverged" not in error.remedy:
                raise
    return False
