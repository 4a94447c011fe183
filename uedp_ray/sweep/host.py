"""``sweep``: from a sweep file to the best model under a budget, on Ray Tune.

    answer = sweep(load_sweep_config("sweeps/quickstart.yaml"), Path("runs/quickstart"))
    answer["best"]["perplexity"], answer["selection"]["epsilon"]

Everything can be killed: the study's journal and each trial's own ledger and checkpoints are the state, never Ray's.
"""

from __future__ import annotations

import dataclasses
import io
import json
import logging
import os
import shutil
import uuid
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

from uedp_ray import methods
from uedp_ray.config import RunConfig, dump_config, from_dict, load_config, set_keys, to_dict
from uedp_ray.errors import InputError
from uedp_ray.plan import ACCOUNTANTS
from uedp_ray.sweep.candidates import check_reachable, run_config
from uedp_ray.sweep.config import SweepConfig, dump_sweep_config, load_sweep_config
from uedp_ray.sweep.feed import Feed
from uedp_ray.sweep.gather import GatheredRows, keep_terms, prepared, restore
from uedp_ray.sweep.layout import SweepDir, trial_id
from uedp_ray.sweep.preflight import check_cluster
from uedp_ray.sweep.price import fix_terms, planned_points, price
from uedp_ray.sweep.results import Row, Rows, best, write_table
from uedp_ray.sweep.study import Study
from uedp_ray.sweep.trial import run_trial, started, trial_base
from uedp_ray.training.groundwork import PretrainProgress, public_row
from uedp_ray.training.host import Progress, ray_session, train
from uedp_ray.training.locks import locked
from uedp_ray.training.rundir import RunDir, Say, private_folder, write_json
from uedp_ray.training.storage import open_storage

Show = Callable[[dict[str, Any]], None]
"""Told counts of trials by state, and the best so far, after every change."""

_LOCK_WAIT = 30.0
"""Seconds: what a killed driver left running ends sooner."""
_RETRIES = 3
"""Times that a trial whose process died is started anew: it goes on from its checkpoint."""


def sweep(
    config: SweepConfig,
    out: Path | str,
    *,
    address: str | None = None,
    resume: bool = False,
    say: Say = lambda message: None,
    show: Show = lambda status: None,
    progress: Progress = lambda row: None,
    pretrain_progress: PretrainProgress = lambda step, steps, loss: None,
) -> dict[str, Any]:
    """Searches, and returns what ``result.json`` holds: best, pareto, trials, counts, selection, references, sweep_dir.

    Args:
      config: the sweep.
      out: the sweep directory, which every node must see under this path, or a URL (``training.mirror``); new unless
        ``resume``.
      address: of a running Ray cluster; None uses ``RAY_ADDRESS`` or this machine.
      resume: go on with the sweep in ``out``; no trial runs twice.
      say, show, progress, pretrain_progress: told what goes on.

    Raises: InputError for what the user can mend; KeyboardInterrupt on Ctrl-C, after trials were stopped; OSError on a
    full disk. After any of them ``resume`` goes on.
    """
    storage = open_storage(out)
    folder = SweepDir(storage.root, storage)
    busy = InputError("--out", str(folder.root), "another process is running this sweep: stop one of the two")
    with storage.exclusive():
        storage.clear()
        restore(folder)
        _refuse(config, folder, resume)
        base = _searched_base(config)
        check_reachable(config)
        private_folder(folder.private)
        with locked(folder.lock, wait=_LOCK_WAIT, busy=busy):
            storage.take_over()
            restore(folder)
            _claim(config, folder)
            fix_terms(config, folder)
            keep_terms(folder)
            study = Study.open(config, folder.journal)
            rows = GatheredRows(config, folder)
            _search(config, base, folder, study, rows, address, say, show, pretrain_progress)
            winner = _winner(config, folder, rows.read(study.trials), say, progress)
            references = _references(config, folder, say, progress)
            return _conclude(config, folder, rows.read(study.trials), winner, references)


