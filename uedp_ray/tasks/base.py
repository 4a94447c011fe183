"""What private training needs of a task: a batch of sentences, and one loss for each that depends on that sentence alone.

    >>> from types import SimpleNamespace
    >>> import torch
    >>> from uedp_ray.config import TaskConfig, VocabularyConfig
    >>> from uedp_ray.corpus.vocabulary import build_vocabulary
    >>> from uedp_ray.tasks.base import task_of
    >>> vocabulary = build_vocabulary(VocabularyConfig(), public_text=lambda: iter(["the patient left ."]))
    >>> task = task_of("next_word").of(vocabulary, 64, TaskConfig())
    >>> batch = task.collate(vocabulary.encode_batch(["the patient left", "left"]))
    >>> len(batch), tuple(batch.input_ids.shape), (batch.targets >= 0).sum(1).tolist()    # and what each predicts
    (2, (2, 4), [4, 2])
    >>> def uniform(input_ids, **_):    # a network that knows nothing
    ...     return SimpleNamespace(logits=torch.zeros(*input_ids.shape, vocabulary.size))
    >>> vocabulary.size, [round(loss, 3) for loss in task.losses(uniform, batch).tolist()]    # (2,)
    (7, [1.946, 1.946])

``task.kind`` names a module of this room with a ``TASK``, and its metric in ``metric.METRICS``. What is known of a sentence
(its tokens, and its label or tags where the task asks for them) is one array, in an order that is the task's own.
Shape legend: B sentences, T positions, V vocabulary, C labels. The sentences are private.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple, Never, Self

import numpy as np
import torch
from torch import Tensor, nn
from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING_NAMES

from uedp_ray.components import drop_inherited, in_module
from uedp_ray.config.sections import TaskConfig
from uedp_ray.corpus.records import Sentence
from uedp_ray.corpus.textsize import TextSize
from uedp_ray.corpus.vocabulary import Vocabulary
from uedp_ray.errors import InputError

IGNORED = -100
"""Target of a position where nothing is predicted."""


class Head(NamedTuple):
    """What a network ends in, by the names of transformers."""

    kind: Literal["causal-lm", "masked-lm", "sequence-classification", "token-classification"] = "causal-lm"
    num_labels: int = 0
    """C, of a classification."""

    @property
    def predicts_words(self) -> bool:
        return self.kind in ("causal-lm", "masked-lm")


NEXT_WORD = Head()
"""The head of a causal language model."""


class Answer(NamedTuple):
    """What is said of a text: a list of records, which a file of answers has as the column ``key``."""

    key: str
    fields: Mapping[str, type]
    """The type of each value of a record: str, int (characters) or float (probabilities)."""


@dataclass(frozen=True, slots=True)
class Packing:
    """Where the N positions of sentences that share one row are in rows of their own, padded to (B, T).

    ``places``: (N,) int64, in those rows one after the other. ``filled``: (B, T), whether a position is one of a sentence.
    """

    places: Tensor
    filled: Tensor

    def spread(self, packed: Tensor) -> Tensor:
        """(N, ...) -> (B, T, ...), 0 where there is padding."""
        padded = packed.new_zeros(self.filled.numel(), *packed.shape[1:])
        return padded.index_copy(0, self.places, packed).unflatten(0, self.filled.shape)

    def gather(self, padded: Tensor) -> Tensor:
        """(B, T, ...) -> (N, ...)"""
        return padded.flatten(0, 1).index_select(0, self.places)

    def to(self, device: torch.device | str) -> Packing:
        return Packing(self.places.to(device), self.filled.to(device))


@dataclass(frozen=True, slots=True)
class Batch:
    """``input_ids`` (B, T) int64; ``targets`` int64, ``IGNORED`` where nothing is predicted: (B, T) for one per token, (B,)
    for one per sentence; ``lengths`` (B,) int64: positions before the padding, 1 or more.

    Where there is a ``packing``, sentences share one row, without padding: ``input_ids`` and ``targets`` (1, N).
    """

    input_ids: Tensor
    targets: Tensor
    lengths: Tensor
    packing: Packing | None = None

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, rows: slice) -> Batch:
        return Batch(self.input_ids[rows], self.targets[rows], self.lengths[rows])

    def packed(self) -> Batch:
        """The same sentences, with a target for each token, in one row (``models.packed``); itself, where none is padded."""
        filled = torch.arange(self.input_ids.shape[1], device=self.lengths.device) < self.lengths[:, None]
        if bool(filled.all()):
            return self
        packing = Packing(filled.flatten().nonzero()[:, 0], filled)
        input_ids, targets = (packing.gather(each)[None] for each in (self.input_ids, self.targets))
        return Batch(input_ids, targets, self.lengths, packing)

    def by_sentence(self, values: Tensor) -> Tensor:
        """A value for each of ``targets`` -> the same with a row for each sentence."""
        return values if self.packing is None else self.packing.spread(values[0])

    def last(self, logits: Tensor) -> Tensor:
        """(B, T, C) -> (B, C): those at the last position of each sentence."""
        return logits[torch.arange(len(self), device=logits.device), self.lengths - 1]

    def to(self, device: torch.device | str) -> Batch:
        packing = None if self.packing is None else self.packing.to(device)
        return Batch(self.input_ids.to(device), self.targets.to(device), self.lengths.to(device), packing)


class Task(ABC):
    """What a network is trained to do, and how well it did.

    Tasks can be hashed, and equal ones compute the same: what was found out about one is assumed of the other.
    """

    labelled: ClassVar[bool] = False
    """Whether it reads the label, the tags or the mentions of a sentence (``annotated``)."""
    answer: ClassVar[Answer | None] = None
    """What ``answers`` gives; None of a task that answers nothing."""
    left_out: ClassVar[Literal["beginning", "end"]] = "end"
    """Which part of a text that is too long is not read when it is answered."""
    only_positions: ClassVar[bool] = False
    """Whether every function but sums and quotients, its own and its head's, is of tensors with as many numbers for each
    position. A sentence's numbers may else end in a part of a vector, which CPU kernels compute by other code: batches then
    have whole vectors of sentences (``updates.shapes``)."""
    takes_packed: ClassVar[bool] = False
    """Whether ``losses`` takes packed batches (``Batch.packed``)."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        drop_inherited(cls, Task, "only_positions", "takes_packed")

    @classmethod
    @abstractmethod
    def of(cls, vocabulary: Vocabulary, max_length: int, config: TaskConfig) -> Self:
        """The task in the tokens of a vocabulary, at most ``max_length`` positions per sentence."""

    @classmethod
    @abstractmethod
    def head(cls, config: TaskConfig) -> Head:
        """What a network for it ends in."""

    @classmethod
    def named(cls, labels: tuple[str, ...]) -> tuple[str, ...]:
        """``task.labels`` as sentences have them."""
        return labels

    @classmethod
    def fits(cls, labels: Sequence[str], sentence: Sentence) -> bool:
        """Whether a sentence has what the task predicts, and it is among ``task.labels``."""
        return True

    @classmethod
    def shows(cls, labels: Sequence[str], sentence: Sentence) -> bool:
        """Whether a sentence has one of ``labels``. A text in which none has is refused: there is nothing to learn in it."""
        return True

    @classmethod
    def refuse(cls, config: TaskConfig, text: str) -> Never:
        """Raises: InputError for a text, by the setting that names it, of which a sentence does not fit, or none shows
        anything; it names no label, and says what sentences must have."""
        raise InputError("task.kind", config.kind, f"{text} has a sentence without what it predicts: name other text")

    @property
    @abstractmethod
    def longest_text(self) -> int:
        """Tokens of a sentence's text that are used; the rest is cut."""

    def annotated(self, ids: np.ndarray, text: str, sentence: Sentence, vocabulary: Vocabulary) -> np.ndarray:
        """(L,) int32: what is known of a sentence; of one without tokens, nothing (L = 0).

        It must not remember: a mean or a count of what was read before would tell one user's text to others. What is not
        listed in ``KEEPING_USERS_APART`` reads each text twice, in two orders (``corpus.tokens``).

        Args:
          ids: (n,) tokens of ``text``, the first ``longest_text``.
          text: as it is read, perhaps transformed. ``sentence``: as it was found.
        Raises: InputError, naming no label, if the sentence does not fit.
        """
        return ids

    @abstractmethod
    def made_up(self, positions: int, vocab_size: int, generator: np.random.Generator) -> np.ndarray:
        """A sentence of no text that takes ``positions`` positions, or the fewest that one takes."""

    @abstractmethod
    def length(self, sentence: np.ndarray) -> int:
        """Positions that a sentence takes."""

    @abstractmethod
    def collate(self, sentences: Sequence[np.ndarray], shape: tuple[int, int] | None = None) -> Batch:
        """What is known of each sentence -> a batch on the CPU, filled up to ``shape`` (B, T) with empty sentences."""

    @abstractmethod
    def losses(self, model: nn.Module, batch: Batch) -> Tensor:
        """(B,) losses, float32 or wider; entry x depends on sentence x alone."""

    @abstractmethod
    def sums(self, model: nn.Module, batch: Batch) -> tuple[float, ...]:
        """What the metric adds up over batches, last the number of predictions; without gradients. Not finite where the
        network's output is not."""

    @abstractmethod
    def scores(self, sums: Sequence[float], size: TextSize) -> dict[str, float]:
        """The metric and the figures beside it (``Metric.names``), from the ``sums`` over a text of this size, of 1
        prediction or more."""

    def sized(self, size: TextSize, sentences: Iterable[np.ndarray]) -> TextSize:
        """The size of a text with what the task predicts of its ``sentences`` (as ``annotated``), where those are labels."""
        return size

    def read(self, ids: np.ndarray) -> np.ndarray:
        """Tokens of a text that is to be answered -> those that are read."""
        return ids[: self.longest_text]

    def unlabelled(self, ids: np.ndarray) -> np.ndarray:
        """What is known of a text of which there are the tokens alone, as ``read`` gives them: as ``annotated``."""
        return ids

    def answers(
        self, model: nn.Module, batch: Batch, texts: Sequence[str], vocabulary: Vocabulary, *, top: int
    ) -> list[list[dict[str, Any]]]:
        """What the network says of each text, as ``answer`` has it; without gradients.

        Args:
          batch: of the texts as ``read`` and ``unlabelled``.
          top: how many words or labels to give of a text, where that is a choice: the most likely, best first.
        """
        raise NotImplementedError

    def by_category(self, sums: Sequence[float]) -> dict[str, dict[str, float]]:
        """Scores of parts of the text, by the name of each; none, unless a task has them."""
        return {}


