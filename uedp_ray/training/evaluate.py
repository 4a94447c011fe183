"""Scores a model on text that is public or declared to be outside the protected set.

Example:

    >>> import numpy as np
    >>> import torch
    >>> from uedp_ray.models.awd_lstm import AWDLSTM, AWDLSTMConfig
    >>> from uedp_ray.tasks.next_word import NextWord
    >>> from uedp_ray.training.evaluate import batches, score
    >>> model = AWDLSTM(AWDLSTMConfig(vocab_size=50, embedding_size=6, num_layers=1))
    >>> embedding = torch.nn.init.zeros_(model.embedding.weight)    # tied: every word is as likely as any other
    >>> task, sentences = NextWord(bos_id=0, eos_id=0, pad_id=0, max_length=64), [np.arange(1, n) for n in (30, 4, 25)]
    >>> round(score(model, task, sentences, device=torch.device("cpu")), 3)    # by the task's metric
    50.0
    >>> [positions.tolist() for positions in batches([29, 3, 24], batch_tokens=64)]    # by length, padded to 64 at most
    [[1, 2], [0]]
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch

from uedp_ray.config import RunConfig
from uedp_ray.corpus.store import open_corpus
from uedp_ray.corpus.textsize import text_size
from uedp_ray.corpus.tokens import encode_texts
from uedp_ray.corpus.vocabulary import Vocabulary
from uedp_ray.errors import InputError
from uedp_ray.models.isolation import ALONE
from uedp_ray.tasks.base import Task, task_of
from uedp_ray.tasks.metric import metric_of
from uedp_ray.training.network import initial_model
from uedp_ray.training.paths import for_use
from uedp_ray.training.placement import pick_device
from uedp_ray.units import UNITS


def batches(lengths: Sequence[int] | np.ndarray, batch_tokens: int) -> Iterator[np.ndarray]:
    """Positions of sentences of similar length, packed so that a padded batch has at most ``batch_tokens`` tokens."""
    order = np.argsort(np.asarray(lengths), kind="stable")
    start = 0
    while start < len(order):
        stop = start + 1
        while stop < len(order) and (stop + 1 - start) * (int(lengths[order[stop]]) + 2) <= batch_tokens:
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
) -> float:
    """The task's metric over all ``sentences`` ((length,) token arrays).

    Raises: InputError if there is nothing to predict.
    """
    was_training = model.training
    model.eval()
    total, count = 0.0, 0
    for positions in batches([len(s) for s in sentences], batch_tokens):
        batch = task.collate([sentences[i] for i in positions]).to(device)
        part, predicted = task.sums(model, batch)
        total += part
        count += predicted
    model.train(was_training)
    if count == 0:
        raise InputError(
            "corpus.evaluation", f"{len(sentences)} sentences", "holds no word to predict: name other text"
        )
    return task.value(total, count)


def scores_on(texts: Sequence[str], config: RunConfig, vocabulary: Vocabulary) -> dict[str, Any]:
    """The scores, and the yardstick, of the model that ``config`` starts from."""
    device = pick_device(config)
    sentences = encode_texts(texts, vocabulary, config.model.max_length)
    task = task_of(config.task.kind).of(vocabulary, config.model.max_length)
    size = text_size(texts, vocabulary, config.model.max_length)
    with ALONE:
        found = score(initial_model(config, vocabulary).to(device), task, sentences, device=device)
    return task.scores(found, size) | metric_of(config).yardstick_of(size)


def public_row(name: str, config: RunConfig, vocabulary: Vocabulary) -> dict[str, Any]:
    """The scores of a model that never saw the private corpus: its epsilon is 0 for every unit.

    ``config`` has prepared corpora; without ``model.warm_start`` the model is the untrained one.
    """
    config = for_use(config)
    assert config.corpus.evaluation is not None  # prepare_corpora refuses it
    corpus = open_corpus(config.corpus.evaluation.path)
    texts = [text for _, user_texts in corpus.texts() for text in user_texts]
    return {
        "name": name,
        **scores_on(texts, config, vocabulary),
        "epsilon": dict.fromkeys(UNITS, 0.0),
        "delta": config.privacy.delta,
        "unit": config.privacy.unit,
        "noise_multiplier": None,
        "rounds": 0,
        "planned_rounds": 0,
        "private": True,
        "run_dir": config.model.warm_start or None,
    }
