"""What a transform is: a function of one sentence, applied to each sentence of the private text before it is tokenised.

    text = Transformed(open_corpus("corpora/conll"), transform_of(TransformConfig(kind="mask")), b"secret")
    for user, texts in text.texts():
        ...

A transformed sentence keeps its place, and the entities that were found in it, whether or not its text still shows them. So
bounds, weights and draws are those of the text as it was found, and so is what epsilon is about: docs/accounting.md,
"Transforms". Public text is not transformed, and evaluation text only to be scored both ways.
"""

from __future__ import annotations

import hashlib
import json
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from uedp_ray.components import drop_inherited, in_module
from uedp_ray.config import TransformConfig
from uedp_ray.config.files import map_files
from uedp_ray.config.io import expand, to_digest
from uedp_ray.corpus.records import Mention, Sentence
from uedp_ray.corpus.store import Corpus
from uedp_ray.draws import generator_of, secret_for
from uedp_ray.storage.files import checksum

if TYPE_CHECKING:
    from uedp_ray.corpus.vocabulary import Vocabulary

_SECTION = "corpus.transform."


class Claim(NamedTuple):
    """What a transform guarantees of one unit of text by itself, whoever sees what it returns."""

    unit: str
    """``word`` or ``word-metric``, as ``privacy.guarantee`` has them; of what else a text may hide no transform can tell."""
    epsilon: float
    """Pure: its delta is 0."""
    note: str
    """What it leaves unprotected, in full sentences."""


class Generators:
    """What one sentence may draw from: a secret key, its place and its user's. None depends on what any text says."""

    def __init__(self, key: bytes, user: int, sentence: int):
        self._key, self._user = key, user.to_bytes(8, "little")
        self.sentence = generator_of(key, sentence.to_bytes(8, "little"))
        """Of this sentence alone."""

    def of_user(self, name: str) -> np.random.Generator:
        """Of the user and a name alone: the same, from its beginning, whenever one of the user's sentences asks for it."""
        return generator_of(self._key, self._user + name.encode("utf-8", "surrogatepass"), b"user")

    def of_person(self, name: str) -> np.random.Generator:
        """Of a name alone, such as ``Sentence.user``: a sentence keeps it where ``corpus.regroup`` gives it another user."""
        return generator_of(self._key, name.encode("utf-8", "surrogatepass"), b"person")


class Transform(ABC):
    """A transform with its settings, which are public.

    What it needs of public files it may keep in a module: it is the same for every sentence (``check`` opens it first).
    """

    draws: ClassVar[bool] = True
    """Whether it draws from its generators; tokens of one that does are of one run only, as its key is. A class whose base
    draws nothing says so again of itself."""
    uses: ClassVar[tuple[str, ...] | None] = None
    """Settings of ``corpus.transform`` that it reads, beside those of every transform; a run is told of others that it sets.
    None: not stated, and nothing is told. Of ours the settings say it themselves (``config.texts``)."""
    version: ClassVar[int] = 0
    """Raised whenever a change of code changes what becomes of a text: else a resumed run, and a sweep, keep the tokens
    that the code before had made."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        drop_inherited(cls, Transform, "draws", "uses", "moves_words", "claim", "told")

    def __init__(self, config: TransformConfig):
        self.config = config

    @property
    def moves_words(self) -> str:
        """The setting because of which a text may have more, fewer or reordered words (what whitespace separates), so that
        tags no longer fit; ``kind``: whatever the settings. Empty: there is one word in the place of each."""
        return "kind"

    def claim(self) -> Claim | None:
        """What it guarantees by itself; None, as here, and of a class whose base claims something: nothing.

        It counts as a guarantee only of the names in ``config.choices.PROVED_TRANSFORMS``, which docs/accounting.md proves;
        else it is shown as none.
        """
        return None

    def check(self) -> None:  # noqa: B027 (most have nothing to find)
        """Raises: InputError for what can be found without text, such as a file of settings that cannot be read."""

    def told(self, users: Iterable[Sequence[Sentence]]) -> str | None:
        """What the owner of the text should know of it, in a line; ``users``: everyone's sentences. Read off the text."""
        return None

    def writes(self, categories: Iterable[str]) -> tuple[str, ...]:
        """Words of its own that it puts into texts; ``categories``: the protected ones, as far as they are known in public.
        Each is one token of a vocabulary that is made of public text. None, as here: they are words like others."""
        return ()

    def check_vocabulary(self, vocabulary: Vocabulary) -> None:  # noqa: B027 (most write nothing that has to be known)
        """Raises: InputError if texts would lose what they are transformed for, as the vocabulary does not know it."""

    @abstractmethod
    def text_of(self, sentence: Sentence, generators: Generators) -> str:
        """The text to train on.

        Args:
          sentence: with the protected mentions found in it; its text is not blank.
          generators: of this sentence and of its user, from a secret key.

        It is called once on an object of its own, made for this sentence: what it keeps in ``self`` reaches no other. It
        must keep nothing of the sentence elsewhere, in a class, a module or a file: nothing would undo that, and no bound
        would hold.
        Nor may it raise, whatever the sentence: whether a run fails would depend on private text, which no rule charges.
        """


