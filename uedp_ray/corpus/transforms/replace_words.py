"""Words replaced by others that are drawn: local differential privacy of words, whoever sees the text.

    >>> from pathlib import Path
    >>> from tempfile import TemporaryDirectory
    >>> from uedp_ray.config import TransformConfig
    >>> from uedp_ray.corpus.records import Sentence
    >>> from uedp_ray.corpus.transforms.base import Generators, transform_of
    >>> folder = TemporaryDirectory()
    >>> file = Path(folder.name, "toy.txt")
    >>> size = file.write_text("oslo 0 0\\nrome 0 1\\nate 5 0\\nslept 5 1\\n")
    >>> config = TransformConfig(kind="replace_words", vectors=str(file), num_neighbours=2, epsilon=1.0)
    >>> transform = transform_of(config)
    >>> transform.text_of(Sentence("ann", "We ate 12 in Oslo."), Generators(b"secret key", user=0, sentence=0))
    'oslo ate 74 ate oslo.'
    >>> transform.claim().unit, transform.claim().epsilon
    ('word', 1.0)
    >>> folder.cleanup()

A word with a vector goes through the mechanism (``corpus.word_mechanisms``). A number becomes random digits. What becomes of
other words, and of mentions of several words, is ``unknown``'s to say. Blanks and punctuation stay, and so does the number
of words. docs/accounting.md, "Words", has the proofs.
"""

from __future__ import annotations

import copy
import functools
import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from uedp_ray.config import TransformConfig
from uedp_ray.config.choices import PROVED_WORD_MECHANISMS
from uedp_ray.config.io import expand
from uedp_ray.corpus.detectors.list_file import read_phrases
from uedp_ray.corpus.records import Mention, Sentence, entity_form
from uedp_ray.corpus.transforms.base import Claim, Generators, Transform, with_mentions_replaced
from uedp_ray.corpus.vectors import WORD, read_vectors
from uedp_ray.corpus.word_mechanisms import WordMechanism, mechanism_of


class _Public(NamedTuple):
    """What is made of the files that the settings name: public, and the same for every sentence."""

    mechanism: WordMechanism
    names: dict[str, list[str]]
    """By category; empty without a list."""
    stop_words: frozenset[str]


class _Word(NamedTuple):
    """A word, or a mention as a whole, that is to be replaced."""

    said: str
    known: int | None
    """Its number, if it has a vector."""
    name: str
    """What it shares with other occurrences of the same word, or entity; of a mention, its category as well."""
    category: str | None
    """Of the mention that it is, or is in."""


