"""Two clocks with one interface: the host's, and an accelerator's converted to host time.

`stamp()` returns a token, an int. A token from 0 up is itself a host time in ns (0: not taken); one below 0 names an
event of the latest window. `resolve` turns events into host times and keeps host times, so a row of stamps may hold
both. Pass it stamps only: another number below 0, such as the key of a pairing, would be taken for an event
(`resolve_collective` does this).
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, TypeAlias

from scaling.records.format import COLLECTIVE_FIELDS, CollectiveRow

ANCHOR_TRIES = 5
"""Attempts at an anchor. The quickest one counts, as in the ping-pongs between hosts."""
ANCHOR_BOUND_NS, ANCHOR_TIME_NS = 100_000, 10_000_000
"""While the bound is wider, further attempts for so long: a device that others use too may answer milliseconds late."""
_STAMPS = tuple(place for place, name in enumerate(COLLECTIVE_FIELDS) if name.endswith("_ns"))
"""Where the stamps of a collective's row are."""


class _Host:
    """Where this process takes its host times from."""

    read_ns: Callable[[], int] = staticmethod(
        functools.partial(time.clock_gettime_ns, time.CLOCK_MONOTONIC_RAW)
    )
    sleep_s: Callable[[float], None] = staticmethod(time.sleep)
    virtual = False
    slept: list[int] | None = None


def now_ns() -> int:
    """CLOCK_MONOTONIC_RAW, ns, or the clock of a simulated device. No time server slews the former."""
    return _Host.read_ns()


def sleep(seconds: float) -> None:
    """Let so much time pass on the clock of `now_ns`: a virtual one is moved on."""
    begin = now_ns() if _Host.slept is not None else 0
    _Host.sleep_s(seconds)
    if _Host.slept is not None:
        note_sleep(now_ns() - begin)


def note_sleep(ns: int) -> None:
    """Note how long a kernel that only waits takes, as `sleep` does of the host."""
    if _Host.slept is not None:
        _Host.slept.append(ns)


@contextlib.contextmanager
def sleeps() -> Iterator[list[int]]:
    """Collect how long each `sleep` of a block lasts, and each kernel that only waits, ns."""
    _Host.slept = []
    try:
        yield _Host.slept
    finally:
        _Host.slept = None


def use_clock(
    read_ns: Callable[[], int], *, virtual: bool, sleep_s: Callable[[float], None] = time.sleep
) -> None:
    """Take host times of this process from another clock. `virtual`: it says nothing about this machine's time.

    `sleep_s` lets time pass on it.
    """
    _Host.read_ns, _Host.virtual, _Host.sleep_s = staticmethod(read_ns), virtual, staticmethod(sleep_s)


def is_virtual() -> bool:
    """Whether host times are a simulation's, so that processor time cannot be compared with them."""
    return _Host.virtual


class HostClock:
    """The host's clock: a token is the time itself. A device's clock has the same methods."""

    bound_ns = 0
    """Largest error of any resolved time so far against the host's clock, ns."""
    stamp = staticmethod(now_ns)
    """Return a token for this instant, without waiting."""

    def stamp_on(self, stream: Any, behind: int = 0) -> int:  # noqa: ARG002
        """Return a token for when a stream of the device comes here, and before that to the stamp `behind`."""
        return now_ns()

    def window(self, stamps: int) -> contextlib.AbstractContextManager[None]:  # noqa: ARG002
        """Enclose about `stamps` stamps. Tokens of the window before become invalid."""
        return contextlib.nullcontext()

    def resolve(self, tokens: Sequence[int]) -> list[int]:
        """Host times of tokens, ns. Call it only once the window is closed."""
        return list(tokens)


Event = Any
"""A `torch.Event(enable_timing=True)`, or what a test puts in its place."""


@dataclass(frozen=True, slots=True)
class _Anchor:
    """An event and the host time at which it was reached, known to within `bound_ns`."""

    event: Event
    host_ns: int
    bound_ns: int


_BOUND = attrgetter("bound_ns")


