"""AWD-LSTM: a word-level LSTM language model with five kinds of dropout.

    model = AWDLSTM(AWDLSTMConfig(vocab_size=10_000))
    logits = model(input_ids=ids).logits  # (B, T) -> (B, T, V)

Source: Merity, Keskar, Socher, "Regularizing and Optimizing LSTM Language Models" (2018), section 4. One bias per gate
instead of cuDNN's two (the same functions), and whole words are dropped per sentence instead of per batch.

Every product with a weight goes through a module call, so that ``gradients.py`` sees its factors. Masks belong to one
sentence each, except the DropConnect mask, which a forward pass shares. Drawn from torch's default generator, they depend
on which sentences pass together; under ``mask_seeds`` they depend on the seeds alone.

Shape legend: B sentences, T positions, V vocabulary, D embedding size, H hidden size.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F


@dataclass(frozen=True, kw_only=True)
class AWDLSTMConfig:
    """Sizes and dropout probabilities, written to ``config.json`` beside the weights."""

    vocab_size: int
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


@dataclass(frozen=True)
class MaskSeeds:
    """Seeds of one pass: of the DropConnect mask, and one for each of its (B,) sentences."""

    weight: int
    sentences: Sequence[int]


def _mask(shape: tuple[int, ...], prob: float, like: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """0 with probability ``prob``, else 1 / (1 - prob), so that the expectation is 1."""
    device = like.device if generator is None else generator.device
    kept = torch.rand(shape, device=device, generator=generator) >= prob
    return kept.to(like.device, like.dtype) / max(1.0 - prob, 1e-12)


class _Masks:
    """The masks of one pass. Seeded ones are drawn on the CPU, so that a GPU sees the same."""

    def __init__(self, seeds: MaskSeeds | None):
        self._weight = None if seeds is None else torch.Generator().manual_seed(seeds.weight)
        self._sentences = [] if seeds is None else [torch.Generator().manual_seed(seed) for seed in seeds.sentences]

    def weight(self, shape: tuple[int, ...], prob: float, like: Tensor) -> Tensor:
        return _mask(shape, prob, like, self._weight)

    def sentences(self, size: int, prob: float, like: Tensor) -> Tensor:
        """(B, size): a row for each sentence of ``like`` (B, ...)."""
        if not self._sentences:
            return _mask((len(like), size), prob, like)
        return torch.cat([_mask((1, size), prob, like, generator) for generator in self._sentences])


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

    def forward(self, x_BTD: Tensor, masks: _Masks, prob: float = 0.0) -> Tensor:
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


class AWDLSTM(nn.Module):
    """Embedding, LSTM layers, linear output; called like a transformers causal model."""

    def __init__(self, config: AWDLSTMConfig):
        super().__init__()
        self.settings = config
        self.mask_seeds: MaskSeeds | None = None
        sizes = [config.embedding_size] + [config.hidden_size] * config.num_layers
        if config.tie_embeddings:
            sizes[-1] = config.embedding_size
        self.embedding = nn.Embedding(config.vocab_size, config.embedding_size)
        self.layers = nn.ModuleList(LSTMLayer(a, b) for a, b in itertools.pairwise(sizes))
        self.layer_sizes = sizes[1:]
        self.decoder = nn.Linear(sizes[-1], config.vocab_size)
        nn.init.uniform_(self.embedding.weight, -config.init_range, config.init_range)
        nn.init.uniform_(self.decoder.weight, -config.init_range, config.init_range)
        nn.init.zeros_(self.decoder.bias)
        if config.tie_embeddings:
            self.decoder.weight = self.embedding.weight

    def get_output_embeddings(self) -> nn.Module:
        return self.decoder

    def config_dict(self) -> dict[str, object]:
        return {"model_type": "awd_lstm", **dataclasses.asdict(self.settings)}

    def forward(self, input_ids: Tensor, position_ids: Tensor | None = None, use_cache: bool = False) -> CausalLMOutput:
        """``position_ids`` and ``use_cache`` are accepted for the common call convention; time is the position here."""
        s, masks = self.settings, _Masks(self.mask_seeds)
        x = self.embedding(input_ids)
        if self.training and s.dropout_embedding:  # the same word is dropped wherever it stands in the sentence
            x = x * masks.sentences(s.vocab_size, s.dropout_embedding, x).gather(1, input_ids)[:, :, None]
        x = self._locked(x, s.dropout_input, masks)
        for index, layer in enumerate(self.layers):
            x = layer(x, masks, s.dropout_weight if self.training else 0.0)
            last = index == len(self.layers) - 1
            x = self._locked(x, s.dropout_output if last else s.dropout_hidden, masks)
        return CausalLMOutput(self.decoder(x))

    def _locked(self, x_BTH: Tensor, prob: float, masks: _Masks) -> Tensor:
        """Variational dropout: one mask per sentence and unit, the same at every position."""
        if not (self.training and prob):
            return x_BTH
        return x_BTH * masks.sentences(x_BTH.shape[2], prob, x_BTH)[:, None]
