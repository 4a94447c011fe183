"""Exports a finished run for others: model, tokenizer, card, statement and ledger, the total first, and nothing internal.

    found = Finished.open(RunDir(Path("runs/mine")))
    export_run(found, Path("handed-on"), own_total(found), {})
    # README.md  privacy.md  model/  config.yaml  ledger.jsonl  selection.json  ledgers/

A run directory is for its owner: it holds paths, times and private files. The folder made here holds none of these: every
file is rewritten, only what is listed here is included, and all have one fixed date. ``search.export`` defines the total of
a run of a sweep.
"""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import safetensors.torch
from safetensors import SafetensorError

from uedp_ray.answers import export_epsilon
from uedp_ray.config import PrivacyConfig, RunConfig, as_yaml, to_dict
from uedp_ray.corpus.vocabulary import MOST_BYTES, Vocabulary
from uedp_ray.errors import InputError
from uedp_ray.models.saved import check_whole, longest_of
from uedp_ray.plan import Plan, cautions_of, epsilons
from uedp_ray.privacy.guarantee import guarantee_of
from uedp_ray.privacy.ledger import check_uncut, read_ledger
from uedp_ray.redact import DATE, published
from uedp_ray.storage.files import check_regular, read_json, replacing, write_json
from uedp_ray.storage.locks import INSIDE, folder_locked
from uedp_ray.tasks.metrics import metric_of
from uedp_ray.training.card import card
from uedp_ray.training.guard import TRAINED_HERE
from uedp_ray.training.prepared import planned
from uedp_ray.training.privacy_page import Total, write_statement
from uedp_ray.training.rundir import RunDir
from uedp_ray.units import RECORD

_SETTINGS = ("config.json", "generation_config.json", "tokenizer_config.json", "special_tokens_map.json")
_AS_THEY_ARE = ("tokenizer.json", "model.safetensors.index.json", "chat_template.jinja", TRAINED_HERE)
_FOLDERS = ("_name_or_path", "name_or_path", "tokenizer_file", "vocab_file", "merges_file", "special_tokens_map_file")
_OF_THE_RUN = (
    "# Settings of this run: privacy.target_epsilon is of it alone. The total that the model costs: privacy.md.\n"
)
_PLAY = 1 + 1e-9


@dataclass(frozen=True)
class Finished:
    """A finished run with a guarantee, and its epsilon by unit according to its own ledger."""

    run: RunDir
    config: RunConfig
    plan: Plan
    events: list[dict[str, Any]]
    spent: dict[str, float]
    result: dict[str, Any]
    setup: dict[str, Any]

    @property
    def epsilon(self) -> float:
        """Epsilon for the unit that the run protects."""
        return self.spent[self.config.privacy.unit]

    @classmethod
    def open(cls, run: RunDir) -> Finished:
        """Opens a run. Raises: InputError if it is unfinished or has no guarantee, or its ledger contradicts its result."""
        run.storage.get(run.config, run.setup, run.result, run.model)
        run.storage.restore(run.ledger)
        without = "has no private/, so it is a copy: export from the folder in which the run was made"
        if run.private.is_dir():
            without = "private/setup.json is missing: " + run.anew("run again with --resume to rebuild it")
        for path, remedy in (
            (run.config, "holds no run or sweep: name a folder that uedp-ray train or sweep wrote"),
            (run.result, "holds no finished run: " + run.anew("finish it first (--resume)")),
            (run.setup, without),
            (run.model / "config.json", "holds no model: it was removed"),
        ):
            if not path.is_file():
                raise InputError("RUN", str(run.root), remedy)
        try:
            check_whole(run.model)
        except InputError as error:
            raise InputError("RUN", str(run.root), f"{error.remedy}: restore the model's own files") from error
        config, events = run.load_config(), read_ledger(run.ledger)
        check_uncut(run.ledger, len(events), run.num_known)
        result, setup = run.load_result(metric_of(config)), run.load_setup()
        plan = planned(config, setup)
        plan.check_header(events[0]["header"], run.setup)
        spent = epsilons(plan, events)
        found = cls(run, config, plan, events, spent, result, setup)
        found._refuse_without_guarantee()
        if len({event.get("round") for event in events if event["kind"] == "round"}) < result["rounds"]:
            remedy = f"holds fewer rounds than the {result['rounds']} in result.json: restore the whole ledger"
            raise InputError("ledger.jsonl", str(run.ledger), remedy)
        stated = result["epsilon"].get(config.privacy.unit)
        if stated is None or found.epsilon * _PLAY < stated:
            remedy = f"its ledger gives less than the {stated} in result.json: restore the whole ledger"
            raise InputError("ledger.jsonl", found.epsilon, remedy)
        return found

    def _refuse_without_guarantee(self) -> None:
        privacy, header = self.config.privacy, self.events[0]["header"]
        if self.config.unit == RECORD or header.get("private") == RECORD:
            remedy = (
                f"hides one record, and no person (corpus.regroup: {self.config.corpus.regroup}): it is not exported"
            )
            raise InputError("RUN", str(self.run.root), remedy)
        if not self.plan.private or header.get("private") is not True or not math.isfinite(self.epsilon):
            noise = "test noise" if privacy.test_noise_seed is not None else f"noise: {privacy.noise}"
            remedy = f"is NOT PRIVATE ({noise}): it has no epsilon to publish, and only runs with one are exported"
            raise InputError("RUN", str(self.run.root), remedy)