def _refuse(config: SweepConfig, folder: SweepDir, resume: bool) -> None:
    """Refuses a folder that holds anything but the sweep that is asked for."""
    if folder.root.exists() and not folder.root.is_dir():
        raise InputError("--out", str(folder.root), "is a file: name a folder")
    if not folder.config.exists():
        if resume:
            raise InputError("--out", str(folder.root), "holds no sweep to resume: check the name, or drop --resume")
        if folder.root.exists() and any(path != folder.private for path in folder.root.iterdir()):
            raise InputError("--out", str(folder.root), "is not empty and holds no sweep: name another folder")
    elif not folder.trials.exists() and folder.storage.url is None:
        return  # nothing of it was trained: what failed to start may be mended and tried again
    elif not resume:
        raise InputError("--out", str(folder.root), "holds a sweep already: add --resume, or name another folder")
    elif not folder.storage.begun():
        raise InputError(
            "--resume", str(folder.root), "has no private/: it is a copy for reading, name the sweep itself"
        )
    elif load_sweep_config(folder.config).digest() != config.digest():
        remedy = f"is of another sweep file: resume with {folder.config}, or name another folder"
        raise InputError("--resume", str(folder.root), remedy)


def _searched_base(config: SweepConfig) -> RunConfig:
    """The base of the trials: under rule ``public`` another text than the winner's."""
    if config.search.rule != "public":
        return config.base
    base = from_dict(RunConfig, set_keys(to_dict(config.base), config.search.public))
    if base.corpus.source == config.base.corpus.source:
        remedy = "rule public searches on public text: give corpus.source there"
        raise InputError("search.public", dict(config.search.public), remedy)
    return base


def _claim(config: SweepConfig, folder: SweepDir) -> None:
    """Writes the sweep down; of one that never trained anything, and is another, nothing is kept."""
    if not folder.trials.exists() and folder.config.exists():
        if load_sweep_config(folder.config).digest() != config.digest():
            for path in (folder.private / "corpora", folder.tokens):
                shutil.rmtree(path, ignore_errors=True)
        for file in (folder.journal, folder.terms, folder.pool):
            file.unlink(missing_ok=True)
    dump_sweep_config(config, folder.config)


def _search(
    config: SweepConfig,
    base: RunConfig,
    folder: SweepDir,
    study: Study,
    rows: Rows,
    address: str | None,
    say: Say,
    show: Show,
    pretrain_progress: PretrainProgress,
) -> None:
    """Runs the trials that are left. Raises: KeyboardInterrupt if it was interrupted; what ``Feed.failure`` says."""
    points = planned_points(config, folder)
    if points is not None:
        study.plan(points)
    wanted = config.num_trials if points is None else len(points)
    left = wanted - study.ended(count_refused=points is not None)
    if left <= 0:
        return
    changed = _teller(study, rows, config, folder, wanted, show)
    feed = Feed(study, left=left, count_refused=points is not None, changed=changed)
    with ray_session(1, address):
        at_once = _check_room(config, folder, left, say)
        _lay_ground(base, folder, say, pretrain_progress)
        say(f"searching: {left} trials, {at_once} at once")
        _tune(config, folder, feed, at_once)
    if feed.failure is not None:
        raise feed.failure
    if feed.unfinished:
        raise KeyboardInterrupt


def _lay_ground(base: RunConfig, folder: SweepDir, say: Say, progress: PretrainProgress) -> None:
    """Prepares what trials share, and the public model of the base."""
    say("preparing the corpora")
    if folder.storage.url and folder.trial_base.exists():  # the text need not be on this machine
        folder.fetch()
        base = load_config(folder.trial_base)
    else:
        base = prepared(base, folder, folder.private / "corpora")
        dump_config(base, folder.trial_base)
        folder.storage.put(folder.trial_base)
    if base.pretrain.text:
        say("pre-training on public text")
        started(base, folder, progress=progress)


def _check_room(config: SweepConfig, folder: SweepDir, left: int, say: Say) -> int:
    """The preflight; returns how many trials run at once."""
    resources = config.resources
    room = check_cluster(
        workers_per_trial=resources.workers_per_trial,
        cpus_per_worker=resources.cpus_per_worker,
        gpus_per_worker=resources.gpus_per_worker,
        storage=folder.root,
    )
    for warning in room.warnings:
        say(warning)
    return min(room.trials_at_once, resources.max_concurrent or room.trials_at_once, left)


def _teller(
    study: Study, rows: Rows, config: SweepConfig, folder: SweepDir, wanted: int, show: Show
) -> Callable[[], None]:
    """What is done after every change: the table is written as trials end, and whoever watches is told.

    At a URL the journal is safe there before a trial begins: the price counts the trials that it knows.
    """
    ended = [-1]
    begun: list[dict[int, str]] = [{}]

    def changed() -> None:
        now = rows.read(study.trials)
        if begun[0] != (states := {row["number"]: row["state"] for row in now if row["state"] != "refused"}):
            folder.storage.append(folder.journal)
            begun[0] = states
        if ended[0] != (count := sum(row["state"] != "running" for row in now)):
            ended[0] = count
            write_table(now, config, folder.table)
            folder.storage.publish(folder.table)
        show(_status(now, wanted))

    return changed


