"""Builds, saves and loads networks.

    model = build_model(ModelConfig(), vocab_size=10_000, bos_id=0, eos_id=0, seed=0)
    save_model(model, "run/model")
    model = load_model("run/model")

All arguments are public; a saved model is as private as the training that made it.
"""

from __future__ import annotations

import copy
import dataclasses
import json
import math
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig, GPT2Config
from transformers.utils import logging as transformers_logging

from uedp_ray.config import ModelConfig
from uedp_ray.errors import InputError, one_line
from uedp_ray.fields import Check, flag, number, string
from uedp_ray.files import check_regular, read_hub_json, read_json
from uedp_ray.models.awd_lstm import AWDLSTM, AWDLSTMConfig

transformers_logging.disable_progress_bar()  # our own progress line is the only one

DROPOUTS = ("dropout_embedding", "dropout_input", "dropout_hidden", "dropout_weight", "dropout_output")
DROPOUTS_OF = {
    "gpt2": ("dropout_embedding", "dropout_hidden", "dropout_output"),
    "awd_lstm": DROPOUTS,
    "pretrained": (),
}
"""Those that an architecture applies; it ignores the others."""
_SHAPES = {
    "gpt2": {
        "num_layers": "n_layer",
        "hidden_size": "n_embd",
        "num_heads": "n_head",
        "max_length": "n_positions",
        "tie_embeddings": "tie_word_embeddings",
    },
    "awd_lstm": {name: name for name in ("num_layers", "hidden_size", "embedding_size", "tie_embeddings")},
    "pretrained": {},
}
"""Settings that a model and its warm start share, under their names in ``config.json``."""
SHAPES = frozenset(name for names in _SHAPES.values() for name in names) | {"architecture", "path", "warm_start"}
"""Settings of the model section that decide whether its warm start fits."""
_OWN = "put the model's own back"
_BUFFERS = 2**30
"""Bytes of buffers, as tables of positions, that any network may have; a large one may have more."""
_GENERATION, _ADAPTER = "generation_config.json", "adapter_config.json"
_MERGE = "adds an adapter, with which the whole model cannot be saved: give one with it merged (PEFT: merge_and_unload)"
_SETTINGS = ("config.json", _GENERATION, "model.safetensors.index.json")
_AWD_LSTM: dict[str, Check] = {
    **dict.fromkeys(("vocab_size", "embedding_size", "hidden_size", "num_layers"), number(1, whole=True)),
    **dict.fromkeys(DROPOUTS, number(0.0, 1.0)),
    "init_range": number(1e-30, 1e30),
    "tie_embeddings": flag,
}
_MOST_HEADER = 100_000_000
"""Bytes of a safetensors header, by that format."""


