"""Sharded aggregation: the bits of the driver's, charged before anything leaves a worker, and the driver's ledger alone."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import time
from functools import partial
from types import SimpleNamespace
from unittest import mock

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from tests.training.groups import group, train_in_group
from tests.training.runs import TEST_NOISE, TREE, events, run_config
from tests.updates.tiny import tiny_config
from uedp_ray.config import TrainingConfig
from uedp_ray.errors import InputError
from uedp_ray.plan import Plan
from uedp_ray.privacy.noise import GaussianNoise
from uedp_ray.storage.open import open_storage
from uedp_ray.training.driver import RunDriver
from uedp_ray.training.host import train
from uedp_ray.training.optimizers import OPTIMIZERS, ServerOptimizer, server_optimizer
from uedp_ray.training.prepared import draw_key
from uedp_ray.training.reduce import DistributedReducer, part_of
from uedp_ray.training.rounds import RoundState
from uedp_ray.training.rundir import RunDir
from uedp_ray.training.setup import prepare_run
from uedp_ray.training.sharding import Shard, check_aggregation, is_sharded
from uedp_ray.training.worker import run_worker

NOISED = {"privacy": {**TREE["privacy"], **TEST_NOISE}}


def config_of(corpora, aggregation, *, test=True, **training):
    training = {**TREE["training"], "aggregation": aggregation, **training}
    return run_config(corpora, training=training, **(NOISED if test else {}))


def tensors(run):
    state = json.loads((run / "checkpoint" / "state.json").read_text())
    return load_file(run / "checkpoint" / state["tensors"])


def same(one, other):
    assert one.keys() == other.keys()
    for name, value in one.items():
        assert value.shape == other[name].shape
        assert value.dtype == other[name].dtype
        assert torch.equal(value, other[name]), name


@pytest.mark.parametrize("size", [0, 1, 63, 64, 191, 192, 193, 1000, 4096])
@pytest.mark.parametrize("num_workers", [1, 2, 3, 64])
def test_parts_make_up_the_vector(size, num_workers):
    parts = [part_of(size, rank, num_workers) for rank in range(num_workers)]
    assert [place for part in parts for place in range(size)[part]] == list(range(size))
    assert len({part.stop - part.start for part in parts[:-1]}) <= 1, "as collectives need them"
    assert all(part.start % 64 == 0 for part in parts), "whole vectors of a CPU's kernels"
    assert parts[-1].stop - parts[-1].start < size / num_workers + 64 * num_workers


def summed(size, one_by_one, rank, reducer):
    """A part of a sum, and all parts, of integers near what int64 holds."""
    assert reducer.one_by_one
    reducer.one_by_one = one_by_one
    of = np.random.default_rng(rank).integers(-(2**60), 2**60, size)
    own = reducer.sum_of_part(torch.from_numpy(of))
    vector = torch.full((size,), -1.0, dtype=torch.float64)
    vector[part_of(size, rank, reducer.num_workers)] = rank
    return own.numpy(), reducer.to_all(vector).numpy()


@pytest.mark.parametrize("one_by_one", [True, False])  # as on CPUs, and on GPUs
@pytest.mark.parametrize(("num_workers", "size"), [(2, 1000), (3, 1000), (3, 192), (3, 10), (2, 1), (1, 100)])
def test_each_worker_has_its_part_of_the_sum(num_workers, size, one_by_one):
    found = group(partial(summed, size, one_by_one), num_workers)
    whole = sum(np.random.default_rng(rank).integers(-(2**60), 2**60, size) for rank in range(num_workers))
    owner = np.concatenate([np.full(len(own), rank) for rank, (own, _) in enumerate(found)])
    for rank, (own, everything) in enumerate(found):
        assert np.array_equal(own, whole[part_of(size, rank, num_workers)])
        assert np.array_equal(everything, owner)


@pytest.mark.whole
@pytest.mark.slow
@pytest.mark.parametrize(("num_workers", "optimizer"), [(2, "sgd"), (3, "adam"), (2, "momentum"), (2, "adamw")])
def test_a_seeded_run_has_the_bits_of_the_drivers_aggregation(corpora, tmp_path, num_workers, optimizer):
    results = {}
    for aggregation in ("driver", "sharded"):
        config = config_of(corpora, aggregation, server_optimizer=optimizer, server_schedule="linear")
        assert train_in_group(config, tmp_path / aggregation, num_workers) == [None] * num_workers
        results[aggregation] = json.loads((tmp_path / aggregation / "result.json").read_text())
    same(tensors(tmp_path / "driver"), tensors(tmp_path / "sharded"))
    assert results["driver"] == results["sharded"]
    ledgers = [events(tmp_path / aggregation) for aggregation in results]
    strip = [[{k: e[k] for k in ("round", "attempt", "mechanism")} for e in ledger] for ledger in ledgers]
    assert strip[0] == strip[1]


@contextlib.contextmanager
def cut_off(after, rank):
    """The driver ends, without a word, once it has charged for so many rounds."""
    charge, made = RunDriver.charge, [0]

    def charging(driver, *arguments):
        charge(driver, *arguments)
        made[0] += 1
        if made[0] == after:
            os._exit(3)

    with mock.patch.object(RunDriver, "charge", charging):
        yield


@pytest.mark.whole
@pytest.mark.slow
@pytest.mark.parametrize(
    ("first", "then"),
    [(("sharded", 3), ("driver", 0)), (("driver", 2), ("sharded", 3)), (("sharded", 2), ("sharded", 3))],
)
def test_a_run_resumes_with_another_number_of_workers_and_the_other_aggregation(corpora, tmp_path, first, then):
    whole, run = tmp_path / "whole", tmp_path / "run"
    train_in_group(config_of(corpora, "driver"), whole, 2)
    ended = train_in_group(config_of(corpora, first[0]), run, first[1], play=partial(cut_off, 4))
    assert ended[0] == 3
    assert all("Error" in str(each) for each in ended[1:])
    assert json.loads((run / "checkpoint" / "state.json").read_text())["next_round"] == 2
    if then[1]:
        assert train_in_group(config_of(corpora, then[0]), run, then[1], resume=True) == [None] * then[1]
    else:
        train(config_of(corpora, then[0]), run, workers=0, resume=True)
    same(tensors(whole), tensors(run))


@contextlib.contextmanager
def dies_before_the_charge(folder, which, rank):
    """Worker ``which`` ends after its step of the third round; all write down what they let out, and when they charge."""
    charged, to_all, charge = Shard.charged, DistributedReducer.to_all, RunDriver.charge
    log = folder / f"{rank}.log"

    def tell(line):
        with log.open("a") as file:
            file.write(f"{line}\n")

    def ending(shard, round_index, asked):
        if rank == which and round_index == 2:
            os._exit(9)
        charged(shard, round_index, asked)

    def sending(reducer, vector):
        tell("sent")
        return to_all(reducer, vector)

    def charging(driver, round_index, attempt):
        charge(driver, round_index, attempt)
        tell(f"charged {round_index}")

    with (
        mock.patch.object(Shard, "charged", ending),
        mock.patch.object(DistributedReducer, "to_all", sending),
        mock.patch.object(RunDriver, "charge", charging),
    ):
        yield


@pytest.mark.whole
@pytest.mark.slow
@pytest.mark.parametrize("which", [0, 1])
def test_a_worker_that_dies_between_noise_and_charge_costs_nothing(corpora, tmp_path, which):
    config, run = config_of(corpora, "sharded", test=False, server_optimizer="sgd"), tmp_path / "run"
    ended = train_in_group(config, run, 2, play=partial(dies_before_the_charge, tmp_path, which))
    assert ended[which] == 9
    assert "Error" in ended[1 - which]
    assert [event["round"] for event in events(run)] == [0, 1], "what no worker could release is not charged"
    for rank in range(2):
        assert (tmp_path / f"{rank}.log").read_text().split("\n").count("sent") == 2, "and nothing of it is sent"
    assert train_in_group(config, run, 2, resume=True) == [None, None]
    assert [(event["round"], event["attempt"]) for event in events(run)] == [(t, 0) for t in range(5)]


@contextlib.contextmanager
def watched(folder, rank):
    """Charging takes a while; who opens the ledger is written down, and whoever sends looks into it before."""
    open_ledger, charge, to_all, round_ = RunDir.open_ledger, RunDriver.charge, DistributedReducer.to_all, [0]

    def opening(run, config):
        (folder / f"opened-{rank}").touch()
        return open_ledger(run, config)

    def charging(driver, *arguments):
        time.sleep(0.2)
        charge(driver, *arguments)

    def sending(reducer, vector):
        round_[0] += 1
        assert len(events(folder / "run")) == round_[0], "it is charged before anything of it leaves"
        return to_all(reducer, vector)

    with (
        mock.patch.object(RunDir, "open_ledger", opening),
        mock.patch.object(RunDriver, "charge", charging),
        mock.patch.object(DistributedReducer, "to_all", sending),
    ):
        yield


@pytest.mark.whole
@pytest.mark.slow
def test_every_worker_waits_for_the_charge_and_only_the_driver_opens_the_ledger(corpora, tmp_path):
    config = config_of(corpora, "sharded", test=False, server_optimizer="sgd")
    assert train_in_group(config, tmp_path / "run", 3, play=partial(watched, tmp_path)) == [None] * 3
    assert [path.name for path in tmp_path.glob("opened-*")] == ["opened-0"]
    assert len(events(tmp_path / "run")) == 5


class Parts:
    """A reducer of one of two workers, of which each is asked by itself."""

    num_workers = 2

    def __init__(self, rank, told=None):
        self.rank, self.is_driver, self.told = rank, rank == 0, told

    def sum_of_part(self, vector):
        return vector[part_of(len(vector), self.rank, 2)]

    def sum_to_driver(self, vector):
        return vector * (self.told or 2)

    def from_driver(self, vector):
        return vector if self.told is None or self.is_driver else torch.tensor([self.told])


def shard_of(rank, size=200_000, *, told=None, seed=None):
    plan = Plan.of(tiny_config(privacy={"test_noise_seed": seed}))
    return Shard(plan, None, Parts(rank, told), torch.zeros(size))


def test_every_coordinate_has_all_of_the_noise_and_no_two_share_it():
    parts = []
    for rank in range(2):
        shard = shard_of(rank)
        zeros = shard.plan.zeros(200_000, torch.device("cpu"))
        shard.draw_ahead(0)
        parts.append(shard.release(shard.sum(zeros), 0).clone() * shard.plan.expected_cohort)
    one, other = (part[:99_968] for part in parts)
    for part in parts:
        assert float(part.std()) == pytest.approx(shard.plan.noise_std, rel=0.01)  # 4.5 standard errors
    assert abs(float((one * other).mean())) < 5 * shard.plan.noise_std**2 / len(one) ** 0.5


def test_each_worker_asks_the_system_for_a_key_of_its_own_in_every_round():
    keys = []
    with mock.patch("uedp_ray.privacy.noise.secrets.randbits", lambda bits: keys.append(bits) or len(keys)):
        for rank in range(2):
            shard = shard_of(rank, 1000)
            for round_index in range(3):
                shard.draw_ahead(round_index)
                shard.release(shard.sum(shard.plan.zeros(1000, torch.device("cpu"))), round_index)
    assert keys == [128] * 6


def test_a_tests_noise_is_that_of_the_whole_vector():
    size, released = (1 << 21) + 5, []
    for rank in range(2):
        shard = shard_of(rank, size, seed=3)
        released.append(shard.release(shard.sum(shard.plan.zeros(size, torch.device("cpu"))), 4))
    plan = shard.plan
    whole = plan.release(plan.zeros(size, torch.device("cpu")), GaussianNoise(3), round_index=4)
    assert torch.equal(torch.cat(released), whole)


def test_noise_of_a_test_never_passes_for_private():
    shard = shard_of(0, 100)
    shard._noise = GaussianNoise(3)
    with pytest.raises(ValueError, match="what claims to be private needs secret noise"):
        shard.release(shard.plan.zeros(100, torch.device("cpu")), 0)


def test_a_round_that_a_worker_did_not_get_through_is_not_charged():
    with pytest.raises(RuntimeError, match="1 of 2 workers stepped: the round is not charged"):
        shard_of(0, 100, told=1).charged(0, lambda: pytest.fail("charged"))


def test_a_worker_that_is_told_of_another_round_keeps_its_part():
    shard_of(1, 100, told=4).charged(4, None)
    with pytest.raises(RuntimeError, match="round 5 was not charged: nothing of it is released"):
        shard_of(1, 100, told=4).charged(5, None)


def test_only_optimizers_that_step_each_parameter_by_itself_are_sharded(monkeypatch):
    assert {"sgd", "momentum", "adam", "adamw"} <= {name for name, entry in OPTIMIZERS.items() if entry.elementwise}
    lamb = ServerOptimizer(lambda parameters, config: torch.optim.RMSprop([parameters]))
    monkeypatch.setitem(OPTIMIZERS, "lamb", lamb)
    asked = SimpleNamespace(aggregation="sharded", server_optimizer="lamb")
    with pytest.raises(
        InputError, match=r"training\.aggregation.*\(lamb\) is not stated to be elementwise: use driver"
    ):
        check_aggregation(asked)
    asked.aggregation = "auto"
    assert not is_sharded(asked, num_params=1 << 30, num_workers=8)


@pytest.mark.parametrize(
    ("aggregation", "num_params", "num_workers", "expected"),
    [
        ("auto", 1 << 20, 2, True),
        ("auto", (1 << 20) - 1, 2, False),
        ("auto", 1 << 30, 1, False),
        ("driver", 1 << 30, 8, False),
        ("sharded", 10, 2, True),
        ("sharded", 1 << 30, 1, False),
    ],
)
def test_when_workers_shard(aggregation, num_params, num_workers, expected):
    config = TrainingConfig(aggregation=aggregation)
    assert is_sharded(config, num_params=num_params, num_workers=num_workers) == expected


def test_it_is_no_part_of_what_a_run_is(corpora):
    assert len({config_of(corpora, name).digest() for name in ("auto", "driver", "sharded")}) == 1


def stepped(size, rank, reducer):
    """Steps of Adam on parts, some of them empty: what the driver would keep, and the parameters."""
    plan = Plan.of(tiny_config(training={"server_optimizer": "adam"}))
    values = torch.sin(torch.arange(float(size)))
    shard = Shard(plan, None, reducer, values.clone())
    optimizer = server_optimizer(shard.parameters, plan.config.training)
    for step in range(4):
        if step in (0, 2):  # as if it began here, and went on from a checkpoint
            if step == 2:
                kept = shard.kept(optimizer)
                optimizer = server_optimizer(shard.parameters, plan.config.training)
                if rank == 0:
                    optimizer.load_state_dict({**optimizer.state_dict(), "state": {0: kept}})
            optimizer = shard.optimizer(optimizer, stepped=step > 0)
        (own,) = optimizer.param_groups[0]["params"]
        own.grad = torch.cos(values * (step + 1))[shard._part]
        optimizer.step()
        shard.gather()
    return shard.parameters.numpy(), {name: value.numpy() for name, value in shard.kept(optimizer).items()}


@pytest.mark.parametrize("size", [10, 999])
def test_optimizers_of_parts_keep_what_that_of_the_whole_would(size):
    found = group(partial(stepped, size), 3)
    config, values = tiny_config(training={"server_optimizer": "adam"}), torch.sin(torch.arange(float(size)))
    whole = values.clone()
    state = RoundState(whole, server_optimizer(whole, config.training))
    for step in range(4):
        whole.grad = torch.cos(values * (step + 1))
        state.optimizer.step()
    for parameters, _ in found:
        assert np.array_equal(parameters, whole.numpy())
    assert found[0][1].keys() == state.optimizer.state[whole].keys()
    for name, value in found[0][1].items():
        assert np.array_equal(value, state.optimizer.state[whole][name].numpy()), name
    assert found[1][1] == found[2][1] == {}


class OfCopies:
    """Each worker opens its own copy of a run, as on nodes without a common file system."""

    def __init__(self, outs):
        self.outs = outs

    def __call__(self, rank, reducer):
        how = {"rank": rank, "num_workers": len(self.outs), "reducer": reducer, "device": torch.device("cpu")}
        run_worker(RunDir(self.outs[rank]), **how)


@pytest.mark.whole
@pytest.mark.parametrize("aggregation", ["driver", "sharded"])
@pytest.mark.parametrize("other", ["noise", "key"])
def test_a_worker_with_another_copy_ends_the_run_before_it_charges(corpora, tmp_path, aggregation, other):
    """The driver holds its own against the ledger. Another's had next to no noise: half of the vector left without any."""
    outs = [tmp_path / "out", tmp_path / "copy"]
    storage = open_storage(outs[0])
    with storage.exclusive():
        prepare_run(config_of(corpora, aggregation, test=False), storage, resume=False)
    shutil.copytree(*outs)
    if other == "noise":
        setup = outs[1] / "private" / "setup.json"
        known = json.loads(setup.read_text())
        known["mechanism"]["noise_multiplier"] = 1e-6
        setup.write_text(json.dumps(known))
    else:
        draw_key(RunDir(outs[1]))
    ended = group(OfCopies(outs), 2)
    assert "is not the driver's" in ended[1]
    assert ended[0] is not None
    assert events(outs[0]) == []
