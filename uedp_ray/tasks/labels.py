"""What classification and tagging share: how a sentence with a label or tags is read, and what they refuse.

A sentence w1..wn is read as ``bos w1 .. wn eos``, cut to ``bos w1 .. wm eos`` at ``max_length``. One without tokens predicts
nothing, whatever its label: it is as good as null. What is known of a sentence is the array of its tokens followed by its
targets. All settings are public; the sentences, and their labels and tags, are private.
"""

from __future__ import annotations

import dataclasses
import itertools
from abc import abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Never, Self

import numpy as np
import torch
from torch import Tensor, nn

from uedp_ray.config.sections import TaskConfig
from uedp_ray.corpus.records import Sentence
from uedp_ray.corpus.textsize import TextSize
from uedp_ray.corpus.vocabulary import Vocabulary
from uedp_ray.errors import InputError
from uedp_ray.tasks.base import IGNORED, Batch, Task, forward_logits
from uedp_ray.tasks.loss import cross_entropy, of_sentences

_BATCH = 256


@dataclass(frozen=True, slots=True)
class Labelled(Task):
    """A task that predicts labels of a public list, in their order."""

    labelled: ClassVar[bool] = True
    missing: ClassVar[str] = "a sentence whose label is missing, or is none of these: list all, as it has them"
    """What a text that is refused has."""

    bos_id: int
    eos_id: int
    pad_id: int
    max_length: int
    labels: tuple[str, ...]

    @classmethod
    def of(cls, vocabulary: Vocabulary, max_length: int, config: TaskConfig) -> Self:
        if max_length < 3:
            raise InputError("model.max_length", max_length, "must be 3 or more: a token, and what is around it")
        return cls(vocabulary.bos_id, vocabulary.eos_id, vocabulary.pad_id, max_length, cls.named(config.labels))

    def require(self, sentence: Sentence) -> None:
        """Raises: InputError if a sentence does not fit."""
        if not self.fits(self.labels, sentence):
            self._refuse(self.labels, "the text")

    @classmethod
    def refuse(cls, config: TaskConfig, text: str) -> Never:
        cls._refuse(config.labels, text)

    @classmethod
    def _refuse(cls, labels: Sequence[str], text: str) -> Never:
        """Without a word of the text."""
        raise InputError("task.labels", list(labels), f"{text} has {cls.missing}")

    @property
    def longest_text(self) -> int:
        return self.max_length - 2

    def sized(self, size: TextSize, sentences: Iterable[np.ndarray]) -> TextSize:
        counts, remaining = np.zeros(0, np.int64), iter(sentences)
        while batch := list(itertools.islice(remaining, _BATCH)):
            targets = self.collate(batch).targets.numpy()
            found = np.bincount(targets[targets != IGNORED], minlength=len(counts))
            found[: len(counts)] += counts
            counts = found
        return dataclasses.replace(size, targets=int(counts.sum()), commonest=int(counts.max(initial=0)))

    @abstractmethod
    def num_tokens(self, sentence: np.ndarray) -> int:
        """n, of what is known of a sentence."""

    def length(self, sentence: np.ndarray) -> int:
        return 2 + self.num_tokens(sentence)

    def _framed(self, sentences: Sequence[np.ndarray], shape: tuple[int, int] | None) -> tuple[Tensor, Tensor]:
        """``input_ids`` and ``lengths`` of a batch."""
        tokens = [sentence[: self.num_tokens(sentence)] for sentence in sentences]
        return framed(tokens, self.bos_id, self.eos_id, self.pad_id, shape)

    def predicted(self, model: nn.Module, batch: Batch) -> tuple[Tensor, bool]:
        """The label that is predicted at each of ``batch.targets``, by its number; and whether all logits are finite."""
        logits = self.logits(model, batch)
        return logits.argmax(-1), bool(torch.isfinite(logits).all())

    def logits(self, model: nn.Module, batch: Batch) -> Tensor:
        """(…, C), one row for each of ``batch.targets``."""
        return forward_logits(model, batch)

    def losses(self, model: nn.Module, batch: Batch) -> Tensor:
        """(B,) mean negative log-likelihood (nats) over what each sentence predicts."""
        return of_sentences(cross_entropy(self.logits(model, batch), batch.targets), batch)


def framed(
    tokens: Sequence[np.ndarray], bos_id: int, eos_id: int, pad_id: int, shape: tuple[int, int] | None
) -> tuple[Tensor, Tensor]:
    """Tokens of each sentence -> (B, T) of ``bos w1 .. wn eos``, padded on the right, and their (B,) lengths.

    ``shape``: (B, T) to fill up to, with rows of ``bos eos``: each row attends to something.
    """
    lengths = [2 + len(words) for words in tokens]
    shape = shape or (len(tokens), max(lengths, default=2))
    input_ids, filled = np.full(shape, pad_id, np.int64), np.full(shape[0], 2, np.int64)
    input_ids[:, 0], input_ids[:, 1] = bos_id, eos_id
    for row, (words, length) in enumerate(zip(tokens, lengths, strict=True)):
        input_ids[row, 1 : length - 1] = words
        input_ids[row, length - 1], filled[row] = eos_id, length
    return torch.from_numpy(input_ids), torch.from_numpy(filled)
