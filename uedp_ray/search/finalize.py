"""What a finished search leaves behind: the winner, reference lines, ``trials.parquet`` and ``result.json``.

``result.json`` names run directories relative to the sweep's, as in any copy of it; the answer names them in full.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import os
import shlex
import statistics
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from uedp_ray import methods
from uedp_ray.config import RunConfig
from uedp_ray.errors import InputError
from uedp_ray.fields import Check, list_of, number, record, string
from uedp_ray.privacy.cautions import weakness
from uedp_ray.privacy.selection import PILOTS, TRAINS_ANEW, unpriced
from uedp_ray.reporting import Reporter
from uedp_ray.search.disk import drop_ended
from uedp_ray.search.export import export_best
from uedp_ray.search.feasibility import alone, judge, run_config
from uedp_ray.search.gpus import gpus_of_worker
from uedp_ray.search.layout import SweepDir, corpora_at
from uedp_ray.search.no_search import no_search
from uedp_ray.search.pilots import final_allowance
from uedp_ray.search.pool import RESTORE
from uedp_ray.search.proxies import agreement
from uedp_ray.search.public_model import public_scores
from uedp_ray.search.remote import Beside, workers_of_winner
from uedp_ray.search.results import Row, best, count_states, stated, write_table
from uedp_ray.search.selection_cost import cost_of_selection
from uedp_ray.search.space import Point
from uedp_ray.search.study import Study
from uedp_ray.search.sweep_config import SweepConfig, laid_over
from uedp_ray.search.sync import keep_terms, prepared
from uedp_ray.search.trial import pretrained, trial_base
from uedp_ray.storage.files import read_json, write_json
from uedp_ray.tasks.metric import Metric
from uedp_ray.training.host import train
from uedp_ray.training.paths import with_absolute_paths
from uedp_ray.training.rundir import RunDir, settle_run, unused
from uedp_ray.training.tryouts import kept_in


def finalize(
    config: SweepConfig,
    folder: SweepDir,
    rows: list[Row],
    beside: Beside,
    reporter: Reporter,
    study: Study | None = None,
) -> dict[str, Any]:
    """Trains what is left to train, writes ``trials.parquet`` and, last, ``result.json``, and returns its content.

    ``study`` keeps when the winner was trained.
    """
    for row in rows:
        for path in folder.runs(row["number"], config.suffixes):
            run = RunDir(path, folder.storage.child(path))
            if row["state"] in ("failed", "stopped") and run.private.is_dir():
                # A worker that outlives its trial may charge rounds for a while: not while the price is computed.
                with run.driving():
                    settle_run(run)  # a restart would do this, but there is none
                    if row["state"] == "stopped":  # of one that failed, its checkpoint may be all that there is
                        drop_ended(run)
    selection = cost_of_selection(config, folder, rows, reporter)
    references = _references(config, folder, beside, reporter)
    winner = _winner(config, folder, rows, selection, beside, reporter, study)  # last: its result is kept at once
    if config.search.rule in PILOTS and winner is not None:  # with what that was charged
        selection = cost_of_selection(config, folder, rows, reporter)
    write_table(rows, config, folder.table)
    base = config.at_base(rows)
    found = _best(config, folder, rows, selection, winner)
    answer = {
        "metric": config.metric.name,
        "best": found,
        "pareto": [
            {key: row[key] for key in ("trial", "epsilon", config.metric.name)}
            for row in sorted(rows, key=lambda row: (row["epsilon"] is None, row["epsilon"] or 0.0))
            if row["pareto"]
        ],
        "trials": rows,
        "base_trial": base["trial"] if base else None,
        "no_search": no_search(config, rows, found),
        "counts": count_states(rows),
        "agreement": agreement(config, rows),
        "selection": selection,
        "references": references,
        "winner_trained": study and study.winner_trained,
    }
    write_json(folder.result, answer)
    folder.storage.publish(folder.config, folder.terms, folder.journal, folder.table, folder.tensorboard, folder.result)
    return _answered(config, folder)


def _answered(config: SweepConfig, folder: SweepDir) -> dict[str, Any]:
    """Returns ``result.json`` with full addresses, what readers of it must know (``cautions``), and the command that makes
    the folder to hand on.
    """
    fields = {"best": record({}, nothing=True), "references": list_of(_reference(config.metric))}
    answer = read_json(folder.result, fields, "recreate it with uedp-ray sweep … --resume")
    for row in filter(None, [answer["best"], *answer["references"]]):
        row["run_dir"] = row["run_dir"] and folder.storage.address(folder.root / row["run_dir"])
    address = folder.storage.address(folder.root)
    answer = {"metric": config.metric.name} | answer  # a file of an earlier version has none
    best: dict[str, Any] = answer["best"] or {}
    weak = weakness(best.get("epsilon_with_choice") or math.inf)
    answer["cautions"] = weak + config.metric.cautions(best, public=config.starts_public)
    return answer | {"sweep_dir": address, "export": f"uedp-ray export {shlex.quote(address)} --out DIR"}


_WINNER = "winner"
"""A key of the terms of a rule whose winner is trained anew, present once one was started."""
SECOND_WINNER = (
    "the winner was trained on the private text already, and another one would be a second release that the price does "
    "not cover: search in another folder, and add its epsilon to this one's"
)


def begun_winner(folder: SweepDir) -> RunDir | None:
    """Returns the winner of rule ``public`` if anything was charged for it: it was released, as far as anyone can tell.

    Raises: InputError if a winner was started, or chosen, whose charges are missing: another one would be uncharged.
    """
    run = RunDir(folder.winner, folder.storage.child(folder.winner))
    run.storage.get(run.config, run.result)
    run.storage.restore(run.ledger)
    begun = run.config.exists() and not unused(run)
    lost = marked(folder) and not run.storage.exists()
    if not (begun and run.ledger.exists()) and (lost or _chose(folder)):
        remedy = (
            "its ledger is missing, but what it pays for still counts: put winner/ back, or search in another folder and "
            "add its epsilon to this one's"
        )
        raise InputError("winner", str(folder.winner), remedy)
    return run if begun else None


def _begin_winner(folder: SweepDir) -> None:
    """Makes the winner's folder, then records it in the terms; returns once both are safe. Only then is it charged.

    A kill in between leaves a folder with nothing charged. A start that finds the record but no folder trains no other.
    """
    folder.begin(folder.winner)
    write_json(folder.terms, read_json(folder.terms, {}, RESTORE) | {_WINNER: "begun"})
    keep_terms(folder)


def marked(folder: SweepDir) -> bool:
    """Whether a winner was started. Raises: InputError if the terms no longer say so."""
    return folder.terms.exists() and _WINNER in read_json(folder.terms, {}, RESTORE)


def _chose(folder: SweepDir) -> bool:
    """Whether the sweep ended before, with a best trial. Raises: InputError if its result no longer says so."""
    folder.storage.get(folder.result)
    if not folder.result.exists():
        return False
    return read_json(folder.result, {"best": record({}, nothing=True)}, RESTORE)["best"] is not None


def _is_at(winner: RunDir, config: SweepConfig, point: Point) -> bool:
    """Whether the winner was trained at this point: applying the point to its config again changes nothing."""
    trained = winner.load_config()
    return with_absolute_paths(laid_over(trained, config, point)).digest() == trained.digest()


def _winner(
    config: SweepConfig,
    folder: SweepDir,
    rows: list[Row],
    selection: dict[str, Any],
    beside: Beside,
    reporter: Reporter,
    study: Study | None,
) -> dict[str, Any] | None:
    """Makes ``winner/`` and returns what is in it: a run on private text, or an export (``repeat_and_select``)."""
    found = best(rows, config.metric)
    if found is None or config.search.rule == "composition":
        return None
    if config.search.rule == "repeat_and_select":
        return _exported(config, folder, rows, selection, folder.root / min(found["run_dirs"]), reporter)
    if config.search.rule not in TRAINS_ANEW:
        raise unpriced(config.search.rule)
    point, begun = config.parsed_space.at(found), begun_winner(folder)
    allowance = alone(config) if config.search.rule == "public" else final_allowance(config, folder)
    if why := judge(config, point, allowance).reason:
        raise InputError("winner", found["trial"], f"its settings may not be trained on private text: {why}")
    if begun is not None and not _is_at(begun, config, point):
        raise InputError("--resume", folder.address, f"trial {found['trial']} is the best now, but {SECOND_WINNER}")
    if begun is None:
        _begin_winner(folder)
    if change := config.metric.harmed(found):
        reporter.say(
            f"caution: the best trial predicts worse than the model did before training ({change}), and so will the winner: "
            "to spend nothing on it, interrupt now, and search where steps are smaller, or passes more"
        )
    if config.search.rule == "public":
        base, part = prepared(config.base, folder, folder.private / "winner"), None
    else:  # its own epsilon is not that of the answer
        base, part = trial_base(config, folder).base, "sweep"
    winner = run_config(dataclasses.replace(config, base=base), point, allowance)
    named = dataclasses.replace(winner, name="winner")
    over = RunDir(folder.winner).result.exists()
    workers, told = 1, ""
    if not over:
        each = (found["seconds"] or 0.0) / len(config.runs_of_trial)
        workers = workers_of_winner(config, beside.open(), each)
        told = f", by {workers} workers" if workers > 1 else ""
    reporter.say(f"training the winner, by the settings of trial {found['trial']}, on private text{told}")
    with nullcontext() if study is None or over else study.training_winner(workers):
        return _train(named, folder, folder.winner, beside, config, reporter, part_of=part, workers=workers)


def _exported(
    config: SweepConfig, folder: SweepDir, rows: list[Row], selection: dict[str, Any], run: Path, reporter: Reporter
) -> dict[str, Any] | None:
    """Exports the best run to hand on; None if it may not be exported, which must not cost the sweep its result."""
    try:
        answer = export_best(config, folder, rows, selection, run, folder.winner, over=True)
    except InputError as error:
        before = ""
        if folder.winner.exists():  # it may not match the answer, and may hold files of others
            free = (folder.root / f"winner.withdrawn-{number}" for number in itertools.count(1))
            os.replace(folder.winner, withdrawn := next(path for path in free if not path.exists()))
            before = f"; what an earlier start exported is now {withdrawn.name}"
        reporter.say(f"the winner is not exported: {error}{before}")
        return None
    folder.storage.publish(folder.winner)
    return answer


def _references(config: SweepConfig, folder: SweepDir, beside: Beside, reporter: Reporter) -> list[dict[str, Any]]:
    known = _finalized(folder, config.metric)
    if known is not None:
        return known
    if not folder.has_bases(config.proxy_names):
        return []  # repeat_and_select may draw no trial at all
    folder.fetch()
    bases = {proxy: trial_base(config, folder, proxy).base for proxy in config.proxy_names}
    rows: dict[str, list[dict[str, Any]]] = {}
    if public := public_scores(config, folder, beside, reporter).rows:
        rows["public-only"] = list(public.values())
    settings = config.references.noiseless
    if settings is not None:
        of = "on the search's public text" if config.search.rule == "public" else "its scores are private"
        reporter.say(f"training without privacy, for reference ({of})")
        for proxy, base in bases.items():
            run, out = methods.apply(base, "noiseless", settings), folder.noiseless(proxy)
            done = _train(dataclasses.replace(run, name=out.name), folder, out, beside, config, reporter)
            rows.setdefault("noiseless", []).append(done)
    return [_summed_up(config, folder, name, on_each) for name, on_each in rows.items()]


def _summed_up(config: SweepConfig, folder: SweepDir, name: str, on_each: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Returns the row of a reference: its scores on all texts as a trial's are, the rest of the run on the first."""
    metric, first = config.metric, on_each[0]
    columns = config.score_columns.values()
    proxies = dict(zip(columns, (row[metric.name] for row in on_each), strict=True)) if columns else {}
    return {
        "name": name,
        **{each: _over(statistics.fmean, [row[each] for row in on_each]) for each in metric.names},
        metric.name: _over(metric.mean, [row[metric.name] for row in on_each]),
        **proxies,
        "epsilon": first["epsilon"][config.budget.unit],
        "rounds": first["rounds"],
        "planned_rounds": first["planned_rounds"],
        "run_dir": first["run_dir"] and _within(folder, first["run_dir"]),
    }


