"""Split one rank's time, step by step, with unions and differences of its events' times.

On a device, with C the instants on which a compute kernel runs, M those of communication, Y those of copies:

    compute = |C|    exposed communication = |M - C|    hidden communication = |M & C|
    copies  = |Y - (C | M)|                             gap = the rest of the window

so compute, exposed, copies and gaps add up to the window, and nothing is counted twice. A gap is `host` until
the host launches the next event, then `launch` (launched but not started: the latency of the launch, or a wait
for an event), and `idle` where no launch is known.

A trace without a device (Gloo): C are the host's operators, on any thread, without the calls that hand a
collective over or wait for it; M are the backend's own events, where they last as long as the collective
(`gloo:*`; NCCL's end once it is enqueued); gaps are `host`. A last step without any work is left out.

Windows: a step begins on the device with the first event that was launched in it, and ends where the next
begins. So the windows follow the device, which lags behind the host, and each ends with the wait for the next
step's first event. After the last step nothing ends such a wait, so where there are several, it is left out; a
single one ends with its last event.

Communication by kind of collective and process group: all-gather, reduce-scatter and all-reduce of sharded training.

    busy = |union of the collectives' spans|    exposed = |busy without compute|    hidden = busy - exposed

Two kinds at once both count: they share the step, so the kinds need not add up to the exposed communication.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from scaling.traces.profiler import signs
from scaling.traces.profiler.columns import (
    EMPTY,
    Call,
    DeviceEvents,
    HostEvents,
    Ints,
    Sent,
    Spans,
    Trace,
    common,
    merged,
    minus,
    union,
)
from scaling.traces.profiler.signs import FAR, communication, launched


@dataclass(frozen=True, slots=True, kw_only=True)
class KindColumns:
    """One kind in one group on one rank; a number a window."""

    group_size: int | None
    calls: Ints
    busy: Ints
    exposed: Ints
    bytes: Ints | None


Kinds = dict[tuple[str, str], KindColumns]
"""By collective and process group."""


def by_kind(begin: Ints, end: Ints, sent: Sequence[Sent], unit: Ints, compute: Spans, borders: Ints) -> Kinds:
    """Split one rank's communication; columns of one length, an entry an event. Equal `unit`: one collective."""
    once = np.zeros(len(unit), dtype=bool)
    once[np.unique(unit, return_index=True)[1]] = True
    rows: dict[tuple[str, str], list[int]] = defaultdict(list)
    for row, call in enumerate(sent):
        rows[call.collective, call.group].append(row)
    kinds = {}
    windows = len(borders) - 1
    for key, mine in rows.items():
        spans = merged(begin[mine], end[mine])
        step = np.searchsorted(borders, begin[mine], side="right") - 1
        inside = (step >= 0) & (step < windows) & once[mine]
        sizes = [whole_bytes(sent[row]) for row in mine]
        kinds[key] = KindColumns(
            group_size=next((sent[row].group_size for row in mine if sent[row].group_size), None),
            calls=np.bincount(step[inside], minlength=windows),
            busy=spans.within(borders),
            exposed=minus(spans, compute).within(borders),
            bytes=None
            if None in sizes
            else np.bincount(step[inside], np.array(sizes, dtype=float)[inside], windows).astype(np.int64),
        )
    return kinds


def whole_bytes(sent: Sent, ranks: int | None = None) -> int | None:
    """nccl-tests' size: the output of an all-gather holds all ranks' parts, also where the trace has its input only."""
    if sent.bytes is None or not (sent.inputs_only and sent.collective == "all_gather"):
        return sent.bytes
    parts = ranks or sent.group_size
    return sent.bytes * parts if parts else None


PHASES = {"backward": signs.BACKWARD, "forward": signs.FORWARD, "optimizer": signs.OPTIMIZER}
"""In order of precedence, where kernels of several phases run at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Collectives:
    """Communication of one rank, in order of begin; columns of one length."""

    begin: Ints
    end: Ints
    step: Ints
    """Window; -1: before the first."""
    sent: tuple[Sent, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """One rank's windows; each column has one number a window, ns."""

    device: str
    """`gpu` or `cpu`: where the events ran that were counted."""
    labels: tuple[str, ...]
    borders: Ints
    columns: dict[str, Ints]
    """window, compute, exposed, hidden, copies, input, host, launch, idle; forward, backward, optimizer if known."""
    compute: Spans
    exposed: Spans
    kinds: Kinds
    collectives: Collectives
    stretched: dict[tuple[str, int], tuple[int, int, int, int]]
    """Compute kernels by (name, shape): count and ns without communication, count and ns beside it."""
    guessed: dict[str, int]
    """Kernels counted as communication by a sign other than their name, and how often."""
    unknown: dict[str, int]
    """Communication whose collective is unknown, and how often."""


def decompose(trace: Trace) -> Parts:
    """The windows of one rank. ValueError where the trace has neither device events nor operators."""
    if (trace.gpu.kind != signs.OTHER).any():
        return _device(trace)
    if trace.host.plain.any():
        return _cpu(trace)
    raise ValueError("it holds no kernel, copy or operator")


