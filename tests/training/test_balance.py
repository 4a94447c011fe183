"""Who takes which of a round's users: everybody drawn, each once, about as much for every worker, or no round at all."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import partial
from unittest import mock

import numpy as np
import pytest
import torch

from tests.training.groups import group, train_in_group
from tests.training.runs import crash, parameters
from tests.updates.tiny import CPU, TinyCorpus, TinyWorker, tiny_config
from uedp_ray.plan import Plan
from uedp_ray.privacy.sampling import PoissonSampler
from uedp_ray.training.balance import Balance, DrawingTeam, are_alike, loads_of, spread
from uedp_ray.training.host import train
from uedp_ray.training.prepared import Prepared
from uedp_ray.training.reduce import LocalReducer
from uedp_ray.training.rundir import RunDir

KEY = b"k" * 32
WHERE = {"round_index": 2, "attempt": 0}


class Workers:
    """Reducers of workers that run one after the other, the driver last."""

    def __init__(self):
        self.sent: list[torch.Tensor] = []

    def of(self, rank):
        reducer = LocalReducer()
        reducer.is_driver = rank == 0
        reducer.sum_to_driver = self.add if rank else lambda vector: sum(self.sent, vector)
        return reducer

    def add(self, vector):
        self.sent.append(vector)
        return torch.full_like(vector, -77)  # undefined, except on the driver


def balances(loads, num_workers, *, key=lambda rank: KEY):
    """One for each worker, the driver's last; ``loads`` and ``key`` by rank."""
    workers = Workers()
    for rank in reversed(range(num_workers)):
        yield Balance(
            loads=loads(rank),
            rank=rank,
            num_workers=num_workers,
            sampler=PoissonSampler(key(rank)),
            reducer=workers.of(rank),
            device=CPU,
        )


def lognormal(number, seed=0):
    return np.maximum(1, np.random.default_rng(seed).lognormal(0, 1, number) * 300).astype(np.int64)


def shares(drawn, each):
    return [balance.share(drawn(balance.rank), **WHERE).tolist() for balance in each]


@pytest.mark.parametrize("num_workers", [1, 2, 5, 64])
def test_everybody_is_taken_once(num_workers):
    drawn = np.flatnonzero(np.random.default_rng(1).random(900) < 0.3)
    parts = shares(lambda rank: drawn, balances(lambda rank: lognormal(900), num_workers))
    assert sorted(user for part in parts for user in part) == drawn.tolist()
    assert all(part == sorted(part) for part in parts)


def test_the_slowest_of_64_workers_has_little_more_than_the_mean():
    loads = lognormal(1_000)
    of_worker = np.bincount(spread(loads, 64), loads, 64)
    assert of_worker.max() / of_worker.mean() < 1.01
    by_hash = np.bincount(np.random.default_rng(3).integers(0, 64, 1_000), loads, 64)
    assert by_hash.max() / by_hash.mean() > 1.5


def test_one_who_is_larger_than_all_others_is_alone():
    worker_of = spread(np.array([5, 900, 5, 5, 0, 0]), 3)
    assert (worker_of == worker_of[1]).sum() == 1


def test_nobody_drawn_is_an_ordinary_round():
    nobody = np.zeros(0, np.int64)
    assert shares(lambda rank: nobody, balances(lambda rank: lognormal(9), 3)) == [[], [], []]


def test_a_single_worker_sends_nothing():
    (alone,) = balances(lambda rank: np.zeros(0, np.int64), 1)
    alone.reducer.sum_to_driver = None
    assert alone.share(np.array([4, 7]), **WHERE).tolist() == [4, 7]


DRAWN = np.arange(0, 900, 3)


