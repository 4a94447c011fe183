"""How much a sweep will write, as far as its configuration tells: models and checkpoints of its trials, which stay.

Example:

    run_bytes(config.base)          # bytes of a run's model and checkpoint: 4 a parameter, thrice again with Adam
"""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

import torch

from uedp_ray.config import RunConfig
from uedp_ray.models.build import build_model
from uedp_ray.models.trainable import select_trainable
from uedp_ray.training.optimizers import kept_by


def too_full(config: RunConfig, runs: int, folder: Path) -> str | None:
    """A line, if ``runs`` runs like ``config`` will hardly fit the disk of ``folder``."""
    each = run_bytes(config)
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free
    if each is None or runs * each <= free:
        return None
    amount = f"{runs} runs of about {each / 1e9:.2g} GB each"
    return (
        f"the disk will fill: {amount}, and {free / 1e9:.3g} GB are free; the search stops then, and --resume goes on"
    )


_FLOAT = 4


def run_bytes(config: RunConfig) -> int | None:
    """Bytes of a finished run: its model, and what its checkpoint holds, the trained part and the optimizer's moments of it.

    The model is shaped, not filled (torch's ``meta`` device). A word vocabulary counts at its largest. None where the size
    is not in the configuration: a published tokenizer, a model that is not in a folder here.
    """
    model = config.model
    if model.architecture == "pretrained":
        files = list(Path(model.path).glob("*.safetensors"))
        return sum(file.stat().st_size for file in files) or None  # its checkpoint on top is small for LoRA only
    if config.vocabulary.kind == "tokenizer":
        return None
    with torch.device("meta"):
        shape = dataclasses.replace(model, warm_start="")
        network = build_model(shape, vocab_size=config.vocabulary.max_size, bos_id=0, eos_id=0, seed=0)
        whole = sum(parameter.numel() for parameter in network.parameters())
        chosen = select_trainable(network, shape, seed=0)
        trained = sum(parameter.numel() for parameter in chosen.parameters() if parameter.requires_grad)
    return _FLOAT * (whole + trained * (1 + sum(kept_by(config.training).values())))
