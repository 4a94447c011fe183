"""The exact gradient of every sentence, without ever holding a (sentences, parameters) matrix.

    params = FlatParameters(model)
    gradients = sentence_gradients(model, params, task, batch)
    factors = (clip_norm / gradients.norms_sq().sqrt()).clamp(max=1)
    for user_sum in gradients.weighted_sums(factors, segments):  # each (P,)
        ...

One forward and one backward pass record, for every module that owns trainable parameters, its input and the gradient
of its output. A linear layer's gradient for sentence x is then ``left_x^T right_x``, a sum of T outer products: its norm
follows from two T x T Gram matrices, and a weighted sum over sentences is one matrix product. Uses of one parameter in
several places (tied embeddings, a recurrent matrix) are joined before the norm, cross terms included. Any other module is
recomputed under ``vmap(vjp)``. Norms and sums come from the same factors, so what is clipped is what is summed, also
under bf16 autocast. Sources: Goodfellow 2015 ("Efficient per-example gradient computations"); Li et al. 2022, section 4
(ghost clipping); Bu et al. 2023 (book-keeping).

The sentences, losses and gradients are private. Shape legend: B sentences, T positions, P flattened trainable parameters;
of one parameter matrix: I rows, J columns.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import reduce
from operator import add
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vjp, vmap
from torch.nn import functional as F
from transformers.pytorch_utils import Conv1D

from uedp_ray.errors import InputError
from uedp_ray.models.awd_lstm import RecurrentLinear
from uedp_ray.models.parameters import FlatParameters
from uedp_ray.models.task import Batch, Task

_ROUNDING = 80
"""Relative error of a Gram term, in units of machine precision: products of up to a few thousand numbers."""
_CHUNK = 1 << 24
"""Elements of explicit per-sentence gradients held at once."""


def _wide(tensor: Tensor) -> Tensor:
    """float32 at least: bf16 activations are summed in float32."""
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


@dataclass
class _Factors:
    """One parameter's gradients: ``scale * (left^T right) + (rows added up at ids) + full``, any of which may be absent.

    left (B, T, I), right (B, T, J); ids (B, T) int64, rows (B, T, J): a one-hot left kept as an index; full (B, *shape);
    scale (I, J): DropConnect. Lists hold one entry per call of the module until ``join``.
    """

    shape: torch.Size
    left: list[Tensor] = field(default_factory=list)
    right: list[Tensor] = field(default_factory=list)
    ids: list[Tensor] = field(default_factory=list)
    rows: list[Tensor] = field(default_factory=list)
    full: list[Tensor] = field(default_factory=list)
    scale: Tensor | None = None

    def join(self) -> None:
        """Several calls become one: outer products are concatenated along T, explicit gradients added."""
        for name in ("left", "right", "ids", "rows"):
            if len(entries := getattr(self, name)) > 1:
                setattr(self, name, [torch.cat(entries, 1)])
        if len(self.full) > 1:
            self.full = [torch.stack(self.full).sum(0)]

    def norms_sq(self) -> Tensor:
        """(B,) squared norms, by whichever way takes fewer operations."""
        if not (self.left or self.ids):
            return self.full[0].flatten(1).square().sum(1)
        num_rows, num_columns = self.shape
        t = self.left[0].shape[1] if self.left else 0
        s = self.ids[0].shape[1] if self.ids else 0
        gram_cost = t * t * (num_rows + num_columns) + (2 * t * s + s * s) * num_columns
        explicit_cost = (t + 1) * num_rows * num_columns
        if self.full or self.scale is not None or gram_cost > explicit_cost:
            return self.explicit_norms_sq()
        return self.gram_norms_sq()

    def gram_norms_sq(self) -> Tensor:
        """|sum_t l_t r_t^T|^2 = sum_st (l_s.l_t)(r_s.r_t), over all pairs of pieces."""
        terms = []
        if self.left:
            left, right = self.left[0], self.right[0]
            terms.append((left @ left.mT) * (right @ right.mT))
        if self.ids:
            ids, rows = self.ids[0], self.rows[0]
            same = ids[:, :, None] == ids[:, None, :]
            terms.append(torch.where(same, rows @ rows.mT, 0))
        if self.left and self.ids:
            picked = left.gather(2, ids[:, None, :].expand(-1, left.shape[1], -1))  # l_t . onehot(id_s)
            terms.append(2 * picked * (right @ rows.mT))
        # Terms that cancel leave a sum smaller than its own rounding: bound it from above, so that clipping holds.
        slack = _ROUNDING * torch.finfo(terms[0].dtype).eps
        return reduce(add, [(term + slack * term.abs()).sum((1, 2)) for term in terms]).clamp_min(0)  # NaN stays NaN

    def explicit_norms_sq(self) -> Tensor:
        num_sentences = len((self.left or self.ids)[0])
        step = max(1, _CHUNK // math.prod(self.shape))
        chunks = [slice(i, i + step) for i in range(0, num_sentences, step)]
        return torch.cat([self.explicit(chunk).flatten(1).square().sum(1) for chunk in chunks])

    def explicit(self, which: slice) -> Tensor:
        """(b, *shape) gradients of some sentences."""
        terms = [full[which] for full in self.full]
        for left, right in zip(self.left, self.right, strict=True):
            terms.append(self._scaled(left[which].mT @ right[which]))
        for ids, rows in zip(self.ids, self.rows, strict=True):
            ids, rows = ids[which], rows[which]
            added = rows.new_zeros(len(ids), *self.shape)
            at = ids + self.shape[0] * torch.arange(len(ids), device=ids.device)[:, None]
            added.flatten(0, 1).index_add_(0, at.flatten(), rows.flatten(0, 1))
            terms.append(added)
        return reduce(add, terms)

    def weighted_sum(self, which: slice | Tensor, weights: Tensor) -> Tensor:
        """``shape``: sum over the chosen sentences of weight times gradient."""
        terms = [torch.tensordot(weights.to(full.dtype), full[which], 1) for full in self.full]
        for left, right in zip(self.left, self.right, strict=True):
            weighted = right[which] * weights.to(right.dtype)[:, None, None]
            terms.append(self._scaled(left[which].flatten(0, 1).mT @ weighted.flatten(0, 1)))
        for ids, rows in zip(self.ids, self.rows, strict=True):
            weighted = rows[which] * weights.to(rows.dtype)[:, None, None]
            total = reduce(add, terms) if terms else rows.new_zeros(self.shape)
            terms = [total.index_add_(0, ids[which].flatten(), weighted.flatten(0, 1))]
        return reduce(add, terms)

    def _scaled(self, gradient: Tensor) -> Tensor:
        return gradient if self.scale is None else gradient * self.scale


class SentenceGradients:
    """Gradients g_x of B sentences at one parameter value, in factored form. Made by ``sentence_gradients``.

    ``losses``: (B,), detached. All results are float32, or float64 for a float64 model. A sentence whose gradient is not
    finite has a norm that is not finite; give it weight 0 and it contributes exactly 0.
    """

    def __init__(self, losses: Tensor, params: FlatParameters, factors: dict[str, _Factors]):
        self.losses = losses
        self._params, self._factors = params, factors

    def norms_sq(self) -> Tensor:
        """(B,) squared L2 norm of each sentence's gradient over all trainable parameters."""
        return sum((f.norms_sq() for f in self._factors.values()), torch.zeros_like(self.losses))

    def weighted_sum(self, weights: Tensor) -> Tensor:
        """(P,) sum_x weights[x] g_x for ``weights`` (B,), in the order of ``FlatParameters``."""
        return next(self.weighted_sums(weights, [(0, len(weights))]))

    def weighted_sums(self, weights: Tensor, segments: Sequence[tuple[int, int]]) -> Iterator[Tensor]:
        """Yields (P,) for each segment ``(start, stop)`` of sentences (one user's, say), one at a time.

        Sentences of weight 0 are left out of the products, so that a NaN in them cannot spread.
        """
        if weights.shape != self.losses.shape:
            raise ValueError(f"one weight per sentence: {tuple(self.losses.shape)}, got {tuple(weights.shape)}")
        used = (weights != 0).tolist()
        for start, stop in segments:
            indices = [x for x in range(start, stop) if used[x]]
            if not indices:
                yield self.losses.new_zeros(self._params.num)
                continue
            all_used = len(indices) == stop - start
            which = slice(start, stop) if all_used else torch.tensor(indices, device=weights.device)
            yield self._flat(which, weights[which])

    def _flat(self, which: slice | Tensor, weights: Tensor) -> Tensor:
        pieces = []
        for name, shape in zip(self._params.names, self._params.shapes, strict=True):
            factors = self._factors.get(name)  # absent: this loss does not depend on the parameter
            piece = self.losses.new_zeros(shape) if factors is None else factors.weighted_sum(which, weights)
            pieces.append(piece.flatten())
        return torch.cat(pieces)


