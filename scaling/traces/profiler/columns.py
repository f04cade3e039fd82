"""One rank's trace as columns, in ns since the file's first event, and which times of a file are credible.

Unions and differences of sets of time say what happens at once, so that no instant is counted twice.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scaling.traces.profiler.stream import Meta

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Spans:
    """Disjoint intervals in order; those that touch are one."""

    begin: Ints
    end: Ints

    def __len__(self) -> int:
        return len(self.begin)

    @property
    def length(self) -> int:
        return int((self.end - self.begin).sum())

    def before(self, instants: Ints) -> Ints:
        """How much of the set lies before each instant: its distribution function."""
        if not len(self):
            return np.zeros(len(instants), dtype=np.int64)
        done = np.concatenate([[0], np.cumsum(self.end - self.begin)])
        at = np.searchsorted(self.begin, instants, side="right")
        inside = np.minimum(instants, self.end[at - 1]) - self.begin[at - 1]
        return np.where(at > 0, done[at - 1] + np.where(at > 0, inside, 0), 0).astype(np.int64)

    def within(self, borders: Ints) -> Ints:
        """Its length in each window between neighbouring borders."""
        return np.diff(self.before(borders))

    def holds(self, instants: Ints) -> NDArray[np.bool_]:
        """Whether each instant is in the set."""
        return self.overlap(instants, instants + 1) > 0

    def overlap(self, begin: Ints, end: Ints) -> Ints:
        """How much of each interval [begin, end) lies in the set."""
        return self.before(end) - self.before(begin)


EMPTY = Spans(np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64))


def union(*sets: Spans) -> Spans:
    """Instants that are in any of the sets."""
    return merged(np.concatenate([s.begin for s in sets]), np.concatenate([s.end for s in sets]))


def merged(begin: Ints, end: Ints) -> Spans:
    """The union of intervals in any order; empty ones vanish."""
    real = end > begin
    begin, end = begin[real], end[real]
    if not len(begin):
        return EMPTY
    order = np.argsort(begin, kind="stable")
    begin, end = begin[order], np.maximum.accumulate(end[order])
    first = np.concatenate([[True], begin[1:] > end[:-1]])
    last = np.concatenate([first[1:], [True]])
    return Spans(begin[first], end[last])


def running(*sets: Spans) -> tuple[Ints, Ints, Ints]:
    """(begin, end, code) of every stretch between neighbouring edges; bit k of `code`: set k runs on it."""
    edges = np.concatenate([edge for s in sets for edge in (s.begin, s.end)])
    signs = np.concatenate([np.full(len(s), sign << k) for k, s in enumerate(sets) for sign in (1, -1)])
    order = np.argsort(edges, kind="stable")
    edges = edges[order]
    return edges[:-1], edges[1:], np.cumsum(signs[order])[:-1]


def minus(a: Spans, b: Spans) -> Spans:
    """Instants of `a` that are not in `b`."""
    return _where(a, b, 1)


def common(a: Spans, b: Spans) -> Spans:
    """Instants that are in both."""
    return _where(a, b, 3)


def _where(a: Spans, b: Spans, code: int) -> Spans:
    if not len(a) or not len(b):
        return a if code == 1 else EMPTY
    begin, end, codes = running(a, b)
    kept = codes == code
    return merged(begin[kept], end[kept])


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

    def integers(self, columns: Columns) -> dict[str, Ints]:
        """Columns as integers: `begin` and `end`, ns since the origin, in the place of their times."""
        begin = np.rint((columns["ts"] - self.base) * 1e3).astype(np.int64)
        end = begin + np.rint(columns["dur"] * 1e3).astype(np.int64)
        others = {name: c.astype(np.int64) for name, c in columns.items() if name not in ("ts", "dur")}
        return {**others, "begin": begin, "end": end}
