"""Classification of sentences: each has one label of a public list.

    >>> from types import SimpleNamespace
    >>> import numpy as np
    >>> import torch
    >>> from uedp_ray.tasks.classify import Classify
    >>> task = Classify(bos_id=0, eos_id=1, pad_id=2, max_length=64, labels=("World", "Sports"))
    >>> batch = task.collate([np.array([5, 7, 9, 1]), np.array([4, 0])])    # tokens, then the number of the label
    >>> batch.input_ids.tolist(), batch.targets.tolist()
    ([[0, 5, 7, 9, 1], [0, 4, 1, 2, 2]], [1, 0])
    >>> def sports(input_ids, **_):    # a network that says the second label of every sentence
    ...     return SimpleNamespace(logits=torch.tensor([[0.0, 2.0]]).repeat(len(input_ids), 1))
    >>> [round(loss, 3) for loss in task.losses(sports, batch).tolist()]
    [0.127, 2.127]
    >>> task.sums(sports, batch)    # errors, and predictions
    (1.0, 2)

Error rate = sentences whose most likely label is not theirs, as a share of all; a sentence without tokens is not counted.
A network that has logits for every position (AWD-LSTM) is read at the last one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from uedp_ray.config.sections import TaskConfig
from uedp_ray.corpus.records import Sentence
from uedp_ray.corpus.textsize import TextSize
from uedp_ray.corpus.vocabulary import Vocabulary
from uedp_ray.tasks.base import IGNORED, Answer, Batch, Head, forward_logits, most_likely
from uedp_ray.tasks.labels import Labelled


@dataclass(frozen=True, slots=True)
class Classify(Labelled):
    """One label for each sentence. Known of it: its tokens, then the number of its label."""

    answer: ClassVar[Answer] = Answer("labels", {"label": str, "probability": float})

    @classmethod
    def head(cls, config: TaskConfig) -> Head:
        return Head("sequence-classification", len(config.labels))

    @classmethod
    def fits(cls, labels: Sequence[str], sentence: Sentence) -> bool:
        return sentence.label in labels

    def annotated(self, ids: np.ndarray, text: str, sentence: Sentence, vocabulary: Vocabulary) -> np.ndarray:
        self.require(sentence)
        return np.append(ids, self.labels.index(str(sentence.label))).astype(np.int32) if len(ids) else ids

    def made_up(self, positions: int, vocab_size: int, generator: np.random.Generator) -> np.ndarray:
        ids = generator.integers(1, vocab_size, max(1, positions - 2))
        return np.append(ids, generator.integers(len(self.labels)))

    def num_tokens(self, sentence: np.ndarray) -> int:
        return max(len(sentence) - 1, 0)

    def collate(self, sentences: Sequence[np.ndarray], shape: tuple[int, int] | None = None) -> Batch:
        input_ids, lengths = self._framed(sentences, shape)
        targets = np.full(len(input_ids), IGNORED, np.int64)
        targets[: len(sentences)] = [sentence[-1] if len(sentence) else IGNORED for sentence in sentences]
        return Batch(input_ids, torch.from_numpy(targets), lengths)

    def logits(self, model: nn.Module, batch: Batch) -> Tensor:
        logits = forward_logits(model, batch)
        return logits if logits.dim() == 2 else batch.last(logits)

    @torch.no_grad()
    def sums(self, model: nn.Module, batch: Batch) -> tuple[float, int]:
        """Errors and predictions."""
        predicted, finite = self.predicted(model, batch)
        counted = batch.targets != IGNORED
        errors = float(((predicted != batch.targets) & counted).sum()) if finite else math.nan
        return errors, int(counted.sum())

    def scores(self, sums: Sequence[float], size: TextSize) -> dict[str, float]:
        errors, count = sums
        return {"error_rate": errors / count, "unk_share": size.unk_share}

    def unlabelled(self, ids: np.ndarray) -> np.ndarray:
        return np.append(ids, np.int32(0))

    @torch.no_grad()
    def answers(
        self, model: nn.Module, batch: Batch, texts: Sequence[str], vocabulary: Vocabulary, *, top: int
    ) -> list[list[dict[str, Any]]]:
        """The most likely labels of each text, with their probabilities."""
        return [
            [{"label": self.labels[number], "probability": probability} for number, probability in row]
            for row in most_likely(self.logits(model, batch), top)
        ]


TASK = Classify
