"""A topology's links for a prediction, from its own rates and from the links that were measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from scaling.analysis.network.ring import Hops, PerHop
from scaling.analysis.predict.change import Source
from scaling.spec.topology import Level, Link, Topology

SHARE_UNKNOWN = 0.8
"""Share of a link's rate that an all-reduce reaches, where neither the link nor the run gives one."""
DOUBT_UNKNOWN = 0.3
DOUBT_OTHER_KIND = 0.3
"""Uncertainty of a share of the rate that was measured on another kind of link."""
MEASURED = "measured"
"""`link_class` of a level that was imported from a log of nccl-tests."""
DOUBT_SHARE = 0.1
"""Uncertainty of a share of the rate that the topology's file gives."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Links:
    """Levels from the innermost out, and the relative uncertainty of their bandwidth."""

    levels: tuple[Hops, ...]
    doubt: float = 0.0


def measured_fabric(topology: Topology, sources: Sequence[Source]) -> Links:
    """The run's own links as measured; a link between hosts that was not measured is taken from its rate."""
    inside = [s.link for s in sources if topology.hosts_of(s.world_size) == 1][-1:]
    across = [s.link for s in sources if topology.hosts_of(s.world_size) > 1][-1:]
    levels = (*(replace(link, ranks=topology.ranks_per_host) for link in inside), *across)
    if across or topology.link.rate_bit_s is None:
        return Links(levels=levels)
    network, doubt = _hops(topology.link, "network", None, topology, sources[-1])
    return Links(levels=(*levels, network), doubt=doubt)


def named_fabric(topology: Topology, own: Topology, source: Source, world_size: int) -> Links:
    """A topology's links from their rates; what these do not give is taken from `source`."""
    apart = topology.spread and world_size <= topology.hosts  # each on a host of its own
    levels = () if apart else topology.levels
    found = [_hops(_reached(level), level.name, level.ranks, own, source) for level in levels]
    if topology.link.rate_bit_s is not None:
        found.append(_hops(topology.link, "network", None, own, source))
    return Links(
        levels=tuple(hops for hops, _ in found), doubt=max((doubt for _, doubt in found), default=0.0)
    )


def inside_fabric(topology: Topology, own: Topology, sources: Sequence[Source]) -> Links | None:
    """The measured link within a host, for a topology without levels; None where it was not measured."""
    inside = [s.link for s in sources if own.hosts_of(s.world_size) == 1][-1:]
    doubt = 0.0 if topology.name == own.name else DOUBT_OTHER_KIND
    levels = tuple(replace(link, ranks=topology.ranks_per_host) for link in inside)
    return Links(levels=levels, doubt=doubt) if levels else None


def _reached(level: Level) -> Level:
    """A rate that was imported from a log was reached, so its share of the nominal rate is 1."""
    return replace(level, share=1.0) if level.link_class == MEASURED and level.share is None else level


def _hops(link: Link, name: str, ranks: int | None, own: Topology, source: Source) -> tuple[Hops, float]:
    alpha = source.link.alpha
    if link.latency_us is not None:
        alpha = PerHop(sizes=(1,), values=np.full((len(source.plain), 1), link.latency_us * 1e3))
    rate = link.rate_bit_s
    measured_rate = own.link.rate_bit_s if own.hosts_of(source.world_size) > 1 else None
    if rate is None:
        beta, doubt = source.link.beta_ns, DOUBT_UNKNOWN
    elif link.share is not None:
        beta, doubt = np.full(len(source.plain), 8e9 / (rate * link.share)), DOUBT_SHARE
    elif measured_rate is not None:
        beta = source.link.beta_ns * (measured_rate / rate)
        doubt = 0.0 if own.kind == "emulated" and name == "network" else DOUBT_OTHER_KIND
    else:
        beta, doubt = np.full(len(source.plain), 8e9 / (rate * SHARE_UNKNOWN)), DOUBT_UNKNOWN
    return Hops(name=name, ranks=ranks, alpha=alpha, beta_ns=beta), doubt