def task_of(kind: str) -> type[Task]:
    """Raises: TypeError for a name that nothing stands behind."""
    found: type[Task] = in_module("tasks", kind, "TASK")
    return found


def forward_logits(model: nn.Module, batch: Batch) -> Tensor:
    """Logits of a batch: (B, T, V), (B, T, C) or (B, C), by the network's head.

    Positions are given for every sentence: the default of transformers, (1, T), would add up the position gradients of all.
    A causal network gets no mask: padding is on the right, where it never looks back at it. One that reads both ways gets a
    mask for each sentence, (B, 1, 1, T), which transformers takes as it is. From a mask of two dimensions it would look
    whether any sentence of the batch is padded, and compute by another kernel if none is.
    """
    input_ids, packing = batch.input_ids, batch.packing
    shape = input_ids.shape if packing is None else packing.filled.shape
    position_ids = torch.arange(shape[1], device=input_ids.device).expand(shape)
    both = reads_both_ways(model)
    if packing is not None:
        position_ids = packing.gather(position_ids)[None] + (_first_position(model) if both else 0)
        return model(input_ids=input_ids, position_ids=position_ids, use_cache=False, packing=packing).logits
    if not both:
        return model(input_ids=input_ids, position_ids=position_ids, use_cache=False).logits
    hidden = position_ids >= batch.lengths[:, None]
    mask = torch.zeros(hidden.shape, device=input_ids.device).masked_fill(hidden, torch.finfo(torch.float32).min)
    return model(
        input_ids=input_ids,
        position_ids=position_ids + _first_position(model),
        attention_mask=mask[:, None, None],
    ).logits


def most_likely(logits: Tensor, top: int) -> list[list[tuple[int, float]]]:
    """(N, C) -> of each row the ``top`` most likely outputs by number, best first, with their probabilities (6 decimals)."""
    best = logits.softmax(-1).topk(min(top, logits.shape[-1]))
    return [
        [(number, round(probability, 6)) for number, probability in zip(*row, strict=True)]
        for row in zip(best.indices.tolist(), best.values.tolist(), strict=True)
    ]


def reads_both_ways(model: nn.Module) -> bool:
    """Whether a network is an encoder, each of whose positions sees the whole sentence."""
    return both_ways(getattr(model, "config", None))


def both_ways(hub: object) -> bool:
    """The same by its settings: those that transformers trains on masked words, unless they are made to look back only."""
    return getattr(hub, "model_type", "") in MODEL_FOR_MASKED_LM_MAPPING_NAMES and not getattr(hub, "is_decoder", False)


def _first_position(model: nn.Module) -> int:
    """The number of the first position: RoBERTa and its like count from beyond their padding token's."""
    for name, module in model.named_modules():
        if name.endswith("position_embeddings") and getattr(module, "padding_idx", None) is not None:
            return int(module.padding_idx) + 1
    return 0
