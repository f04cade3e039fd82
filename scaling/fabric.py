"""Hosts, ranks on each, and what joins them. Frozen facts, checked by `scaling.check_topology`."""

from __future__ import annotations

from dataclasses import dataclass, field

PLACEMENTS = ("packed", "spread")
TCP_PAYLOAD_SHARE = 1448 / 1514
"""TCP payload over Ethernet frame at MTU 1500 with timestamps: what a shaped link can carry for its users."""
MULTI_RANK = "NCCL_MULTI_RANK_GPU_ENABLE"
"""Set to 1, lets NCCL from 2.30 on join several ranks of one device (NCCL, src/init.cc)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """One host's link to the others. `rate_bit_s` is the line rate in one direction, None where unknown."""

    rate_bit_s: int | None = None
    share: float | None = None
    """Of the rate, what an all-reduce is known to reach; None where that is not known."""
    latency_us: float | None = None
    """Of one hop; None where that is not known."""
    source: str = ""
    """Where these come from; printed beside every number that is divided by the rate."""

    @property
    def nominal_bit_s(self) -> float | None:
        """What the link can carry for TCP's users, bit/s."""
        return None if self.rate_bit_s is None else self.rate_bit_s * TCP_PAYLOAD_SHARE


@dataclass(frozen=True, slots=True, kw_only=True)
class Level(Link):
    """What joins ranks of one host; the rate is that of a rank."""

    name: str
    ranks: int
    """How many it joins; ranks fill one group before the next."""
    link_class: str = ""
    """As `nvidia-smi topo -m` names it (NV12, PIX, SYS), or `measured`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Nic:
    """A network card, and the devices of its host that are nearest to it."""

    name: str
    near: tuple[int, ...]
    link_class: str = ""
    rate_bit_s: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """Hosts, ranks on each, and what joins them."""

    name: str
    kind: str
    """`local`, `emulated` or `slurm`: which launcher it takes."""
    hosts: int
    ranks_per_host: int
    device: str
    """`cpu` or `cuda`."""
    backend: str
    """`gloo` or `nccl`: what carries the gradients."""
    link: Link = field(default_factory=Link)
    levels: tuple[Level, ...] = ()
    """Within a host, from the innermost out; only predictions read them."""
    islands: tuple[tuple[int, ...], ...] = ()
    """Devices of a host that its nearest class of link joins; drawn, not computed with."""
    numa: tuple[tuple[int, ...], ...] = ()
    nics: tuple[Nic, ...] = ()
    placement: str = "packed"
    """`packed`: ranks fill one host before the next; `spread`: they go round the hosts, one each at a time."""
    note: str = ""
    """Said wherever the results are shown, for instance that an emulated link is scaled down."""

    @property
    def capacity(self) -> int:
        """The largest world size it holds."""
        return self.hosts * self.ranks_per_host

    @property
    def spread(self) -> bool:
        """Whether ranks go round the hosts."""
        return self.placement == "spread"

    def host_of(self, rank: int) -> int:
        """The host a rank runs on."""
        return rank % self.hosts if self.spread else rank // self.ranks_per_host

    def local_of(self, rank: int) -> int:
        """A rank's place on its host."""
        return rank // self.hosts if self.spread else rank % self.ranks_per_host

    def hosts_of(self, world_size: int) -> int:
        """How many hosts the first `world_size` ranks touch."""
        return min(world_size, self.hosts) if self.spread else -(-world_size // self.ranks_per_host)

    def shares(self, world_size: int) -> tuple[int, ...]:
        """How many of the first `world_size` ranks each host runs."""
        hosts = [self.host_of(rank) for rank in range(world_size)]
        return tuple(hosts.count(host) for host in range(self.hosts_of(world_size)))

    def started(self, world_size: int) -> tuple[int, ...]:
        """The first `world_size` ranks in the order in which torchrun numbers their processes: host by host."""
        return tuple(sorted(range(world_size), key=lambda rank: (self.host_of(rank), self.local_of(rank))))

    def nominal_bit_s(self, world_size: int, at_work: int = 0) -> float | None:
        """What a ring over the first `world_size` ranks can have of a host's link; None where that is not known.

        Packed, one edge of the ring leaves each host. Spread ranks that share a host share its link
        between as many edges as the backend's order of the ring has, which is the backend's to choose.
        `at_work`: ranks that communicate meanwhile, these and those of other rings.
        """
        shared = self.spread and max(world_size, at_work) > self.hosts
        return self.link.nominal_bit_s if self.hosts_of(world_size) > 1 and not shared else None
