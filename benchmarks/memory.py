"""Counts the memory of a pass with the gradient of every sentence, of large networks, without the memory for one.

    python benchmarks/memory.py [--size qwen2.5-7b|llama-3.2-1b|gpt2|small] [--sentences 1] [--tokens 1024]
        [--trainable lora|full|...] [--precision float32|bf16] [--base-dtype float32|bf16] [--gradient-checkpointing]

Tensors have shapes and no values (torch's fake tensors), and every one that an operation makes is counted until it is let go
of: what kernels take for themselves, and an allocator for gaps, is not seen. The network has its published shape and no
published weights. Figures are of one batch: its passes, the lengths of sentences, and what is kept of it for its sum.
"""

from __future__ import annotations

import argparse
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import AutoModelForCausalLM, GPT2Config, LlamaConfig, Qwen2Config

from uedp_ray.config import ModelConfig
from uedp_ray.models.gradients import sentence_gradients
from uedp_ray.models.held import hold
from uedp_ray.models.parameters import FlatParameters
from uedp_ray.models.recomputed import recompute_blocks
from uedp_ray.models.trainable import select_trainable
from uedp_ray.tasks.base import Batch
from uedp_ray.tasks.next_word import NextWord
from uedp_ray.updates.weighted import measured

SIZES: dict[str, Callable[[int], Any]] = {
    "qwen2.5-7b": lambda longest: Qwen2Config(
        vocab_size=152_064,
        hidden_size=3_584,
        intermediate_size=18_944,
        num_hidden_layers=28,
        num_attention_heads=28,
        num_key_value_heads=4,
        max_position_embeddings=longest,
        tie_word_embeddings=False,
    ),
    "llama-3.2-1b": lambda longest: LlamaConfig(
        vocab_size=128_256,
        hidden_size=2_048,
        intermediate_size=8_192,
        num_hidden_layers=16,
        num_attention_heads=32,
        num_key_value_heads=8,
        max_position_embeddings=longest,
        tie_word_embeddings=True,
    ),
    "gpt2": lambda longest: GPT2Config(n_positions=longest, embd_pdrop=0.0, attn_pdrop=0.0, resid_pdrop=0.0),
    "small": lambda longest: LlamaConfig(
        vocab_size=8_000,
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=4,
        num_attention_heads=4,
        max_position_embeddings=longest,
    ),
}


class Live(TorchDispatchMode):
    """Bytes of storages that operations made and that are still there, and the most that there were."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self._known: set[int] = set()

    def _gone(self, key: int, size: int) -> None:
        self._known.discard(key)
        self.now -= size

    def count(self, tensors: Iterator[Any] | list[Any]) -> None:
        for tensor in tensors:
            if not isinstance(tensor, torch.Tensor):
                continue
            storage = tensor.untyped_storage()
            key, size = storage._cdata, storage.nbytes()
            if key not in self._known:
                self._known.add(key)
                self.now += size
                weakref.finalize(storage, self._gone, key, size)
        self.peak = max(self.peak, self.now)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        self.count(tree_leaves(found))
        return found


def network(size: str, tokens: int, config: ModelConfig) -> nn.Module:
    """Of shapes only."""
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(SIZES[size](tokens), dtype=torch.float32).eval()
        if config.base_dtype == "bf16":
            hold(model)
        model = select_trainable(model, config, seed=0)
    replaced: dict[int, Any] = {}
    for module in model.modules():
        for tensors in (module._parameters, module._buffers):
            for name, tensor in tensors.items():
                if tensor is not None and id(tensor) not in replaced:
                    made = torch.empty(tensor.shape, dtype=tensor.dtype)
                    wanted = tensor.requires_grad
                    replaced[id(tensor)] = nn.Parameter(made, wanted) if isinstance(tensor, nn.Parameter) else made
                if tensor is not None:
                    tensors[name] = replaced[id(tensor)]
    return model


def measure(
    size: str, sentences: int, tokens: int, config: ModelConfig, precision: str, *, recomputed: bool
) -> tuple[int, int, int, int]:
    """Trained parameters; bytes of the network; the most bytes of a pass beside it; and what is kept of it."""
    task = NextWord(bos_id=0, eos_id=0, pad_id=0, max_length=tokens)
    made_up = task.collate([np.arange(1, tokens)] * sentences)
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        model = network(size, tokens, config)
        if recomputed:
            recompute_blocks(model)
        params = FlatParameters(model)
        batch = Batch(*(mode.from_tensor(each) for each in (made_up.input_ids, made_up.targets, made_up.lengths)))
        weights = {each.untyped_storage()._cdata: each.nbytes for each in (*model.parameters(), *model.buffers())}
        live = Live()
        live._known |= set(weights)
        with live:
            autocast = torch.bfloat16 if precision == "bf16" else None
            kept = measured(sentence_gradients(model, params, task, batch, autocast_dtype=autocast), params)
        return params.num, sum(weights.values()), live.peak, sum(each.nbytes for each in kept)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", default="qwen2.5-7b", choices=SIZES)
    parser.add_argument("--sentences", type=int, default=1)
    parser.add_argument("--tokens", type=int, default=1024)
    parser.add_argument("--trainable", default="lora", choices=["full", "lora", "bias_norm", "head"])
    parser.add_argument("--precision", default="bf16", choices=["float32", "bf16"])
    parser.add_argument("--base-dtype", default="float32", choices=["float32", "bf16"])
    parser.add_argument("--gradient-checkpointing", action="store_true")
    asked = parser.parse_args()
    config = ModelConfig(trainable=asked.trainable, base_dtype=asked.base_dtype)
    recomputed = asked.gradient_checkpointing
    num, weights, peak, kept = measure(
        asked.size, asked.sentences, asked.tokens, config, asked.precision, recomputed=recomputed
    )
    print(
        f"{asked.size}, {num / 1e6:.1f} million trained parameters, {asked.sentences} x {asked.tokens} tokens, "
        f"{asked.precision}: network {weights / 1e9:.1f} GB, pass {peak / 1e9:.1f} GB, kept {kept / 1e9:.2f} GB, "
        f"in all {(weights + peak) / 1e9:.1f} GB"
    )


if __name__ == "__main__":
    main()
