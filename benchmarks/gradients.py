"""Times clipped sums of per-sentence gradients: one pass (ours), one backward pass per sentence, and vmap(grad).

    python benchmarks/gradients.py [--repeats 5]

Each method computes 64 norms and one weighted sum for a GPT-2 with 2 layers, width 128 and 10,000 tokens, on made-up
sentences of 32 tokens. Methods are timed in turn within one process; the best of the repeats is shown.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn

from uedp_ray.config import ModelConfig
from uedp_ray.models.build import build_model
from uedp_ray.models.gradients import sentence_gradients
from uedp_ray.models.parameters import FlatParameters
from uedp_ray.models.trainable import select_trainable
from uedp_ray.privacy.clipping import clip_factors, wide_norms
from uedp_ray.tasks.base import Batch
from uedp_ray.tasks.next_word import NextWord

VOCABULARY, SENTENCES, LENGTH, CLIP = 10_000, 64, 32, 1.0
TASK = NextWord(bos_id=0, eos_id=0, pad_id=0, max_length=LENGTH)


def clip_weights(norms_sq: Tensor) -> Tensor:
    return (CLIP / norms_sq.sqrt()).clamp(max=1.0)


def ours(model: nn.Module, params: FlatParameters, batch: Batch) -> Tensor:
    total = torch.zeros(params.num, device=batch.input_ids.device)
    for _, rows in sentence_gradients(model, params, TASK, batch).chunks():
        factors = clip_factors(wide_norms(rows), CLIP).tolist()
        for row, factor in zip(rows, factors, strict=True):
            total.add_(row, alpha=factor)
    return total


def one_by_one(model: nn.Module, params: FlatParameters, batch: Batch) -> Tensor:
    total = torch.zeros(params.num, device=batch.input_ids.device)
    for x in range(len(batch)):
        loss = TASK.losses(model, Batch(batch.input_ids[x : x + 1], batch.targets[x : x + 1])).sum()
        gradient = torch.cat([g.flatten() for g in torch.autograd.grad(loss, params.tensors)])
        total += gradient * clip_weights(gradient.square().sum())
    return total


def vmap_grad(model: nn.Module, params: FlatParameters, batch: Batch) -> Tensor:
    class Losses(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, batch: Batch) -> Tensor:
            return TASK.losses(self.model, batch)

    module = Losses()
    trained = {f"model.{name}": p.detach() for name, p in zip(params.names, params.tensors, strict=True)}

    def loss(values: dict[str, Tensor], input_ids: Tensor, targets: Tensor) -> Tensor:
        return torch.func.functional_call(module, values, (Batch(input_ids[None], targets[None]),)).sum()

    each = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0))(trained, batch.input_ids, batch.targets)
    gradients = torch.cat([g.flatten(1) for g in each.values()], 1)
    return clip_weights(gradients.square().sum(1)) @ gradients


def no_clipping(model: nn.Module, params: FlatParameters, batch: Batch) -> Tensor:
    """The lower limit: one ordinary backward pass of the summed loss."""
    return torch.cat([g.flatten() for g in torch.autograd.grad(TASK.losses(model, batch).sum(), params.tensors)])


Method = Callable[[nn.Module, FlatParameters, Batch], Tensor]


def seconds(method: Method, model: nn.Module, params: FlatParameters, batch: Batch) -> float:
    start = time.perf_counter()
    method(model, params, batch)
    if batch.input_ids.device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5)
    repeats = parser.parse_args().repeats
    device = "cuda" if torch.cuda.is_available() else "cpu"
    generator = np.random.default_rng(0)
    batch = TASK.collate(list(generator.integers(1, VOCABULARY, size=(SENTENCES, LENGTH - 1)))).to(device)
    print(f"{SENTENCES} sentences of {LENGTH} tokens on {device}, {torch.get_num_threads()} threads")
    for part in ("full", "lora"):
        config = ModelConfig(max_length=LENGTH, num_layers=2, hidden_size=128, trainable=part)
        model = build_model(config, vocab_size=VOCABULARY, bos_id=0, eos_id=0, seed=0)
        model.set_attn_implementation("eager")  # type: ignore[operator]  # the same for all: vmap has no fast sdpa
        model = select_trainable(model, config, seed=0).to(device)
        params = FlatParameters(model)
        params.set(params.get() + 0.01)
        expected = one_by_one(model, params, batch)
        for method in (ours, vmap_grad):
            error = (method(model, params, batch) - expected).norm() / expected.norm()
            if error > 1e-4:
                raise SystemExit(f"{method.__name__} differs from one_by_one by {error:.1e}")
        best: dict[Method, float] = dict.fromkeys((ours, one_by_one, vmap_grad, no_clipping), float("inf"))
        for _ in range(repeats):
            for timed in best:
                best[timed] = min(best[timed], seconds(timed, model, params, batch))
        print(f"{part}: {params.num:,} parameters")
        for timed, taken in best.items():
            print(f"  {timed.__name__:<11} {taken:8.3f} s  {taken / best[ours]:6.1f} x ours")


if __name__ == "__main__":
    main()
