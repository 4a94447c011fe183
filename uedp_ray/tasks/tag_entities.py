"""Named-entity recognition: spans of words of public categories, tagged B, I and O, scored span by span.

    >>> from uedp_ray.config import TaskConfig, VocabularyConfig
    >>> from uedp_ray.corpus.records import Mention, Sentence
    >>> from uedp_ray.corpus.vocabulary import build_vocabulary
    >>> from uedp_ray.tasks.tag_entities import TagEntities
    >>> vocabulary = build_vocabulary(VocabularyConfig(), public_text=lambda: iter(["ann lee left rome"]))
    >>> task = TagEntities.of(vocabulary, 64, TaskConfig(kind="tag_entities", labels=("person", "location")))
    >>> task.outputs
    ('O', 'B-person', 'I-person', 'B-loc', 'I-loc')
    >>> sentence = Sentence("u1", "Ann Lee left Rome", mentions=(Mention("PER", 0, 7), Mention("LOC", 13, 17)))
    >>> [task.outputs[number] for number in task.labels_of(sentence)]
    ['B-person', 'I-person', 'O', 'B-loc']
    >>> sums = (2.0, 3.0, 2.0, 0.0, 0.0, 1.0, 12)    # found, predicted and there, of persons and of locations; and words
    >>> {name: {key: round(value, 3) for key, value in of.items()} for name, of in task.by_category(sums).items()}
    {'person': {'precision': 0.667, 'recall': 1.0, 'f1': 0.8}, 'loc': {'precision': 0.0, 'recall': 0.0, 'f1': 0.0}}

The entities are those that were found when the text was prepared, of the categories in ``task.labels``: annotations where
the source has them (``detector: [annotated]``), and else what a detector took for entities. They may be the very entities
that are protected: the model is then to tell that there is one, and of which kind, in words that it must not remember.

An entity counts as found if its first word, its last word and its category are right (CoNLL-2003). Precision, recall and F1
are over all categories together (micro); words without an entity are in none of them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Never

import numpy as np
import torch
from torch import nn

from uedp_ray.config.sections import TaskConfig
from uedp_ray.corpus.categories import canonical
from uedp_ray.corpus.records import Sentence
from uedp_ray.corpus.textsize import TextSize
from uedp_ray.corpus.vocabulary import Vocabulary
from uedp_ray.errors import InputError
from uedp_ray.tasks.base import IGNORED, Answer, Batch, Head
from uedp_ray.tasks.tags import WORD, Tagging


@dataclass(frozen=True, slots=True)
class TagEntities(Tagging):
    """Categories by span. Output 0 is O; category k has outputs 1 + 2k (B) and 2 + 2k (I)."""

    only_positions: ClassVar[bool] = True
    takes_packed: ClassVar[bool] = True
    answer: ClassVar[Answer] = Answer("entities", {"category": str, "text": str, "start": int, "end": int})

    @classmethod
    def head(cls, config: TaskConfig) -> Head:
        return Head("token-classification", 1 + 2 * len(config.labels))

    @classmethod
    def named(cls, labels: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(map(canonical, labels))

    @classmethod
    def shows(cls, labels: Sequence[str], sentence: Sentence) -> bool:
        return any(mention.category in labels for mention in sentence.mentions)

    @classmethod
    def refuse(cls, config: TaskConfig, text: str) -> Never:
        remedy = (
            f"{text} has no entity of these categories: name those that were found in it (mentions in what uedp-ray prepare "
            "prints; without B- or I-), or a detector that finds them"
        )
        raise InputError("task.labels", list(config.labels), remedy)

    @property
    def num_outputs(self) -> int:
        return 1 + 2 * len(self.labels)

    @property
    def outputs(self) -> tuple[str, ...]:
        """The tag that each output stands for."""
        return ("O", *(f"{mark}-{label}" for label in self.labels for mark in "BI"))

    def labels_of(self, sentence: Sentence) -> Sequence[int]:
        """Of mentions that overlap, the first counts, and of those that begin together the longest."""
        words = [match.span() for match in WORD.finditer(sentence.text)]
        found = [0] * len(words)
        for mention in sorted(sentence.mentions, key=lambda each: (each.start, -each.end)):
            inside = [n for n, (start, end) in enumerate(words) if start < mention.end and end > mention.start]
            if mention.category in self.labels and inside and not any(found[n] for n in inside):
                first = 1 + 2 * self.labels.index(mention.category)
                for n in inside:
                    found[n] = first if n == inside[0] else first + 1
        return found

    @torch.no_grad()
    def sums(self, model: nn.Module, batch: Batch) -> tuple[float, ...]:
        """For each category the entities found, predicted and there; and words."""
        predicted, finite = self.predicted(model, batch)
        counts = np.zeros((len(self.labels), 3))
        for said, there in zip(predicted.cpu().numpy(), batch.targets.cpu().numpy(), strict=True):
            words = there != IGNORED
            ours, theirs = set(spans(said[words])), set(spans(there[words]))
            for column, each in enumerate((ours & theirs, ours, theirs)):
                for _, _, category in each:
                    counts[category, column] += 1
        counted = int((batch.targets != IGNORED).sum())
        return (*(counts if finite else counts + math.nan).ravel().tolist(), counted)

    def scores(self, sums: Sequence[float], size: TextSize) -> dict[str, float]:
        return {**_prf(*np.reshape(sums[:-1], (-1, 3)).sum(0)), "unk_share": size.unk_share}

    def by_category(self, sums: Sequence[float]) -> dict[str, dict[str, float]]:
        return {label: _prf(*row) for label, row in zip(self.labels, np.reshape(sums[:-1], (-1, 3)), strict=True)}

    def answers(
        self, model: nn.Module, batch: Batch, texts: Sequence[str], vocabulary: Vocabulary, *, top: int
    ) -> list[list[dict[str, Any]]]:
        """The entities of each text, by whole words: characters from ``start``, ``end`` exclusive, as corpora have them."""
        found = []
        for text, outputs in zip(texts, self.likely_outputs(model, batch, texts, vocabulary), strict=True):
            words = [match.span() for number, match in enumerate(WORD.finditer(text)) if number in outputs]
            entities = []
            for first, beyond, category in spans([output for output, _ in outputs.values()]):
                start, end = words[first][0], words[beyond - 1][1]
                entities.append(
                    {"category": self.labels[category], "text": text[start:end], "start": start, "end": end}
                )
            found.append(entities)
        return found


def spans(tags: Sequence[int] | np.ndarray) -> Iterator[tuple[int, int, int]]:
    """Yields (first word, one beyond the last, category) of each entity in outputs of ``TagEntities``. An I that continues
    nothing of its category begins one, as in ``readers.conll.decode_tags``."""
    start, category = 0, -1
    for place, tag in enumerate([*tags, 0]):
        continues = tag > 0 and tag % 2 == 0 and (tag - 2) // 2 == category
        if category >= 0 and not continues:
            yield start, place, category
            category = -1
        if tag > 0 and category < 0:
            start, category = place, int(tag - 1) // 2


def _prf(found: float, predicted: float, there: float) -> dict[str, float]:
    """Precision, recall and their harmonic mean; 0 of nothing."""

    def share(part: float, whole: float) -> float:
        return float(part / whole) if whole else float(0.0 * part)  # not finite if what was counted is not

    return {
        "precision": share(found, predicted),
        "recall": share(found, there),
        "f1": share(2 * found, predicted + there),
    }


TASK = TagEntities
