"""What a log of nccl-tests shows without saying it: its collective, its ranks and its hosts."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from scaling.traces.machines.nccl_section import FACTORS, Row, Section

_IN_NAME = re.compile(
    r"all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|broadcast|send_?recv", re.IGNORECASE
)
_NODES_IN_NAME = re.compile(r"(?<![0-9])([1-9]\d{0,4})[_-]?(?:nodes?|hosts?)(?![a-z])", re.IGNORECASE)
_COLLECTIVES = {
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "reducescatter": "reduce_scatter",
    "alltoall": "all_to_all",
    "broadcast": "broadcast",
    "sendrecv": "send_recv",
}
LARGE_BYTES = 1 << 20
"""Rows from this size on show the factor of their collective; smaller ones have too few digits."""
ROUNDED_GB_S = 0.005
"""nccl-tests prints bandwidths to 0.01 GB/s."""
ONE_HOST_MAX = 8
"""So many ranks are taken for one host where nothing tells how many hosts there were."""


def complete(section: Section, where: str) -> None:
    """Find the collective, the world size and the hosts from other lines of the section and the file's name."""
    name = Path(where).name
    ratios = [
        r.busbw_gb_s / r.algbw_gb_s for r in section.rows if r.bytes >= LARGE_BYTES and r.algbw_gb_s >= 1
    ]
    ratio = float(np.median(ratios)) if ratios else None
    listed = {d.rank for d in section.devices}
    if listed:  # the middle of a long list is often left out
        section.world_size, section.world_from = max(len(listed), max(listed) + 1), "its device lines"
    named = _IN_NAME.search(name)
    if section.collective is None and named:
        section.collective = _COLLECTIVES[re.sub("_", "", named[0].lower())]
        section.how = "the file's name"
    if section.collective is None and ratio is not None and _reduces_all(ratio, section.world_size):
        section.collective, section.how = "all_reduce", "busbw / algbw"
    bounds = _bounds(section.rows, FACTORS[section.collective]) if section.collective in FACTORS else None
    n = section.world_size
    if bounds is not None and (n is None or not bounds[0] <= n <= bounds[1]):
        section.world_size, section.world_from = _ranks(bounds)
        if n is not None:
            section.world_from += f"; its device lines show {n}, which contradicts it"
    section.hosts, section.hosts_from = _hosts(section, name)


def _reduces_all(ratio: float, world_size: int | None) -> bool:
    """Whether busbw / algbw is an all-reduce's: 2 (n-1)/n is 1 for two ranks, and above 1 only for it."""
    if world_size is None or ratio > 1.01:
        return ratio > 1.01
    return world_size > 1 and abs(ratio - 2 * (world_size - 1) / world_size) < 0.01


def _bounds(rows: Sequence[Row], factor: float) -> tuple[int, int] | None:
    """World sizes that busbw / algbw = factor (n-1)/n allows, as far as their rounding lets it be known."""
    low, high = 0.0, 1.0
    for r in rows:
        if r.bytes < LARGE_BYTES or r.algbw_gb_s < 1:
            continue
        low = max(low, (r.busbw_gb_s - ROUNDED_GB_S) / (r.algbw_gb_s + ROUNDED_GB_S) / factor)
        high = min(high, (r.busbw_gb_s + ROUNDED_GB_S) / (r.algbw_gb_s - ROUNDED_GB_S) / factor)
    if not 0.4 < low < high < 0.99999:
        return None
    return math.ceil(1 / (1 - low) - 1e-9), math.floor(1 / (1 - high) + 1e-9)


def _ranks(bounds: tuple[int, int]) -> tuple[int | None, str]:
    """The one world size within the bounds, or the one power of two."""
    least, most = bounds
    if least == most:
        return least, "busbw / algbw"
    powers = [n for n in range(max(least, 2), most + 1) if n & (n - 1) == 0]
    if len(powers) == 1:
        return (
            powers[0],
            f"busbw / algbw, which are rounded: {least} to {most}, of which one is a power of two",
        )
    return None, f"busbw / algbw, which are rounded: {least} to {most}"


def _hosts(section: Section, name: str) -> tuple[int | None, str]:
    """Number of hosts; None where nothing tells it, or where it does not divide the ranks."""
    n = section.world_size
    found = _NODES_IN_NAME.search(name)
    if section.devices and n == len({d.rank for d in section.devices}):
        hosts, how = len({d.host for d in section.devices}), "its device lines"
    elif found:
        hosts, how = int(found[1]), "the file's name"
    elif n is not None and n <= ONE_HOST_MAX:
        hosts, how = 1, "assumed: the log lists no devices"
    else:
        return None, ""
    return (hosts, how) if n is not None and n % hosts == 0 else (None, "")