class EventClock:
    """A device's clock: a stamp only records an event on the calling thread's current stream.

    At both ends of a window, with the device idle, an anchor ties an event to host time. Times between are
    interpolated, so the device clock's offset and drift do not matter, and an error is at most the greater bound of
    the two anchors. Elapsed times are single-precision ms: their resolution is 0.5 us, and 2 us where a window lasts
    longer than 16 s.
    """

    def __init__(
        self,
        new_event: Callable[[], Event],
        synchronize: Callable[[], None],
        capturing: Callable[[], bool] | None = None,
    ) -> None:
        """`synchronize` has to wait for all streams of the device.

        `capturing`: whether the current stream's work goes into a graph and not to the device (CUDA graphs).
        """
        self._new_event = new_event
        self._capturing = capturing
        self.captured = False
        """Whether a stamp was asked for while a graph was captured. It was not taken: in a graph it is no time."""
        self._synchronize = synchronize
        self._events: list[Event] = []
        self._next = itertools.count()
        self._ends = [[self._fresh() for _ in range(ANCHOR_TRIES)] for _ in range(2)]
        self._begin: _Anchor | None = None
        self._rate = 1.0
        self.bound_ns = 0

    def stamp(self) -> int:
        """Record the next event of the pool; 0, not taken, while a graph is captured."""
        return self.stamp_on(None)

    def stamp_on(self, stream: Any, behind: int = 0) -> int:
        """Record the next event on a stream, which first waits for the event `behind`; None: the current stream."""
        if self._capturing is not None and self._capturing():
            self.captured = True
            return 0
        index = next(self._next)  # a single call in C, so two threads never get the same event
        if index >= len(self._events):  # the window was opened for fewer stamps
            self._reserve(index + 1)
        if behind < 0:
            stream.wait_event(self._events[~behind])
        self._events[index].record(*() if stream is None else (stream,))
        return ~index

    @contextlib.contextmanager
    def window(self, stamps: int) -> Iterator[None]:
        """Make the events and take an anchor; take another when all work has ended."""
        self._reserve(stamps)
        self._next = itertools.count()
        begin = self._begin = self._anchor(self._ends[0])
        yield
        end = self._anchor(self._ends[1])
        device_ms = begin.event.elapsed_time(end.event)
        self._rate = (end.host_ns - begin.host_ns) / (device_ms * 1e6) if device_ms > 0 else 1.0
        self.bound_ns = max(self.bound_ns, begin.bound_ns, end.bound_ns)

    def resolve(self, tokens: Sequence[int]) -> list[int]:
        """Interpolate the window's events between its anchors; host times stay as they are."""
        return [token if token >= 0 else self._host_ns(self._events[~token]) for token in tokens]

    def _host_ns(self, event: Event) -> int:
        assert self._begin is not None
        elapsed_ms: float = self._begin.event.elapsed_time(event)
        return self._begin.host_ns + round(elapsed_ms * 1e6 * self._rate)

    def _anchor(self, events: Sequence[Event]) -> _Anchor:
        self._synchronize()
        until = now_ns() + ANCHOR_TIME_NS
        best = min(map(_tie, events), key=_BOUND)
        while best.bound_ns > ANCHOR_BOUND_NS and now_ns() < until:
            best = min(best, _tie(next(event for event in events if event is not best.event)), key=_BOUND)
        return best

    def _reserve(self, count: int) -> None:
        while len(self._events) < count:
            self._events.append(self._fresh())

    def _fresh(self) -> Event:
        event = self._new_event()
        event.record()  # torch creates the device's event when it is first recorded
        return event


def _tie(event: Event) -> _Anchor:
    before = now_ns()
    event.record()
    event.synchronize()
    after = now_ns()
    return _Anchor(event, (before + after) // 2, (after - before + 1) // 2)


Clock: TypeAlias = HostClock | EventClock


def resolve_collective(clock: Clock, row: CollectiveRow) -> CollectiveRow:
    """The row with its stamps in host time, ns. Only stamps are resolved, since group and unit may be below 0.

    Who finds a collective done when it begins to wait for it goes on at once.
    """
    values = list(row)
    for place, at in zip(_STAMPS, clock.resolve([values[place] for place in _STAMPS]), strict=True):
        values[place] = at
    row = CollectiveRow(*values)
    return row._replace(resume_ns=max(row.resume_ns, row.wait_ns)) if row.resume_ns else row
