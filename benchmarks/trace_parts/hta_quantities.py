"""HolisticTraceAnalysis' quantities by its own definitions, from traces as `scaling trace` reads them.

    python benchmarks/trace_parts/hta_quantities.py FOLDER    one JSON document; benchmarks/traces.py reads it

As its 0.5.0 computes them with `include_last_profiler_step=True`, but for one thing: fractional microseconds
are kept, where it moves each begin up and each end down to a whole one. Its definitions differ from the
decomposition of this program (docs/traces.md): a kernel communicates when its name begins as `nccl*Kernel`,
everything on a stream counts as activity, stream synchronisation too, and several steps are one stretch of time.
"""

from __future__ import annotations

import json
import re
import sys
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scaling.traces.profiler import signs
from scaling.traces.profiler.columns import Ints, Spans, Trace, common, merged, running
from scaling.traces.profiler.read import read_trace
from scaling.traces.profiler.signs import launched

COMPUTATION, COMMUNICATION, MEMORY, OTHER = "COMPUTATION", "COMMUNICATION", "MEMORY", "OTHER"
TYPES = (COMPUTATION, COMMUNICATION, MEMORY)
_COMMUNICATION = re.compile(r"nccl.*Kernel")
_MEMORY = re.compile(r"Memcpy|Memset|dma")
_NO_COMPUTE = re.compile(r".*Memcpy|Memset|.*Sync")
KERNELS = 10
"""Kernels listed for each type and rank; the rest is `others`."""
QUANTILE = 0.8
"""Kernels above this quantile of the running sum of durations also belong to `others`."""


@lru_cache(maxsize=signs.NAMES)
def kind_of(name: str) -> str:
    """Type of a GPU event by its name."""
    if _COMMUNICATION.match(name):
        return COMMUNICATION
    if _MEMORY.match(name):
        return MEMORY
    return OTHER if _NO_COMPUTE.match(name) else COMPUTATION


def breakdown(trace: Trace, rank: int) -> tuple[dict[str, Any], dict[str, int], list[dict[str, Any]]] | None:
    """One rank's times, ns by type and combination of types, and its kernels; None without events on a stream."""
    gpu = trace.gpu
    counted = _counted(trace)
    begin, end, index = gpu.begin[counted], gpu.end[counted], gpu.name[counted]
    if not len(begin):
        return None
    kinds = np.array([(*TYPES, OTHER).index(kind_of(n)) for n in trace.names])[index]
    sets = [merged(begin[kinds == k], end[kinds == k]) for k in range(len(TYPES))]
    whole = int(end.max() - begin.min())
    compute, active = sets[0].length, merged(begin, end).length
    overlap = common(sets[0], sets[1]).length

    def percent(part: int) -> float | None:
        return 100 * part / whole if whole else None

    times = {
        "rank": rank,
        "idle_us": (whole - active) / 1e3,
        "compute_us": compute / 1e3,
        "non_compute_us": (active - compute) / 1e3,
        "kernel_us": whole / 1e3,
        "idle_percent": percent(whole - active),
        "compute_percent": percent(compute),
        "non_compute_percent": percent(active - compute),
        "overlap_percent": 100 * overlap / sets[1].length if sets[1].length else None,
    }
    kernels = [
        kernel
        for k, kind in enumerate(TYPES)
        for kernel in _kernels(trace.names, index[kinds == k], (end - begin)[kinds == k] / 1e3, kind, rank)
    ]
    return times, _combinations(sets), kernels


def kernel_types(ranks: list[dict[str, int]]) -> list[dict[str, Any]]:
    """Time by type and combination of types over all ranks."""
    total: dict[str, int] = {}
    for rank in ranks:
        for name, ns in rank.items():
            total[name] = total.get(name, 0) + ns
    return [{"kernel_type": name, "sum_us": ns / 1e3} for name, ns in total.items()]


def _counted(trace: Trace) -> Ints:
    """Indices of the events that it counts: with several steps, those launched before the end of the last."""
    on_stream = trace.gpu.stream >= 0
    if len({name for name, _, _ in trace.steps}) < 2:
        return np.flatnonzero(on_stream)
    last = max(end for _, _, end in trace.steps)
    launch, _ = launched(trace)
    return np.flatnonzero(on_stream & (launch >= 0) & (launch <= last))


def _combinations(sets: list[Spans]) -> dict[str, int]:
    low, high, running_now = running(*sets)
    lengths = {}
    for code in range(1, 1 << len(sets)):
        mine = running_now == code
        if mine.any():
            name = " overlapping ".join(kind for k, kind in enumerate(TYPES) if code >> k & 1)
            lengths[name] = int((high - low)[mine].sum())
    return lengths


def _kernels(
    names: tuple[str, ...], index: Ints, us: NDArray[np.float64], kind: str, rank: int
) -> list[dict[str, Any]]:
    """Sums by name, largest first."""
    order = np.argsort(index, kind="stable")
    parts = np.split(us[order], np.flatnonzero(np.diff(index[order])) + 1) if len(us) else []
    present = np.flatnonzero(np.bincount(index))
    rows = [(names[k], float(part.sum())) for k, part in zip(present, parts, strict=True)]
    rows.sort(key=lambda row: -row[1])
    if len(rows) > KERNELS:
        running_sum = np.cumsum([row[1] for row in rows])
        limit = float(np.quantile(running_sum, QUANTILE))
        kept = [row for k, row in enumerate(rows) if running_sum[k] <= limit and k < KERNELS]
        rows = [*kept, ("others", sum(row[1] for row in rows if row not in kept))]
    return [{"name": name, "kernel_type": kind, "rank": rank, "sum_us": total} for name, total in rows]


def main(folder: Path) -> None:
    ranks = []
    for rank, path in enumerate(sorted(folder.glob("rank-*.json.gz"))):
        ranks.append(breakdown(read_trace(path), rank))
    timed = [rank for rank in ranks if rank is not None]
    document = {
        "ranks": [rank[0] for rank in timed],
        "kernel_types": kernel_types([rank[1] for rank in timed]),
        "kernels": [kernel for rank in timed for kernel in rank[2]],
    }
    print(json.dumps(document))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
