"""A topology's links for a prediction: its own figures, or what was measured where that stands for them.

The run's latency and the share of a rate that it reached belong to its back end and its links. They stand for the
target's on the same machine, and between machines that both use Gloo over TCP. Elsewhere the target's own figures are
needed: those of its topology, or for latency the named reference.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from scaling.analysis.network.curve import Hops, NoPathError, PerHop
from scaling.analysis.predict.change import LATENCY, Linked
from scaling.analysis.statistics.rounds import Floats
from scaling.settings.topology import Level, Link, Topology

SHARE_UNKNOWN = 0.8
"""Share of a link's rate that an all-reduce reaches, where neither the link nor the run gives one."""
DOUBT_UNKNOWN = 0.3
DOUBT_OTHER_KIND = 0.3
"""Uncertainty of a share of the rate that was measured on another kind of link."""
MEASURED = "measured"
"""`link_class` of a level that was imported from a log of nccl-tests."""
DOUBT_SHARE = 0.1
"""Uncertainty of a share of the rate that the topology's file gives."""
NETWORK = "network"
LATENCY_NVLINK_US, LATENCY_PCI_US, LATENCY_NETWORK_US = 3.4, 5.7, 9.6
REFERENCE = "NCCL's own model (src/graph/tuning.cc, hwLat, ring, protocol Simple)"
LATENCY_NOMINAL = 3.0
"""A latency that is not measured is known to this factor: logs of nccl-tests show 1.2 and 2.5 us a hop on NVLink, and
5.0 and 9.4 us on PCIe."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Links:
    """Levels from the innermost out, the relative uncertainty of their bandwidth, and where the figures come from."""

    levels: tuple[Hops, ...]
    doubt: float = 0.0
    latency_factor: float = LATENCY
    """The latency is known to this factor."""
    bandwidth: tuple[str, ...] = ()
    latency: tuple[str, ...] = ()
    """Where each level's bandwidth and latency come from."""


def carries(home: Topology, asked: Topology) -> bool:
    """Whether latency and share of the rate, as measured on the run's `home`, stand for the links of `asked`."""
    return asked.backend == home.backend and (asked.name == home.name or asked.backend == "gloo")


def measured_fabric(topology: Topology, sources: Sequence[Linked]) -> Links:
    """The run's own links as measured; a link between hosts that was not measured is taken from its rate."""
    inside = [s.link for s in sources if topology.hosts_of(s.world_size) == 1][-1:]
    across = [s.link for s in sources if topology.hosts_of(s.world_size) > 1][-1:]
    levels = (*(replace(link, ranks=topology.ranks_per_host) for link in inside), *across)
    if across or topology.link.rate_bit_s is None:
        return Links(levels=levels)
    network = _hops(topology.link, NETWORK, None, topology, topology, sources[-1])
    return replace(network, levels=(*levels, *network.levels))


def named_fabric(topology: Topology, home: Topology, source: Linked, world_size: int) -> Links:
    """A topology's links from their own figures; what these lack is taken from `source` where that stands for it.

    NoPathError where a figure is needed and there is none.
    """
    apart = topology.spread and world_size <= topology.hosts  # each on a host of its own
    levels = () if apart else topology.levels
    parts = [_hops(_reached(level), level.name, level.ranks, topology, home, source) for level in levels]
    several = topology.hosts_of(world_size) > 1
    inside_all = bool(levels) and levels[-1].ranks >= world_size
    if topology.link.rate_bit_s is not None and (several or not inside_all):
        parts.append(_hops(topology.link, NETWORK, None, topology, home, source))
    unknown = several and not apart and not levels and topology.ranks_per_host > 1
    inside = ("within a host: not known, taken to be like the link between hosts",) if unknown else ()
    return Links(
        levels=tuple(hops for links in parts for hops in links.levels),
        doubt=max((links.doubt for links in parts), default=0.0),
        latency_factor=max((links.latency_factor for links in parts), default=LATENCY),
        bandwidth=(*(note for links in parts for note in links.bandwidth), *inside),
        latency=(*(note for links in parts for note in links.latency), *inside),
    )


