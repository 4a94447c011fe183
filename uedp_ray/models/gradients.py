"""The exact gradient of every sentence of a batch, formed a few rows at a time.

    >>> import numpy as np
    >>> from uedp_ray.config import ModelConfig
    >>> from uedp_ray.models.build import build_model
    >>> from uedp_ray.models.gradients import sentence_gradients
    >>> from uedp_ray.models.parameters import FlatParameters
    >>> from uedp_ray.tasks.next_word import NextWord
    >>> config = ModelConfig(max_length=8, num_layers=1, hidden_size=8, num_heads=2)
    >>> model = build_model(config, vocab_size=50, bos_id=0, eos_id=0, seed=0)
    >>> params, task = FlatParameters(model), NextWord(bos_id=0, eos_id=0, pad_id=0, max_length=8)
    >>> gradients = sentence_gradients(model, params, task, task.collate([np.array([5, 7, 9]), np.array([4])]))
    >>> for first, rows in gradients.chunks():    # sentences first to first + b
    ...     first, tuple(rows.shape) == (2, params.num), bool((rows.norm(dim=1) > 0).all())
    (0, True, True)

One forward and one backward pass record (``recorder``), for every module that owns trainable parameters, its input and the
gradient of its output. A linear layer's gradient for sentence x is then ``left_x^T right_x``, a sum of T outer products;
uses of one parameter in several places (tied embeddings, a recurrent matrix) are added up. Any other module is recomputed
under ``vmap(vjp)``. Every sentence's gradient is formed as a vector of its own: what is clipped is what is summed, to the
bit, at any precision of the passes. Every product has a shape that follows from the batch's shape and the row alone, so that
batches of one shape treat a row alike, whatever the other rows hold. Sources: Goodfellow 2015 ("Efficient per-example
gradient computations"); Bu et al. 2023 (book-keeping).

The sentences, losses and gradients are private. Shape legend: B sentences, T positions, P flattened trainable parameters;
of one parameter matrix: I rows, J columns.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn

from uedp_ray.errors import InputError
from uedp_ray.models.factors import Factors, aligned
from uedp_ray.models.parameters import FlatParameters
from uedp_ray.models.recorder import BYPASSED, Recorder
from uedp_ray.tasks.base import Batch, Task

_CHUNK = {"cpu": 1 << 21, "cuda": 1 << 27}
"""Elements of formed gradients held at once: what stays in a CPU's cache, or 512 MiB of a GPU. At least one row."""


class SentenceGradients:
    """Gradients g_x of B sentences at one parameter value. Made by ``sentence_gradients``.

    ``losses``: (B,), detached; ``factors``: by parameter, of those that the losses depend on. All results are float32, or
    float64 for a float64 model.
    """

    def __init__(self, losses: Tensor, params: FlatParameters, factors: dict[str, Factors]):
        self.losses = losses
        self.factors = factors
        self._params, self._shapes = params, dict(zip(params.names, params.shapes, strict=True))

    @torch.no_grad()
    def formed(self, names: Sequence[str]) -> Tensor:
        """(B, F) gradients of some parameters, side by side."""
        rows = self._memory(len(self.losses), names)
        self._form(slice(None), names, rows)
        return rows

    @torch.no_grad()
    def chunks(self, num: int | None = None) -> Iterator[tuple[int, Tensor]]:
        """Yields (x, (b, P) gradients of the sentences x to x + b - 1), in the order of ``FlatParameters``.

        The tensor is overwritten by the next one. ``num``: only the first ``num`` sentences. How sentences are grouped
        follows from B and P alone. A gradient that is not finite affects no other sentence's.
        """
        size = max(1, _CHUNK.get(self.losses.device.type, _CHUNK["cpu"]) // max(1, self._params.num))
        held = self._memory(min(size, max(1, len(self.losses))), self._params.names)
        for x in range(0, len(self.losses) if num is None else num, len(held)):
            rows = held[: min(len(held), len(self.losses) - x)]
            self._form(slice(x, x + len(rows)), self._params.names, rows)
            yield x, rows

    def _memory(self, num: int, names: Sequence[str]) -> Tensor:
        width = sum(self._shapes[name].numel() for name in names)
        return aligned(self.losses, num, width)

    def _form(self, which: slice, names: Sequence[str], rows: Tensor) -> None:
        """Writes gradients of some sentences to ``rows``, which are zeros where the losses do not depend on a parameter."""
        start = 0
        for name in names:
            shape = self._shapes[name]
            if name in self.factors:
                self.factors[name].form(which, rows[:, start : start + shape.numel()].unflatten(1, shape))
            start += shape.numel()

    def norms(self) -> Tensor:
        """(B,) float64 L2 norms."""
        norms = [torch.linalg.vector_norm(rows, dim=1, dtype=torch.float64) for _, rows in self.chunks()]
        return torch.cat([*norms, self.losses.new_zeros(0, dtype=torch.float64)])


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
    recorder = Recorder(params, len(batch))
    with recorder.watching(model):
        device, lower = batch.input_ids.device.type, autocast_dtype is not None
        with torch.enable_grad(), torch.autocast(device, autocast_dtype, enabled=lower):
            losses = task.losses(model, batch)
        recorder.end()
        recorded = {name for call in recorder.calls for name in call.names.values()}
        rest = [(name, p) for name, p in zip(params.names, params.tensors, strict=True) if name not in recorded]
        # Asking for output gradients only spares the weight gradients, which the sums would compute again.
        inputs = recorder.ends + [p for _, p in rest]
        gradients = torch.autograd.grad(losses.sum(), inputs, allow_unused=True)[len(recorder.ends) :]
    for (name, _), gradient in zip(rest, gradients, strict=True):
        if gradient is not None:
            raise InputError(name, "trainable", BYPASSED)
    return SentenceGradients(losses.detach(), params, recorder.factors(losses))


class InexactError(InputError):
    """Per-sentence gradients are not those of each sentence alone: the network, or the task, couples them."""


def check_exact(
    model: nn.Module,
    params: FlatParameters,
    task: Task,
    batch: Batch,
    *,
    isolated: Callable[[], AbstractContextManager[None]] = nullcontext,
    tolerance: float = 1e-3,
) -> None:
    """Compares norms with backward passes over one sentence at a time; for networks not seen before.

    Finds what the records cannot show: sentences that influence each other, masks or tables mistaken for sentences. Use a
    public or made-up batch of two or more sentences. Each pass runs in evaluation mode, within ``isolated()``. Raises
    InexactError if a norm is off by more than ``tolerance`` (relative).
    """
    with isolated():
        model.eval()
        found = sentence_gradients(model, params, task, batch).norms()
    for x in range(len(batch)):
        one = batch[x : x + 1]
        with isolated(), torch.enable_grad():
            model.eval()
            gradients = torch.autograd.grad(task.losses(model, one).sum(), params.tensors, allow_unused=True)
        expected = math.sqrt(sum(float(g.double().square().sum()) for g in gradients if g is not None))
        if not math.isclose(float(found[x]), expected, rel_tol=tolerance, abs_tol=1e-6):
            remedy = "per-sentence gradients of this network are not exact: freeze more of it, or choose another"
            raise InexactError("model", type(model).__name__, remedy)
