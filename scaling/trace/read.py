"""A trace file into columns, batch by batch, so that no event outlives its batch."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from dataclasses import dataclass, field
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scaling.trace import signs
from scaling.trace.columns import Call, Gpu, Host, Sent, Trace
from scaling.trace.spans import Ints
from scaling.trace.stream import Args, Event, TraceStream

SLACK_NS = 1_000_000_000
"""An event that ends so much later than anything else begins was not measured but made up."""
APART_NS = 3_600_000_000_000
"""Nor does one belong to a trace from which it lies an hour away."""
BY_NAME = -1
"""Kind of a kernel until its name was looked at."""

_Columns = dict[str, NDArray[Any]]
_NO_ARGS = Args()
_NAME, _TID, _TS, _DUR = map(attrgetter, ("name", "tid", "ts", "dur"))
"""Through `map` a column is filled without a list between."""
_WORDS = re.compile(r'"([^"]*)"')


class _Numbers(dict[Any, int]):
    """Numbers things in the order in which they are first asked for."""

    def __missing__(self, key: Any) -> int:
        self[key] = number = len(self)
        return number


class _Roles(dict[str, int]):
    """The role of each name, worked out once."""

    def __missing__(self, name: str) -> int:
        self[name] = found = signs.role(name)
        return found


@dataclass(slots=True)
class _Builder:
    """Turns each batch into arrays before the next is read, so that no event outlives its batch."""

    names: _Numbers = field(default_factory=_Numbers)
    threads: _Numbers = field(default_factory=_Numbers)
    shapes: _Numbers = field(default_factory=_Numbers)
    sent: _Numbers = field(default_factory=_Numbers)
    roles: _Roles = field(default_factory=_Roles)
    calls: list[tuple[int, float, float, Sent]] = field(default_factory=list)
    steps: list[tuple[str, float, float]] = field(default_factory=list)
    gpu: list[_Columns] = field(default_factory=list)
    host: list[_Columns] = field(default_factory=list)
    launch: list[_Columns] = field(default_factory=list)
    events: int = 0

    def add(self, batch: list[Event]) -> None:
        """Sort one batch by category and each category into columns."""
        self.events += len(batch)
        groups: defaultdict[str, list[Event]] = defaultdict(list)
        for event in batch:
            if event.ph == "X":
                groups[event.cat].append(event)
        for category, events in groups.items():
            if category in signs.OPERATORS:
                self._hosts(events, plain=True)
            elif category in signs.RUNTIME:
                self._launches(events)
            elif category in signs.KERNELS:
                self._kernels(events)
            elif category in signs.COPIES:
                self._gpu(events, [signs.COPY] * len(events), [-1] * len(events))
            elif category in signs.ANNOTATIONS:
                self._hosts(events, plain=False)
            elif category != "Trace":
                waits = [e for e in events if e.args is not None and _number(e.args.stream) >= 0]
                self._gpu(waits, [signs.OTHER] * len(waits), [-1] * len(waits))

    def _hosts(self, events: list[Event], *, plain: bool) -> None:
        roles, threads = self.roles, self.threads
        columns: _Columns = {
            "role": np.fromiter(map(roles.__getitem__, map(_NAME, events)), np.int8, len(events)),
            "thread": self._threads(events),
            "plain": np.full(len(events), plain),
            **_times(events),
        }
        self.host.append(columns)
        for at in np.flatnonzero((columns["role"] == signs.CALL) | (columns["role"] == signs.STEP)):
            event = events[at]
            begin, end = event.ts, event.ts + event.dur
            args = event.args or Args()
            if columns["role"][at] == signs.STEP:
                self.steps.append((event.name, begin, end))
            elif signs.annotated(event.name):
                sent = _sent(args, signs.collective_of(event.name.partition(":")[2]))
                self.calls.append((threads[event.tid], begin, end, sent))
            elif args.collective:
                sent = _sent(args, signs.collective_of(args.collective))
                self.calls.append((threads[event.tid], begin, end, sent))

    def _threads(self, events: list[Event]) -> NDArray[np.int32]:
        return np.fromiter(map(self.threads.__getitem__, map(_TID, events)), np.int32, len(events))

    def _launches(self, events: list[Event]) -> None:
        named = [e for e in events if e.args is not None]
        told = [e.args.correlation for e in named]  # type: ignore[union-attr]
        correlation = [c if type(c) is int else _number(c) for c in told]
        self.launch.append(
            {
                "correlation": np.array(correlation, dtype=np.int64),
                "thread": self._threads(named),
                **_times(named),
            }
        )

    def _kernels(self, events: list[Event]) -> None:
        told = [e.args.collective if e.args is not None else None for e in events]
        sent = [
            -1 if name is None else self.sent[_sent(e.args or Args(), signs.collective_of(name))]
            for e, name in zip(events, told, strict=True)
        ]
        self._gpu(events, [BY_NAME if name is None else signs.COMMUNICATION for name in told], sent)

    def _gpu(self, events: list[Event], kind: list[int], sent: list[int]) -> None:
        if not events:
            return
        names, shapes, args = self.names, self.shapes, [e.args or _NO_ARGS for e in events]
        name = [names[e.name] for e in events]
        self.gpu.append(
            {
                "name": np.array(name, dtype=np.int32),
                "stream": np.array([_number(a.stream) for a in args], dtype=np.int64),
                "correlation": np.array([_number(a.correlation) for a in args], dtype=np.int64),
                "kind": np.array(kind, dtype=np.int8),
                "shape": np.array([shapes[n, a.grid] for n, a in zip(name, args, strict=True)]),
                "sent": np.array(sent, dtype=np.int32),
                **_times(events),
            }
        )


def _times(events: list[Event]) -> _Columns:
    """Begin and duration, us; NaN where an event lacks it."""
    return {
        "ts": np.fromiter(map(_TS, events), np.float64, len(events)),
        "dur": np.fromiter(map(_DUR, events), np.float64, len(events)),
    }


def _joined(blocks: list[_Columns], names: tuple[str, ...]) -> _Columns:
    """All batches in one; empties `blocks`."""
    joined = {
        name: np.concatenate([b.pop(name) for b in blocks]) if blocks else np.empty(0) for name in names
    }
    blocks.clear()
    return joined


def read_trace(path: Path) -> Trace:
    """Read one file. DamagedError when it is no trace or not whole."""
    stream, builder = TraceStream(path), _Builder()
    for batch in stream:
        builder.add(batch)
    gpu = _joined(builder.gpu, ("name", "stream", "correlation", "kind", "shape", "sent", "ts", "dur"))
    host = _joined(builder.host, ("role", "thread", "plain", "ts", "dur"))
    launch = _joined(builder.launch, ("correlation", "thread", "ts", "dur"))
    credible = _Credible(np.concatenate([gpu["ts"], host["ts"], launch["ts"]]))
    dropped = sum(credible.keep(columns) for columns in (gpu, host, launch))
    names = tuple(builder.names)
    calls = [c for c in sorted(builder.calls, key=lambda c: c[1]) if credible(c[1], c[2] - c[1])]
    return Trace(
        path=path,
        meta=stream.meta,
        names=names,
        gpu=_gpu(gpu, names, credible),
        host=Host(
            role=host["role"].astype(np.int64),
            thread=host["thread"].astype(np.int64),
            plain=host["plain"].astype(bool),
            **credible.spans(host),
        ),
        launches=_first_launches(launch, credible),
        sent=tuple(builder.sent),
        calls=tuple(Call(thread=t, begin=credible.ns(b), end=credible.ns(e), sent=s) for t, b, e, s in calls),
        steps=tuple(
            (name, credible.ns(begin), credible.ns(end))
            for name, begin, end in sorted(builder.steps, key=lambda s: s[1])
            if credible(begin, end - begin)
        ),
        events=builder.events,
        absurd=dropped,
        odd=stream.odd,
        base_us=credible.base,
    )


class _Credible:
    """Which times of a file can be true, and their origin."""

    def __init__(self, begins: NDArray[np.float64]) -> None:
        begins = begins[np.isfinite(begins)]
        self.middle = float(np.median(begins)) if len(begins) else 0.0
        near = begins[np.abs(begins - self.middle) < APART_NS / 1e3]
        self.base = float(near.min()) if len(near) else 0.0
        length = float(near.max()) - self.base if len(near) else 0.0
        self.limit = length + max(SLACK_NS / 1e3, length)

    def __call__(self, begin: Any, dur: Any) -> Any:
        """Whether events that begin at `begin` and last `dur`, us, can have been measured."""
        near = abs(begin - self.middle) < APART_NS / 1e3
        return near & (dur >= 0) & (begin - self.base + dur <= self.limit)

    def keep(self, columns: _Columns) -> int:
        """Leave the others out; how many they were."""
        true = self(columns["ts"], columns["dur"])
        for name in columns:
            columns[name] = columns[name][true]
        return int((~true).sum())

    def ns(self, us: float) -> int:
        """A time as ns since the origin."""
        return round((us - self.base) * 1e3)

    def spans(self, columns: _Columns) -> dict[str, Ints]:
        """Begin and end as ns since the origin."""
        begin = np.rint((columns["ts"] - self.base) * 1e3).astype(np.int64)
        return {"begin": begin, "end": begin + np.rint(columns["dur"] * 1e3).astype(np.int64)}


def _gpu(columns: _Columns, names: tuple[str, ...], credible: _Credible) -> Gpu:
    order = np.argsort(columns["ts"], kind="stable")
    columns = {name: values[order] for name, values in columns.items()}
    name = columns["name"].astype(np.int64)
    by_name = np.array([signs.kernel_kind(n) for n in names], dtype=np.int64)
    kind = columns["kind"].astype(np.int64)
    kind = np.where(kind == BY_NAME, by_name[name], kind) if len(name) else kind
    return Gpu(
        name=name,
        stream=columns["stream"].astype(np.int64),
        correlation=columns["correlation"].astype(np.int64),
        kind=kind,
        shape=columns["shape"].astype(np.int64),
        sent=columns["sent"].astype(np.int64),
        **credible.spans(columns),
    )


def _first_launches(columns: _Columns, credible: _Credible) -> dict[str, Ints]:
    """By correlation: the first call of the runtime that bears it."""
    order = np.lexsort((columns["ts"], columns["correlation"]))
    correlation = columns["correlation"][order].astype(np.int64)
    first = np.diff(correlation, prepend=-1) != 0
    first &= correlation > 0
    begin, thread = credible.spans(columns)["begin"], columns["thread"].astype(np.int64)
    return {"correlation": correlation[first], "begin": begin[order[first]], "thread": thread[order[first]]}


def _number(value: float | str | None) -> int:
    return int(value) if isinstance(value, int | float) else -1


def _sent(args: Args, collective: str) -> Sent:
    """Sizes in nccl-tests' sense: the larger of what goes in and what comes out of one rank."""
    elements: float | None = None
    if args.in_elements is not None or args.out_elements is not None:
        elements = max(args.in_elements or 0, args.out_elements or 0)
    size = signs.element_bytes(args.dtype) if args.dtype else None
    if elements is None and bytes(args.dims):
        words = _WORDS.findall(bytes(args.types).decode("utf-8", "replace"))
        elements, size = _elements(bytes(args.dims)), signs.element_bytes(words[0]) if words else None
    return Sent(
        collective=collective,
        bytes=None if elements is None or size is None or elements <= 0 else int(elements * size),
        group=args.group or "",
        group_size=int(args.group_size) if args.group_size else None,
        seq=int(args.seq) if args.seq is not None else None,
    )


def _elements(dims: bytes) -> float | None:
    """Elements of all tensors of an `Input Dims`; None where it is nothing of that kind."""

    def count(shape: Any) -> float:
        if all(isinstance(n, int) for n in shape):
            return float(np.prod([float(n) for n in shape])) if shape else 0.0
        return sum(count(inner) for inner in shape if isinstance(inner, list))

    try:
        found = json.loads(dims)
        return count(found) if isinstance(found, list) else None
    except (ValueError, TypeError, RecursionError):
        return None
