"""Contribution bounds: how much one user, and one entity, may contribute to the corpus.

    >>> import numpy as np
    >>> from types import SimpleNamespace
    >>> from uedp_ray.config import BoundsConfig
    >>> from uedp_ray.corpus.bounds import apply_bounds
    >>> corpus = SimpleNamespace(    # of 3 users with 3, 1 and 1 sentences; all but the last hold entity 0
    ...     user_offsets=np.array([0, 3, 4, 5]), user_hash=np.array([11, 12, 13], np.uint64), num_entities=1,
    ...     entity_offsets=np.array([0, 1, 2, 3, 4, 4]), entity_ids=np.zeros(4, np.int32),
    ...     entity_hash=np.array([7], np.uint64), sentence_words=np.full(5, 10, np.int32),
    ... )
    >>> cut = BoundsConfig(mode="enforced", max_sentences_per_entity=2, entity_bound="truncate", max_holders=2)
    >>> bounded = apply_bounds(corpus, cut, declared_num_users=1000)
    >>> bounded.sentence_weight.tolist(), round(bounded.dropped_share, 2)    # (N,) in [0, 1]: what each sentence counts
    ([1.0, 1.0, 0.0, 1.0, 1.0], 0.2)
    >>> weighed = BoundsConfig(
    ...     mode="enforced", max_sentences_per_entity=2, entity_bound="reweight", max_holders=1, holder_bound="reweight"
    ... )
    >>> [round(weight, 3) for weight in apply_bounds(corpus, weighed, 1000).sentence_weight.tolist()]
    [0.333, 0.333, 0.333, 0.5, 1.0]
    >>> apply_bounds(corpus, cut, declared_num_users=2)
    Traceback (most recent call last):
        ...
    uedp_ray.errors.TextError: corpus.declared_num_users = 2: the text has more users (how many is private): declare a \
round bound that could be known without it

``declared`` bounds are public promises: data that break them are refused. ``enforced`` bounds are computed ONCE, on
the incidence graph (who holds what), before any round. A cut sentence keeps its slot and weighs zero: nothing moves up,
so the result is fixed while users and entities are taken away (the fixed-graph relation of the accounting). No cap
is greedy: a sentence's rank among a user's sentences that hold an entity counts those another bound has cut.

Shape legend: U users, N sentences, I incidences (sentence, entity), G pairs (user, entity). All arrays are private.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Protocol, assert_never

import numpy as np
from numpy.typing import NDArray

from uedp_ray.config import BoundsConfig
from uedp_ray.corpus.filling import UNIT, filled
from uedp_ray.errors import TextError

_LITTLE = 0.05
"""The share of the words below which nobody is told of what the bounds drop."""
_MUCH = 0.3
"""The share from which on detectors may be to blame."""
_FALSE_FINDS = "; what a detector takes for an entity by mistake, as in another language, counts as one"
_PRIVATE = " (private: read off the text, as is a setting that is chosen by it)"
_COUNTED = {
    "max_sentences_per_user": "sentences of a user that count",
    "max_sentences_per_entity": "sentences of a user with the same entity that count in full",
    "max_holders": "users with the same entity that count in full",
}


class IncidenceGraph(Protocol):
    """Who holds what: the part of ``Corpus`` that bounds and plans may look at. No text, no category."""

    user_offsets: NDArray[np.int64]
    """(U + 1,): user u owns sentences [u] to [u + 1]."""
    user_hash: NDArray[np.uint64]
    entity_offsets: NDArray[np.int64]
    """(N + 1,)."""
    entity_ids: NDArray[np.int32]
    """Sentence x holds entity_ids[entity_offsets[x] : entity_offsets[x + 1]]."""
    entity_hash: NDArray[np.uint64]
    sentence_words: NDArray[np.int32]

    @property
    def num_entities(self) -> int: ...


@dataclass(frozen=True, kw_only=True)
class Bounded:
    """The outcome. Everything but its type is private: it is read off the data."""

    sentence_weight: NDArray[np.float32]
    """(N,) in [0, 1]. For user u, entity e with H holders: sum of u's sentences holding e <= m min(1, K / H) where K is
    reweighted; <= m, and over all users <= K m, where it is filled; <= m, and zero for all but K holders, where it is
    truncated."""
    dropped_share: float
    """Share of the corpus's words lost: 1 - sum(weight * words) / sum(words)."""
    dropped_by: dict[str, float]
    """``dropped_share`` by bound, in the order they are applied; the parts add up."""

    def told(self, bounds: BoundsConfig, *, public: bool = False) -> str:
        """What is lost, and how to keep more, in a sentence for the text's owner; empty if it is little."""
        if self.dropped_share < _LITTLE:
            return ""
        parts = ", ".join(f"{name} {share:.0%}" for name, share in self.dropped_by.items() if share >= _LITTLE / 10)
        most = max(self.dropped_by, key=lambda name: self.dropped_by[name])
        doubted = self.dropped_share >= _MUCH and not public and most != "max_sentences_per_user"
        check = _FALSE_FINDS if doubted else ""
        fill = ", or set bounds.holder_bound: fill, at the same ε" if bounds.holder_bound == "reweight" else ""
        return (
            f"{self.dropped_share:.0%} of the words are dropped by bounds: {parts}; to keep more, raise bounds.{most} "
            f"({_COUNTED[most]}; uedp-ray plan says what that costs){fill}{check}{'' if public else _PRIVATE}"
        )


