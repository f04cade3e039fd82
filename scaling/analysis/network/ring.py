"""All-reduce over links of several levels: within a host, between hosts.

A ring over n ranks that fill one host after the other takes 2 (n-1) steps. A chunk passes every edge in
turn, so latencies add up over the edges that it crosses; all edges work at once, so the slowest sets the pace:

    T(m) = 2 (n-1) (alpha + m beta / n),   alpha = mean over the edges,   beta = the largest over the levels in use

where beta of a level between hosts is that of a whole host's link. NCCL's own cost model for its ring counts the
same edges (src/graph/tuning.cc: nsteps - nInterSteps and nInterSteps hops, the ring's least bandwidth).

What a collective moves over each link, as nccl-tests counts it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from scaling.analysis.statistics.rounds import Floats


class NoPathError(ValueError):
    """The known levels do not connect all ranks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PerHop:
    """Time of a hop beyond bandwidth, ns, by size of the message: a segmented ring hides latency in large ones."""

    sizes: tuple[int, ...]
    """J, rising, bytes."""
    values: Floats
    """S x J."""

    def at(self, size: float) -> Floats:
        """S: linear in the logarithm of the size between known sizes, constant beyond them."""
        knots = np.log(self.sizes)
        place = float(np.interp(np.log(max(size, 1.0)), knots, np.arange(len(knots))))
        left = min(int(place), len(knots) - 1)
        right = min(left + 1, len(knots) - 1)
        result: Floats = self.values[:, left] + (place - left) * (
            self.values[:, right] - self.values[:, left]
        )
        return result


@dataclass(frozen=True, slots=True, kw_only=True)
class Hops:
    """One level of links; beta in ns/byte, S."""

    name: str
    ranks: int | None
    """How many ranks it connects; None: any number."""
    alpha: PerHop
    beta_ns: Floats

    def part(self, stretch: slice) -> Hops:
        """A stretch of the S; slice(1): the estimates alone."""
        alpha = replace(self.alpha, values=self.alpha.values[stretch])
        return replace(self, alpha=alpha, beta_ns=self.beta_ns[stretch])


def ring_times(
    levels: Sequence[Hops], ranks: int | Sequence[int], sizes: Sequence[float], *, beside: float = 1.0
) -> tuple[Floats, Floats]:
    """(latency, rest) of an all-reduce of each size over a ring of ranks, ns, S x K.

    `levels` from the innermost out. `ranks`: how many of the first ones, or which, by their places: host after host.
    `beside`: how many times a rank's bytes a host's link carries (shared_link.Placed). NoPathError where the levels do
    not join the ranks.
    """
    places = np.arange(ranks) if isinstance(ranks, int) else np.asarray(ranks)
    n = len(places)
    after = np.roll(places, -1)
    left = np.ones(n, bool)  # edges that no level has joined yet
    hops: list[tuple[int, Hops]] = []
    for level in levels:
        joined = left if level.ranks is None else left & (places // level.ranks == after // level.ranks)
        if n > 1 and joined.any():
            hops.append((int(joined.sum()), level))
        left = left & ~joined
    if n > 1 and left.any():
        reach = max((level.ranks or 0 for level in levels), default=1)
        raise NoPathError(f"{levels[-1].name if levels else 'no link'} joins {reach} ranks")
    latency = [sum((count * level.alpha.at(size) for count, level in hops), np.zeros(1)) for size in sizes]
    betas = [np.atleast_1d(level.beta_ns) * (beside if level.ranks is None else 1.0) for _, level in hops]
    beta = np.max(betas, axis=0) if hops else np.zeros(1)
    rest = [2 * (n - 1) / n * size * beta for size in sizes]
    return np.stack(latency, axis=-1) * 2 * (n - 1) / n, np.stack(rest, axis=-1)


SHARED = {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1, "all_to_all": 1}
"""busbw / algbw over (n-1)/n, for collectives in which each rank keeps its own part."""
WHOLE = ("broadcast", "reduce", "gather", "scatter", "send", "recv", "send_recv")
"""Collectives whose busbw is their algbw."""


def bus_factor(world_size: int, collective: str = "all_reduce") -> float:
    """busbw / algbw of a collective (nccl-tests, doc/PERFORMANCE.md). KeyError for other names."""
    return 1.0 if collective in WHOLE else SHARED[collective] * (world_size - 1) / world_size