@pytest.mark.parametrize(
    "differs",
    [
        {"loads": lambda rank: lognormal(900, seed=rank)},  # other tokens
        {"loads": lambda rank: np.roll(lognormal(900), 3 * (rank == 2))},
        {"key": lambda rank: KEY if rank < 2 else b"q" * 32},
        {"drawn": lambda rank: DRAWN[1:] if rank == 1 else DRAWN},
        {"drawn": lambda rank: np.append(DRAWN, 899) if rank else DRAWN},
    ],
)
def test_workers_that_disagree_end_the_run_before_anything_is_computed(differs):
    """A user whom two workers take moves the sum by twice the clip."""
    same = {"loads": lambda rank: lognormal(900), "key": lambda rank: KEY, "drawn": lambda rank: DRAWN}
    chosen = same | differs
    with pytest.raises(RuntimeError, match="do not agree who takes which user"):
        shares(chosen["drawn"], balances(chosen["loads"], 3, key=chosen["key"]))


def test_what_is_sent_says_nothing_without_the_key():
    sent = []
    for key in (KEY, b"q" * 32):
        first, *_ = balances(lambda rank: lognormal(900), 2, key=lambda rank, key=key: key)
        first.share(DRAWN, **WHERE)
        first.share(DRAWN, round_index=3, attempt=0)
        sent += [int(vector) for vector in first.reducer.sum_to_driver.__self__.sent]
    assert len(set(sent)) == 4
    assert all(abs(number) > 1 << 40 for number in sent), "no count of users"


def test_loads_are_what_counts_of_a_user():
    user_offsets, token_offsets = np.array([0, 2, 2, 5]), np.array([0, 3, 3, 10, 14, 15])
    weight = np.array([1.0, 1.0, 0.0, 0.25, 1.0], np.float32)
    assert loads_of(user_offsets, token_offsets, weight).tolist() == [4 + 1, 0, 5 + 2]


def test_loads_are_added_up_by_stretches(monkeypatch):
    rng = np.random.default_rng(0)
    user_offsets = np.concatenate([[0], np.cumsum(rng.integers(0, 9, 200))])
    token_offsets = np.concatenate([[0], np.cumsum(rng.integers(0, 30, user_offsets[-1]))])
    weight = rng.integers(0, 3, user_offsets[-1]).astype(np.float32)
    whole = loads_of(user_offsets, token_offsets, weight)
    for stretch in (1, 5, 64):
        monkeypatch.setattr("uedp_ray.training.balance._STRETCH", stretch)
        assert np.array_equal(loads_of(user_offsets, token_offsets, weight), whole)


def draws(rank, reducer):
    """Who is drawn, and how many streams it took here."""
    team = DrawingTeam(rank=rank, num_workers=reducer.num_workers, reducer=reducer, device=CPU)
    sampler, made = PoissonSampler(KEY, block=1000, team=team), []
    secret = sampler.secret
    sampler.secret = lambda size, **where: made.append(size) or secret(size, **where)
    return sampler.draw(0.3, 7_003, kind="user", **WHERE), len(made)


def test_workers_who_share_the_draws_all_know_them():
    found = group(draws, 3)
    alone = PoissonSampler(KEY, block=1000).draw(0.3, 7_003, kind="user", **WHERE)
    for drawn, _ in found:
        assert drawn.dtype == bool
        assert np.array_equal(drawn, alone)
    assert [made for _, made in found] == [3, 3, 2], "of eight blocks"


def with_keys(keys, rank, reducer):
    of = {"rank": rank, "num_workers": reducer.num_workers, "reducer": reducer, "device": CPU}
    sampler = PoissonSampler(keys[rank], block=100, team=DrawingTeam(**of))
    drawn = np.flatnonzero(sampler.draw(0.3, 900, kind="user", **WHERE))
    return Balance(loads=lognormal(900), sampler=sampler, **of).share(drawn, **WHERE).tolist()


def test_a_worker_that_draws_its_blocks_by_another_key_ends_the_run():
    """All then know of one sample, which is not the run's own."""
    agreed = group(partial(with_keys, [KEY, KEY]), 2)
    assert not set(agreed[0]) & set(agreed[1])
    driver, _ = group(partial(with_keys, [KEY, b"q" * 32]), 2)
    assert "do not agree who takes which user" in driver