def _over(mean: Callable[[Sequence[float]], float], values: Sequence[Any]) -> float | None:
    return None if None in values else mean(values)  # a model without privacy may diverge


def _finalized(folder: SweepDir, metric: Metric) -> list[dict[str, Any]] | None:
    """Returns the references from an earlier end of this sweep: more trials do not change them."""
    try:
        known: list[dict[str, Any]] = read_json(folder.result, {"references": list_of(_reference(metric))}, "")[
            "references"
        ]
    except (OSError, InputError):
        return None
    return known


def _reference(metric: Metric) -> Check:
    """Returns the check of a reference that ``_references`` makes."""
    return record(
        {
            **metric.checks(nothing=False),
            "epsilon": number(0.0, nothing=True),
            **dict.fromkeys(("rounds", "planned_rounds"), number(0, whole=True, nothing=True)),
            "name": string(),
            "run_dir": string(nothing=True),
        }
    )


def _train(
    run: RunConfig,
    folder: SweepDir,
    out: Path,
    beside: Beside,
    config: SweepConfig,
    reporter: Reporter,
    part_of: str | None = None,
    workers: int | None = None,
) -> dict[str, Any]:
    """Trains as a trial is trained, or by so many workers, and completes the driver's copy of a run at a URL."""
    storage, resources = folder.storage.child(out), config.resources
    workers = resources.workers_per_trial if workers is None else workers
    if RunDir(out).result.exists():  # nothing is left to train
        return trained(run, folder, out, part_of, reporter)
    if workers == 1:
        result: dict[str, Any] = beside.run(trained, run, folder, out, part_of, reporter=reporter)
    else:  # the driver of a Ray Train group computes nothing
        result = train(
            beside.run(pretrained, run, folder),
            storage,
            workers=workers,
            cpus_per_worker=resources.cpus_per_worker,
            gpus_per_worker=gpus_of_worker(
                dataclasses.replace(resources, workers_per_trial=workers), config.device, beside.open(), wanted=1
            ),
            resume=storage.exists(),
            part_of=part_of,
            reporter=reporter,
        )
    done = RunDir(out, storage)
    done.close()
    storage.get(done.model, done.vocabulary)
    return result


