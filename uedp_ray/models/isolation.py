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
attributes of classes, the internals of objects made in C that are not refused (caches of functools, nodes of autograd),
threads that a pass starts, and writes to weights, or to buffers of whole numbers, that bypass torch's version counter
(through ``.data``). No causal language model of transformers keeps text there. This is a guard against oversight: Python
cannot keep code from text that it is given if it was written to keep it.
"""

from __future__ import annotations

import enum
import operator
import pathlib
import random
import re
import sys
import threading
import types
from collections import defaultdict, deque
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
    *(types.NoneType, bool, int, float, complex, str, bytes, range, types.EllipsisType, type),
    *(types.ModuleType, types.CodeType, types.GenericAlias, types.UnionType, operator.itemgetter),
    *(enum.Enum, re.Pattern, pathlib.PurePath, np.generic, np.dtype),
    *(torch.dtype, torch.device, torch.Size, torch.layout, torch.memory_format),
)
"""Types whose objects cannot change; those of a subclass may have attributes, and records (np.void) have fields."""


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
        self._containers: list[tuple[list[Any] | set[Any] | deque[Any], list[Any], list[Any]]] = []
        self._fields: list[tuple[Any, str, Any]] = []
        self._memory: list[tuple[Tensor, Tensor, tuple[Any, ...], torch.UntypedStorage, int]] = []
        self._beyond: list[tuple[Tensor, Tensor]] = []  # the memory that a buffer is a view of, as bytes
        self._seen: dict[int, Any] = {id(tensor): tensor for tensor in self._trainable}
        of_trainable = [each for tensor in self._trainable for each in self._attached(tensor)]
        for setting, root in {"model": model, **beside}.items():
            found: list[Any] = [root, *of_trainable]
            while found:
                each = found.pop()
                if not _unchanging(each) and id(each) not in self._seen:
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
                torch.default_generator.manual_seed(seed)  # torch.manual_seed takes a hundred times as long
                if self._device.type == "cuda":
                    with torch.cuda.device(self._device):
                        torch.cuda.manual_seed(seed)
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
                inside = list(each)
                if isinstance(each, set):  # so that it has the order in which it is put back
                    _refill(each, inside)
                self._containers.append((each, list(each), inside))
            case tuple() | frozenset():
                inside = list(each)
            case nn.Parameter():
                self._weights.append(each)
                inside = self._attached(each)
            case Tensor() if not each.is_inference() and each.layout is torch.strided:  # others count no changes
                self._buffers.append((each, each.detach().clone()))
                inside = self._attached(each)
                self._look_beyond(each)
            case np.ndarray() if each.dtype != object:
                self._arrays.append((each, each.copy()))
                inside = [each.base] if isinstance(each.base, np.ndarray) else []
            case partial():
                inside = [each.func, each.args, each.keywords]
            case types.MethodType():
                inside = [each.__self__, each.__func__]
            case types.FunctionType():
                slots = ["__defaults__", "__kwdefaults__", "__code__"]
                inside = [each.__annotations__, *(each.__closure__ or ())]
            case types.BuiltinMethodType():
                inside = [each.__self__]
            case staticmethod() | classmethod():
                inside = [each.__func__]
            case property():
                inside = [each.fget, each.fset, each.fdel]
            case slice():
                inside = [each.start, each.stop, each.step]
            case types.CellType():
                slots = ["cell_contents"]
            case _ if isinstance(each, _VALUES) and not isinstance(each, np.void):
                pass  # of a subclass that has attributes
            case _ if not _of_python(type(each)) or (not slots and attributes is None):
                remedy = (
                    f"it holds a {type(each).__name__}, whose changes from text to text are not seen: choose another"
                )
                raise InputError(setting, named, remedy)
            case _:
                slots = [*slots, "__class__"]
        if isinstance(each, defaultdict):
            slots = [*slots, "default_factory"]
        self._fields += [(each, name, _field(each, name)) for name in slots]
        inside += [_field(each, name) for name in slots]
        if isinstance(attributes, dict):  # a class has a view of one
            inside.append(attributes)
        return inside

    def _attached(self, tensor: Tensor) -> list[Any]:
        """Remembers what a tensor holds besides its numbers, and returns it."""
        storage = tensor.untyped_storage()
        self._memory.append((tensor, tensor.data, _layout(tensor), storage, storage.nbytes()))
        names = ["requires_grad", "_backward_hooks"]
        names += ["grad", "_post_accumulate_grad_hooks"] if tensor.is_leaf else []
        self._fields += [(tensor, name, _field(tensor, name)) for name in names]
        return [*(_field(tensor, name) for name in names), vars(tensor)]

    def _look_beyond(self, buffer: Tensor) -> None:
        """Remembers what else is in the memory that a buffer is a part of, unless weights are."""
        storage = buffer.untyped_storage()
        if storage.nbytes() <= buffer.nbytes:
            return
        if storage.data_ptr() not in {weight.untyped_storage().data_ptr() for weight in self._trainable}:
            whole = torch.empty(0, dtype=torch.uint8, device=buffer.device).set_(storage)
            self._beyond.append((whole, whole.clone()))

    @torch.no_grad()
    def _put_back(self, versions: list[int]) -> None:
        if any(self._empty):
            for mapping in self._empty:
                mapping.clear()
        for mapping, keys, values in self._mappings:
            if not (_same(mapping, keys) and _same(mapping.values(), values)):
                mapping.clear()
                mapping.update(zip(keys, values, strict=True))
        for container, now, items in self._containers:
            if not _same(container, now):
                _refill(container, items)
        for owner, name, value in self._fields:
            if _field(owner, name) is not value:
                delattr(owner, name) if value is _ABSENT else setattr(owner, name, value)
        for tensor, memory, layout, storage, size in self._memory:
            if storage.nbytes() != size:
                storage.resize_(size)
            if _layout(tensor) != layout:
                tensor.data = memory
        for whole, content in self._beyond:
            whole.copy_(content)
        for array, numbers in self._arrays:
            if array.shape != numbers.shape:
                array.resize(numbers.shape, refcheck=False)
            array[...] = numbers
        for (buffer, content), version in zip(self._buffers, versions, strict=True):
            counted = not (buffer.is_floating_point() or buffer.is_complex())  # batch_norm writes to these uncounted
            if buffer._version != version or not counted:
                buffer.resize_(content.shape).copy_(content)


class _Absent(enum.Enum):
    ABSENT = enum.auto()


_ABSENT = _Absent.ABSENT


def _field(owner: Any, name: str) -> Any:
    try:
        return getattr(owner, name, _ABSENT)
    except ValueError:  # an empty cell
        return _ABSENT


def _unchanging(each: Any) -> bool:
    """Whether nothing of an object can change: no attribute, and nothing that it is bound to."""
    if isinstance(each, types.BuiltinFunctionType):
        return each.__self__ is None or isinstance(each.__self__, types.ModuleType | type)
    if isinstance(each, type | types.ModuleType | enum.Enum):
        return True
    return isinstance(each, _VALUES) and not isinstance(each, np.void) and not hasattr(each, "__dict__")


def _of_python(kind: type) -> bool:
    """Whether all that objects of a class hold is in attributes and slots: whether no base of it was made in C."""
    homes = {base.__module__ for base in kind.__mro__ if base is not object}
    files = {home: str(getattr(sys.modules.get(home), "__file__", "")) for home in homes}
    in_python = (home == "__main__" or file.endswith(".py") for home, file in files.items())
    return all(in_python) and not issubclass(kind, Tensor | np.ndarray | np.void | random.Random)


def _layout(tensor: Tensor) -> tuple[Any, ...]:
    return tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride()


def _refill(container: list[Any] | set[Any] | deque[Any], items: list[Any]) -> None:
    container.clear()
    (container.update if isinstance(container, set) else container.extend)(items)


def _same(now: Collection[Any], before: list[Any]) -> bool:
    return len(now) == len(before) and all(map(operator.is_, now, before))


def _slots(each: Any) -> list[str]:
    """Attributes that an object holds outside of its ``__dict__``, by the names that its class gives them."""
    kinds = (vars(kind) for kind in type(each).__mro__ if "__slots__" in vars(kind))
    return [name for kind in kinds for name, of in kind.items() if isinstance(of, types.MemberDescriptorType)]
