"""What this machine has, found without torch.

Peak rates of known accelerators, from their makers' data sheets: dense, with matrix units where a format has them.

Sources: NVIDIA's data sheets of V100, T4, A10, A30, A40, A100, L4, L40, L40S, H100, H200, GH200 and HGX B200; AMD's of
MI300X; of the GeForce RTX 4090 NVIDIA's Ada GPU architecture paper (fp16 with fp32 accumulation). What a sheet gives
with sparsity is halved. A slice of a device (MIG) has another name and is not known.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass

from scaling.hardware.nvml import open_nvml


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
    pynvml = open_nvml()
    if pynvml is None:
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


_T = 1e12


def _peaks(
    fp64: float | None, fp32: float, tf32: float | None, half: float, *, bf16: bool = True
) -> Mapping[str, float]:
    """TFLOP/s by format; `half` is fp16's, and bf16's where the device has it."""
    rates = {"fp64": fp64, "fp32": fp32, "tf32": tf32, "fp16": half, "bf16": half if bf16 else None}
    return {name: _T * rate for name, rate in rates.items() if rate is not None}


_HOPPER = _peaks(67, 67, 494.5, 989.5)
_HOPPER_NVL = _peaks(60, 60, 417.5, 835.5)
_KNOWN: tuple[tuple[str, Mapping[str, float]], ...] = (
    (r"V100-SXM\d-\d+GB", _peaks(7.8, 15.7, None, 125, bf16=False)),
    (r"V100-PCIE-\d+GB", _peaks(7, 14, None, 112, bf16=False)),
    (r"V100S-PCIE-\d+GB", _peaks(8.2, 16.4, None, 130, bf16=False)),
    (r"T4", _peaks(None, 8.1, None, 65, bf16=False)),
    (r"A10", _peaks(None, 31.2, 62.5, 125)),
    (r"A30", _peaks(10.3, 10.3, 82, 165)),
    (r"A40", _peaks(None, 37.4, 74.8, 149.7)),
    (r"A100-(SXM4|PCIE|PCIe)-\d+GB|A100 80GB PCIe", _peaks(19.5, 19.5, 156, 312)),
    (r"L4", _peaks(None, 30.3, 60, 121)),
    (r"L40", _peaks(None, 90.5, 90.5, 181)),
    (r"L40S", _peaks(None, 91.6, 183, 362)),
    (r"H100 80GB HBM3", _HOPPER),
    (r"H100 PCIe", _peaks(51, 51, 378, 756.5)),
    (r"H100 NVL", _HOPPER_NVL),
    (r"H200", _HOPPER),
    (r"H200 NVL", _HOPPER_NVL),
    (r"GH200 (480GB|144G HBM3e)", _HOPPER),
    (r"B200", _peaks(37, 75, 1125, 2250)),
    (r"GeForce RTX 4090", _peaks(None, 82.6, 82.6, 165.2)),
    (r"Instinct MI300X.*", _peaks(163.4, 163.4, 653.7, 1307.4)),
)
MAKERS = r"(?:NVIDIA |Tesla |AMD )?"
"""What may stand before a device's name."""


def peak_flop_s(device_name: str, precision: str) -> float | None:
    """The data sheet's FLOP/s in a format (fp64, fp32, tf32, bf16, fp16); None where device or format is not known."""
    for name, peaks in _KNOWN:
        if re.fullmatch(f"{MAKERS}(?:{name})", device_name):
            return peaks.get(precision)
    return None
