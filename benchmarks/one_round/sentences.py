"""Rounds in which each sentence's gradient is clipped (``gradient`` in ``workload``), by others: Opacus and vmap(grad).

Both take the round's sentences by length, in batches of 16, in which they are faster on a CPU than in 64, and sum their
clipped gradients. They know no users and no entities, so that nothing bounds what a user of many sentences adds, and they
sum in float32.

Opacus (https://opacus.ai): a step of ``DPOptimizer`` over batches that are accumulated, as its ``BatchMemoryManager`` does,
without noise. "hooks" keeps each sentence's gradient; "ghost" finds norms by products of activations and passes backwards a
second time, for which transformers' ``Conv1D`` gets the sampler of norms of a linear layer, registered as the guide says.
Ghost clipping refuses matrices that are used twice, as GPT-2's embedding is, so there are two rows: in one the
embedding's gradients alone are kept for each sentence, in the other the output has a matrix of its own. That is the faster
one, and another network.

vmap(grad) (torch.func): attention is written out, as the fused kernel is no faster within vmap.
"""

from __future__ import annotations

import warnings

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from one_round.workload import Network, Workload, sentence_losses
from uedp_ray.tasks.base import Batch


class VmapGrad:
    """The gradients of a batch in one call, then their weighted sum."""

    def __init__(self, work: Workload):
        self.network = network = Network(work)
        network.model.set_attn_implementation("eager")

        class Losses(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.inner = network.model

            def forward(self, batch: Batch) -> Tensor:
                return network.losses(batch).sum()

        losses = Losses()

        def loss(values: dict[str, Tensor], *batch: Tensor) -> Tensor:
            return torch.func.functional_call(losses, values, (Batch(*(each[None] for each in batch)),))

        self.each = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0, 0))

    def __call__(self, users: list[int], round_index: int) -> Tensor:
        network = self.network
        named = zip(network.params.names, network.params.tensors, strict=True)
        values = {f"inner.{name}": tensor.detach() for name, tensor in named}
        totals = [torch.zeros_like(tensor) for tensor in values.values()]
        for numbers in network.work.batches(users, network.work.sentence_batch_size):
            batch = network.batch(numbers)
            gradients = self.each(values, batch.input_ids, batch.targets, batch.lengths)
            norms = torch.stack([rows.flatten(1).norm(dim=1) for rows in gradients.values()]).norm(dim=0)
            factors = (network.work.sentence_clip / norms).clamp(max=1.0)
            for total, rows in zip(totals, gradients.values(), strict=True):
                total.sub_((factors @ rows.flatten(1)).view_as(total))
            del gradients, rows
        return torch.cat([total.flatten() for total in totals])


class Opacus:
    """``mode``: hooks or ghost."""

    def __init__(self, work: Workload, mode: str):
        from opacus import GradSampleModule
        from opacus.grad_sample import GradSampleModuleFastGradientClipping
        from opacus.optimizers import DPOptimizer, DPOptimizerFastGradientClipping
        from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping

        warnings.filterwarnings(
            "ignore", message="Full backward hook is firing"
        )  # of embeddings, which is as it should be
        self.network = Network(work)
        self.ghost = ghost = mode == "ghost"
        _register_samplers()
        if ghost and work.tied and not work.lora:
            inner = self.network.model
            inner.lm_head.__class__, inner.transformer.wte.__class__ = TiedLinear, TiedEmbedding
        clip = work.sentence_clip
        wrap, arguments = (
            (GradSampleModuleFastGradientClipping, {"max_grad_norm": clip}) if ghost else (GradSampleModule, {})
        )
        self.model = wrap(self.network.model.train(), loss_reduction="sum", **arguments)
        of = DPOptimizerFastGradientClipping if ghost else DPOptimizer
        self.optimizer = of(
            torch.optim.SGD(self.network.params.tensors, lr=1.0),
            noise_multiplier=0.0,
            max_grad_norm=clip,
            expected_batch_size=None,
            loss_reduction="sum",
        )

        self.losses = SentenceLosses()
        if ghost:
            self.losses = DPLossFastGradientClipping(self.model, self.optimizer, self.losses, loss_reduction="sum")

    def __call__(self, users: list[int], round_index: int) -> Tensor:
        network = self.network
        network.params.set(network.start)
        batches = network.work.batches(users, network.work.sentence_batch_size)
        self.optimizer.zero_grad()
        for number, numbers in enumerate(batches, 1):
            self.optimizer.signal_skip_step(do_skip=number < len(batches))
            batch = network.batch(numbers)
            losses = self.losses(network.logits(batch, self.model), batch.targets)
            (losses if self.ghost else losses.sum()).backward()
            self.optimizer.step()
            if number < len(batches):
                self.optimizer.zero_grad()
        total = torch.cat([-tensor.grad.flatten() for tensor in network.params.tensors])
        self.optimizer.zero_grad()
        return total


class SentenceLosses:
    """What Opacus asks for losses: a sum of those that it gets."""

    reduction = "sum"

    def __call__(self, logits: Tensor, targets: Tensor) -> Tensor:
        return sentence_losses(logits, targets)


class TiedLinear(nn.Linear):
    """Has no sampler of norms, so that its gradients are kept."""


class TiedEmbedding(nn.Embedding):
    """The same of the embedding."""


def _register_samplers() -> None:
    from opacus.grad_sample.embedding import compute_embedding_grad_sample
    from opacus.grad_sample.linear import compute_linear_grad_sample, compute_linear_norm_sample
    from opacus.grad_sample.utils import register_grad_sampler, register_norm_sampler

    register_norm_sampler(Conv1D)(compute_linear_norm_sample)
    register_grad_sampler(TiedLinear)(compute_linear_grad_sample)
    register_grad_sampler(TiedEmbedding)(compute_embedding_grad_sample)