def trained(config: RunConfig, folder: SweepDir, out: Path, part_of: str | None, reporter: Reporter) -> dict[str, Any]:
    """Trains the run in ``out`` in this process, from where it stopped, and returns its result."""
    folder.storage.get(*corpora_at(folder.private / "winner"))
    config = pretrained(config, folder, reporter)
    storage = folder.storage.child(out)
    with kept_in(folder.tryouts):
        return train(config, storage, workers=0, resume=storage.exists(), part_of=part_of, reporter=reporter)


def _best(
    config: SweepConfig,
    folder: SweepDir,
    rows: list[Row],
    selection: dict[str, Any],
    winner: dict[str, Any] | None,
) -> dict[str, Any] | None:
    answer = stated(rows, config)
    if answer is None:
        return None
    if winner is not None:
        answer["run_dir"] = folder.winner.name
    if winner is not None and config.search.rule in TRAINS_ANEW:  # the trials had other text, or less of the budget
        of_run = ("epsilon", "noise_multiplier", "rounds", "planned_rounds")
        answer |= {key: winner[key] for key in (*config.metric.names, *of_run)}
        answer |= {key: winner.get(key) for key in config.metric.references}  # an earlier version had fewer of them
        answer |= {config.metric.spread: None, "seeds": 1}
    own = answer["epsilon"][config.budget.unit]
    total = own if config.search.rule == "public" else selection["epsilon"]
    if own is not None:  # by another accountant, one run may come to a trace more than all of them
        total = max(own, total)
    answer["epsilon_with_choice"] = total
    return answer


def _within(folder: SweepDir, address: str) -> str:
    """Returns a path or URL inside the sweep, relative to it."""
    for root in (folder.storage.address(folder.root), str(folder.root.resolve())):
        if address.startswith(f"{root}/"):
            return address.removeprefix(f"{root}/")
    return ""
