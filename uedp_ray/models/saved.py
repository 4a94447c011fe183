"""Saved networks: what is written, and what is checked when it is read.

    >>> from pathlib import Path
    >>> from tempfile import TemporaryDirectory
    >>> import torch
    >>> from uedp_ray.errors import InputError
    >>> from uedp_ray.models.awd_lstm import AWDLSTM, AWDLSTMConfig
    >>> from uedp_ray.models.saved import load_model, save_model
    >>> folder = TemporaryDirectory()
    >>> model, path = AWDLSTM(AWDLSTMConfig(vocab_size=50, embedding_size=6, num_layers=1)), Path(folder.name)
    >>> save_model(model, path)
    >>> sorted(file.name for file in path.iterdir())
    ['config.json', 'model.safetensors']
    >>> torch.equal(load_model(path).decoder.weight, model.decoder.weight)
    True
    >>> settings = (path / "config.json").read_text().replace('"vocab_size": 50', '"vocab_size": 50000000')
    >>> size = (path / "config.json").write_text(settings)    # a network of 1.4 GB
    >>> try:
    ...     load_model(path)
    ... except InputError as error:
    ...     print(error.remedy)
    no model can be read here (config.json does not match the weights: restore the model's own)
    >>> folder.cleanup()

Folders may be damaged or hostile: settings are checked against the weights before a network is built from them. All
arguments are public; a saved model is as private as the training that made it.
"""

from __future__ import annotations

import copy
import dataclasses
import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor, nn
from transformers import AutoConfig, GenerationConfig
from transformers.utils import logging as transformers_logging

from uedp_ray.errors import InputError, is_of_memory, one_line
from uedp_ray.fields import string
from uedp_ray.models.architecture import OwnNetwork, own_network
from uedp_ray.models.heads import CLASSES, saved_kind
from uedp_ray.storage.files import check_regular, read_hub_json, read_json

transformers_logging.disable_progress_bar()  # our own progress line is the only one
transformers_logging.set_verbosity_error()  # that a classifier's head is new is what is wanted; errors are raised

ADAPTER = "adapter_config.json"
MERGE = "adds an adapter, with which the whole model cannot be saved: give one with it merged (PEFT: merge_and_unload)"
_OWN = "restore the model's own"
_BUFFERS = 2**30
"""Bytes of buffers, such as tables of positions, that any network may have; a large one may have more."""
_GENERATION = "generation_config.json"
_SETTINGS = ("config.json", _GENERATION, "model.safetensors.index.json")
_MOST_HEADER = 100_000_000
"""The most bytes of a safetensors header, by that format."""


def save_model(model: nn.Module, path: str | Path) -> None:
    """Writes ``config.json`` and safetensors to the folder ``path``: float32, adapters merged.

    A transformers model can be read back by the ``from_pretrained`` of its class, any by ``load_model``.
    """
    if hasattr(model, "merge_and_unload"):
        model = _merged(model)
    folder = Path(path)
    if hasattr(model, "save_pretrained"):
        model.save_pretrained(path)  # type: ignore[operator]
    else:
        folder.mkdir(parents=True, exist_ok=True)
        safetensors.torch.save_model(model, str(folder / "model.safetensors"))
        (folder / "config.json").write_text(json.dumps(model.config_dict(), indent=2))  # type: ignore[operator]
    for weights in folder.glob("*.safetensors"):  # safetensors makes them readable for the owner alone
        weights.chmod((folder / "config.json").stat().st_mode)


def _merged(model: nn.Module) -> nn.Module:
    """The network with its adapters merged, in float32 or wider and on the CPU; ``model`` stays as it is.

    Nothing is taken of the device that trains. Merged in the type that a base is held in, most of an adapter would be lost
    to rounding. What no adapter changes is shared, if it is float32 and on the CPU already.
    """
    adapted = {id(tensor) for module in model.modules() if hasattr(module, "merge") for tensor in module.parameters()}
    here: dict[int, Any] = {}
    for tensor in (*model.parameters(), *model.buffers()):
        dtype = torch.promote_types(tensor.dtype, torch.float32) if tensor.is_floating_point() else tensor.dtype
        moved = tensor.detach().to("cpu", dtype, copy=id(tensor) in adapted)
        here[id(tensor)] = nn.Parameter(moved, requires_grad=False) if isinstance(tensor, nn.Parameter) else moved
    merged: nn.Module = copy.deepcopy(model, here).merge_and_unload()  # type: ignore[operator]
    return merged