def apply_bounds(corpus: IncidenceGraph, bounds: BoundsConfig, declared_num_users: int | None) -> Bounded:
    """Weighs every sentence by ``bounds``.

    Enforced, in this order:
      1. a user's sentences from slot ``max_sentences_per_user`` on weigh 0;
      2. a user with s remaining sentences holding e, s > m: ``truncate`` lets the first m count, ``reweight``
         multiplies each by m / s;
      3. an entity with H holders, H > K: ``truncate`` lets K holders count, first by a hash of user and entity,
         ``reweight`` multiplies by K / H.
    A sentence weighs as little as the entity that allows it least: the minimum over its entities of factors 2 times 3.
    ``fill`` instead of 3 (and of 2, where that would be ``reweight``): weights rise together until those of an entity's
    sentences sum to K m, or those of one user with it to m (``filling``).

    Guarantees: a function of the graph and the stable hashes only, so the same on every machine; time O(I log I).
    Raises: TextError if there are more users than declared, or, when ``declared``, if a bound is broken (by how
    many users or entities, never which).
    """
    num_users, num_sentences = len(corpus.user_hash), len(corpus.sentence_words)
    if declared_num_users is not None and num_users > declared_num_users:
        remedy = "the text has more users (how many is private): declare a round bound that could be known without it"
        raise TextError("corpus.declared_num_users", declared_num_users, remedy)
    if bounds.mode == "none":
        return _outcome(corpus, {"max_sentences_per_user": np.ones(num_sentences)})
    sentence_counts = np.diff(corpus.user_offsets)
    limit = bounds.max_sentences_per_user
    if bounds.mode == "declared" and limit is not None:
        _refuse("max_sentences_per_user", limit, int((sentence_counts > limit).sum()), "users have more sentences")

    sentence_user = np.repeat(np.arange(num_users), sentence_counts)
    slot = np.arange(num_sentences) - corpus.user_offsets[:-1][sentence_user]
    alive = np.ones(num_sentences, bool) if limit is None else slot < limit

    # Incidences ordered by (user, entity), and within a pair by slot: sentences are numbered in that order already.
    incidence_counts = np.diff(corpus.entity_offsets)
    sentence_I = np.repeat(np.arange(num_sentences), incidence_counts)
    num_entities = max(len(corpus.entity_hash), 1)
    pair_key_I = sentence_user[sentence_I] * num_entities + corpus.entity_ids
    order = np.argsort(pair_key_I, kind="stable")
    pair_key_G, pair_start_G, pair_size_G = np.unique(pair_key_I[order], return_index=True, return_counts=True)
    pair_I = np.repeat(np.arange(len(pair_key_G)), pair_size_G)  # in the sorted order
    user_G, entity_G = np.divmod(pair_key_G, num_entities)
    holders_E = np.bincount(entity_G, minlength=num_entities)
    rank_I = np.arange(len(order)) - pair_start_G[pair_I]  # those beyond a user's sentences come last
    surviving_G = np.bincount(pair_I, weights=alive[sentence_I[order]], minlength=len(pair_key_G))

    m, most_holders = bounds.max_sentences_per_entity, bounds.max_holders
    if bounds.mode == "declared":
        users = len(np.unique(user_G[pair_size_G > m]))
        _refuse("max_sentences_per_entity", m, users, "users hold an entity in more sentences")
        _refuse("max_holders", most_holders, int((holders_E > most_holders).sum()), "entities have more holders")
        return _outcome(corpus, {"max_sentences_per_user": np.ones(num_sentences)})
    if bounds.mode != "enforced":
        assert_never(bounds.mode)

    if bounds.entity_bound == "truncate":
        entity_factor_I = (rank_I < m).astype(np.float64)
    elif bounds.entity_bound == "reweight":
        entity_factor_I = np.minimum(1.0, m / np.maximum(surviving_G, 1.0))[pair_I]
    else:
        assert_never(bounds.entity_bound)
    by_entity_bound = _least(entity_factor_I, order, corpus.entity_offsets)

    def also_by(holder_factor_G: NDArray[np.float64]) -> NDArray[np.float64]:
        return _least(entity_factor_I * holder_factor_G[pair_I], order, corpus.entity_offsets)

    if bounds.holder_bound == "truncate":
        tie = mix64(corpus.user_hash[user_G] ^ mix64(corpus.entity_hash[entity_G]))
        by_entity = np.lexsort((corpus.user_hash[user_G], tie, entity_G))
        rank_G = np.empty(len(pair_key_G), np.int64)
        rank_G[by_entity] = np.arange(len(pair_key_G)) - (np.cumsum(holders_E) - holders_E)[entity_G[by_entity]]
        by_both = also_by((rank_G < most_holders).astype(np.float64))
    elif bounds.holder_bound == "reweight":
        by_both = also_by(np.minimum(1.0, most_holders / holders_E[entity_G]))
    elif bounds.holder_bound == "fill":
        among = alive if bounds.entity_bound == "reweight" else alive & (by_entity_bound > 0.0)
        shared = min(m * most_holders, num_sentences) * UNIT
        capacities = np.concatenate([np.full(num_entities, shared), np.full(len(pair_key_G), m * UNIT)])
        links_I = np.concatenate([corpus.entity_ids[order], num_entities + pair_I])
        by_both = filled(np.tile(sentence_I[order], 2), links_I, capacities=capacities, open_N=among) / UNIT
    else:
        assert_never(bounds.holder_bound)
    return _outcome(
        corpus,
        {
            "max_sentences_per_user": alive.astype(np.float64),
            "max_sentences_per_entity": alive * by_entity_bound,
            "max_holders": alive * by_both,
        },
    )


