"""Public text cut into users, of as many sentences as are declared of the private ones: a proxy to search settings on."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Iterator

from uedp_ray.config import SourceConfig
from uedp_ray.corpus.readers import read
from uedp_ray.corpus.readers.base import Reader
from uedp_ray.corpus.records import Mention, Sentence
from uedp_ray.errors import InputError


def read_pseudo_users(source: SourceConfig) -> Iterator[Sentence]:
    """The text's sentences in its own order, ``sentences_per_user`` to each of ``num_users`` users, after those of the
    first ``skip_users``: neighbouring sentences share names and topics, as those of one author do.

    Nothing is promised to such users: blanking one moves the sentences of those after it, and whoever wrote the text is in
    several. ``training.guard.check_owners`` refuses them as private text. Raises: InputError if there are fewer.
    """
    each = source.sentences_per_user
    first, end = source.skip_users * each, (source.skip_users + source.num_users) * each
    index = first - 1
    for index, sentence in enumerate(itertools.islice(_of_public(source), first, end), first):
        yield dataclasses.replace(sentence, user=f"user-{index // each}")
    if index + 1 == end:
        return
    raise _too_short(source, end)  # without its length, which may be private


def check_length(source: SourceConfig) -> None:
    """Raises: InputError, with its length, for text that is too short to make users of. For text that is public."""
    if source.format != "pseudo-users":
        return
    found, needed = lengths(source)
    if found < needed:
        raise _too_short(source, needed, f", of which it has {found:,}")


def _too_short(source: SourceConfig, needed: int, of: str = "") -> InputError:
    skipped = f"{source.skip_users} skipped and " if source.skip_users else ""
    remedy = (
        f"the text is too short: {skipped}{source.num_users} users of {source.sentences_per_user} sentences "
        f"(sentences_per_user) take {needed:,}{of}, each of {source.min_words} to {source.max_words} words where short ones "
        "are joined: name more text, or fewer users"
    )
    return InputError("num_users", source.num_users, remedy)


def lengths(source: SourceConfig) -> tuple[int, int]:
    """How many sentences there are to make users of, counted no further than how many it takes, and the latter. For text
    that is public."""
    needed = (source.skip_users + source.num_users) * source.sentences_per_user
    return sum(1 for _ in itertools.islice(_of_public(source), needed)), needed


def _of_public(source: SourceConfig) -> Iterator[Sentence]:
    return _joined(read(dataclasses.replace(source, format=source.read_as)), source)


def _joined(sentences: Iterable[Sentence], source: SourceConfig) -> Iterator[Sentence]:
    """Joins neighbours until each has ``min_words``, or would have more than ``max_words``; drops those without any."""
    held: Sentence | None = None
    held_words = 0
    for sentence in sentences:
        words = len(sentence.text.split())
        if not words:
            continue
        if held is not None and held_words + words <= source.max_words:
            held, held_words = _and(held, sentence), held_words + words
        else:
            if held is not None:
                yield held
            held, held_words = sentence, words
        if held_words >= source.min_words:
            yield held
            held, held_words = None, 0
    if held is not None:
        yield held


def _and(one: Sentence, other: Sentence) -> Sentence:
    """Both as one sentence, which has no label: theirs were of each alone."""
    moved = len(one.text) + 1
    mentions = (Mention(m.category, m.start + moved, m.end + moved) for m in other.mentions)
    tags = None if one.tags is None or other.tags is None else one.tags + other.tags
    return Sentence(one.user, f"{one.text} {other.text}", None, tags, (*one.mentions, *mentions))


READER = Reader(
    read_pseudo_users, lambda source: f"{source.sentences_per_user} sentences in a row of text without users"
)