def check_saveable(model: nn.Module) -> None:
    """Raises: TypeError for a network that ``save_model`` could not write, or ``load_model`` not read again."""
    inner: Any = model
    if hasattr(model, "merge_and_unload"):
        inner = inner.get_base_model()
    if hasattr(inner, "save_pretrained"):
        return
    name = type(inner).__name__
    if not hasattr(inner, "config_dict"):
        raise TypeError(f"{name} cannot be saved: it needs config_dict(), or to be a model of transformers")
    if own_network(inner.config_dict().get("model_type", "")) is None:
        raise TypeError(f"{name} could not be read again: its config_dict() names no architecture with an OwnNetwork")


def longest_input(model: nn.Module) -> int | None:
    """The most tokens that a network reads; None if it has no limit."""
    return longest_by(getattr(model, "config", None))


def longest_of(folder: Path) -> int | None:
    """``longest_input`` of the network that is saved in ``folder``. Raises: InputError if there is none."""
    return longest_by(read_settings(folder))


def longest_by(hub: Any) -> int | None:
    """The same by a transformers configuration, whose text part may be a section; Mamba and its like have no limit."""
    text = hub.get_text_config() if hasattr(hub, "get_text_config") else hub
    return getattr(text, "max_position_embeddings", None)


def load_model(path: str | Path, dtype: torch.dtype = torch.float32) -> nn.Module:
    """Reads what ``save_model`` wrote, on the CPU, in evaluation mode. Raises InputError if it cannot.

    ``dtype``: of a network of transformers; one of ours has float32.
    """
    folder = Path(path)
    hub = read_settings(folder)
    try:
        model = _filled(folder, hub, dtype).eval()
        with torch.no_grad():  # settings may be wrong in ways that only a pass shows
            model(input_ids=torch.zeros((1, min(2, longest_input(model) or 2)), dtype=torch.long))
    except Exception as error:  # transformers, safetensors and torch: whatever a damaged file leads to
        if is_of_memory(error):
            raise
        raise _not_read("model", folder, type(error).__name__) from error
    return model


def _filled(folder: Path, hub: Any, dtype: torch.dtype) -> nn.Module:
    own = own_network(hub.model_type)
    if own is not None:
        network = own.make(hub)
        safetensors.torch.load_model(network, str(folder / "model.safetensors"))
        return network
    model, found = CLASSES[saved_kind(hub)].from_pretrained(
        folder, dtype=dtype, output_loading_info=True, trust_remote_code=False
    )
    if found["missing_keys"]:  # transformers would leave them at random values
        raise ValueError("weights are missing")
    return model


def read_settings(folder: Path) -> Any:
    """What ``config.json`` says. Raises: InputError if it, or a file beside it, is not what it should be."""
    return _read(folder)[0]


def _read(folder: Path) -> tuple[Any, list[int]]:
    """``read_settings``, and ``check_files``."""
    with unread("model", folder):
        stored = check_files(folder)
        settings = read_json(folder / "config.json", {"model_type": string()}, _OWN)
        own = own_network(settings.pop("model_type"))
        if own is not None:
            hub: Any = _of_own(own, folder, settings)
        else:
            try:
                hub = AutoConfig.from_pretrained(folder, trust_remote_code=False)
            except Exception as error:  # transformers: whatever a damaged file leads to
                raise InputError("config.json", str(folder), f"is damaged ({type(error).__name__}): {_OWN}") from error
        check_filled(folder, hub, stored)
    return hub, stored


def _of_own(own: OwnNetwork, folder: Path, settings: dict[str, Any]) -> Any:
    read_json(folder / "config.json", own.fields, _OWN)
    if not settings.keys() <= {field.name for field in dataclasses.fields(own.settings)}:
        raise InputError("config.json", str(folder / "config.json"), f"is damaged: {_OWN}")
    return own.settings(**settings)


def unfilled(hub: Any) -> nn.Module:
    """A network by its settings, with random values."""
    own = own_network(hub.model_type)
    if own is not None:
        return own.make(hub)
    model: nn.Module = CLASSES[saved_kind(hub)].from_config(hub, trust_remote_code=False)
    return model


def check_whole(folder: Path) -> None:
    """Raises InputError if no network is saved in ``folder``, or not all of its weights are. They are counted, not read."""
    hub, stored = _read(folder)
    if sum(stored) < max(1, size_of(hub)[0]):  # a tied matrix is stored once, and counted once
        raise _not_read("model", folder, "weights are missing")


