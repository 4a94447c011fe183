"""AWD-LSTM: a word-level LSTM language model with five kinds of dropout.

    >>> import torch
    >>> from uedp_ray.models.awd_lstm import AWDLSTM, AWDLSTMConfig
    >>> model = AWDLSTM(AWDLSTMConfig(vocab_size=50, embedding_size=6, hidden_size=8, num_layers=2))
    >>> ids = torch.tensor([[1, 2, 3], [4, 5, 0]])
    >>> tuple(model(input_ids=ids).logits.shape)    # (B, T) -> (B, T, V)
    (2, 3, 50)
    >>> model.decoder.weight is model.embedding.weight    # tied, so the last layer has as many units
    True
    >>> model.layer_sizes
    [8, 6]

Source: Merity, Keskar, Socher, "Regularizing and Optimizing LSTM Language Models" (2018), section 4. One bias per gate
instead of cuDNN's two (the same functions), and whole words are dropped per sentence instead of per batch.

Every product with a weight goes through a module call, so that ``recorder.py`` sees its factors. Masks belong to one
sentence each, except the DropConnect mask, which a forward pass shares. Drawn from torch's default generator, they depend
on which sentences share a pass; under ``mask_seeds`` they depend on the seeds alone.

Shape legend: B sentences, T positions, V vocabulary, D embedding size, H hidden size.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from uedp_ray.config import ModelConfig
from uedp_ray.fields import Later, flag, number
from uedp_ray.models.architecture import DROPOUTS, Architecture, OwnNetwork, Tokens
from uedp_ray.models.masks import Masks, PerSentenceMasks
from uedp_ray.tasks.base import Head


@dataclass(frozen=True, kw_only=True)
class AWDLSTMConfig:
    """Sizes and dropout probabilities, written to ``config.json`` beside the weights."""

    model_type: ClassVar[str] = "awd_lstm"

    vocab_size: int
    num_labels: int = 0
    """Outputs at each position, of a classifier; 0: the vocabulary's."""
    embedding_size: int = 100
    hidden_size: int = 1150
    num_layers: int = 3
    tie_embeddings: bool = True
    """Output matrix = embedding; the last layer then has ``embedding_size`` units."""
    init_range: float = 0.1
    """Embedding and output weights start uniform within it; LSTM weights within 1 / sqrt(units) of their layer."""
    dropout_embedding: float = 0.0
    dropout_input: float = 0.0
    dropout_hidden: float = 0.0
    dropout_weight: float = 0.0
    dropout_output: float = 0.0


@dataclass(frozen=True)
class CausalLMOutput:
    """Shaped like the output of a transformers model."""

    logits: Tensor


class RecurrentLinear(nn.Linear):
    """Hidden-to-hidden product. ``dropped`` is ``weight * scale``, computed once for all time steps by the caller."""

    def forward(self, input: Tensor, scale: Tensor | None = None, dropped: Tensor | None = None) -> Tensor:  # noqa: A002
        return F.linear(input, self.weight if dropped is None else dropped)


class LSTMLayer(nn.Module):
    """(B, T, inputs) -> (B, T, units), from a zero state."""

    def __init__(self, num_inputs: int, num_units: int):
        super().__init__()
        self.num_units = num_units
        self.inputs = nn.Linear(num_inputs, 4 * num_units)
        self.recurrent = RecurrentLinear(num_units, 4 * num_units, bias=False)
        bound = num_units**-0.5
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -bound, bound)

    def forward(self, x_BTD: Tensor, masks: Masks, prob: float = 0.0) -> Tensor:
        """``prob``: DropConnect on the hidden-to-hidden matrix."""
        scale = dropped = None
        if prob:
            scale = masks.weight(tuple(self.recurrent.weight.shape), prob, x_BTD)
            dropped = self.recurrent.weight * scale
        projected = self.inputs(x_BTD)  # all time steps at once
        h = c = projected.new_zeros(len(x_BTD), self.num_units)
        outputs = []
        for gates in projected.unbind(1):
            i, f, g, o = (gates + self.recurrent(h, scale=scale, dropped=dropped)).chunk(4, dim=1)
            c = f.sigmoid() * c + i.sigmoid() * g.tanh()
            h = o.sigmoid() * c.tanh()
            outputs.append(h)
        return torch.stack(outputs, dim=1)


