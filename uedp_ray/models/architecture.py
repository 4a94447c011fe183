"""What ``model.architecture`` names: a module of this room with an ``ARCHITECTURE``, which says how its network is built.

    >>> from uedp_ray.config import ModelConfig
    >>> from uedp_ray.models.architecture import NAMES, Tokens, architecture
    >>> from uedp_ray.tasks.base import Head
    >>> NAMES
    ('gpt2', 'awd_lstm', 'bert', 'pretrained')
    >>> gpt2, config = architecture("gpt2"), ModelConfig(num_layers=1, hidden_size=8, num_heads=2)
    >>> network = gpt2.build(config, Tokens(size=50, bos_id=0, eos_id=0), Head())
    >>> type(network).__name__, network.num_parameters()
    ('GPT2LMHeadModel', 1800)
    >>> sorted(gpt2.shape)    # what it shares with a warm start
    ['hidden_size', 'max_length', 'num_heads', 'num_layers', 'tie_embeddings']
    >>> gpt2.largest(config)["num_layers"]    # what this setting decides on, and about how many parameters that has
    ('all layers', 768)

A new one is one file here and its name in ``config.choices.ArchitectureName``. Everything here is public.
"""

from __future__ import annotations

import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from torch import nn

from uedp_ray.components import in_module
from uedp_ray.config import ModelConfig
from uedp_ray.config.choices import ArchitectureName
from uedp_ray.fields import Check
from uedp_ray.tasks.base import Head

NAMES: tuple[str, ...] = typing.get_args(ArchitectureName)
SHAPE = ("num_layers", "hidden_size", "num_heads", "embedding_size", "tie_embeddings")
"""Settings that give a network of ours its shape; a pretrained one has its own."""
DROPOUTS = ("dropout_embedding", "dropout_input", "dropout_hidden", "dropout_weight", "dropout_output")


class Tokens(NamedTuple):
    """The vocabulary that a network is made for."""

    size: int
    bos_id: int
    eos_id: int
    pad_id: int | None = None
    """By which some classifiers tell where a sentence ends."""
    replaced: bool = False
    """Whether a pretrained network gets newly drawn embeddings."""


@dataclass(frozen=True, kw_only=True)
class OwnNetwork:
    """A network that transformers does not know: its settings as in ``config.json``, and how it is built from them."""

    settings: type
    """A dataclass with a class attribute ``model_type``, which is the name of the architecture."""
    fields: Mapping[str, Check]
    make: Callable[[Any], nn.Module]
    num_layers: Callable[[Any], int]


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """How a network is built from the model section."""

    build: Callable[[ModelConfig, Tokens, Head], nn.Module]
    """Its initial values are random, by torch's default generator, or those it comes with."""
    heads: frozenset[str] = frozenset({"causal-lm"})
    """The kinds of heads that it can have (``tasks.base.Head``)."""
    shape: Mapping[str, str] = field(default_factory=dict)
    """Settings that a network and its warm start share, with their names in ``config.json``."""
    uses: frozenset[str] = frozenset()
    """Those of ``init_range``, ``SHAPE`` and ``DROPOUTS`` that it reads; it ignores the others."""
    why_ignored: str = ""
    largest: Callable[[ModelConfig], Mapping[str, tuple[str, int]]] = lambda config: {}
    """By setting, the part of the network that it decides on: its name in words, and its number of parameters."""
    width: Callable[[ModelConfig], int] = lambda config: config.hidden_size
    """Numbers of the vector that a classifier's head reads of a sentence."""
    own: OwnNetwork | None = None
    masked_by_row: bool = False
    """Whether all its dropout is torch's own, of tensors that have a row for each sentence: see ``masks.MaskedRows``."""


def architecture(name: str) -> Architecture:
    """Raises: TypeError for a name that nothing stands behind."""
    found: Architecture = in_module("models", name, "ARCHITECTURE")
    return found


def own_network(model_type: str) -> OwnNetwork | None:
    """The network of ours that a saved model has; None if it is one of transformers."""
    return architecture(model_type).own if model_type in NAMES else None


def largest_of_transformer(config: ModelConfig) -> Mapping[str, tuple[str, int]]:
    """``Architecture.largest`` of blocks of attention and a feed-forward layer of four times their width."""
    layer = 12 * config.hidden_size**2
    return {
        "max_length": ("the table of positions", config.max_length * config.hidden_size),
        "hidden_size": ("one layer", layer),
        "num_layers": ("all layers", config.num_layers * layer),
    }


def shaping() -> frozenset[str]:
    """Settings of the model section that decide whether its warm start fits."""
    return frozenset({"architecture", "path", "warm_start"}.union(*(architecture(name).shape for name in NAMES)))
