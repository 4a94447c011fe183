"""Scores a model on text that is public or declared to be outside the protected set.

Example:

    >>> import numpy as np
    >>> import torch
    >>> from uedp_ray.models.awd_lstm import AWDLSTM, AWDLSTMConfig
    >>> from uedp_ray.tasks.loss import perplexity
    >>> from uedp_ray.tasks.next_word import NextWord
    >>> from uedp_ray.training.evaluate import batches, score
    >>> model = AWDLSTM(AWDLSTMConfig(vocab_size=50, embedding_size=6, num_layers=1))
    >>> embedding = torch.nn.init.zeros_(model.embedding.weight)    # tied: every word is as likely as any other
    >>> task, sentences = NextWord(bos_id=0, eos_id=0, pad_id=0, max_length=64), [np.arange(1, n) for n in (30, 4, 25)]
    >>> loss, predictions = score(model, task, sentences, device=torch.device("cpu"))    # what the metric is made of
    >>> round(loss, 3), predictions, round(perplexity(loss, predictions), 3)
    (230.809, 59.0, 50.0)
    >>> [places.tolist() for places in batches([30, 4, 24, 16], batch_tokens=64)]    # by length, padded to 64 at most
    [[1, 3], [2, 0]]
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch

from uedp_ray.config import RunConfig
from uedp_ray.corpus.records import Sentence
from uedp_ray.corpus.store import open_corpus
from uedp_ray.corpus.textsize import text_size
from uedp_ray.corpus.tokens import annotate
from uedp_ray.corpus.vocabulary import Vocabulary
from uedp_ray.errors import InputError
from uedp_ray.models.isolation import ALONE
from uedp_ray.tasks.base import Task
from uedp_ray.tasks.metrics import metric_of
from uedp_ray.training.network import initial_model
from uedp_ray.training.paths import for_use
from uedp_ray.training.placement import pick_device
from uedp_ray.training.prepared import make_task
from uedp_ray.training.reduce import LocalReducer, Reducer, drivers_number
from uedp_ray.units import UNITS


def batches(lengths: Sequence[int] | np.ndarray, batch_tokens: int) -> Iterator[np.ndarray]:
    """Places of sentences of similar length, as many as fill a padded batch of at most ``batch_tokens`` positions.

    ``lengths``: positions of each sentence, as ``Task.length`` counts them. One that is longer than a batch is alone.
    """
    order = np.argsort(np.asarray(lengths), kind="stable")
    start = 0
    while start < len(order):
        stop = start + 1
        while stop < len(order) and (stop + 1 - start) * int(lengths[order[stop]]) <= batch_tokens:
            stop += 1
        yield order[start:stop]
        start = stop


@torch.no_grad()
def score(
    model: torch.nn.Module,
    task: Task,
    sentences: Sequence[np.ndarray],
    *,
    device: torch.device,
    batch_tokens: int = 8192,
    bf16: bool = False,
    rank: int = 0,
    num_workers: int = 1,
    reducer: Reducer = LocalReducer(),  # noqa: B008 (it has no state)
) -> tuple[float, ...]:
    """The task's ``sums`` over all ``sentences`` (as ``Task.annotated``). ``bf16``: under autocast, as the model is trained.

    Of several workers, all of whom must ask, each takes every so manieth batch. Batches are those of one worker, and the
    driver adds up their sums in the same order: it has the same bits. What others return is of their own batches.

    Raises: InputError if there is nothing to predict.
    """
    was_training = model.training
    model.eval()
    of_batches: list[tuple[float, ...]] = []
    for number, places in enumerate(batches([task.length(s) for s in sentences], batch_tokens)):
        of_batches.append(())
        if number % num_workers == rank:
            batch = task.collate([sentences[i] for i in places]).to(device)
            with torch.autocast(device.type, torch.bfloat16, enabled=bf16):
                of_batches[number] = tuple(task.sums(model, batch))
    model.train(was_training)
    if num_workers > 1:
        of_batches = _gathered(of_batches, reducer, device)
    sums = sum((np.array(each, np.float64) for each in of_batches if each), np.zeros(1))
    if reducer.is_driver and not sums[-1]:
        raise InputError(
            "corpus.evaluation", f"{len(sentences)} sentences", "holds no word to predict: name other text"
        )
    return tuple(sums.tolist())


def _gathered(of_batches: list[tuple[float, ...]], reducer: Reducer, device: torch.device) -> list[tuple[float, ...]]:
    """On the driver, the sums of every batch, each of which one worker has: the driver, the first."""
    width = max(map(len, of_batches), default=0)
    width = drivers_number(reducer, width, device)
    sums = torch.zeros(len(of_batches), width, dtype=torch.float64)
    for row, found in zip(sums, of_batches, strict=True):
        if found:
            row.copy_(torch.tensor(found, dtype=torch.float64))
    return [tuple(row) for row in reducer.sum_to_driver(sums.to(device)).tolist()]


def scores_on(read: Sequence[Sentence], config: RunConfig, vocabulary: Vocabulary) -> dict[str, Any]:
    """The scores, and the yardstick, of the model that ``config`` starts from."""
    device, task = pick_device(config), make_task(config, vocabulary)
    texts = [sentence.text for sentence in read]
    size = text_size(texts, vocabulary, config.model.max_length)
    with ALONE:
        model = initial_model(config, vocabulary).to(device)
        known = [*annotate(zip(read, texts, strict=True), vocabulary, task, kind=config.task.kind)]
        found = score(model, task, known, device=device, bf16=config.training.precision == "bf16")
    size = task.sized(size, known)
    return task.scores(found, size) | metric_of(config).yardstick_of(size)


def public_row(name: str, config: RunConfig, vocabulary: Vocabulary) -> dict[str, Any]:
    """The scores of a model that never saw the private corpus: its epsilon is 0 for every unit.

    ``config`` has prepared corpora; without ``model.warm_start`` the model is the untrained one.
    """
    config = for_use(config)
    assert config.corpus.evaluation is not None  # prepare_corpora refuses it
    corpus = open_corpus(config.corpus.evaluation.path)
    sentences = [sentence for _, found in corpus.sentences(every=True) for sentence in found]
    return {
        "name": name,
        **scores_on(sentences, config, vocabulary),
        "epsilon": dict.fromkeys(UNITS, 0.0),
        "delta": config.privacy.delta,
        "unit": config.privacy.unit,
        "noise_multiplier": None,
        "rounds": 0,
        "planned_rounds": 0,
        "private": True,
        "run_dir": config.model.warm_start or None,
    }
