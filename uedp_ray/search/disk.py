"""The disk that a sweep takes: an estimate from its configuration, and what goes once a run has ended.

Example:

    run_bytes(config.base)    # bytes of a run's model and checkpoint: 4 per parameter, three times that more with Adam
"""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path
from typing import NamedTuple

import torch

from uedp_ray.config import RunConfig
from uedp_ray.models.build import build_model
from uedp_ray.models.trainable import select_trainable
from uedp_ray.training.checkpoint import drop_checkpoint
from uedp_ray.training.optimizers import kept_by
from uedp_ray.training.rundir import RunDir


class RunBytes(NamedTuple):
    """What a run writes that grows with its network, in bytes."""

    model: int
    checkpoint: int
    """The trained part, and the optimizer's moments."""


def drop_ended(run: RunDir) -> None:
    """Deletes what a run of a sweep that has ended for good is not read for any more: its checkpoint, from which none
    resumes, and the weights of its sentences. At a URL everything stays.

    The run is finished, so that what was trained is in its model, or its search has recorded that it ended otherwise.
    """
    if not run.storage.is_copy:
        drop_checkpoint(run.checkpoint)
        run.sentence_weight.unlink(missing_ok=True)


def too_full(config: RunConfig, runs: int, folder: Path, *, at_once: int | None = None) -> str | None:
    """Returns a warning if ``runs`` runs like ``config`` will probably not fit on the disk of ``folder``.

    ``at_once``: how many of them have a checkpoint, and another while that is written, as those that ended have none; None:
    all keep theirs.
    """
    each = run_bytes(config)
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free
    if each is None:
        return None
    kept = sum(each) if at_once is None else each.model
    beside = 0 if at_once is None else 2 * at_once * each.checkpoint
    if runs * kept + beside <= free:
        return None
    amount = f"{runs} runs of about {kept / 1e9:.2g} GB each"
    amount += f" and {beside / 1e9:.2g} GB beside them" if beside else ""
    return (
        f"the disk will fill: {amount}, and {free / 1e9:.3g} GB are free; the search stops then, and --resume continues"
    )


_FLOAT = 4


def run_bytes(config: RunConfig) -> RunBytes | None:
    """Returns the bytes of a run's model and of its last checkpoint.

    The model has shapes but no values (torch's ``meta`` device). A word vocabulary counts at its largest. None if the size
    is not in the configuration: a published tokenizer, or a model that is not in a local folder.
    """
    model = config.model
    if model.architecture == "pretrained":
        files = list(Path(model.path).glob("*.safetensors"))
        model_bytes = sum(file.stat().st_size for file in files)
        return RunBytes(model_bytes, 0) if model_bytes else None  # its checkpoint is small only for LoRA
    if config.vocabulary.kind == "tokenizer":
        return None
    with torch.device("meta"):
        shape = dataclasses.replace(model, warm_start="")
        network = build_model(shape, vocab_size=config.vocabulary.max_size, bos_id=0, eos_id=0, seed=0)
        whole = sum(parameter.numel() for parameter in network.parameters())
        chosen = select_trainable(network, shape, seed=0)
        trained = sum(parameter.numel() for parameter in chosen.parameters() if parameter.requires_grad)
    return RunBytes(_FLOAT * whole, _FLOAT * trained * (1 + sum(kept_by(config.training).values())))
