"""The network of a run before training, and the part of it that is trained.

>>> from uedp_ray.config import RunConfig, from_dict
>>> from uedp_ray.corpus.vocabulary import build_vocabulary
>>> from uedp_ray.models.parameters import FlatParameters
>>> from uedp_ray.training.network import initial_model, make_model
>>> tree = {"corpus": {"declared_num_users": 100}, "privacy": {"noise_multiplier": 1.0}}
>>> tree["model"] = {"max_length": 8, "num_layers": 1, "hidden_size": 8, "num_heads": 2, "trainable": "bias_norm"}
>>> config = from_dict(RunConfig, tree)
>>> vocabulary = build_vocabulary(config.vocabulary, public_text=lambda: iter(["the patient left ."]))
>>> initial_model(config, vocabulary).num_parameters(), FlatParameters(make_model(config, vocabulary)).num
(1008, 120)
"""

from __future__ import annotations

from torch import nn

from uedp_ray.config import RunConfig
from uedp_ray.corpus.vocabulary import Vocabulary
from uedp_ray.models.build import build_model
from uedp_ray.models.trainable import select_trainable
from uedp_ray.tasks.base import Head, task_of


def initial_model(config: RunConfig, vocabulary: Vocabulary, head: Head | None = None) -> nn.Module:
    """The configured network for a vocabulary, warm-started if configured; see ``build_model``. ``head``: what it ends in;
    None: what the task needs.
    """
    return build_model(
        config.model,
        vocab_size=vocabulary.size,
        bos_id=vocabulary.bos_id,
        eos_id=vocabulary.eos_id,
        pad_id=vocabulary.pad_id,
        head=task_of(config.task.kind).head(config.task) if head is None else head,
        seed=config.training.seed,
        replace_embeddings=config.vocabulary.replace_embeddings,
    )


def make_model(config: RunConfig, vocabulary: Vocabulary) -> nn.Module:
    """``initial_model`` with its trainable part selected."""
    return select_trainable(initial_model(config, vocabulary), config.model, seed=config.training.seed)
