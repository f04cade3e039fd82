"""Describe a rank's environment: versions, device, memory, and the variables that change results."""

from __future__ import annotations

import os
import platform
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from scaling.reading import system_text
from scaling.settings.environment import NOT_RECORDED, is_recorded, is_secret, is_secret_value
from scaling.settings.run import Spec
from scaling.worker.accelerator.accelerator import Accelerator

SCHEMA = 1


def describe(
    spec: Spec,
    rank: int,
    host: int,
    module: torch.nn.Module,
    device: Accelerator,
    tokens_per_sample: int | None = None,
) -> dict[str, Any]:
    """What a rank runs on, as its environment file holds it. Variables that may hold secrets are left out."""
    parameters = [p for p in module.parameters() if p.requires_grad]
    return {
        "schema": SCHEMA,
        "rank": rank,
        "host": host,
        **machine(device),
        "cores": len(os.sched_getaffinity(0)),
        "threads": torch.get_num_threads(),
        "device": spec.topology.device,
        "backend": spec.topology.backend,
        "parameters": sum(p.numel() for p in parameters),
        "parameter_tensors": len(parameters),
        "parameter_bytes": sum(p.numel() * p.element_size() for p in parameters),
        "buffers_bytes": sum(b.numel() * b.element_size() for b in module.buffers()),
        "tokens_per_sample": tokens_per_sample,
        "environment": recorded(spec.env),
    }


def machine(device: Accelerator, root: Path = Path("/")) -> dict[str, Any]:
    """The machine and the versions on it; `root` holds proc/."""
    return {
        "hostname": platform.node(),
        "python": sys.version.split()[0],
        "torch": torch.__version__,
        "kernel": platform.release(),
        "machine": platform.machine(),
        "cpu": cpu_name(),
        "driver": driver_version(root),
        "cudnn": torch.backends.cudnn.version(),  # type: ignore[no-untyped-call]
        **device.facts(),
    }


def recorded(also: Iterable[str] = ()) -> dict[str, str]:
    """Variables that change results or speed, and those named in `also`, except those that may hold a secret."""
    names = set(also) - set(NOT_RECORDED)
    return {
        k: v
        for k, v in sorted(os.environ.items())
        if (is_recorded(k) or k in names) and not is_secret(k) and not is_secret_value(v)
    }


def driver_version(root: Path = Path("/")) -> str | None:
    """Version of NVIDIA's kernel module from /proc; None without one."""
    text = system_text(root / "proc/driver/nvidia/version") or ""
    # "... Module for x86_64  580.159.04  Release ..."
    match = re.search(r"Kernel Module.*?\s([0-9]+\.[0-9.]+)\s", text)
    return match.group(1) if match else None


def cpu_name() -> str:
    """The processor's name from /proc/cpuinfo."""
    match = re.search(r"^model name\s*: (.*)", system_text(Path("/proc/cpuinfo")) or "", re.MULTILINE)
    return match[1].strip() if match else platform.processor() or "unknown"
