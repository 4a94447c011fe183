from __future__ import annotations

import pytest
import torch

from tests.models.helpers import tiny
from uedp_ray.models.parameters import FlatParameters


@pytest.mark.parametrize("architecture", ["gpt2", "awd_lstm"])
def test_round_trip_by_name(architecture: str) -> None:
    model = tiny(architecture)
    params = FlatParameters(model)
    assert params.names == tuple(sorted(params.names))
    assert params.num == sum(p.numel() for p in model.parameters())  # a tied matrix once
    vector = torch.arange(params.num, dtype=torch.float32)
    params.set(vector)
    assert torch.equal(params.get(), vector)
    named = dict(model.named_parameters())
    for name, value in params.split(vector).items():
        assert torch.equal(named[name], value)


def test_frozen_parameters_are_left_out() -> None:
    model = tiny()
    model.get_output_embeddings().requires_grad_(False)  # type: ignore[operator]
    params = FlatParameters(model)
    assert "transformer.wte.weight" not in params.names
    frozen = model.get_output_embeddings().weight.clone()  # type: ignore[operator]
    params.set(torch.zeros(params.num))
    assert torch.equal(model.get_output_embeddings().weight, frozen)  # type: ignore[operator]


def test_get_is_a_copy_in_float32() -> None:
    model = tiny().to(torch.bfloat16)
    params = FlatParameters(model)
    vector = params.get()
    assert vector.dtype == torch.float32
    vector.zero_()
    assert params.get().norm() > 0


def test_refuses_a_vector_of_another_size() -> None:
    params = FlatParameters(tiny())
    with pytest.raises(ValueError, match="shape"):
        params.set(torch.zeros(params.num + 1))
