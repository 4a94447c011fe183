"""The loss of a prediction: cross-entropy, in little memory.

    >>> import torch
    >>> from uedp_ray.tasks.loss import cross_entropy
    >>> [round(loss, 3) for loss in cross_entropy(torch.zeros(3, 4), torch.tensor([0, 3, -100])).tolist()]    # of 4 labels
    [1.386, 1.386, 0.0]

Logits are private, as the sentences are.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from uedp_ray.tasks.base import IGNORED, Batch


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """(…, V) logits and (…) targets -> (…) losses in nats, float32 or wider; 0 where ``IGNORED``."""
    losses, _ = _CrossEntropy.apply(logits.to(torch.promote_types(logits.dtype, torch.float32)), targets)
    return losses


def of_sentences(losses: Tensor, batch: Batch) -> Tensor:
    """Losses of a batch's ``targets`` -> (B,): of each sentence the mean, and 0 where it predicts nothing."""
    predictions = batch.by_sentence(batch.targets != IGNORED).reshape(len(batch), -1).sum(1)
    return batch.by_sentence(losses).reshape(len(batch), -1).sum(1) / predictions.clamp_min(1)


def summed(losses: Tensor, targets: Tensor) -> tuple[float, int]:
    """Summed negative log-likelihood (nats), and the number of predictions."""
    return float(losses.sum(dtype=torch.float64)), int((targets != IGNORED).sum())


def perplexity(total: float, count: float) -> float:
    """exp of the mean of ``summed``; infinity if it overflows."""
    mean = total / count
    return math.exp(mean) if mean < 700 else math.inf


class _CrossEntropy(torch.autograd.Function):
    """Logits and targets -> losses, 0 where ``IGNORED``; and the probabilities, for the gradient.

    Equal to ``F.cross_entropy`` but for rounding. Over a vocabulary the loss is a large part of a round: here it takes one
    exponential a logit instead of two, and one tensor of the logits' size beside them: the probabilities, of which the
    gradient is made in place, once (a second backward pass through a graph that is kept is an error).
    """

    @staticmethod
    def forward(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        probabilities = logits.softmax(-1)
        total = logits.amax(-1) - probabilities.amax(-1).log()  # log of the sum of exponentials
        losses = total - logits.gather(-1, targets.clamp_min(0)[..., None])[..., 0]
        return torch.where(targets == IGNORED, 0, losses), probabilities

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: tuple[Tensor, Tensor]) -> None:
        ctx.save_for_backward(inputs[1], output[1])
        ctx.mark_non_differentiable(output[1])
        ctx.set_materialize_grads(False)  # zeros as large as the logits, for the probabilities

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: Tensor, _: Tensor) -> tuple[Tensor, None]:
        targets, probabilities = ctx.saved_tensors
        slope = torch.where(targets == IGNORED, 0, slope)[..., None]
        at = targets.clamp_min(0)[..., None]
        gradient = probabilities.mul_(slope)
        return gradient.scatter_(-1, at, gradient.gather(-1, at) - slope), None
