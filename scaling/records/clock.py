"""Move one rank's stamps onto rank 0's clock, using the clock comparisons in its file.

Between two comparisons the offset is interpolated. Before the first and after the last one it continues at the rate of
the nearest stretch that is long enough. Each comparison has an error up to its own bound, so over a short stretch the
rate would be mostly error.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from scaling.records.format import ClockRecord

Ints = NDArray[np.int64]

STRETCH_NS = 60_000_000_000
"""A stretch of this length is long enough: with bounds of 20 us its rate is known to 0.7 us per second."""
DRIFT = 20e-6
"""Assumed drift between two kernels' clocks where nothing better is known: ns per ns, so 20 us per second."""


class Compared(NamedTuple):
    """A comparison with rank 0's clock, as ClockRecord has it; shifts go to other processes, so it has to be small."""

    time_ns: int
    offset_ns: int
    bound_ns: int


class Shift:
    """Moves a rank's stamps onto rank 0's clock.

    Stamps stay as they are while every offset is within its own bound: network namespaces and ranks of a host share
    a clock, and a correction would only add the measurement's error.
    """

    def __init__(self, clocks: Sequence[ClockRecord]) -> None:
        compared = (Compared(c.time_ns, c.offset_ns, c.bound_ns) for c in clocks)
        self._clocks = sorted(compared, key=lambda clock: clock.time_ns)
        self.still = all(abs(c.offset_ns) <= c.bound_ns for c in clocks)
        self.bend_ns = 0 if self.still else _bend_ns(self._clocks)
        """By how much the offset left the line between two comparisons at one between them, beyond their errors."""
        self._before = _drift(self._clocks)
        self._after = _drift(self._clocks[::-1])

    def at(self, times_ns: Ints) -> Ints:
        """The stamps on rank 0's clock, ns; 0 means "not taken" and stays 0."""
        if self.still:
            return times_ns
        first = self._clocks[0]  # subtract its numbers first, since floats have fewer digits
        known_ns = np.array([c.time_ns - first.time_ns for c in self._clocks], dtype=np.float64)
        offsets_ns = np.array([c.offset_ns - first.offset_ns for c in self._clocks], dtype=np.float64)
        since_ns = (times_ns - first.time_ns).astype(np.float64)
        moved_ns = np.interp(since_ns, known_ns, offsets_ns)
        moved_ns += self._before[0] * np.minimum(since_ns, 0.0)
        moved_ns += self._after[0] * np.maximum(since_ns - known_ns[-1], 0.0)
        return np.where(times_ns == 0, 0, times_ns - first.offset_ns - np.rint(moved_ns).astype(np.int64))

    def bound_ns(self, times_ns: Sequence[int]) -> int | None:
        """Largest error of these stamps on rank 0's clock, ns; None where the clocks were never compared."""
        if not self._clocks:
            return None
        largest_ns = max(c.bound_ns for c in self._clocks) + self.bend_ns
        if self.still or not times_ns:
            return largest_ns
        first, last = self._clocks[0], self._clocks[-1]
        before_ns = first.bound_ns + self._before[1] * max(0, first.time_ns - min(times_ns))
        after_ns = last.bound_ns + self._after[1] * max(0, max(times_ns) - last.time_ns)
        return math.ceil(max(largest_ns, before_ns, after_ns))


def _bend_ns(clocks: Sequence[Compared]) -> int:
    """The largest bend over three comparisons one after the other, ns; 0 with fewer, or where their errors explain it.

    Between two of them the clock may bend as much, so the errors of stamps there may be larger by this.
    """
    most = 0.0
    for before, here, after in zip(clocks, clocks[1:], clocks[2:], strict=False):
        share = (here.time_ns - before.time_ns) / max(1, after.time_ns - before.time_ns)
        line_ns = share * (after.offset_ns - before.offset_ns)
        error_ns = here.bound_ns + (1 - share) * before.bound_ns + share * after.bound_ns
        most = max(most, abs(here.offset_ns - before.offset_ns - line_ns) - error_ns)
    return math.ceil(most)


def _drift(clocks: Sequence[Compared]) -> tuple[float, float]:
    """(rate, bound) in ns per ns: how the offset continues beyond the first of `clocks`, and the rate's largest error.

    The rate is 0 where its error is as large as what it would correct; the bound then covers the drift that remains.
    """
    if not clocks:
        return 0.0, 0.0
    end = clocks[0]
    far = next((c for c in clocks if abs(c.time_ns - end.time_ns) >= STRETCH_NS), clocks[-1])
    span_ns = far.time_ns - end.time_ns
    if span_ns == 0:
        return 0.0, DRIFT
    rate = (far.offset_ns - end.offset_ns) / span_ns
    bound = (far.bound_ns + end.bound_ns) / abs(span_ns)
    if bound < min(abs(rate), DRIFT):
        return rate, bound
    return 0.0, min(abs(rate) + bound, DRIFT)
