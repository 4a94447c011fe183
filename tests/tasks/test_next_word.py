from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from tests.models.helpers import TASK, sentences, tiny, whole
from uedp_ray.tasks.base import IGNORED, forward_logits
from uedp_ray.tasks.loss import cross_entropy
from uedp_ray.tasks.next_word import NextWord

X = IGNORED


def test_collate_by_hand() -> None:
    task = NextWord(bos_id=8, eos_id=1, pad_id=9, max_length=4)
    rows = [np.array(ids, dtype=np.int32) for ids in ([5, 6], [], [2, 3, 4], [2, 3, 4, 5, 6, 7])]
    batch = task.collate(rows)
    assert batch.input_ids.tolist() == [[8, 5, 6, 9], [8, 9, 9, 9], [8, 2, 3, 4], [8, 2, 3, 4]]
    assert batch.targets.tolist() == [[5, 6, 1, X], [X, X, X, X], [2, 3, 4, 1], [2, 3, 4, 5]]
    assert batch.lengths.tolist() == [3, 1, 4, 4]
    assert batch.input_ids.dtype == batch.targets.dtype == torch.int64
    assert len(batch) == len(batch.to("cpu")) == 4


@pytest.mark.parametrize("architecture", ["gpt2", "awd_lstm"])
def test_losses_are_means_over_each_sentence_alone(architecture: str) -> None:
    model, rows = tiny(architecture), sentences()
    losses = TASK.losses(model, TASK.collate(rows))
    assert losses.dtype == torch.float32
    assert losses[1] == 0
    for loss, words in zip(losses, rows, strict=True):
        if len(words) == 0:
            continue
        read = torch.tensor([0, *words])[: TASK.max_length]
        predicted = torch.tensor([*words, 0])[: TASK.max_length]
        with torch.no_grad():
            expected = F.cross_entropy(forward_logits(model, whole(read[None]))[0], predicted)
        torch.testing.assert_close(loss.detach(), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("spread", [1.0, 1e3])  # the second: probabilities of 0, whose losses are finite
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_losses_and_their_gradient_are_those_of_cross_entropy(spread: float, dtype: torch.dtype, device: str) -> None:
    made_up = torch.Generator().manual_seed(0)
    logits = (spread * torch.randn(3, 5, 40, generator=made_up)).to(device, dtype).requires_grad_()
    targets = torch.randint(0, 40, (3, 5), generator=made_up).to(device)
    targets[1, 2:] = IGNORED
    slope = torch.randn(3, 5, generator=made_up).to(device, dtype)
    losses = cross_entropy(logits, targets)
    expected = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORED, reduction="none")
    close = {"rtol": 1e-5, "atol": 1e-5} if dtype == torch.float32 else {"rtol": 1e-12, "atol": 1e-12}
    torch.testing.assert_close(losses, expected.view(3, 5), **close)
    found, gradient = (torch.autograd.grad(each, logits, slope)[0] for each in (losses, expected.view(3, 5)))
    torch.testing.assert_close(found, gradient, **close)
    assert not losses[1, 2:].any()
    assert not found[1, 2:].any()


def test_a_gradient_is_made_of_the_probabilities_and_only_once() -> None:
    logits = torch.randn(2, 3, 7, generator=torch.Generator().manual_seed(0)).requires_grad_()
    losses = cross_entropy(logits, torch.ones(2, 3, dtype=torch.int64))
    torch.autograd.grad(losses.sum(), logits, retain_graph=True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        torch.autograd.grad(losses.sum(), logits)


def test_a_loss_that_is_no_number_stays_in_its_row(device: str) -> None:
    logits = torch.zeros(3, 2, 7, device=device)
    logits[0, 1, 3], logits[2, 0, 0] = torch.nan, torch.inf
    losses = cross_entropy(logits.requires_grad_(), torch.ones(3, 2, dtype=torch.int64, device=device))
    gradient = torch.autograd.grad(losses.sum(), logits)[0]
    finite = torch.tensor([[True, False], [True, True], [False, True]], device=device)
    assert torch.equal(losses.isfinite(), finite)
    assert torch.equal(gradient.isfinite().all(-1), finite)


def test_perplexity_counts_tokens_not_sentences() -> None:
    model, rows = tiny(), sentences()
    batch = TASK.collate(rows)
    total, count = TASK.sums(model, batch)
    assert count == sum(min(len(row) + 1, TASK.max_length) for row in rows if len(row))
    by_sentence = TASK.losses(model, batch).detach().double() * (batch.targets != IGNORED).sum(1)
    assert total == pytest.approx(float(by_sentence.sum()), rel=1e-5)
