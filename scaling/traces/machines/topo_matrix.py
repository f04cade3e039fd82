"""What joins each two devices: `nvidia-smi topo -m` (network cards too), `rocm-smi --showtopo`, `amd-smi topology`.

AMD's tools print a matrix as text, and with --json each pair for itself.
"""

from __future__ import annotations

import math
import re

from scaling.errors import InputError
from scaling.settings.topology import Nic
from scaling.traces.machines.layout import DEVICES_MAX, Layout, groups, rank_of

_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")
_CLASS = re.compile(r"NV\d{1,3}|PIX|PXB|PHB|NODE|SYS|SOC|X")
_LEGEND = re.compile(r"\s*(NIC\d+):\s*(\S+)")
_GPU = re.compile(r"GPU(\d{1,3})")
_GLUED = re.compile(r"((?:GPU|NIC|mlx\d_)\d+)(?=GPU|NIC|mlx)")
"""A name that fills its column touches the next one."""
_TASK = re.compile(r"\s*\d{1,6}: (?=\s*GPU0\s)")
_ROCM_NODE = re.compile(r"GPU\[(\d{1,3})\].*Numa Node: (-?\d{1,4})")
_BUS = re.compile(r"\b[0-9a-fA-F]{4}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.\d\b")
_PAIR = re.compile(r'"\(Topology\) Link type between DRM devices (\d{1,3}) and (\d{1,3})":\s*"([\w/]+)"')
_LINK_TYPE = re.compile(r'"link_type":\s*"([\w/]+)"')
_CARD_NODE = re.compile(r'"card(\d{1,3})":\s*\{[^{}]*"\(Topology\) Numa Node":\s*"(-?\d{1,4})"')
_AMD_ROW = re.compile(r"GPU0\s.*\b(?:XGMI|PCIE|SELF)\b")
AMD_SMI = "LINK TYPE TABLE"
EXPECTED = (
    "the output of `nvidia-smi topo -m`, `rocm-smi --showtopo` or `amd-smi topology` is expected: GPU0, GPU1, ... with "
    "classes such as NV12, PIX, SYS or XGMI, PCIE"
)


def parse_topo(text: str, where: str) -> Layout:
    """The machine; InputError where something is missing or contradictory."""
    plain = [_ESCAPES.sub("", line) for line in _of_amd(text).splitlines()]
    task = next((m[0] for m in map(_TASK.match, plain) if m), "")  # srun -l: the first of several tasks
    lines = [_GLUED.sub(r"\1 ", line.removeprefix(task)) for line in plain if line.startswith(task)]
    links = next((i for i, line in enumerate(lines) if _AMD_ROW.match(line.strip())), 0)
    if links and _names(lines[links - 1]):
        return _rocm(lines, links, where)
    start = next((i for i, line in enumerate(lines) if _names(line)), None)
    if start is None:
        raise InputError(f"{where}: no header with GPU0 in it; {EXPECTED}")
    names = _names(lines[start])
    if len(names) > DEVICES_MAX:
        raise InputError(f"{where}: {len(names)} devices in one host; {EXPECTED}")
    rows: dict[str, tuple[list[str], list[str]]] = {}
    labels: dict[str, str] = {}
    for number, line in enumerate(lines[start + 1 :], start + 2):
        words = line.split()
        legend = _LEGEND.match(line)
        if legend:
            labels[legend[1]] = legend[2]
        elif words and words[0] in names and words[0] not in rows:
            rows[words[0]] = _row(words, names, f"{where}, line {number}")
    gpus = [n for n in names if _GPU.fullmatch(n)]
    for name in gpus:
        if name not in rows:
            raise InputError(f"{where}: there is no row of {name}; {EXPECTED}")
    return _layout(names, gpus, rows, labels, where)


def _of_amd(text: str) -> str:
    """What AMD's tools write, as the matrix of `rocm-smi --showtopo`; other text as it is."""
    if AMD_SMI in text:
        table = text.partition(AMD_SMI)[2]
        number = {bus: k for k, bus in enumerate(dict.fromkeys(_BUS.findall(table)))}
        return _BUS.sub(lambda m: f"GPU{number[m[0]]}", table)
    pairs = {(int(a), int(b)): kind for a, b, kind in _PAIR.findall(text)}
    listed = _LINK_TYPE.findall(text)  # device by device
    devices = max((b for _, b in pairs), default=math.isqrt(len(listed)) - 1) + 1
    pairs |= {divmod(k, devices): kind for k, kind in enumerate(listed)}
    if not pairs or devices > DEVICES_MAX:
        return text
    rows = [
        " ".join([f"GPU{a}", *(pairs.get((a, b)) or pairs.get((b, a), "SELF") for b in range(devices))])
        for a in range(devices)
    ]
    nodes = [f"GPU[{card}] Numa Node: {node}" for card, node in _CARD_NODE.findall(text)]
    return "\n".join([" ".join(f"GPU{k}" for k in range(devices)), *rows, *nodes])


