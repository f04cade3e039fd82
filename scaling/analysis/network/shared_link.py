"""Groups whose collectives go over one host's link at the same time.

Along an axis of a mesh every group sends at once. Where a host has ranks of several groups that also have ranks on
other hosts, its one link carries what all of them send, and each has an equal part of it, as the collectives of one
rank have (network.channel). So over the time that a collective of a group takes,

    on the link   integral of 1 / (all that moves data over the host's link)
    alone         its part of what its rank sends (network.channel), times the mean of 1 / (groups at this collective)

The first ones add up to the time in which the link is busy, however it was divided, and none is longer than its group
took. The second one is what a replay starts from: groups that begin together then end together, behind their sum.

Arrays: S steps, R ranks, K collectives; times in ns.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from scaling.analysis.network.channel import HOSTS_OWN, ONE, ChannelOf, Flow, channels
from scaling.analysis.statistics.rounds import Floats
from scaling.records.tables import Tables
from scaling.settings.plan import Plan

Worth = Callable[[Floats], Floats]


def any_open(count: Floats) -> Floats:
    """1 while there is one."""
    return (count > 0).astype(float)


def equal_parts(count: Floats) -> Floats:
    """What each has of a thing that they share."""
    return np.where(count > 0, 1 / np.maximum(count, 1.0), 0.0)


def covered(begin: Floats, end: Floats, low: Floats, high: Floats, worth: Worth = any_open) -> Floats:
    """S x Q: the integral from `low` to `high` of `worth(how many are open)`.

    `begin`, `end`: S x N, no end before its begin. `low`, `high`: S x Q.
    """
    many, asked = begin.shape[1], low.shape[1]
    at = np.concatenate([begin, end, low, high], axis=1)
    order = np.argsort(at, axis=1, kind="stable")  # what begins and ends at once begins first
    change = np.zeros(at.shape)
    change[:, :many], change[:, many : 2 * many] = 1.0, -1.0
    count = np.cumsum(np.take_along_axis(change, order, axis=1), axis=1)[:, :-1]
    worths = np.diff(np.take_along_axis(at, order, axis=1), axis=1) * worth(count)
    so_far = np.concatenate([np.zeros((len(at), 1)), np.cumsum(worths, axis=1)], axis=1)
    until = np.empty_like(at)
    np.put_along_axis(until, order, so_far, axis=1)
    result: Floats = until[:, 2 * many + asked :] - until[:, 2 * many : 2 * many + asked]
    return result


Group = tuple[int, ...]
Members = tuple[Group, ...]
"""Groups of ranks that take part in a collective together; each rank is in one of them."""


def over_groups(values: Floats, members: Members, extreme: Callable[..., Floats]) -> Floats:
    """S x R: the extreme (np.max or np.min) of `values`, S x R, over the ranks of each rank's group."""
    extremes: Floats = values.copy()
    for group in members:
        ranks = list(group)
        extremes[:, ranks] = extreme(values[:, ranks], axis=1, keepdims=True)
    return extremes


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedLink:
    """The hosts of ranks, where whatever leaves a host goes over one link."""

    hosts: tuple[int, ...] = ()
    """R; empty: no rank is known to share its link with another."""

    def shared(self, members: Members) -> Mapping[int, tuple[Group, ...]]:
        """By host the groups of a collective that leave it, where they are several."""
        return {host: groups for host, groups in _leaving(self.hosts, members).items() if len(groups) > 1}

    def many(self, members: Members) -> int:
        """The most groups of a collective that share a link."""
        return max(map(len, self.shared(members).values()), default=1)

    def shares(
        self, begun: Floats, finished: Floats, members: Sequence[Members], transfer: Floats
    ) -> tuple[Floats, Floats]:
        """(of a rank's group alone, of all groups of the collective on the link), S x R x K.

        `begun`, `finished`: S x R x K, equal for the ranks of a group. `transfer`: its part of what its rank sends.
        """
        alone, together = transfer.copy(), transfer.copy()
        for k, all_groups in enumerate(members):
            for groups in set(self.shared(all_groups).values()):
                low, high = (np.stack([at[:, g[0], k] for g in groups], axis=1) for at in (begun, finished))
                part = covered(low, high, low, high, equal_parts) / np.maximum(high - low, _SHORT_NS)
                for group, mean in zip(groups, part.T, strict=True):
                    ranks = list(group)
                    alone[:, ranks, k] = np.minimum(alone[:, ranks, k], transfer[:, ranks, k] * mean[:, None])
        for host, sent in self._sent(members).items():
            low, high = (np.stack([at[:, g[0], k] for k, g in sent], axis=1) for at in (begun, finished))
            on_link: dict[int, Floats] = {}
            for (k, _), part in zip(sent, covered(low, high, low, high, equal_parts).T, strict=True):
                on_link[k] = on_link.get(k, 0.0) + part
            for k, group in sent:
                here = [rank for rank in group if self.hosts[rank] == host]
                together[:, here, k] = on_link[k][:, None]
        return alone, together

    def moving(
        self, begun: Floats, finished: Floats, members: Sequence[Members], low: Floats, high: Floats
    ) -> Floats:
        """S x R x Q: for how long between `low` and `high` a rank's collectives move data, or others over its link."""
        durations: Floats = np.empty_like(low)
        sent = self._sent(members)
        for rank in range(begun.shape[1]):
            others = sent.get(self.hosts[rank], ()) if self.hosts else ()
            begins, ends = (
                np.concatenate([at[:, rank], *(at[:, group[0], k, None] for k, group in others)], axis=1)
                for at in (begun, finished)
            )
            durations[:, rank] = covered(begins, ends, low[:, rank], high[:, rank])
        return durations

    def slowed(self, released: Floats, transfer: Floats, members: Members) -> Floats:
        """S x R: what a collective takes beside its other groups; `transfer`, S x R: what each group takes alone."""
        durations: Floats = transfer.copy()
        for groups in set(self.shared(members).values()):
            first = [group[0] for group in groups]
            flow = Flow(ONE, (len(released), 1), len(groups))
            for k, rank in enumerate(first):
                flow.launch(k, released[:, [rank]], transfer[:, [rank]])
            for k, group in enumerate(groups):
                took, ranks = flow.end(k) - released[:, [first[k]]], list(group)
                durations[:, ranks] = np.maximum(durations[:, ranks], took)
        return durations

    def evened(self, transfer: Floats, members: Sequence[Members]) -> Floats:
        """S x R x K: the mean over the groups that leave the same hosts, which chance alone treats unequally."""
        means: Floats = transfer.copy()
        for k, all_groups in enumerate(members):
            for groups in set(self.shared(all_groups).values()):
                ranks = [rank for group in groups for rank in group]
                means[:, ranks, k] = np.mean([transfer[:, g[0], k] for g in groups], axis=0)[:, None]
        return means

    def _sent(self, members: Sequence[Members]) -> dict[int, list[tuple[int, Group]]]:
        """By host that has several groups of a collective, what leaves it: collectives and groups."""
        several = {host for all_groups in set(members) for host in self.shared(all_groups)}
        by_host: dict[int, list[tuple[int, Group]]] = {host: [] for host in sorted(several)}
        for k, all_groups in enumerate(members):
            for host, groups in _leaving(self.hosts, all_groups).items() if several else ():
                if host in several:
                    by_host[host] += [(k, group) for group in groups]
        return by_host


