"""Perplexity on text that is public or declared to be outside the protected set.

Perplexity = exp(mean negative log-likelihood of a token, natural logarithm) over all predicted tokens of the text: words
as the vocabulary cuts them, ``<unk>`` like any other token, and one sentence end a sentence; the sentence start is given.
Of a sentence of ``max_length`` tokens or more the first ``max_length`` count, and no end; one without a token counts
nothing. Figures with different vocabularies do not compare.

Bits per byte = (total negative log-likelihood in bits + 8 bits for each byte of the words that became ``<unk>``) / bytes of
the text that was predicted, in UTF-8, with one byte for each predicted sentence end. It is the length of a code from which
the text can be read back, unknown words spelled out byte by byte, and so compares across tokenizers; not charged are the
letter case and the punctuation that a vocabulary is told to take away.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from uedp_ray.config import RunConfig
from uedp_ray.corpus.store import open_corpus
from uedp_ray.corpus.tokens import encode_texts
from uedp_ray.corpus.vocabulary import Vocabulary
from uedp_ray.errors import InputError
from uedp_ray.models.isolation import ALONE
from uedp_ray.reporting import Reporter
from uedp_ray.tasks.next_word import NextWord
from uedp_ray.training.network import initial_model
from uedp_ray.training.paths import for_use
from uedp_ray.training.placement import pick_device
from uedp_ray.units import UNITS

Sentence = np.ndarray

_MUCH = 0.1
"""The share of a text that is unknown, or cut off, from which on a warning says so."""
_BATCH = 4096


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


@dataclass(frozen=True)
class TextSize:
    """What a vocabulary makes of a text cut at ``max_length``. As private as the text."""

    ends: int
    """Sentence ends that are predicted: of sentences with a token whose end is not cut off."""
    tokens: int
    """Predicted ones, sentence ends aside."""
    unknown: int
    """``<unk>`` among them."""
    cut: int
    """Tokens beyond the cut, which are not predicted."""
    num_bytes: int
    """Of what is predicted, in UTF-8, with one for each of ``ends``."""
    unknown_bytes: int
    """Of the words that became ``<unk>``."""

    @property
    def unk_share(self) -> float:
        """``<unk>`` as a share of the tokens that are predicted, sentence ends aside."""
        return self.unknown / max(self.tokens, 1)

    def bits_per_byte(self, perplexity: float) -> float:
        """The same total of the same tokens as ``perplexity``, by another measure."""
        bits = math.log2(perplexity) * (self.tokens + self.ends) if perplexity > 0 else math.nan
        return (bits + 8 * self.unknown_bytes) / max(self.num_bytes, 1)

    def scores(self, perplexity: float) -> dict[str, float]:
        """``perplexity``, ``bits_per_byte`` and ``unk_share``: what is stated of a model on this text."""
        return {
            "perplexity": perplexity,
            "bits_per_byte": self.bits_per_byte(perplexity),
            "unk_share": self.unk_share,
        }

    def warn(self, reporter: Reporter) -> None:
        """Says where perplexity is about less than it seems."""
        warn_unknown(self.unk_share, reporter)
        share = self.cut / max(self.cut + self.tokens, 1)
        if share > _MUCH:
            reporter.say(
                f"warning: {share:.0%} of the evaluation text lies beyond model.max_length and is not scored: raise it, or "
                "cut the text into shorter sentences"
            )


def warn_unknown(unk_share: float, reporter: Reporter) -> None:
    """Says so where much of a text is ``<unk>``."""
    if unk_share > _MUCH:
        reporter.say(
            f"warning: {unk_share:.0%} of the words of the evaluation text are <unk>, which are easy to predict: compare "
            "models by bits per byte, or give the vocabulary more words"
        )


NO_SCORES: dict[str, float | None] = {"perplexity": None, "bits_per_byte": None, "unk_share": None}


def text_size(texts: Iterable[str], vocabulary: Vocabulary, max_length: int) -> TextSize:
    """Counts what ``encode_texts`` keeps of the texts. Memory: a batch of sentences."""
    counts: Counter[str] = Counter(dict.fromkeys(TextSize.__dataclass_fields__, 0))
    remaining = iter(texts)
    while batch := list(itertools.islice(remaining, _BATCH)):
        for text, ids in zip(batch, vocabulary.encode_batch(batch), strict=True):
            kept, ends = ids[:max_length], len(ids) < max_length
            if not len(kept):
                continue
            unknown = kept == vocabulary.unk_id if vocabulary.unk_id is not None else np.zeros(len(kept), bool)
            counts.update(ends=int(ends), tokens=len(kept), unknown=int(unknown.sum()), cut=len(ids) - len(kept))
            end = len(text)
            if len(kept) < len(ids) or unknown.any():
                places = vocabulary.offsets(text)
                end = places[len(kept) - 1][1] if len(kept) < len(ids) else end
                words = (text[slice(*places[i])] for i in np.flatnonzero(unknown))
                counts["unknown_bytes"] += sum(len(word.encode()) for word in words)
            counts["num_bytes"] += len(text[:end].encode()) + ends
    return TextSize(**counts)


def public_row(name: str, config: RunConfig, vocabulary_folder: str) -> dict[str, Any]:
    """Perplexity of a model that never saw the private corpus: its epsilon is 0 whatever the unit.

    ``config`` has prepared corpora; without ``model.warm_start`` it is the untrained model.
    """
    config = for_use(config)
    vocabulary, device = Vocabulary.load(vocabulary_folder), pick_device(config)
    assert config.corpus.evaluation is not None  # prepare_corpora refuses it
    corpus = open_corpus(config.corpus.evaluation.path)
    texts = [text for _, user_texts in corpus.texts() for text in user_texts]
    sentences = encode_texts(texts, vocabulary, config.model.max_length)
    task = NextWord.of(vocabulary, config.model.max_length)
    size = text_size(texts, vocabulary, config.model.max_length)
    with ALONE:
        found = perplexity(initial_model(config, vocabulary).to(device), task, sentences, device=device)
    return {
        "name": name,
        **size.scores(found),
        "epsilon": dict.fromkeys(UNITS, 0.0),
        "delta": config.privacy.delta,
        "unit": config.privacy.unit,
        "noise_multiplier": None,
        "rounds": 0,
        "planned_rounds": 0,
        "private": True,
        "run_dir": config.model.warm_start or None,
    }
