"""Masks by row: the same beside others as alone, of torch's law, and where they make no difference, what torch computes."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from uedp_ray.config import ModelConfig
from uedp_ray.models.build import build_model
from uedp_ray.models.masks import MaskedRows, MaskSeeds
from uedp_ray.tasks.base import Head

DROPOUT = {"dropout_embedding": 0.3, "dropout_hidden": 0.3, "dropout_output": 0.3}


def network(architecture: str) -> torch.nn.Module:
    config = ModelConfig(architecture=architecture, max_length=12, num_layers=2, hidden_size=8, num_heads=2, **DROPOUT)
    head = Head("masked-lm") if architecture == "bert" else Head("causal-lm")
    return build_model(config, vocab_size=30, bos_id=0, eos_id=0, seed=0, head=head).double().train()


def said(model: torch.nn.Module, ids: torch.Tensor, seeds: list[int]) -> torch.Tensor:
    with torch.no_grad(), MaskedRows(MaskSeeds(weight=0, sentences=seeds)):
        return model(input_ids=ids).logits


@pytest.mark.parametrize("architecture", ["gpt2", "bert"])
def test_a_sentence_says_the_same_beside_others_and_something_else_by_another_seed(architecture):
    model, ids = network(architecture), torch.randint(1, 30, (3, 12), generator=torch.Generator().manual_seed(0))
    whole, before = said(model, ids, [5, 6, 7]), torch.get_rng_state()
    for row, seed in enumerate([5, 6, 7]):
        torch.testing.assert_close(said(model, ids[row : row + 1], [seed])[0], whole[row])
    assert (said(model, ids, [5, 8, 7])[1] - whole[1]).abs().max() > 0.01
    assert torch.equal(torch.get_rng_state(), before), "no mask comes from the stream that others draw from"


@pytest.mark.parametrize("setting", list(DROPOUT))
def test_each_kind_of_dropout_goes_by_row(setting):
    config = ModelConfig(max_length=12, num_layers=1, hidden_size=8, num_heads=2, **{setting: 0.3})
    model = build_model(config, vocab_size=30, bos_id=0, eos_id=0, seed=0).double().train()
    ids = torch.arange(12)[None].expand(2, -1)
    twice = said(model, ids, [5, 6])
    assert not torch.allclose(twice[0], twice[1])
    same = said(model, ids, [5, 5])
    assert torch.allclose(same[0], same[1])


def test_the_law_is_that_of_torch():
    rows = torch.ones(4, 50_000)
    with MaskedRows(MaskSeeds(weight=0, sentences=[1, 2, 3, 4])):
        dropped, again = F.dropout(rows, 0.3), F.dropout(rows, 0.3)
        kept = F.dropout(rows, 0.3, training=False)
        F.dropout(inplace := rows.clone(), 0.3, inplace=True)
    assert set(dropped.unique().tolist()) == {0.0, float(torch.tensor(1.0) / 0.7)}
    assert (dropped.mean(1) - 1).abs().max() < 0.01
    assert not torch.equal(dropped, again)
    assert torch.equal(kept, rows)
    assert (inplace == 0).float().mean() == pytest.approx(0.3, abs=0.01)


@pytest.mark.parametrize("mask", ["none", "causal", "boolean", "added"])
@pytest.mark.parametrize("groups", [1, 2])
def test_attention_is_what_torch_computes(mask, groups):
    """Of a probability so small that nothing is dropped."""
    made_up = torch.Generator().manual_seed(0)
    query = torch.randn(3, 4, 6, 8, generator=made_up, dtype=torch.float64)
    key, value = torch.randn(2, 3, 4 // groups, 6, 8, generator=made_up, dtype=torch.float64)
    given = torch.rand(3, 1, 6, 6, generator=made_up, dtype=torch.float64)
    settings = {
        "attn_mask": {"boolean": given > 0.3, "added": given}.get(mask),
        "is_causal": mask == "causal",
        "scale": 0.3,
        "enable_gqa": groups > 1,
    }
    with MaskedRows(MaskSeeds(weight=0, sentences=[1, 2, 3])):
        found = F.scaled_dot_product_attention(query, key, value, dropout_p=1e-12, **settings)
    torch.testing.assert_close(found, F.scaled_dot_product_attention(query, key, value, **settings))


def test_a_tensor_that_has_not_a_row_for_each_sentence_is_refused():
    with MaskedRows(MaskSeeds(weight=0, sentences=[1, 2])), pytest.raises(ValueError, match="3 rows in a batch of 2"):
        F.dropout(torch.ones(3, 4), 0.5)
