"""Which sentences share a pass: those of one padded length, of users who follow each other.

    >>> import numpy as np
    >>> from uedp_ray.plan import UserSelection
    >>> from uedp_ray.updates.batches import Batches, Drawn
    >>> def drawn(user, first, lengths):
    ...     numbers = np.arange(first, first + len(lengths))
    ...     return Drawn.of(UserSelection(user, numbers, np.ones(len(numbers)), len(numbers)), lengths)
    >>> batches = Batches({8: [4, 2], 16: [2]})    # by padded length, the numbers of rows that a batch may have
    >>> batches.add(drawn(0, 0, [16, 8, 8]))
    >>> batches.full() is None
    True
    >>> batches.add(drawn(1, 3, [8, 8, 16]))
    >>> shape, sentences = batches.full()    # of those that are, the one whose first sentence came first
    >>> shape, [(user.selection.user, int(user.numbers[at])) for user, at in sentences]
    ((2, 16), [(0, 0), (1, 5)])
    >>> for user, at in sentences:
    ...     user.give(at, "a gradient")
    >>> shape, sentences = batches.of_first()    # what its first user waits for, whether or not that batch is full
    >>> shape, [(user.selection.user, int(user.numbers[at])) for user, at in sentences]
    ((4, 8), [(0, 1), (0, 2), (1, 3), (1, 4)])
    >>> for user, at in sentences:
    ...     user.give(at, "a gradient")
    >>> batches.pop_complete().selection.user, batches.pop_complete().selection.user, batches.pop_complete()
    (0, 1, None)

Which batch a sentence is in, and beside which others, must not change its gradient: see ``shapes``.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

from uedp_ray.plan import UserSelection
from uedp_ray.updates.shapes import split


@dataclass(eq=False)
class Drawn:
    """A user whose sentences are passed, in groups of like places among the user's own and like weights, which no other user
    changes, and no sentence's absence but by that sentence.

    ``starts``: where groups begin, and where the last one ends. ``found``: what came of each sentence, as far as it passed;
    the first ``added`` of them are summed, and forgotten.
    """

    selection: UserSelection
    lengths: list[int]
    numbers: np.ndarray
    weights: np.ndarray
    starts: list[int]
    place: int = 0
    """Among users."""
    found: list[Any] = field(init=False)
    num_waiting: int = field(init=False)
    added: int = 0

    def __post_init__(self) -> None:
        self.found = [None] * len(self.lengths)
        self.num_waiting = len(self.lengths)

    @classmethod
    def of(cls, selection: UserSelection, lengths: Sequence[int], together: int = 1) -> Drawn:
        """``lengths``: the padded one of each of its sentences; ``together``: numbers of sentences in a group."""
        weights = selection.weights.astype(np.float64)
        exponents, blocks = np.frexp(weights)[1], (selection.sentences - selection.first) // together
        order = np.lexsort((selection.sentences, exponents, blocks))
        new = (np.diff(blocks[order]) != 0) | (np.diff(exponents[order]) != 0)
        starts = [0, *(np.flatnonzero(new) + 1).tolist(), len(order)] if len(order) else [0]
        padded = np.asarray(lengths, np.int64)[order].tolist()
        return cls(selection, padded, selection.sentences[order], weights[order], starts)

    def give(self, at: int, found: Any) -> None:
        """Files what came of a sentence, not None."""
        self.found[at] = found
        self.num_waiting -= 1

    def take(self) -> list[tuple[float, list[Any]]]:
        """Groups up to the first of which a sentence did not pass yet: a power of two that no weight is below, and none
        twice as much, and what came of the sentences, unless that is nothing. It is then forgotten."""
        whole = bisect_right(self.starts, self.found.index(None) if self.num_waiting else len(self.found))
        taken = []
        for first, last in pairwise(self.starts[bisect_left(self.starts, self.added) : whole]):
            found, self.found[first:last], self.added = self.found[first:last], [()] * (last - first), last
            taken.append((math.ldexp(0.5, math.frexp(self.weights[first])[1]), [each for each in found if each]))
        return taken


Batch = tuple[tuple[int, int], list[tuple[Drawn, int]]]
"""The shape (B, T) to fill up to; users, and which of their sentences."""


class Batches:
    """Users in turn, and their sentences that wait for a pass."""

    def __init__(self, rows: Mapping[int, Sequence[int]]):
        self.users: deque[Drawn] = deque()
        self._rows = rows
        self._waiting: dict[int, deque[tuple[Drawn, int]]] = {length: deque() for length in rows}

    def add(self, user: Drawn) -> None:
        """Puts a user last."""
        user.place = self.users[-1].place + 1 if self.users else 0
        self.users.append(user)
        for at, length in enumerate(user.lengths):
            self._waiting[length].append((user, at))

    def pop_complete(self) -> Drawn | None:
        """Takes out a user of whom every sentence passed; the first alone, if a part of its own is summed."""
        begun = self.users and self.users[0].added
        candidates = [self.users[0]] if begun else self.users
        done = next((each for each in candidates if not each.num_waiting), None)
        if done is not None:
            self.users.remove(done)
        return done

    def full(self) -> Batch | None:
        """A batch without empty rows, if there are as many sentences of a length: of those that came first."""
        full = [length for length, waiting in self._waiting.items() if len(waiting) >= self._rows[length][0]]

        def came(length: int) -> tuple[int, int]:
            user, at = self._waiting[length][0]
            return user.place, at

        return self._of(min(full, key=came)) if full else None

    def of_first(self) -> Batch:
        """A batch that the first user waits for."""
        first = self.users[0]
        return self._of(first.lengths[first.found.index(None)])

    def of_group(self) -> Batch:
        """A batch of the group alone that the first user waits for: nothing of it waits any longer than the group's sum."""
        first = self.users[0]
        at = first.found.index(None)
        group = slice(at, first.starts[bisect_right(first.starts, at)])
        same = zip(first.lengths[group], first.found[group], strict=True)
        return self._of(first.lengths[at], sum(each == (first.lengths[at], None) for each in same))

    def _of(self, length: int, most: int | None = None) -> Batch:
        """Those that came first: of the first user, if it has any of this length, in the order of its groups."""
        waiting = self._waiting[length]
        num, rows = next(split(len(waiting) if most is None else most, self._rows[length]))
        return (rows, length), [waiting.popleft() for _ in range(num)]


def most_of_group(held: Mapping[int, int], rows: Mapping[int, Sequence[int]], together: int) -> int:
    """The most that waits of batches that have sentences of one group alone (``Batches.of_group``).

    Args: by length, ``held``: what waits of a row, and ``rows``: numbers of rows of a batch, the most first.
      ``together``: sentences of a group, at most.
    """

    def of_each(length: int, num: int) -> float:
        return held[length] * sum(filled for _, filled in split(num, rows[length])) / num

    return math.ceil(together * max(of_each(length, num) for length in held for num in range(1, together + 1)))
