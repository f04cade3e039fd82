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

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from scaling.analysis.network.channel import ONE
from scaling.analysis.network.covered import covered, equal_parts
from scaling.analysis.network.flow import Flow
from scaling.analysis.statistics.rounds import Floats

Group = tuple[int, ...]
Members = tuple[Group, ...]
"""Groups of ranks that take part in a collective together; each rank is in one of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Beside:
    """The hosts of ranks, where whatever leaves a host goes over one link."""

    hosts: tuple[int, ...] = ()
    """R; empty: no rank is known to share its link with another."""

    def shared(self, members: Members) -> Mapping[int, tuple[Group, ...]]:
        """By host the groups of a collective that leave it, where they are several."""
        return {host: of for host, of in _leaving(self.hosts, members).items() if len(of) > 1}

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
        for k, of in enumerate(members):
            for groups in set(self.shared(of).values()):
                low, high = (np.stack([at[:, g[0], k] for g in groups], axis=1) for at in (begun, finished))
                part = covered(low, high, low, high, equal_parts) / np.maximum(high - low, _SHORT_NS)
                for group, mean in zip(groups, part.T, strict=True):
                    ranks = list(group)
                    alone[:, ranks, k] = np.minimum(alone[:, ranks, k], transfer[:, ranks, k] * mean[:, None])
        for host, sent in self._sent(members).items():
            low, high = (np.stack([at[:, of[0], k] for k, of in sent], axis=1) for at in (begun, finished))
            on_link: dict[int, Floats] = {}
            for (k, _), part in zip(sent, covered(low, high, low, high, equal_parts).T, strict=True):
                on_link[k] = on_link.get(k, 0.0) + part
            for k, group in sent:
                here = [rank for rank in group if self.hosts[rank] == host]
                together[:, here, k] = on_link[k][:, None]
        return alone, together

    def moving(
        self,
        begun: Floats,
        finished: Floats,
        members: Sequence[Members],
        low: Floats,
        high: Floats,
    ) -> Floats:
        """S x R x Q: for how long between `low` and `high` a rank's collectives move data, or others over its link."""
        found: Floats = np.empty_like(low)
        sent = self._sent(members)
        for rank in range(begun.shape[1]):
            others = sent.get(self.hosts[rank], ()) if self.hosts else ()
            begins, ends = (
                np.concatenate([at[:, rank], *(at[:, of[0], k, None] for k, of in others)], axis=1)
                for at in (begun, finished)
            )
            found[:, rank] = covered(begins, ends, low[:, rank], high[:, rank])
        return found

    def slowed(self, released: Floats, transfer: Floats, members: Members) -> Floats:
        """S x R: what a collective takes beside its other groups; `transfer`, S x R: what each group takes alone."""
        found: Floats = transfer.copy()
        for groups in set(self.shared(members).values()):
            first = [group[0] for group in groups]
            flow = Flow(ONE, (len(released), 1), len(groups))
            for k, rank in enumerate(first):
                flow.launch(k, released[:, [rank]], transfer[:, [rank]])
            for k, group in enumerate(groups):
                took, ranks = flow.end(k) - released[:, [first[k]]], list(group)
                found[:, ranks] = np.maximum(found[:, ranks], took)
        return found

    def evened(self, transfer: Floats, members: Sequence[Members]) -> Floats:
        """S x R x K: the mean over the groups that leave the same hosts, which chance alone treats unequally."""
        found: Floats = transfer.copy()
        for k, of in enumerate(members):
            for groups in set(self.shared(of).values()):
                ranks = [rank for group in groups for rank in group]
                found[:, ranks, k] = np.mean([transfer[:, g[0], k] for g in groups], axis=0)[:, None]
        return found

    def _sent(self, members: Sequence[Members]) -> dict[int, list[tuple[int, Group]]]:
        """By host that has several groups of a collective, what leaves it: collectives and groups."""
        several = {host for of in set(members) for host in self.shared(of)}
        found: dict[int, list[tuple[int, Group]]] = {host: [] for host in sorted(several)}
        for k, of in enumerate(members):
            for host, groups in _leaving(self.hosts, of).items() if several else ():
                if host in several:
                    found[host] += [(k, group) for group in groups]
        return found


_SHORT_NS = 1e-3
"""No collective takes less."""
APART = Beside()
"""Ranks with links of their own."""


@lru_cache(maxsize=256)
def _leaving(hosts: tuple[int, ...], members: Members) -> Mapping[int, tuple[Group, ...]]:
    """By host the groups with ranks on it and elsewhere."""
    found: dict[int, list[Group]] = {}
    for group in members if hosts else ():
        at = {hosts[rank] for rank in group}
        for host in at if len(at) > 1 else ():
            found.setdefault(host, []).append(group)
    return {host: tuple(groups) for host, groups in found.items()}
