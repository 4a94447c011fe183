"""Public text cut into users, of as many sentences as are declared of the private ones: a proxy to search settings on."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from uedp_ray.config import SourceConfig
from uedp_ray.corpus.readers import read
from uedp_ray.corpus.readers.base import Reader
from uedp_ray.corpus.records import Sentence
from uedp_ray.errors import InputError


def read_pseudo_users(source: SourceConfig) -> Iterator[Sentence]:
    """The text's sentences in its own order, ``sentences_per_user`` to each of ``num_users`` users, after those of the
    first ``skip_users``: neighbouring sentences share names and topics, as those of one author do.

    Nothing is promised to such users: blanking one moves the sentences of those after it, and whoever wrote the text is in
    several. ``training.guard.check_owners`` refuses them as private text. Raises: InputError if there are fewer.
    """
    each, index = source.sentences_per_user, 0
    first, end = source.skip_users * each, (source.skip_users + source.num_users) * each
    for sentence in read(dataclasses.replace(source, format=source.read_as)):
        if not sentence.text.strip():
            continue
        if index >= first:
            yield dataclasses.replace(sentence, user=f"user-{index // each}")
        index += 1
        if index == end:
            return
    remedy = (
        f"the text is too short for {source.skip_users} + {source.num_users} users of {each} sentences: name more of it"
    )
    raise InputError("num_users", source.num_users, remedy)  # without its length, which may be private


READER = Reader(
    read_pseudo_users, lambda source: f"{source.sentences_per_user} sentences in a row of text without users"
)
