"""``sweep``: from a sweep file to the best model under a budget, on Ray Tune.

    answer = sweep(load_sweep_config("sweeps/quickstart.yaml"), Path("runs/quickstart"))
    answer["best"]["perplexity"], answer["best"]["epsilon_with_choice"]

Everything can be killed: the state is in the study's journal and each trial's own ledger and checkpoints, never in Ray.
"""

from __future__ import annotations

import dataclasses
import functools
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from uedp_ray.config import RunConfig
from uedp_ray.errors import InputError
from uedp_ray.privacy.selection import SECRET, TRAINS_ANEW
from uedp_ray.reporting import SILENT, Reporter
from uedp_ray.search.checks import check_sweep
from uedp_ray.search.disk import too_full
from uedp_ray.search.feasibility import alone, budget_cautions, check_reachable
from uedp_ray.search.finalize import SECOND_WINNER, begun_winner, finalize, marked
from uedp_ray.search.gpus import gpus_of_worker, idle
from uedp_ray.search.layout import SweepDir
from uedp_ray.search.preflight import Node, check_cluster
from uedp_ray.search.proxies import searched_bases
from uedp_ray.search.public_model import public_scores
from uedp_ray.search.remote import Beside, workers_of_winner
from uedp_ray.search.results import Row, Rows, progress, read_columns, write_table
from uedp_ray.search.searcher import StudySearcher
from uedp_ray.search.selection_cost import allowance_of, announced, charged_runs, fix_terms, planned_points
from uedp_ray.search.shared import prepare_shared
from uedp_ray.search.study import Study
from uedp_ray.search.sweep_config import SweepConfig, dump_sweep_config, load_kept
from uedp_ray.search.sync import GatheredRows, keep_terms, restore
from uedp_ray.search.tuning import tune_trials
from uedp_ray.storage.files import check_own, find_other, holds_others, make_folder, owner_only, settle
from uedp_ray.storage.locks import INSIDE
from uedp_ray.storage.open import open_storage
from uedp_ray.training.texts import CORPORA, copies_told

_NO_SWEEP = "is not empty and holds no sweep: name another folder"
_ADD_RESUME = "already holds a sweep: add --resume, or name another folder"


def sweep(
    config: SweepConfig,
    out: Path | str,
    *,
    address: str | None = None,
    resume: bool = False,
    reporter: Reporter = SILENT,
) -> dict[str, Any]:
    """Searches, and returns what ``result.json`` holds: best, pareto, trials, counts, selection, references, sweep_dir.

    Args:
      config: the sweep.
      out: the sweep directory, which every node must see under this path, or a URL (``storage.mirror``); new unless
        ``resume``.
      address: address of a running Ray cluster; None uses ``RAY_ADDRESS`` or this machine.
      resume: continue the sweep in ``out``; no trial runs twice.
      reporter: receives progress.

    Raises: InputError for what the user can fix; KeyboardInterrupt on Ctrl-C, after trials were stopped; OSError on a
    full disk. After any of them ``resume`` continues the sweep.
    """
    storage = open_storage(out)
    folder = SweepDir(storage.root, storage)
    secret = config.search.rule in SECRET  # all but the winner is private, even the number of trials
    with owner_only() if secret else nullcontext(), storage.exclusive():
        if storage.is_copy and storage.exists() and not resume:  # before this node's copy goes: its trials may run here
            raise InputError("--out", folder.address, _ADD_RESUME)
        storage.clear()
        check_own(folder.private)
        with folder.driving() if folder.private.is_dir() else nullcontext():  # not under one who did not see our lock
            settle(folder.root, folder.names)
            if folder.config.exists():  # else it is not ours
                for each in (folder.private, folder.tokens, folder.tryouts):
                    settle(each)
        restore(folder)
        _refuse(config, folder, resume)
        bases = searched_bases(config)
        if not folder.has_bases(config.proxy_names):  # else they were checked, and the text may no longer be here
            check_sweep(config, bases, reporter)
        check_reachable(config, alone(config))
        for caution in budget_cautions(config):
            reporter.say(f"caution: {caution}")
        if secret and config.trackers:
            reporter.say(
                f"caution: {', '.join(config.trackers)} will hold every trial, which rule {config.search.rule} keeps "
                "secret: whoever sees that server may see what the price does not cover"
            )
        make_folder(folder.root)
        if secret:
            storage.seclude()
        make_folder(folder.private, private=True)
        if not folder.config.exists():
            folder.mark.touch(mode=0o600)
        with folder.driving():
            storage.acquire()
            restore(folder)
            _refuse_second_winner(config, folder)
            _claim(config, folder)
            fix_terms(config, folder, reporter)
            keep_terms(folder)
            reporter.say(announced(config, folder))
            study = Study.open(config, folder.journal)
            rows = GatheredRows(config, folder)
            _refuse_cut(config, folder, study, rows)
            with Beside(config, address) as beside:
                _search(config, bases, folder, study, rows, beside, reporter)
                study.close()
                return finalize(config, folder, rows.read(study.trials), beside, reporter, study)