def _tune(config: SweepConfig, folder: SweepDir, feed: Feed, at_once: int) -> None:
    from ray import tune

    storage, resources = folder.storage, config.resources

    def trainable(trial: dict[str, Any]) -> None:
        run_trial(trial, root=storage, report=tune.report)

    # A Ray Train group takes its own resources, and Ray knows no trial that holds nothing: it holds a byte.
    alone = resources.workers_per_trial == 1
    taken = {"CPU": resources.cpus_per_worker, "GPU": resources.gpus_per_worker} if alone else {"memory": 1}
    tuner = tune.Tuner(
        tune.with_resources(trainable, taken),
        tune_config=tune.TuneConfig(
            search_alg=feed,
            scheduler=_scheduler(config),
            num_samples=-1,  # until the feed has no more
            max_concurrent_trials=at_once,
            reuse_actors=True,
            trial_name_creator=_name,
            trial_dirname_creator=_name,
        ),
        run_config=tune.RunConfig(
            name=f"search-{uuid.uuid4().hex[:8]}",  # Tune would resume one that it knows
            storage_path=str(folder.tensorboard),
            failure_config=tune.FailureConfig(max_failures=_RETRIES),
            callbacks=_trackers(config, folder),
            verbose=0,
        ),
    )
    for name in ("ray.tune", "tensorboardX"):  # the latter warns of the infinite perplexity of failed trials
        logging.getLogger(name).setLevel(logging.CRITICAL)
    with redirect_stdout(io.StringIO()):  # Tune prints banners even when told not to; the table says how trials ended
        tuner.fit()


def _name(trial: Any) -> str:
    return trial_id(trial.config["number"])


def _scheduler(config: SweepConfig) -> Any:
    from ray.tune.schedulers import ASHAScheduler, FIFOScheduler, MedianStoppingRule

    search = config.search
    common = {"time_attr": "round", "metric": "perplexity", "mode": "min"}
    if search.early_stopping == "asha":
        longest = max(_most_rounds(config), search.grace_rounds) + 1  # it stops whatever gets there
        return ASHAScheduler(max_t=longest, grace_period=search.grace_rounds, **common)
    if search.early_stopping == "median":
        return MedianStoppingRule(grace_period=search.grace_rounds, min_samples_required=3, **common)
    return FIFOScheduler()


def _most_rounds(config: SweepConfig) -> int:
    searched = config.parsed_space.get("training.num_rounds")
    return max(searched.ends) if searched else config.base.training.num_rounds


def _trackers(config: SweepConfig, folder: SweepDir) -> list[Any]:
    """Callbacks of Ray beside TensorBoard's, which Tune always has."""
    callbacks: list[Any] = []
    name = config.base.name
    if "mlflow" in config.trackers:
        from ray.air.integrations.mlflow import MLflowLoggerCallback

        callbacks.append(MLflowLoggerCallback(tracking_uri=os.environ.get("MLFLOW_TRACKING_URI"), experiment_name=name))
    if "wandb" in config.trackers:
        from ray.air.integrations.wandb import WandbLoggerCallback

        callbacks.append(WandbLoggerCallback(project=name, dir=str(folder.root)))
    return callbacks


def _status(rows: list[Row], wanted: int) -> dict[str, Any]:
    found = best(rows)
    return {
        **_counts(rows),
        "wanted": wanted,
        "best": found and {key: found[key] for key in ("trial", "perplexity", "epsilon", "unit")},
    }


def _counts(rows: list[Row]) -> dict[str, int]:
    states = [row["state"] for row in rows]
    return {"asked": len(rows)} | {
        state: states.count(state) for state in ("done", "stopped", "failed", "refused", "running")
    }


def _winner(
    config: SweepConfig, folder: SweepDir, rows: list[Row], say: Say, progress: Progress
) -> dict[str, Any] | None:
    """What is handed on instead of the best trial's directory, and its result: rules ``public``, ``repeat_and_select``."""
    found = best(rows)
    if found is None or config.search.rule == "composition":
        return None
    if config.search.rule == "repeat_and_select":
        return _exported(folder, folder.root / min(found["run_dirs"]))
    say(f"training the winner, trial {found['trial']}, on private text")
    point = {key: found[key] for key in config.parsed_space if found[key] is not None}
    base = prepared(config.base, folder, folder.private / "winner")
    winner = started(run_config(dataclasses.replace(config, base=base), point), folder)
    return _train(dataclasses.replace(winner, name="winner"), folder, folder.winner, config, progress)


