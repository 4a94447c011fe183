"""Shapes of batches in which a sentence's gradient is its own, and the probe that shows that it is.

    >>> from uedp_ray.updates.shapes import padded_length, padded_lengths, row_counts, split
    >>> padded_lengths(100), padded_length(9, 100), padded_length(65, 100)
    ([8, 12, 16, 20, 24, 28, 32, 36, 40, 44, 48, 52, 56, 60, 64, 80, 96, 100], 12, 80)
    >>> row_counts(8, tokens=512, batch_tokens=4096), row_counts(12, tokens=512, batch_tokens=4096)    # whole vectors
    ([64, 16, 4], [40, 8])
    >>> list(split(75, [64, 16, 8]))    # 75 sentences: how many, and in how many rows
    [(64, 64), (11, 16)]

Which kernel computes a row, and in which order it adds, follows from shapes. So a sentence is padded to a length that
depends on it alone, and batches have one of a few numbers of rows, fixed by public settings. ``agreeing_rows`` then tries
every such shape on the network, device and precision of the run, on made-up tokens and parameters: a number of rows is used
only if the gradient of a sentence has the same bits in its rows, beside other, empty and non-finite sentences, and in
every other number of rows that is used. The others change from pass to pass: beside the same ones, a mean or a count over
the batch, which a task must not take, would be the same. A kernel's order of operations does not depend on the values, so a
different order shows on most sentences, and almost surely on one of several, if no branch is too small beside another to
show (``balanced``). A different function shows only on some values, which the probe may not meet: CPU kernels use one for
the remainder beyond whole vectors. ``row_counts`` leaves no remainder, given that these passes run on one thread
(``gradient.one_thread``). Where values decide on shapes (``rows_are_apart``), each sentence passes alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor, nn

from uedp_ray.models.parameters import FlatParameters

Pass = Callable[[Sequence[np.ndarray], Sequence[int], tuple[int, int]], Iterable[Tensor]]
"""Sentences, a number for each that seeds its dropout, and a shape to fill up -> what is kept of each, all (B, ...)."""

_SHORTEST = 8
_STEP = 4
_VECTOR_BYTES = 128
"""Of numbers that CPU kernels compute at once, two vectors of AVX-512."""
_SENTENCES = {0: 8, 1 << 16: 4, 1 << 22: 2}
"""Of a probe, by numbers of trained parameters: two sums in different orders may agree on a sentence by chance, in the
smallest networks on three of ten."""


ROWS_APART = frozenset(
    [
        "gpt2",
        "bert",
        "roberta",
        "xlm-roberta",
        "distilbert",
        "electra",
        "gpt_neox",
        "llama",
        "mistral",
        "qwen2",
        "qwen3",
        "gemma",
        "gemma2",
        "gemma3_text",
        "phi3",
        "olmo2",
        "smollm3",
    ]
)
"""Architectures of transformers (``model_type``) in which no shape depends on values."""


def rows_are_apart(model: nn.Module) -> bool:
    """Whether several sentences may share a pass: the shapes of all products are known to follow from the batch's alone.

    A mixture of experts routes tokens by their values: how many rows an expert's product has, and so in which order it adds,
    depends on the neighbours, which made-up tokens need not show. A network that is neither listed nor declares
    ``rows_apart`` gets each sentence alone.
    """
    known = getattr(getattr(model, "config", None), "model_type", None)
    return getattr(type(model), "rows_apart", False) is True or known in ROWS_APART


def padded_length(length: int, max_length: int) -> int:
    """The least of 8, 12, 16, ..., 64, 80, 96, 112, 128, 160, ... that holds a sentence, at most ``max_length``."""
    step = _STEP if length <= 64 else 1 << (length - 1).bit_length() - 3
    return min(max(_SHORTEST, -(-length // step) * step), max_length)


def padded_lengths(max_length: int) -> list[int]:
    """All padded lengths."""
    return sorted({padded_length(length, max_length) for length in range(1, max_length + 1)})


def row_counts(
    length: int, *, tokens: int, batch_tokens: int, units: Sequence[int] = (), bytes_each: int = 4
) -> list[int]:
    """Numbers of rows to try, each a quarter of the last, from the most that ``tokens`` allow; 1 if these, or
    ``batch_tokens``, allow no other.

    CPU kernels compute the remainder of a tensor, beyond whole vectors of 128 bytes or fewer, by other code, whose
    ``sigmoid`` or ``gelu`` differs for some values: too few for a probe (of bfloat16's 65,280 numbers ``gelu`` differs for
    four). So tensors of one number per row and position, or per row and unit (``units``: of layers that take one position at
    a time; 1: of anything that has numbers for each row alone), are whole vectors. ``bytes_each``: of the smallest number.
    """
    vector = _VECTOR_BYTES // bytes_each
    multiple = max(vector // math.gcd(vector, n) for n in (length, *units))
    if multiple * length > min(batch_tokens, 2 * tokens):
        return [1]
    counts = [max(multiple, min(tokens, batch_tokens) // length // multiple * multiple)]
    while counts[-1] > multiple:
        counts.append(max(multiple, counts[-1] // 4 // multiple * multiple))
    return counts


def split(num: int, counts: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yields (sentences, rows) of batches that hold ``num`` sentences; ``counts``: numbers of rows, falling."""
    while num > 0:
        rows = next((c for c in reversed(counts) if num <= c <= 2 * num), None)
        rows = rows or next((c for c in counts if c <= num), counts[-1])
        yield min(num, rows), rows
        num -= rows