_KEPT: dict[bytes, Bounded] = {}
_MOST_KEPT = 4
"""Outcomes kept by a process, the last ones: of the texts of a trial, say. Each has a number for every sentence."""
_READ = ("user_offsets", "user_hash", "entity_offsets", "entity_ids", "entity_hash", "sentence_words")


def bounded_once(corpus: IncidenceGraph, bounds: BoundsConfig, declared_num_users: int | None) -> Bounded:
    """``apply_bounds``, which is not computed again in a process that trains several runs on the same graph.

    The graph itself is compared, by a digest of all that is read of it. What is refused is refused again.
    Raises: as ``apply_bounds``.
    """
    digest = hashlib.sha256(repr((bounds, declared_num_users, corpus.num_entities)).encode())
    for name in _READ:
        array = np.ascontiguousarray(getattr(corpus, name))
        digest.update(repr((name, array.dtype.str, array.shape)).encode())
        digest.update(array.data)
    key = digest.digest()
    found = _KEPT.pop(key, None)
    if found is None:
        found = apply_bounds(corpus, bounds, declared_num_users)
        found.sentence_weight.flags.writeable = False
    _KEPT[key] = found
    while len(_KEPT) > _MOST_KEPT:
        del _KEPT[next(iter(_KEPT))]
    return found


def _refuse(field: str, value: int, count: int, what: str) -> None:
    if count:
        raise TextError(f"bounds.{field}", value, f"{count} {what}: declare more, or use bounds.mode enforced")


def _least(factor_I: NDArray[np.float64], order: NDArray[np.int64], offsets: NDArray[np.int64]) -> NDArray[np.float64]:
    """(N,) the smallest factor among a sentence's entities; 1 for a sentence without any."""
    by_sentence = np.empty_like(factor_I)
    by_sentence[order] = factor_I
    least = np.ones(len(offsets) - 1)
    sensitive = np.flatnonzero(np.diff(offsets))
    if len(sensitive):  # reduceat needs non-empty segments, and those follow each other without a gap
        least[sensitive] = np.minimum.reduceat(by_sentence, offsets[sensitive])
    return least


def mix64(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The finaliser of SplitMix64 (Steele, Lea and Flood 2014): every input bit reaches every output bit."""
    values = values + np.uint64(0x9E3779B97F4A7C15)
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def _outcome(corpus: IncidenceGraph, weights: dict[str, NDArray[np.float64]]) -> Bounded:
    words = np.asarray(corpus.sentence_words, np.float64)
    total = max(float(words.sum()), 1.0)
    kept = [1.0, *(float(weight @ words) / total for weight in weights.values())]
    kept = np.maximum.accumulate(kept[::-1])[::-1].tolist()  # filling may leave a user more than that user's step did
    last = list(weights.values())[-1]
    rounded = last.astype(np.float32)
    above = rounded > last  # float32 must not lift a sum of shares over its bound
    rounded[above] = np.nextafter(rounded[above], np.float32(0))
    return Bounded(
        sentence_weight=rounded,
        dropped_share=1.0 - kept[-1],
        dropped_by={name: before - after for name, before, after in zip(weights, kept, kept[1:], strict=False)},
    )
