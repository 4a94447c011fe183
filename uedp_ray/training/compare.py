"""From text to a table of what privacy costs on this corpus, in one command.

A comparison file holds a base run and variants of it:

    base: {corpus: …, model: …, privacy: …}
    variants:
      private, epsilon 8: {method: uedp, set: {privacy.target_epsilon: 8}}
      non-private: {method: noiseless}

The corpora are prepared once, the model is pre-trained once, and every variant starts from it.
"""

from __future__ import annotations

import dataclasses
import re
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from uedp_ray import methods
from uedp_ray.config import (
    RunConfig,
    check_rounds,
    dump_config,
    from_dict,
    load_config,
    parse_overrides,
    read_yaml,
    set_keys,
)
from uedp_ray.config.io import of_file
from uedp_ray.corpus.store import open_corpus
from uedp_ray.corpus.vocabulary import Vocabulary
from uedp_ray.errors import InputError, within
from uedp_ray.fields import list_of, string
from uedp_ray.reporting import SILENT, Reporter
from uedp_ray.storage.base import Storage
from uedp_ray.storage.files import make_folder, read_json, replacing, settle, write_json
from uedp_ray.storage.locks import INSIDE
from uedp_ray.storage.open import folder_only
from uedp_ray.tasks.metric import metric_of
from uedp_ray.training.checks import (
    check_comparable,
    check_device,
    check_model,
    check_pretraining,
    check_unshared,
    check_workers,
)
from uedp_ray.training.evaluate import public_row
from uedp_ray.training.guard import check_public_text, check_unseen, check_warm_start
from uedp_ray.training.host import check_gpus, connected, ray_session, tell_cautions, train
from uedp_ray.training.paths import TEXT, for_use
from uedp_ray.training.pretrain import warm_started
from uedp_ray.training.rundir import RunDir
from uedp_ray.training.texts import copies_told, prepare_corpora


@dataclasses.dataclass(frozen=True)
class Comparison:
    """A base run and its variants, each (method, settings)."""

    base: RunConfig
    variants: dict[str, tuple[str, dict[str, Any]]]

    @classmethod
    def load(cls, path: Path, overrides: list[str]) -> Comparison:
        """Reads a comparison file; ``overrides`` (a.b=value) apply to the base."""
        tree = read_yaml(path)
        if set(tree) != {"base", "variants"} or not all(isinstance(part, dict) for part in tree.values()):
            raise InputError("config", str(path), "a comparison file has the two keys base and variants, both mappings")
        settings = parse_overrides(overrides)
        with of_file(path, {f"base.{key}": value for key, value in settings.items()}):
            tree["base"] = set_keys(tree["base"], settings)
            check_rounds(tree["base"].get("training"), settings)
            base = from_dict(RunConfig, tree["base"], "base.")
        variants, folders = {}, {"", "corpora", "pretrained"}
        for name, variant in ((str(key), value) for key, value in tree["variants"].items()):
            if not isinstance(variant, dict) or "method" not in variant or set(variant) - {"method", "set"}:
                raise InputError(f"variants.{name}", variant, "a variant has the keys method and set")
            if not isinstance(variant.get("set", {}), dict):
                raise InputError(f"variants.{name}.set", variant["set"], "expected a mapping of settings")
            if _slug(name) in folders:
                raise InputError("variants", name, f"its folder {_slug(name)!r} is taken: choose another name")
            folders.add(_slug(name))
            variants[name] = (variant["method"], variant.get("set", {}))
            with within(f"variants.{name}"):  # refuse a bad variant before hours of work
                check_unshared(base, methods.apply(base, *variants[name]))
        return cls(base, variants)


def compare(
    comparison: Comparison,
    out: Path,
    *,
    workers: int | None = None,
    resume: bool = False,
    reporter: Reporter = SILENT,
) -> dict[str, Any]:
    """Runs every variant into ``out/<variant>/`` and writes ``out/table.json``, the rows without run_dir.

    A variant may protect other categories (``corpus.categories``) of the one prepared corpus.

    Returns: ``{"rows": […], "out": …}``; a row holds name, the scores (perplexity, bits_per_byte, unk_share), epsilon by
      unit (None: no guarantee), delta, unit, rounds and run_dir.
    """
    storage = Storage(folder_only(out).resolve())
    num_workers = comparison.base.training.num_workers if workers is None else workers
    check_workers("--workers", num_workers)
    with storage.exclusive(), connected(num_workers):
        return _compare(comparison, storage.root, num_workers, resume, reporter)


