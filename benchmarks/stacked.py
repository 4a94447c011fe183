"""Measures whether M small networks pass faster stacked (one vmap over their parameters) than one after the other.

    python benchmarks/stacked.py [--models 1,2,4,8] [--rounds 5] [--device cpu]

The networks are those of `sweeps/quickstart.yaml`, as trials of one search have them: of one shape, with parameters and
sentences of their own. Of the forward and backward pass of a batch (512 padded tokens a network, as `gradient` has them on a
CPU) the seconds for each network are printed, CPU seconds on a CPU, the least of the rounds, and the gradients are compared.
What `gradient` needs beside, a norm for each sentence, comes to both alike.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, stack_module_state, vmap
from torch.nn.functional import cross_entropy

from uedp_ray.config import ModelConfig
from uedp_ray.models.build import build_model
from uedp_ray.models.trainable import select_trainable

MODEL = ModelConfig(
    num_layers=2,
    hidden_size=64,
    num_heads=4,
    max_length=40,
    trainable="lora",
    lora_rank=4,
    lora_targets=("c_attn", "c_proj", "c_fc", "lm_head"),
)
VOCABULARY, TOKENS = 4000, 512


def network(seed: int) -> nn.Module:
    built = build_model(MODEL, vocab_size=VOCABULARY, bos_id=0, eos_id=0, seed=seed)
    return select_trainable(built, MODEL, seed=seed).eval()


def loss(run: Callable[..., Tensor], ids: Tensor) -> Tensor:
    places = torch.arange(ids.shape[1], device=ids.device).expand_as(ids)
    logits = run(input_ids=ids, position_ids=places, use_cache=False).logits
    return cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", default="1,2,4,8")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--device", default="cpu")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    device = torch.device(asked.device)

    def now() -> float:
        if device.type == "cuda":
            torch.cuda.synchronize()
            return time.perf_counter()
        return time.process_time()

    print(f"{'networks':>8} {'length':>6} {'one by one, ms':>14} {'stacked, ms':>11} {'ratio':>6}")
    for number in map(int, asked.models.split(",")):
        networks = [network(seed).to(device) for seed in range(number)]
        stacked, buffers = stack_module_state(networks)
        trained = {name for name, each in networks[0].named_parameters() if each.requires_grad}
        moved = {name: each.detach() for name, each in stacked.items() if name in trained}
        held = {name: each.detach() for name, each in (stacked | buffers).items() if name not in trained}
        base = networks[0]

        def one(moved: dict[str, Tensor], held: dict[str, Tensor], ids: Tensor, base: nn.Module = base) -> Tensor:
            return loss(lambda **inputs: functional_call(base, moved | held, kwargs=inputs), ids)

        for length in (8, 16, 40):
            ids = torch.randint(0, VOCABULARY, (number, TOKENS // length, length), device=device)

            def separately(ids: Tensor = ids, networks: list[nn.Module] = networks) -> list[Tensor]:
                parts = []
                for each, own in zip(networks, ids, strict=True):
                    parts += torch.autograd.grad(loss(each, own), [p for p in each.parameters() if p.requires_grad])
                return parts

            def together(
                ids: Tensor = ids, moved: dict[str, Tensor] = moved, held: dict[str, Tensor] = held
            ) -> list[Tensor]:
                return list(vmap(grad(one), randomness="error")(moved, held, ids).values())

            apart, at_once = separately(), together()
            order = [name for name, each in base.named_parameters() if each.requires_grad]
            for place, (name, found) in enumerate(zip(moved, at_once, strict=True)):
                same = torch.stack(apart[order.index(name) :: len(order)])
                assert torch.allclose(same, found, rtol=1e-3, atol=1e-6), (place, name)
            best = [float("inf")] * 2
            for _ in range(asked.rounds):
                for which, pass_all in enumerate((separately, together)):
                    began = now()
                    pass_all()
                    best[which] = min(best[which], (now() - began) / number)
            print(f"{number:8} {length:6} {1e3 * best[0]:14.1f} {1e3 * best[1]:11.1f} {best[1] / best[0]:6.2f}")


if __name__ == "__main__":
    main()
