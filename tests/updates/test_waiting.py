"""What waits for its sum in a round of ``gradient`` fits what was taken before the first, whoever is drawn."""

from __future__ import annotations

import weakref

import numpy as np
import pytest
import torch

from tests.updates.tiny import tiny_config
from tests.updates.worker import VOCABULARY, Worker
from uedp_ray.config import RunConfig
from uedp_ray.updates import gradient
from uedp_ray.updates.weighted import AT_ONCE, WeightedSums

LONGEST = 40


def config(clip: float | None) -> RunConfig:
    return tiny_config(
        privacy={"sentence_clip_norm": clip},
        bounds={"entity_bound": "truncate", "holder_bound": "truncate"},
        model={"num_layers": 1, "hidden_size": 8, "num_heads": 2, "max_length": LONGEST},
        training={"batch_tokens": 128},
    )


def said(positions: int, made_up: np.random.Generator) -> np.ndarray:
    return made_up.integers(1, VOCABULARY, positions - 1)


def anybodys(made_up: np.random.Generator, rows: dict[int, list[int]]) -> list[list[int]]:
    return [made_up.integers(2, LONGEST + 1, made_up.integers(1, 40)).tolist() for _ in range(12)]


def hostile(made_up: np.random.Generator, rows: dict[int, list[int]]) -> list[list[int]]:
    """A user of one sentence of each length, others of one less than fills a batch, and one of very many."""
    lengths = sorted(rows)
    others = [[length] for length in lengths for _ in range(rows[length][0] - 2)]
    return [lengths[::-1], *others, [lengths[-2]] * 200, lengths * 5, [lengths[0], lengths[-1]] * 40]


@pytest.mark.parametrize("most", [1, 5_000, 40_000])
@pytest.mark.parametrize("clip", [0.1, None])
@pytest.mark.parametrize("users", [anybodys, hostile])
def test_what_waits_is_no_more_than_was_taken(users, clip, most, monkeypatch, kept):
    monkeypatch.setattr(gradient, "_HELD", most)
    monkeypatch.setattr(gradient.Update, "_agreeing", lambda update, counts: dict(counts))  # public, and quicker
    monkeypatch.setattr(gradient, "_PROBED", {})
    nearest = 0.0
    for seed in range(3):
        made_up = np.random.default_rng(seed)
        counts = Worker(config(clip), {0: [said(3, made_up)]}).update()._counts()
        texts = {user: [said(n, made_up) for n in each] for user, each in enumerate(users(made_up, counts))}
        worker = Worker(config(clip), texts)
        update, peak, run = worker.update(), [0], gradient.Update._run

        def watched(update, batch, round_index, peak=peak, run=run):
            run(update, batch, round_index)
            peak[0] = max(peak[0], sum(each.num_held for each in update._held))

        with monkeypatch.context() as patched:
            patched.setattr(gradient.Update, "_run", watched)
            update.sum_updates(worker.parameters, worker.selections.values(), 0)
        assert peak[0] <= update._most_waiting
        nearest = max(nearest, peak[0] / update._most_held)
    assert nearest > 1.0 or most > 5_000, "more waits than is held where memory is short"


def test_the_largest_batch_of_each_length_passes_beside_all_that_may_wait(monkeypatch):
    """Of some networks one of few long sentences takes most, of others one of many short ones."""
    monkeypatch.setattr(gradient.Update, "_agreeing", lambda update, counts: dict(counts))
    monkeypatch.setattr(gradient, "_PROBED", {})
    waiting, beside, added, copied, run = [], set(), [], 0, gradient.Update._measured
    empty, add = torch.empty, WeightedSums.add

    def made(*size, **settings):
        found = empty(*size, **settings)
        waiting.append((found.numel(), weakref.ref(found)))
        return found

    def is_taken(update):
        """Beside what waits, what is copied as it is added up, and a quarter for gaps."""
        most = (update._most_waiting + max(AT_ONCE, update._together) * copied) * 5 // 4
        return update._most_waiting > 0 and any(size >= most and each() is not None for size, each in waiting)

    def passed(update, round_index, sentences, numbers, shape):
        nonlocal copied
        if is_taken(update):
            beside.add(shape)
        found = run(update, round_index, sentences, numbers, shape)
        copied = max(copied, found.num_copied)
        return found

    def summed(sums, groups, total, unit):
        added.append((len(beside), is_taken(update)))
        add(sums, groups, total, unit)

    monkeypatch.setattr(gradient.torch, "empty", made)
    monkeypatch.setattr(gradient.Update, "_measured", passed)
    monkeypatch.setattr(WeightedSums, "add", summed)
    update = Worker(config(0.1), {0: [said(3, np.random.default_rng(0))]}).update()
    update.probe()
    assert beside == {(rows[0], length) for length, rows in update._rows.items()}
    assert added == [(done, True) for done in range(1, 1 + len(beside))], "and what passed is added up"


def test_trying_out_holds_one_batch_at_a_time(monkeypatch):
    """Of a network of many parameters and lengths, a sentence of each would be more than a round holds."""
    monkeypatch.setattr(gradient.Update, "_agreeing", lambda update, counts: dict(counts))
    monkeypatch.setattr(gradient, "_PROBED", {})
    found, most, run = weakref.WeakSet(), 0, gradient.Update._measured

    def passed(*given):
        nonlocal most
        most = max(most, len(found))
        found.add(measured := run(*given))
        return measured

    monkeypatch.setattr(gradient.Update, "_measured", passed)
    update = Worker(config(0.1), {0: [said(3, np.random.default_rng(0))]}).update()
    update.probe()
    assert len(update._rows) > 2
    assert most == 0
