"""What both kinds of tagging share: a label for each word, predicted where its first piece is.

A word is what whitespace separates; pieces after its first predict nothing, nor does a word that the vocabulary or
``max_length`` leaves out. The loss of a sentence is the mean over its words.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from uedp_ray.corpus.records import Sentence
from uedp_ray.corpus.vocabulary import Vocabulary
from uedp_ray.tasks.base import IGNORED, Batch, most_likely
from uedp_ray.tasks.labels import Labelled

WORD = re.compile(r"\S+")


@dataclass(frozen=True, slots=True)
class Tagging(Labelled):
    """A label for each word. Known of a sentence: its n tokens, then n numbers: 1 + that of the label, or 0 for none."""

    @abstractmethod
    def labels_of(self, sentence: Sentence) -> Sequence[int]:
        """The number of each word's label, of the sentence as it was found. Raises: InputError for one not listed."""

    def annotated(self, ids: np.ndarray, text: str, sentence: Sentence, vocabulary: Vocabulary) -> np.ndarray:
        """Of a text whose words are no longer those of the sentence, nothing."""
        labels, starts = self.labels_of(sentence), first_pieces(text, vocabulary, len(ids))
        if not len(ids) or len(labels) != len(WORD.findall(text)):
            return ids[:0]
        known = np.zeros(len(ids), np.int32)
        for word, piece in starts.items():
            known[piece] = 1 + labels[word]
        return np.concatenate([ids, known])

    def unlabelled(self, ids: np.ndarray) -> np.ndarray:
        return np.concatenate([ids, np.zeros(len(ids), np.int32)])

    @torch.no_grad()
    def likely_outputs(
        self, model: nn.Module, batch: Batch, texts: Sequence[str], vocabulary: Vocabulary
    ) -> Iterator[dict[int, tuple[int, float]]]:
        """Yields of each text the most likely output, and its probability, by the number of each word that is read."""
        logits = self.logits(model, batch)
        for row, text in enumerate(texts):
            starts = first_pieces(text, vocabulary, int(batch.lengths[row]) - 2)
            places = torch.tensor([1 + piece for piece in starts.values()], dtype=torch.long, device=logits.device)
            best = most_likely(logits[row, places], 1)
            yield {word: first for word, (first,) in zip(starts, best, strict=True)}

    def made_up(self, positions: int, vocab_size: int, generator: np.random.Generator) -> np.ndarray:
        size = max(1, positions - 2)
        known = generator.integers(0, 1 + self.num_outputs, size)
        known[0] = 1
        return np.concatenate([generator.integers(1, vocab_size, size), known])

    @property
    def num_outputs(self) -> int:
        return len(self.labels)

    def num_tokens(self, sentence: np.ndarray) -> int:
        return len(sentence) // 2

    def collate(self, sentences: Sequence[np.ndarray], shape: tuple[int, int] | None = None) -> Batch:
        input_ids, lengths = self._framed(sentences, shape)
        targets = np.full(input_ids.shape, IGNORED, np.int64)
        for row, sentence in enumerate(sentences):
            known = sentence[self.num_tokens(sentence) :]
            targets[row, 1 : 1 + len(known)] = np.where(known > 0, known.astype(np.int64) - 1, IGNORED)
        return Batch(input_ids, torch.from_numpy(targets), lengths)


def first_pieces(text: str, vocabulary: Vocabulary, most: int) -> dict[int, int]:
    """The number of each word's first token, of the first ``most`` tokens of a text."""
    ends = [match.end() for match in WORD.finditer(text)]
    found: dict[int, int] = {}
    word = 0
    for piece, (start, stop) in enumerate(vocabulary.offsets(text)[:most]):
        spoken = WORD.search(text, start, stop)  # a token may begin with the space before its word
        if spoken is None:
            continue
        while ends[word] <= spoken.start():
            word += 1
        found.setdefault(word, piece)
    return found
