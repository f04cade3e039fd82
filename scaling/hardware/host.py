"""Read a host's load, memory, clocks and network cards from /proc and /sys."""

from __future__ import annotations

import itertools
import re
import struct
from pathlib import Path
from typing import Any

from scaling.reading import system_number, system_text

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
                if not device.exists():
                    continue
                nics.append(
                    {
                        "name": entry.name,
                        "kind": kind,
                        "pci": self.pci_path(device.resolve().name),
                        "numa_node": _node(system_number(device / "numa_node")),
                    }
                )
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
