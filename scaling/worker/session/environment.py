"""Describe a rank's environment: versions, device, memory, limits, placement, flags, variables that change results."""

from __future__ import annotations

import contextlib
import os
import platform
import re
import resource
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from scaling.reading import system_number, system_text
from scaling.settings.environment import NOT_RECORDED, is_recorded, is_secret, is_secret_value
from scaling.units import spans
from scaling.worker.accelerator.accelerator import Accelerator
from scaling.worker.accelerator.cuda import cudnn_tf32, matmul_tf32


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


_LIMITS = {
    "open_files": resource.RLIMIT_NOFILE,
    "locked_memory_bytes": resource.RLIMIT_MEMLOCK,
    "processes": resource.RLIMIT_NPROC,
    "stack_bytes": resource.RLIMIT_STACK,
}
_UNLIMITED_V1 = 2**60
"""cgroup v1 writes the largest page-aligned number for "no limit"."""


def facts(device: Accelerator, root: Path = Path("/")) -> dict[str, Any]:
    """All facts of this rank, in one flat dictionary; `root` holds proc/, sys/ and dev/."""
    return {
        **machine(device, root),
        "blas": _blas(),
        **_placement(root),
        **_cgroup(root),
        **{f"limit.{name}": _limit(number) for name, number in _LIMITS.items()},
        **_memory(root),
        **_platform(root),
        **_flags(),
        **{f"env.{name}": value for name, value in recorded().items()},
    }


def _flags() -> dict[str, Any]:
    """Torch's switches that change results or speed."""
    cuda, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    return {
        "flags.threads": torch.get_num_threads(),
        "flags.cuda_matmul_tf32": matmul_tf32(),
        "flags.cudnn_tf32": cudnn_tf32(),
        "flags.cudnn_enabled": cudnn.enabled,
        "flags.cudnn_benchmark": cudnn.benchmark,
        "flags.cudnn_deterministic": cudnn.deterministic,
        "flags.fp16_reduced_precision_reduction": cuda.allow_fp16_reduced_precision_reduction,
        "flags.bf16_reduced_precision_reduction": cuda.allow_bf16_reduced_precision_reduction,
        "flags.float32_matmul_precision": _matmul_precision(),
        "flags.deterministic_algorithms": torch.are_deterministic_algorithms_enabled(),
        "flags.mkldnn": bool(torch.backends.mkldnn.enabled),
        "flags.cpu_capability": torch.backends.cpu.get_cpu_capability(),
    }


def _blas() -> str | None:
    """The library that torch was built with for matrix products on the CPU."""
    named = re.search(r"BLAS_INFO=(\w+)", torch.__config__.show())
    return named.group(1) if named else None


def _matmul_precision() -> str | None:
    with contextlib.suppress(RuntimeError):  # torch raises if old and new switches were mixed
        return torch.get_float32_matmul_precision()
    return None


def _placement(root: Path) -> dict[str, Any]:
    cpus = os.sched_getaffinity(0)
    nodes = {
        int(node.name[4:])
        for node in (root / "sys/devices/system/node").glob("node[0-9]*")
        if cpus & set(numbers(system_text(node / "cpulist") or ""))
    }
    return {"cores": len(cpus), "cpus": ranges(cpus), "numa_nodes": ranges(nodes) if nodes else None}


def _cgroup(root: Path) -> dict[str, Any]:
    """CPU share (cores) and memory (bytes) that cgroups v2 or v1 allow: the tightest limits on this process' path."""
    cores: list[float] = []
    memory: list[int] = []
    base = root / "sys/fs/cgroup"
    for line in (system_text(root / "proc/self/cgroup") or "").splitlines():
        _, controllers, path = line.split(":", 2)
        inner = Path(path.lstrip("/"))
        for part in (inner, *inner.parents):
            folder = base / (controllers or ".") / part
            quota = (system_text(folder / "cpu.max") or "").split()
            if len(quota) == 2 and quota[0] != "max":
                cores.append(int(quota[0]) / int(quota[1]))
            share = system_number(folder / "cpu.cfs_quota_us")
            period = system_number(folder / "cpu.cfs_period_us")
            if share and period and share > 0:
                cores.append(share / period)
            for name in ("memory.max", "memory.limit_in_bytes"):
                limit = system_number(folder / name)
                if limit is not None and limit < _UNLIMITED_V1:
                    memory.append(limit)
    return {"cgroup_cores": min(cores, default=None), "cgroup_memory_bytes": min(memory, default=None)}


def _limit(number: int) -> int | None:
    """The soft limit; None is unlimited."""
    soft = resource.getrlimit(number)[0]
    return None if soft == resource.RLIM_INFINITY else soft


def _memory(root: Path) -> dict[str, Any]:
    total = re.search(r"MemTotal:\s+(\d+) kB", system_text(root / "proc/meminfo") or "")
    shared = None
    with contextlib.suppress(OSError):
        stat = os.statvfs(root / "dev/shm")
        shared = stat.f_frsize * stat.f_blocks
    return {"memory_bytes": int(total.group(1)) * 1024 if total else None, "shared_memory_bytes": shared}


def _platform(root: Path) -> dict[str, Any]:
    cpufreq = root / "sys/devices/system/cpu/cpu0/cpufreq"
    iommu = root / "sys/class/iommu"
    khz = system_number(cpufreq / "cpuinfo_max_freq")
    return {
        "governor": system_text(cpufreq / "scaling_governor"),
        "cpu_max_mhz": khz // 1000 if khz else None,
        "iommu": any(iommu.iterdir()) if iommu.is_dir() else False,
        "virtual_machine": " hypervisor " in (system_text(root / "proc/cpuinfo") or ""),
    }


def numbers(text: str) -> list[int]:
    """Read `0-2,5` as [0, 1, 2, 5]."""
    ids: list[int] = []
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        ids += range(int(first), int(last or first) + 1)
    return ids


def ranges(values: set[int]) -> str:
    """Write {0, 1, 2, 5} as `0-2,5`."""
    return ",".join(spans(values))