def build_model(
    config: ModelConfig, *, vocab_size: int, bos_id: int, eos_id: int, seed: int, replace_embeddings: bool = False
) -> nn.Module:
    """A float32 causal language model on the CPU, all parameters trainable, in evaluation mode.

    ``gpt2``: dropout_embedding, dropout_hidden (attention) and dropout_output (residual) apply. ``awd_lstm``: all five.
    ``pretrained``: none, whatever the checkpoint says. ``config.warm_start`` replaces the initial values.

    Args:
      vocab_size: tokens of the vocabulary in use; a pretrained network may have more.
      bos_id, eos_id: tokens that sentences begin and end with, for the model's own settings.
      seed: initial values; the global generator is left alone.
      replace_embeddings: of a pretrained network, whose token embeddings are then drawn anew for this vocabulary.
    Raises:
      InputError: a folder cannot be loaded or does not fit.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = _build(config, vocab_size, bos_id, eos_id, replace_embeddings)
    if config.warm_start:
        with _as_start(config):
            start = load_model(config.warm_start)
        try:
            model.load_state_dict(start.state_dict())
        except RuntimeError:
            raise _misfit(config) from None
    return model.eval()


def check_start_fits(config: ModelConfig, vocab_size: int, *, replace_embeddings: bool = False) -> None:
    """Holds the model section against the settings of its warm start, and these against its files; no weights are read.

    Raises: InputError if ``build_model`` would not load it, as far as that can be told so. It refuses the rest itself.
    """
    with _as_start(config):
        hub = _settings(Path(config.warm_start))
    theirs = "awd_lstm" if isinstance(hub, AWDLSTMConfig) else hub.model_type
    pretrained = config.architecture == "pretrained"
    ours = pretrained_config(config).model_type if pretrained else config.architecture
    if theirs != ours:
        field, value = ("path", config.path) if pretrained else ("architecture", config.architecture)
        kind = f"is {ours}" if pretrained else "is asked for"
        raise InputError(f"model.{field}", value, f"{kind}, but model.warm_start is {theirs}: {_AS_PRETRAINED}")
    for name, key in _SHAPES[config.architecture].items():
        value, there = getattr(config, name), getattr(hub, key)
        if value != there:
            raise InputError(f"model.{name}", value, f"model.warm_start has {there}: {_AS_PRETRAINED}")
    try:
        with torch.device("meta"), torch.random.fork_rng(devices=[]):
            shapes = [
                {name: tensor.shape for name, tensor in network.state_dict().items()}
                for network in (_shaped(config, vocab_size, replace_embeddings), _empty(hub))
            ]
    except Exception:  # a network that cannot be made without its values: build_model will tell
        return
    if shapes[0] != shapes[1]:
        raise _misfit(config)


@contextmanager
def _as_start(config: ModelConfig) -> Iterator[None]:
    try:
        yield
    except InputError as error:
        raise InputError("model.warm_start", config.warm_start, error.remedy) from error.__cause__


_AS_PRETRAINED = "give the model section it was pre-trained with"


def _misfit(config: ModelConfig) -> InputError:
    return InputError("model.warm_start", config.warm_start, f"its shapes differ from this model's: {_AS_PRETRAINED}")


def _shaped(config: ModelConfig, vocab_size: int, replace_embeddings: bool) -> nn.Module:
    """The network, without values."""
    if config.architecture != "pretrained":
        return _build(config, vocab_size, 0, 0, replace_embeddings)
    hub = pretrained_config(config)
    if replace_embeddings:
        hub.get_text_config().vocab_size = vocab_size
    return _empty(hub)


def _empty(hub: Any) -> nn.Module:
    if isinstance(hub, AWDLSTMConfig):
        return AWDLSTM(hub)
    model: nn.Module = AutoModelForCausalLM.from_config(hub, trust_remote_code=False)
    return model


def _build(config: ModelConfig, vocab_size: int, bos_id: int, eos_id: int, replace_embeddings: bool) -> nn.Module:
    if config.architecture == "pretrained":
        return _pretrained(config, vocab_size, bos_id, eos_id, replace_embeddings)
    if config.architecture == "awd_lstm":
        shared = ("embedding_size", "hidden_size", "num_layers", "tie_embeddings", *DROPOUTS)
        settings = {name: getattr(config, name) for name in shared}
        if config.init_range is not None:
            settings["init_range"] = config.init_range
        return AWDLSTM(AWDLSTMConfig(vocab_size=vocab_size, **settings))
    gpt2 = GPT2Config(
        vocab_size=vocab_size,
        n_positions=config.max_length,
        n_embd=config.hidden_size,
        n_layer=config.num_layers,
        n_head=config.num_heads,
        initializer_range=config.init_range or 0.02,
        embd_pdrop=config.dropout_embedding,
        attn_pdrop=config.dropout_hidden,
        resid_pdrop=config.dropout_output,
        tie_word_embeddings=config.tie_embeddings,
        bos_token_id=bos_id,
        eos_token_id=eos_id,
    )
    return AutoModelForCausalLM.from_config(gpt2, attn_implementation="sdpa", dtype=torch.float32)


def _pretrained(config: ModelConfig, vocab_size: int, bos_id: int, eos_id: int, replace_embeddings: bool) -> nn.Module:
    hub = pretrained_config(config)
    for name, value in vars(hub).items():
        if isinstance(value, float) and name.endswith(("dropout", "pdrop")):
            setattr(hub, name, 0.0)
    with _said_by_transformers("model.path", config.path):  # attention as the architecture has it: not all have sdpa
        model = AutoModelForCausalLM.from_pretrained(
            config.path, config=hub, dtype=torch.float32, trust_remote_code=False
        )
    if replace_embeddings:
        _replace_embeddings(model, vocab_size, bos_id, eos_id)
    check_fits(config, model.get_input_embeddings().num_embeddings, vocab_size)
    _check_saves(model, config.path)
    return model


def pretrained_config(config: ModelConfig) -> Any:
    """The transformers configuration of a pretrained model; no weights are read.

    Raises: InputError if there is none, or the model reads fewer tokens than ``model.max_length``.
    """
    folder, stored = Path(config.path), []
    if folder.is_dir():
        with _unread("model.path", folder):
            stored = _check_files(folder)
    with _said_by_transformers("model.path", config.path):
        hub = AutoConfig.from_pretrained(config.path, trust_remote_code=False)
        longest = _positions(hub) or config.max_length
    with _unread("model.path", folder):
        _check_filled(folder, hub, stored)
    if longest < config.max_length:
        raise InputError("model.max_length", config.max_length, f"this model reads {longest} tokens at most")
    return hub


def _check_saves(model: Any, path: str) -> None:
    """Raises: InputError if the model could not be saved, before it is trained for nothing. Writes all but weights."""
    if getattr(model, "_hf_peft_config_loaded", False):  # of a hub name: a folder's files were looked at
        raise InputError("model.path", path, f"{_ADAPTER} {_MERGE}")
    try:
        with tempfile.TemporaryDirectory() as folder:
            model.save_pretrained(folder, state_dict={})
    except (OSError, MemoryError):
        raise
    except Exception as error:
        remedy = f"transformers loads this model, and cannot save it ({_said(error)}): mend its settings"
        raise InputError("model.path", path, remedy) from error


def check_fits(config: ModelConfig, num_rows: int, vocab_size: int) -> None:
    """Raises: InputError if a pretrained model has no embedding for some token of the vocabulary."""
    if num_rows < vocab_size:
        remedy = f"it knows {num_rows} tokens, the vocabulary has {vocab_size}: use the tokenizer it came with"
        raise InputError("model.path", config.path, remedy)


def _replace_embeddings(model: Any, num_tokens: int, bos_id: int, eos_id: int) -> None:
    """Rows for ``num_tokens`` tokens of another vocabulary, drawn as the model's were before it was trained."""
    model.resize_token_embeddings(num_tokens, mean_resizing=False)
    std = getattr(model.config, "initializer_range", 0.02)
    tables = [layer.weight for layer in (model.get_input_embeddings(), model.get_output_embeddings()) if layer]
    with torch.no_grad():
        for table in {id(table): table for table in tables}.values():  # one, if they are tied
            table.normal_(0.0, std)
    for settings in (model.config, model.generation_config):
        settings.bos_token_id, settings.eos_token_id = bos_id, eos_id
        settings.pad_token_id = None


