"""Two clocks with one interface: the host's, and a CUDA device's told in host time.

What `stamp()` returns is a token, an int. From 0 up a token is itself a host time in ns (0: not
taken); below 0 it names an event of the latest window. `resolve` turns the second kind into host
times and leaves the first alone, so a row of stamps may hold both. It is given stamps alone: whatever
else is below 0, such as the key of a pairing, would be taken for an event (`resolve_collective`).
"""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from scaling.records import COLLECTIVE_FIELDS

ANCHOR_TRIES = 5
"""An anchor is tied so often; the quickest tie counts, as with the ping-pongs between hosts."""
_FIRST_STAMP = COLLECTIVE_FIELDS.index("ready_ns")


def now_ns() -> int:
    """CLOCK_MONOTONIC_RAW, ns: no time server slews it, so durations are the hardware's own."""
    return time.clock_gettime_ns(time.CLOCK_MONOTONIC_RAW)


class Clock(Protocol):
    """Stamps inside a window, times after it."""

    @property
    def bound_ns(self) -> int:
        """By how much any resolved time so far can be wrong against the host's clock, ns."""

    def stamp(self) -> int:
        """A token for this instant; waits for nothing."""

    def window(self, stamps: int) -> contextlib.AbstractContextManager[None]:
        """Enclose about `stamps` stamps; those of the window before are forgotten."""

    def resolve(self, tokens: Sequence[int]) -> list[int]:
        """Host times, ns; only once the window is closed."""


def resolve_collective(clock: Clock, row: Sequence[int]) -> list[int]:
    """A records.COLLECTIVE_FIELDS row of tokens, its stamps in host time, ns; its group may well be below 0."""
    return [*row[:_FIRST_STAMP], *clock.resolve(row[_FIRST_STAMP:])]


class HostClock:
    """Host time: a token is the time."""

    bound_ns = 0
    stamp = staticmethod(now_ns)

    def window(self, stamps: int) -> contextlib.AbstractContextManager[None]:  # noqa: ARG002
        """Nothing to prepare."""
        return contextlib.nullcontext()

    def resolve(self, tokens: Sequence[int]) -> list[int]:
        """The tokens themselves."""
        return list(tokens)


class Event(Protocol):
    """What is used of `torch.cuda.Event(enable_timing=True)`."""

    def record(self) -> None:
        """On the calling thread's current stream."""

    def synchronize(self) -> None:
        """Wait until it is reached."""

    def elapsed_time(self, end_event: Event, /) -> float:
        """From this event to another, ms; negative when the other came first."""


@dataclass(frozen=True, slots=True)
class _Anchor:
    """An event and the host time at which it was reached, give or take `bound_ns`."""

    event: Event
    host_ns: int
    bound_ns: int


class CudaClock:
    """Device time: a stamp records an event on the calling thread's current stream and no more.

    At both ends of a window, with the device idle, an anchor ties an event to host time; what lies
    between is interpolated, so neither the device clock's offset nor its drift matters and an error
    is at most the greater bound of the two anchors. Elapsed times are single-precision ms: their
    resolution is 0.5 us, and 2 us where a window lasts longer than 16 s.
    """

    def __init__(self, new_event: Callable[[], Event], synchronize: Callable[[], None]) -> None:
        """`synchronize` waits for all streams of the device."""
        self._new_event = new_event
        self._synchronize = synchronize
        self._events: list[Event] = []
        self._next = itertools.count()
        self._ends = [[self._fresh() for _ in range(ANCHOR_TRIES)] for _ in range(2)]
        self._begin: _Anchor | None = None
        self._rate = 1.0
        self.bound_ns = 0

    def stamp(self) -> int:
        """Record the next event of the pool."""
        index = next(self._next)  # one call in C: threads never share an event
        if index >= len(self._events):  # the window was opened for fewer
            self._reserve(index + 1)
        self._events[index].record()
        return ~index

    @contextlib.contextmanager
    def window(self, stamps: int) -> Iterator[None]:
        """Make the events, anchor, and anchor again when all work has ended."""
        self._reserve(stamps)
        self._next = itertools.count()
        begin = self._begin = self._anchor(self._ends[0])
        yield
        end = self._anchor(self._ends[1])
        device_ms = begin.event.elapsed_time(end.event)
        self._rate = (end.host_ns - begin.host_ns) / (device_ms * 1e6) if device_ms > 0 else 1.0
        self.bound_ns = max(self.bound_ns, begin.bound_ns, end.bound_ns)

    def resolve(self, tokens: Sequence[int]) -> list[int]:
        """Events of the window by interpolation between its anchors; the rest as it is."""
        return [token if token >= 0 else self._host_ns(self._events[~token]) for token in tokens]

    def _host_ns(self, event: Event) -> int:
        assert self._begin is not None
        return self._begin.host_ns + round(self._begin.event.elapsed_time(event) * 1e6 * self._rate)

    def _anchor(self, events: Sequence[Event]) -> _Anchor:
        self._synchronize()
        return min((_tie(event) for event in events), key=lambda anchor: anchor.bound_ns)

    def _reserve(self, count: int) -> None:
        while len(self._events) < count:
            self._events.append(self._fresh())

    def _fresh(self) -> Event:
        event = self._new_event()
        event.record()  # torch creates the device's event at its first record
        return event


def _tie(event: Event) -> _Anchor:
    before = now_ns()
    event.record()
    event.synchronize()
    after = now_ns()
    return _Anchor(event, (before + after) // 2, (after - before + 1) // 2)
