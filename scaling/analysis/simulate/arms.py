"""What a run's arms give a simulation: a rank's step alone, and what ranks cost each other that compute at once."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mean

from scaling.analysis.results import Point
from scaling.analysis.simulate.inputs import Range


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
