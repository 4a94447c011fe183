"""Checkpoints: whole or old, never half; refused when they are damaged or another run's."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import struct
import sys

import pytest
import torch
from safetensors.torch import load_file
from safetensors.torch import save as save_tensors

from uedp_ray.config import TrainingConfig
from uedp_ray.errors import InputError
from uedp_ray.storage import files
from uedp_ray.storage.files import write_atomically
from uedp_ray.training.checkpoint import Position, load_checkpoint, save_checkpoint
from uedp_ray.training.optimizers import OPTIMIZERS, ServerOptimizer, kept_by, server_optimizer
from uedp_ray.training.rounds import RoundState

MINE = {"config_digest": "a" * 64}
ASKED = MINE | {"num_rounds": 9, "kept": kept_by(TrainingConfig(server_optimizer="adam"))}


def fresh(optimizer="adam", size=5):
    parameters = torch.zeros(size)
    return RoundState(parameters, server_optimizer(parameters, TrainingConfig(server_optimizer=optimizer)))


def step(state, rounds=1):
    for _ in range(rounds):
        state.parameters.grad = torch.sin(state.parameters + torch.arange(5.0) + state.next_round)
        state.optimizer.step()
        state.next_round += 1
    return state


def save(folder, state):
    save_checkpoint(folder, state, Position(state.next_round, **MINE, ledger_seq=state.next_round, ledger_digest="d"))


@pytest.fixture
def saved(tmp_path):
    """A checkpoint of round 3 under ``folder``."""
    folder = tmp_path / "checkpoint"
    save(folder, step(fresh(), 3))
    return folder


@pytest.mark.parametrize("optimizer", [*OPTIMIZERS, "rmsprop", "adagrad"])
def test_a_run_goes_on_exactly_where_it_was(tmp_path, monkeypatch, optimizer):
    for name, made in (("rmsprop", torch.optim.RMSprop), ("adagrad", torch.optim.Adagrad)):  # as if somebody added them
        added = ServerOptimizer(lambda parameters, config, made=made: made([parameters], lr=0.1))
        monkeypatch.setitem(OPTIMIZERS, name, added)
    settings = TrainingConfig()
    object.__setattr__(settings, "server_optimizer", optimizer)
    monkeypatch.setattr(sys.modules[__name__], "TrainingConfig", lambda server_optimizer: settings)
    state = step(fresh(optimizer), 3)
    save(tmp_path, state)
    restored = fresh(optimizer)
    position = load_checkpoint(tmp_path, restored, **ASKED | {"kept": kept_by(settings)})
    assert position == Position(3, **MINE, ledger_seq=3, ledger_digest="d")
    assert restored.next_round == 3
    step(state, 2)
    step(restored, 2)
    assert torch.equal(state.parameters, restored.parameters)
    assert state.parameters.any()


def test_nothing_saved_is_no_error(tmp_path):
    assert load_checkpoint(tmp_path / "none", fresh(), **ASKED) is None


def test_only_tensors_and_json_and_only_the_last(saved):
    save(saved, step(fresh(), 4))
    assert sorted(path.name for path in saved.iterdir()) == ["round-000004.safetensors", "state.json"]
    content = (saved / "round-000004.safetensors").read_bytes()
    (header_size,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + header_size])
    assert set(header) >= {"parameters", "optimizer.0.exp_avg", "optimizer.0.exp_avg_sq", "optimizer.0.step"}
    assert header["parameters"] == {"dtype": "F32", "shape": [5], "data_offsets": header["parameters"]["data_offsets"]}
    json.loads((saved / "state.json").read_text())


class FullDisk:
    """Fails the ``nth`` durable write of this process."""

    def __init__(self, nth):
        self.left = nth

    def __call__(self, descriptor):
        self.left -= 1
        if self.left == 0:
            raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize(("nth", "name"), [(1, "round-000004.safetensors"), (3, "state.json")])
def test_a_full_disk_keeps_the_old_checkpoint_and_says_what_to_do(saved, monkeypatch, nth, name):
    monkeypatch.setattr(os, "fsync", FullDisk(nth))
    with pytest.raises(OSError, match="No space left") as raised:
        save(saved, step(fresh(), 4))
    monkeypatch.undo()
    assert raised.value.errno == errno.ENOSPC
    assert str(saved / name) in str(raised.value)
    assert "--resume" in str(raised.value)
    assert not list(saved.glob(".*")), "a full disk is not filled further"
    state = fresh()
    load_checkpoint(saved, state, **ASKED)
    assert state.next_round == 3
    assert torch.equal(state.parameters, step(fresh(), 3).parameters)


def test_a_short_write_keeps_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "file"
    write_atomically(path, b"old")

    class Full:
        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

        def write(self, content):
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(files, "open", lambda *_: Full(), raising=False)
    with pytest.raises(OSError, match="file keeps its last complete state"):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old"


@pytest.mark.parametrize("damage", ["flip", "cut", "missing"])
def test_a_damaged_tensor_file_is_refused(saved, damage):
    file = saved / "round-000003.safetensors"
    content = bytearray(file.read_bytes())
    content[-3] ^= 1
    {
        "flip": lambda: file.write_bytes(content),
        "cut": lambda: file.write_bytes(content[:-7]),
        "missing": file.unlink,
    }[damage]()
    with pytest.raises(InputError, match="damaged") as raised:
        load_checkpoint(saved, fresh(), **ASKED)
    assert str(file) in str(raised.value)


@pytest.mark.parametrize("content", ["", "{", "[]", '{"format": 1}'])
def test_a_damaged_state_file_is_refused(saved, content):
    (saved / "state.json").write_text(content)
    with pytest.raises(InputError, match="checkpoint"):
        load_checkpoint(saved, fresh(), **ASKED)


def test_a_checkpoint_of_another_run_is_refused_and_both_are_named(saved):
    state = fresh()
    with pytest.raises(InputError, match="checkpoint config_digest = 'aaaaaaaaaaaa': this run has 'bbbbbbbbbbbb'"):
        load_checkpoint(saved, state, **ASKED | {"config_digest": "b" * 64})
    assert not state.parameters.any(), "nothing of it was used"


@pytest.mark.parametrize(
    "change",
    [
        lambda tensors: tensors.update({"junk": torch.zeros(1)}),
        lambda tensors: tensors.update({"optimizer.x.y": torch.zeros(1)}),
        lambda tensors: tensors.pop("optimizer.0.step"),
        lambda tensors: tensors.update({"optimizer.0.exp_avg": torch.zeros(3)}),
    ],
)
def test_tensors_of_no_optimizer_of_ours_are_refused(saved, change):
    file, state = saved / "round-000003.safetensors", fresh()
    tensors = load_file(file)
    change(tensors)
    content = save_tensors(tensors)
    file.write_bytes(content)
    commit = json.loads((saved / "state.json").read_text())
    commit["sha256"] = hashlib.sha256(content).hexdigest()
    (saved / "state.json").write_text(json.dumps(commit))
    with pytest.raises(InputError, match=r"checkpoint.*damaged"):
        load_checkpoint(saved, state, **ASKED)
    assert not state.parameters.any(), "nothing of it was used"


@pytest.mark.parametrize("next_round", [-1, 10, 10**18])
def test_a_round_beyond_the_plan_is_refused(saved, next_round):
    commit = json.loads((saved / "state.json").read_text())
    name = f"round-{next_round:06d}.safetensors"
    (saved / commit["tensors"]).rename(saved / name)
    (saved / "state.json").write_text(json.dumps(commit | {"next_round": next_round, "tensors": name}))
    with pytest.raises(InputError, match=r"damaged.*next_round"):
        load_checkpoint(saved, fresh(), **ASKED)


def test_a_checkpoint_of_another_size_is_refused(saved):
    with pytest.raises(InputError, match=r"\(5,\).*\(6,\)"):
        load_checkpoint(saved, fresh(size=6), **ASKED)