_SHORT_NS = 1e-3
"""No collective takes less."""
APART = SharedLink()
"""Ranks with links of their own."""


@lru_cache(maxsize=256)
def _leaving(hosts: tuple[int, ...], members: Members) -> Mapping[int, tuple[Group, ...]]:
    """By host the groups with ranks on it and elsewhere."""
    by_host: dict[int, list[Group]] = {}
    for group in members if hosts else ():
        at = {hosts[rank] for rank in group}
        for host in at if len(at) > 1 else ():
            by_host.setdefault(host, []).append(group)
    return {host: tuple(groups) for host, groups in by_host.items()}


Groups = Callable[[int, int], tuple[int, ...]]
"""The ranks of a communicator: (rank, its key in the records)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """How a run's collectives reach other ranks."""

    channel: ChannelOf
    groups: Groups
    beside: SharedLink = APART


def served(tables: Tables, plan: Plan) -> Served:
    """All of it, from the heads of the rank files and the plan; a communicator that none names is the rank alone."""
    ranks_of_group = {(file.rank, key): ranks for file in tables.ranks for key, ranks in file.groups.items()}
    return Served(
        channel=channels(tables, plan),
        groups=lambda rank, key: ranks_of_group.get((rank, key), (rank,)),
        beside=links(tables, plan),
    )


def links(tables: Tables, plan: Plan) -> SharedLink:
    """Which ranks' collectives leave their host over one link: of a host's back end, which has one interface there."""
    if plan.spec.topology.backend not in HOSTS_OWN:
        return APART
    host = {file.rank: file.host for file in tables.ranks}
    most = min(max(host, default=-1) + 1, plan.ranks)
    # a rank without records is on a host of its own
    return SharedLink(hosts=tuple(host.get(rank, -1 - rank) for rank in range(most)))