@pytest.mark.slow
def test_a_run_draws_by_the_blocks_it_began_with(fixed, uninterrupted, tmp_path, monkeypatch):
    """Whoever draws them; and a run of an earlier version by none."""
    monkeypatch.setattr("uedp_ray.training.setup.BLOCK", 8)
    train(fixed, tmp_path / "alone", workers=0)
    assert train_in_group(fixed, tmp_path / "shared", 2) == [None, None]
    assert torch.equal(parameters(tmp_path / "alone"), parameters(tmp_path / "shared"))
    assert not torch.equal(parameters(tmp_path / "alone"), parameters(uninterrupted[0])), "other streams"
    crash(fixed, tmp_path / "earlier", charges=4)
    setup = tmp_path / "earlier" / "private" / "setup.json"
    made = json.loads(setup.read_text())
    assert made.pop("draw_block") == 8
    setup.write_text(json.dumps(made))
    assert Prepared.open(RunDir(tmp_path / "earlier")).draw_block is None


@pytest.mark.parametrize("num_workers", [1, 2, 4, 7])
def test_the_sum_does_not_depend_on_the_number_of_workers(num_workers):
    corpus, worker = TinyCorpus.random(5, num_users=30), TinyWorker(tiny_config())
    weight = np.ones(corpus.num_sentences, np.float32)
    token_offsets = np.concatenate([[0], np.cumsum([len(each) for each in corpus.tokens])])
    loads = loads_of(corpus.user_offsets, token_offsets, weight)
    whole = worker.steps(corpus, weight, round_index=2)
    total, taken = torch.zeros_like(whole), []
    for balance in balances(lambda rank: loads, num_workers):
        plan = Plan.of(tiny_config())
        share = partial(balance.share, **WHERE)
        sampler = PoissonSampler(b"sampling key of a test")
        users = np.arange(corpus.num_users)
        selected = list(plan.select(corpus, users, sampler, sentence_weight=weight, share=share, **WHERE))
        taken += [each.user for each in selected]
        total += worker.steps(corpus, weight, users=np.array([s.user for s in selected], np.int64), round_index=2)
    assert len(taken) == len(set(taken)) > 10
    assert torch.equal(total, whole)


def test_unlike_machines_take_the_same_users_whoever_else_is_drawn():
    """A user's last bits are those of who computes them."""
    drawn = np.flatnonzero(np.random.default_rng(0).random(500) < 0.4)
    taken = [each.share(drawn, **WHERE) for each in balances(lambda rank: None, 3)]
    assert sorted(np.concatenate(taken).tolist()) == drawn.tolist()
    for gone in drawn[:20]:
        fewer = [each.share(drawn[drawn != gone], **WHERE).tolist() for each in balances(lambda rank: None, 3)]
        assert fewer == [users[users != gone].tolist() for users in taken]


@dataclass
class Unlike:
    """Whether two workers are alike, of which the second may say something else of its machine, or of what it was told."""

    machine: str = ""
    told: str = "NOTHING"
    threads: int = 1
    version: str = "5"
    tried_out: tuple[int, ...] | None = ()
    drivers: tuple[int, ...] | None = ()

    def __call__(self, rank, reducer):
        said = self if rank else Unlike(tried_out=self.drivers)
        with (
            mock.patch("platform.machine", return_value=said.machine),
            mock.patch.dict("os.environ", {said.told: "AVX2"}),
            mock.patch("torch.__config__.parallel_info", return_value=f"{said.threads} threads"),
            mock.patch("importlib.metadata.version", return_value=said.version),
        ):
            return are_alike(reducer, CPU, 2, said.tried_out)


@pytest.mark.parametrize(
    ("differs", "alike"),
    [
        ({}, True),
        ({"machine": "another"}, False),
        ({"told": "EDITOR"}, True),
        *(({"told": name}, False) for name in ("MKL_CBWR", "ATEN_CPU_CAPABILITY", "NVIDIA_TF32_OVERRIDE")),
        ({"threads": 2}, False),
        ({"version": "6"}, False),
        ({"tried_out": (8, 2)}, False),
        ({"tried_out": None, "drivers": None}, False),  # an update with a probe of its own, which says nothing
    ],
    ids=str,
)
def test_every_worker_hears_that_machines_differ_or_were_told_to_compute_otherwise(differs, alike):
    assert group(Unlike(**differs), 2) == [alike] * 2
