"""Filling in masked words, by which encoders learn from public text (Devlin et al. 2019).

    >>> import numpy as np
    >>> import torch
    >>> from uedp_ray.tasks.masked_word import MaskedWord
    >>> task = MaskedWord(bos_id=0, eos_id=1, pad_id=2, mask_id=3, vocab_size=50, max_length=64)
    >>> with torch.random.fork_rng():
    ...     batch = task.collate([np.arange(10, 20)])
    >>> first, *words = batch.targets[0].tolist()
    >>> {word for word in words if word >= 0} <= set(range(10, 20)), 10 <= first < 20
    (True, True)

One word in seven or so is chosen, at least one of each sentence: of ten, eight are masked, one is replaced by another word
and one stays. The first position, from which an encoder classifies, is to tell a word that is drawn from the whole sentence:
it learns what the sentence is about, for which BERT had pairs of sentences. All are drawn anew for each batch, by torch's
default generator. It is no choice of ``task.kind``: draws for one sentence depend on those before it in the batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from uedp_ray.config.sections import TaskConfig
from uedp_ray.corpus.textsize import TextSize
from uedp_ray.corpus.vocabulary import Vocabulary
from uedp_ray.tasks.base import IGNORED, Batch, Head, Task, forward_logits
from uedp_ray.tasks.labels import framed
from uedp_ray.tasks.loss import cross_entropy, of_sentences, perplexity, summed

_CHOSEN, _MASKED, _REPLACED = 0.15, 0.8, 0.1


@dataclass(frozen=True, slots=True)
class MaskedWord(Task):
    """Sentences as in ``labels``, some words of which are predicted."""

    bos_id: int
    eos_id: int
    pad_id: int
    mask_id: int
    vocab_size: int
    max_length: int

    @classmethod
    def of(cls, vocabulary: Vocabulary, max_length: int, config: TaskConfig) -> MaskedWord:
        of = vocabulary.bos_id, vocabulary.eos_id, vocabulary.pad_id, mask_of(vocabulary), vocabulary.size
        return cls(*of, max_length)

    @classmethod
    def head(cls, config: TaskConfig) -> Head:
        return Head("masked-lm")

    @property
    def longest_text(self) -> int:
        return self.max_length - 2

    def made_up(self, positions: int, vocab_size: int, generator: np.random.Generator) -> np.ndarray:
        return generator.integers(1, vocab_size, max(1, positions - 2))

    def length(self, sentence: np.ndarray) -> int:
        return 2 + len(sentence)

    def collate(self, sentences: Sequence[np.ndarray], shape: tuple[int, int] | None = None) -> Batch:
        input_ids, lengths = framed(sentences, self.bos_id, self.eos_id, self.pad_id, shape)
        position = torch.arange(input_ids.shape[1])
        inside = (position > 0) & (position < lengths[:, None] - 1)
        drawn = torch.rand(input_ids.shape).masked_fill(~inside, 2.0)
        chosen = inside & ((drawn < _CHOSEN) | (drawn == drawn.amin(1, keepdim=True)))
        targets = input_ids.masked_fill(~chosen, IGNORED)
        told = torch.rand(input_ids.shape).masked_fill(~inside, -1.0).argmax(1, keepdim=True)
        targets[:, :1] = input_ids.gather(1, told).where(inside.any(1, keepdim=True), IGNORED)
        kind = torch.rand(input_ids.shape)
        read = input_ids.masked_fill(chosen & (kind < _MASKED), self.mask_id)
        other = torch.randint(self.vocab_size, input_ids.shape)
        read = torch.where(chosen & (kind >= 1 - _REPLACED), other, read)
        return Batch(read, targets, lengths)

    def losses(self, model: nn.Module, batch: Batch) -> Tensor:
        return of_sentences(_losses(model, batch), batch)

    @torch.no_grad()
    def sums(self, model: nn.Module, batch: Batch) -> tuple[float, int]:
        return summed(_losses(model, batch)[:, 1:], batch.targets[:, 1:])  # of masked words

    def scores(self, sums: Sequence[float], size: TextSize) -> dict[str, float]:
        return {"masked_perplexity": perplexity(*sums), "unk_share": size.unk_share}


def _losses(model: nn.Module, batch: Batch) -> Tensor:
    """(B, T) losses. The output layer, most of the work of a small network, sees what is predicted alone."""
    predicted = batch.targets != IGNORED
    output: nn.Module = model.get_output_embeddings()  # type: ignore[operator]
    hook = output.register_forward_pre_hook(lambda _, inputs: (inputs[0][predicted],))
    try:
        losses = cross_entropy(forward_logits(model, batch), batch.targets[predicted])
    finally:
        hook.remove()
    return losses.new_zeros(predicted.shape).masked_scatter(predicted, losses)


def mask_of(vocabulary: Vocabulary) -> int:
    """The token that stands for a hidden word: that of unknown words, or of the end, where the vocabulary has no other."""
    own = vocabulary.tokenizer.mask_token_id, vocabulary.unk_id, vocabulary.eos_id
    return next(each for each in own if each is not None)
