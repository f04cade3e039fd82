"""NCCL's topology XML (NCCL_TOPO_FILE, NCCL_TOPO_DUMP_FILE) in NVIDIA's and ROCm's dialect."""

from __future__ import annotations

import io
import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import takewhile

from scaling.errors import InputError
from scaling.reading import DEPTH_MAX, RefusedError
from scaling.settings.topology import Level, Nic
from scaling.traces.machines.layout import DEVICES_MAX, NVLINKS, Layout, levels, rank_of
from scaling.units import format_rate

EXPECTED = "the XML that NCCL reads as NCCL_TOPO_FILE is expected, with <system> at its root"
SIZE_MAX = 16 << 20
"""Bytes; a machine's topology has some thousands."""
ELEMENTS_MAX = 20_000
"""A machine of 16 GPUs has some three hundred."""
_GPU_CLASSES = ("0x0300", "0x0302", "0x0380", "0x1200")
_NIC_CLASSES = ("0x0200", "0x0207")
_SWITCH = "0x0680"
_SPEED = re.compile(r"(?<![\d.])(\d{1,4}(?:\.\d{1,3})?)\s*GT/s")


@dataclass(frozen=True, slots=True)
class _Device:
    """A device, the way to it from its NUMA node, and the slowest link on that way."""

    bus: str
    path: tuple[int, ...]
    numa: int
    element: ET.Element
    rate_bit_s: int | None
    how: str


def parse_xml(text: str, where: str) -> tuple[Layout, tuple[Level, ...], tuple[str, ...]]:
    """The machine, its levels with the PCIe and NVLink rates of the file, and notes on what formed no level."""
    root = _root(text, where)
    gpus, nics = _devices(root)
    if not gpus:
        raise InputError(f"{where}: no GPU in it (PCI classes 0x0300, 0x0302, 0x0380, 0x1200); {EXPECTED}")
    for count, kind in ((len(gpus), "GPUs"), (len(nics), "network cards")):
        if count > DEVICES_MAX:
            raise InputError(f"{where}: {count} {kind} in one host; {EXPECTED}")
    gpus.sort(key=_order)
    pairs: dict[tuple[int, int], str] = {}
    nvlink = [_links(g.element, "nvlink") for g in gpus]
    xgmi = [_links(g.element, "xgmi") for g in gpus]
    for a in range(len(gpus)):
        for b in range(a + 1, len(gpus)):
            count = min(_joined(nvlink[a], gpus[b].bus), _joined(nvlink[b], gpus[a].bus))
            if count:
                pairs[a, b] = f"NV{count}"
            elif _joined(xgmi[a], gpus[b].bus) or _joined(xgmi[b], gpus[a].bus):
                pairs[a, b] = "XGMI"
            else:
                pairs[a, b] = _way(gpus[a], gpus[b])
    cards = []
    for name, device, rate in nics:
        ways = [_way(g, device) for g in gpus]
        nearest = min(ways, key=rank_of)
        near = tuple(i for i, way in enumerate(ways) if way == nearest)
        cards.append(Nic(name=name, near=near, link_class=nearest, rate_bit_s=rate))
    nodes = sorted({g.numa for g in gpus})
    layout = Layout(
        devices=len(gpus),
        pairs=pairs,
        numa=tuple(tuple(i for i, g in enumerate(gpus) if g.numa == node) for node in nodes),
        nics=tuple(cards),
        notes=(),
    )
    return layout, *_levels(layout, gpus)


def _root(text: str, where: str) -> ET.Element:
    if len(text) > SIZE_MAX:
        raise InputError(f"{where}: longer than 16 MiB; {EXPECTED}")
    if "<!DOCTYPE" in text or "<!ENTITY" in text:
        raise InputError(f"{where}: declares entities, which no topology does; {EXPECTED}")
    try:
        reader = ET.iterparse(io.StringIO(text), ("start", "end"))  # noqa: S314  entities are refused above
        root: ET.Element | None = None
        depth = 0
        for number, (event, element) in enumerate(reader):
            root = element if root is None else root
            depth += 1 if event == "start" else -1
            if depth > DEPTH_MAX or number > 2 * ELEMENTS_MAX:
                raise RefusedError(
                    f"more than {ELEMENTS_MAX} elements, or nested more than {DEPTH_MAX} levels deep"
                )
    except (ET.ParseError, ValueError) as error:
        raise InputError(f"{where}: not XML ({error}); {EXPECTED}") from error
    assert root is not None  # what the parser accepts has a root
    if root.tag == "graphs":
        raise InputError(
            f"{where}: an NCCL graph (the rings and trees that it chose, NCCL_GRAPH_FILE), no topology; {EXPECTED}"
        )
    if root.tag != "system":
        raise InputError(f"{where}: its root is <{root.tag}>; {EXPECTED}")
    return root


