"""Perplexity on text that is public or declared to be outside the protected set.

Perplexity = exp(mean negative log-likelihood of a token, natural logarithm) over all predicted tokens of the text: words
as the vocabulary cuts them, ``<unk>`` like any other token, and one sentence end a sentence; the sentence start is given.
Sentences longer than ``max_length`` count up to the cut. Figures with different vocabularies do not compare.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
import torch

from uedp_ray.errors import InputError
from uedp_ray.models.task import NextWord

Sentence = np.ndarray


def batches(lengths: Sequence[int] | np.ndarray, batch_tokens: int) -> Iterator[np.ndarray]:
    """Positions of sentences of like length, packed so that a padded batch has at most ``batch_tokens`` tokens."""
    order = np.argsort(np.asarray(lengths), kind="stable")
    start = 0
    while start < len(order):
        stop = start + 1
        while stop < len(order) and (stop + 1 - start) * (int(lengths[order[stop]]) + 2) <= batch_tokens:
            stop += 1
        yield order[start:stop]
        start = stop


@torch.no_grad()
def perplexity(
    model: torch.nn.Module,
    task: NextWord,
    sentences: Sequence[Sentence],
    *,
    device: torch.device,
    batch_tokens: int = 8192,
) -> float:
    """exp(total NLL / predicted tokens) of ``sentences`` ((length,) token arrays); infinity if it overflows.

    Raises: InputError if there is nothing to predict.
    """
    was_training = model.training
    model.eval()
    total, count = 0.0, 0
    for positions in batches([len(s) for s in sentences], batch_tokens):
        batch = task.collate([sentences[i] for i in positions]).to(device)
        nll, tokens = task.token_nll(model, batch)
        total += nll
        count += tokens
    model.train(was_training)
    if count == 0:
        raise InputError(
            "corpus.evaluation", f"{len(sentences)} sentences", "holds no word to predict: name other text"
        )
    mean = total / count
    return math.exp(mean) if mean < 700 else math.inf
