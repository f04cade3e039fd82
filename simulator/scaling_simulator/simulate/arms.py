"""What a run's arms give a simulation: a rank's step alone, and what ranks cost each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean

from scaling.analysis.results import Point
from scaling.records.tables import Tables
from scaling.spec.topology import Topology
from scaling_simulator.simulate.inputs import Range
from scaling_simulator.simulate.spread import spread_of


@dataclass(frozen=True, slots=True, kw_only=True)
class BetweenRanks:
    """What makes ranks slower than one alone; None: the run does not say it of the machine that is asked for."""

    slowdown: Range | None
    """Of kernels while communication runs."""
    spread: tuple[Range, Range] | None
    neighbours: Range | None


def between_ranks(
    points: Sequence[Point], tables: Tables, own: Topology, asked: Topology, *, elsewhere: bool
) -> BetweenRanks:
    """What a run on `own` says of `asked`; `elsewhere`: that has other devices.

    What ranks of a CPU cost each other is not taken for an accelerator, nor what one back end's transfers cost kernels
    for another's, nor what neighbours do where another number of ranks shares a host. A back end of the host's, Gloo,
    takes processor time for each byte, so kernels are slowed in proportion to the rate at which bytes go.
    """
    foreign = elsewhere and own.device == "cpu"
    crowded = not elsewhere and asked.ranks_per_host == own.ranks_per_host
    slower = None if foreign or asked.backend != own.backend else slowdown(points)
    if slower is not None and own.backend == "gloo" and own.link.rate_bit_s and asked.link.rate_bit_s:
        slower = slower.times(asked.link.rate_bit_s / own.link.rate_bit_s)
    return BetweenRanks(
        slowdown=slower,
        spread=None if foreign else spread_of(tables),
        neighbours=neighbours(points) if crowded else None,
    )


def alone_ns(points: Sequence[Point]) -> float | None:
    """The step of one rank alone, mean over the world sizes beside which it was measured; None where it was not."""
    found = [p.arms_ms.bare_one.value for p in points if p.arms_ms and p.arms_ms.bare_one]
    return mean(found) * 1e6 if found else None


def neighbours(points: Sequence[Point]) -> Range | None:
    """By how much a step of bare compute is longer where all ranks are at work, at the largest world size.

    The share that the waterfall has is (bare_all - bare_one) / plain, paired in each round; this is the same over
    bare_one. None where the arms were left out.
    """
    for point in sorted(points, key=lambda p: -p.world_size):
        arms, loss = point.arms_ms, point.loss
        if point.world_size < 2 or arms is None or loss is None:
            continue
        if arms.bare_one is None or arms.plain is None or loss.neighbours is None:
            continue
        share, over = loss.neighbours, arms.plain.value / arms.bare_one.value
        ends = [share.value if end is None else end for end in (share.low, share.high)]
        return Range(value=share.value * over, low=ends[0] * over, high=ends[1] * over)
    return None


def slowdown(points: Sequence[Point]) -> Range | None:
    """s, where kernels take 1 + s times as long under communication: h of hidden transfer then costs h s / (1 + s)."""
    for point in reversed(points):
        if (
            point.loss is None
            or point.loss.overlap is None
            or point.arms_ms is None
            or point.arms_ms.plain is None
        ):
            continue
        comm = point.comm
        if comm is None or comm.hidden_share is None or not comm.buckets:
            continue
        busy = sum(b.transfer_ms.value for b in comm.buckets if b.transfer_ms is not None)
        hidden = comm.hidden_share.value * busy
        if hidden <= 0:
            continue
        overlap, plain = point.loss.overlap, point.arms_ms.plain.value

        def of(share: float | None, default: float, hidden: float = hidden, plain: float = plain) -> float:
            extra = max(0.0, (default if share is None else share) * plain)
            return extra / max(hidden - extra, 0.2 * hidden)

        value = of(overlap.value, overlap.value)
        return Range(value=value, low=of(overlap.low, overlap.value), high=of(overlap.high, overlap.value))
    return None
