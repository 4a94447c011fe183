"""What a try-out found, kept for other processes of a sweep: the numbers of rows of batches that ``updates.gradient`` uses.

    with kept_in(Path("runs/tryouts")):               # for the runs of this process
        train(config, Path("runs/another"), workers=0)

A try-out takes seconds, depends on no text, and finds the same in every process that has the same network, settings,
libraries, kernels and machine. A file is named by a digest of all of these, so that another machine, version or setting
misses it. Nothing is kept where not all of that is known: on a GPU, whose kernels depend on its state, too; of a network or
a task that is not of this package, torch, transformers or peft, or that was changed after it was made; and on a machine that
does not say when it was started. The checks that a try-out begins with, of sentences read alone and of exact gradients, are
made by every process.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import json
import platform
import types
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from torch import nn

from uedp_ray.errors import InputError
from uedp_ray.fields import list_of, number, record
from uedp_ray.storage.files import make_folder, read_json, write_json
from uedp_ray.storage.locks import lock_beside, locked
from uedp_ray.training.machine import CPU, kernels
from uedp_ray.updates.gradient import KNOWN, Rows, Update

_WAIT = 600.0
"""Seconds to wait for another process that tries the same out, before it is done here, too."""
_OURS = ("peft", "torch", "transformers", "uedp_ray")
"""Packages whose code is known by their versions and, of this one, its source."""
_BOOT = Path("/proc/sys/kernel/random/boot_id")


@contextmanager
def kept_in(folder: Path) -> Iterator[None]:
    """Keeps what try-outs find in ``folder``, which is made owner-only, and looks there first."""
    token = KNOWN.set(functools.partial(_known, folder))
    try:
        yield
    finally:
        KNOWN.reset(token)


def _known(folder: Path, update: Update, key: str, find: Callable[[], Rows], possible: Callable[[Rows], bool]) -> Rows:
    name = _named(update, key)
    if name is None:
        return find()
    path = folder / f"{name}.json"
    with ExitStack() as kept:
        try:
            make_folder(folder, private=True)
            busy = InputError("try-out", str(path), "another process makes it")
            kept.enter_context(locked(lock_beside(path), wait=_WAIT, busy=busy))
            rows = _read(path)
        except (InputError, OSError):  # all that is lost are the seconds it would have saved
            return find()
        if rows is None or not possible(rows):
            rows = find()
            with suppress(InputError, OSError):
                found = [{"length": length, "rows": each} for length, each in rows.items()]
                write_json(path, {"found": found}, private=True)
        return rows


def _read(path: Path) -> Rows | None:
    """None if there is no such file, or it is damaged."""
    try:
        found = read_json(path, {"found": list_of(_PAIR)}, "")["found"]
    except (FileNotFoundError, InputError):
        return None
    return {each["length"]: each["rows"] for each in found}


_PAIR = record({"length": number(1, whole=True), "rows": list_of(number(1, whole=True))})


def _named(update: Update, key: str) -> str | None:
    """A digest of all that the outcome depends on; None if that is not known."""
    modules = list(update.model.modules())
    kinds = {type(each) for each in (*modules, update.task, update)}
    known = all(kind.__module__.partition(".")[0] in _OURS for kind in kinds) and not any(map(_changed, modules))
    if update.device.type != "cpu" or not known or not (_BOOT.is_file() and CPU.is_file()):
        return None
    settings = getattr(update.model, "config", None)
    parts = [
        [(type(each).__module__, type(each).__qualname__, repr(_functions(each))) for each in modules],
        [(name, str(each.dtype), each.shape, each.stride()) for name, each in _tensors(update.model)],
        repr((update.model, settings, getattr(settings, "_attn_implementation", None))),
        repr((type(update), type(update.task), update.task)),
        key,
        kernels(update.device),
        (platform.uname()[1:], _BOOT.read_text()),
    ]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def _tensors(network: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    return itertools.chain(network.named_parameters(), network.named_buffers())


def _changed(module: nn.Module) -> bool:
    """Whether a network has code of its own beside that of its class, but for functions of torch that a class names."""
    hooks = (value for name, value in vars(module).items() if "_hooks" in name)
    own = _functions(module).items()
    return any(hooks) or any(hasattr(type(module), name) or not _of_torch(each) for name, each in own)


def _functions(module: nn.Module) -> dict[str, Any]:
    return {name: each for name, each in vars(module).items() if callable(each) and not isinstance(each, nn.Module)}


def _of_torch(function: Any) -> bool:
    """Such as ``gelu``, alone or with settings that its representation shows."""
    function = function.func if isinstance(function, functools.partial) else function
    compiled = isinstance(function, types.BuiltinFunctionType)
    return compiled and str(function.__module__).partition(".")[0] == "torch"
