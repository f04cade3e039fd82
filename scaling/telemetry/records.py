"""telemetry-<host>.jsonl: a head line with what does not change, then one line a sample.

    {"t":"head", "schema":1, "host":..., "hostname":..., "gpus":[...], "nics":[...], ...}
    {"t":"sample", "time_ns":..., "gpus":[...], "system":{...}}

Times are CLOCK_MONOTONIC_RAW of the host, as in its ranks' records, so the two join by time as
they are. A line that was cut off ends the reading.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SCHEMA = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """The state of a host at one time."""

    time_ns: int
    gpus: tuple[dict[str, Any], ...]
    system: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class HostRecord:
    """One host's file."""

    host: int
    hostname: str
    gpus: tuple[dict[str, Any], ...]
    """Facts of each GPU (scaling/telemetry/nvml.py)."""
    nics: tuple[dict[str, Any], ...]
    nodes: dict[str, str]
    acs_bridges: int | None
    samples: tuple[Sample, ...]


def read(path: Path) -> HostRecord | None:
    """A host's file up to its end or to the first line that is not whole; None where there is none to read."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
        head = json.loads(lines[0])
    except (OSError, ValueError, IndexError):
        return None
    if head.get("schema") != SCHEMA:
        return None
    samples = []
    for line in lines[1:]:
        try:
            data = json.loads(line)
            samples.append(Sample(time_ns=data["time_ns"], gpus=tuple(data["gpus"]), system=data["system"]))
        except (ValueError, KeyError):
            break
    return HostRecord(
        host=head["host"],
        hostname=head["hostname"],
        gpus=tuple(head["gpus"]),
        nics=tuple(head["nics"]),
        nodes=head["nodes"],
        acs_bridges=head["acs_bridges"],
        samples=tuple(samples),
    )