class Text(Protocol):
    """Texts of users, as a corpus and a transformed one both have them."""

    @property
    def digest(self) -> str: ...
    @property
    def num_sentences(self) -> int: ...
    @property
    def user_offsets(self) -> NDArray[np.int64]: ...
    def texts(self, users: Sequence[int] | NDArray[Any] | None = None) -> Iterator[tuple[int, list[str]]]: ...
    def pairs(
        self, users: Sequence[int] | NDArray[Any] | None = None
    ) -> Iterator[tuple[int, list[tuple[Sentence, str]]]]: ...


class Transformed:
    """The texts of a corpus, transformed; what else the corpus holds stays as it is.

    Args:
      key: secret, of one run and one text.
      like: the corpus whose protected categories are protected here too; by default ``corpus``.

    Attributes:
      digest: differs for another corpus, choice of categories, kind, settings, files that these name and version of the
        transform and, if it draws, key. It does not cover the transform's code: see ``Transform.version``.
    """

    def __init__(self, corpus: Corpus, transform: Transform, key: bytes, like: Corpus | None = None):
        self._corpus, self._transform, self._like = corpus, transform, like or corpus
        self._key = secret_for(key, b"transform")
        drawn = hashlib.sha256(self._key).hexdigest() if transform.draws else None
        version = [transform.version] if transform.version else []  # so that digests of before there were any stay
        settings = map_files(transform.config, lambda key, path, _: checksum(Path(expand(key, path))), _SECTION)
        parts = [corpus.digest, self._like.categories, to_digest(settings), drawn, *version]
        self.digest = hashlib.sha256(json.dumps(parts).encode()).hexdigest()

    @property
    def num_sentences(self) -> int:
        return self._corpus.num_sentences

    @property
    def user_offsets(self) -> NDArray[np.int64]:
        return self._corpus.user_offsets

    def texts(self, users: Sequence[int] | NDArray[Any] | None = None) -> Iterator[tuple[int, list[str]]]:
        """As ``Corpus.texts``."""
        for user, pairs in self.pairs(users):
            yield user, [text for _, text in pairs]

    def pairs(
        self, users: Sequence[int] | NDArray[Any] | None = None
    ) -> Iterator[tuple[int, list[tuple[Sentence, str]]]]:
        """As ``Corpus.pairs``."""
        for user, sentences in self._corpus.sentences(users, every=True):
            first, protected = int(self._corpus.user_offsets[user]), map(self.protected, sentences)
            texts = [self._text(sentence, user, first + place) for place, sentence in enumerate(protected)]
            yield user, list(zip(sentences, texts, strict=True))

    def _text(self, sentence: Sentence, user: int, number: int) -> str:
        if not sentence.text.strip():  # null, or as good as null: it stays so
            return ""
        transform = type(self._transform)(self._transform.config)
        return transform.text_of(sentence, Generators(self._key, user, number))

    def protected(self, sentence: Sentence) -> Sentence:
        """As ``Corpus.protected``."""
        return self._like.protected(sentence)

    def told(self) -> str | None:
        """What the owner should know of the text: private."""
        return self._transform.told(sentences for _, sentences in self._corpus.sentences())


def with_mentions_replaced(sentence: Sentence, by: Callable[[Mention], str]) -> str:
    """The text with ``by(mention)`` in the place of each; of mentions that overlap, in the place of all, of the first."""
    parts, end = list[str](), 0
    for mention in sorted(sentence.mentions, key=lambda each: (each.start, -each.end)):
        if mention.start >= end:
            parts += [sentence.text[end : mention.start], by(mention)]
        end = max(end, mention.end)
    return "".join((*parts, sentence.text[end:]))


def claim_of(transform: Transform) -> Claim | None:
    """What a transform claims. Raises: TypeError for what no transform of text can promise."""
    claim = transform.claim()
    if claim is None:
        return None
    if claim.unit not in ("word", "word-metric"):
        raise TypeError(f"{type(transform).__name__} claims an epsilon of one {claim.unit!r}: word or word-metric")
    if not 0.0 <= claim.epsilon < math.inf:
        raise TypeError(
            f"{type(transform).__name__} claims an epsilon of {claim.epsilon}: a finite one from 0, or None"
        )
    return claim


def transform_of(config: TransformConfig) -> Transform | None:
    """The transform that ``corpus.transform.kind`` names; None for ``none``."""
    if config.kind == "none":
        return None
    found: type[Transform] = in_module("corpus.transforms", config.kind, "TRANSFORM")
    return found(config)