def check_files(folder: Path) -> list[int]:
    """How many numbers each tensor in the folder's safetensors files has.

    Raises: InputError for a file that is not a regular one, or not settings, or not as long as it says; OSError.
    """
    stored: list[int] = []
    for file in sorted(folder.iterdir()):
        if file.name in _SETTINGS:
            settings = read_hub_json(file, _OWN)
            if file.name == _GENERATION:
                try:
                    GenerationConfig.from_dict(settings)
                except Exception as error:  # transformers: whatever a damaged file leads to
                    raise InputError(file.name, str(file), f"is damaged ({type(error).__name__}): {_OWN}") from error
        elif file.name == ADAPTER:
            raise InputError(file.name, str(file), MERGE)
        elif file.suffix == ".safetensors":
            stored += _stored(file)
        elif not file.is_dir():
            check_regular(file, _OWN)
    return stored


def _stored(file: Path) -> list[int]:
    """How many numbers each tensor of a safetensors file has, by its header.

    Raises: InputError if the file is not as long as that says.
    """
    check_regular(file, _OWN)
    size = file.stat().st_size
    with open(file, "rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        header = stream.read(length) if length <= min(size, _MOST_HEADER) else b""
    try:
        tensors = json.loads(header)
        tensors.pop("__metadata__", None)
        numbers = [math.prod(map(int, tensor["shape"])) for tensor in tensors.values()]
        whole = size == 8 + length + max((tensor["data_offsets"][1] for tensor in tensors.values()), default=0)
    except (ValueError, KeyError, IndexError, TypeError, AttributeError, OverflowError, RecursionError):
        whole, numbers = False, []
    if not whole:
        raise InputError(file.name, str(file), f"is damaged: {_OWN}")
    return numbers


def check_filled(folder: Path, hub: Any, stored: list[int]) -> None:
    """Raises InputError if settings describe a far larger network than the weights, before one is built."""
    if not stored:
        return
    own = own_network(hub.model_type)
    layers = own.num_layers(hub) if own is not None else getattr(hub, "num_hidden_layers", 0)
    too_deep = isinstance(layers, int) and layers > len(stored)
    parameters, buffers = (0, 0) if too_deep else size_of(hub)
    most = 2 * sum(stored)  # a tied matrix is stored once
    if too_deep or parameters > most or buffers > max(_BUFFERS, 4 * most):
        raise InputError("config.json", str(folder / "config.json"), f"does not match the weights: {_OWN}")


def size_of(hub: Any) -> tuple[int, int]:
    """How many parameters a network has, and bytes of buffers; zeros for one that cannot be built without its values."""
    try:
        with torch.device("meta"), torch.random.fork_rng(devices=[]):
            network = unfilled(hub)
            return sum(map(Tensor.numel, network.parameters())), sum(buffer.nbytes for buffer in network.buffers())
    except Exception:  # transformers and torch: what is wrong with it shows when it is built
        return 0, 0


@contextmanager
def said_by_transformers(field: str, path: str) -> Iterator[None]:
    """Turns any error that a folder causes in transformers into an InputError that says what it was."""
    try:
        yield
    except Exception as error:  # OSError, ValueError, KeyError, ImportError, SafetensorError, and what a file leads to
        if is_of_memory(error):
            remedy = "give it more, choose a smaller model, or set model.base_dtype: bf16 if only adapters are trained"
            raise InputError(field, path, f"the machine ran out of memory as it read the model: {remedy}") from error
        remedy = f"transformers loads no language model from here ({said(error)}): give a folder with config.json"
        raise InputError(field, path, f"{remedy} and safetensors, or a hub name while online") from error


def said(error: Exception) -> str:
    return one_line(str(error).strip().partition("\n")[0], 300) or type(error).__name__


@contextmanager
def unread(field: str, folder: Path) -> Iterator[None]:
    """Reports anything wrong with a file in the folder as an InputError on ``field`` that names the folder."""
    try:
        yield
    except InputError as error:
        raise _not_read(field, folder, f"{error.field} {error.remedy}") from error.__cause__
    except OSError as error:
        raise _not_read(field, folder, error.strerror or type(error).__name__) from error


def _not_read(field: str, folder: Path, reason: str) -> InputError:
    return InputError(field, str(folder), f"no model can be read here ({reason})")
