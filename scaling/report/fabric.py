"""The measured links and the paths that NCCL chose, as sentences."""

from __future__ import annotations

from scaling.analysis.results import Fabric, NcclLog
from scaling.plain import plain
from scaling.report.findings import level_line
from scaling.report.text import ranks
from scaling.units import format_bytes


def fabric_lines(fabric: Fabric) -> tuple[str, ...]:
    """A line for each level that was swept, then NCCL's paths."""
    return (*map(level_line, fabric.levels), *nccl_lines(fabric.nccl))


def nccl_lines(log: NcclLog | None) -> tuple[str, ...]:
    """NCCL's transports, a line for each world size, and its algorithms where its log names them."""
    if log is None:
        return ()
    name = f"NCCL {plain(log.version)}" if log.version else "NCCL"
    lines = []
    for group in log.groups:
        over = ", ".join(map(plain, group.transports)) or "no channel of its own"
        adds = " and ".join(group.in_network)
        above = f"; with {adds} the switches add up: a share above 100 % is no error" if adds else ""
        lines.append(f"{name}, {ranks(group.world_size)}: {over}{above}")
    lines += [
        f"{plain(choice.collective)} by {plain(choice.algorithm)}, {plain(choice.protocol)}: "
        f"{format_bytes(choice.bytes_min)} to {format_bytes(choice.bytes_max)}"
        for choice in log.choices
    ]
    return tuple(lines)