@contextmanager
def _said_by_transformers(field: str, path: str) -> Iterator[None]:
    """Turns whatever a folder trips in transformers into an InputError that says what it was."""
    try:
        yield
    except MemoryError:
        raise
    except Exception as error:  # OSError, ValueError, KeyError, ImportError, SafetensorError, and what a file leads to
        remedy = (
            f"transformers loads no causal language model from here ({_said(error)}): give a folder with config.json"
        )
        raise InputError(field, path, f"{remedy} and safetensors, or a hub name while online") from error


def _said(error: Exception) -> str:
    return one_line(str(error).strip().partition("\n")[0], 300) or type(error).__name__


def save_model(model: nn.Module, path: str | Path) -> None:
    """Writes ``config.json`` and safetensors to the folder ``path``; LoRA is merged into a copy first.

    A transformers model can be read back by ``AutoModelForCausalLM.from_pretrained``, any by ``load_model``.
    """
    if hasattr(model, "merge_and_unload"):
        model = copy.deepcopy(model).merge_and_unload()  # type: ignore[operator]
    folder = Path(path)
    if isinstance(model, AWDLSTM):
        folder.mkdir(parents=True, exist_ok=True)
        safetensors.torch.save_model(model, str(folder / "model.safetensors"))
        (folder / "config.json").write_text(json.dumps(model.config_dict(), indent=2))
    else:
        model.save_pretrained(path)  # type: ignore[operator]
    for weights in folder.glob("*.safetensors"):  # which safetensors writes for the owner alone
        weights.chmod((folder / "config.json").stat().st_mode)


def longest_input(model: nn.Module) -> int | None:
    """Tokens that a network reads at most; None where it has no limit."""
    return None if isinstance(model, AWDLSTM) else _positions(getattr(model, "config", None))


def longest_of(folder: Path) -> int | None:
    """``longest_input`` of the network that is saved in ``folder``. Raises: InputError if none is."""
    hub = _settings(folder)
    return None if isinstance(hub, AWDLSTMConfig) else _positions(hub)


def _positions(hub: Any) -> int | None:
    """By a transformers configuration, whose text part may be a section of its own; Mamba and its like have no limit."""
    text = hub.get_text_config() if hasattr(hub, "get_text_config") else hub
    return getattr(text, "max_position_embeddings", None)


