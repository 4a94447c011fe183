"""Atomic checkpoints: a safetensors file of tensors and a JSON file of state, whose rename is the commit.

    checkpoint/round-000050.safetensors     trainable parameters and the server optimizer's tensors
    checkpoint/state.json                   next round, ledger position, config digest, tensor file, SHA-256

    >>> from pathlib import Path
    >>> from tempfile import TemporaryDirectory
    >>> import torch
    >>> from uedp_ray.errors import InputError
    >>> from uedp_ray.training.checkpoint import Position, load_checkpoint, save_checkpoint
    >>> from uedp_ray.training.rounds import RoundState
    >>> def state(parameters, next_round=0):
    ...     return RoundState(parameters, torch.optim.SGD([parameters], lr=0.1), next_round)
    >>> folder, fresh = TemporaryDirectory(), state(torch.zeros(3))
    >>> path = Path(folder.name, "checkpoint")
    >>> save_checkpoint(path, state(torch.ones(3), next_round=50), Position(50, "of-config", 52, "of-ledger"))
    >>> sorted(file.name for file in path.iterdir())
    ['round-000050.safetensors', 'state.json']
    >>> load_checkpoint(path, fresh, config_digest="of-config", num_rounds=100, kept={})
    Position(next_round=50, config_digest='of-config', ledger_seq=52, ledger_digest='of-ledger')
    >>> fresh.parameters, fresh.next_round
    (tensor([1., 1., 1.]), 50)
    >>> try:
    ...     load_checkpoint(path, fresh, config_digest="of-another", num_rounds=100, kept={})
    ... except InputError as error:
    ...     print(error.field, error.value, error.remedy.partition(":")[0], sep=": ")
    checkpoint config_digest: of-config: this run has 'of-another'
    >>> folder.cleanup()

Everything in a checkpoint is post-processing of noised releases. A kill at any moment leaves the last complete checkpoint.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save

from uedp_ray.errors import InputError
from uedp_ray.fields import Check, number, string
from uedp_ray.storage.files import check_regular, check_room, make_folder, read_json, write_atomically
from uedp_ray.training.rounds import RoundState

_FORMAT = 1
_RESTORE = "restore it or use another --out"
_MOST_BESIDE = 1 << 20
"""The most bytes that headers and step counts take."""
_LINE = 1 << 10
"""Bytes of a ledger's line, about."""
_FIELDS: dict[str, Check] = {
    **dict.fromkeys(("config_digest", "ledger_digest", "tensors", "sha256"), string()),
    **dict.fromkeys(("format", "next_round", "ledger_seq"), number(0, whole=True)),
}


@dataclass(frozen=True)
class Position:
    """The position of a checkpoint, compared with the config and the ledger before it is used."""

    next_round: int
    config_digest: str
    ledger_seq: int
    ledger_digest: str


def check_room_for(folder: Path, state: RoundState, *, num_kept: int, num_events: int) -> None:
    """Checks that a checkpoint and the ledger's lines until then fit on the disk, before any of it is charged.

    ``num_kept``: vectors that the optimizer keeps. ``num_events``: lines until the checkpoint. Raises: OSError.
    """
    size = (1 + num_kept) * state.parameters.nbytes + num_events * _LINE + _MOST_BESIDE
    try:
        check_room(folder if folder.exists() else folder.parent, size)
    except OSError as error:
        room = f"no room for the next checkpoint ({size / 2**20:,.1f} MiB), so no more rounds are charged: {error.strerror}"
        raise OSError(error.errno, f"{room}: free space and run again", str(folder)) from error


