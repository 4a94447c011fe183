"""Next-word prediction.

    >>> from types import SimpleNamespace
    >>> import numpy as np
    >>> import torch
    >>> from uedp_ray.tasks.loss import perplexity
    >>> from uedp_ray.tasks.next_word import NextWord
    >>> task = NextWord(bos_id=0, eos_id=0, pad_id=0, max_length=64)
    >>> batch = task.collate([np.array([5, 7, 9]), np.array([4])])
    >>> batch.input_ids.tolist(), batch.targets.tolist()
    ([[0, 5, 7, 9], [0, 4, 0, 0]], [[5, 7, 9, 0], [4, 0, -100, -100]])
    >>> def uniform(input_ids, **_):    # a network that knows nothing, of 10 tokens
    ...     return SimpleNamespace(logits=torch.zeros(*input_ids.shape, 10))
    >>> [round(loss, 3) for loss in task.losses(uniform, batch).tolist()]    # (2,)
    [2.303, 2.303]
    >>> round(perplexity(*task.sums(uniform, batch)), 3)
    10.0

Perplexity = exp(mean negative log-likelihood of a token, natural logarithm) over all predicted tokens of a text: words
as the vocabulary cuts them, ``<unk>`` like any other token, and one sentence end per sentence; the sentence start is given.
Of a sentence of ``max_length`` tokens or more the first ``max_length`` count, and no end; one without a token counts
nothing. Figures with different vocabularies are not comparable.

Bits per byte = (total negative log-likelihood in bits + 8 bits for each byte of the words that became ``<unk>``) / bytes of
the text that was predicted, in UTF-8, with one byte for each predicted sentence end. It is the length of a code from which
the text can be read back, unknown words spelled out byte by byte, and so is comparable across tokenizers; letter case and
punctuation that a vocabulary is set to remove are not charged.

``bos_id``, ``eos_id``, ``pad_id`` and ``max_length`` are public; the sentences are private.
Shape legend: B sentences, T positions, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor, nn

from uedp_ray.config.sections import TaskConfig
from uedp_ray.corpus.textsize import TextSize
from uedp_ray.corpus.vocabulary import Vocabulary
from uedp_ray.tasks.base import IGNORED, Answer, Batch, Head, Task, forward_logits, most_likely
from uedp_ray.tasks.chunked import word_losses
from uedp_ray.tasks.loss import of_sentences, perplexity, summed


@dataclass(frozen=True, slots=True)
class NextWord(Task):
    """Next-word prediction within one sentence.

    A sentence w1..wn is read as ``bos w1 .. wn`` and predicts ``w1 .. wn eos``. ``bos``, which may be the same token, is not
    predicted; ``eos`` counts like any token, as does ``<unk>``. Both sequences are cut at ``max_length``, so a longer
    sentence predicts its first ``max_length`` words and no end. A sentence without words predicts nothing: its loss is 0.
    """

    only_positions: ClassVar[bool] = True
    takes_packed: ClassVar[bool] = True
    answer: ClassVar[Answer] = Answer("next", {"token": str, "probability": float})
    left_out: ClassVar[Literal["beginning", "end"]] = "beginning"

    bos_id: int
    eos_id: int
    pad_id: int
    max_length: int

    @classmethod
    def of(cls, vocabulary: Vocabulary, max_length: int, config: TaskConfig) -> NextWord:
        """The task in the tokens of a vocabulary."""
        return cls(vocabulary.bos_id, vocabulary.eos_id, vocabulary.pad_id, max_length)

    @classmethod
    def head(cls, config: TaskConfig) -> Head:
        return Head("causal-lm")

    @property
    def longest_text(self) -> int:
        """As many tokens as positions: the last one is predicted and not read. Of a sentence cut there, no end is."""
        return self.max_length

    def made_up(self, positions: int, vocab_size: int, generator: np.random.Generator) -> np.ndarray:
        return generator.integers(1, vocab_size, max(1, positions - 1))

    def length(self, sentence: np.ndarray) -> int:
        """Positions of a sentence: its words and ``bos``, at most ``max_length``."""
        return min(len(sentence) + 1, self.max_length)

    def collate(self, sentences: Sequence[np.ndarray], shape: tuple[int, int] | None = None) -> Batch:
        """Token ids of each sentence (any integer type, without ``bos`` and ``eos``) -> right-padded batch on the CPU.

        ``shape``: (B, T) to fill up to, with rows that predict nothing; by default the sentences' own.
        """
        lengths = [self.length(words) for words in sentences]
        shape = shape or (len(sentences), max(lengths, default=1))
        input_ids, targets = np.full(shape, self.pad_id, np.int64), np.full(shape, IGNORED, np.int64)
        for row, (words, length) in enumerate(zip(sentences, lengths, strict=True)):
            input_ids[row, 0] = self.bos_id
            input_ids[row, 1:length] = words[: length - 1]
            if len(words):
                targets[row, :length] = np.append(words[:length], self.eos_id)[:length]
        filled = np.ones(shape[0], np.int64)
        filled[: len(lengths)] = lengths
        return Batch(torch.from_numpy(input_ids), torch.from_numpy(targets), torch.from_numpy(filled))

    def losses(self, model: nn.Module, batch: Batch) -> Tensor:
        """(B,) mean negative log-likelihood (nats) over each sentence's predicted tokens, float32 or wider."""
        return of_sentences(self._token_losses(model, batch), batch)

    @torch.no_grad()
    def sums(self, model: nn.Module, batch: Batch) -> tuple[float, int]:
        """Summed negative log-likelihood (nats) and number of predicted tokens."""
        return summed(self._token_losses(model, batch), batch.targets)

    def scores(self, sums: Sequence[float], size: TextSize) -> dict[str, float]:
        """``perplexity``, ``bits_per_byte`` (the same total of the same tokens) and ``unk_share``."""
        value = perplexity(*sums)
        bits = math.log2(value) * (size.tokens + size.ends) if value > 0 else math.nan
        bits_per_byte = (bits + 8 * size.unknown_bytes) / max(size.num_bytes, 1)
        return {"perplexity": value, "bits_per_byte": bits_per_byte, "unk_share": size.unk_share}

    def read(self, ids: np.ndarray) -> np.ndarray:
        """The last that fit behind ``bos``."""
        return ids[max(0, len(ids) + 1 - self.max_length) :]

    @torch.no_grad()
    def answers(
        self, model: nn.Module, batch: Batch, texts: Sequence[str], vocabulary: Vocabulary, *, top: int
    ) -> list[list[dict[str, Any]]]:
        """The most likely next tokens of each text, with their probabilities."""
        last = batch.last(forward_logits(model, batch))
        return [
            [{"token": _shown(vocabulary, token), "probability": probability} for token, probability in row]
            for row in most_likely(last, top)
        ]

    def _token_losses(self, model: nn.Module, batch: Batch) -> Tensor:
        return word_losses(model, batch)


def _shown(vocabulary: Vocabulary, token: int) -> str:
    """A token as text. What SentencePiece begins a word with is a space; decoding a single token drops it."""
    piece = vocabulary.tokenizer.convert_ids_to_tokens(token)
    if piece is None:  # the model has more outputs than its tokenizer has tokens
        return f"(token {token})"
    return piece.replace("▁", " ") if piece.startswith("▁") else vocabulary.decode([token])


TASK = NextWord
