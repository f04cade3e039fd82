"""Read trace files, a process a core: each into columns, batch by batch, so that memory holds one batch's events."""

from __future__ import annotations

import multiprocessing
import os
import re
import sys
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scaling.reading import INT_MAX, as_number
from scaling.settings.plan import RANKS_MAX
from scaling.traces.profiler import signs
from scaling.traces.profiler.columns import (
    Call,
    Columns,
    Credible,
    DeviceEvents,
    HostEvents,
    Ints,
    Sent,
    Trace,
)
from scaling.traces.profiler.decompose import Parts, decompose
from scaling.traces.profiler.signs import sent_of
from scaling.traces.profiler.stream import Args, DamagedError, DistributedInfo, Other, TraceEvent, TraceStream

SMALL_BYTES = 4 << 20
"""Smaller sets of files are read in this process, since starting others would take longer."""
_RANK = re.compile(r"rank[-_ ]?(\d+)|^worker[-_ ]?(\d+)\.", re.IGNORECASE)
"""`worker3.TIME.pt.trace.json` is named by the user of tensorboard_trace_handler; `worker-3_PID.` by its host."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankTrace:
    """What is kept of one rank's file."""

    path: Path
    rank: int | None
    world_size: int | None
    backend: str | None
    host: str | None
    device_name: str | None
    groups: dict[str, tuple[int, ...]]
    described: dict[str, str]
    """What a process group is for, as torch describes it: `default_pg`, `mesh_shard`."""
    started_us: float
    base_ns: int
    """The file's own time base; added to `started_us` to compare clocks."""
    events: int
    absurd: int
    odd: int
    no_workers: bool
    parts: Parts
    unseen: bool
    """It used a device, and no event of the device is in the trace."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnreadFile:
    """A file that could not be used, and why."""

    path: Path
    why: str
    rank: int | None


def read_all(
    paths: list[Path], meanwhile: Callable[[], object] = lambda: None
) -> tuple[list[RankTrace], list[UnreadFile]]:
    """Read every file; also those that could not be read, which do not affect the others.

    Where other processes read, `meanwhile` is called here after all of them have started.
    """
    workers = min(len(paths), os.cpu_count() or 1)
    if workers < 2 or sum(p.stat().st_size for p in paths) < SMALL_BYTES:
        results = [_read(path) for path in paths]
    else:
        from concurrent.futures import ProcessPoolExecutor  # noqa: PLC0415  slow to import

        # Fork shares the imported modules. It is safe: this process has no threads yet.
        method = "fork" if sys.platform == "linux" else "spawn"
        with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context(method)) as pool:
            reading = pool.map(_read, paths)
            meanwhile()
            results = list(reading)
    return [r for r in results if isinstance(r, RankTrace)], [r for r in results if isinstance(r, UnreadFile)]


def _read(path: Path) -> RankTrace | UnreadFile:
    by_name = _RANK.findall(path.name)
    named = as_number("".join(by_name[-1])) if by_name else None
    try:
        trace = read_trace(path)
        who = trace.meta.distributed or DistributedInfo()
        rank = named if who.rank is None else who.rank
        _require_ranks(rank, who.world_size)
        parts = decompose(trace)
    except DamagedError as error:
        return UnreadFile(path=path, why=str(error), rank=named)
    except ValueError as error:
        return UnreadFile(path=path, why=f"nothing to analyse: {error}", rank=named)
    devices = trace.meta.devices or []
    groups, described = _groups(who)
    return RankTrace(
        path=path,
        rank=rank,
        world_size=who.world_size,
        backend=who.backend,
        host=trace.meta.host_name,
        device_name=str(devices[0].get("name")) if devices else None,
        groups=groups,
        described=described,
        started_us=trace.base_us,
        base_ns=int(trace.meta.base_ns or 0),
        events=trace.events,
        absurd=trace.absurd,
        odd=trace.odd,
        no_workers=trace.no_workers,
        parts=parts,
        unseen=parts.device == "cpu" and (trace.enqueues or who.backend == "nccl"),
    )


def _require_ranks(rank: int | None, world_size: int | None) -> None:
    """DamagedError where the rank or the number of ranks cannot be: the others would be looked for."""
    for what, value, least in (("rank", rank, 0), ("world_size", world_size, 1)):
        if value is not None and not least <= value <= RANKS_MAX:
            raise DamagedError(f"its {what} is {value}; {least} to {RANKS_MAX} is expected")


def _groups(who: DistributedInfo) -> tuple[dict[str, tuple[int, ...]], dict[str, str]]:
    """Members of the process groups that the trace lists, and what each is for."""
    members, purpose = {}, {}
    for group in who.pg_config if isinstance(who.pg_config, list) else []:
        name, ranks, text = str(group.get("pg_name", "")), group.get("ranks"), group.get("pg_desc")
        if isinstance(ranks, list) and ranks and all(isinstance(r, int) for r in ranks):
            members[name] = tuple(ranks)
        if isinstance(text, str) and text not in ("", "undefined"):
            purpose[name] = text
    return members, purpose


BY_NAME = -1
"""Kind of a kernel that is decided later, by its name."""

_NAME, _TID, _TS, _DUR = map(attrgetter, ("name", "tid", "ts", "dur"))
_COLLECTIVE, _GRID = map(attrgetter, ("collective", "grid"))
"""With `map` they fill a column without a list in between."""


class _Numbers(dict[Any, int]):
    """Numbers things in the order in which they are first asked for."""

    def __missing__(self, key: Any) -> int:
        self[key] = number = len(self)
        return number


class _Roles(dict[str, int]):
    """The role of each name, found once."""

    def __missing__(self, name: str) -> int:
        self[name] = role = signs.role(name)
        return role


@dataclass(slots=True)
class _Builder:
    """Turns each batch into arrays before the next one is read."""

    stream: TraceStream
    names: _Numbers = field(default_factory=_Numbers)
    threads: _Numbers = field(default_factory=_Numbers)
    grids: _Numbers = field(default_factory=_Numbers)
    sent: _Numbers = field(default_factory=_Numbers)
    roles: _Roles = field(default_factory=_Roles)
    launches_kernels: bool = False
    calls: list[tuple[int, float, float, Sent, bool]] = field(default_factory=list)
    steps: list[tuple[str, float, float]] = field(default_factory=list)
    gpu: list[Columns] = field(default_factory=list)
    host: list[Columns] = field(default_factory=list)
    launch: list[Columns] = field(default_factory=list)

    def add(self, batch: list[TraceEvent | Other]) -> None:
        """Sort one batch by category and each category into columns."""
        groups: defaultdict[str, list[TraceEvent]] = defaultdict(list)
        for event in batch:
            if type(event) is TraceEvent:
                groups[event.cat].append(event)
        for category, events in groups.items():
            if category in signs.OPERATORS:
                self._hosts(events, plain=True)
            elif category in signs.RUNTIME:
                self._launches(events)
            elif category in signs.KERNELS:
                self._kernels(events)
            elif category in signs.COPIES:
                self._gpu(*self.stream.said(events), signs.COPY)
            elif category in signs.ANNOTATIONS:
                self._hosts(events, plain=False)
            elif category != "Trace":
                told = zip(*self.stream.said(events), strict=True)
                waits = [(event, args) for event, args in told if _number(args.stream) >= 0]
                self._gpu([event for event, _ in waits], [args for _, args in waits], signs.OTHER)

    def _hosts(self, events: list[TraceEvent], *, plain: bool) -> None:
        role = np.fromiter(map(self.roles.__getitem__, map(_NAME, events)), np.int8, len(events))
        self.host.append({"role": role, "plain": np.full(len(events), plain), **self._on_host(events)})
        for event in (events[at] for at in np.flatnonzero(role == signs.STEP)):
            self.steps.append((event.name, event.ts, event.ts + event.dur))
        calls = [events[at] for at in np.flatnonzero(role == signs.CALL)]
        for event, args in zip(*self.stream.said(calls), strict=True):
            announced = signs.annotated(event.name)
            name = event.name.partition(":")[2] if announced else args.collective
            if announced or name:
                sent = sent_of(args, signs.collective_of(name or ""))
                end = event.ts + event.dur
                self.calls.append((self.threads[event.tid], event.ts, end, sent, signs.on_host(event.name)))

    def _on_host(self, events: list[TraceEvent]) -> Columns:
        thread = np.fromiter(map(self.threads.__getitem__, map(_TID, events)), np.int32, len(events))
        return {"thread": thread, **_times(events)}

    def _launches(self, events: list[TraceEvent]) -> None:
        self.launches_kernels |= any("LaunchKernel" in event.name for event in events)
        events, args = self.stream.said(events)
        correlation = _numbers([a.correlation for a in args])
        self.launch.append({"correlation": correlation, **self._on_host(events)})

    def _kernels(self, events: list[TraceEvent]) -> None:
        events, args = self.stream.said(events)
        sent = np.full(len(args), -1)
        for at, name in enumerate(map(_COLLECTIVE, args)):
            if name is not None:
                sent[at] = self.sent[sent_of(args[at], signs.collective_of(name))]
        self._gpu(events, args, np.where(sent < 0, BY_NAME, signs.COMMUNICATION), sent)

    def _gpu(
        self,
        events: list[TraceEvent],
        args: list[Args],
        kind: NDArray[Any] | int,
        sent: NDArray[Any] | int = -1,
    ) -> None:
        many = len(events)
        self.gpu.append(
            {
                "name": np.fromiter(map(self.names.__getitem__, map(_NAME, events)), np.int32, many),
                "stream": _numbers([a.stream for a in args]),
                "correlation": _numbers([a.correlation for a in args]),
                "kind": np.full(many, kind, dtype=np.int8),
                "grid": np.fromiter(map(self.grids.__getitem__, map(_GRID, args)), np.int32, many),
                "sent": np.full(many, sent, dtype=np.int32),
                **_times(events),
            }
        )


def _times(events: list[TraceEvent]) -> Columns:
    """Begin and duration, us; NaN where an event lacks it."""
    return {
        "ts": np.fromiter(map(_TS, events), np.float64, len(events)),
        "dur": np.fromiter(map(_DUR, events), np.float64, len(events)),
    }


def _joined(blocks: list[Columns], names: tuple[str, ...]) -> Columns:
    """All batches in one; empties `blocks`."""
    empty = dict.fromkeys(names, np.empty(0))
    joined = {name: np.concatenate([b.pop(name) for b in blocks]) for name in names} if blocks else empty
    blocks.clear()
    return joined


def read_trace(path: Path) -> Trace:
    """Read one file. DamagedError when it is not a trace, or cut off."""
    stream = TraceStream(path)
    builder = _Builder(stream)
    for batch in stream:
        builder.add(batch)
    gpu = _joined(builder.gpu, ("name", "stream", "correlation", "kind", "grid", "sent", "ts", "dur"))
    host = _joined(builder.host, ("role", "thread", "plain", "ts", "dur"))
    launch = _joined(builder.launch, ("correlation", "thread", "ts", "dur"))
    credible = Credible(np.concatenate([gpu["ts"], host["ts"], launch["ts"]]))
    dropped = sum(credible.keep(columns) for columns in (gpu, host, launch))
    names = tuple(builder.names)
    calls = [c for c in sorted(builder.calls, key=lambda c: c[1]) if credible(c[1], c[2] - c[1])]
    return Trace(
        path=path,
        meta=stream.meta,
        names=names,
        gpu=_gpu(gpu, names, len(builder.grids), credible),
        host=HostEvents(plain=host.pop("plain").astype(bool), **credible.integers(host)),
        launches=_first_launches(launch, credible),
        sent=tuple(builder.sent),
        calls=tuple(
            Call(thread=t, begin=credible.ns(b), end=credible.ns(e), sent=s, on_host=h)
            for t, b, e, s, h in calls
        ),
        steps=tuple(
            (name, credible.ns(begin), credible.ns(end))
            for name, begin, end in sorted(builder.steps, key=lambda s: s[1])
            if credible(begin, end - begin)
        ),
        enqueues=builder.launches_kernels
        or any(signs.annotated(name) and not signs.on_host(name) for name in builder.roles),
        no_workers=any("_SingleProcessDataLoaderIter" in name for name in builder.roles),
        events=stream.events,
        absurd=dropped,
        odd=stream.odd,
        base_us=credible.base,
    )


def _gpu(columns: Columns, names: tuple[str, ...], grids: int, credible: Credible) -> DeviceEvents:
    order = np.argsort(columns["ts"], kind="stable")
    events = credible.integers({name: values[order] for name, values in columns.items()})
    name, kind = events["name"], events["kind"]
    by_name = np.array([signs.kernel_kind(n) for n in names], dtype=np.int64)
    if len(name):
        events["kind"] = np.where(kind == BY_NAME, by_name[name], kind)
    return DeviceEvents(shape=name * grids + events.pop("grid"), **events)


def _first_launches(columns: Columns, credible: Credible) -> dict[str, Ints]:
    """The first call of the runtime with each correlation id."""
    order = np.lexsort((columns["ts"], columns["correlation"]))
    calls = credible.integers({name: values[order] for name, values in columns.items()})
    correlation = calls["correlation"]
    first = (np.diff(correlation, prepend=-1) != 0) & (correlation > 0)
    return {name: calls[name][first] for name in ("correlation", "begin", "thread")}


def _number(value: float | str | None) -> int:
    """-1 for what is no number, and for one that no id can be."""
    return int(value) if isinstance(value, int | float) and -INT_MAX <= value < INT_MAX else -1


def _numbers(values: list[Any]) -> NDArray[np.int64]:
    try:
        return np.array([v if type(v) is int else _number(v) for v in values], dtype=np.int64)
    except OverflowError:
        return np.array([_number(v) for v in values], dtype=np.int64)
