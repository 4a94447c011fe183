"""Memory and device errors, reported as problems that the user can fix: starting the same work again does not help.

    >>> import torch
    >>> from uedp_ray.errors import InputError
    >>> from uedp_ray.training.faults import blamed
    >>> try:
    ...     with blamed("training.batch_tokens", 4096):
    ...         raise torch.OutOfMemoryError("CUDA out of memory.")
    ... except InputError as error:
    ...     error.field, error.value, error.remedy.partition(":")[0]
    ('training.batch_tokens', 4096, 'the GPU ran out of memory')
    >>> with blamed("training.batch_tokens", 4096):
    ...     raise RuntimeError("shapes do not fit")    # what a user cannot fix stays as it is
    Traceback (most recent call last):
        ...
    RuntimeError: shapes do not fit

Errors of the network between workers (NCCL, gloo) are not among them: they are how other nodes see the loss of a node.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from uedp_ray.errors import DeviceError, InputError, is_of_memory
from uedp_ray.updates.base import UNORDERED

_BROKEN = ("CUDA error", "CUDA driver error", "cuDNN error", "CUDNN_STATUS", "CUBLAS_STATUS", "device-side assert")


@contextmanager
def blamed(setting: str, value: object) -> Iterator[None]:
    """Raises InputError on ``setting`` if memory ran out in the block, DeviceError if a device failed."""
    try:
        yield
    except Exception as error:
        found = _users_error(error, setting, value)
        if found is None:
            raise
        raise found from error


def _users_error(error: Exception, setting: str, value: object) -> InputError | None:
    text = str(error)
    if isinstance(error, InputError | torch.distributed.DistError):
        return None
    if is_of_memory(error):
        where = "the GPU" if "cuda" in text.lower() else "this machine"
        remedy = f"{where} ran out of memory: lower it, use a smaller model, or give it more memory; --resume continues"
        return InputError(setting, value, remedy)
    broken = isinstance(error, RuntimeError) and any(mark in text for mark in _BROKEN)
    if broken or isinstance(error, torch.AcceleratorError):
        said = text.splitlines()[0] if text else type(error).__name__  # the driver's message: no private text
        remedy = f"the GPU failed ({said}): check it, or use another; --resume continues"
        return DeviceError("training.device", "cuda", remedy)
    if isinstance(error, RuntimeError) and UNORDERED in text:
        remedy = "a kernel of this network adds in no fixed order on a GPU, so no bound holds: train on cpu"
        return InputError("training.device", "cuda", remedy)
    return None
