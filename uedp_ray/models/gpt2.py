"""GPT-2, as in transformers, with the sizes in the model section.

    >>> from uedp_ray.config import ModelConfig
    >>> from uedp_ray.models.build import build_model
    >>> config = ModelConfig(max_length=8, num_layers=1, hidden_size=8, num_heads=2, dropout_hidden=0.1)
    >>> model = build_model(config, vocab_size=50, bos_id=0, eos_id=0, seed=0)
    >>> model.config.n_layer, model.config.n_embd, model.config.n_positions, model.config.attn_pdrop
    (1, 8, 8, 0.1)
    >>> model.lm_head.weight is model.transformer.wte.weight    # model.tie_embeddings
    True

Dropout: ``dropout_embedding``, ``dropout_hidden`` (attention) and ``dropout_output`` (residual).
"""

from __future__ import annotations

from torch import nn
from transformers import GPT2Config

from uedp_ray.config import ModelConfig
from uedp_ray.models.architecture import Architecture, Tokens, largest_of_transformer
from uedp_ray.models.heads import from_settings
from uedp_ray.tasks.base import Head


def _build(config: ModelConfig, tokens: Tokens, head: Head) -> nn.Module:
    gpt2 = GPT2Config(
        vocab_size=tokens.size,
        n_positions=config.max_length,
        n_embd=config.hidden_size,
        n_layer=config.num_layers,
        n_head=config.num_heads,
        initializer_range=config.init_range or 0.02,
        embd_pdrop=config.dropout_embedding,
        attn_pdrop=config.dropout_hidden,
        resid_pdrop=config.dropout_output,
        tie_word_embeddings=config.tie_embeddings,
        bos_token_id=tokens.bos_id,
        eos_token_id=tokens.eos_id,
    )
    return from_settings(gpt2, tokens, head)


_SHAPE = {
    "num_layers": "n_layer",
    "hidden_size": "n_embd",
    "num_heads": "n_head",
    "max_length": "n_positions",
    "tie_embeddings": "tie_word_embeddings",
}
ARCHITECTURE = Architecture(
    build=_build,
    heads=frozenset({"causal-lm", "sequence-classification", "token-classification"}),
    shape=_SHAPE,
    uses=frozenset({*_SHAPE, "init_range", "dropout_embedding", "dropout_hidden", "dropout_output"}),
    why_ignored="the architecture is gpt2",
    largest=largest_of_transformer,
    masked_by_row=True,
)
