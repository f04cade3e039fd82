"""Gaps between the steps of a loop: the batch is fetched there, or something else is done. Pure."""

from __future__ import annotations

import statistics
from collections import deque

PAUSE_NS, TIMES, USUAL = 1_000_000_000, 10, 16
"""A gap longer than this, and so many times the median of that many before it, is no input."""


class Gaps:
    """Those that were input."""

    def __init__(self) -> None:
        self._usual: deque[int] = deque(maxlen=USUAL)

    def is_pause(self, gap_ns: int, *, elsewhere: bool) -> bool:
        """Whether the loop did something else. `elsewhere`: it is known that it did; what is input is kept as usual."""
        unusual = len(self._usual) == USUAL and gap_ns > TIMES * max(statistics.median(self._usual), 1)
        if elsewhere or (gap_ns > PAUSE_NS and unusual):
            return True
        self._usual.append(gap_ns)
        return False
