"""Small networks, random sentences, and the slow reference the fast gradients are held against."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM

from uedp_ray.config import ModelConfig
from uedp_ray.models.build import build_model
from uedp_ray.models.parameters import FlatParameters
from uedp_ray.tasks.base import IGNORED, Batch, Task
from uedp_ray.tasks.next_word import NextWord

VOCABULARY = 23
TASK = NextWord(bos_id=0, eos_id=0, pad_id=0, max_length=8)
LENGTHS = (5, 0, 1, 7, 12, 3)


def sentences(lengths: tuple[int, ...] = LENGTHS, vocab_size: int = VOCABULARY, seed: int = 0) -> list[np.ndarray]:
    generator = np.random.default_rng(seed)
    return [generator.integers(1, vocab_size, size=n) for n in lengths]


def tiny(architecture: str = "gpt2", **settings: object) -> nn.Module:
    """A network of a few thousand parameters, with values large enough that no gradient is nearly zero."""
    small = {"max_length": 8, "num_layers": 2, "hidden_size": 12, "num_heads": 2, "embedding_size": 6} | settings
    config = ModelConfig(architecture=architecture, **small)  # type: ignore[arg-type]
    return spread(build_model(config, vocab_size=VOCABULARY, bos_id=0, eos_id=0, seed=1))


def tiny_llama(*, tied: bool = True) -> nn.Module:
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=12,
        intermediate_size=20,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=16,
        tie_word_embeddings=tied,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        return spread(LlamaForCausalLM(config).eval())


def whole(ids: Tensor) -> Batch:
    """(B, T) token ids as a batch without padding that predicts nothing."""
    return Batch(ids, torch.full_like(ids, IGNORED), torch.full((len(ids),), ids.shape[1]))


def spread(model: nn.Module) -> nn.Module:
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator))
    return model


def reference_gradients(model: nn.Module, params: FlatParameters, task: Task, batch: Batch) -> Tensor:
    """(B, P), one pass per sentence through the whole batch, with the same dropout masks."""
    state, rows = torch.get_rng_state(), []
    for x in range(len(batch)):
        torch.set_rng_state(state)
        gradients = torch.autograd.grad(task.losses(model, batch)[x], params.tensors, allow_unused=True)
        filled = [torch.zeros_like(p) if g is None else g for g, p in zip(gradients, params.tensors, strict=True)]
        rows.append(torch.cat([g.flatten() for g in filled]))
    return torch.stack(rows)