def own_total(found: Finished) -> Total:
    """The total of a run that no sweep chose: its own epsilon."""
    text = (
        "The total is that of this run. If it was chosen by its results among others, tried by hand or otherwise, that "
        "choice is not included: compose their ledgers. Recompute: `uedp-ray epsilon --export .`"
    )
    return Total(found.epsilon, found.config.privacy.unit, "none", text)


def export_run(
    found: Finished,
    out: Path,
    total: Total,
    terms: Mapping[str, Any],
    *,
    ledgers: Mapping[int, Path] | None = None,
    name: str | None = None,
    over: bool = False,
) -> dict[str, Any]:
    """Writes ``out``, whole or not at all.

    Args:
      found: the run. ``total``: its epsilon is at least the run's.
      terms: what ``answers.export_epsilon`` needs, besides ledgers, to recompute the total; goes into ``selection.json``.
      ledgers: the ledger of every run that is charged, by position.
      name: the model's name, if not the run's.
      over: whether ``out`` may hold an earlier export.

    Returns: out, epsilon (the total), epsilon_of_run, rule, delta, unit, settled_by_results, cautions.
    Guarantees: no path of the owner's machine, no time, no user's text, no file but those listed above; what is written
    gives the stated total again.
    Raises: InputError where ``out`` holds something.
    """
    assert total.epsilon >= found.epsilon
    config, privacy, metric = published(found.config), found.config.privacy, metric_of(found.config)
    if name is not None:
        config = replace(config, name=name)
    out = out.resolve()
    busy = InputError("--out", str(out), "another process is at work in this folder: wait for it, or name another")
    with folder_locked(out, wait=0.0, busy=busy):
        if out.exists() and (not out.is_dir() or {path.name for path in out.iterdir()} - {INSIDE}) and not over:
            raise InputError("--out", str(out), "is not empty: name another folder")
        with replacing(out) as new:
            _write(found, config, total, terms, ledgers or {}, new)
    return {
        "out": str(out),
        "epsilon": total.epsilon,
        "epsilon_of_run": found.epsilon,
        "rule": total.rule,
        "delta": privacy.delta,
        "unit": total.unit,
        "settled_by_results": total.settled_by_results,
        "cautions": cautions_of(config, total.epsilon) + metric.cautions(found.result, public=config.starts_public),
    }


def _write(
    found: Finished,
    config: RunConfig,
    total: Total,
    terms: Mapping[str, Any],
    ledgers: Mapping[int, Path],
    new: Path,
) -> None:
    (new / "model").mkdir(parents=True)
    _write_model(found.run.model, new / "model")
    (new / "config.yaml").write_text(_OF_THE_RUN + as_yaml(config), encoding="utf-8")
    write_price(new, total, terms, found.run.ledger, ledgers, config.privacy)
    write_statement(
        new / "privacy.md",
        Plan(config, found.plan.mechanism),
        found.events,
        found.spent,
        rounds=found.result["rounds"],
        numbered=found.setup.get("numbered"),
        detectors=found.setup["detectors"],
        categories=found.setup["categories"],
        compared=found.setup["compared"],
        total=total,
        promised=[guarantee_of(each) for each in found.result.get("guarantees", ())],
    )
    model = new / "model"
    text = card(config, found.result, total, Vocabulary.load(model), longest=longest_of(model))
    (new / "README.md").write_text(text, encoding="utf-8")
    _refuse_traces(new, found)
    if not math.isclose(export_epsilon(new)["epsilon"], total.epsilon, rel_tol=1e-9):
        raise RuntimeError(f"{found.run.root}: the exported files do not give the total of {total.epsilon} again")
    _neutral(new)


