"""What the driver has all workers do between rounds: its numbers reach them, and what it calls they run, too.

    >>> import torch
    >>> from uedp_ray.training.calls import Calls
    >>> from uedp_ray.training.reduce import LocalReducer
    >>> sent = []
    >>> class Sends(LocalReducer):    # a driver that others listen to
    ...     def from_driver(self, vector):
    ...         sent.append(int(vector))
    ...         return vector
    >>> calls = Calls(Sends(), torch.device("cpu"))
    >>> evaluate = calls.add(lambda: 0.5)
    >>> evaluate(), calls.number(7), sent    # the first function goes by the name of -2
    (0.5, 7, [-2, 7])

Which function is called follows from public numbers, and from what was released.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch

from uedp_ray.training.reduce import Reducer, drivers_number

T = TypeVar("T")

_FIRST = -2


class Calls:
    """One worker's end. Every worker adds the same functions in the same order."""

    def __init__(self, reducer: Reducer, device: torch.device):
        self._reducer, self._device = reducer, device
        self._functions: list[Callable[[], object]] = []

    def add(self, function: Callable[[], T]) -> Callable[[], T]:
        """Returns what the driver calls to have every worker run ``function``; what that returns on others is dropped."""
        name = _FIRST - len(self._functions)
        self._functions.append(function)

        def call() -> T:
            self._sent(name)
            return function()

        return call

    def number(self, value: int) -> int:
        """The driver's ``value``, of -1 or more, on every worker. Until it comes, the others run what the driver calls."""
        while (found := self._sent(value)) <= _FIRST:
            self._functions[_FIRST - found]()
        return found

    def _sent(self, value: int) -> int:
        return drivers_number(self._reducer, value, self._device)