def _device(trace: Trace) -> Parts:
    gpu = trace.gpu
    launch, thread = launched(trace)
    kind, sent, unit, guessed = communication(trace, launch, thread)
    work = kind != signs.OTHER
    step = _steps_of(launch, trace.steps)
    borders, labels = _windows(gpu, step, work, trace.steps)
    compute, sending, copies = (
        merged(gpu.begin[kind == k], gpu.end[kind == k])
        for k in (signs.COMPUTE, signs.COMMUNICATION, signs.COPY)
    )
    busy = union(compute, sending)
    active = union(busy, copies)
    exposed = minus(sending, compute)
    gaps = minus(Spans(borders[:1], borders[-1:]), active)
    late, waiting = _gaps(gaps, gpu.begin[work], launch[work])
    waits = _role(trace.host, signs.INPUT)
    columns = {
        "window": np.diff(borders),
        "compute": compute.within(borders),
        **_phases(trace, launch, thread, kind, borders),
        "exposed": exposed.within(borders),
        "hidden": sending.within(borders) - exposed.within(borders),
        "copies": active.within(borders) - busy.within(borders),
        "input": common(late, waits).within(borders),
        "host": minus(late, waits).within(borders),
        "launch": waiting.within(borders),
        "idle": minus(gaps, union(late, waiting)).within(borders),
    }
    rows = np.flatnonzero(kind == signs.COMMUNICATION)
    communicated = gpu.begin[rows], gpu.end[rows], [sent[i] for i in rows], unit[rows]
    return Parts(
        device="gpu",
        labels=labels,
        borders=borders,
        columns=columns,
        compute=compute,
        exposed=exposed,
        kinds=by_kind(*communicated, compute, borders),
        collectives=_collectives(*communicated, borders),
        stretched=_stretched(trace, kind, sending, borders),
        guessed=guessed,
        unknown=Counter(trace.names[gpu.name[i]] for i in rows if sent[i].collective == signs.UNKNOWN),
    )


def _cpu(trace: Trace) -> Parts:
    host, calls = trace.host, [c for c in trace.calls if c.on_host and c.end > c.begin]
    offset = host.thread * FAR
    work = host.plain & (host.role != signs.CALL)
    handing = host.role == signs.CALL
    by_thread = minus(
        merged((host.begin + offset)[work], (host.end + offset)[work]),
        merged((host.begin + offset)[handing], (host.end + offset)[handing]),
    )
    compute = merged(by_thread.begin % FAR, by_thread.end % FAR)
    begin = np.array([c.begin for c in calls], dtype=np.int64)
    end = np.array([c.end for c in calls], dtype=np.int64)
    sending = merged(begin, end)
    exposed = minus(sending, compute)
    waits = _role(host, signs.INPUT)
    steps = trace.steps
    if len(steps) > 1 and not _works(host, calls, waits, steps[-1][1]):
        steps = steps[:-1]  # the last profiler.step() of the loop opened it
    if steps:
        borders = np.array([b for _, b, _ in steps] + [steps[-1][2]], dtype=np.int64)
    else:
        borders = np.array([host.begin.min(), max(host.end.max(), end.max(initial=0))], dtype=np.int64)
    left, columns = compute, {"window": np.diff(borders), "compute": compute.within(borders)}
    backward, optimizer = _role(host, signs.BACKWARD), _role(host, signs.OPTIMIZER)
    for name, spans in (("input", waits), ("backward", backward), ("optimizer", optimizer)):
        columns[name] = common(left, spans).within(borders)
        left = minus(left, spans)
    communicated = begin, end, [c.sent for c in calls], np.arange(len(calls))
    active = union(compute, sending)
    still = minus(Spans(borders[:1], borders[-1:]), active)
    columns |= {
        "forward": left.within(borders),
        "exposed": exposed.within(borders),
        "hidden": sending.within(borders) - exposed.within(borders),
        "host": minus(still, waits).within(borders),
        **dict.fromkeys(("copies", "launch", "idle"), EMPTY.within(borders)),
    }
    columns["compute"] = columns["compute"] - columns["input"]
    columns["input"] = columns["input"] + common(still, waits).within(borders)
    return Parts(
        device="cpu",
        labels=tuple(name for name, _, _ in steps) or ("whole trace",),
        borders=borders,
        columns=columns,
        compute=compute,
        exposed=exposed,
        kinds=by_kind(*communicated, compute, borders),
        collectives=_collectives(*communicated, borders),
        stretched={},
        guessed={},
        unknown=Counter("a call" for c in calls if c.sent.collective == signs.UNKNOWN),
    )


