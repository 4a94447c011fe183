"""BERT, as in transformers, with the sizes in the model section: an encoder, whose positions see the whole sentence.

    >>> from uedp_ray.config import ModelConfig
    >>> from uedp_ray.models.build import build_model
    >>> from uedp_ray.tasks.base import Head
    >>> config = ModelConfig(architecture="bert", max_length=8, num_layers=1, hidden_size=8, num_heads=2)
    >>> model = build_model(config, vocab_size=50, bos_id=0, eos_id=0, seed=0, head=Head("sequence-classification", 4))
    >>> type(model).__name__, model.config.num_labels, model.config.intermediate_size
    ('BertForSequenceClassification', 4, 32)

It classifies and tags; beforehand it is trained to fill in masked words (``uedp-ray pretrain``). Dropout:
``dropout_hidden`` (attention) and ``dropout_output`` (embedding and residual).
"""

from __future__ import annotations

from torch import nn
from transformers import BertConfig

from uedp_ray.config import ModelConfig
from uedp_ray.models.architecture import Architecture, Tokens, largest_of_transformer
from uedp_ray.models.heads import from_settings
from uedp_ray.tasks.base import Head


def _build(config: ModelConfig, tokens: Tokens, head: Head) -> nn.Module:
    bert = BertConfig(
        vocab_size=tokens.size,
        max_position_embeddings=config.max_length,
        hidden_size=config.hidden_size,
        num_hidden_layers=config.num_layers,
        num_attention_heads=config.num_heads,
        intermediate_size=4 * config.hidden_size,
        initializer_range=config.init_range or 0.02,
        attention_probs_dropout_prob=config.dropout_hidden,
        hidden_dropout_prob=config.dropout_output,
        tie_word_embeddings=config.tie_embeddings,
        pad_token_id=None,  # its embedding would be fixed at zero, and may be the one that ends a sentence
        bos_token_id=tokens.bos_id,
        eos_token_id=tokens.eos_id,
    )
    return from_settings(bert, tokens, head)


_SHAPE = {
    "num_layers": "num_hidden_layers",
    "hidden_size": "hidden_size",
    "num_heads": "num_attention_heads",
    "max_length": "max_position_embeddings",
}
ARCHITECTURE = Architecture(
    build=_build,
    heads=frozenset({"masked-lm", "sequence-classification", "token-classification"}),
    shape=_SHAPE,
    uses=frozenset({*_SHAPE, "init_range", "tie_embeddings", "dropout_hidden", "dropout_output"}),
    why_ignored="the architecture is bert",
    largest=largest_of_transformer,
    masked_by_row=True,
)
