"""What this machine has, found without torch; its load, memory, clocks and network cards from /proc and /sys.

Peak rates of known accelerators are from their makers' data sheets: dense, with matrix units where a format has them.
Sources: NVIDIA's data sheets of V100, T4, A10, A30, A40, A100, L4, L40, L40S, H100, H200, GH200 and HGX B200; AMD's of
MI300X; of the GeForce RTX 4090 NVIDIA's Ada GPU architecture paper (fp16 with fp32 accumulation). What a sheet gives
with sparsity is halved. A slice of a device (MIG) has another name and is not known.
"""

from __future__ import annotations

import itertools
import os
import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scaling.hardware.nvml import open_nvml
from scaling.reading import system_number, system_text


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
    hidden = visible is not None and visible.strip() in ("", "-1", "NoDevFiles")
    driver = any(os.path.exists(path) for path in ("/proc/driver/nvidia", "/dev/nvidiactl"))  # noqa: PTH110
    pynvml = open_nvml() if driver and not hidden else None
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


_TICK_NS = 10_000_000
_BRIDGE_CLASS = "0x0604"
_ACS = 0x000D
_SOURCE_VALIDATION = 1


class Host:
    """One host. `root` is the folder with proc/ and sys/."""

    def __init__(self, root: Path = Path("/")) -> None:
        self._root = root

    def facts(self) -> dict[str, Any]:
        """What does not change while a launch runs."""
        return {"nics": self._nics(), "nodes": self._nodes(), "acs_bridges": self._acs_bridges()}

    def sample(self) -> dict[str, Any]:
        """What changes. Times are ns since the host started; counters are the kernel's own."""
        return {
            **self._cpu_times(),
            "cpu_mhz": self._cpu_mhz(),
            "pressure_ns": {name: self._pressure(name) for name in ("cpu", "memory", "io")},
            "memory_available_bytes": self._memory_available(),
            "temperature_c": self._temperature(),
        }

    def pci_path(self, address: str) -> list[str]:
        """The PCI addresses on the way to a device, from the name of its root complex down."""
        link = self._root / "sys/bus/pci/devices" / address
        return [p for p in link.resolve().parts if p.startswith("pci") or ":" in p] if link.exists() else []

    def _nodes(self) -> dict[str, str]:
        """The processors of each NUMA node, as the kernel writes them."""
        nodes = sorted((self._root / "sys/devices/system/node").glob("node[0-9]*"))
        return {n.name[4:]: system_text(n / "cpulist") or "" for n in nodes}

    def _nics(self) -> list[dict[str, Any]]:
        """InfiniBand devices, and network interfaces that are real devices."""
        nics = []
        for kind in ("infiniband", "net"):
            for entry in sorted((self._root / "sys/class" / kind).glob("*")):
                device = entry / "device"
                if device.exists():
                    place, node = device.resolve().name, _node(system_number(device / "numa_node"))
                    nic = {"name": entry.name, "kind": kind, "pci": self.pci_path(place), "numa_node": node}
                    nics.append(nic)
        return nics

    def numa_node(self, address: str) -> int | None:
        """The NUMA node of a PCI device."""
        return _node(system_number(self._root / "sys/bus/pci/devices" / address / "numa_node"))

    def _acs_bridges(self) -> int | None:
        """How many PCI bridges send peer-to-peer traffic through the root complex; None where only root may know."""
        count = None
        for device in (self._root / "sys/bus/pci/devices").glob("*"):
            if not (system_text(device / "class") or "").startswith(_BRIDGE_CLASS):
                continue
            try:
                config = (device / "config").read_bytes()
            except OSError:
                continue
            if len(config) > 256:  # other users than root get less
                count = (count or 0) + _redirects(config)
        return count

    def _cpu_times(self) -> dict[str, int | None]:
        """Sums over the processors since the host started. Stolen: the hypervisor ran something else meanwhile."""
        first = (system_text(self._root / "proc/stat") or "").split("\n")[0].split()
        if len(first) < 9:
            return {"cpu_busy_ns": None, "cpu_stolen_ns": None}
        user, nice, system, _idle, _wait, irq, soft, steal = (int(ticks) * _TICK_NS for ticks in first[1:9])
        return {"cpu_busy_ns": user + nice + system + irq + soft + steal, "cpu_stolen_ns": steal}

    def _cpu_mhz(self) -> int | None:
        """The mean clock of the processors."""
        files = (self._root / "sys/devices/system/cpu").glob("cpu[0-9]*/cpufreq/scaling_cur_freq")
        khz = [f for f in map(system_number, files) if f]
        return round(sum(khz) / len(khz) / 1000) if khz else None

    def _pressure(self, name: str) -> int | None:
        match = re.search(r"some .*total=(\d+)", system_text(self._root / "proc/pressure" / name) or "")
        return int(match.group(1)) * 1000 if match else None

    def _memory_available(self) -> int | None:
        match = re.search(r"MemAvailable:\s+(\d+) kB", system_text(self._root / "proc/meminfo") or "")
        return int(match.group(1)) * 1024 if match else None

    def _temperature(self) -> float | None:
        zones = (self._root / "sys/class/thermal").glob("thermal_zone*/temp")
        readings = [t for t in map(system_number, zones) if t is not None]
        return max(readings) / 1000 if readings else None


def distance(a: list[str], b: list[str], *, nodes: tuple[int | None, int | None]) -> str | None:
    """How far apart two PCI paths are, in the terms of `nvidia-smi topo -m`; None where it is not known.

    PIX: at most one bridge between them; PXB: several, but not the host's; PHB: through the host
    bridge; NODE: between host bridges (a socket has several) of one NUMA node; SYS: between nodes.
    """
    if not a or not b:
        return None
    common = sum(1 for _ in itertools.takewhile(lambda both: both[0] == both[1], zip(a, b, strict=False)))
    if common == 0:
        return None if None in nodes else "NODE" if nodes[0] == nodes[1] else "SYS"
    if common == 1:
        return "PHB"
    return "PIX" if max(len(a), len(b)) - common <= 2 else "PXB"


def _redirects(config: bytes) -> bool:
    """Whether Access Control Services validate sources at this bridge (PCI Express base specification, 7.7.8)."""
    offset = 0x100
    while 0x100 <= offset <= len(config) - 8:
        (header,) = struct.unpack_from("<I", config, offset)
        if header & 0xFFFF == _ACS:
            (control,) = struct.unpack_from("<H", config, offset + 6)
            return bool(control & _SOURCE_VALIDATION)
        offset = header >> 20
    return False


def _node(value: int | None) -> int | None:
    """None for -1, which the kernel writes where a machine has no nodes."""
    return None if value is None or value < 0 else value
