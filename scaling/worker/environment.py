"""What a rank runs on: versions, device, memory, and the environment that changes results."""

from __future__ import annotations

import os
import platform
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from scaling.secrets import is_secret
from scaling.spec import Spec
from scaling.worker.devices import Device

SCHEMA = 1
_PREFIXES = (
    "NCCL_",
    "GLOO_",
    "TORCH_",
    "TORCHELASTIC_",
    "OMP_",
    "MKL_",
    "KMP_",
    "GOMP_",
    "DNNL_",
    "ONEDNN_",
    "ATEN_",
    "NVIDIA_TF32",
    "UCX_",
    "CUDA_",
    "CUBLAS_",
    "PYTORCH_",
    "SLURM_",
)


def describe(spec: Spec, rank: int, host: int, module: torch.nn.Module, device: Device) -> dict[str, Any]:
    """Everything that goes into env-<r>.json. Names that smell of secrets are left out."""
    parameters = [p for p in module.parameters() if p.requires_grad]
    return {
        "schema": SCHEMA,
        "rank": rank,
        "host": host,
        "hostname": platform.node(),
        "python": sys.version.split()[0],
        "torch": torch.__version__,
        "kernel": platform.release(),
        "machine": platform.machine(),
        "cpu": cpu_name(),
        "cores": len(os.sched_getaffinity(0)),
        "threads": torch.get_num_threads(),
        "device": spec.topology.device,
        "backend": spec.topology.backend,
        "driver": driver_version(),
        "cudnn": torch.backends.cudnn.version(),  # type: ignore[no-untyped-call]
        **device.facts(),
        "parameters": sum(p.numel() for p in parameters),
        "parameter_tensors": len(parameters),
        "parameter_bytes": sum(p.numel() * p.element_size() for p in parameters),
        "buffers_bytes": sum(b.numel() * b.element_size() for b in module.buffers()),
        "environment": recorded(spec.env),
    }


def recorded(also: Iterable[str] = ()) -> dict[str, str]:
    """Variables that change results or speed, and those named in `also`; never one that smells of a secret.

    Where NCCL's log goes changes neither, and is another place in every launch.
    """
    names = set(also)
    return {
        k: v
        for k, v in sorted(os.environ.items())
        if (k.startswith(_PREFIXES) or k in names) and k != "NCCL_DEBUG_FILE" and not is_secret(k)
    }


def driver_version(root: Path = Path("/")) -> str | None:
    """Of NVIDIA's kernel module, as /proc has it."""
    try:
        text = (root / "proc/driver/nvidia/version").read_text(encoding="utf-8")
    except OSError:
        return None
    found = re.search(r"Kernel Module[^0-9]*([0-9][0-9.]+)", text)
    return found.group(1) if found else None


def cpu_name() -> str:
    """As /proc/cpuinfo has it."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:  # noqa: PTH123
            return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or "unknown"