def _devices(root: ET.Element) -> tuple[list[_Device], list[tuple[str, _Device, int | None]]]:
    gpus: list[_Device] = []
    nics: list[tuple[str, _Device, int | None]] = []
    for index, cpu in enumerate(root.iter("cpu")):
        numa = _int(cpu.get("numaid"))
        for device in _walk(cpu, index if numa is None or numa < 0 else numa):
            kind = (device.element.get("class") or "").lower()
            cards = [net for nic in device.element.findall("nic") for net in nic.findall("net")]
            if device.element.find("gpu") is not None or kind.startswith(_GPU_CLASSES):
                gpus.append(device)
            elif cards:
                speed = (max(_int(net.get("speed")) or 0, 0) * 10**6 or None for net in cards)
                nics += [(net.get("name") or device.bus, device, next(speed)) for net in cards]
            elif kind.startswith(_NIC_CLASSES):
                nics.append((device.bus or f"nic{len(nics)}", device, None))
    return gpus, nics


def _walk(
    element: ET.Element, numa: int, path: tuple[int, ...] = (), rate: int | None = None, how: str = ""
) -> Iterator[_Device]:
    """Every PCI element below one; `path` leads there from the CPU, `rate` and `how` tell of the slowest link on it."""
    for k, inner in enumerate(element.findall("pci")):
        slowest, words = _link(inner)
        if slowest is None or (rate is not None and rate < slowest):
            slowest, words = rate, how
        yield _Device(inner.get("busid") or "", (*path, k), numa, inner, slowest, words)
        yield from _walk(inner, numa, (*path, k), slowest, words)


def _link(element: ET.Element) -> tuple[int | None, str]:
    """Nominal bit/s of a PCIe link in one direction, and the file's words for it."""
    speed, width = element.get("link_speed") or "", _int(element.get("link_width"))
    told = _SPEED.search(speed)
    giga = float(told[1]) if told else 0.0
    if not 0 < giga <= 256 or width is None or not 0 < width <= 32:
        return None, ""
    # 8b/10b up to PCIe 2, 128b/130b from 3 on (PCI-SIG base specification).
    code = 0.8 if giga <= 5 else 128 / 130
    return round(giga * 1e9 * width * code), f"{giga:g} GT/s x {width} lanes"


def _links(element: ET.Element, tag: str) -> list[tuple[str, int, str]]:
    """(target, count, target's class) of the links of a GPU."""
    gpu = element.find("gpu")
    if gpu is None:
        return []
    return [
        (link.get("target") or "", max(_int(link.get("count")) or 0, 0), (link.get("tclass") or "").lower())
        for link in gpu.findall(tag)
    ]


def _joined(links: list[tuple[str, int, str]], bus: str) -> int:
    """NVLinks towards a device: direct ones, or all that go to a switch."""
    direct = sum(count for target, count, _ in links if target == bus)
    return min(direct or sum(count for _, count, kind in links if kind.startswith(_SWITCH)), 999)


def _way(a: _Device, b: _Device) -> str:
    """Class of the PCIe path between two devices, from where their paths separate."""
    if a.numa != b.numa:
        return "SYS"
    shared = sum(1 for _ in takewhile(lambda steps: steps[0] == steps[1], zip(a.path, b.path, strict=False)))
    if not shared:
        return "PHB"
    return "PIX" if max(len(a.path), len(b.path)) - shared <= 1 else "PXB"


def _levels(layout: Layout, gpus: list[_Device]) -> tuple[tuple[Level, ...], tuple[str, ...]]:
    rates = [g.rate_bit_s for g in gpus]
    slowest = None if None in rates else min(r for r in rates if r is not None)
    how = next((g.how for g in gpus if g.rate_bit_s == slowest), "")

    def rate(link_class: str) -> tuple[int | None, str]:
        if link_class == "XGMI":
            return None, "the file counts XGMI links and tells no rate"
        if slowest is None:
            return None, "the file tells no link_speed and link_width on the way to every GPU"
        farther = "; what the CPUs add is not in the file" if rank_of(link_class) > rank_of("PXB") else ""
        way = f"PCIe {how}, the narrowest link between a GPU and its CPU"
        return slowest, f"{way}: {format_rate(slowest)}{farther}"

    sm = {_int(gpu.get("sm")) for g in gpus for gpu in g.element.findall("gpu")}
    each = next((bit_s for _, span, bit_s in NVLINKS if sm and all(s in span for s in sm)), None)
    capability = f"compute capability {min((s for s in sm if s is not None), default=0) / 10:.1f}"
    return levels(layout, rate, None if each is None else (each, capability))


def _order(device: _Device) -> tuple[int, int, str]:
    """Order by NCCL's device number where there is one, else by place in the file."""
    gpu = device.element.find("gpu")
    number = _int(gpu.get("dev")) if gpu is not None else None
    return (0, number, device.bus) if number is not None else (1, 0, "")


def _int(text: str | None) -> int | None:
    return int(text) if text is not None and re.fullmatch(r"-?\d{1,12}", text.strip()) else None
