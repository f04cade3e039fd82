"""Count what this rank has finished, in memory that the host's sampler reads (scaling/hardware/pulse.py).

A beat is a step, a collective or a phase that has returned. Counting writes eight bytes of memory and calls nothing,
so that it may stand between timed steps.
"""

from __future__ import annotations

import mmap
import os

BEATS = "scaling-beats"
"""Name of the memory."""

_count = memoryview(bytearray(8)).cast("q")


def share() -> None:
    """Make the count visible to the sampler. The memory has no name in any folder and ends with this process."""
    global _count  # noqa: PLW0603  one count a process
    memory = os.memfd_create(BEATS)
    os.truncate(memory, 8)
    _count = memoryview(mmap.mmap(memory, 8)).cast("q")


def beat() -> None:
    """Something was finished."""
    _count[0] += 1
