"""How much text there is to score, as a vocabulary cuts it.

    size = text_size(texts, vocabulary, max_length=64)
    size.unk_share, size.num_bytes

Bytes are counted only for what is predicted, and for the words that became ``<unk>``. As private as the text.
"""

from __future__ import annotations

import bz2
import itertools
from collections import Counter
from collections.abc import Iterable
from dataclasses import MISSING, dataclass, fields

import numpy as np

from uedp_ray.corpus.vocabulary import Vocabulary
from uedp_ray.fields import Check, Later, number
from uedp_ray.reporting import Reporter

_MUCH = 0.1
"""The share of a text that is cut off above which a warning says so."""
_BATCH = 4096
_SAMPLE = 10_000
"""Sentences that shares are taken from."""


@dataclass(frozen=True)
class TextSize:
    """The size of a text, as a vocabulary cuts it up to ``max_length``. As private as the text."""

    ends: int
    """Sentence ends that are predicted: of sentences with a token whose end is not cut off."""
    tokens: int
    """Predicted tokens, sentence ends aside."""
    unknown: int
    """``<unk>`` among them."""
    cut: int
    """Tokens beyond the cut, which are not predicted."""
    num_bytes: int
    """Bytes of what is predicted, in UTF-8, with one for each of ``ends``."""
    unknown_bytes: int
    """Bytes of the words that became ``<unk>``."""
    bzip2_bytes: int | None = None
    """Bytes that bzip2 makes of those ``num_bytes``; None where an earlier version counted."""
    targets: int | None = None
    """Labels or tags that a task predicts of it; None where it predicts words, and where an earlier version counted."""
    commonest: int | None = None
    """Of these, how many are the label or tag that is the commonest."""

    @property
    def unk_share(self) -> float:
        """``<unk>`` as a share of the tokens that are predicted, sentence ends aside."""
        return self.unknown / max(self.tokens, 1)

    @property
    def bzip2_bits_per_byte(self) -> float | None:
        """What bzip2, which knows no language, takes for a byte of what is predicted."""
        return None if self.bzip2_bytes is None else 8 * self.bzip2_bytes / max(self.num_bytes, 1)

    @property
    def commonest_share(self) -> float | None:
        """The share of the labels that always giving the commonest one gets right."""
        return None if self.commonest is None else self.commonest / max(self.targets or 0, 1)

    @property
    def cut_share(self) -> float:
        """What is cut off as a share of all tokens, sentence ends aside."""
        return self.cut / max(self.cut + self.tokens, 1)

    def warn(self, reporter: Reporter) -> None:
        """Warns if a score covers less than it seems to."""
        if self.cut_share > _MUCH:
            # A part of a text with a label may not say it.
            shorter = ", or cut the text into shorter sentences" if self.targets is None else ""
            reporter.say(
                f"warning: {self.cut_share:.0%} of the evaluation text lies beyond model.max_length and is not read: raise "
                f"it{shorter}"
            )


_COUNTED = {field.name for field in fields(TextSize)} - {"targets", "commonest"}  # which a task counts
_COUNT = number(0, whole=True)
SIZE: dict[str, Check] = {
    field.name: _COUNT if field.default is MISSING else Later(number(0, whole=True, nothing=True))
    for field in fields(TextSize)
}
"""The check of each field of a ``TextSize`` in a file."""


def sampled_size(texts: Iterable[str], vocabulary: Vocabulary, max_length: int) -> TextSize:
    """The size of the first sentences of a text: enough for its shares."""
    return text_size(itertools.islice(texts, _SAMPLE), vocabulary, max_length)


def tell_cut(share: float, max_length: int, reporter: Reporter, whose: str) -> None:
    """Tells which share of a text's tokens is beyond ``max_length``, unless it rounds to nothing."""
    if share >= 0.0005:
        reporter.say(f"{share:.1%} of the tokens are beyond model.max_length = {max_length} and not used ({whose})")


def text_size(texts: Iterable[str], vocabulary: Vocabulary, max_length: int) -> TextSize:
    """Counts what ``encode_texts`` keeps of the texts. Memory: a batch of sentences."""
    counts: Counter[str] = Counter(dict.fromkeys(_COUNTED, 0))
    remaining, packer = iter(texts), bz2.BZ2Compressor()
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
            scored = text[:end].encode() + b"\n" * ends
            counts["num_bytes"] += len(scored)
            counts["bzip2_bytes"] += len(packer.compress(scored))
    counts["bzip2_bytes"] += len(packer.flush())
    return TextSize(**counts)
