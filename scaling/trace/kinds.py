"""Which events of a device communicate, and what: the weaker signs, which need the launches and the streams."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from scaling.trace import signs
from scaling.trace.columns import Call, Gpu, Sent, Trace
from scaling.trace.spans import Ints

FAR = 1 << 46
"""ns between two threads when their times are laid out behind one another; 19 hours."""
_NOTHING = Sent(collective="")


def launched(trace: Trace) -> tuple[Ints, Ints]:
    """When and by which thread each event of the device was launched; -1 where that is not known."""
    known, wanted = trace.launches["correlation"], trace.gpu.correlation
    if not len(known):
        return np.full(len(wanted), -1), np.full(len(wanted), -1)
    at = np.minimum(np.searchsorted(known, wanted), len(known) - 1)
    there = known[at] == wanted
    return np.where(there, trace.launches["begin"][at], -1), np.where(there, trace.launches["thread"][at], -1)


def communication(trace: Trace, launch: Ints, thread: Ints) -> tuple[Ints, list[Sent], dict[str, int]]:
    """Kinds with the weaker signs of communication heeded, what each collective sends, and what was guessed."""
    gpu, names = trace.gpu, trace.names
    kind = gpu.kind.copy()
    call = _enclosing(trace.calls, launch, thread)
    sure = kind == signs.COMMUNICATION
    open_ = np.array([not signs.of_torch(n) for n in names], dtype=bool)
    may = (kind == signs.COMPUTE) & open_[gpu.name] if len(names) else kind == signs.COMPUTE
    under = may & (call >= 0)
    lanes = _lanes(gpu, sure | under, may | sure)
    only = may & ~under & np.isin(gpu.stream, lanes)
    if only.any():  # a name that computes elsewhere computes here too
        elsewhere = np.zeros(len(names), dtype=bool)
        elsewhere[gpu.name[(kind == signs.COMPUTE) & ~np.isin(gpu.stream, lanes)]] = True
        only &= ~elsewhere[gpu.name]
    kind[under | only] = signs.COMMUNICATION
    guessed = count(names[i] for i in gpu.name[under | only])
    sent: list[Sent] = [_NOTHING] * len(kind)
    for i in np.flatnonzero(kind == signs.COMMUNICATION):
        told = trace.sent[gpu.sent[i]] if gpu.sent[i] >= 0 else None
        above = trace.calls[call[i]].sent if call[i] >= 0 else None
        by_name = Sent(collective=signs.collective_of(names[gpu.name[i]]))
        # Point-to-point kernels also carry all_to_all: what the host asked for is the better word.
        found = told or above or by_name
        sent[i] = by_name if found.collective == signs.UNKNOWN and found.bytes is None else found
    return kind, sent, guessed


def _enclosing(calls: tuple[Call, ...], launch: Ints, thread: Ints) -> Ints:
    """Index of the backend's annotation under which each launch happened, on its own thread; -1: none."""
    if not calls:
        return np.full(len(launch), -1)
    begin = np.array([c.begin + c.thread * FAR for c in calls])
    end = np.array([c.end + c.thread * FAR for c in calls])
    order = np.argsort(begin, kind="stable")
    where = launch + thread * FAR
    at = np.searchsorted(begin[order], where, side="right") - 1
    inside = (at >= 0) & (launch >= 0) & (where < end[order][np.maximum(at, 0)])
    return np.where(inside, order[np.maximum(at, 0)], -1)


def _lanes(gpu: Gpu, sending: Ints, kernels: Ints) -> Ints:
    """Streams on which at least half of the `kernels` are surely communication."""
    streams, index = np.unique(gpu.stream[kernels], return_inverse=True)
    if not len(streams):
        return streams
    share = np.bincount(index, weights=sending[kernels]) / np.bincount(index)
    return streams[share >= 0.5]


def count(names: Iterable[str]) -> dict[str, int]:
    """How often each name comes."""
    found: dict[str, int] = {}
    for name in names:
        found[name] = found.get(name, 0) + 1
    return found
