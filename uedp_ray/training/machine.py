"""What a process says of its machine and code: kernels are chosen by it, and so the last bits of what they compute.

>>> import torch
>>> from uedp_ray.training.machine import cores, kernels
>>> cores() == cores()    # nothing in it differs between cores, or from moment to moment
True
>>> kernels(torch.device("cpu")) == kernels(torch.device("cpu"))
True
"""

from __future__ import annotations

import functools
import hashlib
import os
import platform
import re
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

import uedp_ray

CPU = Path("/proc/cpuinfo")
_PASSING = re.compile(r"(cpu MHz|bogomips|processor|core id|apicid|initial apicid|physical id)\s*:", re.IGNORECASE)
"""Lines of ``CPU`` that differ between cores, or from moment to moment."""
_TOLD = re.compile(
    r"((ACL|AT|ATEN|BLAS|BLIS|CUBLAS|CUBLASLT|CUDNN|DNNL|FLEXIBLAS|GLIBC|GOMP|GOTO|KMP|LD|LIBOMP|MALLOC|MKL|OMP|ONEDNN|OPENBLAS"
    r"|PYTHON|PYTORCH|TORCH|VECLIB|XNNPACK)_.*|NVIDIA_TF32_OVERRIDE)"
)
"""Environment variables by which libraries choose kernels, or are chosen."""


def told() -> list[tuple[str, str]]:
    """What environment variables tell the libraries that compute, in order."""
    return sorted((name, value) for name, value in os.environ.items() if _TOLD.fullmatch(name))


def cores() -> list[str]:
    """Their model, and what they can do; nothing on a system that has no ``CPU``."""
    lines = CPU.read_text().splitlines() if CPU.is_file() else []
    return sorted({line for line in lines if line and not _PASSING.match(line)})


def kernels(device: torch.device) -> tuple[Any, ...]:
    """All that is known to decide which kernels compute, in how many threads, and what has them called."""
    backends = torch.backends
    return (
        _source(),
        [(name, metadata.version(name)) for name in ("numpy", "peft", "torch", "transformers")],
        (torch.version.git_version, torch.__config__.show(), torch.__config__.parallel_info()),
        (platform.machine(), platform.processor(), platform.python_version(), platform.libc_ver(), cores(), told()),
        (
            backends.cpu.get_cpu_capability(),
            backends.mkldnn.is_available() and backends.mkldnn.enabled,
            torch.get_float32_matmul_precision(),
            str(torch.get_default_dtype()),
            torch.are_deterministic_algorithms_enabled(),
            backends.cuda.flash_sdp_enabled(),
            backends.cuda.mem_efficient_sdp_enabled(),
            backends.cuda.math_sdp_enabled(),
        ),
        _of_gpu(device) if device.type == "cuda" else (),
    )


def _of_gpu(device: torch.device) -> tuple[Any, ...]:
    found = torch.cuda.get_device_properties(device)  # its own number is another on each
    model = found.name, found.major, found.minor, found.multi_processor_count
    return *model, torch.version.cuda, torch.backends.cudnn.version()


@functools.cache
def _source() -> str:
    """A digest of this package."""
    digest, root = hashlib.sha256(), Path(uedp_ray.__file__).parent
    for path in sorted(root.rglob("*.py")):
        digest.update(f"{path.relative_to(root)}\0".encode() + path.read_bytes() + b"\0")
    return digest.hexdigest()