def _exported(folder: SweepDir, run: Path) -> dict[str, Any]:
    """The run without its private part and without its number, which is as secret as how many there were."""
    folder.storage.part(run).get(run / "model", run / "vocabulary")
    shutil.rmtree(folder.winner, ignore_errors=True)
    shutil.copytree(run, folder.winner, ignore=shutil.ignore_patterns("private", "progress.json", ".whole"))
    exported = RunDir(folder.winner)
    dump_config(dataclasses.replace(exported.load_config(), name="winner"), exported.config)
    result = json.loads(exported.result.read_text()) | {"run_dir": folder.storage.address(folder.winner)}
    write_json(exported.result, result)
    folder.storage.publish(folder.winner)
    return result


def _references(config: SweepConfig, folder: SweepDir, say: Say, progress: Progress) -> list[dict[str, Any]]:
    if not folder.trial_base.exists():  # repeat_and_select may draw no trial at all
        return []
    folder.fetch()
    base = started(trial_base(config, folder).base, folder)
    rows = []
    if base.model.warm_start:
        say("scoring the public model")
        rows.append(public_row("public-only", base, base.model.warm_start))
    settings = config.references.noiseless
    if settings is not None:
        say("training without privacy, for reference")
        noiseless = dataclasses.replace(methods.apply(base, "noiseless", settings), name="noiseless")
        rows.append({"name": "noiseless", **_train(noiseless, folder, folder.noiseless, config, progress)})
    unit = config.budget.unit
    return [
        {
            "name": row["name"],
            "perplexity": row["perplexity"],
            "epsilon": row["epsilon"][unit],
            "run_dir": row["run_dir"],
        }
        for row in rows
    ]


def _train(run: RunConfig, folder: SweepDir, out: Path, config: SweepConfig, progress: Progress) -> dict[str, Any]:
    workers, storage = config.resources.workers_per_trial, folder.storage.part(out)
    return train(
        run,
        storage,
        workers=0 if workers == 1 else workers,
        cpus_per_worker=config.resources.cpus_per_worker,
        resume=storage.begun(),
        progress=progress,
    )


def _conclude(
    config: SweepConfig,
    folder: SweepDir,
    rows: list[Row],
    winner: dict[str, Any] | None,
    references: list[dict[str, Any]],
) -> dict[str, Any]:
    """Writes ``trials.parquet`` and, last, ``result.json``."""
    selection = price(config, folder, len(rows))
    write_table(rows, config, folder.table)
    answer = {
        "best": _best(config, folder, rows, selection, winner),
        "pareto": [
            {key: row[key] for key in ("trial", "epsilon", "perplexity")}
            for row in sorted(rows, key=lambda row: (row["epsilon"] is None, row["epsilon"]))
            if row["pareto"]
        ],
        "trials": rows,
        "counts": _counts(rows),
        "selection": selection,
        "references": references,
        "sweep_dir": folder.storage.address(folder.root),
    }
    write_json(folder.result, answer)
    folder.storage.publish(folder.config, folder.terms, folder.journal, folder.table, folder.tensorboard, folder.result)
    return json.loads(folder.result.read_text())


def _best(
    config: SweepConfig,
    folder: SweepDir,
    rows: list[Row],
    selection: dict[str, Any],
    winner: dict[str, Any] | None,
) -> dict[str, Any] | None:
    found = best(rows)
    if found is None:
        return None
    epsilon = {unit: found[f"epsilon_{unit}"] for unit in ACCOUNTANTS}
    run_dir = folder.storage.address(folder.root / min(found["run_dirs"]))
    answer = {key: found[key] for key in ("trial", "perplexity", "perplexity_std", "seeds", "noise_multiplier")}
    total = selection["epsilon"]
    if winner is not None:
        run_dir = winner["run_dir"]
    if winner is not None and config.search.rule == "public":  # the trials were about other text
        epsilon, total = winner["epsilon"], winner["epsilon"][config.budget.unit]
        answer |= {"perplexity": winner["perplexity"], "perplexity_std": None, "seeds": 1}
    tied = [row["trial"] for row in rows if row["tied_with_best"] and row is not found]
    return answer | {
        "epsilon": epsilon,
        "epsilon_with_choice": total,
        "delta": config.budget.delta,
        "unit": config.budget.unit,
        "params": {key: found[key] for key in config.parsed_space if found[key] is not None},
        "run_dir": run_dir,
        "tied": None if found["tied_with_best"] is None else tied,
    }
