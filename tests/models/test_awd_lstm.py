from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from tests.models.helpers import TASK, sentences, tiny, whole
from uedp_ray.models.awd_lstm import AWDLSTM, AWDLSTMConfig
from uedp_ray.models.masks import Masks, MaskSeeds
from uedp_ray.tasks.base import forward_logits

IDS = torch.tensor([[0, 3, 4, 3, 5], [0, 7, 7, 8, 1]])


def network(**settings: float) -> AWDLSTM:
    return tiny("awd_lstm", num_layers=3, **settings).train()  # type: ignore[return-value]


def logits(model: nn.Module, seed: int = 0, ids: Tensor = IDS) -> Tensor:
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(seed)
        return forward_logits(model, whole(ids))


def test_equal_to_torch_lstm() -> None:
    model = network()
    x = model.embedding(IDS)
    for layer in model.layers:
        lstm = nn.LSTM(layer.inputs.in_features, layer.num_units, batch_first=True)  # type: ignore[union-attr, arg-type]
        with torch.no_grad():
            lstm.weight_ih_l0.copy_(layer.inputs.weight)  # type: ignore[union-attr, arg-type]
            lstm.weight_hh_l0.copy_(layer.recurrent.weight)  # type: ignore[union-attr, arg-type]
            lstm.bias_ih_l0.copy_(layer.inputs.bias)  # type: ignore[union-attr, arg-type]
            lstm.bias_hh_l0.zero_()
        x = lstm(x)[0]
    torch.testing.assert_close(model(IDS).logits, model.decoder(x), rtol=1e-5, atol=1e-5)


def test_sizes_and_initial_ranges() -> None:
    model = AWDLSTM(AWDLSTMConfig(vocab_size=50, embedding_size=10, hidden_size=64))
    assert [layer.num_units for layer in model.layers] == [64, 64, 10]
    assert model.decoder.weight is model.embedding.weight
    assert 0.09 < model.embedding.weight.abs().max() <= 0.1
    for layer, bound in zip(model.layers, (1 / 8, 1 / 8, 10**-0.5), strict=True):
        assert all(0.8 * bound < p.abs().max() <= bound for p in layer.parameters())
    wide = AWDLSTM(AWDLSTMConfig(vocab_size=50, embedding_size=10, hidden_size=64, init_range=0.5))
    assert 0.45 < wide.embedding.weight.abs().max() <= 0.5
    untied = AWDLSTM(AWDLSTMConfig(vocab_size=50, embedding_size=10, hidden_size=64, tie_embeddings=False))
    assert untied.decoder.weight.shape == (50, 64)


@pytest.mark.parametrize("kind", ["embedding", "input", "hidden", "weight", "output"])
def test_each_dropout_acts_in_training_only(kind: str) -> None:
    plain, model = logits(network()), network(**{f"dropout_{kind}": 0.4})
    assert not torch.allclose(logits(model), plain)
    assert torch.equal(logits(model), logits(model))  # all masks come from torch's default generator
    assert not torch.equal(logits(model, seed=0), logits(model, seed=1))
    assert torch.equal(logits(model.eval()), plain)


def test_locked_masks_last_a_sentence_and_keep_the_mean() -> None:
    model = network()
    with torch.random.fork_rng():
        torch.manual_seed(0)
        dropped = model._locked(torch.ones(4, 3, 5000), 0.4, Masks(None))
    assert torch.equal(dropped[:, 0], dropped[:, 1])
    assert not torch.equal(dropped[0], dropped[1])
    assert torch.allclose(dropped.unique(), torch.tensor([0.0, 1 / 0.6]))
    assert float(dropped.mean()) == pytest.approx(1.0, abs=0.05)  # 20,000 draws: 8 standard errors


def test_a_dropped_word_is_dropped_wherever_it_stands() -> None:
    model = network(dropout_embedding=0.5)
    seen: list[Tensor] = []
    model.layers[0].register_forward_pre_hook(lambda _module, args: seen.append(args[0]))
    for seed in range(20):
        logits(model, seed)
    dropped = torch.stack([(x == 0).all(2) for x in seen])  # (20, B, T)
    assert torch.equal(dropped[:, 0, 1], dropped[:, 0, 3])
    assert torch.equal(dropped[:, 1, 1], dropped[:, 1, 2])
    assert not torch.equal(dropped[:, 0, 0], dropped[:, 1, 0])  # eos: each sentence draws its own words
    assert 0.3 < dropped.float().mean() < 0.7


def test_seeded_masks_do_not_depend_on_company_or_padding() -> None:
    """A sentence's masks follow from its own seed and the round's, whoever passes with it."""
    dropouts = {f"dropout_{name}": 0.4 for name in ("embedding", "input", "hidden", "weight", "output")}
    model = network(**dropouts)

    def seeded(ids: Tensor, weight: int, *sentences: int) -> Tensor:
        model.mask_seeds = MaskSeeds(weight, sentences)
        return logits(model, ids=ids, seed=sum(sentences))  # torch's own generator must not matter

    together = seeded(IDS, 3, 10, 11)
    for row, seed in enumerate((10, 11)):
        torch.testing.assert_close(together[row : row + 1], seeded(IDS[row : row + 1], 3, seed), rtol=1e-5, atol=1e-5)
    padded = torch.nn.functional.pad(IDS, (0, 5))
    torch.testing.assert_close(together, seeded(padded, 3, 10, 11)[:, : IDS.shape[1]], rtol=1e-5, atol=1e-5)
    assert not torch.equal(together[0], seeded(IDS, 3, 12, 11)[0])
    assert not torch.equal(together[0], seeded(IDS, 4, 10, 11)[0])


def test_learns() -> None:
    model = network(dropout_output=0.1, hidden_size=32, embedding_size=24)
    batch = TASK.collate(sentences())
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        for _ in range(100):
            optimizer.zero_grad()
            TASK.losses(model, batch).sum().backward()
            optimizer.step()
    total, count = TASK.sums(model.eval(), batch)
    assert total / count < 1.0  # ln 23 = 3.1 at random
