"""Choose the ranks of a step that are drawn where a figure has no room for all: extremes, then typical ones."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from scaling.analysis.results import Drawn
from scaling.analysis.statistics.rounds import Floats

RANKS_MAX = 16
"""At most this many ranks are drawn."""
SLOWEST, HOSTS = 5, 3
"""Of them the slowest ranks, and the slowest rank of each of the slowest other hosts."""


def drawn(own_ns: Floats, hosts: Sequence[int]) -> Drawn | None:
    """None for up to RANKS_MAX ranks. `own_ns`: R, each rank's own step; `hosts`: R, the host of each."""
    if len(own_ns) <= RANKS_MAX:
        return None
    order = np.argsort(-own_ns, kind="stable").tolist()
    slowest = order[:SLOWEST]
    of_hosts = _of_hosts(own_ns, order, hosts, {hosts[rank] for rank in slowest})
    taken = {*slowest, *(rank for _, rank in of_hosts)}
    away = np.argsort(np.abs(own_ns - np.median(own_ns)), kind="stable").tolist()
    typical = [rank for rank in away if rank not in taken][: RANKS_MAX - len(taken)]
    return Drawn(slowest=tuple(slowest), of_hosts=tuple(of_hosts), typical=tuple(sorted(typical)))


def _of_hosts(
    own_ns: Floats, order: Sequence[int], hosts: Sequence[int], besides: set[int]
) -> list[tuple[int, int]]:
    """`order`: all ranks, the slowest first. `besides`: hosts that are drawn already."""
    names, at, ranks = np.unique(np.array(hosts), return_inverse=True, return_counts=True)
    if ranks.max() == 1:  # then the slowest hosts are the slowest ranks
        return []
    means = np.bincount(at, own_ns) / ranks
    worst = [host for host in names[np.argsort(-means, kind="stable")].tolist() if host not in besides]
    first = {hosts[rank]: rank for rank in reversed(order)}
    return [(host, first[host]) for host in worst[:HOSTS]]
