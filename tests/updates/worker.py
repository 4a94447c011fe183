"""A worker's updates, of made-up sentences, for tests of what must hold to the bit."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import torch

from tests.updates.tiny import tiny_config
from uedp_ray.config import RunConfig
from uedp_ray.models.build import build_model
from uedp_ray.models.parameters import FlatParameters
from uedp_ray.models.trainable import select_trainable
from uedp_ray.plan import Plan, UserSelection
from uedp_ray.tasks.next_word import NextWord
from uedp_ray.updates.base import LocalUpdate, local_update

VOCABULARY, LENGTH = 40, 20
AWD = {"architecture": "awd_lstm", "num_layers": 2, "hidden_size": 6, "embedding_size": 5}
ALL_DROPOUTS = {f"dropout_{name}": 0.3 for name in ("embedding", "input", "hidden", "weight", "output")}
LOCAL_SGD = {"local_update": "local_sgd", "local_learning_rate": 0.5, "local_batch_size": 2}
NETWORKS = {
    "gpt2": {},
    "gpt2 untied": {"tie_embeddings": False},
    "gpt2 lora": {"trainable": "lora", "lora_rank": 2},
    "gpt2 dropout": {"dropout_hidden": 0.3, "dropout_output": 0.3},
    "awd_lstm": AWD,
    "awd_lstm dropout": {**AWD, **ALL_DROPOUTS},
    "llama": {"architecture": "pretrained"},
    "llama lora": {"architecture": "pretrained", "trainable": "lora", "lora_rank": 2},
    "llama held": {"architecture": "pretrained", "trainable": "lora", "lora_rank": 2, "base_dtype": "bf16"},
}


def sentences(seed: int = 0, lengths: tuple[int, int] = (0, 24)) -> dict[int, list[np.ndarray]]:
    """User -> sentences: short, long, empty, cut; the first two users say the same."""
    made_up = np.random.default_rng(seed)
    users = {
        u: [made_up.integers(1, VOCABULARY, made_up.integers(*lengths)) for _ in range(made_up.integers(1, 5))]
        for u in range(7)
    }
    users[1] = users[0]
    return users


class Worker:
    """A network, the sentences of some users, and the exact sum of their updates."""

    def __init__(self, config: RunConfig, users: dict[int, list[np.ndarray]], device: str = "cpu"):
        self.config, self.device = config, torch.device(device)
        model = build_model(config.model, vocab_size=VOCABULARY, bos_id=0, eos_id=0, seed=1)
        self.model = select_trainable(model, config.model, seed=1).to(self.device)
        self.params = FlatParameters(self.model)
        noise = torch.randn(self.params.num, generator=torch.Generator().manual_seed(3))
        self.parameters = self.params.get() + 0.1 * noise.to(self.device)  # not LoRA's zeros
        self.plan = Plan.of(config)
        self.texts = [text for said in users.values() for text in said]
        first = np.cumsum([0, *map(len, users.values())])
        self.selections = {
            u: UserSelection(u, np.arange(first[i], first[i + 1]), np.ones(len(said), np.float32), len(said))
            for i, (u, said) in enumerate(users.items())
        }

    def update(self, texts: list[np.ndarray] | None = None) -> LocalUpdate:
        task = NextWord(0, 0, 1, self.config.model.max_length)
        spoken = self.texts if texts is None else texts
        return local_update(self.plan, self.model, self.params, task, spoken.__getitem__, self.device)

    def steps(self, *users: int, texts: list[np.ndarray] | None = None) -> torch.Tensor:
        return self.update(texts).sum_updates(self.parameters, [self.selections[u] for u in users], 0)

    def norm(self, steps: torch.Tensor) -> float:
        return math.sqrt(math.fsum((steps.double() * self.plan.grid.step).square().tolist()))


def make(network: str, folder: Path | None = None, training: dict | None = None, **privacy: object) -> RunConfig:
    model = {"max_length": LENGTH, **NETWORKS[network]}
    if network.startswith("llama"):
        model["path"] = str(folder)
    local_sgd = bool(training) and "local_update" in training
    clip, holders = (None, "truncate") if local_sgd else (0.3, "reweight")
    return tiny_config(
        corpus={"declared_num_users": 100},
        privacy={"sentence_clip_norm": clip, "test_noise_seed": None, **privacy},
        bounds={"max_holders": 3, "holder_bound": holders, "entity_bound": holders},
        model=model,
        training=training or {},
    )
