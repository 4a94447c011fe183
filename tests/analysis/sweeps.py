"""Sweep directories as ``uedp-ray sweep`` writes them, without training: only the perplexities are made up."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from uedp_ray import methods
from uedp_ray.config import RunConfig, dump_config, from_dict, to_dict
from uedp_ray.jsontext import to_json
from uedp_ray.plan import Plan, epsilons
from uedp_ray.privacy.ledger import Ledger
from uedp_ray.search.columns import TIMES
from uedp_ray.training.paths import with_absolute_paths
from uedp_ray.training.privacy_page import write_statement
from uedp_ray.units import UNITS

BASE = {
    "name": "small",
    "corpus": {
        "source": {"format": "synthetic", "num_users": 200},
        "declared_num_users": 200,
        "evaluation": {"format": "synthetic", "part": "held_out", "num_users": 20},
    },
    "bounds": {"mode": "enforced", "max_holders": 1, "holder_bound": "truncate", "entity_bound": "truncate"},
    "privacy": {"target_epsilon": 8.0, "sentence_clip_norm": 0.4},
    "training": {"evaluate_every": 2},
}
SPACE: dict[str, Any] = {
    "privacy.user_sampling_prob": {"log_uniform": ["5e-2", 0.5]},
    "training.num_rounds": {"integer": [10, 33], "step": 10},
    "training.server_learning_rate": {"log_uniform": [1.0e-3, 3.0e-2]},
    "model.trainable": {"choice": ["full", "lora"]},
    "model.lora_rank": {"choice": [2, 4, 8], "when": {"model.trainable": "lora"}},
}
UNUSUAL = {3: "failed", 5: "refused", 7: "stopped", 9: "running"}
"""Every ten trials one each. Of a sweep that is finished none runs: that one failed before its first round."""
RESUMED = 4
"""The trial that was started once more, 20 seconds after its start."""
_SCORES = ("perplexity", "bits_per_byte", "unk_share")
_INITIAL = {"initial_perplexity": 133.0, "initial_bits_per_byte": math.log2(133.0) / 5, "bzip2_bits_per_byte": 2.0}
REASONS = {
    "failed": "perplexity = nan: diverged at round 4",
    "refused": "privacy.target_epsilon = 8.0: no noise reaches it <script>alert('&')</script>",
    "stopped": "behind the median at round 6",
}
RELEASABLE = {
    "composition": "every trial, its configuration and its score",
    "repeat_and_select": "the winner, its score and its configuration, and nothing else",
    "public": "the winner; its ledger holds what it spent",
}


def write_sweep(
    path: Path,
    *,
    trials: int = 12,
    seeds: int = 1,
    rule: str = "composition",
    noise: str = "calibrated",
    unit: str = "user-entity",
    delta: float = 1e-5,
    space: dict[str, Any] | None = None,
    fixed: dict[str, Any] | None = None,
    noiseless: bool = True,
    finished: bool = True,
) -> Path:
    """Writes the directory and returns it; ``fixed`` settings are laid over the base."""
    path.mkdir(parents=True)
    space = SPACE if space is None else space
    free = {"privacy.target_epsilon": None, "privacy.noise_multiplier": 1.5} if noise == "free" else {}
    base = methods.overlay(
        from_dict(RunConfig, BASE), {"privacy.unit": unit, "privacy.delta": delta, **free, **(fixed or {})}
    )
    rows = [_trial(path, number, base, space, noise, seeds, finished) for number in range(trials)]
    done = sorted((row for row in rows if row["state"] == "done"), key=lambda row: row["perplexity"])
    best = done[0]
    for row in done:
        if seeds > 1:
            row["tied_with_best"] = row["perplexity"] - best["perplexity"] < best["perplexity_std"]
        row["pareto"] = not any(o["perplexity"] < row["perplexity"] and o["epsilon"] <= row["epsilon"] for o in done)
    pq.write_table(pa.Table.from_pylist(rows), path / "trials.parquet")
    settings = {
        "base": to_dict(base),
        "space": space,
        "budget": {"target_epsilon": 8, "delta": delta, "unit": unit, "noise": noise, "covers": "each_trial"},
        "search": {
            "searcher": "random" if rule == "repeat_and_select" else "tpe",
            "trials": trials,
            "seeds_per_trial": seeds,
            "early_stopping": "none",
            "selection": "default",
            "law": "logarithmic",
        },
        "resources": {"workers_per_trial": 1, "cpus_per_worker": 1, "gpus_per_worker": 0},
    }
    (path / "sweep.yaml").write_text(yaml.safe_dump(settings, sort_keys=False))
    if finished:
        (path / "result.json").write_text(to_json(_result(path, rows, best, space, rule, noiseless)))
    return path


def read_result(path: Path) -> dict[str, Any]:
    return json.loads((path / "result.json").read_text())


def _result(
    path: Path, rows: list[dict[str, Any]], best: dict[str, Any], space: dict[str, Any], rule: str, noiseless: bool
) -> dict[str, Any]:
    choice = {"composition": 41.2345, "repeat_and_select": 16.5432, "public": 0.0}[rule]
    states = [row["state"] for row in rows]
    price = {"delta": best["delta"], "unit": best["unit"], "accountant": "composition"}
    return {
        "best": {
            **{key: best[key] for key in ("trial", *_SCORES, *_INITIAL, "perplexity_std", "seeds", "delta", "unit")},
            "epsilon": {name: best[f"epsilon_{name}"] for name in UNITS},
            "epsilon_with_choice": choice or best["epsilon"],
            **{key: best[key] for key in ("noise_multiplier", "rounds", "planned_rounds")},
            "params": {key: best[key] for key in space if best[key] is not None},
            "run_dir": best["run_dirs"][0],
            "tied": [r["trial"] for r in rows if r["tied_with_best"] and r is not best] if best["seeds"] > 1 else None,
        },
        "pareto": [{key: row[key] for key in ("trial", "epsilon", "perplexity")} for row in rows if row["pareto"]],
        "trials": rows,
        "counts": {
            "asked": len(rows),
            **{state: states.count(state) for state in ("done", "stopped", "failed", "refused", "running")},
        },
        "selection": {
            "rule": rule,
            "epsilon": choice,
            **price,
            "settled_by_results": False,
            "releasable": RELEASABLE[rule],
            "text": f"The choice among {len(rows)} trials is paid by the rule {rule}.",
        },
        "references": [
            {"name": "public-only", "perplexity": 133.0, "epsilon": 0.0},
            *([{"name": "noiseless", "perplexity": 88.5, "epsilon": None}] if noiseless else []),
        ],
    }


def _point(number: int, space: dict[str, Any]) -> dict[str, Any]:
    generator = np.random.default_rng(number)
    point: dict[str, Any] = {}
    for key, spec in space.items():
        if all(point.get(other) == value for other, value in spec.get("when", {}).items()):
            point[key] = _draw(spec, generator)
        else:
            generator.random()
    return point


def _draw(spec: dict[str, Any], generator: np.random.Generator) -> Any:
    if "choice" in spec:
        return spec["choice"][int(generator.integers(len(spec["choice"])))]
    low, high = (float(v) for v in spec.get("log_uniform") or spec.get("uniform") or spec["integer"])
    if "integer" in spec:
        return int(low) + spec["step"] * int(generator.integers((int(high) - int(low)) // spec["step"] + 1))
    # Few different values: epsilon is solved for each, and solved ones are remembered.
    share = int(generator.integers(3)) / 2 if "user_sampling" in str(spec) or low >= 0.05 else generator.random()
    return low * (high / low) ** share if "log_uniform" in spec else low + share * (high - low)


def _trial(
    path: Path, number: int, base: RunConfig, space: dict[str, Any], noise: str, seeds: int, finished: bool
) -> dict[str, Any]:
    state = UNUSUAL.get(number % 10, "done")
    started = state != "running"
    state = state if started or not finished else "failed"
    point = _point(number, space)
    row: dict[str, Any] = {
        "trial": f"{number:04d}",
        "number": number,
        "state": state,
        "reason": REASONS.get(state),
        "feasible": state != "refused",
        "method": point.get("method"),
        **{key: point.get(key) for key in space},
        **dict.fromkeys((*_SCORES, "perplexity_std", *_INITIAL), None),
        "seeds": seeds,
        "tied_with_best": None,
        "pareto": False,
        **dict.fromkeys(("epsilon", *(f"epsilon_{name}" for name in UNITS)), None),
        "delta": base.privacy.delta,
        "unit": base.privacy.unit,
        **dict.fromkeys(("noise_multiplier", "rounds", "planned_rounds", "charged", *TIMES), None),
        "run_dirs": [],
    }
    if state == "refused":
        return row
    settings = dict(point)
    method = settings.pop("method", None)
    if noise == "free":
        settings["privacy.noise_multiplier"] = 1.5 + number % 4
    config = methods.apply(base, method, settings) if method else methods.overlay(base, settings)
    plan = Plan.of(config)
    rounds = config.training.num_rounds // (3 if state == "stopped" else 1)
    names = [f"{number:04d}"] if seeds == 1 else [f"{number:04d}-{seed}" for seed in range(seeds)]
    row["run_dirs"] = [f"trials/{name}" for name in names]
    perplexities = []
    for seed, folder in enumerate(row["run_dirs"]):
        run_config = dataclasses.replace(config, training=dataclasses.replace(config.training, seed=seed))
        final = _perplexity(run_config, rounds, number, seed)
        perplexities.append(final)
        spent = _write_run(path / folder, run_config, plan, rounds, final, started=started)
    row |= {"epsilon": spent[base.privacy.unit], **{f"epsilon_{name}": value for name, value in spent.items()}}
    row |= {
        "charged": rounds * seeds,
        "rounds": rounds,
        "planned_rounds": config.training.num_rounds,
        **dict(
            zip(TIMES, (30.0 * number, 30.0 * number + 20 if number == RESUMED else None, 3.5 * rounds), strict=True)
        ),
        **_INITIAL,
    }
    row["noise_multiplier"] = None if plan.mechanism is None else plan.mechanism.noise_multiplier
    if state == "running":
        row["seconds"] = None
    if state in ("done", "stopped"):
        row["perplexity"] = float(np.mean(perplexities))
        row["perplexity_std"] = float(np.std(perplexities, ddof=1)) if seeds > 1 else None
    if state == "done":
        row |= {"bits_per_byte": math.log2(row["perplexity"]) / 5, "unk_share": 0.0123}
    return row


def _perplexity(config: RunConfig, rounds: int, number: int, seed: int) -> float:
    rate = math.log(config.training.server_learning_rate / 0.012)
    share = math.log(config.privacy.user_sampling_prob / 0.3)
    chance = np.random.default_rng([number, seed]).normal()
    lora = 0.0 if config.model.trainable == "lora" else 7.0
    return 97.0 + 4.0 * rate**2 + 3.0 * share**2 + lora + 30.0 / rounds + 1.1 * chance


def _write_run(
    folder: Path, config: RunConfig, plan: Plan, rounds: int, final: float, *, started: bool
) -> dict[str, float]:
    folder.mkdir(parents=True)
    dump_config(with_absolute_paths(config), folder / "config.yaml")
    ledger = Ledger.create(folder / "ledger.jsonl", plan.header())
    spent = epsilons(plan, ledger.events)
    if started:
        for round_index in range(rounds):
            ledger.append(**plan.event(round_index=round_index, attempt=0))
        write_statement(folder / "privacy.md", plan, ledger.events, spent, detectors=["annotated"])
        curve = [
            {"round": r, "perplexity": final + (133.0 - final) * math.exp(-4 * r / rounds), "noise_std": 1.0}
            for r in range(0, rounds + 1, 2)
        ]
        pq.write_table(pa.Table.from_pylist(curve), folder / "rounds.parquet")
    return spent
