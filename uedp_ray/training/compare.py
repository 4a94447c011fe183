"""One command from text to a table: what privacy costs on this corpus.

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
import shutil
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from uedp_ray import methods
from uedp_ray.config import (
    RunConfig,
    SourceConfig,
    dump_config,
    from_dict,
    load_config,
    parse_overrides,
    read_yaml,
    set_keys,
)
from uedp_ray.corpus.store import open_corpus
from uedp_ray.corpus.tokens import encode_texts
from uedp_ray.corpus.vocabulary import Vocabulary
from uedp_ray.errors import InputError, within
from uedp_ray.models.build import build_model
from uedp_ray.models.task import NextWord
from uedp_ray.training.evaluate import perplexity
from uedp_ray.training.host import Progress, pick_device, ray_session, train
from uedp_ray.training.pretrain import pretrain
from uedp_ray.training.rundir import Say, prepared_source, write_json


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
        base = from_dict(RunConfig, set_keys(tree["base"], parse_overrides(overrides)))
        variants, folders = {}, {"", "corpora", "pretrained"}
        for name, variant in ((str(key), value) for key, value in tree["variants"].items()):
            if not isinstance(variant, dict) or "method" not in variant or set(variant) - {"method", "set"}:
                raise InputError(f"variants.{name}", variant, "a variant has the keys method and set")
            if _slug(name) in folders:
                raise InputError("variants", name, f"its folder {_slug(name)!r} is taken: choose another name")
            folders.add(_slug(name))
            variants[name] = (variant["method"], variant.get("set", {}))
            methods.apply(base, *variants[name])  # refuse a bad variant before hours of work
        return cls(base, variants)


def compare(
    comparison: Comparison,
    out: Path,
    *,
    workers: int | None = None,
    resume: bool = False,
    say: Say = lambda message: None,
    progress: Progress = lambda row: None,
    pretrain_progress: Callable[[int, int, float], None] = lambda step, steps, loss: None,
) -> dict[str, Any]:
    """Runs every variant into ``out/<variant>/`` and returns ``{"rows": […], "out": …}``, also ``out/table.json``.

    A row holds name, perplexity, epsilon by accountant (None: no guarantee), delta, unit, rounds and run_dir.
    """
    if out.exists() and any(out.iterdir()) and not resume:
        raise InputError("--out", str(out), "is not empty: add --resume, or name another folder")
    _same_base(comparison.base, out / "base.yaml")
    config = _prepare_corpora(comparison.base, out, say)
    public = out / "pretrained"
    if not (public / "model" / "tokenizer.json").exists():
        say("pre-training on public text")
        shutil.rmtree(public, ignore_errors=True)
        pretrain(config, public, progress=pretrain_progress)
    untrained = config
    warm_start = str((public / "model").resolve())
    config = dataclasses.replace(config, model=dataclasses.replace(config.model, warm_start=warm_start))
    rows = [_public_row("untrained", untrained, warm_start), _public_row("public-only", config, warm_start)]
    num_workers = config.training.num_workers if workers is None else workers
    with ray_session(num_workers) if num_workers else nullcontext():
        rows += [
            _train_variant(comparison, name, config, out, num_workers, resume, say, progress)
            for name in comparison.variants
        ]
    table = {"rows": rows, "out": str(out.resolve())}
    write_json(out / "table.json", table)
    return table


def _same_base(base: RunConfig, path: Path) -> None:
    """What is prepared and pre-trained once under ``out`` is that of one base."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        dump_config(base, path)
    elif load_config(path).digest() != base.digest():
        raise InputError("--resume", str(path), "the comparison's base has changed: name another folder")


def _train_variant(
    comparison: Comparison,
    name: str,
    config: RunConfig,
    out: Path,
    num_workers: int,
    resume: bool,
    say: Say,
    progress: Progress,
) -> dict[str, Any]:
    """Trains a variant (no round of it if it is finished already) and returns its row."""
    variant = dataclasses.replace(methods.apply(config, *comparison.variants[name]), name=_slug(name))
    folder = out / _slug(name)
    say(f"training: {name}")
    resumable = resume and (folder / "config.yaml").exists()
    result = train(variant, folder, workers=num_workers, resume=resumable, say=say, progress=progress)
    return {"name": name, **{key: result[key] for key in _RESULT_KEYS}}


_RESULT_KEYS = ("perplexity", "epsilon", "delta", "unit", "noise_multiplier", "rounds", "private", "run_dir")


def _prepare_corpora(config: RunConfig, out: Path, say: Say) -> RunConfig:
    corpus = config.corpus
    if corpus.evaluation is None:
        raise InputError("corpus.evaluation", None, "a comparison needs text to compare on")
    say("preparing the corpora")
    with within("corpus.source"):
        private = prepared_source(corpus.source, out / "corpora" / "private")
    with within("corpus.evaluation"):
        held_out = prepared_source(corpus.evaluation, out / "corpora" / "evaluation")
    corpus = dataclasses.replace(
        corpus, source=SourceConfig(path=str(private)), evaluation=SourceConfig(path=str(held_out))
    )
    return dataclasses.replace(config, corpus=corpus)


def _public_row(name: str, config: RunConfig, vocabulary_folder: str) -> dict[str, Any]:
    """Perplexity of a model that never saw the private corpus: its epsilon is 0 whatever the unit."""
    vocabulary, device = Vocabulary.load(vocabulary_folder), pick_device(config)
    model = build_model(
        config.model, vocab_size=vocabulary.size, eos_id=vocabulary.eos_id, seed=config.training.seed
    ).to(device)
    assert config.corpus.evaluation is not None
    corpus = open_corpus(config.corpus.evaluation.path)
    texts = [text for _, user_texts in corpus.texts() for text in user_texts]
    sentences = encode_texts(texts, vocabulary, config.model.max_length)
    task = NextWord(vocabulary.eos_id, vocabulary.pad_id, config.model.max_length)
    zero = dict.fromkeys(("user-entity", "user", "entity"), 0.0)
    return {
        "name": name,
        "perplexity": perplexity(model, task, sentences, device=device),
        "epsilon": zero,
        "delta": config.privacy.delta,
        "unit": config.privacy.protect,
        "noise_multiplier": None,
        "rounds": 0,
        "private": True,
        "run_dir": config.model.warm_start or None,
    }


def _slug(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