def _refuse(config: SweepConfig, folder: SweepDir, resume: bool) -> None:
    """Refuses a folder that holds anything but the sweep that is asked for."""
    if folder.root.exists() and not folder.root.is_dir():
        raise InputError("--out", folder.address, "is a file: name a folder")
    if not folder.config.exists():
        if resume:
            raise InputError("--out", folder.address, "holds no sweep to resume: check the name, or drop --resume")
        others = folder.root.exists() and holds_others(folder.root, (folder.private.name, INSIDE))
        if folder.private.is_dir() and not folder.mark.exists():  # a user's own of that name
            others = others or holds_others(folder.private, (folder.lock.name,))
        if others or _trained(folder):
            raise InputError("--out", folder.address, _NO_SWEEP)
    elif not folder.storage.is_copy and not _trained(folder):
        if not folder.mark.exists():  # a user's own file of that name
            raise InputError("--out", folder.address, _NO_SWEEP)
        # else a failed start may be fixed and tried again
    elif not resume:
        raise InputError("--out", folder.address, _ADD_RESUME)
    elif not folder.storage.exists():
        raise InputError("--resume", folder.address, "has no private/: it is a copy for reading, name the sweep itself")
    elif (kept := load_kept(folder.config, folder.terms)).digest() != config.digest():
        raise InputError("--resume", folder.address, f"{_other(kept, config, folder)}, or name another folder")


def _other(kept: SweepConfig, config: SweepConfig, folder: SweepDir) -> str:
    """Says what would have to be as it was when the sweep began."""
    as_then = dataclasses.replace(config, search=dataclasses.replace(config.search, trials=kept.search.trials))
    if as_then.digest() == kept.digest():
        return f"was begun for {kept.num_trials} trials, which its price is of: keep to them"
    as_then = dataclasses.replace(config, budget=dataclasses.replace(config.budget, covers=kept.budget.covers))
    if as_then.digest() == kept.digest():
        return f"was begun with another reading of the budget: add --set budget.covers={kept.budget.covers}"
    return f"is from another sweep file: resume with {folder.config}"


def _trained(folder: SweepDir) -> bool:
    """Whether anything was ever trained here. Its cost stays spent, whichever parts of it are missing: any trace counts."""
    made = (folder.winner, folder.references, folder.tokens)
    if any(path.is_dir() and any(path.iterdir()) for path in made) or any(folder.tensorboard.glob("*/[0-9]*")):
        return True
    if folder.started_runs() or folder.result.exists() or marked(folder) or _tells_of_trials(folder.table):
        return True
    return folder.journal.exists() and Study.open(load_kept(folder.config, folder.terms), folder.journal).began


def _tells_of_trials(table: Path) -> bool:
    """Whether ``trials.parquet`` has a trial that was not refused, or cannot be read."""
    try:
        return any(row["state"] != "refused" for row in read_columns(table, ["state"], ""))
    except (InputError, OSError):
        return True


def _refuse_second_winner(config: SweepConfig, folder: SweepDir) -> None:
    """Refuses more trials under rule ``public`` once the winner's training started: they might make another one the best.

    Also refuses any start where the winner was trained and its ledger is missing.
    """
    if config.search.rule not in TRAINS_ANEW or begun_winner(folder) is None:
        return
    if config.search.rule != "public" or not folder.journal.exists():
        return
    points = planned_points(config, folder)
    ended = Study.open(config, folder.journal).ended(count_refused=points is not None)
    if (config.num_trials if points is None else len(points)) > ended:
        remedy = f"{SECOND_WINNER}, or keep to {ended} trials"
        raise InputError("search.trials", config.num_trials, remedy)


def _claim(config: SweepConfig, folder: SweepDir) -> None:
    """Records the sweep; nothing is kept of another one, which never trained anything."""
    for file in (folder.terms, folder.journal):  # they would be recreated, with results known
        if not file.exists() and _trained(folder):
            remedy = "is missing, and trials have run under it: restore the sweep's copy, or search in another folder"
            raise InputError(file.name, str(file), remedy)
    kept = load_kept(folder.config, folder.terms) if folder.config.exists() else None
    if kept is not None and kept.digest() != config.digest():  # ``_refuse`` allows it
        copies = (*map(folder.corpora, kept.proxy_names), folder.private / "winner")
        for path in copies:
            if (other := find_other(path, CORPORA)) is not None:
                remedy = f"holds {other!r}, which no sweep makes: move it out of the folder, or name another one"
                raise InputError(path.name, str(path), remedy)
        for path in copies:
            shutil.rmtree(path, ignore_errors=True)
        for file in (folder.journal, folder.terms, folder.pool, folder.public_scores):
            file.unlink(missing_ok=True)
    dump_sweep_config(config, folder.config)


