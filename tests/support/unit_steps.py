"""Tables of detailed steps whose collectives belong to units, at known times: one block of the probe's arm."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from scaling.analysis.network.channel import Channel
from scaling.analysis.network.shared_link import APART, Served, SharedLink

MS = 1_000_000
DURATIONS = (
    *("input_ns", "optimizer_ns", "backward_ns", "earlier_wait_ns", "buffer_wait_ns", "forward_wait_ns"),
    *("backward_wait_ns", "input_wait_ns", "optimizer_wait_ns", "host_wait_ns"),
)
UNWAITED = dict.fromkeys((name for name in DURATIONS if "wait" in name), 0)
UNWAITED |= {"buffer_begin_ns": 0, "buffer_end_ns": 0, "tokens": -1, "squared": 0}
"""What a step's row says of waits, broadcasts and tokens where there were none."""


def place(step: int, rank: int) -> dict[str, Any]:
    row = {"launch": 0, "block": 1, "round": 0, "step": step, "rank": rank}
    return row | {"arm": "probe", "detailed": True}


def step_row(step: int, rank: int, begin_ms: float, end_ms: float, **waits_ms: float) -> dict[str, Any]:
    """A step that ends with its backward, and waits by phase as told."""
    row = place(step, rank) | dict.fromkeys(DURATIONS, 0.0) | {"begin_ns": begin_ms * MS}
    row |= dict.fromkeys(("end_ns", "sync_end_ns", "compute_end_ns"), end_ms * MS)
    return row | {f"{phase}_wait_ns": waited * MS for phase, waited in waits_ms.items()}


def sent_row(step: int, rank: int, what: dict[str, int], times_ms: tuple[float, ...]) -> dict[str, Any]:
    """A collective; `what`: its seq, kind, phase, unit, group and bytes; `times_ms`: launch, done, wait and resume."""
    names = ("launch_ns", "done_ns", "wait_ns", "resume_ns")
    stamps = {name: round(at * MS) for name, at in zip(names, times_ms, strict=True)}
    return {**place(step, rank), **what, "ready_ns": stamps["launch_ns"], **stamps, "start_ns": 0}


def served(
    backend: str,
    groups: Callable[[int, int], tuple[int, ...]],
    wire_of: Callable[[int], int] = lambda _key: 0,
    beside: SharedLink = APART,
) -> Served:
    """How such collectives reach other ranks: by default all over one wire."""
    return Served(
        channel=lambda keys, _kinds=(): Channel.of(backend, keys, wire_of), groups=groups, beside=beside
    )
