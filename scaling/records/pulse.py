"""Whether the ranks of a launch move, from the pulses of its hosts (scaling/hardware/pulse.py)."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping

from scaling.hardware.pulse import SCHEMA, RankPulse
from scaling.reading import parse_json, read_bytes
from scaling.records.paths import LaunchFolder

CPU_SHARE = 0.02
"""A rank that uses less of one core waits: looking at the store every 2 s takes less than a tenth of it."""
IO_BYTES_S = 4096
"""A rank that reads and writes less a second moves no data."""
BYTES_MAX = 1 << 20

Pulse = Mapping[str, RankPulse]
"""Of one host's ranks."""


def read_pulse(launch: LaunchFolder, host: int) -> Pulse:
    """The last pulse of a host; empty where none was written or can be read."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
        data = parse_json(read_bytes(launch.pulse(host), BYTES_MAX))
        if data["schema"] == SCHEMA:
            return {rank: RankPulse(**values) for rank, values in data["ranks"].items()}
    return {}


def has_started(before: Pulse, now: Pulse) -> bool:
    """Whether some rank has been seen for the first time."""
    return not before.keys() >= now.keys()


def has_beaten(before: Pulse, now: Pulse) -> bool:
    """Whether some rank has finished a step, a collective or a phase in between."""
    return any(one.beats != before[rank].beats for rank, one in now.items() if rank in before)


def has_moved(before: Pulse, now: Pulse) -> bool:
    """Whether some rank has used the processor or moved data in between."""
    return any(_moved(before[rank], one) for rank, one in now.items() if rank in before)


def _moved(before: RankPulse, now: RankPulse) -> bool:
    seconds = now.at_s - before.at_s
    used_s, moved_bytes = now.cpu_s - before.cpu_s, now.io_bytes - before.io_bytes
    return used_s > CPU_SHARE * seconds or moved_bytes > IO_BYTES_S * seconds
