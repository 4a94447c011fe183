"""What many users hold, gathered at once from the incidence graph, in blocks whose size does not grow with the users.

    >>> import numpy as np
    >>> from types import SimpleNamespace
    >>> from uedp_ray.corpus.gathering import blocks, held_by
    >>> graph = SimpleNamespace(    # users with 2, 1 and 1 sentences; the second sentence holds entities 4 and 6
    ...     user_offsets=np.array([0, 2, 3, 4]), entity_offsets=np.array([0, 1, 3, 3, 4]), entity_ids=np.array([5, 4, 6, 5]),
    ... )
    >>> held = held_by(graph, np.array([0, 2]))
    >>> held.sentences.tolist(), held.user_N.tolist(), held.entities.tolist(), held.sentence_I.tolist()
    ([0, 1, 3], [0, 0, 1], [5, 4, 6, 5], [0, 1, 1, 2])
    >>> [block.tolist() for block in blocks(graph, np.array([0, 1, 2]), most_sentences=2)]
    [[0], [1, 2]]

Shape legend: U users asked for, N their sentences, I incidences (sentence, entity) of these.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from uedp_ray.corpus.bounds import IncidenceGraph


class Held(NamedTuple):
    """Users' sentences in order, and the entities of these."""

    sizes: NDArray[np.int64]
    """(U,) sentences of each user."""
    sentences: NDArray[np.int64]
    """(N,) by number."""
    user_N: NDArray[np.int64]
    """Whose each sentence is, by place among the users that were asked for."""
    counts: NDArray[np.int64]
    """(N,) entities of each sentence."""
    entities: NDArray[np.int32]
    """(I,) by number."""
    sentence_I: NDArray[np.int64]
    """The sentence that holds each, by place in ``sentences``."""

    def added(self, values_I: NDArray[Any]) -> NDArray[np.float64]:
        """(N,) the sum of what a sentence's entities have, in their order."""
        sums = np.bincount(self.sentence_I, weights=values_I, minlength=len(self.sentences))
        return sums.astype(np.float64, copy=False)


def held_by(graph: IncidenceGraph, users: NDArray[np.int64]) -> Held:
    """What ``users`` hold. Time and memory: O(U + N + I) of these users, wherever they are in the graph."""
    sizes, sentences = _ranges(graph.user_offsets, users)
    counts, places = _ranges(graph.entity_offsets, sentences)
    return Held(
        sizes=sizes,
        sentences=sentences,
        user_N=np.repeat(np.arange(len(users)), sizes),
        counts=counts,
        entities=np.asarray(graph.entity_ids[places]),
        sentence_I=np.repeat(np.arange(len(sentences)), counts),
    )


def blocks(
    graph: IncidenceGraph, users: NDArray[np.int64], *, most_sentences: int = 1 << 16
) -> Iterator[NDArray[np.int64]]:
    """Runs of ``users`` with at most so many sentences together; one who has more is alone."""
    ends = np.cumsum(np.asarray(graph.user_offsets[users + 1]) - np.asarray(graph.user_offsets[users]))
    first, before = 0, 0
    while first < len(users):
        last = max(first + 1, int(np.searchsorted(ends, before + most_sentences, "right")))
        yield users[first:last]
        first, before = last, int(ends[last - 1])


def _ranges(offsets: NDArray[np.int64], rows: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(R,) sizes of the ranges [offsets[row], offsets[row + 1]), and the numbers in all of these, in order."""
    first = np.asarray(offsets[rows])
    sizes = np.asarray(offsets[rows + 1]) - first
    ends = np.cumsum(sizes)
    return sizes, np.repeat(first - (ends - sizes), sizes) + np.arange(int(sizes.sum()))
