"""What a machine says of the cores that compute on it, and of what libraries were told: kernels are chosen by it.

>>> from uedp_ray.training.machine import cores
>>> cores() == cores()    # nothing in it differs between cores, or from moment to moment
True
"""

from __future__ import annotations

import os
import re
from pathlib import Path

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