def load_model(path: str | Path) -> nn.Module:
    """Reads what ``save_model`` wrote: float32, on the CPU, in evaluation mode. Raises InputError if it cannot."""
    folder = Path(path)
    hub = _settings(folder)
    try:
        model = _filled(folder, hub).eval()
        with torch.no_grad():  # settings may be wrong in ways that only a pass meets
            model(input_ids=torch.zeros((1, min(2, longest_input(model) or 2)), dtype=torch.long))
    except MemoryError:
        raise
    except Exception as error:  # transformers, safetensors and torch: whatever a damaged file leads to
        raise _not_read("model", folder, type(error).__name__) from error
    return model


def _filled(folder: Path, hub: Any) -> nn.Module:
    if isinstance(hub, AWDLSTMConfig):
        network = AWDLSTM(hub)
        safetensors.torch.load_model(network, str(folder / "model.safetensors"))
        return network
    model, found = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, output_loading_info=True, trust_remote_code=False
    )
    if found["missing_keys"]:  # which transformers would leave at random values
        raise ValueError("weights are missing")
    return model


def _settings(folder: Path) -> Any:
    """What ``config.json`` says. Raises: InputError if it, or a file beside it, is not what it should be."""
    with _unread("model", folder):
        stored = _check_files(folder)
        settings = read_json(folder / "config.json", {"model_type": string()}, _OWN)
        if settings.pop("model_type") == "awd_lstm":
            hub: Any = _awd_lstm(folder, settings)
        else:
            try:
                hub = AutoConfig.from_pretrained(folder, trust_remote_code=False)
            except Exception as error:  # transformers: whatever a damaged file leads to
                raise InputError("config.json", str(folder), f"is damaged ({type(error).__name__}): {_OWN}") from error
        _check_filled(folder, hub, stored)
    return hub


def _awd_lstm(folder: Path, settings: dict[str, Any]) -> AWDLSTMConfig:
    read_json(folder / "config.json", _AWD_LSTM, _OWN)
    if not settings.keys() <= {field.name for field in dataclasses.fields(AWDLSTMConfig)}:
        raise InputError("config.json", str(folder / "config.json"), f"is damaged: {_OWN}")
    return AWDLSTMConfig(**settings)


def check_whole(folder: Path) -> None:
    """Raises: InputError if no network is saved in ``folder``, or not all of its weights are. They are counted, not read."""
    hub = _settings(folder)
    with _unread("model", folder):
        stored = _check_files(folder)
    if sum(stored) < max(1, _size(hub)[0]):  # a tied matrix is stored once, and counted once
        raise _not_read("model", folder, "weights are missing")


def _check_files(folder: Path) -> list[int]:
    """How many numbers each tensor in the folder's safetensors files has.

    Raises: InputError for a file that is no ordinary one, or no settings, or not as long as it says; OSError.
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
        elif file.name == _ADAPTER:
            raise InputError(file.name, str(file), _MERGE)
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


def _check_filled(folder: Path, hub: Any, stored: list[int]) -> None:
    """Raises: InputError if settings ask for a far larger network than the weights are, before one is made."""
    if not stored:
        return
    layers = hub.num_layers if isinstance(hub, AWDLSTMConfig) else getattr(hub, "num_hidden_layers", 0)
    parameters, buffers = (layers, 0) if isinstance(layers, int) and layers > len(stored) else _size(hub)
    most = max(len(stored), 2 * sum(stored))  # a tied matrix is stored once
    if parameters > most or buffers > max(_BUFFERS, 4 * most):
        raise InputError("config.json", str(folder / "config.json"), f"does not go with the weights: {_OWN}")


def _size(hub: Any) -> tuple[int, int]:
    """How many parameters a network has, and bytes of buffers; zeros for one that cannot be made without its values."""
    try:
        with torch.device("meta"), torch.random.fork_rng(devices=[]):
            network = _empty(hub)
            return sum(map(Tensor.numel, network.parameters())), sum(buffer.nbytes for buffer in network.buffers())
    except Exception:  # transformers and torch: what is wrong with it shows when it is made
        return 0, 0


@contextmanager
def _unread(field: str, folder: Path) -> Iterator[None]:
    """Names the folder, as ``field``, for what is wrong with a file in it."""
    try:
        yield
    except InputError as error:
        raise _not_read(field, folder, f"{error.field} {error.remedy}") from error.__cause__
    except OSError as error:
        raise _not_read(field, folder, error.strerror or type(error).__name__) from error


def _not_read(field: str, folder: Path, reason: str) -> InputError:
    return InputError(field, str(folder), f"no model can be read here ({reason})")
