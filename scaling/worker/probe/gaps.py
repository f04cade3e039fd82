"""Classify gaps between the steps of a loop: fetching a batch, or a pause for something else."""

from __future__ import annotations

import statistics
from collections import deque

PAUSE_NS, TIMES, USUAL = 1_000_000_000, 10, 16
"""A gap is a pause if it is longer than PAUSE_NS and TIMES the median of the last USUAL gaps."""


class Gaps:
    """The last gaps in which a batch was fetched."""

    def __init__(self) -> None:
        self._usual: deque[int] = deque(maxlen=USUAL)

    def is_pause(self, gap_ns: int, *, elsewhere: bool) -> bool:
        """Whether the gap is a pause; others are kept. `elsewhere`: the loop is known to have done something else."""
        unusual = len(self._usual) == USUAL and gap_ns > TIMES * max(statistics.median(self._usual), 1)
        if elsewhere or (gap_ns > PAUSE_NS and unusual):
            return True
        self._usual.append(gap_ns)
        return False
