"""What a pass leaves of each sentence's gradient: recorded where modules with trainable parameters are called.

    >>> import numpy as np
    >>> import torch
    >>> from uedp_ray.config import ModelConfig
    >>> from uedp_ray.models.build import build_model
    >>> from uedp_ray.models.parameters import FlatParameters
    >>> from uedp_ray.models.recorder import Recorder
    >>> from uedp_ray.tasks.next_word import NextWord
    >>> config = ModelConfig(max_length=8, num_layers=1, hidden_size=8, num_heads=2)
    >>> model = build_model(config, vocab_size=50, bos_id=0, eos_id=0, seed=0)
    >>> task = NextWord(bos_id=0, eos_id=0, pad_id=0, max_length=8)
    >>> recorder = Recorder(FlatParameters(model), num_sentences=2)
    >>> with recorder.watching(model):
    ...     losses = task.losses(model, task.collate([np.array([5, 7, 9]), np.array([4])]))
    ...     recorder.end()
    ...     gradients = torch.autograd.grad(losses.sum(), recorder.ends)
    >>> factors = recorder.factors(losses)
    >>> tuple(factors["transformer.h.0.attn.c_proj.weight"].full[0].shape)    # left and right would be as much, of T = 4
    (2, 8, 8)
    >>> [tuple(each[0].shape) for each in (factors["transformer.wte.weight"].left, factors["transformer.wte.weight"].right)]
    [(2, 4, 50), (2, 4, 8)]

An input and the gradient of its output are all that a linear layer's gradient is made of; where what they form is smaller,
as of adapters, it is formed at once, in the backward pass, and the two are let go. Every product has a shape that follows
from the batch's shape and the row alone. Sentences, and so all that is recorded, are private. Shape legend: B sentences,
T positions; of one parameter matrix: I rows, J columns.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call, vjp, vmap
from torch.nn import functional as F
from transformers.pytorch_utils import Conv1D

from uedp_ray.errors import InputError
from uedp_ray.models.awd_lstm import RecurrentLinear
from uedp_ray.models.factors import Factors, contracted, smaller
from uedp_ray.models.parameters import FlatParameters
from uedp_ray.models.recomputed import within

_NOT_AGAIN = "set training.gradient_checkpointing: false"
BYPASSED = "used without calling its module; per-sentence gradient unknown: freeze it"


def _wide(tensor: Tensor) -> Tensor:
    """The tensor in float32 or wider: bf16 activations are summed in float32."""
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


@dataclass(eq=False)
class _Call:
    """One call of a module that owns trainable parameters (``names``: attribute -> full name), and what came of it."""

    path: str
    module: nn.Module
    names: dict[str, str]
    node: Any
    """Of autograd, that computes on from the gradient of its output."""
    changes: Tensor
    """Counts those of the output in place, of which it keeps nothing."""
    version: int
    taken: bool = False
    """Whether there are arguments: those of a block that is computed again are taken then."""
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)
    versions: list[int] = field(default_factory=list)
    gradient: Tensor | None = None
    pieces: list[_Piece] | None = None

    def take(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.args, self.kwargs = tuple(a.detach() if isinstance(a, Tensor) else a for a in args), kwargs
        self.versions, self.taken = self._versions(), True

    def let_go(self) -> None:
        self.args, self.kwargs, self.gradient = (), {}, None

    def check(self, num_sentences: int) -> None:
        """Raises: InputError for what would silently give a wrong gradient."""
        assert self.gradient is not None
        if not self.taken:
            raise InputError(self.path, type(self.module).__name__, f"it is not computed again: {_NOT_AGAIN}")
        self.check_unchanged()
        if self.gradient.shape[0] != num_sentences:
            remedy = "applied once for the whole batch, per-sentence gradient unknown: freeze it"
            raise InputError(self.path, tuple(self.gradient.shape), remedy)

    def check_unchanged(self) -> None:
        """Raises: InputError if the gradient could be of something else, or asked for elsewhere."""
        if self.changes._version != self.version or self.versions != self._versions():
            remedy = "its input or output is changed in place: freeze it"
            raise InputError(self.path, type(self.module).__name__, remedy)

    def _versions(self) -> list[int]:
        return [a._version for a in self.args if isinstance(a, Tensor)]


class _Piece(NamedTuple):
    """What a call contributes to a parameter's gradient: an entry of one of the lists of its ``Factors``, or its scale."""

    name: str
    of: str
    value: Tensor


