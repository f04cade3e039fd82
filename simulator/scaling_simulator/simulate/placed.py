"""Where the ranks of a mesh's communicators lie, and what their collectives put on the link of a host.

A ring sends from each rank of a group to the next one. Each of its edges carries what nccl-tests' bus factor counts:
2 (n-1)/n m of an all-reduce of m bytes, (n-1)/n m of an all-gather or a reduce-scatter. An exchange sends from every
rank to every other one, m / n bytes each: an all-to-all, and the reduce-scatter over Gloo here. All groups of an axis
communicate at the same time. So the busiest link of a host carries, for each byte that the bus factor counts,

    ring: the edges of all groups that leave the host      exchange: the pairs of ranks here and elsewhere / (n - 1)

These are equal where each rank of a group has a host of its own. Over Gloo all-gathers are exchanges there, else rings.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from scaling.analysis.network.channel import HOSTS_OWN
from scaling.analysis.network.shared_link import Members
from scaling.settings.topology import Topology


def exchanged(backend: str) -> tuple[str, ...]:
    """Kinds in which every rank sends to every other: over a host's back end the reduce-scatter too."""
    return ("all_to_all", "reduce_scatter") if backend in HOSTS_OWN else ("all_to_all",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """The groups of one axis on their hosts."""

    size: int
    """Ranks of a group."""
    local: int
    """Most ranks of a group on one host."""
    hosts: int
    """Most hosts of a group."""
    places: tuple[int, ...]
    """Host of each rank in the group whose ring crosses hosts most often, in ring order (input of `ring_times`)."""
    ring: float
    """What a host's link carries for each byte of a rank's wire where the groups go round rings; 0 within hosts."""
    exchange: float
    """Load per byte of a rank's wire where every rank sends to every other."""

    @property
    def across(self) -> bool:
        """Whether a group's ranks are on several hosts."""
        return self.hosts > 1

    def carried(self, kind: str, backend: str) -> float:
        """What the busiest link of a host carries for each byte of a rank's wire, of a kind of collective."""
        return self.exchange if kind in exchanged(backend) else self.ring


def place(groups: Members, topology: Topology) -> Placed:
    """Groups of equally many ranks, which communicate at the same time, on a topology's hosts."""
    rings: Counter[int] = Counter()
    pairs: Counter[int] = Counter()
    size, local, hosts = len(groups[0]), 1, 1
    worst, crossing = groups[0], -1
    for group in groups:
        at = [topology.host_of(rank) for rank in group]
        here = Counter(at)
        local, hosts = max(local, *here.values()), max(hosts, len(here))
        for host, count in here.items():
            pairs[host] += count * (size - count)
        leaving = [a for a, b in zip(at, (*at[1:], at[0]), strict=True) if a != b]
        rings.update(leaving)
        if len(leaving) > crossing:
            worst, crossing = group, len(leaving)
    return Placed(
        size=size,
        local=local,
        hosts=hosts,
        places=tuple(topology.host_of(r) * topology.ranks_per_host + topology.local_of(r) for r in worst),
        ring=float(max(rings.values(), default=0)),
        exchange=max(pairs.values()) / max(1, size - 1),
    )
