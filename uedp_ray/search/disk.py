"""Estimates from its configuration how much a sweep will write: models and checkpoints of its trials, which are kept.

Example:

    run_bytes(config.base)          # bytes of a run's model and checkpoint: 4 per parameter, three times that more with Adam
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
    """Returns a warning if ``runs`` runs like ``config`` will probably not fit on the disk of ``folder``."""
    each = run_bytes(config)
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free
    if each is None or runs * each <= free:
        return None
    amount = f"{runs} runs of about {each / 1e9:.2g} GB each"
    return (
        f"the disk will fill: {amount}, and {free / 1e9:.3g} GB are free; the search stops then, and --resume continues"
    )


_FLOAT = 4


def run_bytes(config: RunConfig) -> int | None:
    """Returns the bytes of a finished run: its model, and its checkpoint (the trained part and the optimizer's moments).

    The model has shapes but no values (torch's ``meta`` device). A word vocabulary counts at its largest. None if the size
    is not in the configuration: a published tokenizer, or a model that is not in a local folder.
    """
    model = config.model
    if model.architecture == "pretrained":
        files = list(Path(model.path).glob("*.safetensors"))
        return sum(file.stat().st_size for file in files) or None  # the checkpoint on top of it is small only for LoRA
    if config.vocabulary.kind == "tokenizer":
        return None
    with torch.device("meta"):
        shape = dataclasses.replace(model, warm_start="")
        network = build_model(shape, vocab_size=config.vocabulary.max_size, bos_id=0, eos_id=0, seed=0)
        whole = sum(parameter.numel() for parameter in network.parameters())
        chosen = select_trainable(network, shape, seed=0)
        trained = sum(parameter.numel() for parameter in chosen.parameters() if parameter.requires_grad)
    return _FLOAT * (whole + trained * (1 + sum(kept_by(config.training).values())))
