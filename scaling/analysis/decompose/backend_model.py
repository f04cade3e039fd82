"""How the back end of a run serves the collectives of its steps, by where their communicators' ranks lie."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from scaling.analysis.network.channel import Channel
from scaling.analysis.network.shared_link import APART, HOSTS_OWN, SharedLink
from scaling.records.tables import Tables
from scaling.settings.plan import HARNESS, Plan
from scaling.settings.run import KINDS

_IN_TURN = (KINDS.index("all_gather"), KINDS.index("reduce_scatter"))
"""What a communicator of `scaling run` carries one after the other, over a host's back end too."""


Groups = Callable[[int, int], tuple[int, ...]]
"""The ranks of a communicator: (rank, its key in the records)."""


class ChannelOf(Protocol):
    """How the back end of a plan serves the collectives of a step."""

    def __call__(self, communicators: Sequence[int], kinds: Sequence[int] = ()) -> Channel:
        """`communicators`, `kinds`: of each collective, in order; without kinds they are all-reduces."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """How a run's collectives reach other ranks."""

    channel: ChannelOf
    groups: Groups
    beside: SharedLink = APART


def served(tables: Tables, plan: Plan) -> Served:
    """All of it, from the heads of the rank files and the plan."""
    return Served(channel=channels(tables, plan), groups=groups_of(tables), beside=links(tables, plan))


def groups_of(tables: Tables) -> Groups:
    """From the heads of the rank files; a communicator that none names is the rank alone."""
    ranks_of_group = {(file.rank, key): ranks for file in tables.ranks for key, ranks in file.groups.items()}
    return lambda rank, key: ranks_of_group.get((rank, key), (rank,))


def links(tables: Tables, plan: Plan) -> SharedLink:
    """Which ranks' collectives leave their host over one link: of a host's back end, which has one interface there."""
    if plan.spec.topology.backend not in HOSTS_OWN:
        return APART
    host = {file.rank: file.host for file in tables.ranks}
    places = {name: k for k, name in enumerate(dict.fromkeys(host.values()))}
    most = min(max(host, default=-1) + 1, plan.ranks)
    # a rank without records is on a host of its own
    return SharedLink(hosts=tuple(places[host[rank]] if rank in host else -1 - rank for rank in range(most)))


def channels(tables: Tables, plan: Plan) -> ChannelOf:
    """The back end of a plan. Communicators between hosts share a wire, and so do those within hosts."""
    backend = plan.spec.topology.backend
    ordered = backend in HOSTS_OWN and plan.source == HARNESS
    host = {(file.launch, file.rank): file.host for file in tables.ranks}
    across: dict[int, int] = {}
    bounds = [file.clock_bound_ns for file in tables.ranks]
    measured_bounds = [bound for bound in bounds if bound is not None]
    bound = max(measured_bounds, default=0) if len(measured_bounds) == len(bounds) else None
    for file in tables.ranks:
        for key, members in file.groups.items():
            if file.rank == members[0]:  # each group once
                hosts = {host.get((file.launch, rank), file.host) for rank in members}
                across[key] = max(across.get(key, 0), int(len(hosts) > 1))

    def channel(communicators: Sequence[int], kinds: Sequence[int] = ()) -> Channel:
        in_turn = [ordered and kind in _IN_TURN for kind in kinds]
        return Channel.of(backend, communicators, lambda key: across.get(key, 0), bound, in_turn)

    return channel