def save_checkpoint(
    folder: Path, state: RoundState, position: Position, kept: Mapping[str, torch.Tensor] | None = None
) -> None:
    """Writes a checkpoint; the previous one is removed only after the new one is committed.

    ``kept``: what the server's optimizer keeps, by name, of all parameters; None: as ``state`` has it.
    """
    make_folder(folder)
    tensors = {"parameters": state.parameters.detach().cpu().contiguous()}
    for name, value in (state.optimizer.state[state.stepped] if kept is None else kept).items():
        if torch.is_tensor(value):
            tensors[f"optimizer.0.{name}"] = value.detach().cpu().contiguous()
    content = save(tensors)
    name = _tensor_file(state.next_round)
    write_atomically(folder / name, content)
    commit = {
        "format": _FORMAT,
        **vars(position),
        "tensors": name,
        "sha256": hashlib.sha256(content).hexdigest(),
    }
    write_atomically(folder / "state.json", json.dumps(commit, indent=1).encode())
    for old in folder.iterdir():
        if old.name != name and _TENSORS.fullmatch(old.name):  # a user's own copy has another name
            old.unlink()


def drop_checkpoint(folder: Path) -> None:
    """Removes a checkpoint that no start will resume from; files that are not ours stay."""
    for file in (folder / "state.json", *folder.glob("round-*.safetensors")):  # the first marks a whole one
        if file.name == "state.json" or _TENSORS.fullmatch(file.name):
            file.unlink(missing_ok=True)
    with suppress(OSError):  # it is missing, or not empty
        folder.rmdir()


def kept_rounds(folder: Path) -> int:
    """Rounds that the checkpoint in ``folder`` holds; 0 if there is none. Raises: InputError if it is damaged."""
    path = folder / "state.json"
    return read_json(path, _FIELDS, _RESTORE)["next_round"] if path.exists() else 0


def load_checkpoint(
    folder: Path, state: RoundState, *, config_digest: str, num_rounds: int, kept: Mapping[str, int]
) -> Position | None:
    """Fills ``state`` from the last complete checkpoint, of at most ``num_rounds`` rounds.

    ``kept``: the optimizer's state (``optimizers.kept_by``).

    Returns: the checkpoint's position; None if there is no checkpoint.
    Raises: InputError for a checkpoint of another config, or one that is damaged.
    """
    path = folder / "state.json"
    if not path.exists():
        return None
    commit = read_json(path, _FIELDS, _RESTORE)
    for name, wanted in (("format", _FORMAT), ("config_digest", config_digest)):
        if commit.get(name) != wanted:
            raise InputError(
                f"checkpoint {name}",
                str(commit.get(name))[:12],
                f"this run has {str(wanted)[:12]!r}: resume with the run's own config.yaml, or use another --out",
            )
    name, position = commit["tensors"], Position(**{name: commit[name] for name in Position.__dataclass_fields__})
    if not 0 <= position.next_round <= num_rounds or name != _tensor_file(position.next_round):
        raise InputError("checkpoint", str(path), f"is damaged (next_round, tensors): {_RESTORE}")
    tensor_file = folder / name
    damaged = InputError("checkpoint", str(tensor_file), f"is missing or damaged: {_RESTORE}")
    try:
        check_regular(tensor_file, _RESTORE, most=(2 + len(kept)) * state.parameters.nbytes + _MOST_BESIDE)
        content = tensor_file.read_bytes()
    except FileNotFoundError:
        raise damaged from None
    if hashlib.sha256(content).hexdigest() != commit["sha256"]:
        raise damaged
    try:
        tensors = load(content)
    except SafetensorError as error:
        raise InputError("checkpoint", str(tensor_file), f"cannot be read: {error}") from None
    parameters = tensors.pop("parameters", torch.empty(0))
    if parameters.shape != state.parameters.shape or parameters.dtype != state.parameters.dtype:
        raise InputError(
            "checkpoint", tuple(parameters.shape), f"the model has {tuple(state.parameters.shape)} parameters"
        )
    names = kept if position.next_round else ()
    whole = tensors.keys() == {f"optimizer.0.{name}" for name in names}
    if not whole or any(value.dim() and value.shape != parameters.shape for value in tensors.values()):
        raise damaged
    entries = {0: {name: tensors[f"optimizer.0.{name}"] for name in names}} if names else {}
    state.parameters.copy_(parameters)
    state.optimizer.load_state_dict({**state.optimizer.state_dict(), "state": entries})
    state.next_round = position.next_round
    return position


_TENSORS = re.compile(r"round-\d{6,}\.safetensors")


def _tensor_file(next_round: int) -> str:
    return f"round-{next_round:06d}.safetensors"
