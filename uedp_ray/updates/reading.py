"""That what a task makes of a sentence follows from that sentence, shown on made-up ones before the first round.

    >>> import numpy as np
    >>> from uedp_ray.errors import InputError
    >>> from uedp_ray.tasks.next_word import NextWord
    >>> from uedp_ray.updates.reading import check_reading
    >>> task = NextWord(bos_id=0, eos_id=0, pad_id=0, max_length=8)
    >>> check_reading(task, "next_word", vocab_size=50, longest=8, beside=True)
    >>> class Sorted(NextWord):
    ...     def collate(self, sentences, shape=None):
    ...         return super().collate(sorted(sentences, key=len), shape)    # the first row is that of the shortest
    >>> try:
    ...     check_reading(Sorted(0, 0, 0, 8), "sorted", vocab_size=50, longest=8, beside=True)
    ... except InputError as error:
    ...     print(error.field, error.value)
    task.kind sorted

A test, not a proof: a statistic that is used from hundreds of sentences on, or now and then, does not show in a few.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import numpy as np
import torch

from uedp_ray.errors import InputError
from uedp_ray.tasks.base import Batch, Task

_SENTENCES = 12


def check_reading(
    task: Task,
    kind: str,
    *,
    vocab_size: int,
    longest: int,
    beside: bool,
    isolated: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> None:
    """Reads made-up sentences, each alone; again after others, in another order; and together.

    Args:
      longest: ``model.max_length``. ``isolated``: undoes what a reading leaves, as in a run.
      beside: whether a sentence shares batches with those of other users: its row must then be what it is alone.
    Raises: InputError if ``length`` or ``collate`` gives a sentence something else another time.
    """
    generator = np.random.default_rng(0)
    positions = [longest // 2, longest, 2, *generator.integers(2, longest + 1, 2 * _SENTENCES - 3).tolist()]
    made_up = [task.made_up(each, vocab_size, generator) for each in positions]
    sentences, others = [*made_up[:_SENTENCES], made_up[0][:0]], made_up[_SENTENCES:]
    shape = len(sentences), longest

    def read(*chosen: np.ndarray) -> tuple[int, Batch]:
        with isolated():
            length = task.length(chosen[0])
        with isolated():
            return length, task.collate(chosen, shape)

    first = [read(sentence) for sentence in sentences]
    for other in others:  # by which a mean moves: it would not by the same ones again
        read(other)
    again = [read(sentence) for sentence in reversed(sentences)][::-1]
    same = all(length == now and _same(alone, then) for (length, alone), (now, then) in zip(first, again, strict=True))
    if beside:
        together = read(*sentences)[1]
        same = same and all(_same(together[n : n + 1], alone[:1]) for n, (_, alone) in enumerate(first))
    if not same:
        remedy = (
            "length or collate gives a sentence something else after others, or beside them, so no bound holds: it must "
            "follow from that sentence alone"
        )
        raise InputError("task.kind", kind, remedy)


def _same(one: Batch, other: Batch) -> bool:
    if one.packing is not None or other.packing is not None:  # whose rows are not those of sentences
        return False
    return all(torch.equal(getattr(one, name), getattr(other, name)) for name in ("input_ids", "targets", "lengths"))
