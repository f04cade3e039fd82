"""What this machine has, found without torch."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One CUDA device; `capability` is None where the driver does not give it."""

    name: str
    capability: tuple[int, int] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Cores that this process may use, and CUDA devices that it can see."""

    cores: int
    gpus: tuple[Gpu, ...] = ()
    allocated_gpus: int | None = None
    """This node's GPUs in the Slurm job that this runs in; None outside of a job."""


def find_machine() -> Machine:
    """Find the cores by affinity, and the devices by NVML as far as CUDA_VISIBLE_DEVICES shows them."""
    allocated = os.environ.get("SLURM_GPUS_ON_NODE", "")
    return Machine(
        cores=len(os.sched_getaffinity(0)),
        gpus=_gpus(),
        allocated_gpus=int(allocated) if allocated.isdigit() else None,
    )


def _gpus() -> tuple[Gpu, ...]:
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None and visible.strip() in ("", "-1", "NoDevFiles"):
        return ()
    if not os.path.exists("/proc/driver/nvidia") and not os.path.exists("/dev/nvidiactl"):  # noqa: PTH110
        return ()
    import pynvml as nvml  # noqa: PLC0415  # slow, and most machines without a GPU end before

    pynvml: Any = nvml  # it carries no types

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return ()
    try:
        gpus = []
        for index in range(pynvml.nvmlDeviceGetCount()):
            try:
                handle = pynvml.nvmlDeviceGetHandleByIndex(index)
                name = pynvml.nvmlDeviceGetName(handle)
            except pynvml.NVMLError:
                continue  # off the bus: nothing can run on it, and `scaling doctor` reports it
            try:
                capability = tuple(pynvml.nvmlDeviceGetCudaComputeCapability(handle))
            except pynvml.NVMLError:
                capability = None
            gpus.append(Gpu(name=name if isinstance(name, str) else name.decode(), capability=capability))
    finally:
        pynvml.nvmlShutdown()
    if visible is not None:
        gpus = gpus[: len([v for v in visible.split(",") if v.strip()])]
    return tuple(gpus)
