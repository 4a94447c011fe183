"""Builds the network of a model section, from random values or its warm start.

    >>> import torch
    >>> from uedp_ray.config import ModelConfig
    >>> from uedp_ray.models.build import build_model
    >>> config = ModelConfig(max_length=8, num_layers=1, hidden_size=8, num_heads=2)
    >>> one, same, other = (build_model(config, vocab_size=50, bos_id=0, eos_id=0, seed=seed) for seed in (0, 0, 1))
    >>> type(one).__name__, one.num_parameters(), one.training
    ('GPT2LMHeadModel', 1352, False)
    >>> [torch.equal(one.lm_head.weight, model.lm_head.weight) for model in (same, other)]    # by the seed alone
    [True, False]

All arguments are public.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import nn

from uedp_ray.config import ModelConfig
from uedp_ray.errors import InputError
from uedp_ray.models.architecture import Tokens, architecture
from uedp_ray.models.heads import from_settings, taken_over
from uedp_ray.models.held import hold, read_in
from uedp_ray.models.pretrained import pretrained_config
from uedp_ray.models.saved import load_model, read_settings, unfilled
from uedp_ray.models.trainable import lora_layers
from uedp_ray.tasks.base import NEXT_WORD, Head, both_ways


def build_model(
    config: ModelConfig,
    *,
    vocab_size: int,
    bos_id: int,
    eos_id: int,
    seed: int,
    pad_id: int | None = None,
    replace_embeddings: bool = False,
    head: Head = NEXT_WORD,
) -> nn.Module:
    """A float32 network on the CPU, all parameters trainable, in evaluation mode; see ``held`` for ``config.base_dtype``.

    ``config.warm_start`` replaces the initial values, but for those of a head that it lacks.

    Args:
      vocab_size: tokens of the vocabulary in use; a pretrained network may have more.
      bos_id, eos_id: tokens that sentences begin and end with, for the model's own settings.
      pad_id: the padding token, where it is another than ``eos_id``.
      seed: initial values; the global generator is left alone.
      head: what the network ends in.
      replace_embeddings: whether a pretrained network gets newly drawn token embeddings, for this vocabulary.
    Raises:
      InputError: a folder cannot be loaded or does not fit.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        tokens = Tokens(vocab_size, bos_id, eos_id, eos_id if pad_id is None else pad_id, replace_embeddings)
        model = architecture(config.architecture).build(config, tokens, head)
    if config.warm_start:
        with _as_start(config):
            start = load_model(config.warm_start, read_in(config))
        taken = taken_over(model, start)
        if taken is None:
            raise _misfit(config)
        model.load_state_dict(
            {name: value for name, value in start.state_dict().items() if name in taken}, strict=False
        )
    return hold(model.eval()) if config.base_dtype == "bf16" else model.eval()


def pretraining_head(config: ModelConfig) -> Head:
    """What the network ends in while it is trained on public text: it predicts words, masked ones if it reads both ways."""
    if config.architecture == "pretrained":
        return Head("masked-lm" if both_ways(pretrained_config(config)) else "causal-lm")
    return Head("masked-lm" if "masked-lm" in architecture(config.architecture).heads else "causal-lm")


def check_head(config: ModelConfig, head: Head, task: str) -> None:
    """Raises InputError if the network cannot end in what the task needs. ``task``: its name."""
    name, heads = str(config.architecture), architecture(config.architecture).heads
    if name == "pretrained":
        both = both_ways(pretrained_config(config))
        name, heads = f"of {config.path}", heads - {"causal-lm" if both else "masked-lm"}
    if head.kind not in heads:
        reads = "reads both ways, and predicts no next word" if head.kind == "causal-lm" else "has no such output"
        raise InputError("task.kind", task, f"the network ({name}) {reads}: choose another task or model.architecture")


def check_start_fits(
    config: ModelConfig, vocab_size: int, *, replace_embeddings: bool = False, head: Head = NEXT_WORD
) -> None:
    """Checks the model section against the settings of its warm start, and these against its files; reads no weights.

    Raises: InputError if ``build_model`` would not load it, as far as this shows it. It refuses the rest itself.
    """
    with _as_start(config):
        hub = read_settings(Path(config.warm_start))
    theirs = hub.model_type
    pretrained = config.architecture == "pretrained"
    ours = pretrained_config(config).model_type if pretrained else config.architecture
    if theirs != ours:
        field, value = ("path", config.path) if pretrained else ("architecture", config.architecture)
        kind = f"is {ours}" if pretrained else "is requested"
        raise InputError(f"model.{field}", value, f"{kind}, but model.warm_start is {theirs}: {_AS_PRETRAINED}")
    for name, key in architecture(config.architecture).shape.items():
        value, there = getattr(config, name), getattr(hub, key)
        if value != there:
            raise InputError(f"model.{name}", value, f"model.warm_start has {there}: {_AS_PRETRAINED}")
    try:
        with torch.device("meta"), torch.random.fork_rng(devices=[]):
            taken = taken_over(_shaped(config, vocab_size, replace_embeddings, head), unfilled(hub))
    except Exception:  # a network that cannot be built without its values: build_model will report it
        return
    if taken is None:
        raise _misfit(config)


def check_targets(config: ModelConfig, head: Head = NEXT_WORD) -> None:
    """Checks the names of layers to adapt against the network's; reads no weights. Raises: InputError."""
    if config.trainable != "lora" or not config.lora_targets:
        return
    try:
        with torch.device("meta"), torch.random.fork_rng(devices=[]):
            network = _shaped(config, 1, False, head)
    except InputError:
        raise
    except Exception:  # as in ``check_start_fits``
        return
    lora_layers(network, config)


@contextmanager
def _as_start(config: ModelConfig) -> Iterator[None]:
    try:
        yield
    except InputError as error:
        raise InputError("model.warm_start", config.warm_start, error.remedy) from error.__cause__


_AS_PRETRAINED = "give the model section it was pre-trained with"


def _misfit(config: ModelConfig) -> InputError:
    return InputError("model.warm_start", config.warm_start, f"its shapes differ from this model's: {_AS_PRETRAINED}")


def _shaped(config: ModelConfig, vocab_size: int, replace_embeddings: bool, head: Head) -> nn.Module:
    """The network, without values."""
    tokens = Tokens(vocab_size, 0, 0, 0, replace_embeddings)
    if config.architecture != "pretrained":
        return architecture(config.architecture).build(config, tokens, head)
    hub = pretrained_config(config)
    if replace_embeddings:
        hub.get_text_config().vocab_size = vocab_size
    return from_settings(hub, tokens, head)