def agreeing_rows(
    run: Pass,
    params: FlatParameters,
    model: nn.Module,
    length: int,
    counts: Sequence[int],
    made_up: Callable[..., np.ndarray],
) -> list[int]:
    """Those of ``counts`` (falling) in whose rows a sentence of a padded ``length`` has the same gradient, bit by bit.

    ``made_up``: ``Task.made_up`` of a vocabulary. Empty if there are none: then not even a repeated pass gives the same.
    """
    generator = np.random.default_rng(length)
    num = next(each for least, each in reversed(_SENTENCES.items()) if params.num >= least)
    known = [made_up(length - n % 4, generator=generator) for n in range(num)]
    found: list[int] = []
    agreed: dict[int, list[Tensor]] = {}
    for rows in counts:
        same, bits = True, dict(agreed)
        for turn in range(2 * num):
            others = [*(made_up(length - n, generator=generator) for n in range(2)), known[0][:0]]
            row = np.arange(rows)
            mine = row % 2 == turn % 2 if rows > 1 else np.ones(1, bool)
            which = (row // 2 + row // 8 + turn // 2) % num
            filled = [
                known[n] if own else others[x // 2 % 3] for x, (n, own) in enumerate(zip(which, mine, strict=True))
            ]
            number = np.where(mine, which, num + row)
            spoilt = [0.0 if own else (float("nan"), 0.0, 1e30, 0.0)[x // 2 % 4] for x, own in enumerate(mine)]
            with _spoilt(model, spoilt):
                kept = [each.reshape(len(each), -1) for each in run(filled, number.tolist(), (rows, length))]
            for n in range(num):
                at = np.flatnonzero(mine & (which == n))
                if same and len(at):
                    own = [each[at] for each in kept]  # at once: a GPU would wait for each row
                    integers = [each.view(torch.int32) for each in own]
                    first_seen = bits.setdefault(n, [each[0].clone() for each in integers])
                    same = all(bool(each.isfinite().all()) for each in own) and all(
                        torch.equal(each, seen.expand_as(each)) for each, seen in zip(integers, first_seen, strict=True)
                    )
            if not same:
                break
        if same:
            found.append(rows)
            agreed = bits
    return found


@contextmanager
def balanced(model: nn.Module, params: FlatParameters) -> Iterator[None]:
    """Gives the network parameters with which what each of its parts computes matters to the last bit of the gradient.

    As they are, frozen or fresh ones may make a branch so small that its rounding is lost when it is added to another: a
    different kernel would show only on other sentences, or after some training. Matrices that are too large do the same, as
    what follows is saturated. They are scaled by powers of two, which is undone exactly; what is trained is made up.
    """
    here, made_up = params.get(), torch.Generator().manual_seed(0)
    scaled = [(matrix, 2.0 ** _steps_up(matrix)) for matrix in model.parameters() if matrix.dim() > 1]
    try:
        with torch.no_grad():
            for matrix, factor in scaled:
                matrix.mul_(factor)
            for trained in params.tensors:
                noise = torch.randn(trained.shape, generator=made_up).to(trained.device, trained.dtype)
                trained.add_(noise, alpha=_typical(trained) if trained.dim() > 1 else 0.1)
        yield
    finally:
        with torch.no_grad():
            for matrix, factor in scaled:
                matrix.mul_(1 / factor)
        params.set(here)


def _typical(matrix: Tensor) -> float:
    """The deviation that keeps sizes as they are from layer to layer."""
    return 1.0 / math.sqrt(min(matrix.shape))


def _steps_up(matrix: Tensor) -> int:
    """By how many powers of two a matrix falls short of that (below 0: exceeds it); 0 if scaling down would lose bits."""
    deviation = float(matrix.detach().float().std()) if matrix.numel() > 1 else 0.0
    steps = round(math.log2(_typical(matrix) / deviation)) if 0.0 < deviation < math.inf else 0
    if steps >= 0:
        return steps
    sizes = matrix.detach().abs()
    least = float(sizes.where(sizes > 0, math.inf).min())
    return steps if least * 2.0**steps >= torch.finfo(matrix.dtype).tiny else 0


@contextmanager
def _spoilt(model: nn.Module, values: Sequence[float]) -> Iterator[None]:
    """Adds a value to the whole embedding of a row: NaN and huge ones reach every kernel after it."""
    embedding = next((m for m in model.modules() if isinstance(m, nn.Embedding)), None)
    if embedding is None:
        yield
        return

    def hook(module: nn.Module, args: object, output: Tensor) -> Tensor:
        if len(output) != len(values):  # called once more, for the gradient of one sentence: a constant changes nothing
            return output
        added = torch.tensor(values, dtype=output.dtype, device=output.device)
        return output + added.view(-1, *[1] * (output.dim() - 1))

    handle = embedding.register_forward_hook(hook)
    try:
        yield
    finally:
        handle.remove()