def inside_fabric(topology: Topology, home: Topology, sources: Sequence[Linked]) -> Links | None:
    """The measured link within a host, for a topology without levels; None where there is none that stands for it."""
    if not carries(home, topology):
        return None
    inside = [s.link for s in sources if home.hosts_of(s.world_size) == 1][-1:]
    doubt = 0.0 if topology.name == home.name else DOUBT_OTHER_KIND
    levels = tuple(replace(link, ranks=topology.ranks_per_host) for link in inside)
    note = ("within a host: as measured in the run",)
    return Links(levels=levels, doubt=doubt, bandwidth=note, latency=note) if levels else None


def _reached(level: Level) -> Level:
    """A rate that was imported from a log was reached, so its share of the nominal rate is 1."""
    return replace(level, share=1.0) if level.link_class == MEASURED and level.share is None else level


def _hops(
    link: Link, name: str, ranks: int | None, topology: Topology, home: Topology, source: Linked
) -> Links:
    """One level, with where its figures come from."""
    carried = carries(home, topology)
    alpha, factor, latency = _latency(link, name, topology, source, carried=carried)
    beta, doubt, bandwidth = _bandwidth(link, name, topology, home, source, carried=carried)
    return Links(
        levels=(Hops(name=name, ranks=ranks, alpha=alpha, beta_ns=beta),),
        doubt=doubt,
        latency_factor=factor,
        bandwidth=(f"{name}: {bandwidth}",),
        latency=(f"{name}: {latency}",),
    )


def _latency(
    link: Link, name: str, topology: Topology, source: Linked, *, carried: bool
) -> tuple[PerHop, float, str]:
    """Time of a hop, the factor to which it is known, and where it comes from."""
    if link.latency_us is None and carried:
        return source.link.alpha, LATENCY, "as measured in the run"
    if link.latency_us is None and topology.backend != "nccl":
        raise NoPathError(
            f"topology={topology.name} gives no latency of its {name}, and the run's own is another back end's: "
            "give it, such as topology.link.latency_us=20"
        )
    us = _reference_us(link, name) if link.latency_us is None else link.latency_us
    measured = carried or getattr(link, "link_class", "") == MEASURED
    where = REFERENCE if link.latency_us is None else link.source or f"topology {topology.name}"
    alpha = PerHop(sizes=(1,), values=np.full((len(source.link.beta_ns), 1), us * 1e3))
    return alpha, LATENCY if measured else LATENCY_NOMINAL, f"{us:g} us a hop, {where}"


def _reference_us(link: Link, name: str) -> float:
    """Latency of a hop of NCCL's ring over this kind of link."""
    if name == NETWORK:
        return LATENCY_NETWORK_US
    kind = f"{name} {getattr(link, 'link_class', '')}".lower()
    return LATENCY_NVLINK_US if "nv" in kind else LATENCY_PCI_US


def _bandwidth(
    link: Link, name: str, topology: Topology, home: Topology, source: Linked, *, carried: bool
) -> tuple[Floats, float, str]:
    """ns/byte, its relative uncertainty, and where it comes from."""
    rate, draws = link.rate_bit_s, len(source.link.beta_ns)
    measured_rate = home.link.rate_bit_s if carried and home.hosts_of(source.world_size) > 1 else None
    if rate is None:
        if not carried:
            raise NoPathError(
                f"topology={topology.name} gives no rate of its {name}, and the run's own link does not stand for "
                "it: give it in topology.levels, or name a machine of conf/topology, such as topology=hgx_h100"
            )
        return source.link.beta_ns, DOUBT_UNKNOWN, "as measured in the run"
    gbit = f"{rate / 1e9:g} Gbit/s"
    if link.share is not None:
        where = link.source or f"topology {topology.name}"
        return np.full(draws, 8e9 / (rate * link.share)), DOUBT_SHARE, f"{link.share:.0%} of {gbit}, {where}"
    if measured_rate is not None:
        doubt = 0.0 if home.kind == "emulated" and name == NETWORK else DOUBT_OTHER_KIND
        note = f"the share of {gbit} that the run reached of its own rate"
        return source.link.beta_ns * (measured_rate / rate), doubt, note
    note = f"{SHARE_UNKNOWN:.0%} of {gbit}; what an all-reduce reaches is not known"
    return np.full(draws, 8e9 / (rate * SHARE_UNKNOWN)), DOUBT_UNKNOWN, note