class ReplaceWords(Transform):
    """With ``scope: all`` word by word, with ``entities`` mention by mention; what else the text says stays."""

    @property
    def moves_words(self) -> str:
        """A mention as a whole becomes one word, or a name of several."""
        if self.config.scope == "entities":
            return "scope"
        return "unknown" if self.config.unknown == "category_list" else ""

    def claim(self) -> Claim | None:
        """None if the mechanism states none, or no word is hidden among others."""
        mechanism = self._public.mechanism
        if not mechanism.unit or not math.isfinite(mechanism.epsilon):
            return None
        kept = self._public.stop_words if self.config.scope == "all" else frozenset[str]()
        replaced = np.array([word.lower() not in kept for word in mechanism.vectors.words])
        among = mechanism.hidden_among(replaced)[replaced]
        alone = int(np.count_nonzero(among <= 1))
        if alone == len(among):
            return None
        return Claim(mechanism.unit, mechanism.epsilon, " ".join(self._left_out(mechanism, alone, len(among))))

    def _left_out(self, mechanism: WordMechanism, alone: int, size: int) -> Iterator[str]:
        config = self.config
        draws = {
            "token": "Each occurrence of a word is a draw of its own, and costs this epsilon again.",
            "record": "A word is drawn once in a sentence, and costs this epsilon again in each sentence that has it. Where "
            "a sentence repeats a word shows.",
            "user": "A word is drawn once for a user; each word of a user costs this epsilon. Where a user repeats a word "
            "shows.",
        }
        left_alone = f"{alone:,} of {size:,} words are alone in their group, and not protected."
        if 2 * alone > size:
            yield f"Not of most words: {left_alone}"
        yield draws[self.config.word_draw]
        listed = " and the listed names are" if config.unknown == "category_list" else " are"
        yield f"The vectors, their words{listed} taken as public."
        yield "Where sentences begin and end, and where entities were found, is taken as fixed, though words decide on it."
        if mechanism.unit == "word-metric":
            measured = "Mahalanobis" if config.mechanism == "vickrey" and config.mahalanobis else "Euclidean"
            yield f"It is for two words at a {measured} distance of 1 between their vectors, and grows with the distance."
            yield "Where it grows beyond 15, it is of exact draws, and not of draws with 53 bits."
        elif config.mechanism != "random":
            yield "It is of words that may become the same words; to which of these groups a word belongs may show."
            if mechanism.epsilon > 15:
                yield "Beyond 15, it is of exact draws, and not of draws with 53 bits."
        if 0 < 2 * alone <= size:
            yield left_alone
        if config.scope == "entities":
            yield "Only the mentions that were found are replaced: all other words stay, and where mentions are may show."
        if config.keep_stop_words and config.scope == "all":
            yield "Stop-words outside mentions stay as they are, unprotected."
        unknown = {
            "uniform": "becomes a random word, whatever it was",
            "category_list": "becomes a random name of its category, which shows, or a random word if it has none listed",
            "copy": "stays as it is, UNPROTECTED; names are what most often has none",
        }[config.unknown]
        yield f"What has no vector {unknown}; that it has none may show."
        yield "A number becomes random digits. Blanks, punctuation, the number of words and the digits in a number stay."
        yield "Labels and tags stay as they are, and may show what a word was."
        yield "Here one program plays all users: whoever has its private/ has their texts."

    @functools.cached_property
    def _public(self) -> _Public:
        """Raises: InputError if a file cannot be read, or has another form."""
        config = self.config
        paths = [expand(f"corpus.transform.{name}", getattr(config, name)) for name in ("vectors", "category_list")]
        return _made(config, *((path, _state(path)) for path in paths))

    @property
    def mechanism(self) -> WordMechanism:
        """A copy, so that what a draw leaves in it reaches no other."""
        return copy.copy(self._public.mechanism)

    def check(self) -> None:
        _ = self._public

    def told(self, users: Iterable[Sequence[Sentence]]) -> str | None:
        if self.config.mechanism not in PROVED_WORD_MECHANISMS or self.claim() is None:
            return None  # no figure that nothing proves
        epsilon = self._public.mechanism.epsilon
        most = max(map(self._num_draws, users), default=0)
        far = ", times the distance between two words" if self._public.mechanism.unit == "word-metric" else ""
        return (
            f"a user has up to {most:,} draws of epsilon = {epsilon:g} each, {most * epsilon:g} in all{far} (private: read "
            "off the text)"
        )

    def _num_draws(self, sentences: Sequence[Sentence]) -> int:
        """Draws, of those that cost something, for one user."""
        drawn = [[word.name for word in self._words(each) if word.known is not None] for each in sentences]
        if self.config.word_draw == "user":
            return len({name for names in drawn for name in names})
        return sum(len(set(names) if self.config.word_draw == "record" else names) for names in drawn)

    def text_of(self, sentence: Sentence, generators: Generators) -> str:
        drawn: dict[str, str] = {}

        def by(word: _Word) -> str:
            if self.config.word_draw == "user":
                return self._becomes(word, generators.of_user(word.name))
            if self.config.word_draw == "token" or word.name not in drawn:
                drawn[word.name] = self._becomes(word, generators.sentence)
            return drawn[word.name]

        return self._replaced(sentence, by)

    def _words(self, sentence: Sentence) -> list[_Word]:
        """What is replaced, in order."""
        found = list[_Word]()

        def by(word: _Word) -> str:
            found.append(word)
            return ""

        self._replaced(sentence, by)
        return found

    def _replaced(self, sentence: Sentence, by: Callable[[_Word], str]) -> str:
        vectors, stop_words = self._public.mechanism.vectors, self._public.stop_words
        if self.config.scope == "entities":

            def mention(each: Mention) -> str:
                form = entity_form(sentence.text, each)
                said = sentence.text[each.start : each.end]
                return by(_Word(said, vectors.find(form), f"{each.category} {form}", each.category))

            return with_mentions_replaced(sentence, mention)
        mentioned = {place: each.category for each in sentence.mentions for place in range(each.start, each.end)}

        def word(match: re.Match[str]) -> str:
            said, category = match[0], mentioned.get(match.start())
            if category is None and said.lower() in stop_words:
                return said
            known = vectors.find(said)
            return by(_Word(said, known, said if known is None else vectors.words[known], category))

        return WORD.sub(word, sentence.text)

    def _becomes(self, word: _Word, generator: np.random.Generator) -> str:
        public = self._public
        words = public.mechanism.vectors.words
        if word.known is not None:
            return words[int(self.mechanism.sample(np.array([word.known]), generator)[0])]
        if word.said.isdecimal():
            return "".join(map(str, generator.integers(10, size=len(word.said))))
        if self.config.unknown == "copy":
            return word.said
        choices = public.names.get(word.category or "", words)
        return choices[int(generator.integers(len(choices)))]


def _state(path: str) -> tuple[int, int] | None:
    try:
        found = Path(path).stat()
    except OSError:
        return None  # reading it says why
    return found.st_size, found.st_mtime_ns


@functools.lru_cache(maxsize=4)
def _made(config: TransformConfig, vectors: tuple[str, object], listed: tuple[str, object]) -> _Public:
    """Of files in the state that is given with their names."""
    names: dict[str, list[str]] = {}
    if listed[0]:
        for name, category in read_phrases(Path(listed[0]), "corpus.transform.category_list", config.category_list):
            names.setdefault(category, []).append(name)
    stop_words: frozenset[str] = frozenset()
    if config.keep_stop_words:
        from spacy.lang.en.stop_words import STOP_WORDS  # slow to import

        stop_words = frozenset(STOP_WORDS)
    mechanism = mechanism_of(config, read_vectors(Path(vectors[0]), "corpus.transform.vectors"))
    return _Public(mechanism, names, stop_words)


TRANSFORM = ReplaceWords
