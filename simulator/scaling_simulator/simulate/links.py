"""What collectives take over the groups of a mesh, from a topology's links.

A group of n ranks, each `stride` ranks from the next, has L of them on a host. Bytes over a rank's wire are those of a
ring: w = 2 (n-1)/n m for an all-reduce of m bytes, (n-1)/n m for an all-gather or a reduce-scatter. As NCCL's own model
(src/graph/tuning.cc), a transfer takes the least over algorithms and protocols of

    T(w) = base + (hops inside hosts) a_in + (hops between hosts) a_net + w / (share B)

where B is the least of what a rank's link inside a host carries and what its groups leave it of the host's link; a ring
has n-1 hops (an all-reduce twice that), of which one enters each host; a tree 2 log2(hosts) between hosts. A protocol
with a lower latency (LL, LL128) reaches a smaller share of B. Hop latencies are those of the topology for the protocol
Simple, and for the others in NCCL's proportion.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from scaling.analysis.network.curve import NoPathError
from scaling.analysis.predict.fabrics import (
    DOUBT_SHARE,
    DOUBT_UNKNOWN,
    LATENCY_NETWORK_US,
    LATENCY_NOMINAL,
    LATENCY_NVLINK_US,
    LATENCY_PCI_US,
    SHARE_UNKNOWN,
)
from scaling.settings.parallel import Axis
from scaling.settings.topology import Level, Link, Topology
from scaling_simulator.simulate.placed import exchanged
from scaling_simulator.simulation import LinkCurve

KINDS = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all")
SIZES = (0.0, *(float(2**k) for k in range(8, 34)))
"""Bytes on the wire at which a curve has a point; between them it is straight."""
BASE_US = {"ring": (6.6, 14.0, 8.4), "tree": (6.8, 14.0, 8.4)}
"""Of LL, LL128 and Simple."""
REACHED = (0.25, 0.92, 1.0)
"""Share of the bandwidth that LL, LL128 and Simple reach."""
HOPS = {
    "nvlink": (0.6 / 3.4, 1.9 / 3.4, 1.0),
    "pci": (1.0 / 5.7, 2.5 / 5.7, 1.0),
    "network": (2.7 / 14, 4.0 / 14, 1.0),
}
"""Latency of a hop of a ring over that of Simple."""
TREE = 0.85
"""A tree reaches this share of a ring's bandwidth."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wires:
    """How an axis' groups are joined; rates in bytes/s, of a rank."""

    axis: Axis
    local: int
    """Ranks of a group on one host."""
    hosts: int
    inside: Link | None
    inside_bytes_s: float
    across_bytes_s: float
    """What a group's ranks on a host have of its link together; infinite where the group is on one host."""

    @property
    def bytes_s(self) -> float:
        """The least on the way."""
        return min(self.inside_bytes_s, self.across_bytes_s)


