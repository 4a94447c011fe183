"""Every pass through a network starts in the same state.

    >>> import torch
    >>> from uedp_ray.errors import InputError
    >>> from uedp_ray.models.isolation import Isolation
    >>> class Remembers(torch.nn.Linear):
    ...     def forward(self, x):
    ...         self.seen.append(len(x))    # from one user's pass to the next one's
    ...         return super().forward(x) + torch.rand(1)
    >>> network = Remembers(2, 1)
    >>> network.seen = []
    >>> isolated = Isolation(network, network.parameters())
    >>> outputs = []
    >>> for _ in range(2):
    ...     with isolated(seed=0):
    ...         outputs.append(network(torch.ones(5, 2)))
    >>> network.seen, torch.equal(*outputs)    # nothing is left, and the draws are the same
    ([], True)
    >>> try:
    ...     with isolated(), torch.no_grad():
    ...         parameter = network.bias.add_(1.0)
    ... except InputError as error:
    ...     print(error.remedy.partition(",")[0])
    it writes to its own weights while it reads

Some networks keep something from pass to pass: rotary tables that grow with the longest input so far, a kind of attention
that a long sentence switches permanently, draws from a shared generator. One user's sentence would then change the gradients
of others', now and in later rounds, and no bound on a user's movement would hold. So whatever a pass changes in the network
is restored, and its random numbers start from a public seed. A network that writes to its weights, or visibly holds what
cannot be watched, is refused.

Watched is what Python objects reachable from the network hold: attributes, containers, buffers, settings, closures, and
what a parameter holds besides its numbers (gradient, hooks, whether it has gradients). Not watched are global variables,
attributes of classes, the internals of objects made in C (caches of functools, streams, nodes of autograd), and writes to
weights, or to buffers of whole numbers, that bypass torch's version counter (through ``.data``). No causal language model
of transformers keeps text there.
"""

from __future__ import annotations

import enum
import operator
import pathlib
import random
import re
import threading
import types
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from uedp_ray.errors import InputError

ALONE = threading.RLock()
"""Held by a thread that trains or scores: torch's generator and number of threads belong to the process, so initial weights
and a sentence's dropout masks would depend on what another thread draws."""

_VALUES = (
    *(types.NoneType, bool, int, float, complex, str, bytes, range, slice, types.EllipsisType, type),
    *(types.ModuleType, types.BuiltinFunctionType, types.GenericAlias, types.UnionType, operator.itemgetter),
    *(enum.Enum, re.Pattern, pathlib.PurePath, np.generic, np.dtype),
    *(torch.dtype, torch.device, torch.Size, torch.layout, torch.memory_format),
)
"""Types whose objects cannot change."""
_OF_TENSORS = ("requires_grad", "_backward_hooks")


