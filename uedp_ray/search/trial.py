"""One trial, in its own process: a point becomes one run per seed, and a report on how it ended.

    run_trial({"number": 7, "point": {"privacy.user_sampling_prob": 0.2}}, root="runs/s", report=print)

A trial that was killed resumes from its checkpoints; what it released stays charged in its own ledger.
"""

from __future__ import annotations

import dataclasses
import errno
import math
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from uedp_ray.config import RunConfig, load_config
from uedp_ray.errors import DeviceError, InputError, TextError
from uedp_ray.reporting import SILENT, Reporter
from uedp_ray.search.disk import drop_ended
from uedp_ray.search.feasibility import run_config
from uedp_ray.search.layout import SweepDir
from uedp_ray.search.proxies import score_of
from uedp_ray.search.selection_cost import allowance_of
from uedp_ray.search.space import Point
from uedp_ray.search.sweep_config import SweepConfig, load_kept
from uedp_ray.storage.base import Storage, StorageError
from uedp_ray.storage.open import open_storage
from uedp_ray.training.faults import blamed
from uedp_ray.training.host import train
from uedp_ray.training.pretrain import warm_started
from uedp_ray.training.rundir import RunDir
from uedp_ray.training.tryouts import kept_in

Report = Callable[[dict[str, Any]], None]
"""Receives ``round``, ``score`` (by the sweep's metric) and ``epsilon`` as the first seed is evaluated; at the end,
``outcome``, ``reason`` and ``noise_multiplier`` too."""

DONE, DISK = "done", "disk"
FAILED = "failed"
"""The point is to blame: it diverges, needs more memory than there is, or asks for the impossible."""
CRASHED = "crashed"
"""Something else is to blame: a bug, a missing file, a busy folder, too many open files."""
DEVICE = "device"
"""The GPU is to blame, and this process is no longer usable: CUDA does not recover."""
_SETTINGS = {section.name for section in dataclasses.fields(RunConfig)} - {"corpus"}
"""Sections of a run file whose errors are the point's fault; not that of the text, which all points share."""


def run_trial(trial: dict[str, Any], *, root: str | Storage, report: Report, gpus: float = 0.0) -> str:
    """Trains every seed of a trial. Never raises for a trial's failure: the outcome is reported, and returned.

    ``gpus``: GPUs of each worker of a Ray Train group; a trial of one worker takes what Ray gave this process.
    """
    storage = open_storage(root)
    folder = SweepDir(storage.root, storage)
    try:
        folder.fetch()
        sweep = load_kept(folder.config, folder.terms)
        with kept_in(folder.tryouts), blamed("training.batch_tokens", sweep.base.training.batch_tokens):
            ended = _train(sweep, folder, trial["number"], trial["point"], report, gpus)
        outcome, reason = (
            (DONE, "") if math.isfinite(ended["score"]) else (FAILED, f"its {sweep.metric.title} is not finite")
        )
    except Exception as error:
        outcome, reason = failure_of(error)
    if outcome != DONE:
        ended = {"round": 0, "score": math.inf, "epsilon": math.inf, "noise_multiplier": None}
    report({**ended, "outcome": outcome, "reason": reason})
    return outcome


def failure_of(error: Exception) -> tuple[str, str]:
    """Returns how a run ended by an error, and why, in words that hold no private text."""
    if isinstance(error, OSError):
        of_disk = isinstance(error, StorageError) or error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EIO)
        return DISK if of_disk else CRASHED, str(error)
    if isinstance(error, DeviceError):
        return DEVICE, str(error)
    if isinstance(error, TextError):  # all points were checked before the first trial: the text has changed
        return CRASHED, f"{error.field} is refused since the text was read again; how it fails stays private"
    if isinstance(error, InputError):
        return FAILED if error.field.split(".")[0] in _SETTINGS else CRASHED, str(error)
    last = traceback.extract_tb(error.__traceback__)[-1]  # its message might hold private text
    return CRASHED, f"{type(error).__name__} in {Path(last.filename).name}, line {last.lineno}"


def trial_base(sweep: SweepConfig, folder: SweepDir, proxy: str = "") -> SweepConfig:
    """Returns the sweep with the base that its trials share, on one of its texts."""
    return dataclasses.replace(sweep, base=load_config(folder.trial_base(proxy)))


def started(config: RunConfig, folder: SweepDir, reporter: Reporter = SILENT) -> RunConfig:
    """Returns the config, starting from the public model of its shape if there is public text to train it on."""
    if not config.pretrain.text:
        return config
    model, storage = folder.pretrained(config), folder.storage
    with storage.lock(model):
        storage.get(model)
        here = model.exists()
        config = warm_started(config, model, reporter=reporter)
        if not here:
            storage.publish(model)
    return config


def pretrained(config: RunConfig, folder: SweepDir, reporter: Reporter) -> RunConfig:
    """``started`` on any node."""
    folder.fetch()
    return started(config, folder, reporter)


def _train(
    sweep: SweepConfig, folder: SweepDir, number: int, point: Point, report: Report, gpus: float
) -> dict[str, Any]:
    allowance = allowance_of(sweep, folder)
    resources, unit, name = sweep.resources, sweep.budget.unit, sweep.metric.name

    class Evaluations(Reporter):
        def evaluated(self, row: dict[str, Any]) -> None:
            if row["round"] < config.training.num_rounds:  # a run at its end is not stopped early
                report({"round": row["round"], "score": row[name], "epsilon": row[f"epsilon_{unit}"]})

    configs = {
        proxy: started(run_config(trial_base(sweep, folder, proxy), point, allowance), folder)
        for proxy in sweep.proxy_names
    }
    results = []
    for place, (run, out) in enumerate(zip(sweep.runs_of_trial, folder.runs(number, sweep.suffixes), strict=True)):
        config = configs[run.proxy]
        training = dataclasses.replace(config.training, seed=config.training.seed + run.seed)
        storage = folder.storage.child(out)
        result = train(
            dataclasses.replace(config, name=out.name, training=training),
            storage,
            workers=0 if resources.workers_per_trial == 1 else resources.workers_per_trial,
            cpus_per_worker=resources.cpus_per_worker,
            gpus_per_worker=gpus,
            resume=storage.exists(),
            tokens=folder.tokens,
            text=folder.text(run.proxy),
            part_of="sweep",
            public_source=sweep.search.rule == "public",
            reporter=Evaluations() if place == 0 else SILENT,
        )
        results.append(result)
        drop_ended(RunDir(out, storage))
    scores = [result[name] for result in results]
    score = math.inf if None in scores else score_of(sweep, scores)
    spent = [result["epsilon"][unit] for result in results]
    return {  # null stands for what is not finite
        "round": results[0]["rounds"],
        "score": score,
        "epsilon": math.inf if None in spent else max(spent),
        "noise_multiplier": results[0]["noise_multiplier"],
    }
