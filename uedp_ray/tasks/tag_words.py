"""Tagging of words, such as by their parts of speech: each word has one tag of a public list.

    >>> from uedp_ray.config import TaskConfig, VocabularyConfig
    >>> from uedp_ray.corpus.records import Sentence
    >>> from uedp_ray.corpus.vocabulary import build_vocabulary
    >>> from uedp_ray.tasks.tag_words import TagWords
    >>> vocabulary = build_vocabulary(VocabularyConfig(), public_text=lambda: iter(["the patient left"]))
    >>> task = TagWords.of(vocabulary, 64, TaskConfig(kind="tag_words", labels=("DT", "NN", "VBD")))
    >>> sentence = Sentence("ann", "the patient left", tags=("DT", "NN", "VBD"))
    >>> known = task.annotated(vocabulary.encode_batch([sentence.text])[0], sentence.text, sentence, vocabulary)
    >>> task.collate([known]).targets.tolist()    # where the sentence begins and ends, nothing is predicted
    [[-100, 0, 1, 2, -100]]

Word accuracy = words whose most likely tag is theirs, as a share of all words that predict one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import nn

from uedp_ray.config.sections import TaskConfig
from uedp_ray.corpus.records import Sentence
from uedp_ray.corpus.textsize import TextSize
from uedp_ray.corpus.vocabulary import Vocabulary
from uedp_ray.tasks.base import IGNORED, Answer, Batch, Head
from uedp_ray.tasks.tags import WORD, Tagging


@dataclass(frozen=True, slots=True)
class TagWords(Tagging):
    """The tags that the source has, one for each word."""

    only_positions: ClassVar[bool] = True
    takes_packed: ClassVar[bool] = True
    missing: ClassVar[str] = (
        "a sentence with a word whose tag is missing, or is none of these: list all, as it has them (of `conll`, the second "
        "of three or more columns is the tag)"
    )
    answer: ClassVar[Answer] = Answer("tags", {"word": str, "tag": str, "probability": float})

    @classmethod
    def head(cls, config: TaskConfig) -> Head:
        return Head("token-classification", len(config.labels))

    @classmethod
    def fits(cls, labels: Sequence[str], sentence: Sentence) -> bool:
        return sentence.tags is not None and set(sentence.tags) <= set(labels)

    def labels_of(self, sentence: Sentence) -> Sequence[int]:
        self.require(sentence)
        return [self.labels.index(tag) for tag in sentence.tags or ()]

    @torch.no_grad()
    def sums(self, model: nn.Module, batch: Batch) -> tuple[float, int]:
        """Words with the right tag, and words."""
        predicted, finite = self.predicted(model, batch)
        right = float((predicted == batch.targets).sum()) if finite else math.nan
        return right, int((batch.targets != IGNORED).sum())

    def scores(self, sums: Sequence[float], size: TextSize) -> dict[str, float]:
        right, count = sums
        return {"word_accuracy": right / count, "unk_share": size.unk_share}

    def answers(
        self, model: nn.Module, batch: Batch, texts: Sequence[str], vocabulary: Vocabulary, *, top: int
    ) -> list[list[dict[str, Any]]]:
        """The most likely tag of each word, with its probability; both None of a word that is not read."""
        found = self.likely_outputs(model, batch, texts, vocabulary)
        return [
            [self._tagged(word, outputs.get(number)) for number, word in enumerate(WORD.findall(text))]
            for text, outputs in zip(texts, found, strict=True)
        ]

    def _tagged(self, word: str, output: tuple[int, float] | None) -> dict[str, Any]:
        tag, probability = (None, None) if output is None else (self.labels[output[0]], output[1])
        return {"word": word, "tag": tag, "probability": probability}


TASK = TagWords
