"""What a pass changes in what a network holds is put back, or the network is refused; draws follow from the seed."""

from __future__ import annotations

import io
import itertools
import random
import threading
from collections import defaultdict
from collections.abc import Callable
from types import FunctionType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from tests.updates.test_memory import number, remembering
from uedp_ray.errors import InputError
from uedp_ray.models.isolation import Isolation


@pytest.mark.parametrize(
    "held", [torch.Generator(), random.Random(), iter([1]), np.array([[]], object), SimpleNamespace(x=iter([1]))]
)
def test_a_network_whose_memory_cannot_be_seen_is_refused(held):
    model = remembering(number)
    model.held = held
    with pytest.raises(InputError, match="whose changes from text to text are not seen"):
        Isolation(model, [])


def test_generators_are_left_as_they_were():
    isolated = Isolation(remembering(number), [])
    states = torch.get_rng_state(), np.random.get_state()[1], random.getstate()  # noqa: NPY002
    with isolated(seed=5):
        torch.rand(1), np.random.rand(), random.random()  # noqa: NPY002
    assert torch.equal(states[0], torch.get_rng_state())
    assert (states[1] == np.random.get_state()[1]).all()  # noqa: NPY002
    assert states[2] == random.getstate()


def test_what_is_drawn_in_a_pass_follows_from_its_seed():
    """And not from the process: workers have drawn other numbers before."""

    def draw(state: int) -> list[float]:
        torch.manual_seed(state), np.random.seed(state), random.seed(state)  # noqa: NPY002
        with Isolation(remembering(number), [])(seed=5):
            return [float(torch.rand(1)), np.random.rand(), random.random()]  # noqa: NPY002

    assert draw(1) == draw(2)


class Private:
    __slots__ = ("__seen",)

    def mark(self) -> None:
        self.__seen = 1

    @property
    def marked(self) -> bool:
        return hasattr(self, "_Private__seen")


class Word(str):
    pass


class Other:
    pass


class Another:
    pass


def behind_a_staticmethod() -> SimpleNamespace:
    met: list[int] = []
    return SimpleNamespace(met=staticmethod(lambda: met), add=staticmethod(lambda: met.append(1)))


def with_a_default(seen: int = 0) -> int:
    return seen


def copied(function: FunctionType) -> FunctionType:
    return FunctionType(function.__code__, {}, argdefs=function.__defaults__)


KEPT: dict[str, tuple[Callable[[], Any], Callable[[Any], Any], Callable[[Any], Any]]] = {
    "a private slot": (Private, lambda it: it.mark(), lambda it: it.marked),
    "an attribute of a string": (
        lambda: Word("a"), lambda it: setattr(it, "seen", 1), lambda it: hasattr(it, "seen"),
    ),
    "a method of a list": (lambda: [].append, lambda it: it(1), lambda it: it.__self__),
    "a class": (Other, lambda it: setattr(it, "__class__", Another), lambda it: type(it) is Another),
    "a function's defaults": (
        lambda: copied(with_a_default), lambda it: setattr(it, "__defaults__", (1,)), lambda it: it(),
    ),
    "a function's annotations": (
        lambda: copied(with_a_default), lambda it: it.__annotations__.update(x=1), lambda it: it.__annotations__,
    ),
    "a closure behind a staticmethod": (behind_a_staticmethod, lambda it: it.add(), lambda it: it.met()),
    "a list in a slice": (lambda: slice([]), lambda it: it.stop.append(1), lambda it: it.stop),
    "the factory of a dictionary": (
        lambda: defaultdict(int), lambda it: setattr(it, "default_factory", float), lambda it: it.default_factory is float,
    ),
    "the order of a set": (
        lambda: {8, 0, 16, 24}, lambda it: (it.clear(), it.update([24, 16, 8, 0])), lambda it: tuple(it),
    ),
    "an array's size": (lambda: np.zeros(1), lambda it: it.resize(4, refcheck=False), lambda it: len(it) > 1),
    "an array's shape": (lambda: np.zeros(4), lambda it: setattr(it, "shape", (2, 2)), lambda it: it.ndim > 1),
    "what an array is a view of": (lambda: np.zeros(4)[:1], lambda it: it.base.fill(1), lambda it: it.base[3] > 0),
    "what a buffer is a view of": (
        lambda: torch.zeros(8)[:1], lambda it: it._base.fill_(1), lambda it: bool(it._base[5] > 0),
    ),
    "a buffer's strides": (lambda: torch.zeros(3, 3), lambda it: it.t_(), lambda it: not it.is_contiguous()),
    "a buffer's memory": (
        lambda: torch.zeros(1), lambda it: it.untyped_storage().resize_(64), lambda it: it.untyped_storage().nbytes() > 4,
    ),
    "complex numbers": (
        lambda: torch.zeros(2, dtype=torch.complex64), lambda it: it.data.fill_(1), lambda it: bool(it[0].real > 0),
    ),
    "a weight's strides": (
        lambda: nn.Parameter(torch.arange(9.0).view(3, 3), requires_grad=False),
        lambda it: setattr(it, "data", it.data.t()),
        lambda it: not it.is_contiguous(),
    ),
}  # fmt: skip
"""What a network holds, how a pass may change it, and what a later one could see of that."""


@pytest.mark.parametrize("what", KEPT)
def test_what_a_pass_changes_in_what_a_network_holds_is_put_back(what):
    """Each moved the sum by 10 clip norms under ``gradient``, and by 18 under ``local_sgd``."""
    made, change, seen = KEPT[what]
    network = nn.Module()
    network.held = made()
    isolated = Isolation(network, [])
    before = repr(seen(network.held))
    for _ in range(2):
        with isolated():
            change(network.held)
            assert repr(seen(network.held)) != before, "else there is nothing to see"
        assert repr(seen(network.held)) == before


@pytest.mark.parametrize(
    "held",
    [
        *(random.Random(0).random, np.zeros(1, dtype=[("a", "f8")])[0], ValueError(), io.StringIO(), threading.local()),
        *(type("Held", (bases,), {})(*given) for bases, given in ((bytearray, ()), (itertools.count, ()))),
        type("Held", (np.random.Generator,), {})(np.random.PCG64(0)),
    ],
    ids=lambda held: type(held).__mro__[-2].__name__,
)
def test_a_network_that_holds_what_was_made_in_c_is_refused(held):
    network = nn.Module()
    network.held = held
    with pytest.raises(InputError, match="whose changes from text to text are not seen"):
        Isolation(network, [])


def test_what_a_pass_left_goes_when_it_fails_too():
    model = remembering(number)
    with pytest.raises(AttributeError), Isolation(model, [])():
        model(torch.ones(1, 12).long(), None).nothing  # noqa: B018 - raises
    assert model.number == 0
