"""What a finished search hands on: the winner's run, reference lines, ``trials.parquet`` and ``result.json``."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

from uedp_ray import methods
from uedp_ray.config import RunConfig, dump_config
from uedp_ray.files import write_json
from uedp_ray.sweep.candidates import run_config
from uedp_ray.sweep.config import SweepConfig
from uedp_ray.sweep.gather import prepared
from uedp_ray.sweep.layout import SweepDir
from uedp_ray.sweep.price import price
from uedp_ray.sweep.results import Row, best, count_states, stated, write_table
from uedp_ray.sweep.trial import started, trial_base
from uedp_ray.training.evaluate import warn_unknown
from uedp_ray.training.groundwork import public_row
from uedp_ray.training.host import Progress, train
from uedp_ray.training.rundir import RunDir, Say


def conclude(config: SweepConfig, folder: SweepDir, rows: list[Row], say: Say, progress: Progress) -> dict[str, Any]:
    """Trains what is left to train, writes ``trials.parquet`` and, last, ``result.json``, and returns what that holds."""
    warn_unknown(max((row["unk_share"] for row in rows if row["state"] == "done"), default=0.0), say)
    winner = _winner(config, folder, rows, say, progress)
    references = _references(config, folder, say, progress)
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
        "counts": count_states(rows),
        "selection": selection,
        "references": references,
        "sweep_dir": folder.storage.address(folder.root),
    }
    write_json(folder.result, answer)
    folder.storage.publish(folder.config, folder.terms, folder.journal, folder.table, folder.tensorboard, folder.result)
    return json.loads(folder.result.read_text())


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
            "bits_per_byte": row["bits_per_byte"],
            "unk_share": row["unk_share"],
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
    run_dir = folder.storage.address(folder.root / answer["run_dir"]) if winner is None else winner["run_dir"]
    answer |= {"epsilon_with_choice": selection["epsilon"], "run_dir": run_dir}
    if winner is not None and config.search.rule == "public":  # the trials were about other text
        scores = ("perplexity", "bits_per_byte", "unk_share", "epsilon")
        answer |= {key: winner[key] for key in scores} | {"perplexity_std": None, "seeds": 1}
        answer["epsilon_with_choice"] = winner["epsilon"][config.budget.unit]
    return answer
