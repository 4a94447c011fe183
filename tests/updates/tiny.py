"""A corpus of random tokens and a model small enough to differentiate hundreds of times."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch

from uedp_ray.config import RunConfig, from_dict
from uedp_ray.models.build import build_model
from uedp_ray.models.parameters import FlatParameters
from uedp_ray.models.trainable import select_trainable
from uedp_ray.plan import Plan
from uedp_ray.privacy.sampling import PoissonSampler
from uedp_ray.tasks.next_word import NextWord
from uedp_ray.updates.base import local_update

VOCABULARY = 24
CPU = torch.device("cpu")


@dataclass(frozen=True)
class TinyCorpus:
    """Who holds what, with token arrays. ``without_*`` null sentences but keep their slots."""

    user_offsets: np.ndarray
    entity_offsets: np.ndarray
    entity_ids: np.ndarray
    num_entities: int
    tokens: list[np.ndarray]

    @classmethod
    def random(cls, seed: int, *, num_users: int = 12, num_entities: int = 6) -> TinyCorpus:
        rng = np.random.default_rng(seed)
        sentences = rng.integers(1, 7, num_users)
        total = int(sentences.sum())
        held = [np.unique(rng.zipf(1.6, rng.integers(0, 4)) % num_entities) for _ in range(total)]
        return cls(
            user_offsets=np.concatenate([[0], np.cumsum(sentences)]).astype(np.int64),
            entity_offsets=np.concatenate([[0], np.cumsum([len(h) for h in held])]).astype(np.int64),
            entity_ids=np.concatenate(held).astype(np.int32),
            num_entities=num_entities,
            tokens=[rng.integers(3, VOCABULARY, rng.integers(1, 8)).astype(np.int32) for _ in range(total)],
        )

    @property
    def num_users(self) -> int:
        return len(self.user_offsets) - 1

    @property
    def num_sentences(self) -> int:
        return len(self.tokens)

    @cached_property
    def user_hash(self) -> np.ndarray:
        return np.random.default_rng(99).integers(0, 2**63, self.num_users).astype(np.uint64)

    @cached_property
    def entity_hash(self) -> np.ndarray:
        return np.random.default_rng(98).integers(0, 2**63, self.num_entities).astype(np.uint64)

    @cached_property
    def sentence_words(self) -> np.ndarray:
        return np.array([len(t) for t in self.tokens], dtype=np.int32)

    @cached_property
    def user_of(self) -> np.ndarray:
        return np.repeat(np.arange(self.num_users), np.diff(self.user_offsets))

    def holds(self, entity: int) -> np.ndarray:
        """(N,) whether a sentence holds the entity."""
        of = np.repeat(np.arange(self.num_sentences), np.diff(self.entity_offsets))
        return np.isin(np.arange(self.num_sentences), of[self.entity_ids == entity])

    def holders(self, entity: int) -> np.ndarray:
        return np.unique(self.user_of[self.holds(entity)])

    @cached_property
    def entity_holders(self) -> np.ndarray:
        return np.array([len(self.holders(e)) for e in range(self.num_entities)], dtype=np.int32)

    def nulled(self, sentences: np.ndarray) -> TinyCorpus:
        empty = np.zeros(0, dtype=np.int32)
        return dataclasses.replace(
            self, tokens=[empty if gone else t for gone, t in zip(sentences, self.tokens, strict=True)]
        )

    def without_user(self, user: int) -> TinyCorpus:
        return self.nulled(self.user_of == user)

    def without_entity(self, entity: int) -> TinyCorpus:
        return self.nulled(self.holds(entity))

    def removed(self, sentences: np.ndarray) -> TinyCorpus:
        """The sentences and their slots gone: what truncation would be recomputed on."""
        keep = np.flatnonzero(~sentences)
        held = [self.entity_ids[self.entity_offsets[i] : self.entity_offsets[i + 1]] for i in keep]
        counts = np.bincount(self.user_of[keep], minlength=self.num_users)
        return TinyCorpus(
            user_offsets=np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
            entity_offsets=np.concatenate([[0], np.cumsum([len(h) for h in held])]).astype(np.int64),
            entity_ids=np.concatenate([*held, []]).astype(np.int32),
            num_entities=self.num_entities,
            tokens=[self.tokens[i] for i in keep],
        )


def tiny_config(**sections: dict) -> RunConfig:
    """A run on a one-layer GPT-2; sections overlay the defaults."""
    tree = {
        "corpus": {"declared_num_users": 12},
        "privacy": {"noise_multiplier": 1.0, "user_sampling_prob": 0.6, "test_noise_seed": 0},
        "model": {"num_layers": 1, "hidden_size": 8, "num_heads": 2, "max_length": 10},
        "training": {"num_rounds": 3},
    }
    for name, section in sections.items():
        tree[name] = {**tree.get(name, {}), **section}
    return from_dict(RunConfig, tree)


class TinyWorker:
    """Sums updates of a tiny corpus outside any run directory."""

    def __init__(self, config: RunConfig, *, dtype: torch.dtype = torch.float32, device: str = "cpu"):
        self.plan, self.device = Plan.of(config), torch.device(device)
        self.model = select_trainable(
            build_model(config.model, vocab_size=VOCABULARY, bos_id=0, eos_id=0, seed=1), config.model, seed=1
        ).to(self.device, dtype)
        self.params = FlatParameters(self.model)
        self.task = NextWord(0, 0, 1, config.model.max_length)
        self.parameters = self.params.get()
        self.step = 1.0 if self.plan.grid is None else self.plan.grid.step

    def sum(
        self,
        corpus: TinyCorpus,
        sentence_weight: np.ndarray,
        *,
        users: np.ndarray | None = None,
        round_index: int = 0,
        key: bytes = b"sampling key of a test",
    ) -> torch.Tensor:
        """The worker's sum in float64; ``steps`` has it as it is."""
        return self.steps(corpus, sentence_weight, users=users, round_index=round_index, key=key).double() * self.step

    def steps(
        self,
        corpus: TinyCorpus,
        sentence_weight: np.ndarray,
        *,
        users: np.ndarray | None = None,
        round_index: int = 0,
        key: bytes = b"sampling key of a test",
    ) -> torch.Tensor:
        update = local_update(self.plan, self.model, self.params, self.task, corpus.tokens.__getitem__, self.device)
        selections = self.plan.select(
            corpus,
            np.arange(corpus.num_users) if users is None else users,
            PoissonSampler(key),
            round_index=round_index,
            attempt=0,
            sentence_weight=sentence_weight,
        )
        return update.sum_updates(self.parameters, selections, round_index)
