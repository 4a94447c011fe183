"""The network of a run before training, and the part of it that is trained."""

from __future__ import annotations

from torch import nn

from uedp_ray.config import RunConfig
from uedp_ray.corpus.vocabulary import Vocabulary
from uedp_ray.models.build import build_model
from uedp_ray.models.trainable import select_trainable


def initial_model(config: RunConfig, vocabulary: Vocabulary) -> nn.Module:
    """The configured network for a vocabulary, warm-started if configured; see ``build_model``."""
    return build_model(
        config.model,
        vocab_size=vocabulary.size,
        bos_id=vocabulary.bos_id,
        eos_id=vocabulary.eos_id,
        seed=config.training.seed,
        replace_embeddings=config.vocabulary.replace_embeddings,
    )


def make_model(config: RunConfig, vocabulary: Vocabulary) -> nn.Module:
    """``initial_model`` with its trainable part selected."""
    return select_trainable(initial_model(config, vocabulary), config.model, seed=config.training.seed)