def _rocm(lines: list[str], start: int, where: str) -> Layout:
    """The matrix of link types, and the NUMA nodes below it; a PCIe link is classed by the nodes that it joins."""
    names = _names(lines[start - 1])
    rows = [line.split() for line in lines[start : start + len(names)]]
    types = [words[1:] for words in rows]
    if len(names) > DEVICES_MAX or [words[:1] for words in rows] != [[n] for n in names]:
        raise InputError(
            f"{where}: its matrix of link types has no row for each of {len(names)} devices; {EXPECTED}"
        )
    told = {int(m[1]): m[2] for m in map(_ROCM_NODE.search, lines) if m}
    nodes = [told.get(k) for k in range(len(names))]
    pairs, notes = {}, []
    for a, row in enumerate(types):
        for b in range(a + 1, len(names)):
            if len(row) != len(names) or row[b] not in ("XGMI", "PCIE"):
                raise InputError(f"{where}: the row of {names[a]} has no link type to {names[b]}; {EXPECTED}")
            far = nodes[a] is None or nodes[a] != nodes[b]
            pairs[a, b] = "XGMI" if row[b] == "XGMI" else "SYS" if far else "NODE"
    if "PCIE" in {word for row in types for word in row}:
        notes.append("AMD's tools tell PCIE alone: within a NUMA node it is shown as NODE, else as SYS")
    numa = () if None in nodes else groups(len(names), lambda a, b: nodes[a] == nodes[b])
    return Layout(devices=len(names), pairs=pairs, numa=numa, nics=(), notes=tuple(notes))


def _names(line: str) -> list[str]:
    """Devices that a header names; empty where the line is none."""
    words = line.split()
    if not words or words[0] != "GPU0" or (len(words) > 1 and _CLASS.fullmatch(words[1])):
        return []
    end = next((i for i, w in enumerate(words) if w in ("CPU", "NUMA", "GPU")), len(words))
    return list(dict.fromkeys(words[:end]))


def _row(words: list[str], names: list[str], where: str) -> tuple[list[str], list[str]]:
    """The classes of a device's row, and the words behind them."""
    glued = [_CLASS.findall(w) if re.fullmatch(rf"(?:{_CLASS.pattern})+", w) else [w] for w in words[1:]]
    words = [words[0], *(part for parts in glued for part in parts)]
    classes = words[1 : 1 + len(names)]
    for k, name in enumerate(classes):
        if not _CLASS.fullmatch(name):
            raise InputError(f"{where}: {name!r} in the column of {names[k]} is no class of link; {EXPECTED}")
    if len(classes) < len(names):
        raise InputError(f"{where}: {len(classes)} of {len(names)} columns are there; {EXPECTED}")
    # Drivers before 2017 called SYS SOC.
    return (["SYS" if c == "SOC" else c for c in classes], words[1 + len(names) :])


def _layout(
    names: list[str],
    gpus: list[str],
    rows: dict[str, tuple[list[str], list[str]]],
    labels: dict[str, str],
    where: str,
) -> Layout:
    column = {name: k for k, name in enumerate(names)}
    pairs: dict[tuple[int, int], str] = {}
    notes: list[str] = []
    for a, first in enumerate(gpus):
        for b, second in enumerate(gpus[a + 1 :], a + 1):
            way, back = rows[first][0][column[second]], rows[second][0][column[first]]
            if "X" in (way, back):
                raise InputError(
                    f"{where}: {first} and {second} are joined by X, which is a device to itself; {EXPECTED}"
                )
            if way != back:
                notes.append(f"{first} to {second} is {way}, back it is {back}: the farther one is taken")
            pairs[a, b] = max(way, back, key=lambda c: (rank_of(c), -int(c[2:]) if c.startswith("NV") else 0))
    nics = []
    for name in names:
        if name in gpus:
            continue
        classes = [rows[g][0][column[name]] for g in gpus]
        nearest = min((c for c in classes if c != "X"), key=rank_of, default="SYS")
        near = tuple(i for i, c in enumerate(classes) if c == nearest)
        nics.append(Nic(name=labels.get(name, name), near=near, link_class=nearest))
    numa = _numa([rows[g][1] for g in gpus])
    return Layout(devices=len(gpus), pairs=pairs, numa=numa, nics=tuple(nics), notes=tuple(notes))


def _numa(rest: list[list[str]]) -> tuple[tuple[int, ...], ...]:
    """Devices by NUMA node, or by their nearest cores where the nodes are not given."""
    nodes = [words[1] if len(words) > 1 and words[1].isdigit() else None for words in rest]
    cores = [words[0] if words else None for words in rest]
    told = nodes if None not in nodes else cores
    if None in told:
        return ()
    return groups(len(rest), lambda a, b: told[a] == told[b])
