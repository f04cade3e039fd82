"""The one clock of all host stamps."""

from __future__ import annotations

import time


def now_ns() -> int:
    """CLOCK_MONOTONIC_RAW, ns: no time server slews it, so durations are the hardware's own."""
    return time.clock_gettime_ns(time.CLOCK_MONOTONIC_RAW)