@dataclass
class _Call:
    """One call of a module that owns trainable parameters (``names``: attribute -> full name)."""

    path: str
    module: nn.Module
    names: dict[str, str]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    output: Tensor
    version: int = 0

    def current_version(self) -> int:
        """Counts changes in place: a changed input or output would give a wrong gradient without any sign of it."""
        return sum(t._version for t in (self.output, *self.args) if isinstance(t, Tensor))


def sentence_gradients(
    model: nn.Module,
    params: FlatParameters,
    task: Task,
    batch: Batch,
    *,
    autocast_dtype: torch.dtype | None = None,
) -> SentenceGradients:
    """Runs ``task.losses`` forward and backward once and returns every sentence's gradient, factored.

    Exact for modules whose output row x depends on input row x alone. Train or evaluation mode is left as it is; dropout
    masks come from torch's default generator. Parameters' ``.grad`` is not touched.

    Args:
      params: of this model; parameters outside it are constants.
      autocast_dtype: forward and backward under autocast in this type; factors are still multiplied in float32.
    Raises:
      InputError: naming the module, if a parameter's per-sentence gradient cannot be known: it is applied once for the
        whole batch, or used without calling the module that owns it.
    """
    if not len(batch):  # an empty cohort is an ordinary round
        return SentenceGradients(params.get().new_zeros(0), params, {})
    calls: list[_Call] = []
    handles = [
        module.register_forward_hook(hook, with_kwargs=True) for module, hook in _recorders(model, params, calls)
    ]
    try:
        with (
            torch.enable_grad(),
            torch.autocast(batch.input_ids.device.type, autocast_dtype, enabled=autocast_dtype is not None),
        ):
            losses = task.losses(model, batch)
    finally:
        for handle in handles:
            handle.remove()
    for call in calls:
        if call.version != call.current_version():
            raise InputError(
                call.path, type(call.module).__name__, "its input or output is changed in place: freeze it"
            )
    recorded = {name for call in calls for name in call.names.values()}
    rest = [(name, p) for name, p in zip(params.names, params.tensors, strict=True) if name not in recorded]
    inputs = [call.output for call in calls] + [p for _, p in rest]
    # Asking for output gradients only spares the weight gradients, which the sums would compute again.
    gradients = torch.autograd.grad(losses.sum(), inputs, allow_unused=True)
    for (name, _), gradient in zip(rest, gradients[len(calls) :], strict=True):
        if gradient is not None:
            raise InputError(
                name, "trainable", "used without calling its module; per-sentence gradient unknown: freeze it"
            )
    factors: dict[str, _Factors] = {}
    shapes = dict(zip(params.names, params.shapes, strict=True))
    for call, gradient in zip(calls, gradients, strict=False):
        if gradient is not None:
            _record(call, gradient, factors, shapes, len(losses))
    for each in factors.values():
        each.join()
    return SentenceGradients(losses.detach(), params, factors)