def _compare(
    comparison: Comparison,
    out: Path,
    num_workers: int,
    resume: bool,
    reporter: Reporter,
) -> dict[str, Any]:
    settle(out, {"base.yaml", _STARTED, "table.json", "corpora", "pretrained"})
    found = {path.name for path in out.iterdir()} - {INSIDE} if out.exists() else set()
    if found and not resume:
        raise InputError("--out", str(out), "is not empty: add --resume, or name another folder")
    if found and "base.yaml" not in found:
        raise InputError("--resume", str(out), "holds no comparison: name another folder")
    if not (out / "base.yaml").exists():
        with within("base"):
            check_comparable(comparison.base, reporter)
            check_pretraining(comparison.base)
        for name, variant in comparison.variants.items():
            with within(f"variants.{name}"):
                config = for_use(methods.apply(comparison.base, *variant))
                check_device(config)
                check_gpus(config, num_workers)
                check_model(config)
    _same_base(comparison.base, out / "base.yaml")
    runs = [RunDir(out / _slug(name)) for name in comparison.variants]
    _refuse_lost(out)
    with copies_told(out / "corpora", reporter, "private", unless=lambda: any(run.played for run in runs)):
        reporter.say("preparing the corpora")
        untrained = prepare_corpora(comparison.base, out / "corpora", fixed=any(run.played for run in runs))
        used, source = for_use(untrained).corpus, comparison.base.corpus.evaluation
        for method, settings in comparison.variants.values():  # before hours of work
            open_corpus(used.source.path, methods.apply(untrained, method, settings).corpus.categories)
        assert used.evaluation is not None  # prepare_corpora refuses it
        assert source is not None
        private = open_corpus(used.source.path) if untrained.guarded else None
        evaluation = open_corpus(used.evaluation.path).text_sketch
        if not (out / "pretrained" / "model").exists():
            check_public_text(comparison.base, None if private is None else private.text_sketch, evaluation)
        reporter.say("pre-training on public text")
        config = warm_started(untrained, out / "pretrained", reporter=reporter)
        start = config.model.warm_start
        check_unseen(evaluation, source, start)
        if private is not None:
            check_warm_start(private, start)
        words = Vocabulary.load(start)
        rows = [public_row("untrained", untrained, words), public_row("public-only", config, words)]
        with ray_session(num_workers) if num_workers else nullcontext():
            rows += [
                _train_variant(comparison, name, config, out, num_workers, resume, reporter)
                for name in comparison.variants
            ]
    table = {"rows": rows, "out": str(out)}
    kept = {"rows": [{key: row[key] for key in row if key != "run_dir"} for row in rows]}
    write_json(out / "table.json", kept, private=any(row["private"] is False for row in rows))
    return table


_STARTED = "started.json"
"""The file that names the folders of variants whose training was started: a folder that is gone was lost."""


def _started(out: Path) -> list[str]:
    path = out / _STARTED
    return read_json(path, {"variants": list_of(string())}, "restore it")["variants"] if path.exists() else []


def _refuse_lost(out: Path) -> None:
    """Raises: InputError if a variant that was started is gone: training it again would release another model uncharged."""
    for name in _started(out):
        if not (out / name).is_dir():
            remedy = "is missing, and what it released still counts: put it back, or compare in another folder"
            raise InputError("--resume", str(out / name), remedy)


def _same_base(base: RunConfig, path: Path) -> None:
    """Refuses another base: what is prepared and pre-trained under ``out`` is shared."""
    if not path.exists():
        make_folder(path.parent)
        with replacing(path) as new:
            dump_config(base, new)
    elif load_config(path).digest() != base.digest():
        raise InputError("--resume", str(path), "the comparison's base has changed: name another folder")


def _train_variant(
    comparison: Comparison,
    name: str,
    config: RunConfig,
    out: Path,
    num_workers: int,
    resume: bool,
    reporter: Reporter,
) -> dict[str, Any]:
    """Trains a variant, unless it is already finished, and returns its row."""
    variant = dataclasses.replace(methods.apply(config, *comparison.variants[name]), name=_slug(name))
    folder = out / _slug(name)
    reporter.say(f"training: {name}")
    resumable = resume and (folder / "config.yaml").exists()
    make_folder(folder)
    write_json(out / _STARTED, {"variants": sorted({*_started(out), folder.name})})
    result = train(
        variant,
        folder,
        workers=num_workers,
        resume=resumable,
        text=out / "corpora" / TEXT,
        part_of="comparison",
        reporter=reporter,
    )
    tell_cautions(variant, result, reporter)
    metric = metric_of(config)
    known = {key: result[key] for key in (*metric.names, *_STATED)}
    return {"name": name, **known, **{key: result.get(key) for key in metric.yardstick_of(None)}}


_STATED = ("epsilon", "delta", "unit", "noise_multiplier", "rounds", "planned_rounds", "private", "run_dir")


def _slug(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
