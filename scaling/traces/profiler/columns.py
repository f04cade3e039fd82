"""One rank's trace as columns, in ns since the file's first event, and which times of a file are credible."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scaling.traces.profiler.events import Meta
from scaling.traces.profiler.spans import Ints

Columns = dict[str, NDArray[Any]]
"""Arrays of one length by name."""

SLACK_NS = 1_000_000_000
"""An event that ends this much after all others began was not measured."""
APART_NS = 3_600_000_000_000
"""An event an hour away from the others does not belong to the trace."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceEvents:
    """Events of the device, in order of their begin."""

    name: Ints  # index into `names`
    begin: Ints
    end: Ints
    stream: Ints
    correlation: Ints  # -1: none
    kind: Ints  # by name and collective, as signs.COMPUTE ...
    shape: Ints  # equal for equal names and launch grids
    sent: Ints  # index into `sent`; -1: its arguments name no collective


@dataclass(frozen=True, slots=True, kw_only=True)
class HostEvents:
    """Operators and annotations of the host."""

    role: Ints
    thread: Ints  # small integers
    begin: Ints
    end: Ints
    plain: NDArray[np.bool_]  # an operator, no annotation


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """The arguments of one collective; None where the trace does not hold them."""

    collective: str
    bytes: int | None = None
    group: str = ""
    group_size: int | None = None
    seq: int | None = None
    inputs_only: bool = False
    """`bytes` is the size of the input; the trace does not hold that of the output."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A collective as the host announced it (`nccl:all_reduce`, `gloo:all_reduce`)."""

    thread: int
    begin: int
    end: int
    sent: Sent
    on_host: bool
    """It lasts as long as the collective (Gloo); otherwise only until the collective is enqueued."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """One file."""

    path: Path
    meta: Meta
    names: tuple[str, ...]
    gpu: DeviceEvents
    host: HostEvents
    launches: dict[str, Ints]
    """`correlation` in order, with the `begin` and `thread` of its first call."""
    sent: tuple[Sent, ...]
    calls: tuple[Call, ...]
    steps: tuple[tuple[str, int, int], ...]
    """(name, begin, end) of each ProfilerStep, in order."""
    enqueues: bool
    """The host launched kernels or handed collectives to a device's backend (`nccl:all_reduce`)."""
    no_workers: bool
    """Its DataLoader reads in the training's own process."""
    events: int
    absurd: int
    """Events with a negative or impossible time; left out."""
    odd: int
    base_us: float
    """What was subtracted from every time of the file."""


class Credible:
    """Which times of a file can have been measured, and their origin."""

    def __init__(self, begins: NDArray[np.float64]) -> None:
        begins = begins[np.isfinite(begins)]
        middle = len(begins) // 2
        self.middle = float(np.partition(begins, middle)[middle]) if len(begins) else 0.0
        near = begins[np.abs(begins - self.middle) < APART_NS / 1e3]
        self.base = float(near.min()) if len(near) else 0.0
        length = float(near.max()) - self.base if len(near) else 0.0
        self.limit = length + max(SLACK_NS / 1e3, length)

    def __call__(self, begin: Any, dur: Any) -> Any:
        """Whether events that begin at `begin` and last `dur`, us, can have been measured."""
        near = abs(begin - self.middle) < APART_NS / 1e3
        return near & (dur >= 0) & (begin - self.base + dur <= self.limit)

    def keep(self, columns: Columns) -> int:
        """Leave out events with other times; how many they were."""
        true = self(columns["ts"], columns["dur"])
        for name in columns:
            columns[name] = columns[name][true]
        return int((~true).sum())

    def ns(self, us: float) -> int:
        """A time as ns since the origin."""
        return round((us - self.base) * 1e3)

    def spans(self, columns: Columns) -> dict[str, Ints]:
        """Begin and end as ns since the origin."""
        begin = np.rint((columns["ts"] - self.base) * 1e3).astype(np.int64)
        return {"begin": begin, "end": begin + np.rint(columns["dur"] * 1e3).astype(np.int64)}