class Isolation:
    """Restores a network after each pass, and seeds torch's, NumPy's and Python's generators for it.

    Args:
      trainable: parameters that are set between passes; within one they change only ``with isolated(..., trains=True)``.
      beside: by the setting that chooses them, other objects that passes share.
    Raises: InputError for a network, or an object beside it, that holds something whose changes would not be seen.
    """

    def __init__(
        self, model: nn.Module, trainable: Iterable[Tensor], beside: Mapping[str, object] = MappingProxyType({})
    ):
        self._model = type(model).__name__
        self._trainable = list(trainable)
        self._device = self._trainable[0].device if self._trainable else torch.device("cpu")
        self._weights: list[Tensor] = []
        self._buffers: list[tuple[Tensor, Tensor]] = []
        self._arrays: list[tuple[np.ndarray, np.ndarray]] = []
        self._mappings: list[tuple[dict[Any, Any], list[Any], list[Any]]] = []
        self._empty: list[dict[Any, Any]] = []  # most of a network's, and quick to check
        self._containers: list[tuple[list[Any] | set[Any] | deque[Any], list[Any]]] = []
        self._fields: list[tuple[Any, str, Any]] = []
        self._memory: list[tuple[Tensor, Tensor]] = []
        self._seen: dict[int, Any] = {id(tensor): tensor for tensor in self._trainable}
        of_trainable = [each for tensor in self._trainable for each in self._attached(tensor)]
        for setting, root in {"model": model, **beside}.items():
            found: list[Any] = [root, *of_trainable]
            while found:
                each = found.pop()
                if not isinstance(each, _VALUES) and id(each) not in self._seen:
                    self._seen[id(each)] = each
                    found += self._watch(each, setting, type(root).__name__)

    @contextmanager
    def __call__(self, seed: int = 0, *, trains: bool = False) -> Iterator[None]:
        """Surrounds a pass, or several that may affect each other.

        Raises: InputError if a pass wrote to parameters, which are not restored.
        """
        fixed = self._weights if trains else [*self._weights, *self._trainable]
        before = [tensor._version for tensor in fixed]
        kept = [buffer._version for buffer, _ in self._buffers]
        shared = np.random.get_state(), random.getstate()  # noqa: NPY002 - networks use the old ones
        try:
            with torch.random.fork_rng([self._device] if self._device.type == "cuda" else []):
                torch.manual_seed(seed)
                np.random.seed(seed % 2**32)  # noqa: NPY002
                random.seed(seed)
                yield
        finally:
            np.random.set_state(shared[0])  # noqa: NPY002
            random.setstate(shared[1])
            self._put_back(kept)
        if before != [tensor._version for tensor in fixed]:
            remedy = (
                "it writes to its own weights while it reads, so one user's text would reach others': choose another"
            )
            raise InputError("model", self._model, remedy)

    def _watch(self, each: Any, setting: str, named: str) -> list[Any]:
        """Remembers what ``each`` holds, and returns it. It belongs to what a setting chose, of the type ``named``."""
        inside: list[Any] = []
        slots, attributes = _slots(each), getattr(each, "__dict__", None)
        match each:
            case dict():
                inside = [*each, *each.values()]
                if each:
                    self._mappings.append((each, list(each), list(each.values())))
                else:
                    self._empty.append(each)
            case list() | set() | deque():
                self._containers.append((each, list(each)))
                inside = list(each)
            case tuple() | frozenset():
                inside = list(each)
            case nn.Parameter():
                self._weights.append(each)
                inside = self._attached(each)
            case Tensor() if not each.is_inference():  # those count no changes
                self._buffers.append((each, each.detach().clone()))
                inside = self._attached(each)
            case np.ndarray() if each.dtype != object:
                self._arrays.append((each, each.copy()))
            case partial():
                inside = [each.func, each.args, each.keywords]
            case types.MethodType():
                inside = [each.__self__, each.__func__]
            case types.FunctionType():
                inside = [each.__defaults__, each.__kwdefaults__, *(each.__closure__ or ())]
            case types.CellType():
                slots = ["cell_contents"]
            case _ if isinstance(each, Tensor | np.ndarray | random.Random) or (not slots and attributes is None):
                remedy = (
                    f"it holds a {type(each).__name__}, whose changes from text to text are not seen: choose another"
                )
                raise InputError(setting, named, remedy)
        self._fields += [(each, name, _field(each, name)) for name in slots]
        inside += [_field(each, name) for name in slots]
        if isinstance(attributes, dict):  # a class has a view of one
            inside.append(attributes)
        return inside

    def _attached(self, tensor: Tensor) -> list[Any]:
        """Remembers what a tensor holds besides its numbers, and returns it."""
        self._memory.append((tensor, tensor.data))
        names = [*_OF_TENSORS, *(("grad", "_post_accumulate_grad_hooks") if tensor.is_leaf else ())]
        self._fields += [(tensor, name, _field(tensor, name)) for name in names]
        return [*(_field(tensor, name) for name in names), vars(tensor)]

    @torch.no_grad()
    def _put_back(self, versions: list[int]) -> None:
        if any(self._empty):
            for mapping in self._empty:
                mapping.clear()
        for mapping, keys, values in self._mappings:
            if not (_same(mapping, keys) and _same(mapping.values(), values)):
                mapping.clear()
                mapping.update(zip(keys, values, strict=True))
        for container, items in self._containers:
            if not _same(container, items):
                container.clear()
                (container.update if isinstance(container, set) else container.extend)(items)
        for owner, name, value in self._fields:
            if _field(owner, name) is not value:
                delattr(owner, name) if value is _ABSENT else setattr(owner, name, value)
        for tensor, memory in self._memory:
            if tensor.data_ptr() != memory.data_ptr() or tensor.dtype != memory.dtype or tensor.shape != memory.shape:
                tensor.data = memory
        for array, numbers in self._arrays:
            array[...] = numbers
        for (buffer, content), version in zip(self._buffers, versions, strict=True):
            if buffer._version != version or buffer.is_floating_point():  # batch_norm writes to these uncounted
                buffer.resize_(content.shape).copy_(content)


class _Absent(enum.Enum):
    ABSENT = enum.auto()


_ABSENT = _Absent.ABSENT


def _field(owner: Any, name: str) -> Any:
    try:
        return getattr(owner, name, _ABSENT)
    except ValueError:  # an empty cell
        return _ABSENT


def _same(now: Collection[Any], before: list[Any]) -> bool:
    return len(now) == len(before) and all(map(operator.is_, now, before))


def _slots(each: Any) -> list[str]:
    """Attributes that an object holds outside of its ``__dict__``."""
    found: list[str] = []
    for kind in type(each).__mro__:
        slots = vars(kind).get("__slots__", ())
        found += [slots] if isinstance(slots, str) else slots
    return [name for name in found if name not in ("__dict__", "__weakref__")]
