"""Where a step's time went, from the tasks that ran on the device."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Sequence

from scaling_simulator.simulation import Step, Transfers
from scaling_simulator.trace import Task

Span = tuple[int, int]


def is_transfer(task: Task) -> bool:
    """Whether a task is a collective or a message: their names end with their group's."""
    return "/" in task.name


def step_of(physics: str, tasks: Sequence[Task], begin_ns: int, end_ns: int) -> Step:
    """One step from `begin_ns` to `end_ns`; what runs over an edge counts with its part inside."""
    inside = [t for t in tasks if t.end_ns > begin_ns and t.start_ns < end_ns]
    kernels = union((t.start_ns, t.end_ns) for t in inside if not is_transfer(t))
    kernels = clipped(kernels, begin_ns, end_ns)
    by_kind: dict[tuple[str, str], list[Task]] = defaultdict(list)
    for task in inside:
        if is_transfer(task):
            kind, _, group = task.name.partition("/")
            by_kind[kind, group].append(task)
    spans = {
        key: without(clipped(union((t.start_ns, t.end_ns) for t in calls), begin_ns, end_ns), kernels)
        for key, calls in by_kind.items()
    }
    exposed = shared(spans)
    busy = length(kernels)
    total = round(sum(exposed.values()))
    return Step(
        physics=physics,
        step_ns=end_ns - begin_ns,
        compute_ns=busy,
        exposed_ns=total,
        idle_ns=end_ns - begin_ns - busy - total,
        transfers=tuple(
            Transfers(
                kind=kind,
                group=group,
                calls=len(calls),
                bytes=sum(t.bytes for t in calls),
                busy_ns=sum(t.end_ns - t.start_ns for t in calls),
                exposed_ns=round(exposed[kind, group]),
                waited_ns=sum(max(0, t.met_ns - t.start_ns) for t in calls),
            )
            for (kind, group), calls in sorted(by_kind.items())
        ),
    )


def digest(tasks: Iterable[Task]) -> str:
    """Of the sequence of transfers on each stream, with the bytes of each."""
    streams: dict[int, list[str]] = defaultdict(list)
    for task in tasks:
        if is_transfer(task):
            streams[task.stream].append(f"{task.name} {task.bytes}")
    text = "\n".join(f"{stream}: {' '.join(names)}" for stream, names in sorted(streams.items()))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def union(spans: Iterable[Span]) -> list[Span]:
    """The same time as spans that do not overlap, in order."""
    merged: list[Span] = []
    for start, end in sorted(spans):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        elif end > start:
            merged.append((start, end))
    return merged


def overlap_ns(tasks: Iterable[Task], others: Iterable[Task]) -> int:
    """Time of `tasks` during which one of `others` runs."""
    busy = union((other.start_ns, other.end_ns) for other in others)
    return sum(length(clipped(busy, task.start_ns, task.end_ns)) for task in tasks)


def clipped(spans: Iterable[Span], begin: int, end: int) -> list[Span]:
    """The part of spans between two times."""
    return [(max(a, begin), min(b, end)) for a, b in spans if b > begin and a < end]


def without(spans: Sequence[Span], others: Sequence[Span]) -> list[Span]:
    """The part of ordered spans outside other ordered spans; neither overlap among themselves."""
    rest: list[Span] = []
    first = 0
    for start, end in spans:
        while first < len(others) and others[first][1] <= start:
            first += 1
        at, k = start, first
        while k < len(others) and others[k][0] < end:
            if others[k][0] > at:
                rest.append((at, others[k][0]))
            at = max(at, others[k][1])
            k += 1
        if at < end:
            rest.append((at, end))
    return rest


def shared(spans: dict[tuple[str, str], list[Span]]) -> dict[tuple[str, str], float]:
    """Each one's time, where those that overlap share it equally."""
    edges = sorted(
        (at, sign, key) for key, busy in spans.items() for a, b in busy for at, sign in ((a, 1), (b, -1))
    )
    time_of: dict[tuple[str, str], float] = dict.fromkeys(spans, 0.0)
    active: dict[tuple[str, str], int] = defaultdict(int)
    before = 0
    for at, sign, key in edges:
        now = [k for k, count in active.items() if count]
        for k in now:
            time_of[k] += (at - before) / len(now)
        active[key] += sign
        before = at
    return time_of


def length(spans: Iterable[Span]) -> int:
    """Sum of the spans' lengths."""
    return sum(b - a for a, b in spans)
