"""Ordinary training on public text: the warm start of a private run.

Writes ``model/`` (weights, tokenizer and a sketch of the text), which ``model.warm_start`` names. Public text costs no
privacy, provided that it is public: a run on private text that shares much with the sketch is refused (``guard``), and so is
one that is scored on such text. ``pretrain`` compares the texts before it trains, where it can read them.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from uedp_ray.config import RunConfig, SourceConfig
from uedp_ray.corpus import readers
from uedp_ray.corpus.overlap import Hashes, Sketch, user_names
from uedp_ray.corpus.store import open_corpus
from uedp_ray.corpus.textsize import sampled_size, tell_cut, text_size
from uedp_ray.corpus.tokens import encoded
from uedp_ray.corpus.vocabulary import Vocabulary
from uedp_ray.errors import InputError
from uedp_ray.models.build import pretraining_head
from uedp_ray.models.isolation import ALONE
from uedp_ray.models.saved import longest_input, save_model
from uedp_ray.reporting import SILENT, Reporter
from uedp_ray.storage.files import make_folder, replacing, settle
from uedp_ray.storage.locks import INSIDE, folder_locked
from uedp_ray.storage.open import folder_only
from uedp_ray.tasks.base import Task, task_of
from uedp_ray.tasks.masked_word import MaskedWord
from uedp_ray.tasks.metric import UNKNOWN
from uedp_ray.tasks.metrics import MASKED_PERPLEXITY, PERPLEXITY, metric_of
from uedp_ray.tasks.next_word import NextWord
from uedp_ray.training.checks import check_pretraining
from uedp_ray.training.epochs import STEADY_NORM, mean_loss, seeded, shuffled
from uedp_ray.training.evaluate import score, scores_on
from uedp_ray.training.faults import blamed
from uedp_ray.training.guard import TEXT_SKETCH, Read, check_apart, check_public_text, check_start, name_other_users
from uedp_ray.training.network import initial_model
from uedp_ray.training.paths import for_use
from uedp_ray.training.placement import pick_device
from uedp_ray.training.run_vocabulary import make_vocabulary, public_sentences

_HELD_OUT = 50
"""One public sentence in this many is kept out of training, for the perplexity that is reported."""

_PRETRAIN_WAIT = 24 * 3600.0
"""Seconds to wait for another process that pre-trains the same model."""


def pretrain(config: RunConfig, out: Path, *, reporter: Reporter = SILENT) -> dict[str, Any]:
    """Trains all parameters with AdamW on ``pretrain.text`` and saves them under ``out``.

    Args:
      reporter: gets every step.

    Returns: perplexity and bits per byte before and after on held-out public sentences, the share of ``<unk>`` there, the
      checkpoint folder and, as ``evaluation.…``, the scores on ``corpus.evaluation``, where it and the private text can be
      read and share nothing.
    Raises: InputError if there is no public text, or ``out`` is not empty; TextError if the text is the private text of the
      same file, or its evaluation text, or if those two share text or users.
    """
    check_pretraining(config)
    out = folder_only(out).resolve()
    busy = InputError(
        "--out", str(out), "another process is at work in this folder: wait for it, or stop one of the two"
    )
    with folder_locked(out, wait=0.0, busy=busy):
        settle(out, {"model"})
        if out.exists() and not {path.name for path in out.iterdir()} <= {INSIDE}:
            raise InputError("--out", str(out), "is not empty: name another folder")
        reporter.say("comparing the public text with the private and the evaluation text")
        used = for_use(config).corpus
        protected = config.guarded
        private = _read(used.source) if protected else None
        evaluation = None if used.evaluation is None else _read(used.evaluation)
        check_public_text(config, *(None if text is None else text.text_sketch for text in (private, evaluation)))
        source = config.corpus.evaluation
        if private is not None and evaluation is not None and source is not None:
            check_apart(private, evaluation, "corpus.evaluation", source, name_other_users(source))
        result = pretrain_into(config, out, reporter=reporter)
        if evaluation is None or (protected and private is None):  # a score of protected text would be uncharged
            return result
        if not task_of(config.task.kind).head(config.task).predicts_words:  # the head is still to be trained
            return result
        checkpoint = result.pop("checkpoint")
        return result | _on_evaluation(config, checkpoint, reporter) | {"checkpoint": checkpoint}


class _Read(NamedTuple):
    text_sketch: Hashes
    user_names: Hashes


def _read(source: SourceConfig) -> Read | None:
    """What shows shared text; None if the text cannot be read here: it is compared when a run starts."""
    try:
        if source.format == "prepared":
            return open_corpus(source.path)
        sketch, users = Sketch(), set[str]()
        for sentence in readers.read(source):
            sketch.add(sentence.user, sentence.text)
            users.add(sentence.user)
        return _Read(sketch.hashes, user_names(users if readers.numbered(source) is None else ()))
    except (InputError, OSError):
        return None


def _on_evaluation(config: RunConfig, start: str, reporter: Reporter) -> dict[str, Any]:
    """The scores of the pre-trained model on ``corpus.evaluation``, as a sweep tells them before its first trial."""
    config = for_use(dataclasses.replace(config, model=dataclasses.replace(config.model, warm_start=start)))
    source, metric = config.corpus.evaluation, metric_of(config)
    assert source is not None  # it was read
    with blamed("training.batch_tokens", config.training.batch_tokens):
        row = scores_on(list(readers.read(source)), config, make_vocabulary(config))
    reporter.say(f"the public model on corpus.evaluation: {metric.told(row)}")
    if metric.continues_text and (caution := metric.worthless(row)):  # no public model knows labels
        reporter.say(f"caution: {caution}")
    told = (*metric.scores, *filter(None, [metric.yardstick]))
    return {score.on("evaluation"): row[score.name] for score in told}


def pretrain_into(
    config: RunConfig, out: Path, *, sharing: Sequence[RunConfig] = (), reporter: Reporter = SILENT
) -> dict[str, Any]:
    """``pretrain`` for callers that hold the lock of ``out``; its ``model`` is replaced as a whole.

    ``sharing``: as in ``make_vocabulary``.
    """
    check_pretraining(config)
    config = for_use(dataclasses.replace(config, model=dataclasses.replace(config.model, base_dtype="float32")))
    check_start(config)
    settings = config.pretrain
    make_folder(out)  # fail now, not after hours of training
    sketch = Sketch()
    vocabulary = make_vocabulary(config, sketch=sketch, sharing=sharing, reporter=reporter)
    head = pretraining_head(config.model)
    masked = head.kind == "masked-lm"
    if masked or config.task.kind != "next_word":
        what = "masked words" if masked else "next words"
        reporter.say(f"pre-training is on {what}, whatever task.kind is ({config.task.kind})")
    unread = _unread(config, vocabulary, reporter)
    task = (MaskedWord if masked else NextWord).of(vocabulary, config.model.max_length, config.task)
    train, held_out, held_out_texts = _split(config, vocabulary, task, sketch, reporter)
    device, bf16 = pick_device(config), config.training.precision == "bf16"
    with ALONE, seeded(device, settings.seed):
        model = initial_model(config, vocabulary, head).to(device)
        with seeded(device, settings.seed):  # so that the same words are masked before and after
            before = score(model, task, held_out, device=device, bf16=bf16)
        with blamed("pretrain.batch_size", settings.batch_size):
            _fit(config, model, task, train, device, reporter)
    with ALONE, seeded(device, settings.seed):
        after = score(model, task, held_out, device=device, bf16=bf16)
    with replacing(out / "model") as new:
        save_model(model, new)
        np.save(new / TEXT_SKETCH, sketch.hashes)
        vocabulary.save(new, longest=longest_input(model))
    size = text_size(held_out_texts, vocabulary, config.model.max_length)
    start, metric = task.scores(before, size), MASKED_PERPLEXITY if masked else PERPLEXITY
    return {
        **task.scores(after, size),
        **unread,
        **{each.initial: start[each.name] for each in metric.metrics},
        **metric.yardstick_of(size),
        "checkpoint": str((out / "model").resolve()),
    }


def _unread(config: RunConfig, vocabulary: Vocabulary, reporter: Reporter) -> dict[str, float]:
    """The share of ``<unk>`` in ``corpus.evaluation``, with a warning if it is large: of the pre-training text's own
    sentences hardly a word is unknown. Empty if there is none, or it cannot be read here, where nothing else needs it.
    """
    source = config.corpus.evaluation
    if source is None:
        return {}
    try:
        texts = (sentence.text for sentence in readers.read(source))
        found = {UNKNOWN.name: sampled_size(texts, vocabulary, config.model.max_length).unk_share}
    except (InputError, OSError):
        return {}
    if caution := metric_of(config).caution(found, "corpus.evaluation"):
        reporter.say(f"warning: {caution}")
    return {UNKNOWN.on("evaluation"): found[UNKNOWN.name]}


def _split(
    config: RunConfig, vocabulary: Vocabulary, task: Task, sketch: Sketch, reporter: Reporter
) -> tuple[list[np.ndarray], list[np.ndarray], list[str]]:
    """Token ids to train on, token ids held out, and the texts of the latter. Tells how much ``max_length`` cuts off."""
    texts, read = itertools.tee(public_sentences(config.pretrain.text, config.pretrain.max_words, sketch))
    train: list[np.ndarray] = []
    held_out: list[np.ndarray] = []
    held_out_texts: list[str] = []
    longest, cut = task.longest_text, [0]
    pairs = zip(texts, encoded(read, vocabulary, longest, cut), strict=True)
    for i, (text, ids) in enumerate((text, ids) for text, ids in pairs if len(ids)):
        if i % _HELD_OUT:
            train.append(ids)
        else:
            held_out.append(ids)
            held_out_texts.append(text)
    if not train:
        raise InputError("pretrain.text", f"{len(held_out)} sentences", "too few to train on: name more text")
    share = cut[0] / (cut[0] + sum(map(len, (*train, *held_out))))
    tell_cut(share, config.model.max_length, reporter, "of the public text")
    return train, held_out, held_out_texts


def _fit(
    config: RunConfig,
    model: torch.nn.Module,
    task: Task,
    sentences: list[np.ndarray],
    device: torch.device,
    reporter: Reporter,
) -> None:
    settings = config.pretrain
    optimizer = torch.optim.AdamW(model.parameters(), lr=settings.learning_rate, weight_decay=0.01)
    warm_up = max(1, settings.num_steps // 20)

    def rate(step: int) -> float:
        """Linear warm-up, then a cosine to a tenth."""
        if step < warm_up:
            return (step + 1) / warm_up
        return 0.55 + 0.45 * math.cos(math.pi * (step - warm_up) / max(1, settings.num_steps - warm_up))

    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, rate)
    bf16 = config.training.precision == "bf16"
    model.train()
    batches = _batches(sentences, settings.batch_size, np.random.default_rng(settings.seed))
    recent: list[torch.Tensor] = []
    for step in range(settings.num_steps):
        batch = task.collate([sentences[i] for i in next(batches)]).to(device)
        loss = mean_loss(model, task, batch, bf16=bf16)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), STEADY_NORM)
        optimizer.step()
        schedule.step()
        recent.append(loss.detach())  # that of one batch goes by how long its sentences are
        if (step + 1) % 20 == 0 or step + 1 == settings.num_steps:
            reporter.step(step + 1, settings.num_steps, float(torch.stack(recent).mean()))
            recent.clear()
    model.eval()


def _batches(sentences: list[np.ndarray], size: int, generator: np.random.Generator) -> Iterator[np.ndarray]:
    """Endless: one epoch after the other."""
    lengths = np.array([len(s) for s in sentences])
    while True:
        yield from shuffled(lengths, size, generator)


def warm_started(
    config: RunConfig, folder: Path, *, sharing: Sequence[RunConfig] = (), reporter: Reporter = SILENT
) -> RunConfig:
    """The config that starts from the model in ``folder``, which is pre-trained on public text if it does not exist yet.

    ``sharing``: others that are to start from it, as in ``make_vocabulary``.
    """
    busy = InputError("--out", str(folder), "another process is pre-training there: wait for it")
    folder = folder.resolve()
    with folder_locked(folder, wait=_PRETRAIN_WAIT, busy=busy):
        settle(folder)
        if not (folder / "model").exists():
            pretrain_into(config, folder, sharing=sharing, reporter=reporter)
    start = str((folder / "model").resolve())
    return dataclasses.replace(config, model=dataclasses.replace(config.model, warm_start=start))