class Recorder:
    """Follows a pass: at each call of a module with trainable parameters it waits for the gradient of the output, in the
    backward pass, and lets input and gradient go as soon as what is kept of them is smaller.

    ``ends``: outputs from whose gradients no other one's is computed. To ask for these is to compute all, and no weights'.
    """

    def __init__(self, params: FlatParameters, num_sentences: int):
        self.calls: list[_Call] = []
        self.ends: list[Tensor] = []
        self._names = {id(p): name for name, p in zip(params.names, params.tensors, strict=True)}
        self._shapes = dict(zip(params.names, params.shapes, strict=True))
        self._num_sentences = num_sentences
        self._again: dict[nn.Module, _Call | None] = {}
        self._passed = False

    @contextmanager
    def watching(self, model: nn.Module) -> Iterator[None]:
        """Surrounds the forward pass, ``end``, and the backward pass."""
        handles = []
        self._again = dict.fromkeys(within(model))
        for path, module in model.named_modules():
            own = module.named_parameters(recurse=False)
            names = {attribute: self._names[id(p)] for attribute, p in own if id(p) in self._names}
            if names:
                called = partial(self._called, path, names)
                handles.append(module.register_forward_hook(called, with_kwargs=True))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _called(self, path: str, names: dict[str, str], module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        if not isinstance(output, Tensor):
            raise InputError(path, type(output).__name__, "only modules returning one tensor are known: freeze it")
        if self._passed:
            self._called_again(module, args, kwargs)
            return
        changes = output.detach()
        changes.data = output.new_empty(0)  # the memory goes, the count stays
        call = _Call(path, module, names, output.grad_fn, changes, changes._version)
        if module not in self._again:
            call.take(args, kwargs)
        elif self._again[module] is not None:
            raise InputError(path, type(module).__name__, f"it is called twice: {_NOT_AGAIN}")
        else:
            self._again[module] = call
        self.calls.append(call)
        if output.requires_grad:
            output.register_hook(partial(self._given, call))
            if not any(isinstance(a, Tensor) and a.grad_fn is not None for a in args):
                self.ends.append(output)

    def end(self) -> None:
        """Ends the forward pass. Raises: InputError for a call whose gradient could not be known."""
        for call in self.calls:
            call.check_unchanged()
        self._passed = True

    def _called_again(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        """In a backward pass, before or after the gradient of the output is there."""
        call = self._again.get(module)
        if call is None or call.taken:
            raise InputError("model", type(module).__name__, f"a backward pass calls it once more: {_NOT_AGAIN}")
        call.take(args, kwargs)
        if call.gradient is not None and _kind(module) is not None:
            # Autocast is on while a block is computed again.
            with torch.autocast(call.gradient.device.type, enabled=False):
                self._file(call)

    def _given(self, call: _Call, gradient: Tensor) -> None:
        call.gradient = gradient.detach()
        # What is recomputed under vjp waits: this is no place for a pass of its own.
        if call.taken and _kind(call.module) is not None:
            self._file(call)

    @torch.no_grad()
    def _file(self, call: _Call) -> None:
        call.check(self._num_sentences)
        call.pieces = list(_pieces(call, self._shapes))
        call.let_go()

    def factors(self, losses: Tensor) -> dict[str, Factors]:
        """What was found, after the backward pass. Raises: InputError if it passed a call by."""
        for call in self.calls:
            if call.gradient is not None:
                self._file(call)
        passed = {call.node: call for call in self.calls if call.pieces is None}
        if passed and (node := _reached(losses.grad_fn, passed)) is not None:
            raise InputError(passed[node].path, "trainable", BYPASSED)
        found: dict[str, Factors] = {}
        for call in self.calls:
            for piece in call.pieces or ():
                factors = found.setdefault(piece.name, Factors(self._shapes[piece.name]))
                if piece.of == "scale":
                    factors.scale = piece.value
                else:
                    getattr(factors, piece.of).append(piece.value)
        for factors in found.values():
            factors.join()
        for call in self.calls:  # outputs have hooks, which have the recorder: nobody would look for that circle soon
            call.node = None
        self.calls, self.ends, self._again = [], [], {}
        return found


def _reached(root: Any, nodes: Collection[Any]) -> Any:
    """One of the nodes of autograd that a backward pass from ``root`` comes by; None if it comes by none."""
    waiting, seen = [root], set()
    while waiting:
        if (node := waiting.pop()) in nodes:
            return node
        if node is not None and node not in seen:
            seen.add(node)
            waiting += [each for each, _ in node.next_functions]
    return None


def _kind(module: nn.Module) -> type[nn.Module] | None:
    """Of a module whose gradient is a sum of known products; None of any other. A subclass may compute something else."""
    kind = type(module)
    if kind is nn.LayerNorm:
        return kind if len(module.normalized_shape) == 1 else None  # type: ignore[arg-type]
    return kind if kind in (nn.Linear, RecurrentLinear, Conv1D, nn.Embedding) else None


def _pieces(call: _Call, shapes: dict[str, torch.Size]) -> Iterator[_Piece]:
    """What the call contributes to each parameter that it used."""
    module, kind, gradient, names = call.module, _kind(call.module), call.gradient, call.names
    assert gradient is not None
    if kind is None:
        for attribute, value in _generic(call, gradient).items():
            yield _Piece(names[attribute], "full", value)
        return
    b = _wide(gradient).reshape(len(gradient), -1, gradient.shape[-1])
    if "bias" in names:
        yield _Piece(names["bias"], "full", b.sum(1))
    if "weight" not in names:
        return
    name, a = names["weight"], call.args[0]
    if kind is nn.Embedding:
        ids = a.reshape(len(a), -1)
        if module.padding_idx is not None:
            b = torch.where((ids == module.padding_idx)[:, :, None], 0, b)
        yield from (_Piece(name, "ids", _own(ids)), _Piece(name, "rows", _own(b)))
        return
    a = _wide(a)
    if isinstance(module, nn.LayerNorm):
        normalized = F.layer_norm(a, module.normalized_shape, eps=module.eps)
        yield _Piece(name, "full", (normalized * _wide(gradient)).reshape(b.shape).sum(1))
        return
    a = a.reshape(len(a), -1, a.shape[-1])
    left, right = (a, b) if kind is Conv1D else (b, a)  # Conv1D stores its weight as (inputs, outputs)
    scale = call.kwargs.get("scale") if kind is RecurrentLinear else None
    if scale is None and not smaller(left, right, shapes[name]):
        yield _Piece(name, "full", contracted(left, right))
        return
    yield from (_Piece(name, "left", _own(left)), _Piece(name, "right", _own(right)))
    if scale is not None:
        yield _Piece(name, "scale", scale)


def _generic(call: _Call, gradient: Tensor) -> dict[str, Tensor]:
    """(B, *shape) gradients of any module, recomputed from its recorded inputs.

    Positional tensors with B rows belong to one sentence each; everything else is shared.
    """

    def wide(value: Any) -> Any:
        return _wide(value.detach()) if isinstance(value, Tensor) and value.is_floating_point() else value

    args = tuple(map(wide, call.args))
    kwargs = {key: wide(value) for key, value in call.kwargs.items()}
    own = {attribute: _wide(getattr(call.module, attribute).detach()) for attribute in call.names}
    per_sentence = [isinstance(a, Tensor) and a.dim() > 0 and len(a) == len(gradient) for a in args]

    def one(b: Tensor, *rows: Any) -> dict[str, Tensor]:
        inputs = tuple(row[None] if mine else row for row, mine in zip(rows, per_sentence, strict=True))
        pull = vjp(lambda values: functional_call(call.module, values, inputs, kwargs), own)[1]
        return pull(b[None])[0]

    axes = (0, *(0 if mine else None for mine in per_sentence))
    return vmap(one, in_dims=axes)(_wide(gradient), *args)


def _own(kept: Tensor) -> Tensor:
    """Itself, or a copy if it would keep more in memory than its numbers: a pooler reads one position of each sentence."""
    more = kept.untyped_storage().nbytes() > kept.numel() * kept.element_size()
    return kept.clone() if more else kept