class AWDLSTM(PerSentenceMasks):
    """Embedding, LSTM layers, linear output; called like a transformers causal model."""

    rows_apart = True

    def __init__(self, config: AWDLSTMConfig):
        super().__init__()
        self.settings = config
        sizes = [config.embedding_size] + [config.hidden_size] * config.num_layers
        if config.tie_embeddings:
            sizes[-1] = config.embedding_size
        self.embedding = nn.Embedding(config.vocab_size, config.embedding_size)
        self.layers = nn.ModuleList(LSTMLayer(a, b) for a, b in itertools.pairwise(sizes))
        self.layer_sizes = sizes[1:]
        self.decoder = nn.Linear(sizes[-1], config.num_labels or config.vocab_size)
        nn.init.uniform_(self.embedding.weight, -config.init_range, config.init_range)
        nn.init.uniform_(self.decoder.weight, -config.init_range, config.init_range)
        nn.init.zeros_(self.decoder.bias)
        if config.tie_embeddings and not config.num_labels:
            self.decoder.weight = self.embedding.weight

    def get_input_embeddings(self) -> nn.Module:
        return self.embedding

    def get_output_embeddings(self) -> nn.Module | None:
        """The layer whose outputs are words; None of a classifier."""
        return None if self.settings.num_labels else self.decoder

    def config_dict(self) -> dict[str, object]:
        return {"model_type": self.settings.model_type, **dataclasses.asdict(self.settings)}

    def forward(self, input_ids: Tensor, position_ids: Tensor | None = None, use_cache: bool = False) -> CausalLMOutput:
        """(B, T) -> logits (B, T, V), or (B, T, C) of a classifier: of the sentence up to each position.

        ``position_ids`` and ``use_cache`` are accepted for the common call convention; time is the position here."""
        s, masks = self.settings, Masks(self.mask_seeds)
        x = self.embedding(input_ids)
        if self.training and s.dropout_embedding:  # a word is dropped wherever it occurs in the sentence
            x = x * masks.sentences(s.vocab_size, s.dropout_embedding, x).gather(1, input_ids)[:, :, None]
        x = self._locked(x, s.dropout_input, masks)
        for index, layer in enumerate(self.layers):
            x = layer(x, masks, s.dropout_weight if self.training else 0.0)
            last = index == len(self.layers) - 1
            x = self._locked(x, s.dropout_output if last else s.dropout_hidden, masks)
        return CausalLMOutput(self.decoder(x))

    def _locked(self, x_BTH: Tensor, prob: float, masks: Masks) -> Tensor:
        """Variational dropout: one mask per sentence and unit, the same at every position."""
        if not (self.training and prob):
            return x_BTH
        return x_BTH * masks.sentences(x_BTH.shape[2], prob, x_BTH)[:, None]


def _build(config: ModelConfig, tokens: Tokens, head: Head) -> AWDLSTM:
    settings = {name: getattr(config, name) for name in (*_SHAPE, *DROPOUTS)}
    if config.init_range is not None:
        settings["init_range"] = config.init_range
    return AWDLSTM(AWDLSTMConfig(vocab_size=tokens.size, num_labels=head.num_labels, **settings))


def _largest(config: ModelConfig) -> Mapping[str, tuple[str, int]]:
    layer = 8 * config.hidden_size**2
    return {"hidden_size": ("one layer", layer), "num_layers": ("all layers", config.num_layers * layer)}


_SHAPE = ("num_layers", "hidden_size", "embedding_size", "tie_embeddings")
ARCHITECTURE = Architecture(
    build=_build,
    heads=frozenset({"causal-lm", "sequence-classification", "token-classification"}),
    shape={name: name for name in _SHAPE},
    uses=frozenset({*_SHAPE, *DROPOUTS, "init_range"}),
    why_ignored="the architecture is awd_lstm",
    largest=_largest,
    width=lambda config: config.embedding_size if config.tie_embeddings else config.hidden_size,
    own=OwnNetwork(
        settings=AWDLSTMConfig,
        fields={
            **dict.fromkeys(("vocab_size", "embedding_size", "hidden_size", "num_layers"), number(1, whole=True)),
            **dict.fromkeys(DROPOUTS, number(0.0, 1.0)),
            "num_labels": Later(number(0, whole=True)),
            "init_range": number(1e-30, 1e30),
            "tie_embeddings": flag,
        },
        make=AWDLSTM,
        num_layers=lambda settings: settings.num_layers,
    ),
)