def _recorders(model: nn.Module, params: FlatParameters, calls: list[_Call]) -> Iterator[tuple[nn.Module, Any]]:
    full_names = {id(p): name for name, p in zip(params.names, params.tensors, strict=True)}
    for path, module in model.named_modules():
        own = module.named_parameters(recurse=False)
        names = {attribute: full_names[id(p)] for attribute, p in own if id(p) in full_names}
        if not names:
            continue

        def hook(
            module: nn.Module, args: Any, kwargs: Any, output: Any, path: str = path, names: dict[str, str] = names
        ) -> None:
            if not isinstance(output, Tensor):
                raise InputError(path, type(output).__name__, "only modules returning one tensor are known: freeze it")
            args = tuple(a.detach() if isinstance(a, Tensor) else a for a in args)
            call = _Call(path, module, names, args, kwargs, output)
            call.version = call.current_version()
            calls.append(call)

        yield module, hook


@torch.no_grad()
def _record(
    call: _Call, gradient: Tensor, factors: dict[str, _Factors], shapes: dict[str, torch.Size], num_sentences: int
) -> None:
    """Files the call's factors under the parameters it used."""
    if call.output.shape[0] != num_sentences:
        remedy = "applied once for the whole batch, per-sentence gradient unknown: freeze it"
        raise InputError(call.path, tuple(call.output.shape), remedy)
    of = {attribute: factors.setdefault(name, _Factors(shapes[name])) for attribute, name in call.names.items()}
    module, kind = call.module, type(call.module)  # exact types: a subclass may compute something else
    normalizes = type(module) is nn.LayerNorm and len(module.normalized_shape) == 1
    if not normalizes and kind not in (nn.Linear, RecurrentLinear, Conv1D, nn.Embedding):
        for attribute, value in _generic(call, gradient).items():
            of[attribute].full.append(value)
        return
    b = _wide(gradient).reshape(num_sentences, -1, gradient.shape[-1])
    if "bias" in of:
        of["bias"].full.append(b.sum(1))
    if "weight" not in of:
        return
    weight, a = of["weight"], call.args[0]
    if kind is nn.Embedding:
        ids = a.reshape(num_sentences, -1)
        if module.padding_idx is not None:
            b = torch.where((ids == module.padding_idx)[:, :, None], 0, b)
        weight.ids.append(ids)
        weight.rows.append(b)
        return
    a = _wide(a.detach())
    if isinstance(module, nn.LayerNorm):
        normalized = F.layer_norm(a, module.normalized_shape, eps=module.eps)
        weight.full.append((normalized * _wide(gradient)).reshape(b.shape).sum(1))
        return
    a = a.reshape(num_sentences, -1, a.shape[-1])
    left, right = (a, b) if kind is Conv1D else (b, a)  # Conv1D stores its weight as (inputs, outputs)
    weight.left.append(left)
    weight.right.append(right)
    weight.scale = call.kwargs.get("scale") if kind is RecurrentLinear else None


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


def check_exact(model: nn.Module, params: FlatParameters, task: Task, batch: Batch, *, tolerance: float = 1e-3) -> None:
    """Compares norms with backward passes over one sentence at a time; for networks we have not seen before.

    Finds what the records cannot show: sentences that influence each other, masks or tables mistaken for sentences. Use a
    public or made-up batch of two or more sentences, and no dropout. Raises InputError if a norm is off by more than
    ``tolerance`` (relative).
    """
    found = sentence_gradients(model, params, task, batch).norms_sq()
    for x in range(len(batch)):
        one = Batch(batch.input_ids[x : x + 1], batch.targets[x : x + 1])
        with torch.enable_grad():
            gradients = torch.autograd.grad(task.losses(model, one).sum(), params.tensors, allow_unused=True)
        expected = sum(float(g.square().sum()) for g in gradients if g is not None)
        if not math.isclose(float(found[x]), expected, rel_tol=2 * tolerance, abs_tol=1e-12):
            remedy = "per-sentence gradients of this network are not exact: freeze more of it, or choose another"
            raise InputError("model", type(model).__name__, remedy)