def _refuse_cut(config: SweepConfig, folder: SweepDir, study: Study, rows: Rows) -> None:
    """Refuses, before more is trained, a sweep whose journal or trials are missing: their price would be left out."""
    known, last = len(study.trials), max(folder.started_runs().values(), default=-1)
    if last >= known:
        remedy = f"knows {known} trials, but trials/ has number {last}: put the sweep's own, complete journal back"
        raise InputError("study.journal", str(folder.journal), remedy)
    lost = [str(folder.trials)] if study.began and not folder.trials.exists() else []  # made before the first starts
    charged = config.search.rule != "public"
    for number in study.placed if charged else ():
        lost += folder.lost(number, config.suffixes)
    if lost:
        remedy = "is missing, but what was trained there still counts: put it back, or search in another folder"
        raise InputError("trials", lost[0], remedy)
    if charged:
        folder.storage.get(folder.table)
        priced = read_columns(folder.table, ["trial", "charged"], "delete it: the search will rewrite it")
        stated = {row["trial"]: row["charged"] or 0 for row in priced}
        ended = [row for row in rows.read(study.trials) if row["state"] in ("done", "stopped", "failed")]
        charged_runs(config, folder, [row | {"charged": stated.get(row["trial"])} for row in ended])


def _search(
    config: SweepConfig,
    bases: Mapping[str, RunConfig],
    folder: SweepDir,
    study: Study,
    rows: Rows,
    beside: Beside,
    reporter: Reporter,
) -> None:
    """Runs the trials that are left. Raises: KeyboardInterrupt when interrupted; ``StudySearcher.failure`` if it is set."""
    points = planned_points(config, folder)
    study.plan(config.first_points if points is None else points)
    fixed, wanted = points is not None, config.num_trials if points is None else len(points)
    left = wanted - study.ended(count_refused=fixed)
    if left <= 0:
        return
    told = functools.partial(progress, wanted=wanted, sweep=config, count_refused=fixed)
    changed = _on_change(study, rows, config, folder, told, reporter)
    gpus, at_once = _check_room(config, folder, left, beside.open(), reporter)
    copy = "winner/private" if config.search.rule == "public" else f"{folder.corpora().name}/private"
    with copies_told(folder.private, reporter, copy, unless=lambda: bool(folder.started_runs())):
        prepare_shared(config, bases, folder, beside, reporter)
        if not folder.started_runs():  # in time to stop before the search
            public_scores(config, folder, beside, reporter)
    each = f", {gpus:g} GPU each" if gpus else ""
    if config.search.adaptive:
        lag = study.fix_lag(at_once)
        at_once = min(at_once, lag)
        each += f", each chosen by the results of those {lag} or more before it" if lag > 1 else ""
    reporter.say(f"searching: {left} trials, {at_once} at once{each}")
    slots = at_once if config.resources.workers_per_trial == 1 else None
    make_folder(folder.trials)
    searcher = StudySearcher(
        study, allowance_of(config, folder), left=left, count_refused=fixed, changed=changed, slots=slots
    )
    tune_trials(config, folder, searcher, at_once, gpus)


def _check_room(
    config: SweepConfig, folder: SweepDir, left: int, nodes: Sequence[Node], reporter: Reporter
) -> tuple[float, int]:
    """Runs the preflight; returns the GPUs of a worker, and how many trials run at once."""
    resources = config.resources
    gpus = gpus_of_worker(resources, config.device, nodes, left)
    room = check_cluster(
        workers_per_trial=resources.workers_per_trial,
        cpus_per_worker=resources.cpus_per_worker,
        gpus_per_worker=gpus,
        storage=folder.root,
        url=folder.storage.url,
    )
    if config.search.rule in TRAINS_ANEW:
        workers_of_winner(config, nodes, 0.0)  # which would be refused after the search
    at_once = min(room.trials_at_once, resources.max_concurrent or room.trials_at_once, left)
    unused = idle(nodes, at_once * resources.workers_per_trial, gpus)
    runs = left * len(config.suffixes)
    full = None if folder.storage.is_copy else too_full(config.base, runs, folder.root, at_once=at_once)
    for warning in (*room.warnings, unused, full):
        if warning:
            reporter.say(warning)
    return gpus, at_once


def _on_change(
    study: Study,
    rows: Rows,
    config: SweepConfig,
    folder: SweepDir,
    told: Callable[[list[Row]], dict[str, Any]],
    reporter: Reporter,
) -> Callable[[], None]:
    """Returns what is called after every change: it writes the table as trials end, and reports the state.

    At a URL the journal is safe there before a trial starts: the price counts the trials that it knows.
    """

    def begin(number: int) -> None:
        for run in folder.runs(number, config.suffixes):
            folder.begin(run)

    ended = [-1]
    begun: list[dict[int, str]] = [{}]

    def changed() -> None:
        study.place(begin)
        now = rows.read(study.trials)
        if begun[0] != (states := {row["number"]: row["state"] for row in now if row["state"] != "refused"}):
            folder.storage.append(folder.journal)
            begun[0] = states
        if ended[0] != (count := sum(row["state"] != "running" for row in now)):
            ended[0] = count
            write_table(now, config, folder.table)
            folder.storage.publish(folder.table)
        reporter.trials(told(now))

    return changed
