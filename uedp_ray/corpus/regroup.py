"""A prepared corpus with other users: every sentence a user of its own, or all sentences shuffled and dealt out anew.

    corpus = Regrouped(open_corpus("corpora/conll"), "iid", b"secret")
    corpus.num_sentences, corpus.user_offsets    # as before, but a user has sentences of anybody

A user is then no person: what is accounted of one is a promise about one record, which is a sentence (docs/accounting.md,
"Regrouped users"). Nothing is written: a start that has the corpus and the key has the same users again.
Shape legend: U users, N sentences, I incidences, as in ``store``.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from uedp_ray.config import Regrouping
from uedp_ray.corpus.bounds import mix64
from uedp_ray.corpus.store import Corpus
from uedp_ray.draws import secret_for

T = TypeVar("T")


class Regrouped(Corpus):
    """The sentences of ``corpus`` under ``rule``; every array, text and number is that of the new users.

    ``records``: sentence x is user x, in the order of the corpus. ``iid``: users keep their numbers of sentences, and which
    those are is drawn from ``key``, a secret of one run. No text decides who gets what.
    Memory: with ``iid`` whoever reads texts holds those of everybody.
    """

    def __init__(self, corpus: Corpus, rule: Regrouping, key: bytes):
        assert rule != "users", "a corpus as it is needs no view"
        shards = corpus._shard_digests  # are checked against the digest of the whole, not against ours
        self.__dict__.update(vars(corpus) | {"_shard_digests": shards})
        self._whole = corpus
        secret = secret_for(key, b"regroup")
        self.names_users, self.numbered, self.user_names = False, "one sentence", np.zeros(0, np.uint64)
        self._order: NDArray[np.int64] | None = None
        drawn = None
        if rule == "records":
            owner_N = np.repeat(np.arange(corpus.num_users), np.diff(corpus.user_offsets))
            slot_N = np.arange(corpus.num_sentences) - corpus.user_offsets[owner_N]
            self.user_hash = mix64(corpus.user_hash[owner_N] + mix64(slot_N.astype(np.uint64)))
            self.user_offsets = np.arange(corpus.num_sentences + 1)
            self.shard_users = np.asarray(corpus.user_offsets[corpus.shard_users])
        else:
            drawn = hashlib.sha256(secret).hexdigest()
            draws = np.random.Generator(np.random.Philox(key=int.from_bytes(secret[:16], "little")))
            self._order = draws.permutation(corpus.num_sentences)
            self._reorder(self._order)
        self.digest = hashlib.sha256(json.dumps([corpus.digest, rule, drawn]).encode()).hexdigest()
        self._count_holders()

    def _reorder(self, order: NDArray[np.int64]) -> None:
        """Puts sentence ``order[i]`` into the place of sentence i."""
        counts_N = np.diff(self.entity_offsets)[order]
        offsets = np.concatenate([[0], np.cumsum(counts_N)])
        moved_N = self.entity_offsets[:-1][order] - offsets[:-1]
        self.entity_ids = self.entity_ids[np.repeat(moved_N, counts_N) + np.arange(offsets[-1])]
        self.entity_offsets, self.sentence_words = offsets, self.sentence_words[order]

    def _count_holders(self) -> None:
        owner_N = np.repeat(np.arange(self.num_users), np.diff(self.user_offsets))
        owner_I = np.repeat(owner_N, np.diff(self.entity_offsets))
        pairs = np.unique(np.stack([self.entity_ids, owner_I]), axis=1)
        self.entity_holders = np.bincount(pairs[0], minlength=self.num_entities).astype(np.int32)
        most = int(self.entity_holders.max(initial=0))
        self.statistics = self.statistics | {"users": self.num_users, "max_holders": most}

    def _read(
        self, users: Sequence[int] | NDArray[Any] | None, columns: list[str], decode: Callable[[pa.Table], list[T]]
    ) -> Iterator[tuple[int, list[T]]]:
        if self._order is None:
            yield from super()._read(users, columns, decode)
            return
        rows = [row for _, read in self._whole._read(None, columns, decode) for row in read]
        for user in (np.arange(self.num_users) if users is None else np.unique(np.asarray(users, np.int64))).tolist():
            first, last = self.user_offsets[user : user + 2].tolist()
            yield user, [rows[place] for place in self._order[first:last].tolist()]