def _collectives(begin: Ints, end: Ints, sent: list[Sent], unit: Ints, borders: Ints) -> Collectives:
    """Events with an equal `unit` are one collective, from the first begin to the last end."""
    first, which = np.unique(unit, return_index=True, return_inverse=True)[1:]
    if len(first) < len(unit):
        last = np.zeros(len(first), dtype=np.int64)
        np.maximum.at(last, which, end)
        order = np.argsort(first, kind="stable")  # events are in order of their begin
        begin, end, sent = begin[first][order], last[order], [sent[k] for k in first[order]]
    step = np.searchsorted(borders, begin, side="right") - 1
    return Collectives(begin=begin, end=end, step=step, sent=tuple(sent))


def _works(host: HostEvents, calls: list[Call], waits: Spans, since: int) -> bool:
    """Whether anything but the data loader begins after `since`."""
    begin = host.begin[host.plain & (host.begin >= since)]
    return bool((~waits.holds(begin)).any()) or any(c.begin >= since for c in calls)


def _steps_of(launch: Ints, steps: tuple[tuple[str, int, int], ...]) -> Ints:
    """The ProfilerStep in which each launch happened; -1: none or not known."""
    if not steps:
        return np.zeros(len(launch), dtype=np.int64)
    begin = np.array([b for _, b, _ in steps])
    at = np.searchsorted(begin, launch, side="right") - 1
    return np.where(launch >= 0, at, -1)


def _windows(
    gpu: DeviceEvents, step: Ints, work: Ints, steps: tuple[tuple[str, int, int], ...]
) -> tuple[Ints, tuple[str, ...]]:
    """Borders of the steps on the device, and their names."""
    whole = np.array([gpu.begin[work].min(), gpu.end[work].max()])
    if len(steps) < 2 or not (work & (step >= 0)).any():
        return whole, (steps[0][0] if steps else "whole trace",)
    events = np.flatnonzero(work & (step >= 0))
    present, first = np.unique(step[events], return_index=True)
    begins = np.maximum.accumulate(gpu.begin[events[first]])
    if len(present) == 1:
        return np.append(begins, gpu.end[events].max()), (steps[present[0]][0],)
    return begins, tuple(steps[k][0] for k in present[:-1])


def _gaps(gaps: Spans, begin: Ints, launch: Ints) -> tuple[Spans, Spans]:
    """Gaps before the next event's launch, and from its launch to its begin."""
    order = np.lexsort((launch, begin))
    begin, launch = begin[order], launch[order]
    at = np.searchsorted(begin, gaps.end)
    next_launch = np.where(at < len(begin), launch[np.minimum(at, len(begin) - 1)], -1)
    has_launch = next_launch >= 0
    border = np.clip(next_launch, gaps.begin, gaps.end)[has_launch]
    return merged(gaps.begin[has_launch], border), merged(border, gaps.end[has_launch])


def _role(host: HostEvents, role: int) -> Spans:
    mine = host.role == role
    return merged(host.begin[mine], host.end[mine])


def _phases(trace: Trace, launch: Ints, thread: Ints, kind: Ints, borders: Ints) -> dict[str, Ints]:
    """Compute by the phase that launched it; empty without operators, whose phases are not known.

    Where phases overlap, the first of PHASES gets the instant.
    """
    host, gpu = trace.host, trace.gpu
    if not host.plain.any():
        return {}
    phase = np.full(len(kind), signs.FORWARD)
    for role in (signs.BACKWARD, signs.OPTIMIZER):
        mine = host.role == role
        offset = host.thread[mine] * FAR
        spans = merged(host.begin[mine] + offset, host.end[mine] + offset)
        phase[(launch >= 0) & spans.holds(launch + thread * FAR)] = role
    seen, columns, before = EMPTY, {}, np.zeros(len(borders) - 1, dtype=np.int64)
    for name, role in PHASES.items():
        mine = (kind == signs.COMPUTE) & (phase == role)
        seen = union(seen, merged(gpu.begin[mine], gpu.end[mine]))
        columns[name] = seen.within(borders) - before
        before = seen.within(borders)
    return columns


def _stretched(
    trace: Trace, kind: Ints, sending: Spans, borders: Ints
) -> dict[tuple[str, int], tuple[int, int, int, int]]:
    """Durations of each compute kernel alone and beside communication (at least half of it)."""
    gpu = trace.gpu
    mine = np.flatnonzero((kind == signs.COMPUTE) & (gpu.begin >= borders[0]) & (gpu.begin <= borders[-1]))
    if not len(mine) or not len(sending):
        return {}
    length = gpu.end[mine] - gpu.begin[mine]
    beside = sending.overlap(gpu.begin[mine], gpu.end[mine])
    alone, shared = beside == 0, 2 * beside >= np.maximum(length, 1)
    shapes, index = np.unique(gpu.shape[mine], return_inverse=True)
    name = np.zeros(len(shapes), dtype=np.int64)
    name[index] = gpu.name[mine]
    sums = [np.bincount(index, w).astype(np.int64) for w in (alone, alone * length, shared, shared * length)]
    return {
        (trace.names[name[k]], k): tuple(int(s[k]) for s in sums)  # type: ignore[misc]
        for k in np.flatnonzero((sums[0] > 0) & (sums[2] > 0))
    }
