"""One machine: its devices, what joins each two of them, and a topology file for `plan` made from both.

Classes are those of `nvidia-smi topo -m`, nearest first: NV<n> (n bonded NVLinks), XGMI, PIX (one PCIe switch), PXB
(several), PHB (the host bridge), NODE (bridges of one NUMA node), SYS (between NUMA nodes).
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from scaling.settings.topology import Level, Link, Nic
from scaling.units import format_rate, spans

CLASSES = ("NV", "XGMI", "PIX", "PXB", "PHB", "NODE", "SYS")
NVLINK_BIT_S = 200_000_000_000
"""One NVLink in one direction: 25 GB/s in generations 2 to 4 but GA102 (NVIDIA's whitepapers: V100, A100, H100)."""
NVLINKS = (
    (r"\bG?B[123]00\b", range(100, 130), 400_000_000_000),
    (r"\bA40\b|\bA6000\b|\b3090\b", range(86, 87), 112_500_000_000),
    (r"\bG?H[12]00\b|\bH20\b|\bA[138]00\b|\bA30\b|\bV100\b", range(70, 100), NVLINK_BIT_S),
    (r"\bP100\b", range(60, 70), 160_000_000_000),
)
"""One NVLink in one direction by a GPU's name, or its compute capability, the first that holds it: 50, 14.0625 (GA102),
25 and 20 GB/s (NVIDIA's data sheets and whitepapers)."""
DEVICES_MAX = 512
"""Devices, and network cards, of one host that are read; the largest known has 16."""
LINKS_MAX = 18
"""NVLinks of one device: a device with more than these to all peers is joined through a switch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """One kind of host."""

    devices: int
    pairs: Mapping[tuple[int, int], str]
    """Class of the connection of each two devices, the smaller index first."""
    numa: tuple[tuple[int, ...], ...]
    nics: tuple[Nic, ...]
    notes: tuple[str, ...]

    @property
    def islands(self) -> tuple[tuple[int, ...], ...]:
        """Groups of devices that the nearest class joins, directly or through other devices."""
        if not self.pairs:
            return ()
        nearest = min(map(rank_of, self.pairs.values()))
        return groups(self.devices, lambda a, b: rank_of(self.pairs[a, b]) <= nearest)


def rank_of(link_class: str) -> int:
    """Index of a class in CLASSES."""
    return CLASSES.index("NV" if link_class.startswith("NV") else link_class)


def groups(devices: int, joined: Callable[[int, int], bool]) -> tuple[tuple[int, ...], ...]:
    """The connected parts of a graph over devices 0 to n-1, each in order."""
    part = list(range(devices))
    for a, b in itertools.combinations(range(devices), 2):
        if part[a] != part[b] and joined(a, b):
            old, new = part[b], part[a]
            part = [new if p == old else p for p in part]
    return tuple(tuple(d for d in range(devices) if part[d] == p) for p in dict.fromkeys(part))


def levels(
    layout: Layout, rate: Callable[[str], tuple[int | None, str]], nvlink: tuple[int, str] | None = None
) -> tuple[tuple[Level, ...], tuple[str, ...]]:
    """Levels from the nearest class out, and notes on classes that form none.

    `rate` gives (bit/s, source) of a class; `nvlink` (bit/s, source) of one NVLink, where the file tells it.
    """
    nearer: list[Level] = []
    left: list[str] = []
    for place in sorted({rank_of(c) for c in layout.pairs.values()}):
        parts = groups(layout.devices, lambda a, b, p=place: rank_of(layout.pairs[a, b]) <= p)  # type: ignore[misc]
        names = sorted({c for c in layout.pairs.values() if rank_of(c) == place}, key=lambda c: (len(c), c))
        link_class = "/".join(names)
        size = len(parts[0])
        uneven = any(len(part) != size for part in parts)
        if uneven or any(part != tuple(range(part[0], part[0] + size)) for part in parts):
            what = "devices whose numbers are not consecutive"
            if uneven:
                what = f"groups of different sizes ({', '.join(str(len(part)) for part in parts)})"
            left.append(f"{link_class} joins {what}: left out of the levels")
            continue
        if size < 2 or (nearer and size <= nearer[-1].ranks):
            continue
        bit_s, source = nvlinks(layout, nvlink) if place == 0 else rate(names[0])
        name = CLASSES[place].lower() if place else "nvlink"
        nearer.append(Level(name=name, link_class=link_class, ranks=size, rate_bit_s=bit_s, source=source))
    return tuple(nearer), tuple(left)


def nvlink_of(text: str) -> tuple[int, str] | None:
    """(bit/s, source) of one NVLink of the GPUs that a text names; None where it names none, or unlike ones."""
    named = {bit_s: hit[0] for pattern, _, bit_s in NVLINKS if (hit := re.search(pattern, text))}
    told = ((bit_s, f"{name}, which the file names") for bit_s, name in named.items())
    return next(told) if len(named) == 1 else None


def nvlinks(layout: Layout, each: tuple[int, str] | None = None) -> tuple[int, str]:
    """Nominal bit/s over the NVLinks of the device that has the fewest, in one direction, and where it comes from."""
    counts = [
        [int(c[2:]) for pair, c in layout.pairs.items() if device in pair and re.fullmatch(r"NV\d+", c)]
        for device in range(layout.devices)
    ]
    joined = [count for count in counts if count]
    least = min(map(sum, joined), default=0)
    switched = least > LINKS_MAX
    links = max(map(max, joined)) if switched else least
    how = "through a switch" if switched else "to all peers together"
    unknown = (
        "generations 2 to 4; 20 in the first, 14 on GA102, 50 in the fifth: which one is not in the file"
    )
    each_bit_s, source = each or (NVLINK_BIT_S, unknown)
    return links * each_bit_s, f"{links} NVLinks {how} x {each_bit_s / 8e9:g} GB/s a direction ({source})"


def to_yaml(
    name: str,
    layout: Layout,
    nested: tuple[Level, ...],
    source: str,
    between: Link | None = None,
    hosts: int = 1,
) -> str:
    """The text of a file in conf/topology; `between` joins the hosts, where that is known."""
    unknown = Link(source="between hosts: not in the file")
    fields = {
        "name": name,
        "kind": "local",
        "hosts": hosts,
        "ranks_per_host": layout.devices,
        "device": "auto",
        "backend": "auto",
        "link": _link(between if between is not None and between.rate_bit_s is not None else unknown),
        "levels": [
            {"name": e.name, "link_class": e.link_class, "ranks": e.ranks, **_link(e)} for e in nested
        ],
        "islands": layout.islands,
        "numa": layout.numa,
        "nics": [
            {"name": _line(n.name), "near": n.near, "link_class": n.link_class, "rate": _rate(n.rate_bit_s)}
            for n in layout.nics
        ],
        "note": _line("; ".join([f"imported from {source}", *layout.notes])),
    }
    lines = [f"# Imported from {_line(source)}; values that it does not hold are null."]
    for key, value in fields.items():
        if value and isinstance(value, list):
            lines += [f"{key}:", *(f"  - {json.dumps(item)}" for item in value)]
        else:
            lines.append(f"{key}: {json.dumps(value)}")
    return "\n".join(lines) + "\n"


def _link(link: Link) -> dict[str, str | float | None]:
    """Rate and source; a measured rate is reached in full, so its share is 1."""
    measured = {"share": 1.0} if isinstance(link, Level) and link.link_class == "measured" else {}
    if measured and link.latency_us is not None:
        measured["latency_us"] = float(f"{link.latency_us:.4g}")
    return {"rate": _rate(link.rate_bit_s), **measured, "source": _line(link.source)}


def _rate(bit_s: int | None) -> str | None:
    return None if bit_s is None else f"{bit_s / 1e9:g}gbit"


def summary(layout: Layout, nested: tuple[Level, ...], left: tuple[str, ...]) -> list[str]:
    """Lines for a person: devices, levels, NUMA, cards, notes."""
    lines = [f"# devices  {layout.devices}"]
    for level in nested:
        rate = "rate unknown" if level.rate_bit_s is None else f"{format_rate(level.rate_bit_s)} a direction"
        lines.append(
            f"# level    {level.name}: {level.ranks} ranks by {level.link_class}, {rate}: {level.source}"
        )
    if len(layout.numa) > 1:
        lines.append(f"# numa     {' | '.join(','.join(spans(part)) for part in layout.numa)}")
    lines += [
        f"# nic      {nic.name}: {nic.link_class} to {','.join(spans(nic.near))}"
        + ("" if nic.rate_bit_s is None else f", {format_rate(nic.rate_bit_s)}")
        for nic in layout.nics
    ]
    return lines + [f"# note     {text}" for text in (*layout.notes, *left)]


def clean_name(text: str) -> str:
    """A name that is valid as a file's name and in Hydra's grammar."""
    return re.sub(r"[^A-Za-z0-9_]+", "_", text).strip("_") or "imported"


def _line(value: str) -> str:
    """One line; `${` is broken up, since OmegaConf would interpolate it."""
    return " ".join("".join(c if c.isprintable() else " " for c in value).split()).replace("${", "$ {")