def write_price(
    new: Path,
    total: Total,
    terms: Mapping[str, Any],
    ledger: Path,
    ledgers: Mapping[int, Path],
    privacy: PrivacyConfig,
) -> None:
    """Writes what ``answers.export_epsilon`` recomputes the total from: ``selection.json`` and the ledgers.

    ``ledger``: of the run that is handed on. ``terms``, ``ledgers``: as in ``export_run``.
    """
    named = {"ledger.jsonl": ledger}
    named |= {f"ledgers/{position:04d}.jsonl": path for position, path in ledgers.items()}
    for name, path in named.items():
        (new / name).parent.mkdir(exist_ok=True)
        _copy_ledger(path, new / name)
    stated = {
        "rule": total.rule,
        "delta": privacy.delta,
        "unit": privacy.unit,
        "epsilon": total.epsilon,
        "ledgers": {name: read_ledger(new / name)[-1]["digest"] for name in named},
    }
    write_json(new / "selection.json", stated | dict(terms))


def _write_model(model: Path, into: Path) -> None:
    """Weights and tokenizer. Libraries note where they read from, in settings and in the header of the weights."""
    for path in model.iterdir():
        if path.is_symlink():  # it could publish any file, by malice or mistake
            raise InputError("model", str(path), "is a link: replace it with the file itself")
    for name in _SETTINGS:
        if (model / name).exists():
            settings = read_json(model / name, {}, "restore the run's copy")
            for key in _FOLDERS:
                settings.pop(key, None)
            text = json.dumps(settings, indent=2, ensure_ascii=False)
            try:
                (into / name).write_text(text + "\n", encoding="utf-8")
            except UnicodeEncodeError:  # half a surrogate pair
                raise InputError(name, str(model / name), "is damaged: restore the run's copy") from None
    for name in _AS_THEY_ARE:
        if (model / name).exists():
            check_regular(model / name, "restore the run's copy", most=MOST_BYTES)
            shutil.copyfile(model / name, into / name)
    for weights in sorted(model.glob("*.safetensors")):
        check_regular(weights, "restore the run's copy")
        try:
            tensors = safetensors.torch.load_file(weights)
        except SafetensorError as error:
            raise InputError("model", str(weights), f"is damaged ({error}): restore the run's copy") from None
        safetensors.torch.save_file(tensors, into / weights.name, {"format": "pt"})


def _copy_ledger(ledger: Path, to: Path) -> None:
    """Copies the ledger's complete lines: what a torn line would pay for was never released."""
    content = ledger.read_bytes()
    to.write_bytes(content[: content.rfind(b"\n") + 1])


def _refuse_traces(folder: Path, found: Finished) -> None:
    """Checks the export once more. Raises: InputError if a path of the run is in any exported file."""
    paths = {str(found.run.root), *_paths(to_dict(found.config))}
    for file in sorted(path for path in folder.rglob("*") if path.is_file()):
        content = file.read_bytes()
        if any(path.encode() in content for path in paths):
            remedy = "holds a path of this machine, which would be published: give the model or the run another name"
            raise InputError("export", str(file.relative_to(folder)), remedy)


def _paths(tree: Any) -> Iterator[str]:
    """Absolute paths below the root anywhere in a configuration, including those in ``list:FILE``."""
    if isinstance(tree, dict | list):
        for value in tree.values() if isinstance(tree, dict) else tree:
            yield from _paths(value)
    elif isinstance(tree, str):
        for path in map(Path, (tree, tree.partition(":")[2])):
            if path.is_absolute() and len(path.parts) > 2:
                yield str(path)


def _neutral(folder: Path) -> None:
    """Gives every file one date and makes it readable by all, whatever this machine's defaults are."""
    for path in [*folder.rglob("*"), folder]:
        path.chmod(0o755 if path.is_dir() else 0o644)
        os.utime(path, (DATE, DATE))