def on_a_host(topology: Topology, axis: Axis) -> int:
    """Ranks of a group that lie on one host."""
    return max(1, min(axis.size, topology.ranks_per_host // axis.stride))


def wires(topology: Topology, axis: Axis) -> Wires:
    """The links that a group uses. NoPathError where the topology does not give the rate of one of them."""
    local = on_a_host(topology, axis)
    hosts = -(-axis.size // local)
    inside = _level(topology, local * axis.stride) if local > 1 else None
    if local > 1 and inside is None:
        raise NoPathError(
            f"topology={topology.name} has no link within a host that joins {local * axis.stride} ranks; name one with "
            "levels, such as topology=hgx_h100"
        )
    across = math.inf
    if hosts > 1:
        beside = topology.ranks_per_host // local  # groups of this axis that use the host's link at once
        across = _bytes_s(topology.link, topology, "link") / max(1, beside)
    return Wires(
        axis=axis,
        local=local,
        hosts=hosts,
        inside=inside,
        inside_bytes_s=math.inf if inside is None else _bytes_s(inside, topology, f"level {inside.name}"),
        across_bytes_s=across,
    )


def curves(
    topology: Topology, axes: tuple[Axis, ...], *, bandwidth: float = 1.0, latency: float = 1.0
) -> tuple[LinkCurve, ...]:
    """A curve for each axis and kind; the default group has the whole world's. Factors vary all of them.

    `latency` is a factor on all that does not depend on the bytes: the base and the hops.

    Axes have the names of the mesh's dimensions; a mesh of one dimension uses the default group.
    """
    world = math.prod(axis.size for axis in axes)
    if world == 1:
        return ()
    whole = Axis(name="", size=world, stride=1)
    named = [(f"mesh_{axis.name}", axis) for axis in axes]
    groups = [("default_pg", whole), ("*", whole), *named]
    return tuple(
        LinkCurve(
            group=group, kind=kind, points=_points(topology, wires(topology, axis), kind, bandwidth, latency)
        )
        for group, axis in groups
        for kind in KINDS
    )


def shared(topology: Topology, axes: tuple[Axis, ...]) -> tuple[str, ...]:
    """Groups whose transfers share a host's link, where there are several."""
    across = [f"mesh_{axis.name}" for axis in axes if axis.size > on_a_host(topology, axis)]
    return tuple(across) if len(across) > 1 else ()


def doubts(topology: Topology, axes: tuple[Axis, ...]) -> tuple[float, float]:
    """(relative uncertainty of the bandwidth, factor to which latencies are known), of the links in use."""
    in_use = [wires(topology, axis) for axis in axes]
    links = [w.inside for w in in_use if w.inside is not None]
    links += [topology.link] if any(w.hosts > 1 for w in in_use) else []
    unknown = any(link.share is None for link in links)
    return (DOUBT_UNKNOWN if unknown else DOUBT_SHARE), LATENCY_NOMINAL


def sources(topology: Topology, axes: tuple[Axis, ...]) -> tuple[str, ...]:
    """What each axis' groups go over, in words."""
    lines = []
    for axis in axes:
        w = wires(topology, axis)
        parts = []
        if w.inside is not None:
            parts.append(_said(w.inside, getattr(w.inside, "name", "inside a host"), w.inside_bytes_s))
        if w.hosts > 1:
            parts.append(_said(topology.link, f"network between {w.hosts} hosts", w.across_bytes_s))
        lines.append(f"{axis.name} ({axis.size} ranks): {'; '.join(parts)}")
    return tuple(lines)


def _said(link: Link, name: str, bytes_s: float) -> str:
    return (
        f"{name} {bytes_s / 1e9:.3g} GB/s for a group's ranks on a host, {link.source or 'no source given'}"
    )


def _level(topology: Topology, ranks: int) -> Level | None:
    """The innermost level that joins so many ranks."""
    return next((level for level in topology.levels if level.ranks >= ranks), None)


def _bytes_s(link: Link, topology: Topology, key: str) -> float:
    if link.rate_bit_s is None:
        raise NoPathError(
            f"topology={topology.name} gives no rate of its {key}: give it, such as topology.link.rate=400gbit, "
            "or name a machine of conf/topology, such as topology=hgx_h100"
        )
    return link.rate_bit_s / 8 * (SHARE_UNKNOWN if link.share is None else link.share)


def _points(
    topology: Topology, over: Wires, kind: str, bandwidth: float, latency: float
) -> tuple[tuple[float, ...], ...]:
    return tuple((size, _time_us(topology, over, kind, size, bandwidth, latency)) for size in SIZES)


def _time_us(
    topology: Topology, over: Wires, kind: str, wire: float, bandwidth: float, latency: float
) -> float:
    """Time of one transfer with `wire` bytes on a rank's wire, us."""
    n, hosts = over.axis.size, over.hosts
    rounds = 2 if kind == "all_reduce" else 1
    between = rounds * (hosts - 1)
    within = rounds * (n - 1) - between
    rate = over.bytes_s * bandwidth
    if kind == "all_to_all":
        within = between = 1
    if kind in exchanged(topology.backend):
        # Every pair is on its own: nothing that enters a host is shared there.
        leaving = (n - over.local) / max(1, n - 1)
        across = over.across_bytes_s / over.local / max(leaving, 1e-9)
        rate = min(over.inside_bytes_s, across) * bandwidth
    inside, network = _hops_us(topology, over)
    best = math.inf
    for protocol in range(3):
        moved = wire / (rate * REACHED[protocol]) * 1e6
        if topology.backend != "nccl":  # one protocol, and no fixed cost beside the hops
            return latency * (within * inside[2] + between * network[2]) + wire / rate * 1e6
        hops = within * inside[protocol] + between * network[protocol]
        best = min(best, latency * (BASE_US["ring"][protocol] + hops) + moved)
        if kind == "all_reduce" and n > 2:
            up = 2 * math.log2(hosts) * network[protocol] if hosts > 1 else 0.0
            chain = 2 * (n / hosts - 1) * inside[protocol]
            more = n / (n - 1) / TREE
            best = min(best, latency * (BASE_US["tree"][protocol] + up + chain) + moved * more)
    return best


def _hops_us(topology: Topology, over: Wires) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Latencies of a hop inside a host and between hosts, for each protocol."""
    kind, simple = "pci", LATENCY_PCI_US
    if over.inside is not None:
        words = f"{getattr(over.inside, 'name', '')} {getattr(over.inside, 'link_class', '')}".lower()
        kind = "nvlink" if "nv" in words else "pci"
        named = LATENCY_NVLINK_US if kind == "nvlink" else LATENCY_PCI_US
        simple = named if over.inside.latency_us is None else over.inside.latency_us
    link = topology.link.latency_us
    if link is None and over.hosts > 1 and topology.backend != "nccl":
        raise NoPathError(
            f"topology={topology.name} gives no latency of its link: give it, such as topology.link.latency_us=20"
        )
    network = LATENCY_NETWORK_US if link is None else link
    return tuple(simple * f for f in HOPS[kind]), tuple(network * f for f in HOPS["network"])
