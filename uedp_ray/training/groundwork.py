"""What runs on the same text share: corpora prepared once, a model pre-trained once, public models scored once.

config = prepare_corpora(config, out / "corpora")
config = warm_started(config, out / "pretrained")
row = public_row("public-only", config)
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

from uedp_ray.config import RunConfig, SourceConfig
from uedp_ray.corpus.store import open_corpus
from uedp_ray.corpus.tokens import encode_texts
from uedp_ray.corpus.vocabulary import Vocabulary
from uedp_ray.errors import InputError, within
from uedp_ray.models.build import build_model
from uedp_ray.models.task import NextWord
from uedp_ray.plan import ACCOUNTANTS
from uedp_ray.storage.files import make_folder, settle
from uedp_ray.storage.locks import folder_locked
from uedp_ray.training.evaluate import perplexity, text_size
from uedp_ray.training.guard import check_evaluation
from uedp_ray.training.paths import TEXT, for_use
from uedp_ray.training.placement import pick_device
from uedp_ray.training.pretrain import pretrain_into
from uedp_ray.training.rundir import keep_text, prepared_source

PretrainProgress = Callable[[int, int, float], None]
_PRETRAIN_WAIT = 24 * 3600.0
"""Seconds to wait for another process that pre-trains the same model."""


def prepare_corpora(config: RunConfig, folder: Path, *, fixed: bool = False) -> RunConfig:
    """The config with its private and evaluation text prepared under ``folder``, unless they are so already.

    ``fixed``: as in ``prepared_source``. Which text it is stays in ``folder`` (``TEXT``), for all that train on it.
    Raises: InputError if there is no evaluation text, it is the private text, or a protected category is not in that.
    """
    corpus = for_use(config).corpus
    if corpus.evaluation is None:
        raise InputError("corpus.evaluation", None, "name text to compare models on")
    make_folder(folder, private=True)
    settle(folder)  # what lies there complete is not prepared again, which would do it
    with within("corpus.source"):
        private = prepared_source(corpus.source, folder / "private", fixed=fixed)
    with within("corpus.evaluation"):
        held_out = prepared_source(corpus.evaluation, folder / "evaluation", protected=False, fixed=fixed)
    assert config.corpus.evaluation is not None
    one, other = open_corpus(private, corpus.categories), open_corpus(held_out)
    check_evaluation(one, other, config.corpus.evaluation)
    keep_text(folder / TEXT, one, other, fixed=fixed)
    corpus = dataclasses.replace(
        corpus, source=SourceConfig(path=str(private)), evaluation=SourceConfig(path=str(held_out))
    )
    return dataclasses.replace(config, corpus=corpus)


def warm_started(
    config: RunConfig, folder: Path, *, progress: PretrainProgress = lambda step, steps, loss: None
) -> RunConfig:
    """The config starting from the model in ``folder``, which is pre-trained on public text if it is not there yet."""
    busy = InputError("--out", str(folder), "another process is pre-training there: wait for it")
    folder = folder.resolve()
    with folder_locked(folder, wait=_PRETRAIN_WAIT, busy=busy):
        settle(folder)
        if not (folder / "model").exists():
            pretrain_into(config, folder, progress=progress)
    start = str((folder / "model").resolve())
    return dataclasses.replace(config, model=dataclasses.replace(config.model, warm_start=start))


def public_row(name: str, config: RunConfig, vocabulary_folder: str) -> dict[str, Any]:
    """Perplexity of a model that never saw the private corpus: its epsilon is 0 whatever the unit.

    ``config`` has prepared corpora; without ``model.warm_start`` it is the untrained model.
    """
    config = for_use(config)
    vocabulary, device = Vocabulary.load(vocabulary_folder), pick_device(config)
    model = build_model(
        config.model,
        vocab_size=vocabulary.size,
        bos_id=vocabulary.bos_id,
        eos_id=vocabulary.eos_id,
        seed=config.training.seed,
        replace_embeddings=config.vocabulary.replace_embeddings,
    ).to(device)
    assert config.corpus.evaluation is not None  # prepare_corpora refuses it
    corpus = open_corpus(config.corpus.evaluation.path)
    texts = [text for _, user_texts in corpus.texts() for text in user_texts]
    sentences = encode_texts(texts, vocabulary, config.model.max_length)
    task = NextWord(vocabulary.bos_id, vocabulary.eos_id, vocabulary.pad_id, config.model.max_length)
    size = text_size(texts, vocabulary, config.model.max_length)
    return {
        "name": name,
        **size.scores(perplexity(model, task, sentences, device=device)),
        "epsilon": dict.fromkeys(ACCOUNTANTS, 0.0),
        "delta": config.privacy.delta,
        "unit": config.privacy.protect,
        "noise_multiplier": None,
        "rounds": 0,
        "planned_rounds": 0,
        "private": True,
        "run_dir": config.model.warm_start or None,
    }
